"""Calls that write to a foreign tensor, or with one to a plain tensor: the function is given a copy, and what it makes of that is written.

Which parts eager writes in place, and which it replaces by others, is seen where the call is tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..state import Interpreter
from ..values.kinds import tensors_in
from .tensors import Foreign, put_together

__all__ = ["is_followed", "statements", "written"]

_COO = "torch.sparse_coo"

# What is no function of values: of the history, of memory, of the sizes of the argument itself.
_OTHER = frozenset(
    """
    __setitem__ __delitem__ __iconcat__ requires_grad_ detach_ rename_ share_memory_ set_ resize_ resize_as_ sparse_resize_
    sparse_resize_and_clear_ resize_as_sparse_ as_strided_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ _coalesced_ apply_ map_
    map2_ __setstate__
    """.split()  # noqa: SIM905
)


def is_followed(vm: Interpreter, first: Foreign | None, name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call that writes to its first argument can be one on a copy.

    Of a quantized tensor no part lies in its memory, so only one that the graph made, without views, is written to.
    """
    if name in _OTHER or not args or not isinstance(args[0], Tensor):
        return False
    if first is None:
        return True
    known = [f for f in vm.foreign.known.values() if type(f) is Foreign]
    if any(t.requires_grad for f in known for t in f.parts):  # also where no gradients are recorded: its history stays
        return False
    if first.structure[0] == "quantized":
        return first.source is None and not any(f.view for f in known)
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args)))


def written(vm: Interpreter, call: Any, first: Foreign | None) -> Tensor:
    """The first argument, behind the call."""
    target: Tensor = call.args[0]
    if first is None and target.requires_grad:  # what the call saves for its derivative is not written to
        call.args = vm.out.call_method("clone", (target,), {}), *call.args[1:]
    made = call.made()
    if first is None:
        if not isinstance(made, Tensor) or (made.shape, made.dtype) != (target.shape, target.dtype):
            raise GraphBreak(f"{call.what} is called, which writes something else to its argument")
        vm.out.call_method("copy_", (target, made), {})
        return target
    found = vm.foreign.of(made)
    kept = call.tries[0].kept
    if type(found) is not Foreign or found.structure[0] != first.structure[0] or len(found.size) != len(first.size):
        raise GraphBreak(f"{call.what} is called, which makes its argument another tensor")
    if first.source is not None and not (all(kept) and found.structure == first.structure):
        if first.structure[0] != _COO or [int(n) for n in found.size] != [int(n) for n in first.size]:
            raise GraphBreak(f"{call.what} is called, which gives its argument other places")
        first.replaced = True
    for place, (part, new) in enumerate(zip(first.parts, found.parts, strict=True)):
        if not kept[place]:
            first.parts[place] = new
        elif new is not part:
            vm.out.call_method("copy_", (part, new), {})
    first.structure, first.size, first.example, first.rooted = found.structure, found.size, found.example, False
    return target


def statements(vm: Interpreter, body: Any) -> list[str]:
    """Statements behind the graph that give the caller's tensors in coordinates the parts by which the program has replaced theirs."""
    found = [f for f in vm.foreign.known.values() if type(f) is Foreign and f.replaced]
    return [f"{body.emit.fetch(f.source)}.copy_({put_together(body, f)})" for f in found]
