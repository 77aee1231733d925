"""`torch.cond`: one of two functions, by a tensor's value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..calls.registry import Rows, Then
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.regions import COND
from ..values.kinds import isinstance
from .capture import captured, differences, emit, is_tracked, over, read_by, rule

__all__ = ["ROWS", "branch"]

ROWS = Rows()


@ROWS.rule(torch.cond, COND)  # the operator itself, as graphs call it
@rule
def _cond(vm: Interpreter, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    operands = vm.materialize(operands)
    if isinstance(pred, bool | int | float | torch.SymBool) and isinstance(operands, tuple | list):
        return Then(true_fn if bool(pred) else false_fn, tuple(operands), {})  # of sizes: which way it goes is guarded
    if not isinstance(pred, Tensor) or pred.numel() != 1 or not isinstance(operands, tuple | list):
        raise GraphBreak("torch.cond is given something else than a tensor of one element and a tuple of operands")
    if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(operands)):
        raise GraphBreak("torch.cond is given operands that are no tensors")
    return branch(vm, "torch.cond", pred, true_fn, false_fn, tuple(operands))


def branch(
    vm: Interpreter, what: str, pred: Tensor, true_fn: Any, false_fn: Any, operands: tuple[Any, ...], free: bool = False
) -> Any:
    """One node for `true_fn(*operands) if pred else false_fn(*operands)`: its results are new tensors.

    `free`: nothing requires gradients, whatever the sides read, as neither of them gives what does.

    Raises:
        GraphBreak: a side cannot be captured or has an effect, or what the sides give differs.
    """
    if vm.out.inside:
        raise GraphBreak(f"{what} is called inside a transform of torch.func")
    first = captured(vm, f"the true side of {what}", true_fn, operands)
    second = captured(vm, f"the false side of {what}", false_fn, operands)
    if found := differences(first, second):
        raise GraphBreak(f"the two sides of {what} do not give the same: {found}")
    read = read_by(first, second)
    vm.out.modes += 1
    given = [vm.out.call_method("detach", (t,), {}) if free and is_tracked([t]) else t for t in read]
    made = emit(vm, COND, (pred, over(first, read), over(second, read), given), first.results, is_tracked(given))
    return pytree.tree_unflatten(made, first.tree)
