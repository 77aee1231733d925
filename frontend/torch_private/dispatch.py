"""Operators below autograd: dispatch modes, composite operators, torch's helpers for calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DispatchMode = TorchDispatchMode
CORRECT_ALIASING: Any = return_and_correct_aliasing


class CaptureMode(TorchDispatchMode):
    """A dispatch mode that only captures: torch's guards do not count it among the modes of programs.

    torch keeps whether one of those is active in a variable of the process, which threads that enter and leave modes side
    by side can leave set; every guard that is made afterwards would then see the dispatch keys of capture's own modes.

    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True


# What torch's C++ asks fake tensors on its way: guards know it, or (the memory behind a tangent) it decides about a copy alone.
ASKED = frozenset(
    (
        torch.ops.prim.device.default,  # from 2.14 on
        torch.ops.aten.is_same_size.default,
        torch.ops.aten._has_same_storage_numel.default,
        torch.ops.aten.size.default,
        torch.ops.aten.stride.default,
        torch.ops.aten.sym_size.default,
        torch.ops.aten.sym_stride.default,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_storage_offset.default,
    )
)


class DtypesSeen(CaptureMode):
    """Notes the dtypes of what operators give."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.dtypes += [t.dtype for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        return made


class DrawsSeen(CaptureMode):
    """Notes the operators that are called, and runs those that are given a generator without it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Generator, lambda _: None, (tuple(args), dict(kwargs or {})))
        self.calls.append((func, args, kwargs))
        return func(*args, **kwargs)


def below_autograd() -> AbstractContextManager[Any]:
    """Skip the autograd keys, so that dispatch modes see composite operators (linear, matmul, ...) whole."""
    return torch._C._AutoDispatchBelowAutograd()


def without_autocast() -> AbstractContextManager[Any]:
    """Operators cast nothing of their own; what else autocast keeps stays."""
    return torch._C._DisableAutocast()


@cache
def is_composite(func: OpOverload) -> bool:
    """Whether eager runs ``func`` as a composition of other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


# In C++ these take symbolic sizes as the numbers that they are now (from 2.15 on without an error); none gives a view.
_FIXES_SIZES = ("aten::upsample_", "aten::_upsample_", "aten::unsafe_chunk")


def decompose_composite(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run eager's own composition of ``func`` (torch's Python replacements of some lose eager's aliasing)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    python = func.py_kernels.get(key)
    if python is None or not _has_symbolic_sizes(args):
        return func._op_dk(key, *args, **kwargs)
    if func._schema.name.startswith(_FIXES_SIZES):
        whole = func._schema.name.endswith("linear2d") and not args[0].is_floating_point()
        return _of_whole_numbers(func, *args, **kwargs) if whole else python(*args, **kwargs)
    try:
        return func._op_dk(key, *args, **kwargs)
    except RuntimeError:  # C++ that takes no symbolic sizes (upsampling, recurrent layers)
        return python(*args, **kwargs)


def _of_whole_numbers(
    func: OpOverload, x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Any:
    """Interpolation of bytes stays one operator: eager's weights are whole numbers there, those of torch's Python replacement are not."""
    from torch._decomp.decompositions import upsample_compute_output_size

    sizes = upsample_compute_output_size(x.shape, output_size, scale_factors)
    return func.overloadpacket.default(x, sizes, align_corners, *(scale_factors or (None, None)))


_NEAREST = [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)]
_INTERPOLATION = [*_NEAREST, *(f"upsample_{name}d" for name in ("linear1", "bilinear2", "trilinear3", "bicubic2"))]


@contextmanager
def eagers_interpolation() -> Iterator[None]:
    """Interpolation to sizes that are known keeps eager's derivative on this thread.

    torch's Python replacements compute where eager copies (a factor that is too small to change a size), and have other gradients there.
    """
    thread, names = threading.get_ident(), ("Autograd", "CompositeImplicitAutograd")
    keys = [getattr(torch._C.DispatchKey, name) for name in names]
    packets = [getattr(torch.ops.aten, name) for name in _INTERPOLATION]
    forms = [getattr(packet, form) for packet in packets for form in packet.overloads()]
    replaced = [(func, key, func.py_kernels[key]) for func in forms for key in keys if key in func.py_kernels]

    def eagers(func: OpOverload, python: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread or _has_symbolic_sizes((*args, *kwargs.values())):
                return python(*args, **kwargs)
            with torch._C._DisablePythonDispatcher():
                return func(*args, **kwargs)

        return call

    for func, key, python in replaced:
        func.py_kernels[key] = eagers(func, python)
        func._dispatch_cache.clear()
    try:
        yield
    finally:
        for func, key, python in replaced:
            func.py_kernels[key] = python
            func._dispatch_cache.clear()


def autocast_keys() -> frozenset[str]:
    """The dispatch keys of autocast that cast on this thread, outside of dispatch modes."""
    return frozenset(key for key, device in _AUTOCAST.items() if torch.is_autocast_enabled(device))


_AUTOCAST = {"AutocastCPU": "cpu", "AutocastCUDA": "cuda"}


@cache
def uncast(func: OpOverload, keys: frozenset[str]) -> frozenset[str]:
    """Those keys for which autocast has nothing to say of `func`, and so casts the operators that it is composed of."""
    return frozenset(k for k in keys if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), k))


@contextmanager
def casting(keys: frozenset[str]) -> Iterator[None]:
    """Autocast acts again inside of a dispatch mode, which is called below it."""
    if not keys:
        yield
        return
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        exclude = exclude.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(include, exclude):
        yield


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


def is_in_format(value: Tensor, form: torch.memory_format) -> bool:
    """Whether torch counts a tensor as being in this memory format, channels last or contiguous."""
    from torch._prims_common import suggest_memory_format

    return bool(suggest_memory_format(value) == form)


def functional_builtins() -> Any:
    """The module of built-in functions that torch.nn.functional hands on."""
    return torch._C._nn


def broadcast_to_tree(prefix: Any, tree: Any) -> list[Any] | None:
    """The leaves of `tree` matched by those of `prefix`, a structure that may stop earlier; None when they do not fit."""
    from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten

    return _broadcast_to_and_flatten(prefix, tree_flatten(tree)[1])


def device_constructors() -> set[Any]:
    """The functions that make tensors on the device of `with torch.device(...)`."""
    from torch.utils._device import _device_constructors

    return _device_constructors()


def is_seeded(function: object) -> bool:
    """Whether a function is an operator that draws random numbers."""
    return isinstance(function, OpOverload) and torch.Tag.nondeterministic_seeded in function.tags


def draws_numbers(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers: attention without dropout does not."""
    if not is_seeded(function):
        return False
    for place, argument in enumerate(function._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(given != 0)
    return True


def draws(graph: torch.fx.Graph) -> bool:
    """Whether an ATen graph takes random numbers."""
    return any(is_seeded(n.target) for n in graph.nodes)
