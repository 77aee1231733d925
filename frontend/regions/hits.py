"""Loops over the places where a tensor holds something: `for e in mask.nonzero(): ...`, as mixtures of experts have them.

A mask of four elements has four places, so there are four rounds at most, in a known order: each is the true side of a conditional of the
graph, whose other side does nothing, and sees its place as a constant. So it may pick a module or a name by it. What a round writes to of
what the graph has made before is a result of the conditional, which is written back behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..branches.selects import name_of, pieces_of, unequal
from ..branches.sides import SUSPENDS, Ended, Plan, Prevented, Side, named, run_side
from ..bytecode.closing import may_be_dropped
from ..entry.nature import may_draw
from ..errors import GraphBreak, Refused
from ..gradients.state import VisibleState
from ..graph.aside import storage_of
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import data_dependent_errors
from ..torch_private.regions import COND
from ..values.kinds import isinstance
from .capture import Body, emit, is_tracked, over, owned, read_by, unlike

if TYPE_CHECKING:
    from ..bytecode.frame import Frame

__all__ = ["Hits", "Places"]

_MOST = 64  # rounds
_FINDS = ("nonzero", "argwhere")
_WITH_GRADIENTS = "gradients are wanted through it"


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
        if (reason := self.refused or (_WITH_GRADIENTS if tracked else None)) is not None:
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


class Writing(Side):
    """A round: it may write to whole tensors that the graph has made."""

    writes = True


class _Hit:
    """One round while it is recorded."""

    def __init__(self, vm: Interpreter, frame: Frame, head: int, places: Places, place: int, known: set[int]) -> None:
        self.vm, self.frame, self.head = vm, frame, head
        self.takes: Tensor = vm.out.call_function(torch.select, (places.truths, 0, place), {})
        self.item: Tensor = vm.call(torch.tensor, ([place],), {"device": places.found.device})
        self.fixed = {storage_of(self.item), storage_of(places.found)}
        self.plan = Plan(vm, frame.code, frozenset([head]), known, self.takes.device)
        self.written: list[Tensor] = []

    def begin(self, frame: Frame) -> None:
        """Set the frame to the beginning of the round."""
        frame.push(self.item)
        frame.ip = self.head + 1

    def taken(self) -> Ended:
        """The frame behind the round."""
        return run_side(self.vm, self.frame, self.begin, frozenset([self.head]), Writing)

    def passed(self) -> Ended:
        """The frame where there is no round."""
        return Ended(dict(self.frame.fast), list(self.frame.stack), self.head)

    def record(self) -> None:
        """The node, and the frame behind it."""
        vm, plan, frame = self.vm, self.plan, self.frame
        state = VisibleState(vm)
        with vm.out.beside([]) as aside:
            one, other = self.taken(), self.passed()
            fast, stack = plan.ended(one, other)
            pairs = plan.both_of(one, other)
            self.note_written(aside)
            self.check(pairs, any(map(may_draw, pieces_of(aside))))
        if state.is_changed():
            raise Prevented("a round changes something that the program sees")
        first, second = self.side(self.taken), self.side(self.passed)
        if found := unlike(first.results, second.results):
            raise Prevented(f"a round does not give what there is without it: {found}")
        read = read_by(first, second)
        vm.out.modes += 1
        made = emit(vm, COND, (self.takes, over(first, read), over(second, read), read), first.results)
        for tensor, result in zip(self.written, made[len(pairs) :], strict=True):
            vm.out.call_method("copy_", (tensor, result), {})
        chosen, choice = list(made[: len(pairs)]), vm.branches.choices.new()
        for result, (a, b) in zip(chosen, pairs, strict=True):
            vm.branches.choices.note_either(result, self.takes, a, b, choice)
        plan.behind(chosen)
        frame.fast = {n: v for n, v in frame.fast.items() if n in fast} | {n: v(chosen) for n, v in fast.items()}
        frame.stack[:] = [value(chosen) for value in stack]

    def note_written(self, aside: Any) -> None:
        """Which tensors from before the round writes to: whole ones that the graph has made, of which there are no parts."""
        vm, there = self.vm, {id(t): t for t in aside.there()}
        given = {storage_of(i.fake) for i in vm.out.inputs.values() if isinstance(i.fake, Tensor)}
        for memory in sorted(aside.written()):
            alike = [t for t in there.values() if storage_of(t) == memory]
            if not alike:
                continue
            (tensor, *parts) = alike
            if parts or tensor._is_view() or memory in given or memory in self.fixed:
                raise Prevented("a round writes to a tensor of the caller's, or to one of which there are parts")
            if torch.empty_like(tensor).stride() != tensor.stride() or vm.branches.choices.is_one_of(tensor):
                raise Prevented("a round writes to a tensor that has gaps, or that is one of two by a tensor's value")
            self.written.append(tensor)

    def check(self, pairs: list[tuple[Tensor, Tensor]], random: bool) -> None:
        """Raises Prevented where the round cannot be the side of a conditional."""
        if random:
            raise Prevented("a round draws random numbers")
        for (path, kind), (a, b) in zip(self.plan.paths, pairs, strict=False):
            if kind is Tensor:
                unequal(self.vm, path, a, b)
            memory = self.fixed | {storage_of(t) for t in self.written}
            if storage_of(a) in memory or storage_of(b) in memory:
                raise Prevented(f"{named(path)} is a part of what the loop is over, or of what it writes to")
        if is_tracked([*(t for pair in pairs for t in pair), *self.written]):
            raise Prevented(_WITH_GRADIENTS)

    def side(self, run: Callable[[], Ended]) -> Body:
        """One side as a graph of its own, with what is written to behind its results."""
        vm, memory = self.vm, {storage_of(t) for t in self.written}
        with vm.out.beside([]) as aside:
            for tensor in self.written:
                vm.out._node_of[id(tensor)] = vm.out.node(vm.out.call_method("clone", (tensor,), {}))
            results = self.plan.tensors_of(run())
            there = {storage_of(t) for t in aside.there()}
            if aside.written() & there - memory or any(storage_of(t) in memory for t in results):
                raise Prevented("a round writes to something else than it did before")
            results = [*owned(vm, "a round", results, aside.tensors()), *self.written]
            module, reads = aside.finish(results)
        if not all(isinstance(r, Tensor) for r in reads):
            raise Prevented("a round reads a number that changes between calls")
        if any(storage_of(r) in memory and all(r is not t for t in self.written) for r in reads):
            raise Prevented("a round writes to a tensor and reads another one of the same memory")
        return Body(module, reads, results, None)  # type: ignore[arg-type]
