"""Graphs whose results need gradients: torch's AOTAutograd makes the joint graph, each half goes through the whole pipeline.

AOTAutograd runs the captured graph on fake tensors with autograd recording, and removes mutation. `partition/` splits the
joint graph into a forward and a backward one, which AOTAutograd wraps in one `torch.autograd.Function`. What cannot be
traced runs in eager.
"""

from __future__ import annotations

import operator
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from .config import Config
from .counters import COUNTERS
from .explaining import logs
from .explaining.roofline import WATCH, watching
from .explaining.steps import source_name
from .extend.configured import Passes, policy_of
from .frontend.branches.random_state import rewound
from .frontend.branches.written import WRITTEN, or_put_back
from .frontend.errors import Busy
from .frontend.functional.results import root_of
from .frontend.gradients.nodes import OUTSIDE, has_gradients
from .frontend.graph.read_sizes import READS
from .frontend.graph.recompute import decide
from .frontend.torch_private.autograd import (
    VISIBLE,
    aot_autograd,
    outside_of_analysis,
    outside_of_tracing,
    refused_by_autograd,
    without_tokens,
)
from .frontend.torch_private.autograd_graph import NOT_ARRIVING, after_the_call
from .frontend.torch_private.dispatch import draws, without_autocast
from .frontend.torch_private.fake import data_dependent_errors
from .frontend.torch_private.functions import SET_GRAD_MODE
from .frontend.torch_private.graphs import lazy_graph_module
from .frontend.torch_private.joint import Joint, is_view, without_unread
from .frontend.torch_private.symbols import may_be_no_rows
from .graph_compiler import (
    GraphFunction,
    Report,
    compile_graph,
    may_run_eager,
    results_of,
    run_eager,
    without_casts,
)
from .linear_losses import without_logits
from .partition.arriving import depends, without
from .partition.choose import Partition, split
from .partition.input_names import name_inputs
from .partition.prepare import prepare
from .reports.record import now_recording, resumed
from .second_order import twice_differentiable
from .targets.build.program import Program
from .targets.errors import Unassumed
from .targets.recordings.recording import Halves
from .tools.debug import FUNCTION

_WORTH_TAKING = 1 << 20  # bytes that are saved, from which on it is worth another form of the host program
_ARRIVING = "tangents"  # how AOTAutograd names the inputs of backward that are gradients
# A graph, its inputs, settings, passes of others, and "forward" or "backward".
CompileHalf = Callable[[fx.GraphModule, Sequence[Any], Config, Passes, str], tuple[GraphFunction, Report]]

__all__ = ["compile_training", "needs_gradients"]


def needs_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether autograd has to see a call of the graph: a result, or an input that it writes to."""
    if has_gradients(gm.graph) and OUTSIDE not in gm.meta:
        return False
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        return False
    results = gm.graph.find_nodes(op="output")[0].all_input_nodes
    if not torch.is_grad_enabled():  # the program may switch it on; an input that it returns needs nothing
        made = [n.meta.get("example_value") for n in results if n.op != "placeholder"]
        return any(getattr(value, "requires_grad", False) for value in made)
    written = [n.meta.get("differentiated", True) for n in gm.graph.find_nodes(op="placeholder")]
    return any(written) or any(getattr(n.meta.get("example_value"), "requires_grad", True) for n in results)


def writes_inside(example_inputs: Sequence[Any]) -> bool:
    """Whether the forward half is to write new statistics where they are: on a GPU each copy of them is a launch."""
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in example_inputs)


def compile_training(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    passes: Passes = (),
    reports: list[Report] | None = None,
    compile_half: CompileHalf | None = None,
) -> GraphFunction:
    """Compile a graph and its backward: the callable's results record their gradients.

    The report of the forward graph is appended to `reports`, that of the backward graph when it first runs. `compile_half` makes the
    function of each half in place of `compile_graph`; `faults` looks at them by one of its own.
    """
    if not torch.is_grad_enabled():
        # It switches them on: as where they are on, with a beginning that switches them off.
        with torch.enable_grad():
            traced = compile_training(_begun_without_grad(gm), example_inputs, config, passes, reports, compile_half)

        def run(*args: Any) -> Sequence[Any]:
            with torch.enable_grad():
                return traced(*args)

        return run

    watch = WATCH.get()  # backward is compiled when it first runs, by then no one else watches
    halves: dict[str, Half] = {}

    def compiler(name: str) -> Callable[..., GraphFunction]:
        def later(graph: fx.GraphModule, inputs: Sequence[Any]) -> GraphFunction:
            if name not in halves:
                graph.meta[FUNCTION] = gm.meta.get(FUNCTION, "")
                halves[name] = Half(name, graph, list(inputs), config, passes, reports, watch, compile_half)
            return halves[name]

        return later

    def prepared(joint: fx.GraphModule) -> None:
        may_be_no_rows(n.meta.get("val") for n in joint.graph.nodes)
        decide(joint.graph.nodes)
        without_unread(joint.graph)
        without_logits(joint, config)
        prepare(joint, small=config.memory_budget < 1.0)

    def split_for_budget(joint: Joint) -> tuple[fx.GraphModule, fx.GraphModule]:
        with COUNTERS.phase("partition"):
            forward, backward, found = split(joint, config.memory_budget, policy)
        partitions.append(found)
        logs.joint(joint.module)
        logs.partitioned(found)
        name_inputs([source_name(n) for n in gm.graph.find_nodes(op="placeholder")], forward.graph, backward.graph)
        return forward, backward

    partitions: list[Partition] = []
    policy = policy_of(config, passes)
    inside = writes_inside(example_inputs)
    try:
        with COUNTERS.phase("autograd"):
            parts = compiler("forward"), compiler("backward"), prepared, split_for_budget
            made = aot_autograd(gm, list(example_inputs), *parts, writes=inside)
        shared = Halves(partitions[0].bytes)
        for half in halves.values():
            half.partition, half.halves = partitions[0], shared
        halves["forward"].compile()
        random = halves["forward"].random
        made_of = halves["backward"].depends if "backward" in halves else []
        cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        again = partial(compile_training, config=config, passes=passes, reports=reports, compile_half=compile_half)
        made = as_assumed(made, gm)
        run = twice_differentiable(after_the_call(made), gm, lambda: not cast and not random, made_of, again)
        # AOTAutograd writes to inputs after the forward half.
        run.writes_last = not inside or halves["forward"].writes_last  # type: ignore[attr-defined]
    except (MemoryError, torch.OutOfMemoryError, Busy):
        raise
    except Exception as error:
        if config.strict and not isinstance(error, data_dependent_errors()) and not refused_by_autograd(error):
            raise
        what = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        function, report = run_eager(gm, f"its gradients cannot be traced: {type(error).__name__}: {what}")
        if reports is not None:
            reports.append(report)
        return function
    for half in halves.values():
        weakref.finalize(run, half.release).atexit = False
    return run


def as_assumed(made: GraphFunction, gm: fx.GraphModule) -> GraphFunction:
    """Where the forward half meets a size that is not what was assumed, the whole graph runs in eager, with its checks."""
    if READS not in gm.meta:
        return made

    made = rewound(made, gm, Unassumed)

    def run(*args: Any) -> Sequence[Any]:
        try:
            return made(*args)
        except Unassumed as error:
            text = str(error)
        return or_put_back(run_eager(gm, text)[0], gm.meta.get(WRITTEN))(*args)

    return run


class Half:
    """One half of a joint graph. AOTAutograd gets it at once; it is compiled afterwards: forward then, backward when it first runs.

    One thread compiles it. Others that come meanwhile run the graph in eager: none waits for another. The class that
    AOTAutograd makes is a cycle, which the collector alone takes away: what was compiled is given back when the compiled
    graph dies, and made again (out of the cache) should a backward pass still need it.
    """

    def __init__(
        self,
        name: str,
        graph: fx.GraphModule,
        inputs: list[Any],
        config: Config,
        passes: Passes,
        reports: list[Report] | None,
        watch: Any,
        compile_half: CompileHalf | None = None,
    ) -> None:
        self.tokens = without_tokens(graph.graph)
        self.random = draws(graph.graph)
        self.depends = _depends(graph.graph) if name == "backward" else []
        given = enumerate(graph.graph.find_nodes(op="placeholder"))
        self.arriving = [k for k, node in given if node.name.startswith(_ARRIVING)]
        _own_memory(graph.graph, alone=name == "backward")
        graph.recompile()
        self.name, self.graph, self.inputs = name, graph, inputs
        self.config, self.passes, self.reports, self.watch = config, passes, reports, watch
        self.compile_half = compile_half
        self.recording = now_recording()  # backward is compiled later, perhaps by another thread
        self.visible = graph.meta.get(VISIBLE) if name == "forward" else 0
        self.function: GraphFunction | None = None
        self.program: Program | None = None  # until it is known that calls run as planned
        self.taken: Callable[[list[Any]], Sequence[Any]] | None = None
        self.recorded: Program | None = None  # the program, where its recording may take what forward saved
        self.halves = Halves()  # of which the other one is
        self.partition: Partition | None = None
        self.writes_last = False  # when nothing can fail any more
        self.busy = threading.Lock()  # never waited for
        self.others: dict[frozenset[int], Half] = {}  # by which gradients do not arrive

    def without(self, missing: frozenset[int]) -> Half:
        """The half for calls in which these gradients do not arrive."""
        half = self.others.get(missing)
        if half is None:
            graph = without(self.graph, _arriving(self.graph.graph), missing)
            given = self.config, self.passes, self.reports, self.watch, self.compile_half
            half = Half(self.name, graph, self.inputs, *given)
            half.tokens, half.partition, half.halves = self.tokens, self.partition, self.halves
            half.recording = self.recording
            if self.others or self.function is not None:
                self.halves.stop()  # forward's memory is for one
            half = self.others.setdefault(missing, half)
        return half

    def __call__(self, *args: Any) -> Sequence[Any]:
        if NOT_ARRIVING.now:
            return self.without(NOT_ARRIVING.taken())(*args)
        function = self.function
        if function is None:
            function = self.compile()
        return function(*args)

    def take(self, args: list[Any]) -> Sequence[Any]:
        """Call the half with a list of arguments that it may empty: what forward saved is given up as backward goes on.

        From the second call on; a call that has given something up cannot go to eager any more.
        """
        if NOT_ARRIVING.now:
            return self.without(NOT_ARRIVING.taken()).take(args)
        if self.taken is not None:
            with without_autocast():  # casts are explicit in a compiled graph
                return self.taken(args)
        if self.recorded is not None and self.recorded.may_take:
            with without_autocast():
                results = self.recorded.take_recorded(args)
            if results is not None:
                return results
        results = self(*args)
        if self.busy.acquire(blocking=False):
            try:
                self._take()
            finally:
                self.busy.release()
        return results

    def _take(self) -> None:
        program, saved = self.program, 0 if self.partition is None else self.partition.bytes
        if program is None or not program.may_take or saved < _WORTH_TAKING:
            return
        self.taken = program.take(results_of(self.config))
        self.program = None
        if self.taken is not None:
            self.function = self.taken_of_all

    def taken_of_all(self, *args: Any) -> Sequence[Any]:
        """The same of arguments one by one."""
        return self.take([*args])

    def compile(self) -> GraphFunction:
        """Compile the half, or give its graph as it is while another thread does."""
        if not self.busy.acquire(blocking=False):
            return self.graph.forward
        try:
            if self.function is None:
                if self.others:
                    self.halves.stop()
                with (
                    resumed(self.recording),
                    outside_of_tracing(),
                    torch.no_grad(),
                    COUNTERS.phase(self.name),
                    watching(self.watch),
                ):
                    self.function = self._first(self._compiled())
            return self.function
        finally:
            self.busy.release()

    def _first(self, function: GraphFunction) -> GraphFunction:
        """The function, called as in eager the first time, too."""

        def first(*args: Any) -> Sequence[Any]:
            if self.function is not None:  # it was not given back
                self.function = function
            with outside_of_analysis():
                return function(*args)

        return first

    def _compiled(self) -> GraphFunction:
        logs.half(self.name, self.graph)
        function, report = (self.compile_half or compile_graph)(
            self.graph, self.inputs, self.config, self.passes, self.name
        )
        self.writes_last = getattr(function, "writes_last", False)
        report.half, report.partition = self.name, self.partition if self.name == "forward" else None
        if self.tokens:
            function = _without_tokens(function, self.tokens)
        # Under autocast or not, whatever the forward half was.
        if self.name == "backward" and may_run_eager(report.program):
            function = without_casts(function)
        plain = self.watch is None and not self.tokens and not any(isinstance(x, torch.SymFloat) for x in self.inputs)
        if self.name == "backward" and plain:
            self.program = report.program
        if report.program is not None and self.visible is not None:
            for recorded in report.program.recorded:
                saved = range(self.visible, sys.maxsize)
                after, arriving = self.name == "backward", self.arriving
                recorded.hand_out(saved, half=True, after_others=after, moving=arriving, halves=self.halves)
            if self.name == "backward" and self.program is not None and len(self.program.recorded) == 1:
                self.recorded = self.program
            elif self.name == "backward":
                self.halves.stop()  # nobody would play back what takes memory of forward's
        if self.reports is not None:
            self.reports.append(report)
        return function

    def release(self) -> None:
        """Give back what was compiled; the reports are for those who hold the compiled graph."""
        self.function = self.taken = self.program = self.recorded = self.reports = None
        self.others.clear()


def _without_tokens(function: GraphFunction, tokens: Sequence[int]) -> GraphFunction:
    """Markers of operators with effects arrive as None, where the graph was traced with empty tensors."""
    nothing = torch.empty(0)

    def call(*args: Any) -> Sequence[Any]:
        given = list(args)
        for place in tokens:
            given[place] = nothing
        return function(*given)

    return call


def _begun_without_grad(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph between a node that switches gradients off and one that switches them on again."""
    graph = fx.Graph()
    results = graph.graph_copy(gm.graph, {}, return_output_node=True)
    assert isinstance(results, tuple)
    copied, output = results
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        graph.call_function(SET_GRAD_MODE, (False,))
    graph.call_function(SET_GRAD_MODE, (True,))
    graph.output(copied).meta.update(output.meta)
    return lazy_graph_module(gm, graph)


def _arriving(graph: fx.Graph) -> list[fx.Node]:
    """The inputs of a backward half that are gradients."""
    return [node for node in graph.find_nodes(op="placeholder") if node.name.startswith(_ARRIVING)]


def _depends(graph: fx.Graph) -> list[frozenset[int]]:
    """For each result of a backward half, which of the gradients that arrive it is made of."""
    made_of = depends(graph, _arriving(graph))
    (results,) = graph.find_nodes(op="output")[0].args
    return [made_of[r] if isinstance(r, fx.Node) else frozenset() for r in results]  # type: ignore[union-attr]


def _own_memory(graph: fx.Graph, alone: bool) -> None:
    """Results that see their memory as another dtype, conjugated or negated become values of their own.

    The results of both halves are values: which of the program's results are views, and of what, is decided by AOTAutograd
    outside of them. With `alone`, no result is a view of an input or of another result: autograd keeps a gradient that it
    receives as `.grad`, and adds to it in place.
    """
    output = graph.find_nodes(op="output")[0]
    taken: set[fx.Node] = set()
    for node in output.all_input_nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        root = root_of(node)
        shared = alone and (root in taken or (root.op == "placeholder" and root is not node))
        taken.add(root)
        strange = value.is_conj() or value.is_neg() or _dtype(root) not in (None, value.dtype)
        if shared or (strange and node.op == "call_function"):
            with graph.inserting_before(output):
                output.replace_input_with(node, _copied(graph, node, () if alone else _plain_views(node)))


def _plain_views(node: fx.Node) -> list[fx.Node]:
    """The views that lead to a node and read memory as the one before does; the outermost first."""
    found: list[fx.Node] = []
    while is_view(node) and node.target is not operator.getitem and _reads(node) == _reads(node.all_input_nodes[0]):
        found.append(node)
        node = node.all_input_nodes[0]
    return found


def _reads(node: fx.Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    return (value.dtype, value.is_conj(), value.is_neg()) if isinstance(value, torch.Tensor) else None


def _copied(graph: fx.Graph, node: fx.Node, views: Sequence[fx.Node]) -> fx.Node:
    """A copy of what a node shows, seen by the views that lead to it: so it has their strides."""
    old = views[-1].all_input_nodes[0] if views else node
    made = graph.call_function(torch.ops.aten.clone.default, (old,))
    made.meta = {**old.meta, "val": old.meta["val"].clone()}
    for view in reversed(views):
        before = {view.all_input_nodes[0]: made}
        made = graph.node_copy(view, lambda n, before=before: before.get(n, n))  # type: ignore[misc]
    return made


def _dtype(node: fx.Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)
