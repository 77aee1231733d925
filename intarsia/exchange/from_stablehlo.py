"""StableHLO as a front end: a module, as JAX prints it, becomes a graph of torch functions, which Intarsia compiles as any other.

    run = intarsia.from_stablehlo(jax.jit(f).lower(x).as_text())
    fast = intarsia.compile(run)

Calls are written in their place, loops and branches become torch's while_loop and cond. Every result is checked against the type that the
text gives it. What is not taken is an error that shows the line. Nothing of the text is executed while it is read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from ..frontend.torch_private.regions import COND, WHILE_LOOP
from ..ir.syntax import comment_of
from .as_module import LineTracer
from .constants import constant, dtype_of_element
from .errors import ExchangeError
from .mlir_text import Dense, Function, Operation, Reader, Region, Type
from .stablehlo_calls import CALLS
from .stablehlo_forms import FORMS

MOST_OPERATIONS = 200_000  # of all functions, calls written out
LARGEST_FILE = 1 << 30


def from_stablehlo(source: str | Path, name: str = "") -> fx.GraphModule:
    """A module of StableHLO as a torch module that takes the arguments of `@main` and gives its results.

    Args:
        source: the text, or the path of a file that holds it.
        name: what errors call the text; a file's is its path.

    Raises:
        ExchangeError: the text is no module of StableHLO, or an operation or type is not taken; shows the line.
    """
    if isinstance(source, Path) or (
        "\n" not in source and len(source) < 4096 and not source.lstrip().startswith("module")
    ):
        name = name or str(source)
        text = read_text(Path(source))
    else:
        text = source
    reader = Reader(text, name or "<text>", FORMS)
    try:
        functions = reader.module()
        main = functions.get("main") or (next(iter(functions.values())) if len(functions) == 1 else None)
        if main is None:
            reader.fail("the module has no function @main", 0)
        graph = _Graph(_Program(reader, functions))
        graph.function(main)
        return graph.finish()
    except RecursionError:
        raise ExchangeError(f"{reader.name}: nested too deeply") from None


def read_text(path: Path) -> str:
    """A file of text that is not too large.

    Raises:
        ExchangeError: it cannot be read, or is no text.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ExchangeError(f"'{path}' has more than {LARGEST_FILE:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, ExchangeError):
            raise
        raise ExchangeError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}") from None


@dataclass
class _Program:
    """The whole text: its functions, and how much of it has been written out."""

    reader: Reader
    functions: dict[str, Function]
    count: int = 0
    calling: list[str] = field(default_factory=list)


@dataclass
class Call:
    """One operation for its rule: operands as values of the graph (or as tensors), and their types."""

    reader: Reader
    op: Operation
    values: list[Any]
    types: list[Type]
    run: Callable[[Region, Sequence[Any]], list[Any]]  # a region with these arguments, on tensors
    known: Callable[[Any], Any]  # the number that all elements of a value are, or None
    make: Callable[..., Any]  # calls a function that takes no values of the graph
    iota_along: Callable[[Any], int | None]  # the dimension along which a value counts from 0 on, or None

    def fail(self, message: str) -> Any:
        """Raise an error that shows the operation."""
        self.reader.fail(f"{self.op.name}: {message}", self.op.position)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the generic form."""
        found = self.op.attributes.get(name, default)
        if found is None:
            self.fail(f"the attribute '{name}' is missing")
        return found

    def integers(self, name: str, default: Any = None) -> list[int]:
        """A list of whole numbers."""
        found = self.attribute(name, default)
        if isinstance(found, Dense):
            found = constant(self.reader, found)[0].reshape(-1).tolist()
        if not isinstance(found, list) or not all(isinstance(n, int) for n in found):
            self.fail(f"'{name}' is no list of whole numbers")
        return list(found)

    def pairs(self, name: str, count: int) -> list[list[int]]:
        """A table of two columns and `count` rows; zeros where there is none."""
        found = self.op.attributes.get(name, [[0, 0]] * count)
        if isinstance(found, Dense):
            found = constant(self.reader, found)[0].tolist()
        if (
            not isinstance(found, list)
            or len(found) != count
            or not all(isinstance(p, list) and len(p) == 2 for p in found)
        ):
            self.fail(f"'{name}' has to have two numbers for each of {count} dimensions")
        return found

    def shape(self, k: int) -> tuple[int, ...]:
        """Of operand k."""
        return self.sizes(self.types[k])

    def sizes(self, kind: Type) -> tuple[int, ...]:
        """The sizes of a type, all of them numbers."""
        if any(n is None for n in kind.shape):
            self.fail(f"sizes that are not known ({kind}) are not taken")
        return tuple(n or 0 for n in kind.shape)

    @property
    def result(self) -> tuple[int, ...]:
        """The first result's sizes."""
        return self.sizes(self.op.types[0])

    def dtype(self, kind: Type | None = None) -> torch.dtype:
        """Of a type; default: the first result's."""
        return dtype_of_element(self.reader, (kind or self.op.types[0]).element, self.op.position)


def _unknown(value: Any) -> None:
    return None


class _Graph:
    """One graph: `@main`, or a region that a loop or a branch runs."""

    def __init__(self, program: _Program) -> None:
        self.program, self.reader = program, program.reader
        self.graph = fx.Graph()
        self.tracer = LineTracer(self.graph)
        self.root = torch.nn.Module()
        self.known: dict[str, Any] = {}
        self.numbers: dict[fx.Node, Any] = {}
        self.iotas: dict[fx.Node, int] = {}
        self.declared: dict[fx.Node, tuple[Type, Operation]] = {}
        self.made = 0

    # -- values

    def argument(self, name: str, kind: Type, position: int) -> fx.Proxy:
        """A placeholder."""
        if any(n is None for n in kind.shape):
            self.reader.fail(f"sizes that are not known ({kind}) are not taken", position)
        dtype_of_element(self.reader, kind.element, position)
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}")
        node.meta["type"] = kind
        return fx.Proxy(node, self.tracer)

    def attribute(self, value: Any) -> fx.Proxy:
        """A tensor or a graph of the module's own."""
        name = f"{'constant' if isinstance(value, Tensor) else 'region'}_{self.made}"
        self.made += 1
        if isinstance(value, Tensor):
            self.root.register_buffer(name, value)
        else:
            setattr(self.root, name, value)
        return fx.Proxy(self.graph.create_node("get_attr", name), self.tracer)

    def make(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A call that takes no values of the graph."""
        return self.tracer.create_proxy("call_function", function, args, kwargs)

    # -- operations

    def function(self, function: Function) -> None:
        """The whole of a function, its arguments placeholders."""
        names = {n: self.argument(n, t, function.position) for n, t in function.body.arguments}
        results = self.block(function.body, names, dict(function.body.arguments))
        kinds = [self.kinds[name] for name in self.last.operands]
        if kinds != function.results:
            self.reader.fail(f"@{function.name} returns {', '.join(map(str, kinds))}", self.last.position)
        self.close(results)

    def close(self, results: Sequence[Any]) -> None:
        nodes = tuple(r.node for r in results)
        self.graph.output(nodes[0] if len(nodes) == 1 else nodes)

    def block(self, region: Region, names: dict[str, Any], kinds: dict[str, Type]) -> list[Any]:
        """What a region returns, its operations written here."""
        self.kinds = kinds
        for op in region.operations:
            self.program.count += 1
            if self.program.count > MOST_OPERATIONS:
                self.reader.fail(f"more than {MOST_OPERATIONS:,} operations, calls written out", op.position)
            operands = []
            for name in op.operands:
                if name not in names:
                    self.reader.fail(f"{name} is not defined", op.position)
                operands.append(names[name])
            if op.name == "stablehlo.return":
                self.last = op
                return operands
            types = [kinds[name] for name in op.operands]
            if op.given and op.given != types:
                self.reader.fail(
                    f"{op.name} takes {', '.join(map(str, op.given))}, and is given {', '.join(map(str, types))}",
                    op.position,
                )
            line = self.reader.text.count("\n", 0, op.position) + 1
            self.tracer.trace = f'  File "{comment_of(self.reader.name)}", line {line}, in main\n    {op.name}\n'
            made = self.operation(op, operands, types, names, kinds)
            self.kinds = kinds
            if len(made) != len(op.results):
                self.reader.fail(f"{op.name} gives {len(made)} results", op.position)
            for name, value, kind in zip(op.results, made, op.types, strict=True):
                if name in names:
                    self.reader.fail(f"{name} is defined twice", op.position)
                names[name], kinds[name] = value, kind
                if isinstance(value, fx.Proxy):
                    self.declared.setdefault(value.node, (kind, op))
        self.reader.fail("a region without a return", region.operations[-1].position if region.operations else 0)

    def operation(
        self, op: Operation, operands: list[Any], types: list[Type], names: dict[str, Any], kinds: dict[str, Type]
    ) -> list[Any]:
        if op.name == "stablehlo.constant":
            value = op.attributes.get("value")
            if not isinstance(value, Dense):
                self.reader.fail("a constant is written as dense<...> : type", op.position)
            return [self.constant(*constant(self.reader, value))]
        if op.name == "func.call":
            return self.call(op, operands, types)
        if op.name == "stablehlo.while":
            return self.loop(op, operands, types, names, kinds)
        if op.name in ("stablehlo.case", "stablehlo.if"):
            return self.branch(op, operands, names, kinds)
        rule = CALLS.get(op.name)
        if rule is None:
            self.reader.fail(f"the operation {op.name} is not taken", op.position)
        number, iota = (lambda v, t=table: t.get(getattr(v, "node", None)) for table in (self.numbers, self.iotas))
        call = Call(self.reader, op, operands, types, self.on_tensors, number, self.make, iota)
        try:
            made = rule(call)
            if op.name == "stablehlo.broadcast_in_dim" and number(operands[0]) is not None:
                self.numbers[made.node] = number(operands[0])
            if op.name == "stablehlo.iota":
                self.iotas[made.node] = int(op.attributes["iota_dimension"])
        except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ExchangeError):
                raise
            self.reader.fail(
                f"{op.name} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}", op.position
            )
        return list(made) if isinstance(made, list | tuple) else [made]

    def constant(self, value: Tensor, number: Any) -> fx.Proxy:
        """A constant of one number is made where it is needed."""
        if number is None:
            return self.attribute(value)
        made = self.make(torch.full, tuple(value.shape), number, dtype=value.dtype)
        self.numbers[made.node] = number
        return made

    def call(self, op: Operation, operands: list[Any], types: list[Type]) -> list[Any]:
        name = str(op.attributes.get("callee", "")).strip('@"')
        function = self.program.functions.get(name)
        if function is None:
            self.reader.fail(f"the module has no function @{name}", op.position)
        if name in self.program.calling or len(self.program.calling) > 100:
            self.reader.fail(f"@{name} calls itself", op.position)
        if [t for _, t in function.body.arguments] != types or function.results != op.types:
            self.reader.fail(f"@{name} takes or gives other types", op.position)
        self.program.calling.append(name)
        given = {n: v for (n, _), v in zip(function.body.arguments, operands, strict=True)}
        made = self.block(function.body, given, dict(function.body.arguments))
        self.program.calling.pop()
        return made

    # -- regions

    def inner(
        self, region: Region, outer: dict[str, Any], kinds: dict[str, Type], captured: list[str], alone: bool = False
    ) -> fx.GraphModule:
        """A region as a graph of its own: its arguments, then the values of the outside that it reads."""
        graph = _Graph(self.program)
        given = [*region.arguments, *((name, kinds[name]) for name in captured)]
        position = region.operations[0].position if region.operations else 0
        names = {name: graph.argument(name, kind, position) for name, kind in given}
        arguments = {id(v) for v in names.values()}
        results = graph.block(region, names, dict(given))
        trace = graph.tracer.trace
        # Results of a region are its own: neither an argument, nor one twice.
        own, seen = [], set(arguments)
        for value in results:
            own.append(value.clone() if id(value) in seen else value.contiguous())
            seen.add(id(value))
        graph.tracer.trace = trace
        graph.graph.output(own[0].node if alone else tuple(r.node for r in own))
        return graph.module()

    def loop(
        self, op: Operation, operands: list[Any], types: list[Type], names: dict[str, Any], kinds: dict[str, Type]
    ) -> list[Any]:
        condition, body = op.regions
        captured = sorted(read_outside(condition) | read_outside(body))
        self._defined(captured, names, op)
        graphs = [self.inner(r, names, kinds, captured, alone=r is condition) for r in (condition, body)]
        functions = [self.attribute(g) for g in graphs]
        if not operands:
            self.reader.fail("a loop that carries nothing", op.position)
        # What is carried has one layout in all rounds.
        given = tuple(v.contiguous() for v in operands), tuple(names[n] for n in captured)
        made = self.make(WHILE_LOOP, *functions, *given)
        return [made[k] for k in range(len(op.types))]

    def branch(self, op: Operation, operands: list[Any], names: dict[str, Any], kinds: dict[str, Type]) -> list[Any]:
        """`if` by a boolean; `case` by a number, of which one outside means the last region."""
        captured = sorted(set().union(*(read_outside(region) for region in op.regions)))
        self._defined(captured, names, op)
        graphs = [self.inner(region, names, kinds, captured) for region in op.regions]
        given = tuple(names[n] for n in captured)
        which = operands[0]
        if op.name == "stablehlo.if":
            return self._cond(which, graphs, given, len(op.types))
        if not graphs:
            self.reader.fail("no region", op.position)
        chosen = [*(which == k for k in range(len(graphs) - 1))]
        return self._cases(chosen, graphs, given, len(op.types))

    def _cases(self, chosen: list[Any], graphs: list[fx.GraphModule], given: tuple[Any, ...], count: int) -> list[Any]:
        """Each region's results, chosen element by element where there are more than two: nothing that they compute has effects."""
        if len(graphs) == 2:
            return self._cond(chosen[0], graphs, given, count)
        made = []
        for graph in graphs:
            out: Any = self.tracer.create_proxy("call_module", self._submodule(graph), given, {})
            made.append([out[k] for k in range(count)])
        results = made[-1]
        for which, values in zip(reversed(chosen), reversed(made[:-1]), strict=True):
            results = [torch.where(which, a, b) for a, b in zip(values, results, strict=True)]
        return results

    def _submodule(self, graph: fx.GraphModule) -> str:
        name = f"region_{self.made}"
        self.made += 1
        setattr(self.root, name, graph)
        return name

    def _cond(self, which: Any, graphs: list[fx.GraphModule], given: tuple[Any, ...], count: int) -> list[Any]:
        functions = [self.attribute(g) for g in graphs]
        made = self.make(COND, which, *functions, given)
        return [made[k] for k in range(count)]

    def _defined(self, captured: Sequence[str], names: dict[str, Any], op: Operation) -> None:
        for name in captured:
            if name not in names:
                self.reader.fail(f"{name} is not defined", op.position)

    def on_tensors(self, region: Region, values: Sequence[Any]) -> list[Any]:
        """What a region gives for these tensors: how a rule finds out what a comparison or a reducer does."""
        known = {name: value for (name, _), value in zip(region.arguments, values, strict=True)}
        kinds = dict(region.arguments)
        for op in region.operations:
            if any(name not in known for name in op.operands):
                self.reader.fail("a region that reads values from outside is not taken", op.position)
            operands = [known[name] for name in op.operands]
            if op.name == "stablehlo.return":
                return operands
            if op.name == "stablehlo.constant" and isinstance(op.attributes.get("value"), Dense):
                made: Any = [constant(self.reader, op.attributes["value"])[0]]
            elif op.name in CALLS:
                types = [kinds[n] for n in op.operands]
                call = Call(self.reader, op, operands, types, self.on_tensors, _unknown, operator.call, _unknown)
                made = CALLS[op.name](call)
            else:
                self.reader.fail(f"the operation {op.name} is not taken here", op.position)
            made = list(made) if isinstance(made, list | tuple) else [made]
            for name, value, kind in zip(op.results, made, op.types, strict=True):
                known[name], kinds[name] = value, kind
        return []

    # -- the end

    def finish(self) -> fx.GraphModule:
        """The graph as a module, checked."""
        return self.module()

    def module(self) -> fx.GraphModule:
        made = fx.GraphModule(self.root, self.graph, "StableHLO")
        made.meta["inputs"] = _Check(made, self.declared, self.reader).go()
        return made


def read_outside(region: Region) -> set[str]:
    """Values that a region reads and does not define."""
    own = {name for name, _ in region.arguments}
    found: set[str] = set()
    for op in region.operations:
        found |= {name for name in op.operands if name not in own}
        for inner in op.regions:
            found |= read_outside(inner) - own
        own |= set(op.results)
    return found


class _Check(fx.Interpreter):
    """Runs a graph on tensors without memory, and compares every result with the type that the text gives it."""

    def __init__(self, module: fx.GraphModule, declared: dict[fx.Node, tuple[Type, Operation]], reader: Reader) -> None:
        super().__init__(module)
        self.declared, self.reader = declared, reader

    def go(self) -> list[Tensor]:
        """What the graph takes, as tensors without memory."""
        graph: Any = self.module.graph
        given = [self._empty(n.meta["type"]) for n in graph.nodes if n.op == "placeholder"]
        with torch.no_grad():
            self.run(*given)
        return given

    def _empty(self, kind: Type) -> Tensor:
        shape = [n or 0 for n in kind.shape]
        if math.prod(shape) > 1 << 48:
            self.reader.fail(f"{kind} is too large", 0)
        return torch.empty(shape, dtype=dtype_of_element(self.reader, kind.element, 0), device="meta")

    def run_node(self, n: fx.Node) -> Any:
        kind, op = self.declared.get(n, (None, None))
        if n.target in (COND, WHILE_LOOP):
            return None
        if op is not None and op.name in ("stablehlo.while", "stablehlo.if", "stablehlo.case"):
            assert kind is not None
            return self._empty(kind)
        try:
            with torch.device("meta"):
                made = super().run_node(n)
        except ExchangeError:
            raise
        except Exception as error:
            at = op or next((o for k, (_, o) in self.declared.items() if k > n), None)
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.reader.fail(f"{at.name if at else n.name} does not fit its types: {said}", at.position if at else 0)
        if isinstance(made, Tensor) and made.device.type != "meta":
            made = made.to("meta")
        if op is not None and kind is not None and isinstance(made, Tensor):
            wanted = self._empty(kind)
            if made.shape != wanted.shape or made.dtype != wanted.dtype:
                self.reader.fail(
                    f"{op.name} gives {list(made.shape)} of {made.dtype}, and the text says {kind}", op.position
                )
        return made
