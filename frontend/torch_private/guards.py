"""What guards ask: tensors and dicts in bulk, and the state of the thread and the process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor


def tensor_guards(tensors: list[Tensor], sizes: list[Any], strides: list[Any]) -> Any:
    """A check, in C++, of type, dtype, device, requires_grad, dispatch keys, sizes and strides (None: any) of tensors."""
    from torch._C._dynamo.guards import TensorGuards

    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def dict_watch(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bool]:
    """A check, in C++, that these dicts have not been changed since."""
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
    """The module and the name of torch's own note that a profiler is active; None where there is none."""
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


def transforms_questions() -> tuple[Any, ...]:
    """torch's own functions that ask whether a transform of functorch's runs on this thread (2.13 has one)."""
    found = getattr(torch._C, "_are_functorch_transforms_active", None)
    return () if found is None else (found,)


def forward_mode() -> Any:
    """The module in whose `_current_level` torch keeps whether tangents are carried along (forward_ad.dual_level): then it is not -1."""
    return torch.autograd.forward_ad


def is_functorch_wrapped(tensor: Tensor) -> bool:
    """Whether functorch wraps this tensor, or the loop over gradients that torch.autograd.grad has for batches of them."""
    functorch = torch._C._functorch
    return bool(functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor))


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


def unseen_by_modes() -> AbstractContextManager[Any]:
    """Inside, function modes of the program's do not see what is asked of tensors; torch.set_default_device's goes on."""
    hidden = function_mode_count() and not only_device_mode()
    return torch._C.DisableTorchFunction() if hidden else nullcontext()


def only_device_mode() -> bool:
    """Whether the only active torch function mode is the one of torch.set_default_device."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
