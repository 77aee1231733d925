"""`intarsia.bisect`: which graph, pass and operation make a compiled function wrong, found by leaving the others out.

Nothing is interpreted: compiled functions are called, so that a mistake of generated code is found, too, and a test of the caller's can say
what counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..compile import callable_of, check_function
from ..config import Config
from ..explaining.history import History
from ..explaining.text import short
from ..frontend.runtime.callable import compile_callable
from ..graph_compiler import Report, backend_for, compile_graph, pipeline_of
from ..ir.fx.importer import user_line
from ..ir.syntax import visible
from ..passes.core.base import Pass
from ..passes.core.load import Given, passes_given
from ..passes.core.syntax import pipeline_text
from ..testing import Undecided, check
from ..tools.opt.bisect import kept_passes
from ..training import CompileHalf, compile_training, needs_gradients
from .prefix import first_wrong

Test = Callable[[Callable[..., Any]], bool]
HALVES = ("forward", "backward")


@dataclass(frozen=True)
class Culprit:
    """What makes a function wrong; false where nothing does.

    Attributes:
        wrong: whether the compiled function is wrong at all.
        graph: the number of the graph that alone makes it wrong, counted from 1; 0 where it takes several, or none.
        pass_name: the first pass with which that graph is wrong, "" where it is wrong without all passes that can be left out.
        half: "forward" or "backward", where one of them alone makes it wrong; "" of a graph without gradients, or where it takes both.
        operation, line: the last operation of the shortest beginning of the graph that is wrong when compiled, and the user's line.
        trials: how often the function was compiled.
    """

    wrong: bool
    graph: int = 0
    pass_name: str = ""
    operation: str = ""
    line: str = ""
    trials: int = 0
    half: str = ""

    def __bool__(self) -> bool:
        return self.wrong

    def __str__(self) -> str:
        if not self.wrong:
            return "nothing is wrong"
        if not self.graph:
            return f"no graph alone makes it wrong ({self.trials} trials)"
        half = f" ({self.half})" if self.half else ""
        lines = [f"graph {self.graph}{half} makes it wrong ({self.trials} trials)"]
        lines.append(f"  pass: {self.pass_name or 'none: it is wrong without every pass that can be left out'}")
        lines += [f"  operation: {self.operation}"] if self.operation else []
        lines += [f"  line: {short(self.line)}"] if self.line else []
        return visible("\n".join(lines))


def bisect(fn: Any, *args: Any, passes: Sequence[Given] = (), test: Test | None = None, **kwargs: Any) -> Culprit:
    """Find what makes a compiled function wrong for these arguments.

    Args:
        passes: passes of others, as for `compile`; each trial makes them anew from their options.
        test: is given a compiled function, calls it, and says whether it is wrong. Left out: it is called once on copies of the
            arguments and compared with eager by the accuracy rule; one that raises is wrong where eager does not raise the same. Where
            gradients are on, those of arguments and parameters are compared, too.

    Raises:
        TypeError: `fn` is nothing that can be compiled, or one of `passes` is no pass.
        PipelineError: a file of `passes` cannot be imported, or has no pass.
    """
    fn = callable_of(fn)
    check_function(fn, "bisect")
    given = passes_given(passes)
    trials = _Trials(fn, test or _differs(fn, args, kwargs), Config.from_environment({"cache": False}), given)
    if not trials.wrong(None):
        return Culprit(False, trials=trials.count)
    graphs = trials.graphs
    alone = next((number for number in range(1, len(graphs) + 1) if trials.wrong({number})), 0)
    if not alone:
        return Culprit(True, trials=trials.count)
    trials.half = next((half for half in HALVES if trials.halves and trials.wrong({alone}, half=half)), "")
    gpu = any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
    pipeline = pipeline_of(trials.config, given, gpu=gpu, scope=trials.half or "inference")
    name = ""
    if not trials.wrong({alone}, _limited(pipeline, 0)):
        limit = first_wrong(len(pipeline), lambda n: trials.wrong({alone}, _limited(pipeline, n)))
        name = pipeline[limit - 1].name if limit else ""
    nodes = _operations(graphs[alone - 1])
    at = first_wrong(len(nodes), lambda n: n == len(nodes) or trials.wrong({alone}, operations=n))
    node = nodes[at - 1] if at else None
    place = None if node is None else user_line(node.meta.get("stack_trace"))
    line = "" if place is None else f"{place.filename.data}:{place.line.data}"
    return Culprit(True, alone, name, "" if node is None else node.format_node() or "", line, trials.count, trials.half)


def _limited(pipeline: Sequence[Pass], limit: int) -> str:
    return pipeline_text(kept_passes(pipeline, limit)[0])


def _differs(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Test:
    def wrong(compiled: Callable[..., Any]) -> bool:
        try:
            check(fn, args, kwargs, compiled=compiled, calls=1, gradients=torch.is_grad_enabled())
        except AssertionError:
            return True
        except Undecided:
            return False
        return False

    return wrong


@dataclass
class _Trials:
    """Compiles a function again and again, each time with something left out; `graphs` are those of the last time."""

    fn: Any
    test: Test
    config: Config
    passes: Sequence[Pass | type[Pass]]
    count: int = 0
    half: str = ""  # of graphs with gradients the one half that is compiled; "": both
    halves: bool = False  # whether a graph had halves, the last time

    def __post_init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def wrong(
        self, compiled: Collection[int] | None, pipeline: str = "", operations: int | None = None, half: str = ""
    ) -> bool:
        """Whether the function is wrong where these graphs are compiled (None: all), by these passes, up to this operation, or this half."""
        self.count += 1
        self.graphs = []
        config = replace(self.config, pipeline=pipeline, on_error="raise")
        whole, alone = backend_for(config, tuple(self.passes)), half or self.half
        self.halves = False

        def inner(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            has_halves = needs_gradients(gm, example_inputs)
            self.halves |= has_halves
            if not (has_halves and alone):
                return whole(gm, example_inputs)
            return compile_training(gm, example_inputs, config, tuple(self.passes), compile_half=_only(alone))

        def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            self.graphs.append(gm)
            if compiled is not None and len(self.graphs) not in compiled:
                return gm.forward
            return inner(gm, example_inputs) if operations is None else _begun(gm, operations, example_inputs, inner)

        function = compile_callable(self.fn, backend=backend, observer=History(), on_error="raise")
        try:
            return bool(self.test(function))
        except Exception:  # a beginning of a graph need not be a graph that can be compiled
            if operations is None:
                raise
            return False


def _only(half: str) -> CompileHalf:
    """Compiles one half, and leaves the other one in eager."""

    def compile_half(
        graph: fx.GraphModule, inputs: Sequence[Any], config: Config, passes: Any, name: str
    ) -> tuple[Callable[..., Any], Report]:
        if name == half:
            return compile_graph(graph, inputs, config, passes, name)
        return graph.forward, Report(half=name)

    return compile_half


def _operations(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def _begun(
    gm: fx.GraphModule, count: int, example_inputs: Sequence[Any], inner: Callable[..., Any]
) -> Callable[..., Any]:
    """The graph with its first operations compiled, and the others in eager."""
    head, tail = _split(gm, count)
    first = inner(head, example_inputs)
    return lambda *values: tail(*values, *first(*values))


def _split(gm: fx.GraphModule, count: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The first operations of a graph, which give what the others use, and the others, which take it behind the inputs."""
    begun = set(_operations(gm)[:count]) | {n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")}
    crossing = [n for n in _operations(gm)[:count] if any(user not in begun for user in n.users)]
    head, tail = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    others: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in begun:
            copies[node] = head.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            others[node] = tail.node_copy(node)
    for k, node in enumerate(crossing):
        others[node] = tail.placeholder(f"begun_{k}")
    head.output(tuple(copies[node] for node in crossing))
    for node in gm.graph.nodes:
        if node not in begun or node.op == "get_attr":
            others[node] = tail.node_copy(node, others.__getitem__)
    made = fx.GraphModule(gm, head), fx.GraphModule(gm, tail)
    made[0].meta.update(gm.meta)
    return made
