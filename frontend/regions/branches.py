"""`torch.cond`: one of two functions, by a tensor's value; and conditionals of the program's whose sides write to what the graph has made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..branches.selects import pieces_of, unequal
from ..branches.sides import Ended, Plan, Prevented, Side, named, run_side
from ..calls.registry import Rows, Then
from ..entry.nature import may_draw
from ..errors import GraphBreak
from ..gradients.state import VisibleState
from ..graph.aside import storage_of
from ..state import Interpreter
from ..torch_private.regions import COND
from ..values.kinds import isinstance
from .capture import Body, captured, differences, emit, is_tracked, over, owned, read_by, rule, unlike

if TYPE_CHECKING:
    from ..bytecode.frame import Frame

__all__ = ["ROWS", "WITH_GRADIENTS", "Conditional", "Writing", "branch"]

ROWS = Rows()
WITH_GRADIENTS = "gradients are wanted through it"


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


class Writing(Side):
    """A side that may write to whole tensors that the graph has made."""

    writes = True


class Conditional:
    """A conditional while it is recorded: what a side writes to is a result of it, which is written back behind it."""

    what = "a side"

    def __init__(
        self,
        vm: Interpreter,
        frame: Frame,
        takes: Tensor,
        joins: frozenset[int],
        known: set[int],
        ways: Sequence[int] = (),
    ) -> None:
        self.vm, self.frame, self.takes, self.joins, self.ways = vm, frame, takes, joins, ways
        self.fixed: set[int] = set()  # memory that it must not write to
        self.plan = Plan(vm, frame.code, joins, known, takes.device)
        self.written: list[Tensor] = []

    def taken(self) -> Ended:
        """The frame behind the first way."""
        return run_side(self.vm, self.frame, self.ways[0], self.joins, Writing)

    def passed(self) -> Ended:
        """The frame behind the second way."""
        return run_side(self.vm, self.frame, self.ways[1], self.joins, Writing)

    def record(self) -> str | None:
        """The node, and the frame behind it: the signal of the instruction."""
        vm, plan = self.vm, self.plan
        state = VisibleState(vm)
        with vm.out.beside([]) as aside:
            one, other = self.taken(), self.passed()
            build = plan.ended(one, other)
            pairs = plan.both_of(one, other)
            self.note_written(aside)
            self.check(pairs, any(map(may_draw, pieces_of(aside))))
        if state.is_changed():
            raise Prevented(f"{self.what} changes something that the program sees")
        first, second = self.side(self.taken), self.side(self.passed)
        if found := unlike(first.results, second.results):
            raise Prevented(f"{self.what} does not give what there is without it: {found}")
        read = read_by(first, second)
        vm.out.modes += 1
        made = emit(vm, COND, (self.takes, over(first, read), over(second, read), read), first.results)
        for tensor, result in zip(self.written, made[len(pairs) :], strict=True):
            vm.out.call_method("copy_", (tensor, result), {})
        chosen, choice = list(made[: len(pairs)]), vm.branches.choices.new()
        for result, (a, b) in zip(chosen, pairs, strict=True):
            vm.branches.choices.note_either(result, self.takes, a, b, choice)
        return plan.put(self.frame, build, chosen, one.ip)

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
                raise Prevented(f"{self.what} writes to a tensor of the caller's, or to one of which there are parts")
            if torch.empty_like(tensor).stride() != tensor.stride() or vm.branches.choices.is_one_of(tensor):
                raise Prevented(
                    f"{self.what} writes to a tensor that has gaps, or that is one of two by a tensor's value"
                )
            self.written.append(tensor)

    def check(self, pairs: list[tuple[Tensor, Tensor]], random: bool) -> None:
        """Raises Prevented where the round cannot be the side of a conditional."""
        if random:
            raise Prevented(f"{self.what} draws random numbers")
        for (path, kind), (a, b) in zip(self.plan.paths, pairs, strict=False):
            if kind is Tensor:
                unequal(self.vm, path, a, b)
            memory = self.fixed | {storage_of(t) for t in self.written}
            if storage_of(a) in memory or storage_of(b) in memory:
                raise Prevented(f"{named(path)} is a part of what the loop is over, or of what it writes to")
        if is_tracked([*(t for pair in pairs for t in pair), *self.written]):
            raise Prevented(WITH_GRADIENTS)

    def side(self, run: Callable[[], Ended]) -> Body:
        """One side as a graph of its own, with what is written to behind its results."""
        vm, memory = self.vm, {storage_of(t) for t in self.written}
        with vm.out.beside([]) as aside:
            for tensor in self.written:
                vm.out._node_of[id(tensor)] = vm.out.node(vm.out.call_method("clone", (tensor,), {}))
            results = self.plan.tensors_of(run())
            there = {storage_of(t) for t in aside.there()}
            if aside.written() & there - memory or any(storage_of(t) in memory for t in results):
                raise Prevented(f"{self.what} writes to something else than it did before")
            results = [*owned(vm, self.what, results, aside.tensors()), *self.written]
            module, reads = aside.finish(results)
        if not all(isinstance(r, Tensor) for r in reads):
            raise Prevented(f"{self.what} reads a number that changes between calls")
        if any(storage_of(r) in memory and all(r is not t for t in self.written) for r in reads):
            raise Prevented(f"{self.what} writes to a tensor and reads another one of the same memory")
        return Body(module, reads, results, None)  # type: ignore[arg-type]
