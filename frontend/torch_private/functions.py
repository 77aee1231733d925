"""Private functions and classes of torch that programs, or torch's own Python code, call, and that graphs hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._ops import OpOverload, OpOverloadPacket  # noqa: F401  (used from here)

# What graphs hold to change the modes of the thread.
SET_GRAD_MODE: Callable[[bool], None] = torch._C._set_grad_enabled
ENTER_AUTOCAST: Any = torch.amp.autocast_mode._enter_autocast
EXIT_AUTOCAST: Any = torch.amp.autocast_mode._exit_autocast

# Questions that libraries ask of torch.compile, torch.jit and the modes.
IS_COMPILING: Any = torch._utils.is_compiling
IS_SCRIPTING: Any = torch._jit_internal.is_scripting
TRACING_STATE: Any = torch._C._get_tracing_state
DISPATCH_MODES: Callable[[], int] = torch._C._len_torch_dispatch_stack
FUNCTION_MODES: Callable[[], int] = torch._C._len_torch_function_stack
LOG_USAGE: Any = torch._C._log_api_usage_once

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})  # torch's layers, by name
ASSOCIATIVE_SCAN = associative_scan
ASSERT_ASYNC: Any = torch._assert_async
CHECK_WITH: Any = torch._check_with
CHECK_TENSOR_ALL: Any = torch._check_tensor_all_with

# torch's own `nn.Module.__call__`: a program, or torch.fx while it traces, may put another in its place.
MODULE_CALL: Any = torch.nn.Module._wrapped_call_impl
MODULE_CALL_WITH_HOOKS: Any = torch.nn.Module._call_impl
MODULE_APPLY: Any = torch.nn.Module._apply  # behind `module.to(...)` and its like
GROUP_TENSORS: Any = torch._C._group_tensors_by_device_and_dtype  # behind every optimizer over lists of tensors


def chooser_of(forward: Any, backward: Any) -> Callable[..., Any] | None:
    """The function that chooses what is saved, of the two contexts that `create_selective_checkpoint_contexts` gives; None for others."""
    from torch.utils import checkpoint

    kinds = checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode
    return forward.policy_fn if (type(forward), type(backward)) == kinds else None


# What turns `__torch_function__` off, and of a class that has none of its own.
WITHOUT_SUBCLASSES: Any = torch._C.DisableTorchFunctionSubclass
MAKE_WRAPPER: Any = torch.Tensor._make_wrapper_subclass
WITHOUT_OVERRIDES: Any = torch._C.DisableTorchFunction
NO_FUNCTION: Any = torch._C._disabled_torch_function_impl
NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
MAKE_SUBCLASS: Any = torch.Tensor._make_subclass
NEW_TENSOR: Any = torch._C.TensorBase.__dict__["__new__"]
OF_OPERATORS: Any = (
    torch._C.FunctionSchema,
    torch._C.Argument,
)  # what an operator takes and gives, which nobody changes
CONVERT: Any = torch._tensor._convert
LAZY: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
ASKS_OVERRIDES: tuple[Any, ...] = (
    *(torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic),
)


def never_wrapped() -> Any:
    """The functions whose results `Tensor.__torch_function__` gives as they are."""
    return torch.overrides.get_default_nowrap_functions()


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor of a class of the program's, as a plain tensor through which gradients flow."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)


def as_class(tensor: torch.Tensor, cls: Any) -> Any:
    """A plain tensor as one of a class of the program's, which requires gradients where the tensor does, and is a leaf where it is."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        if not (tensor.requires_grad and tensor.is_leaf):
            return torch.Tensor.as_subclass(tensor, cls)
        made = torch.Tensor.as_subclass(tensor.detach(), cls).requires_grad_()
        made.grad = tensor.grad
        return made
