"""Fake tensors: their modes, the twins of real tensors, what they raise and log."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .guards import is_functorch_wrapped


def is_fake(tensor: Any) -> bool:
    """Whether ``tensor`` has metadata only."""
    return isinstance(tensor, FakeTensor)


def fake_mode_of(inputs: Any) -> FakeTensorMode | None:
    """The FakeTensorMode that the fake tensors (and SymInts) among ``inputs`` belong to, None if there is none."""
    return next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None)


def plain_fake_mode(shape_env: Any) -> FakeTensorMode:
    """A fake tensor mode with torch's own rules."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False, static_shapes=shape_env is None)
    if getattr(mode, "avoid_device_init", False):
        _install_device_guard()
    return mode


_installing = threading.Lock()


def _install_device_guard() -> None:
    """Let torch install what stands for a GPU's driver from a thread that never ends.

    A build for GPUs on a machine without one installs it when a fake mode is first entered, as an object that the thread owns and
    all threads use: once that thread has ended, the next that enters a mode reads freed memory. Seen with 2.11.
    """
    with _installing:
        if _installed.is_set():
            return
        if threading.current_thread() is threading.main_thread():
            torch._C._ensureCUDADeviceGuardSet()
            _installed.set()
            return

        def stay() -> None:
            torch._C._ensureCUDADeviceGuardSet()
            _installed.set()
            threading.Event().wait()

        threading.Thread(target=stay, name="intarsia device guard", daemon=True).start()
        _installed.wait()


_installed = threading.Event()


def on_meta(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """Inside, operators on fake tensors of this mode run as those on meta tensors."""
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    return in_kernel_invocation_manager(mode)


def state_of_results() -> tuple[Any, ...]:
    """What decides beside the operands what results look like, and whether there is an error.

    Eager's choice of a library hangs on the switches; some operators refuse to be deterministic.
    """
    c = torch._C
    return (
        torch.get_default_dtype(),
        c._get_default_device(),
        torch.is_inference_mode_enabled(),
        c._get_mkldnn_enabled(),
        c._get_cudnn_enabled(),
        c._get_nnpack_enabled(),
        torch.get_deterministic_debug_mode(),
    )


def fake_from_meta(mode: FakeTensorMode, meta: Tensor, device: torch.device) -> Tensor:
    """A fake tensor over the memory of a meta tensor."""
    return FakeTensor(mode, meta, device)


def allow_symbols(mode: FakeTensorMode, shape_env: Any) -> None:
    """Let a fake tensor mode that began with constant sizes take symbolic ones."""
    mode.shape_env, mode.static_shapes, mode.cache_enabled = shape_env, False, True


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
    if tensor._base is not None and not tensor.requires_grad and type(tensor._base) not in (Tensor, torch.nn.Parameter):
        with unset_fake_temporarily():  # of a view of a tensor that is made of others, the memory alone
            tensor = tensor.detach()
    if mode.shape_env is None or not dynamic_dims:
        twin = _plain_twin(mode, tensor)
        return mode.from_tensor(tensor, static_shapes=True) if twin is None else twin
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if i in dynamic_dims else DimDynamic.STATIC for i in range(tensor.dim())]
    bounds = [(ranges or {}).get(i) if i in dynamic_dims else None for i in range(tensor.dim())]
    if is_leaf(tensor) and tensor.grad is not None:  # else its gradient gets symbols too, and equations with them
        with unset_fake_temporarily():
            parameter = isinstance(tensor, torch.nn.Parameter)
            tensor = tensor.detach().requires_grad_(tensor.requires_grad)
            tensor._is_param = parameter  # type: ignore[attr-defined]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[_constraint(b) for b in bounds])
    return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(name))


def is_leaf(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf; autograd refuses to say it of a view that was made, and written to, where gradients are off."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def _plain_twin(mode: FakeTensorMode, tensor: Tensor) -> Tensor | None:
    """The fake twin of a tensor that alone has its memory, fills it and has no history: what torch makes, in a fifth of the time.

    None for every other tensor, and for one whose memory is known already.
    """
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if mode.shape_env is not None or not plain:
        return None
    if tensor._is_view() or not tensor.is_leaf or tensor.storage_offset():
        return None
    odd = tensor.is_complex() or tensor.is_quantized or tensor.is_neg() or tensor.is_nested
    if odd or is_functorch_wrapped(tensor):
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


def real_tensors() -> AbstractContextManager[Any]:
    """Leave the fake mode for a while: what is made is real."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()  # type: ignore[no-any-return]


def data_dependent_errors() -> tuple[type[Exception], ...]:
    """What fake tensors raise when the program needs a tensor's values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def needs_dynamic_sizes() -> type[Exception]:
    """What a fake tensor mode without symbols raises when a result is as large as values say."""
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    return DynamicOutputShapeException


def unsupported_fake_errors() -> tuple[type[Exception], ...]:
    """What fake tensors raise when they cannot run an operator."""
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException, UnsupportedOperatorException

    return (UnsupportedFakeTensorException, UnsupportedOperatorException)


@contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Keep fake tensors from logging, on this thread, errors that are the captured program's own."""
    fakes, symbols = map(logging.getLogger, ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"))
    thread = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    def other(record: logging.LogRecord) -> bool:
        return elsewhere(record) or not str(record.msg).startswith("failed during evaluate_expr")

    fakes.addFilter(elsewhere)
    symbols.addFilter(other)
    try:
        yield
    finally:
        fakes.removeFilter(elsewhere)
        symbols.removeFilter(other)


def is_foreign_tensor(error: BaseException) -> bool:
    """Whether a fake tensor mode says with this error that it met a real tensor."""
    text = "Please convert all Tensors to FakeTensors first"
    return isinstance(error, AssertionError) and str(error).startswith(text)
