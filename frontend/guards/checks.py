"""Guards over several values at once: facts of all tensors, symbolic sizes, the thread's global state."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import sympy
import torch
import torch.utils._pytree as pytree

from ..errors import SourceLine, Unsupported, lines_of
from ..graph.output import GraphInput, OutputGraph
from ..torch_private.guards import (
    current_gpu,
    current_gpu_raw,
    forward_mode,
    function_mode_count,
    function_mode_count_raw,
    global_state_guard,
    tensor_guards,
)
from ..torch_private.symbols import python_text
from ..values.kinds import isinstance
from .drawn import is_drawn
from .emitter import Emitter, MissIf, Statement
from .guards import Guard
from .recompile_reason import Miss
from .source import Arg, Computed, Const, Source

__all__ = [
    "Classes",
    "Distinct",
    "HeldModules",
    "SizeCheck",
    "StateCheck",
    "TensorCheck",
    "is_argument",
    "tensor_checks",
]


@dataclass(frozen=True)
class _Facts:
    """What capture relied on of one tensor; `real` is the tensor itself where guards hold it by identity."""

    source: Source
    kind: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    real: torch.Tensor | None
    info: GraphInput = field(repr=False, compare=False)

    @staticmethod
    def of(info: GraphInput) -> _Facts:
        """The facts before the program ran, which may have changed the tensor in place."""
        fake, symbolic = info.fake, has_symbols(info)
        sizes, strides, _ = info.geometry
        return _Facts(
            info.source,
            type(info.real),
            fake.dtype,
            fake.fake_device,
            info.requires_grad,
            tuple(None if isinstance(s, torch.SymInt) else int(s) for s in sizes),
            tuple(None if symbolic else int(s) for s in strides),
            info.real if info.static else None,
            info,
        )

    def miss(self, given: Any) -> Miss | None:
        """The first fact that differs."""
        name, value = self.source.name(), given
        if type(given) is not self.kind:
            return self._miss(f"type({name})", self.kind.__name__, type(value).__name__)
        for fact in ("dtype", "device", "requires_grad"):
            if getattr(value, fact) != getattr(self, fact):
                return self._miss(f"{name}.{fact}", str(getattr(self, fact)), str(getattr(value, fact)))
        for label, got, want in (("shape", value.shape, self.sizes), ("stride()", value.stride(), self.strides)):
            if fits(got, want):
                continue
            advice = ""
            if label == "shape" and len(got) == len(want):
                changed = [d for d, (g, w) in enumerate(zip(got, want, strict=True)) if g != w and w is not None]
                advice = f"intarsia.mark_dynamic({name}, {changed[0] if len(changed) == 1 else changed})"
            return self._miss(f"{name}.{label}", any_of(want), str(tuple(got)), advice)
        return None

    def _miss(self, part: str, expected: str, got: str, advice: str = "") -> Miss:
        return Miss(part, expected, got, self.place(), advice)

    def place(self) -> SourceLine | None:
        """The user's line that first used the tensor."""
        node = self.info.node
        trace = next((n.meta.get("stack_trace") for n in node.users), None) if node is not None else None
        return next(reversed(lines_of(trace)), None)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{any_of(self.sizes)}, strides {any_of(self.strides)}, {self.device}"


def fits(got: Sequence[Any], wanted: Sequence[int | None]) -> bool:
    """Whether sizes or strides are those that are wanted."""
    return len(got) == len(wanted) and all(w is None or g == w for g, w in zip(got, wanted, strict=True))


def any_of(numbers: tuple[int | None, ...]) -> str:
    """Sizes or strides as text; None: any will do."""
    return str(tuple(numbers)).replace("None", "any")


class TensorCheck:
    """Type, dtype, device, requires_grad, dispatch keys, sizes and strides of every tensor, in one C++ call."""

    def __init__(self, inputs: list[GraphInput], inference: bool = False) -> None:
        self.facts = [_Facts.of(info) for info in inputs]
        self.first = all(is_argument(f.source) for f in self.facts)
        sizes = [list(f.sizes) for f in self.facts]
        strides = [list(f.strides) for f in self.facts]
        with torch.inference_mode(inference):  # which is part of the dispatch keys
            self._guard = tensor_guards([info.real for info in inputs], sizes, strides)

    def lines(self, emit: Emitter) -> None:
        """One call over all tensors; those held by identity are constants of the generated code."""
        if all(f.real is not None for f in self.facts):  # one constant: there may be hundreds
            check, held = self._guard.check, tuple(f.real for f in self.facts)
            emit.miss_if(f"not {emit.constant(check, 'tensors_ok')}(*{emit.constant(held, 'tensors')})")
            return
        names = [emit.fetch(f.source) if f.real is None else emit.constant(f.real, f.source.name()) for f in self.facts]
        check = emit.constant(self._guard.check, "tensors_ok")
        for facts, name in zip(self.facts, names, strict=True):
            if facts.real is None:
                emit.lines.append(f"# {name}: {facts}")
        emit.miss_if(f"not {check}({', '.join(names)})")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first fact of the first tensor that differs."""
        values = []
        for facts in self.facts:
            value = facts.source.fetch(args) if facts.real is None else facts.real
            miss = facts.miss(value)
            if miss is not None:
                return miss
            values.append(value)
        if not self._guard.check(*values):
            return Miss("tensor dispatch keys", "as at capture", "another combination (a transform, a subclass)")
        return None

    def __str__(self) -> str:
        return "\n".join(f"{f.source.name()}: {f}" for f in self.facts)


def is_argument(source: Source) -> bool:
    """Whether a value is reached from an argument: such values differ between calls sooner than others."""
    return isinstance(source.root(), Arg)


def tensor_checks(inputs: Iterable[GraphInput], inference: bool) -> list[TensorCheck]:
    """The check of tensors among the arguments, and the check of all others."""
    tensors = [i for i in inputs if isinstance(i.fake, torch.Tensor)]
    groups = [[i for i in tensors if is_argument(i.source)], [i for i in tensors if not is_argument(i.source)]]
    return [TensorCheck(group, inference) for group in groups if group]


def has_symbols(info: GraphInput) -> bool:
    """Whether any size, stride or the offset of a tensor is symbolic."""
    sizes, strides, offset = info.geometry
    return any(isinstance(s, torch.SymInt) for s in (*sizes, *strides, offset))


@dataclass
class StateCheck:
    """Grad mode, autocast, default dtype, determinism, modes and transforms of the calling thread."""

    guard: Any = field(default_factory=global_state_guard)
    modes: int = field(default_factory=function_mode_count)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: bool = field(default_factory=lambda: any(map(torch.is_autocast_enabled, ("cpu", "cuda"))))
    gpu: int | None = field(default_factory=current_gpu)
    device: torch.device = field(default_factory=torch.get_default_device)
    needed: bool = True
    with_tensors: bool = False
    first = True

    def narrow(self, out: OutputGraph) -> None:
        """Leave out what this graph does not rely on.

        A check of tensors covers inference mode and whether autocast is on: both are part of the dispatch keys.
        """
        self.with_tensors = any(isinstance(i.fake, torch.Tensor) for i in out.inputs.values())
        self.needed = self.autocast or not self.with_tensors or relies_on_state(out)
        makes = makes_gpu_tensors(out)
        if not out.asked and not makes:
            self.gpu = None
        elif self.gpu is None:  # the first use of a GPU
            self.gpu = current_gpu(used=makes)

    def lines(self, emit: Emitter) -> None:
        """The number of active function modes, and C calls for what else the graph relies on."""
        tests = [f"{emit.constant(function_mode_count_raw(), 'function_modes')}() != {self.modes}"]
        tests.append(f"{emit.constant(forward_mode(), 'forward_mode')}._current_level >= 0")
        if self.needed:
            tests.append(f"not {emit.constant(self.guard.check, 'state_ok')}()")
        if self.gpu is not None:
            tests.append(f"{emit.constant(current_gpu_raw(), 'current_gpu')}() != {self.gpu}")
        if self.modes:  # one of torch.set_default_device: nothing is captured under another
            device = emit.constant(torch.get_default_device, "default_device")
            tests.append(f"{device}() != {emit.constant(self.device, 'device')}")
        if not self.with_tensors:
            infer = emit.constant(torch.is_inference_mode_enabled, "inference_mode")
            tests.append(f"{infer}() is not {self.inference}")
        emit.miss_if(" or ".join(tests))

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """What changed, in torch's words."""
        if self.needed and not self.guard.check():
            return Miss(
                "global state (grad mode, autocast, default dtype, determinism)", "as at capture", self.guard.reason()
            )
        if forward_mode()._current_level >= 0:
            return Miss("torch.autograd.forward_ad", "no level", "a level for tangents")
        if function_mode_count() != self.modes:
            return Miss("torch function modes", str(self.modes), str(function_mode_count()))
        if self.modes and torch.get_default_device() != self.device:
            return Miss("torch.get_default_device()", str(self.device), str(torch.get_default_device()))
        if self.gpu is not None and current_gpu() != self.gpu:
            return Miss("torch.cuda.current_device()", str(self.gpu), str(current_gpu()))
        if torch.is_inference_mode_enabled() is not self.inference:
            return Miss("inference mode", str(self.inference), str(not self.inference))
        return None

    def __str__(self) -> str:
        if not self.needed:
            return "global state: function modes as at capture"
        return "global state: grad mode, autocast, default dtype, determinism as at capture"


_ARITHMETIC = "add sub mul truediv neg pos iadd isub imul itruediv pow"
_ELEMENTWISE = (
    "add sub mul div neg abs relu sigmoid tanh exp log sqrt rsqrt square sin cos clamp maximum minimum erf silu gelu "
    "relu_ add_ sub_ mul_ div_ t transpose permute view reshape unsqueeze squeeze flatten expand contiguous"
)


def _stateless() -> frozenset[Any]:
    functions = [getattr(space, n, None) for space in (torch, torch.nn.functional) for n in _ELEMENTWISE.split()]
    operators = [getattr(operator, name) for name in _ARITHMETIC.split()]
    return frozenset([*filter(None, functions), *_ELEMENTWISE.split(), *operators, operator.getitem])


_STATELESS = _stateless()


def relies_on_state(out: OutputGraph) -> bool:
    """Whether grad mode, default dtype, determinism and their like may make a difference to a graph.

    They do not where the program asked for none of them and only computes element by element on floating-point
    tensors that need no gradient.
    """
    nodes = [n for n in out.graph.nodes if n.op not in ("placeholder", "output")]
    values = [i.fake for i in out.inputs.values()] + [n.meta.get("example_value") for n in nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    plain = all(t.is_floating_point() and not t.requires_grad for t in tensors)
    return out.asked or not plain or not all(n.target in _STATELESS and not n.kwargs for n in nodes)


def makes_gpu_tensors(out: OutputGraph) -> bool:
    """Whether tensors come to a GPU in a graph without one that was there: perhaps to the current one."""
    for node in out.graph.nodes:
        made, given = node.meta.get("example_value"), [n.meta.get("example_value") for n in node.all_input_nodes]
        made, given = ([t for t in pytree.tree_leaves(v) if isinstance(t, torch.Tensor)] for v in (made, given))
        there = {t.device for t in given}
        if node.op not in ("placeholder", "get_attr") and any(
            t.device.type == "cuda" and t.device not in there for t in made
        ):
            return True
    return False


@dataclass
class Distinct:
    """Objects that were different ones at capture."""

    sources: list[Source]

    @property
    def first(self) -> bool:
        """Whether only arguments are compared."""
        return all(map(is_argument, self.sources))

    def lines(self, emit: Emitter) -> None:
        """Compare identities as a set."""
        names = [emit.fetch(s) for s in self.sources]
        if len(names) == 2:
            emit.miss_if(f"{names[0]} is {names[1]}")
        elif len(names) > 2:
            emit.miss_if(f"len({{{', '.join(f'id({n})' for n in names)}}}) != {len(names)}")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """Name the group."""
        values = [s.fetch(args) for s in self.sources]
        names = ", ".join(s.name() for s in self.sources)
        if len({id(v) for v in values}) != len(values):
            return Miss(names, "different tensors", "the same tensor more than once")
        return None

    def __str__(self) -> str:
        return f"different tensors: {', '.join(s.name() for s in self.sources)}"


def _symbolic_facts(info: GraphInput) -> list[tuple[str, Any]]:
    """Sizes, then strides and offset, of a fake tensor with symbols (or the number itself), each with how to read it."""
    if not isinstance(info.fake, torch.Tensor):
        return [("", info.fake)]
    if not has_symbols(info):
        return []
    shape, stride, offset = info.geometry
    sizes = [(f".shape[{dim}]", s) for dim, s in enumerate(shape) if isinstance(s, torch.SymInt)]
    strides = [(f".stride()[{dim}]", s) for dim, s in enumerate(stride)]
    return [*sizes, *strides, *([(".storage_offset()", offset)] if isinstance(offset, torch.SymInt) else [])]


class HeldModules(tuple):  # type: ignore[type-arg]
    """The modules of a `Classes`, told from any tuple of the program's."""

    __slots__ = ()


class Classes:
    """The classes of modules that are held by identity: nothing that a module holds tells when one is given another class."""

    first = False

    def __init__(self, guards: Iterable[Guard]) -> None:
        # By source, which compares modules by identity: modules may define what equals them, or have no hash.
        roots = list(dict.fromkeys(source for source in (g.source.root() for g in guards) if _holds_module(source)))
        self.modules, self.labels = HeldModules(source.value for source in roots), [source.name() for source in roots]
        self.classes = [type(module) for module in self.modules]

    def lines(self, emit: Emitter) -> None:
        """One comparison of all classes."""
        modules, classes = emit.constant(self.modules, "all_modules"), emit.constant(self.classes, "classes")
        if self.modules:
            kinds = f"{emit.constant(map, 'map')}({emit.constant(type, 'type')}, {modules})"
            emit.miss_if(f"[*{kinds}] != {classes}")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first module of another class."""
        for module, label, kind in zip(self.modules, self.labels, self.classes, strict=True):
            if type(module) is not kind:
                return Miss(f"type({label})", kind.__qualname__, type(module).__qualname__)
        return None

    def __str__(self) -> str:
        return f"the classes of {len(self.modules)} modules"


def _holds_module(source: Source) -> TypeGuard[Const]:
    return isinstance(source, Const) and isinstance(source.value, torch.nn.Module)


class SizeCheck:
    """Relations between symbolic sizes, as Python expressions over the inputs' shapes.

    The backend may come to rely on further relations; `late` has them once it is done.
    """

    def __init__(self, inputs: list[GraphInput], shape_env: Any) -> None:
        self.bindings: list[tuple[sympy.Symbol, Source, str]] = []
        self.equations: list[tuple[Source, str, sympy.Expr]] = []
        bound: set[sympy.Symbol] = set()
        for info in inputs:
            for place, value in _symbolic_facts(info):
                expr = value.node._expr if isinstance(value, torch.SymInt | torch.SymFloat) else sympy.Integer(value)
                if isinstance(expr, sympy.Symbol) and expr not in bound:
                    bound.add(expr)
                    self.bindings.append((expr, info.source, place))
                else:
                    self.equations.append((info.source, place, expr))
        self._names = {symbol: f"s{n}" for n, (symbol, _, _) in enumerate(self.bindings)}
        self.first = all(is_argument(info.source) and not is_drawn(info.source) for info in inputs)
        self.floats = {info.source: info.real for info in inputs if type(info.real) is float}
        self._float_symbols = {symbol for symbol, source, _ in self.bindings if source in self.floats}
        self._shape_env = shape_env
        self.relations: dict[str, SourceLine | None] = {}
        self._collect()

    def _collect(self) -> list[str]:
        """Relations that are new since the last time."""
        known, env = set(self.relations), self._shape_env
        for symbol in self._names:  # first: what follows divides by sizes that are not 0
            for relation in self._range(symbol, env):
                self.relations.setdefault(relation, self.place_of(symbol))
        places = getattr(env.guards, "places", ())
        for index, guard in enumerate(env.guards):
            text = self._text(guard.expr)
            if text != "True":
                place = places[index] if index < len(places) else None
                line = None if place is None else SourceLine(*place)
                self.relations.setdefault(text, line)
                for nonzero in self._not_zero(guard.expr):
                    self.relations.setdefault(nonzero, line)
        return [r for r in self.relations if r not in known]

    def _not_zero(self, expr: Any) -> list[str]:
        """Of floats that are equal to something, which takes their place: 0.0 and -0.0 are equal, and differ."""
        if not isinstance(expr, sympy.Eq):
            return []
        return [f"{self._names[s]} != 0.0" for s in sorted(expr.free_symbols, key=str) if s in self._float_symbols]

    def late(self) -> list[Statement]:
        """Checks of what came to be relied on after `lines` was written."""
        return [MissIf(f"not ({r})") for r in self._collect()]

    def fixed_floats(self) -> Iterator[tuple[Source, float]]:
        """Arguments that are floats and what they were, where they, or what follows from them, have to be one number."""
        equal = {e.args[0] for e in (guard.expr for guard in self._shape_env.guards) if isinstance(e, sympy.Eq)}
        waiting = [source for symbol, source, _ in self.bindings if symbol in equal]
        while waiting:
            source = waiting.pop()
            if isinstance(source, Computed):
                waiting += source.operands
            elif source in self.floats:
                yield source, self.floats[source]

    def place_of(self, symbol: sympy.Symbol) -> SourceLine | None:
        """The user's line that first made a relation with this symbol necessary."""
        places = getattr(self._shape_env.guards, "places", ())
        for guard, place in zip(self._shape_env.guards, places, strict=False):
            if symbol in guard.expr.free_symbols and place is not None:
                return SourceLine(*place)
        return None

    def _range(self, symbol: sympy.Symbol, shape_env: Any) -> list[str]:
        limits = shape_env.var_to_range.get(symbol)
        if limits is None:
            return []
        name = self._names[symbol]
        low = [f"{int(limits.lower)} <= {name}"] if limits.lower.is_Integer else []
        high = limits.upper.is_Integer and int(limits.upper) < 1 << 40
        return [*low, *([f"{name} <= {int(limits.upper)}"] if high else [])]

    def _text(self, expr: Any) -> str:
        missing = [s for s in getattr(expr, "free_symbols", ()) if s not in self._names]
        if missing:
            raise Unsupported(f"a size relation uses a symbol that no input binds: {expr}")
        return python_text(expr, self._names)

    def lines(self, emit: Emitter) -> None:
        """Bind each symbol, then test equations and relations."""
        emit.namespace.setdefault("math", math)
        emit.namespace.setdefault("torch", torch)  # conversions between kinds of numbers are torch's
        for symbol, source, place in self.bindings:
            emit.lines.append(f"{self._names[symbol]} = {emit.fetch(source)}{place}")
        tests = [f"{emit.fetch(source)}{place} == {self._text(expr)}" for source, place, expr in self.equations]
        emit.lines += [MissIf(f"not {test}") for test in [*tests, *(f"({r})" for r in self.relations)]]
        emit.late = len(emit.lines)

    def number(self, symbol: sympy.Symbol, hint: Any) -> Any:
        """The symbol as a number that computes with symbols; `hint` is its value in the example."""
        make = self._shape_env.create_symfloatnode if isinstance(hint, float) else self._shape_env.create_symintnode
        return make(symbol, hint=hint)

    def symbol_text(self, expr: Any, more: Mapping[Any, str] | None = None) -> str:
        """An expression over the bound names, and over those that `more` has for other symbols."""
        return python_text(expr, {**self._names, **more}) if more else self._text(expr)

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first relation that does not hold."""
        names: dict[str, Any] = {"math": math, "torch": torch}
        labels: dict[str, str] = {}
        drawn = [(symbol, source) for symbol, source, _ in self.bindings if is_drawn(source)]
        for symbol, source, place in self.bindings:
            if is_drawn(source):
                continue
            name = self._names[symbol]
            names[name] = eval(f"value{place}", {"value": source.fetch(args)})
            labels[name] = f"{source.name()}{place}"
        shown = ", ".join(f"{labels[k]} = {names[k]}" for k in labels)
        for source, place, expr in self.equations:
            fact = eval(f"value{place}", {"value": source.fetch(args)})
            if fact != eval(self._text(expr), dict(names)):
                return Miss(f"{source.name()}{place}", labelled(self._text(expr), labels), f"{fact} with {shown}")
        for relation, line in self.relations.items():
            try:
                holds = eval(relation, dict(names))
            except ZeroDivisionError:
                holds = False
            except NameError:  # of what a call draws
                continue
            if not holds:
                used = [labels[n] for n in labels if re.search(rf"\b{n}\b", relation)]
                advice = "nothing, sizes 0 and 1 are compiled once each" if _is_small(relation, names) else ""
                return Miss(" and ".join(used) or "sizes", labelled(relation, labels), shown, line, advice)
        if drawn:
            name = " and ".join(source.name() for _, source in drawn)
            return Miss(name, "numbers that decide as at capture", "others", self.place_of(drawn[0][0]))
        return None

    def __str__(self) -> str:
        bound = [f"{self._names[s]} = {source.name()}{place}" for s, source, place in self.bindings]
        return "\n".join([*bound, *(f"sizes: {r}" for r in self.relations)])


def _is_small(relation: str, names: Mapping[str, Any]) -> bool:
    found = re.fullmatch(r"2 <= (s\d+)", relation)
    return found is not None and names[found[1]] in (0, 1)


def labelled(text: str, labels: Mapping[str, str]) -> str:
    """A relation over the names of symbols, in the words of the arguments."""
    return re.sub(r"\bs\d+\b", lambda m: labels.get(m.group(), m.group()), text)
