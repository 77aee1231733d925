"""What is around a call and makes that nothing is captured."""

from __future__ import annotations

import torch

from ..errors import Unsupported
from ..torch_private.guards import (
    dispatch_mode_count,
    forward_mode,
    function_mode_count,
    functorch_active,
    only_device_mode,
)

__all__ = ["refuse_environment"]


def refuse_environment() -> None:
    """Refuse to capture inside transforms and modes that would see through fake tensors."""
    if functorch_active():
        raise Unsupported("the call is inside a functorch transform (vmap, grad)")
    if forward_mode()._current_level >= 0:
        raise Unsupported("the call is inside torch.autograd.forward_ad.dual_level")
    if dispatch_mode_count():
        raise Unsupported("a torch dispatch mode is active around the call")
    if function_mode_count() and not only_device_mode():
        raise Unsupported("a torch function mode is active around the call")
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call]
        raise Unsupported("the call is being traced by torch.jit")
