"""The default dtype and the default device, set inside captured code.

A graph runs under the defaults that were there when the call began: what depends on others is said in its nodes. Behind the graph
the process gets the defaults that the program has left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import GraphBreak, UserRaise
from ..guards.emitter import Emitter
from ..state import Interpreter
from ..torch_private.dispatch import DtypesSeen

__all__ = ["Defaults"]


class Defaults:
    """What the program has set so far."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.dtype = torch.get_default_dtype()  # when the call began
        self.watches = self.has_device = False
        self.device: torch.device | None = None  # where `has_device`: what the program has set

    def set_dtype(self, dtype: Any) -> None:
        """`torch.set_default_dtype(dtype)`."""
        self.vm.out.asked = True
        try:
            torch.set_default_dtype(dtype)
        except Exception as error:
            raise UserRaise(error) from None
        if not self.watches:
            self.watches = True
            self.vm.out.watch(self._call)

    def set_device(self, device: Any) -> None:
        """`torch.set_default_device(device)`."""
        self.vm.out.asked = True
        if not isinstance(device, torch.device | str | int | None):
            raise GraphBreak(f"the default device is set to a {type(device).__name__}")
        try:
            made = None if device is None else torch.device(device)
        except Exception as error:
            raise UserRaise(error) from None
        self.has_device, self.device = True, made

    def get_device(self) -> Any:
        """`torch.get_default_device()`, where it is not the one that was there when the call began; else None."""
        device = self.vm.device if self.vm.device is not None else self.placed()
        if device is not None and device.index is None and device.type not in ("cpu", "meta"):
            raise GraphBreak("the number of the default device is read")
        return device

    def placed(self) -> torch.device | None:
        """The device for tensors of which the program does not say where; None where it has set none."""
        if not self.has_device:
            return None
        return torch.device("cpu") if self.device is None else self.device

    def restore(self) -> bool:
        """Go back to the dtype that was there when the call began; whether that is another one."""
        changed = torch.get_default_dtype() is not self.dtype
        if changed:
            torch.set_default_dtype(self.dtype)
        return changed

    def statements(self, emit: Emitter) -> list[str]:
        """What sets the defaults behind the graph."""
        now, lines = torch.get_default_dtype(), []
        if self.restore():
            lines.append(
                f"{emit.constant(torch.set_default_dtype, 'set_default_dtype')}({emit.constant(now, 'dtype')})"
            )
        if self.has_device:
            given = emit.constant(self.device, "device")
            lines.append(f"{emit.constant(torch.set_default_device, 'set_default_device')}({given})")
        return lines

    def _call(
        self, call: Any, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any
    ) -> Any:
        now = torch.get_default_dtype()
        if now is self.dtype:
            return call(op, target, args, kwargs, function)
        wanted = _dtypes(now, op, target, args, kwargs)
        if wanted != _dtypes(self.dtype, op, target, args, kwargs):
            if wanted is not None and kwargs.get("dtype") is None and isinstance(wanted[-1], torch.dtype):
                kwargs = {**kwargs, "dtype": wanted[-1]}
            if wanted is None or wanted != _dtypes(self.dtype, op, target, args, kwargs):
                raise GraphBreak("an operator depends on the default dtype, which the captured code has set")
        torch.set_default_dtype(self.dtype)
        try:
            return call(op, target, args, kwargs, function)
        finally:
            torch.set_default_dtype(now)


def _dtypes(
    default: torch.dtype, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any] | None:
    """The dtypes of all that a call computes on its way, its result's last; None where it raises."""
    now, seen = torch.get_default_dtype(), DtypesSeen()
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs))
    torch.set_default_dtype(default)
    try:
        with torch.no_grad(), seen:
            made = getattr(args[0], target)(*args[1:], **kwargs) if op == "call_method" else target(*args, **kwargs)
    except Exception:
        return None
    finally:
        torch.set_default_dtype(now)
    return [*seen.dtypes, made.dtype if isinstance(made, Tensor) else None]
