"""AOTAutograd: the joint graph of forward and backward, and the nodes that it leaves in autograd's graph."""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..errors import Busy
from ..graph.value_errors import may_raise
from .autograd_graph import NOT_ARRIVING, hook_keeper
from .batches import is_batched, one_by_one
from .dispatch import eagers_interpolation, is_seeded, python_dispatcher
from .foreign.formulas import with_opaque_formulas
from .foreign.unlike import OWN_INPUTS, forget_notes, put_notes, taken_notes
from .functions import RECURRENT
from .joint import Joint, gives_nothing, raise_unread, shows_number
from .symbols import none_pending, scalar_outputs


@contextmanager
def own_saving() -> Iterator[None]:
    """Hooks of the program's on tensors saved for backward do not see what is saved meanwhile."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


VISIBLE = "visible"  # in a forward graph's `meta`: results from this one on are only seen by backward


TRACING = threading.RLock()  # torch's tracers of whole graphs keep their state in globals: one thread at a time


PATIENCE = 60.0  # seconds after which a thread gives up: what is traced may call functions of the user's, which may wait for it


@contextmanager
def tracing_alone() -> Iterator[None]:
    """Nobody else traces with AOTAutograd meanwhile.

    Raises Busy where that takes too long.
    """
    if not TRACING.acquire(timeout=PATIENCE):
        raise Busy("another thread has been tracing for too long")
    try:
        yield
    finally:
        TRACING.release()


@contextmanager
def outside_of_tracing() -> Iterator[None]:
    """No fake tensor mode and no autocast on this thread."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), torch._C._DisableAutocast():
        yield


@contextmanager
def outside_of_analysis() -> Iterator[None]:
    """Operators run without AOTAutograd's check of user-defined ones, a mode in which it makes each graph's first call.

    Below any mode, some of torch's own kernels see lazy conjugates as they lie in memory: a complex `linalg.pinv` is wrong there.
    """
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

    kind = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", None)
    if kind is None or type(_get_current_dispatch_mode()) is not kind:
        yield
        return
    with _pop_mode_temporarily():
        yield


@contextmanager
def _unpatched_modules() -> Iterator[None]:
    """torch.fx traces on this thread without its wrappers around `nn.Module.__call__` and `__getattr__`.

    They are put into the class itself, where all threads see them, and do nothing for graphs of operators.
    """
    from torch.fx import _symbolic_trace

    plain, thread = getattr(_symbolic_trace, "_new_patcher", None), threading.get_ident()
    if plain is None:
        yield
        return

    @contextmanager
    def patcher() -> Iterator[Any]:
        with plain() as made:
            if threading.get_ident() == thread:
                patch = made.patch_method
                made.patch_method = lambda cls, *args, **kw: None if cls is torch.nn.Module else patch(cls, *args, **kw)
            yield made

    _symbolic_trace._new_patcher = patcher
    try:
        yield
    finally:
        _symbolic_trace._new_patcher = plain


@contextmanager
def _layers_with_gradients() -> Iterator[None]:
    """Recurrent layers of a graph with gradients are traced step by step on this thread, with states of their own shape.

    torch's decomposition takes oneDNN's layer where the input needs no gradient, in its form for inference, whose backward
    fails; up to 2.12 the states that it gives otherwise have a dimension too many.
    """
    from torch._decomp import decompositions

    plain, thread = decompositions.select_one_layer_lstm_function, threading.get_ident()

    def layer(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        result, states = decompositions.one_layer_lstm(inp, hidden, *args, **kwargs)
        return result, tuple(s.reshape(given.shape) for s, given in zip(states, hidden, strict=True))

    def cast(inp: Any, hidden: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        half = torch.get_autocast_dtype("cpu")
        if half is torch.float16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
            raise RuntimeError("oneDNN has no recurrent layer in float16 on this processor")
        if half is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise RuntimeError("oneDNN has no recurrent layer in bfloat16 on this processor")
        inp, hidden, params = pytree.tree_map(lambda t: t.to(half), (inp, hidden, params))
        with torch.autocast("cpu", enabled=False):
            return layer(inp, hidden, params, *args, **kwargs)

    def select(inp: Any, *args: Any) -> Any:
        chosen = plain(inp.detach(), *args)
        if not torch.is_grad_enabled() or threading.get_ident() != thread:
            return chosen
        whole = chosen is decompositions.mkldnn_one_layer_lstm  # eager calls oneDNN for it, which autocast casts whole
        return cast if whole and torch.is_autocast_enabled("cpu") else layer

    decompositions.select_one_layer_lstm_function = select
    try:
        yield
    finally:
        decompositions.select_one_layer_lstm_function = plain


@contextmanager
def recording(graph: fx.Graph) -> Iterator[None]:
    """A graph that takes gradients itself is traced here: autograd records, recurrent layers go step by step."""
    with ExitStack() as stack:
        stack.enter_context(own_saving())
        stack.callback(hook_keeper())
        if any(getattr(node.target, "__name__", "") in RECURRENT for node in graph.nodes):
            for state in (tracing_alone(), _layers_with_gradients(), python_dispatcher()):
                stack.enter_context(state)
        yield


def aot_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    compile_forward: Callable[..., Any],
    compile_backward: Callable[..., Any],
    prepare: Callable[[torch.fx.GraphModule], None],
    split: Callable[[Joint], tuple[torch.fx.GraphModule, torch.fx.GraphModule]],
    writes: bool = False,
) -> Callable[..., Any]:
    """torch's AOTAutograd over a torch-level graph: the joint graph, which `prepare` changes in place and `split` takes apart.

    With `writes`, the forward graph writes to inputs that need no gradient (statistics of batch norms); else AOTAutograd copies their
    new values there behind it.

    Both compilers take `(fx.GraphModule, inputs)` and return a function of the inputs that gives a sequence of results. If that has
    a method `take`, this is called with a list of the inputs, which it may empty.
    They are called one thread at a time in the process, and so should leave the work for later.
    `meta[VISIBLE]` of a forward graph says from which result on only backward sees them.
    """
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._guards import TracingContext, tracing

    def partition(module: torch.fx.GraphModule, _: Any, *, num_fwd_outputs: int, **settings: Any) -> Any:
        unread = raise_unread(module.graph)
        effects.count = False
        prepare(module)
        return split(Joint(module, num_fwd_outputs, unread))

    def boxed(compiler: Callable[..., Any]) -> Callable[..., Any]:
        def compile(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            function = compiler(graph, inputs)
            take = getattr(function, "take", None)
            if take is None:
                return make_boxed_func(function)

            def taken(args: list[Any]) -> Any:
                return take(args)

            taken._boxed_call = True  # type: ignore[attr-defined]  # the list is the callee's: none else holds what was saved
            return taken

        return compile

    def forward(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        _check_as_eager(gm, context.fw_metadata)
        _check_shapes(gm, graph, context.fw_metadata)
        _keep_overwritten(graph, context.fw_metadata)
        if context.fw_metadata is not None:
            context.fw_metadata.mutated_graph_handled_indices_seen_by_autograd = []  # the forward half tells of its writes
            context.fw_metadata.bw_donated_idxs = []  # None: a later backward with retain_graph=True is refused
            graph.meta[VISIBLE] = context.fw_metadata.num_forward_returns
            strided = _as_captured(gm, graph, context.fw_metadata)
            return _with_strides(compile_forward(graph, inputs), context.fw_metadata, strided)
        return compile_forward(graph, inputs)

    context = TracingContext.try_get() or TracingContext(_mode_of(example_inputs))
    _guard_float_pass()
    keep = _KEEP_FLOATS.set(True)
    # Donated buffers would forbid retain_graph=True. A backward half that is lowered when it first runs, is so by every thread.
    settings: dict[str, Any] = {"donated_buffer": False, "force_non_lazy_backward_lowering": True}
    try:
        with ExitStack() as stack:
            layers = (_layers_with_gradients(), eagers_interpolation())
            for state in (tracing_alone(), _unpatched_modules(), *layers, _no_warning(_ANOMALY)):
                stack.enter_context(state)
            stack.callback(hook_keeper())
            effects = stack.enter_context(_effects_count())
            stack.enter_context(config.patch(settings))
            mode = _mode_of(example_inputs)
            if mode is not None and mode.shape_env is not None:
                stack.enter_context(scalar_outputs(mode.shape_env))  # those that capture let through
                stack.enter_context(none_pending(mode.shape_env))
            stack.enter_context(tracing(context))
            return with_opaque_formulas(
                gm.graph,
                mode.shape_env if mode is not None else None,
                lambda: aot_module_simplified(
                    gm,
                    example_inputs,
                    fw_compiler=boxed(forward),
                    bw_compiler=boxed(compile_backward),
                    partition_fn=partition,
                    decompositions={},
                    keep_inference_input_mutations=writes,
                ),
            )
    finally:
        _KEEP_FLOATS.reset(keep)


_ANOMALY = "Error detected in .* Traceback of forward call"


@contextmanager
def _no_warning(message: str) -> Iterator[None]:
    """What would be said of an error of the tracing, which is not yet the program's. What has been said before is not said again."""
    filters, item = warnings.filters, ("ignore", re.compile(message), UserWarning, None, 0)
    filters.insert(0, item)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if item in filters:
            filters.remove(item)  # type: ignore[attr-defined]


def _with_strides(forward: Callable[..., Any], metadata: Any, strided: set[int]) -> Callable[..., Any]:
    """The forward half, whose results autograd may take for views of nothing.

    AOTAutograd would hide from autograd what a result is a view of by `_unsafe_view`, which gives dimensions of size 1 strides of
    its own. Results of a compiled graph are new tensors anyway, of eager's strides; those of a graph in eager become such.
    """
    views = strided | {metadata.num_mutated_inp_runtime_indices + k for k in metadata.unsafe_view_out_indices}
    if not views:
        return forward
    metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = [], 0

    def run(*args: Any) -> Any:
        results = forward(*args)
        if any(results[k]._is_view() for k in views):
            results = [_own_tensor(r) if k in views and r._is_view() else r for k, r in enumerate(results)]
        return results

    return run


def _own_tensor(view: Tensor) -> Tensor:
    """A tensor in the same memory that autograd knows nothing of."""
    made = torch.empty(0, dtype=view.dtype, device=view.device)
    return made.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())  # type: ignore[call-overload]


def _as_captured(gm: torch.fx.GraphModule, forward: torch.fx.GraphModule, metadata: Any) -> set[int]:
    """Give results the strides that capture found, which are eager's: operators that the trace has instead of the program's lay
    results out in other ways. The places of those that changed.

    Where only dimensions of size 1 differ, nothing is copied.
    """
    output = forward.graph.find_nodes(op="output")[0]
    wanted = pytree.tree_leaves(gm.graph.find_nodes(op="output")[0].args)
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    results, changed = list(output.args[0]), set[int]()
    for place, known, info in zip(range(first, len(results)), wanted, metadata.output_info, strict=False):
        traced = results[place]
        if not isinstance(known, fx.Node) or not isinstance(traced, fx.Node):
            continue
        if known.op == "placeholder" or info.output_type.name not in ("non_alias", "unsafe_view_alias"):
            continue
        a, b = known.meta.get("example_value"), traced.meta.get("val")
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            continue
        if any(isinstance(n, torch.SymInt) for n in (*a.shape, *a.stride(), *b.shape, *b.stride())):
            continue
        if a.shape != b.shape or a.stride() == b.stride():
            continue
        results[place] = _restrided(forward.graph, output, traced, a)
        changed.add(place - len(metadata.tokens))
    if changed:
        output.args = (type(output.args[0])(results),)
        forward.recompile()
    return changed


def _restrided(graph: fx.Graph, place: fx.Node, traced: fx.Node, like: Tensor) -> fx.Node:
    value, shape, strides = traced.meta["val"], list(like.shape), list(like.stride())
    moved = any(n > 1 and s != t for n, s, t in zip(shape, strides, value.stride(), strict=True)) and 0 not in shape
    with graph.inserting_before(place), value.fake_mode:
        if moved:
            options = {"dtype": value.dtype, "device": value.device}
            memory = graph.call_function(torch.ops.aten.empty_strided.default, (shape, strides), options)
            memory.meta["val"] = torch.empty_strided(shape, strides, **options)
            made = graph.call_function(torch.ops.aten.copy.default, (memory, traced))
            made.meta = {**traced.meta, "val": memory.meta["val"]}
        else:
            made = graph.call_function(torch.ops.aten.as_strided.default, (traced, shape, strides))
            made.meta = {**traced.meta, "val": value.as_strided(shape, strides)}
    return made


def refused_by_autograd(error: BaseException) -> bool:
    """Whether autograd's engine itself said that there is no such gradient, as it would in eager, were the gradient asked for."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is torch.autograd.graph._engine_run_backward.__code__


class _SideEffects(set[Any]):
    """torch.fx's set of functions with side effects; while `count`, it has operators that draw random numbers or raise on values."""

    count = True

    def __contains__(self, function: object) -> bool:
        return super().__contains__(function) or (self.count and any(f(function) for f in _EFFECTS))


@contextmanager
def _effects_count() -> Iterator[_SideEffects]:
    """Operators that draw random numbers or raise on values do something even where nothing reads their results: graphs that
    torch.fx cleans keep them."""
    plain = fx.node._side_effectful_functions
    fx.node._side_effectful_functions = made = _SideEffects(plain)
    try:
        yield made
    finally:
        fx.node._side_effectful_functions = plain
        plain.update(made)


_EFFECTS = (is_seeded, gives_nothing, may_raise, shows_number)


def _check_as_eager(gm: torch.fx.GraphModule, metadata: Any) -> None:
    """Raise where AOTAutograd would do something else than autograd does: capture has run the program with autograd's own rules."""
    if metadata is None:
        return
    for node, info in zip(gm.graph.find_nodes(op="placeholder"), metadata.input_info, strict=False):
        unseen = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
        if info.mutates_data and info.requires_grad and not unseen and node.meta.get("of_leaf"):
            raise RuntimeError("a leaf is written to, where autograd looks and where it does not")
    for node, info in zip(
        pytree.tree_leaves(gm.graph.find_nodes(op="output")[0].args), metadata.output_info, strict=False
    ):
        value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if isinstance(value, Tensor) and node.op != "placeholder" and value.requires_grad != info.requires_grad:
            raise RuntimeError("a result is made of views that autograd does not know")


def _check_shapes(gm: torch.fx.GraphModule, forward: torch.fx.GraphModule, metadata: Any) -> None:
    """Raise where a traced result has another shape or dtype than capture found: a decomposition of torch's is wrong."""
    if metadata is None:
        return
    wanted = pytree.tree_leaves(gm.graph.find_nodes(op="output")[0].args)
    found = pytree.tree_leaves(forward.graph.find_nodes(op="output")[0].args)
    found = found[len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices :]
    for known, traced, info in zip(wanted, found, metadata.output_info, strict=False):
        if not isinstance(known, fx.Node) or not isinstance(traced, fx.Node) or info.output_type.name != "non_alias":
            continue
        a, b = known.meta.get("example_value"), traced.meta.get("val")
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            continue
        sizes = [(m, n) for m, n in zip(a.shape, b.shape, strict=False) if type(m) is type(n) is int]
        if a.dim() != b.dim() or a.dtype != b.dtype or any(m != n for m, n in sizes):
            raise RuntimeError(
                f"a result of {b.dtype}{list(b.shape)} is traced where {a.dtype}{list(a.shape)} was found"
            )


_KEEP_FLOATS: ContextVar[bool] = ContextVar("_KEEP_FLOATS", default=False)


@cache
def _guard_float_pass() -> None:
    """Keep AOTAutograd from turning symbolic floats into tensors, in calls of ours.

    Its pass wants each symbol of such a float as an input of the graph and raises KeyError else; our graphs ask tensors for their
    sizes, and `functionalize` makes tensors of floats itself.
    """
    from torch._functorch._aot_autograd import graph_compile

    name = "_apply_tensorify_python_scalars"
    plain = getattr(graph_compile, name, None)
    if plain is not None:

        @functools.wraps(plain)
        def guarded(module: torch.fx.GraphModule) -> None:
            if not _KEEP_FLOATS.get():
                plain(module)

        setattr(graph_compile, name, guarded)


class AotNode:
    """The class of autograd nodes that AOTAutograd makes for one graph."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def is_plain(self, inputs: int) -> bool:
        """Whether the nodes' gradients are those of the graph's own inputs and results, one to one, and nothing is written."""
        known = self.function.metadata
        written = known.mutated_inp_runtime_indices or known.mutated_graph_handled_indices
        unusual = written or known.num_intermediate_bases or known.tokens
        return not unusual and len(known.input_info) == inputs

    def keep_nothing_as_nothing(self, first: Any, depends: Sequence[frozenset[int]], linear: bool) -> None:
        """Where no gradient arrives for any result that an input has a part in, the input gets None and not zeros, as in eager.

        Args:
            first: the node of the first call, which has been made.
            depends: for each of the inputs' gradients the arriving ones that it is made of; known once backward has run.
            linear: whether what is made of missing gradients alone is none inside of the graph, too.
        """
        places, forward, backward = self._arriving(), self.function.forward, self.function.backward

        def marked(node: Any, *args: Any) -> Any:
            node.set_materialize_grads(False)
            return forward(node, *args)

        def filled(node: Any, *arriving: Any) -> Any:
            boxed = len(arriving) == 1 and isinstance(arriving[0], list)
            gradients = arriving[0] if boxed else list(arriving)
            if any(map(is_batched, gradients)):
                with _kept_for_more(node):
                    return one_by_one(lambda given: filled(node, *([given] if boxed else given)), gradients)
            missing = frozenset(k for k, place in enumerate(places) if gradients[place] is None)
            if not missing:
                return backward(node, *arriving)
            for k in missing:
                known = node._input_metadata[places[k]]
                gradients[places[k]] = torch.zeros(known.shape, dtype=known.dtype, device=known.device)
            NOT_ARRIVING.now = missing if linear else frozenset()
            try:
                found = backward(node, gradients) if boxed else backward(node, *gradients)
            finally:
                NOT_ARRIVING.now = frozenset()
            if len(found) != len(depends):
                return found
            return tuple(None if made_of <= missing else g for g, made_of in zip(found, depends, strict=True))

        first.set_materialize_grads(False)
        self.function.forward, self.function.backward = staticmethod(marked), staticmethod(filled)

    def _arriving(self) -> list[int]:
        """Where among a node's results those are whose gradients the backward graph takes, in its order."""
        known = self.function.metadata
        written, results = known.mutated_inp_runtime_indices, len(known.mutated_inp_runtime_indices) + known.num_outputs
        places = [
            k for k, i in enumerate(written) if known.input_info[i].mutates_data and known.input_info[i].requires_grad
        ]
        for i, info in enumerate(known.output_info):
            own = info.output_type.name in ("non_alias", "unsafe_view_alias", "custom_function_view")
            needed = getattr(info, "requires_grad_for_backward", info.requires_grad)
            if own and issubclass(info.raw_type, Tensor) and needed:
                places.append(len(written) + i)
        return [*places, *range(results, results + known.num_intermediate_bases)]

    def differentiate_with(self, function: Callable[[Any, Sequence[Any], Any], tuple[Any, ...]]) -> None:
        """A backward that is recorded (create_graph=True) calls `function` with the node's `intarsia_inputs` and what arrives.

        So does one to which gradients come that look otherwise than their wrapper tensors; these are its third argument, which is given
        those of the caller's wrapper tensors.
        """
        plain, met = self.function.backward, False

        def backward(node: Any, *arriving: Any) -> Any:
            nonlocal met
            kept, unlike = getattr(node, OWN_INPUTS, None), taken_notes(node)
            if met:
                forget_notes(node)
            if kept is None or not (torch.is_grad_enabled() or unlike):
                return plain(node, *arriving)
            node.saved_tensors  # noqa: B018  (raises if they are freed, or were written to)
            boxed = len(arriving) == 1 and isinstance(arriving[0], list)
            found = function(kept, arriving[0] if boxed else arriving, unlike)
            if unlike:
                met = True
                put_notes(node, unlike)
            return found

        self.function.backward = staticmethod(backward)


@contextmanager
def _kept_for_more(node: Any) -> Iterator[None]:
    """What a node of AOTAutograd's has saved is given up behind the block, not by each backward in it."""
    node.maybe_clear_saved_tensors = lambda: None
    try:
        yield
    finally:
        del node.maybe_clear_saved_tensors
    node.maybe_clear_saved_tensors()


def aot_node(node: Any) -> AotNode | None:
    """What is known of an autograd node, if AOTAutograd made it."""
    function = getattr(type(node), "_forward_cls", None)
    made = function is not None and hasattr(function, "compiled_fw") and hasattr(function, "metadata")
    return AotNode(function) if made else None


def _mode_of(inputs: list[Any]) -> FakeTensorMode | None:
    return next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)


def _keep_overwritten(graph: torch.fx.GraphModule, metadata: Any) -> None:
    """A copy of each input that the backward half reads and the program overwrites: autograd would refuse the tensor itself."""
    written = {*metadata.mutated_inp_runtime_indices, *metadata.mutated_graph_handled_indices}
    first = len(metadata.tokens)
    placeholders = graph.graph.find_nodes(op="placeholder")
    output, begin = graph.graph.find_nodes(op="output")[0], placeholders[-1].next if placeholders else None
    for i, node in enumerate(placeholders[first:]):
        if i in written and node in output.all_input_nodes and isinstance(node.meta.get("val"), Tensor):
            with graph.graph.inserting_before(begin):  # the old value: the graph may write the new one where it is
                copy = graph.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {**node.meta}
            output.replace_input_with(node, copy)
    graph.recompile()


def without_tokens(graph: torch.fx.Graph) -> list[int]:
    """Take away AOTAutograd's markers of operators with effects, in place: they stand in the graph's order again.

    Returns which of the placeholders stand for markers (forward's first, backward's last); they are given None.
    """
    from torch._higher_order_ops.effects import with_effects

    places = {node: place for place, node in enumerate(graph.find_nodes(op="placeholder"))}
    tokens = []
    for node in graph.find_nodes(op="call_function", target=with_effects):
        token, operator, *args = node.args
        tokens += [places[token]] if token in places else []
        with graph.inserting_before(node):
            call = graph.call_function(operator, tuple(args), node.kwargs)
            call.meta = {k: v for k, v in node.meta.items() if k != "val"}
            several = len(operator._schema.returns) > 1
            for user in list(node.users):
                place = user.args[1]
                if place == 0:
                    user.replace_all_uses_with(token)
                elif not several:
                    user.replace_all_uses_with(call)
                else:
                    user.args = (call, place - 1)
                    continue
                graph.erase_node(user)
        graph.erase_node(node)
    return tokens
