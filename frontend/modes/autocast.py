"""Weights that autocast has cast: eager keeps the cast ones until autocast ends, and takes them again, whatever was written meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..state import Interpreter
from ..values.held import in_eager

__all__ = ["Casts", "is_on"]

_LOWER = frozenset(
    (
        *(
            "linear",
            "matmul",
            "mm",
            "bmm",
            "mv",
            "addmm",
            "addmv",
            "addbmm",
            "baddbmm",
            "chain_matmul",
            "einsum",
            "bilinear",
        ),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"),
        *("scaled_dot_product_attention", "multi_head_attention_forward", "prelu", "__matmul__", "__rmatmul__"),
    )
)  # operators that autocast runs in a half type


class Casts:
    """Those of one capture."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.taken: dict[
            int, tuple[Tensor, tuple[int, bool]]
        ] = {}  # each weight, and what had been written to it when it was cast

    def note(self, name: str, tensors: Iterable[Tensor]) -> None:
        """A call under autocast; a break where eager takes what it cast before a write."""
        if name not in _LOWER or not torch.is_autocast_cache_enabled():
            return
        out = self.vm.out
        for tensor in tensors:
            if id(tensor) in out.inputs and _is_kept(tensor) and torch.is_autocast_enabled(tensor.device.type):
                known = self.taken.setdefault(id(tensor), (tensor, self._state(tensor)))
                self._check(*known)

    def leave(self) -> None:
        """Autocast ends; the outermost one forgets what was cast."""
        if _depth() == 0:
            self.taken.clear()

    def finish(self) -> None:
        """The graph ends; what autocast around the call keeps is taken in the next one."""
        for known in self.taken.values() if _depth() else ():
            self._check(*known)

    def _state(self, tensor: Tensor) -> tuple[int, bool]:
        return tensor._version, self.vm.out.has_written(tensor)

    def _check(self, tensor: Tensor, state: tuple[int, bool]) -> None:
        if self._state(tensor) != state:
            raise in_eager("autocast keeps a weight as it cast it before the program wrote to it")


def is_on() -> bool:
    """Whether autocast was entered on this thread, and keeps what it casts."""
    return _depth() > 0 and torch.is_autocast_cache_enabled()


def _depth() -> int:
    depth: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def _is_kept(tensor: Tensor) -> bool:
    return tensor.requires_grad and not tensor._is_view() and tensor.is_leaf and tensor.dtype == torch.float32
