"""`intarsia.verify`: where a compiled function leaves the accuracy rule: which graph, pass, operation and kernel is the first.

Eager in the program's types and in float64 is the measure. The interpreter runs the imported module and what passes made of it; the first
pass behind which it differs is looked for by halves, and so is the first operation that the pass alone gets wrong. Where all of that is
right, compiled code is compared, then each kernel by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..compile import callable_of, check_function
from ..config import Config
from ..explaining.history import History
from ..explaining.text import short
from ..frontend.runtime.callable import compile_callable
from ..ir.interpreter.loops import main_function
from ..ir.interpreter.run import RULES, run_user
from ..ir.symbols import symbol
from ..ir.syntax import Op, line_of, visible
from ..ir.text import parse_module, print_module
from ..passes.core.base import Pass
from ..passes.core.context import CompileContext, Diagnostics
from ..passes.core.load import Given, passes_given
from ..passes.core.run import PassFailure
from ..testing import copied, same
from ..tools.opt.check import run_on_target
from ..tools.opt.values import Inputs, agree
from ..training import needs_gradients
from .gradients import compared_with_eager
from .graphs import Graph, place_of
from .prefix import body, first_wrong, prefix, wide_values, widened
from .single import single, written

IMPORT, PASS, CODE, SPLIT = "capture or import", "pass", "generated code", "the split into forward and backward"


@dataclass(frozen=True)
class Finding:
    """The first thing that is wrong in a graph.

    Attributes:
        graph: its number, counted from 1; `place` is the user's line that it begins with.
        half: "forward" or "backward" of a graph with gradients, else "".
        stage: "capture or import", "pass", "generated code", or "the split into forward and backward".
        pass_name: the pass behind which the interpreter gives another result.
        operation: the first operation that the pass, or the code, gets wrong, as text; "" where none alone is.
        line: the user's line of that operation.
        kernel: the kernel that gives another result than its loops.
        message: what differs, and by how much.
        before: the module's text as the pass received it, or a module with that kernel alone.
    """

    graph: int
    place: str
    stage: str
    message: str
    pass_name: str = ""
    operation: str = ""
    line: str = ""
    kernel: str = ""
    before: str = field(default="", repr=False)
    item: Pass | None = field(default=None, repr=False)
    values: Sequence[Any] = field(default=(), repr=False)
    half: str = ""

    def __str__(self) -> str:
        lines = [
            f"graph {self.graph}{f' ({self.half})' if self.half else ''}, from {short(self.place)}: wrong behind {self.stage}"
        ]
        lines[0] += f" '{self.pass_name}'" if self.pass_name else ""
        lines += [f"  kernel: {self.kernel}"] if self.kernel else []
        lines += [f"  operation: {self.operation[:200]}"] if self.operation else []
        lines += [f"  line: {short(self.line)}"] if self.line else []
        return visible("\n".join([*lines, *(f"  {line.strip()}" for line in self.message.splitlines()[:5])]))


@dataclass(frozen=True)
class Verification:
    """What `verify` found; true where everything was looked at, and nothing is wrong.

    Attributes:
        graphs: how many were looked at; one with gradients counts once, with both halves.
        stages: how many texts of IR the interpreter could have been asked about.
        unseen: graphs that could not be looked at, or not their gradients, and why.
    """

    graphs: int
    stages: int
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.findings and not self.unseen

    def __str__(self) -> str:
        unseen = [f"not looked at: {text}" for text in self.unseen]
        if self:
            return f"right: {self.graphs} graphs, {self.stages} stages and the generated code agree with eager"
        if not self.findings:
            unseen.insert(
                0, f"not known: {len(unseen)} of {self.graphs} graphs could not be looked at; nothing else is wrong"
            )
        return "\n".join([*map(str, self.findings), *map(visible, unseen)])


def verify(fn: Any, *args: Any, passes: Sequence[Given] = (), **kwargs: Any) -> Verification:
    """Look for the first wrong stage of each graph of a function, for these arguments.

    The function is called once, in eager but for its graphs being captured: its effects happen. Where gradients are on, a graph whose
    results need them is split as for training, and both halves are looked at: backward gets random gradients.

    Args:
        passes: passes of others, as for `compile`.

    Raises:
        TypeError: `fn` is nothing that can be compiled, or one of `passes` is no pass.
        PipelineError: a file of `passes` cannot be imported, or has no pass.
    """
    fn = callable_of(fn)
    check_function(fn, "verify")
    looks = _Looks(Config.from_environment(), passes_given(passes))
    compile_callable(fn, backend=looks.backend, observer=History(), on_error="raise")(*args, **kwargs)
    return Verification(looks.graphs, looks.stages, tuple(looks.findings), tuple(looks.unseen))


class _Looks:
    """A backend that looks at each graph with the inputs of its first call. The graphs themselves run in eager."""

    def __init__(self, config: Config, passes: Sequence[Pass | type[Pass]]) -> None:
        self.config, self.passes = config, passes
        self.graphs = self.stages = 0
        self.findings: list[Finding] = []
        self.unseen: list[str] = []

    def backend(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        seen: list[int] = []
        look = self._with_gradients if needs_gradients(gm, example_inputs) else self._without

        def run(*values: Any) -> Any:
            if not seen:
                self.graphs += 1
                seen.append(self.graphs)
                try:
                    look(gm, example_inputs, values)
                # An error of ours: the program goes on in eager, which would look as if nothing were wrong.
                except Exception as error:
                    self._not_looked_at(self.graphs, place_of(gm), error)
            return gm(*values)

        return run

    def _without(
        self, gm: Any, example_inputs: Sequence[Any], values: Sequence[Any], half: str = "", number: int = 0
    ) -> None:
        graph = Graph(gm, copied(list(values)), self.config, self.passes, half)
        graph.lower(example_inputs)
        self.stages += len(graph.stages)
        found = examine(graph, number or self.graphs)
        if found is not None:
            self.findings.append(replace(found, half=half))

    def _with_gradients(self, gm: Any, example_inputs: Sequence[Any], values: Sequence[Any]) -> None:
        number, looked = self.graphs, set[str]()

        def of_half(graph: Any, inputs: Sequence[Any], half: str) -> Callable[..., Any]:
            def run(*given: Any) -> Any:
                if half not in looked:
                    looked.add(half)
                    self._without(graph, inputs, given, half, number)
                return graph(*given)

            return run

        place = place_of(gm)
        try:
            verdict = compared_with_eager(gm, example_inputs, values, self.config, self.passes, of_half)
        except Exception as error:
            self._not_looked_at(number, place, error)
            return
        if not verdict and not any(found.graph == number for found in self.findings):
            self.findings.append(Finding(number, place, SPLIT, verdict.message, values=values))

    def _not_looked_at(self, number: int, place: str, error: Exception) -> None:
        said = (str(error).strip().splitlines() or [""])[0]
        self.unseen.append(f"graph {number}, from {short(place)}: {type(error).__name__}: {said}"[:300])


def examine(graph: Graph, number: int) -> Finding | None:
    """The first thing that is wrong in a graph."""
    stages, place = graph.stages, graph.place
    verdicts: dict[int, Any] = {}

    def wrong(count: int) -> bool:
        verdicts[count - 1] = graph.interpreted(stages[count - 1].text)
        return not verdicts[count - 1]

    first = first_wrong(len(stages), wrong)
    if first is not None and wrong(1):
        first = 1
    if first == 1:
        return Finding(number, place, IMPORT, verdicts[0].message, before=stages[0].text, values=graph.values)
    if first is not None:
        item, before = stages[first - 1].item, stages[first - 2].text
        assert item is not None
        at = _first_operation(graph, item, before)
        said = verdicts[first - 1].message
        return Finding(number, place, PASS, said, item.name, *_described(at), "", before, item, graph.values)
    if graph.failure is not None:
        name = graph.failure.pass_name if isinstance(graph.failure, PassFailure) else ""
        item = graph.failure.item if isinstance(graph.failure, PassFailure) else None
        said = f"it raises: {graph.failure}"
        return Finding(number, place, PASS, said, name, before=stages[-1].text, item=item, values=graph.values)
    verdict = graph.compiled()
    if verdict:
        return None
    kernel = first_wrong_kernel(parse_module(stages[-1].text), [*graph.values, *graph.constants])
    if kernel is None:
        return Finding(number, place, CODE, verdict.message, before=stages[-1].text, values=graph.values)
    op, module, values = kernel
    text, line = _described(op)
    name = str(op.get("kernel") or op.get("target") or op.name)
    return Finding(number, place, CODE, verdict.message, "", text, line, name, print_module(module), values=values)


def _described(op: Op | None) -> tuple[str, str]:
    return ("", "") if op is None else (str(op).splitlines()[0].partition(" loc(")[0], line_of(op))


def _first_operation(graph: Graph, item: Pass, before: str) -> Op | None:
    """The last operation of the shortest beginning of a module that the pass gets wrong."""
    module = parse_module(before)
    values = [*graph.values, *graph.constants]

    def wrong(count: int) -> bool:
        begun = prefix(module, count)
        after = begun.clone()
        try:
            wanted = run_user(begun, copied(values))
            item.apply(CompileContext(graph.ctx.machine, Diagnostics()), after)
        except Exception:  # a pass may not expect half of a program
            return False
        try:
            gold = run_user(widened(begun), wide_values(copied(values)))
        except Exception:
            gold = None
        try:
            return not same(wanted, run_user(after, copied(values)), gold)
        except Exception:
            return True

    ops = body(module)
    found = first_wrong(len(ops), wrong)
    return None if found is None else ops[found - 1]


def first_wrong_kernel(module: ModuleOp, values: Sequence[Any]) -> tuple[Op, ModuleOp, list[Any]] | None:
    """The first step whose compiled code gives another result than its loops, that step as a module, and what it was given."""
    seen: set[str] = set()
    found: list[tuple[Op, ModuleOp, list[Any]]] = []

    def looking(name: str) -> Callable[..., Any]:
        def rule(machine: Any, op: Op) -> Any:
            word = str(op.get("kernel") or op)
            if found or word in seen or op.parent is not main.block_body:
                return RULES[name](machine, op)
            seen.add(word)
            alone, reads = single(op, module)
            given = copied([machine.values[v] for v in reads])
            sizes = {str(row[0]): machine.symbols[symbol(row[0])] for row in main_function(alone).get("symbols", ())}
            results = RULES[name](machine, op)
            wanted = [*(machine.values[v].clone() for v in dict.fromkeys(written(op, module))), *results]
            inputs = Inputs(sizes, (*given, *sizes.values()))
            try:
                right = agree(run_on_target(alone, inputs), wanted)
            except Exception:  # what cannot be compiled by itself is not blamed
                right = True
            if not right:
                found.append((op, alone, [*given, *sizes.values()]))
            return results

        return rule

    main = main_function(module)
    steps = ("buffer.launch", "buffer.extern", "buffer.contract", "buffer.copy")
    run_user(module, copied(list(values)), {**RULES, **{name: looking(name) for name in steps}})
    return found[0] if found else None
