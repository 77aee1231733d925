"""Loops over the places where a tensor holds something: `for e in mask.nonzero(): ...`, as mixtures of experts have them.

A mask of four elements has four places, so there are four rounds at most, in a known order: each is the true side of a conditional of the
graph, whose other side does nothing, and sees its place as a constant. So it may pick a module or a name by it. What a round writes to of
what the graph has made before is a result of the conditional, which is written back behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from ..branches.selects import name_of
from ..branches.sides import SUSPENDS, Ended, Prevented, run_side
from ..bytecode.closing import may_be_dropped
from ..errors import GraphBreak, Refused
from ..graph.aside import storage_of
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import data_dependent_errors
from ..values.kinds import isinstance
from .branches import WITH_GRADIENTS, Conditional, Writing

if TYPE_CHECKING:
    from ..bytecode.frame import Frame

__all__ = ["Hits", "Places"]

_MOST = 64  # rounds
_FINDS = ("nonzero", "argwhere")


@dataclass(frozen=True)
class Places:
    """The iterator of such a loop: what the program iterates, and the truths of the mask."""

    found: Tensor
    truths: Tensor


class Hits:
    """Those of one capture. `refused` says why there may be none."""

    def __init__(self) -> None:
        self.refused: str | None = None

    def over(self, vm: Interpreter, frame: Frame, tensor: Tensor) -> Places | None:
        """The iterator of a tensor at GET_ITER; None where the loop is none of these."""
        if vm.side is not None or vm.out.inside or vm.exporting or not vm.out.is_known(tensor) or is_composite(tensor):
            return None
        node, ahead = vm.out.node(tensor), frame.program.instructions[frame.ip]
        mask = node.args[0] if node.args else None
        given = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
        if name_of(node) not in _FINDS or len(node.args) != 1 or node.kwargs or not isinstance(given, Tensor):
            return None
        if given.dim() != 1 or type(given.shape[0]) is not int or given.shape[0] > _MOST or ahead.op != "FOR_ITER":
            return None
        if vm.out.has_written(tensor) or vm.out.has_written(given) or not vm.out.is_known(given):
            return None
        if frame.code.co_flags & SUSPENDS or may_be_dropped(vm) or vm.overrides.concern((tensor,)):
            return None
        tracked = torch.is_grad_enabled() and any(info.requires_grad for info in vm.out.used)
        if (reason := self.refused or (WITH_GRADIENTS if tracked else None)) is not None:
            raise GraphBreak(f"a loop over what nonzero() found depends on a tensor's values, and {reason}")
        return Places(tensor, vm.out.call_function(torch.ne, (given, 0), {}))

    def run(self, vm: Interpreter, frame: Frame, known: Callable[[], set[int]]) -> None:
        """All rounds, from the head of the loop to behind it.

        Raises Refused where one of them cannot be a side of a conditional.
        """
        places, head = frame.stack[-1], frame.ip - 1
        try:
            for k in range(places.truths.shape[0]):
                _Hit(vm, frame, head, places, k, known()).record()
        except (Prevented, GraphBreak) as error:
            raise Refused(error.reason or "it cannot be a conditional", "hits") from None
        except data_dependent_errors():
            raise Refused("a size that values decide differs behind a round", "hits") from None
        frame.pop()
        frame.ip = frame.program.instructions[head].arg


class _Hit(Conditional):
    """One round while it is recorded."""

    what = "a round"

    def __init__(self, vm: Interpreter, frame: Frame, head: int, places: Places, place: int, known: set[int]) -> None:
        takes: Tensor = vm.out.call_function(torch.select, (places.truths, 0, place), {})
        super().__init__(vm, frame, takes, frozenset([head]), known)
        self.head = head
        self.item: Tensor = vm.call(torch.tensor, ([place],), {"device": places.found.device})
        self.fixed = {storage_of(self.item), storage_of(places.found)}

    def begin(self, frame: Frame) -> None:
        """Set the frame to the beginning of the round."""
        frame.push(self.item)
        frame.ip = self.head + 1

    def taken(self) -> Ended:
        """The frame behind the round."""
        return run_side(self.vm, self.frame, self.begin, self.joins, Writing)

    def passed(self) -> Ended:
        """The frame where there is no round."""
        return Ended(dict(self.frame.fast), list(self.frame.stack), self.head)
