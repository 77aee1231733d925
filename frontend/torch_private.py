"""The one place where private torch interfaces are used; `TRIED` in `frontend/versions.py` says with which torch."""

from __future__ import annotations

import difflib
import functools
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import Busy, GraphBreak

__all__ = ["FakeTensor", "FakeTensorMode", "OpOverload", "PyTreeCodeGen", "PyTreeInfo"]


# ---- functionalisation ----------------------------------------------------------------------------------------------


class CaptureMode(TorchDispatchMode):
    """A dispatch mode that only captures: torch's guards do not count it among the modes of programs.

    torch keeps whether one of those is active in a variable of the process, which threads that enter and leave modes side
    by side can leave set; every guard that is made afterwards would then see the dispatch keys of capture's own modes.
    Tried with 2.11 to 2.15.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True


def below_autograd() -> AbstractContextManager[Any]:
    """Skip the autograd keys, so that dispatch modes see composite operators (linear, matmul, ...) whole."""
    return torch._C._AutoDispatchBelowAutograd()


def is_fake(tensor: Any) -> bool:
    """Whether ``tensor`` has metadata only."""
    return isinstance(tensor, FakeTensor)


def fake_mode_of(inputs: Any) -> FakeTensorMode | None:
    """The FakeTensorMode that the fake tensors (and SymInts) among ``inputs`` belong to, None if there is none."""
    return next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None)


@cache
def is_composite(func: OpOverload) -> bool:
    """Whether eager runs ``func`` as a composition of other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def decompose_composite(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run eager's own composition of ``func`` (torch's Python replacements of some lose eager's aliasing)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    python = func.py_kernels.get(key)
    if python is None or not _has_symbolic_sizes(args):
        return func._op_dk(key, *args, **kwargs)
    try:
        return func._op_dk(key, *args, **kwargs)
    except RuntimeError:  # C++ that takes no symbolic sizes (upsampling, recurrent layers)
        return python(*args, **kwargs)


def _has_symbolic_sizes(args: Any) -> bool:
    return any(
        isinstance(a, torch.SymInt)
        or (isinstance(a, Tensor) and any(isinstance(s, torch.SymInt) for s in a.shape))
        or (isinstance(a, list | tuple) and _has_symbolic_sizes(a))
        for a in args
    )


def python_dispatcher() -> AbstractContextManager[Any]:
    """Prefer torch's Python kernels, which keep sizes symbolic where the C++ ones would guard."""
    return enable_python_dispatcher()


def storage_key(tensor: Tensor) -> int:
    """The identity of a tensor's memory, as long as the tensor lives."""
    return tensor.untyped_storage()._cdata


def sym_sqrt(value: Any) -> Any:
    """The square root of a symbolic number."""
    return torch._sym_sqrt(value)  # type: ignore[attr-defined]


# ---- capture --------------------------------------------------------------------------------------------------------


def tensor_guards(tensors: list[Tensor], sizes: list[Any], strides: list[Any]) -> Any:
    """A check, in C++, of type, dtype, device, requires_grad, dispatch keys, sizes and strides (None: any) of tensors."""
    from torch._C._dynamo.guards import TensorGuards

    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def dict_watch(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bool]:
    """A check, in C++, that these dicts have not been changed since. Tried with 2.11 to 2.13."""
    from torch._C._dynamo.guards import RootGuardManager
    from torch._dynamo.guards import GuardManagerType

    root, width, kind = RootGuardManager(), 1 + math.isqrt(len(dicts)), GuardManagerType.GUARD_MANAGER
    groups = tuple(tuple(dicts[start : start + width]) for start in range(0, len(dicts), width))
    for place, group in enumerate(groups):  # a manager looks through all its children before it adds one
        parent = root.tuple_getitem_manager(place, "", None, kind)
        for inner, value in enumerate(group):
            parent.tuple_getitem_manager(inner, "", None, kind).add_dict_version_guard(value, [""], None)
    return functools.partial(root.check, groups)


def global_state_guard() -> Any:
    """A snapshot of grad mode, autocast, default dtype, determinism and threads, with `check()` and `reason()`."""
    from torch._C._dynamo.guards import GlobalStateGuard

    return GlobalStateGuard()


@cache
def profiler_flag() -> tuple[Any, str] | None:
    """The module and the name of torch's own note that a profiler is active (2.11 to 2.13); None where there is none."""
    from torch.autograd import profiler

    return (profiler, "_is_profiler_enabled") if hasattr(profiler, "_is_profiler_enabled") else None


def function_mode_count() -> int:
    """How many torch function modes are active on this thread."""
    return int(torch._C._len_torch_function_stack())


def dispatch_mode_count() -> int:
    """How many torch dispatch modes (fake tensors, make_fx) are active on this thread."""
    return int(torch._C._len_torch_dispatch_stack())


def current_gpu(used: bool = False) -> int | None:
    """The number of the calling thread's GPU where there are several, which "cuda" means; else None, nothing can change.

    Args:
        used: a GPU is about to be used, also where the process has used none so far.
    """
    if (used or torch.cuda.is_initialized()) and torch.cuda.device_count() > 1:
        return int(torch.cuda.current_device())
    return None


def current_gpu_raw() -> Callable[[], int]:
    """torch's own function that gives the number of the current GPU, of a process that has used one."""
    return torch._C._cuda_getDevice


def functorch_active() -> bool:
    """Whether a functorch transform (vmap, grad) is being run on this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_functorch_wrapped(tensor: Tensor) -> bool:
    """Whether functorch wraps this tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_in_format(value: Tensor, form: torch.memory_format) -> bool:
    """Whether torch counts a tensor as being in this memory format, channels last or contiguous."""
    from torch._prims_common import suggest_memory_format

    return bool(suggest_memory_format(value) == form)


def new_fake_mode(shape_env: Any) -> FakeTensorMode:
    """The fake tensor mode of one capture."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False, static_shapes=shape_env is None)
    # Not a subclass: torch's higher-order operators look for their rule by the type itself.
    from .fake_dispatch import FakeResults
    from .fake_rules import dispatch

    mode.dispatch = FakeResults(mode, functools.partial(dispatch, mode))  # type: ignore[method-assign]
    return mode


def functional_builtins() -> Any:
    """The module of built-in functions that torch.nn.functional hands on."""
    return torch._C._nn


def tracing_state() -> list[Any]:
    """torch's settings on which the operators of a traced graph may depend, as plain data."""
    cuda, precision = torch.backends.cuda, torch.get_float32_matmul_precision()
    state: list[Any] = [str(torch.get_default_dtype()), str(torch.get_default_device()), precision]
    for device in ("cpu", "cuda"):
        state += [torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device))]
    state += [torch.is_autocast_cache_enabled(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    state += [torch.get_deterministic_debug_mode(), torch._C._get_deterministic_fill_uninitialized_memory()]
    state += [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()]
    state += [cuda.cudnn_sdp_enabled(), torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()]
    state += [function_mode_count(), dispatch_mode_count(), torch.backends.mkldnn.is_available(), current_gpu()]
    # Operators of torch's own that a program has given other kernels.
    return [*state, sorted(name for name in torch.library._impls if name.startswith(("aten/", "prims/")))]


def lazy_graph_module(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A graph module whose Python code is written when it is first asked for."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def plain_graph_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph in an ordinary graph module: torch.jit.script of torch 2.11 cannot read a lazy one."""
    made = fx.GraphModule(module, module.graph)
    made.meta.update(module.meta)
    return made


def write_code(module: fx.GraphModule) -> None:
    """Write the Python code of a graph module now: torch.jit cannot look at one that waits."""
    if hasattr(module, "real_recompile"):
        module.real_recompile()  # type: ignore[operator]


def on_meta(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """Inside, operators on fake tensors of this mode run as those on meta tensors."""
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    return in_kernel_invocation_manager(mode)


def fake_from_meta(mode: FakeTensorMode, meta: Tensor, device: torch.device) -> Tensor:
    """A fake tensor over the memory of a meta tensor."""
    return FakeTensor(mode, meta, device)


def allow_symbols(mode: FakeTensorMode, shape_env: Any) -> None:
    """Let a fake tensor mode that began with constant sizes take symbolic ones."""
    mode.shape_env, mode.static_shapes = shape_env, False


class PlacedGuards(list[Any]):
    """The guards of a shape environment; `places` has, for each, what `where()` gave when it was added."""

    def __init__(self, where: Callable[[], Any]) -> None:
        super().__init__()
        self.where, self.places = where, list[Any]()

    def append(self, guard: Any) -> None:
        """Add one guard; one on numbers that only the running program knows breaks the graph."""
        if any(s.name.startswith(("u", "zuf")) for s in guard.expr.free_symbols):
            raise GraphBreak("control flow or a size depends on a tensor's values")
        super().append(guard)
        self.places.append(self.where())


def new_shape_env(where: Callable[[], Any] = lambda: None) -> Any:
    """A shape environment: symbols, their ranges and the guards on them, each with its place."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Sizes and numbers that only the running program knows break the graph, as they do where no size is symbolic.
    made = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    made.guards = PlacedGuards(where)
    return made


def fake_tensor(
    mode: FakeTensorMode,
    tensor: Tensor,
    dynamic_dims: tuple[int, ...] | None,
    name: str,
    ranges: Mapping[int, tuple[int | None, int | None]] | None = None,
) -> Tensor:
    """The fake twin of a real tensor; `dynamic_dims` are given symbols (None: every size is a constant).

    `ranges` are inclusive bounds, by dimension, of sizes that get symbols.
    """
    with unraised_warnings():  # torch warns of the `.grad` that it looks for
        return _fake_tensor(mode, tensor, dynamic_dims, name, ranges)


@contextmanager
def unraised_warnings() -> Iterator[None]:
    """Warnings that the program's filters make errors are not given: what capture itself does must not raise."""
    if all(found[0] != "error" for found in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _fake_tensor(
    mode: FakeTensorMode,
    tensor: Tensor,
    dynamic_dims: tuple[int, ...] | None,
    name: str,
    ranges: Mapping[int, tuple[int | None, int | None]] | None,
) -> Tensor:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if tensor.is_inference():  # the twin of an ordinary tensor over the same memory: it counts its versions
        with torch.inference_mode(False), unset_fake_temporarily():
            ordinary = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            tensor = ordinary.set_(tensor.untyped_storage(), *place)  # type: ignore[call-overload]
    if mode.shape_env is None or not dynamic_dims:
        twin = _plain_twin(mode, tensor)
        return mode.from_tensor(tensor, static_shapes=True) if twin is None else twin
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if i in dynamic_dims else DimDynamic.STATIC for i in range(tensor.dim())]
    bounds = [(ranges or {}).get(i) if i in dynamic_dims else None for i in range(tensor.dim())]
    if tensor.is_leaf and tensor.grad is not None:  # else its gradient gets symbols too, and equations with them
        with unset_fake_temporarily():
            parameter = isinstance(tensor, torch.nn.Parameter)
            tensor = tensor.detach().requires_grad_(tensor.requires_grad)
            tensor._is_param = parameter  # type: ignore[attr-defined]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[_constraint(b) for b in bounds])
    return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(name))


def _plain_twin(mode: FakeTensorMode, tensor: Tensor) -> Tensor | None:
    """The fake twin of a tensor that alone has its memory, fills it and has no history: what torch makes, in a fifth of the time.

    None for every other tensor, and for one whose memory is known already.
    """
    if (
        mode.shape_env is not None
        or type(tensor) not in (Tensor, torch.nn.Parameter)
        or tensor.layout is not torch.strided
    ):
        return None
    if not tensor.is_leaf or tensor._is_view() or tensor.grad is not None or tensor.storage_offset():
        return None
    if (
        tensor.is_complex()
        or tensor.is_quantized
        or tensor.is_neg()
        or is_functorch_wrapped(tensor)
        or tensor.is_nested
    ):
        return None
    device, storage = tensor.device, tensor.untyped_storage()
    sizes, strides = tensor.shape, tensor.stride()
    filled = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if 0 not in sizes else 0
    if (
        device.type != "cpu"
        or storage.nbytes() != filled * tensor.itemsize
        or getattr(tensor, "grad_dtype", tensor.dtype) not in (None, tensor.dtype)
    ):
        return None
    converter = mode.fake_tensor_converter
    describer = converter.meta_converter.describer
    if storage in describer.lookup_storage or getattr(tensor, "_is_buffer", False):
        return None
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
        meta.requires_grad_(tensor.requires_grad)
        fake = FakeTensor(mode, meta, device)
    if type(tensor) is torch.nn.Parameter:
        fake._is_param = True  # type: ignore[attr-defined]
    converter.meta_converter.storage_memo[describer.get_storage_id(storage)] = meta.untyped_storage()
    converter.set_tensor_memo(tensor, fake)
    return fake


def _constraint(bounds: tuple[int | None, int | None] | None) -> Any:
    from torch.fx.experimental.symbolic_shapes import StrictMinMaxConstraint
    from torch.utils._sympy.value_ranges import ValueRanges

    if bounds is None or bounds == (None, None):
        return None
    low, high = max(bounds[0] or 0, 2), bounds[1]  # sizes 0 and 1 never get symbols
    if high is not None and high <= low:
        return None
    return StrictMinMaxConstraint(vr=ValueRanges(low, sympy.oo if high is None else high), warn_only=False)


def int_bounds(limits: Any) -> tuple[int, int | None]:
    """The inclusive bounds of a value range over integers; None where there is no upper bound."""
    low = int(limits.lower) if limits.lower.is_Integer else 0
    high = int(limits.upper) if limits.upper.is_Integer else None
    return low, None if high is None or high >= 1 << 62 else high


def symbolic_int(shape_env: Any, value: int, name: str) -> Any:
    """A SymInt whose hint is `value`, an int >= 0; unlike sizes, 0 and 1 get symbols too."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    source = ConstantSource(name)
    # Not `positive`, as sizes are: sympy would take `symbol != 0` for granted, without a guard.
    symbol = shape_env.create_symbol(
        value, source, dynamic_dim=DimDynamic.DYNAMIC, positive=None, do_not_specialize_zero_one=True
    )
    shape_env.var_to_range[symbol] = ValueRanges(0, int_oo)
    return shape_env.create_symintnode(symbol, hint=value, source=source)


@contextmanager
def own_saving() -> Iterator[None]:
    """Hooks of the program's on tensors saved for backward do not see what is saved meanwhile (2.11 to 2.13)."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def real_tensors() -> AbstractContextManager[Any]:
    """Leave the fake mode for a while: what is made is real."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()  # type: ignore[no-any-return]


def broadcast_to_tree(prefix: Any, tree: Any) -> list[Any] | None:
    """The leaves of `tree` matched by those of `prefix`, a structure that may stop earlier; None when they do not fit."""
    from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten

    return _broadcast_to_and_flatten(prefix, tree_flatten(tree)[1])


def device_constructors() -> set[Any]:
    """The functions that make tensors on the device of `with torch.device(...)`."""
    from torch.utils._device import _device_constructors

    return _device_constructors()


def python_text(expr: Any, names: Mapping[Any, str]) -> str:
    """An expression over symbols as Python, with these names for the symbols; floats keep all their digits."""
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Float(self, number: Any) -> str:
            return repr(float(number))

        def _print_Symbol(self, symbol: Any) -> str:
            return names[symbol]

        def _print_ToFloat(self, expr: Any) -> str:
            return f"float({self._print(expr.args[0])})"

    return str(Printer().doprint(expr))


def symbolic_float(shape_env: Any, value: float, name: str) -> Any:
    """A SymFloat whose hint is `value`, a finite float."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = shape_env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    return shape_env.create_symfloatnode(symbol, hint=value, source=source)


def hint_of(value: Any) -> Any:
    """The number that a symbolic number has in this call, without a guard on it."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def data_dependent_errors() -> tuple[type[Exception], ...]:
    """What fake tensors raise when the program needs a tensor's values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def unsupported_fake_errors() -> tuple[type[Exception], ...]:
    """What fake tensors raise when they cannot run an operator."""
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException, UnsupportedOperatorException

    return (UnsupportedFakeTensorException, UnsupportedOperatorException)


def enter_autocast(*args: Any) -> Any:
    """The graph-level form of entering torch.autocast."""
    return torch.amp.autocast_mode._enter_autocast(*args)


def global_module_hooks() -> list[Any]:
    """The dictionaries of hooks that apply to every module."""
    import torch.nn.modules.module as module

    return [
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        module._global_backward_pre_hooks,
    ]


def function_mode_count_raw() -> Any:
    """The C function behind `function_mode_count`, for generated code."""
    return torch._C._len_torch_function_stack


def only_device_mode() -> bool:
    """Whether the only active torch function mode is the one of torch.set_default_device."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def script_source(function: Any) -> Any:
    """The Python function that torch.jit.script was given, where it is kept."""
    plain = getattr(function, "_torchdynamo_inline", None)
    # A traced function keeps its source too, but need not agree with it.
    scripted = None if plain is None else torch.jit._state._try_get_jit_cached_function(plain)
    return plain if scripted is not None and scripted.qualified_name == function.qualified_name else None


@contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Keep fake tensors from logging, on this thread, errors that are the captured program's own."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


VISIBLE = "visible"  # in a forward graph's `meta`: results from this one on are only seen by backward


def optimized_module() -> type[torch.nn.Module]:
    """The class of modules that torch.compile makes, by which frameworks know compiled ones (2.11 to 2.13)."""
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule


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


def aot_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    compile_forward: Callable[..., Any],
    compile_backward: Callable[..., Any],
) -> Callable[..., Any]:
    """torch's AOTAutograd over a torch-level graph: the joint graph, split by torch's min-cut partitioner.

    Both compilers take `(fx.GraphModule, inputs)` and return a function of the inputs that gives a sequence of results.
    They are called one thread at a time in the process, and so should leave the work for later.
    `meta[VISIBLE]` of a forward graph says from which result on only backward sees them.
    """
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import TracingContext, tracing

    def boxed(compiler: Callable[..., Any]) -> Callable[..., Any]:
        return lambda graph, inputs: make_boxed_func(compiler(graph, inputs))

    def forward(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        _check_as_eager(gm, context.fw_metadata)
        _keep_overwritten(graph, context.fw_metadata)
        if context.fw_metadata is not None:
            context.fw_metadata.bw_donated_idxs = []  # None: a later backward with retain_graph=True is refused
            graph.meta[VISIBLE] = context.fw_metadata.num_forward_returns
        return compile_forward(graph, inputs)

    context = TracingContext.try_get() or TracingContext(_mode_of(example_inputs))
    _guard_float_pass()
    keep = _KEEP_FLOATS.set(True)
    # Donated buffers would forbid retain_graph=True. A backward half that is lowered when it first runs, is so by every thread.
    settings: dict[str, Any] = {"donated_buffer": False, "force_non_lazy_backward_lowering": True}
    try:
        with tracing_alone(), _unpatched_modules(), config.patch(settings), tracing(context):
            return aot_module_simplified(  # type: ignore[no-any-return]
                gm,
                example_inputs,
                fw_compiler=boxed(forward),
                bw_compiler=boxed(compile_backward),
                partition_fn=min_cut_rematerialization_partition,
                decompositions={},
            )
    finally:
        _KEEP_FLOATS.reset(keep)


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


_KEEP_FLOATS: ContextVar[bool] = ContextVar("_KEEP_FLOATS", default=False)


@cache
def _guard_float_pass() -> None:
    """Keep AOTAutograd from turning symbolic floats into tensors, in calls of ours (2.11 to 2.13).

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
    """The class of autograd nodes that AOTAutograd makes for one graph (2.11 to 2.13)."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def is_plain(self, inputs: int) -> bool:
        """Whether the nodes' gradients are those of the graph's own inputs and results, one to one, and nothing is written."""
        known = self.function.metadata
        unusual = known.mutated_inp_runtime_indices or known.num_intermediate_bases or known.tokens
        return not unusual and len(known.input_info) == inputs

    def keep_nothing_as_nothing(self, first: Any, depends: Sequence[frozenset[int]]) -> None:
        """Where no gradient arrives for any result that an input has a part in, the input gets None and not zeros, as in eager.

        Args:
            first: the node of the first call, which has been made.
            depends: for each of the inputs' gradients the arriving ones that it is made of; known once backward has run.
        """
        places, forward, backward = self._arriving(), self.function.forward, self.function.backward

        def marked(node: Any, *args: Any) -> Any:
            node.set_materialize_grads(False)
            return forward(node, *args)

        def filled(node: Any, *arriving: Any) -> Any:
            boxed = len(arriving) == 1 and isinstance(arriving[0], list)
            gradients = arriving[0] if boxed else list(arriving)
            missing = frozenset(k for k, place in enumerate(places) if gradients[place] is None)
            if not missing:
                return backward(node, *arriving)
            for k in missing:
                known = node._input_metadata[places[k]]
                gradients[places[k]] = torch.zeros(known.shape, dtype=known.dtype, device=known.device)
            found = backward(node, gradients) if boxed else backward(node, *gradients)
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

    def differentiate_with(self, function: Callable[[Any, Sequence[Any]], tuple[Any, ...]]) -> None:
        """A backward that is recorded (create_graph=True) calls `function` with the node's `intarsia_inputs` and what arrives."""
        plain = self.function.backward

        def backward(node: Any, *arriving: Any) -> Any:
            kept = getattr(node, "intarsia_inputs", None)
            if kept is None or not torch.is_grad_enabled():
                return plain(node, *arriving)
            node.saved_tensors  # noqa: B018  (raises if they are freed, or were written to)
            boxed = len(arriving) == 1 and isinstance(arriving[0], list)
            return function(kept, arriving[0] if boxed else arriving)

        self.function.backward = staticmethod(backward)


def aot_node(node: Any) -> AotNode | None:
    """What is known of an autograd node, if AOTAutograd made it."""
    function = getattr(type(node), "_forward_cls", None)
    made = function is not None and hasattr(function, "compiled_fw") and hasattr(function, "metadata")
    return AotNode(function) if made else None


def draws(graph: torch.fx.Graph) -> bool:
    """Whether an ATen graph takes random numbers."""
    tag = torch.Tag.nondeterministic_seeded
    return any(isinstance(n.target, OpOverload) and tag in n.target.tags for n in graph.nodes)


def _mode_of(inputs: list[Any]) -> FakeTensorMode | None:
    return next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)


def _keep_overwritten(graph: torch.fx.GraphModule, metadata: Any) -> None:
    """A copy of each input that the backward half reads and the program overwrites: autograd would refuse the tensor itself."""
    written = set(metadata.mutated_inp_runtime_indices)
    first = len(metadata.tokens)
    placeholders = graph.graph.find_nodes(op="placeholder")[first:]
    output = graph.graph.find_nodes(op="output")[0]
    for i, node in enumerate(placeholders):
        if i in written and node in output.all_input_nodes and isinstance(node.meta.get("val"), Tensor):
            with graph.graph.inserting_before(output):
                copy = graph.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {**node.meta}
            output.replace_input_with(node, copy)
    graph.recompile()


def without_tokens(graph: torch.fx.Graph) -> None:
    """Take away AOTAutograd's markers of operators with effects, in place: they stand in the graph's order again (2.11 to 2.13)."""
    from torch._higher_order_ops.effects import with_effects

    for node in graph.find_nodes(op="call_function", target=with_effects):
        token, operator, *args = node.args
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


def is_disabled(function: Any) -> bool:
    """Whether a Python function carries torch's mark that says it must not be compiled (2.11 to 2.13)."""
    if function.__dict__.get("_torchdynamo_disable"):
        return True
    code = function.__code__
    return code.co_name == "inner" and code.co_filename.endswith(_DISABLING_WRAPPER)


_DISABLING_WRAPPER = os.path.join("torch", "_compile.py")


def torch_backends(exclude_tags: tuple[str, ...]) -> list[str]:
    """Names of the backends that torch.compile knows, without those that carry one of the tags (2.11 to 2.13)."""
    from torch._dynamo.backends import registry

    return list(registry.list_backends(exclude_tags=exclude_tags or None))  # type: ignore[arg-type]


def torch_backend(name: str) -> Callable[..., Any]:
    """One of torch.compile's backends: `(gm, example_inputs, **options) -> callable`."""
    from torch._dynamo.backends import registry

    return registry.lookup_backend(name)  # type: ignore[no-any-return]


def has_symbols(inputs: list[Any]) -> bool:
    """Whether a graph's fake inputs have sizes or values that are symbols."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(
        isinstance(n, kinds)
        for x in inputs
        for n in ((*x.shape, *x.stride(), x.storage_offset()) if isinstance(x, Tensor) else (x,))
    )


def torch_stance() -> str:
    """The stance that torch.compiler.set_stance has set for the process (2.11 to 2.13)."""
    from torch._dynamo import eval_frame

    return str(getattr(getattr(eval_frame, "_stance", None), "stance", "default"))


def specialize_floats(gm: torch.fx.GraphModule) -> None:
    """Inside torch.compile: have it capture again with the values of the floats that it made inputs (2.11 to 2.13).

    They arrive as 0-dim tensors that the graph reads with `item`; a backend that cannot take them asks by raising.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    names = set()
    for node in gm.graph.find_nodes(op="placeholder"):
        memo = getattr(node.meta.get("example_value"), "item_memo", None)
        if isinstance(memo, torch.SymFloat) and all(user.target == "item" for user in node.users):
            names.add(getattr(memo.node._expr, "name", ""))
    names = {n for n in names if n and not TensorifyState.should_specialize(n)}
    if names:
        for name in names:
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def is_foreign_tensor(error: BaseException) -> bool:
    """Whether a fake tensor mode says with this error that it met a real tensor (2.11 to 2.13)."""
    return isinstance(error, AssertionError) and str(error).startswith(
        "Please convert all Tensors to FakeTensors first"
    )


def is_allowed(function: Any) -> bool:
    """Whether torch.compiler.allow_in_graph (or nonstrict_trace) was called on a function (2.11 to 2.13)."""
    from torch._dynamo import trace_rules

    allowed = getattr(trace_rules, "_allowed_callable_ids", ())
    nonstrict = getattr(trace_rules, "_nonstrict_trace_callable_ids", ())
    return id(function) in allowed or id(function) in nonstrict


def inductor_options(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings with which torch.compile(mode=, options=) calls its inductor backend (2.11 to 2.13).

    Raises ValueError for an option that inductor does not have, with a suggestion.
    """
    import torch._inductor as inductor

    chosen = dict(inductor.list_mode_options(mode)) if mode not in (None, "default") else {}
    known = inductor.list_options() if options else []
    for given, value in (options or {}).items():
        name = str(given).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "; torch._inductor.list_options() lists them"
            raise ValueError(f"unknown option {given!r} of the backend 'inductor'{hint}")
        chosen[name] = value
    return chosen
