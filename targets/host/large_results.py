"""Programs with large results: the steps that write these are no part of a recording, but run after it, into memory of the caller's own.

A model's logits are the case: hundreds of MiB, written by the last product. What a recording writes has to be copied before the caller may
keep it; what its tail writes has not. `find_tail` names the steps, `halves` makes two functions of them and all others:

    def make():
        def recorded(a0, a1):
            o5 = ...
            return (o5,)
        def tail(values, a0, a1):
            (o5,) = values
            t7 = aten_mm(o5, a1)
            return (t7,)
        return recorded, tail

Steps that read or overwrite what the tail writes, or write what it reads, belong to it, too, so that the order of the others does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import buffer, loop, prim
from ...ir.dialects.aten import overload
from ...ir.syntax import Op
from ...passes.analysis.aliases import Aliases, shared_operands, written_operands
from ..recordings.recordable import LEAST, SPARED
from .ir import Function, Halves, HostProgram, Names, Statement, tuple_of, use
from .kernels import bytes_of, viewed
from .partition import Emitted

UNKNOWN = 2  # steps for a result whose size is a symbol: whether they are worth it is decided when it is known
ANY = 256  # a size for all symbols, where memory is compared
MOST = 8  # results that are looked at, the largest first
MUCH = 16  # times as many bytes in the largest result as in one that is looked at
_RANDOM = "the random generator"


@dataclass(frozen=True)
class Tail:
    """The steps of a host program that run after its recording.

    Attributes:
        steps: these steps, but for views and memory.
        results: positions of the user's results that lie in memory which the tail takes.
    """

    steps: frozenset[Op]
    results: tuple[int, ...]


def find_tail(func: prim.Func, kernels: Mapping[str, loop.Kernel]) -> Tail | None:
    """The steps that write large results, where these are few; None where there are no such results.

    Args:
        func: a function at the `buffer` level.
        kernels: its kernels.
    """
    if any(isinstance(op, buffer.Alloc) and op["pool"] == "arena" for op in func.block_body.ops):
        return None
    plan = _Plan.of(func, kernels)
    chosen: set[int] = set()
    candidates = plan.candidates(func)
    for size, root in candidates[:MOST]:
        more = plan.closed(chosen | plan.writers(root))
        added = plan.count(more) - plan.count(chosen)
        worth = added <= UNKNOWN if size is None else size >= SPARED * max(1, added)
        if worth and plan.is_possible(more, func):
            more = plan.with_large_operands(more, func)
            made = {root for _, root in candidates} & plan.made(more)
            if 2 * sum(plan.given(more).values()) <= sum(bytes_of(root, ANY) or 0 for root in made):
                chosen = more
    if not chosen:
        return None
    places = tuple(p for p, value in _received(func) if plan.root(value) in plan.made(chosen))
    return Tail(frozenset(plan.ops[k] for k in chosen), places)


def _received(func: prim.Func) -> list[tuple[int, SSAValue]]:
    """The results that are no arguments: where the user finds them, and their values."""
    values = list(func.block_body.ops)[-1].operands
    specs = func.get("results")
    if specs is None:
        return list(enumerate(values))
    return [(k, values[spec[1]]) for k, spec in enumerate(specs) if spec[0] in ("value", "alias_output")]


@dataclass
class _Plan:
    """What each operation of a host program reads and writes: arguments, memory, results of library calls, the random generator."""

    ops: list[Op]
    aliases: Aliases
    accesses: list[tuple[set[Any], set[Any]]]

    @staticmethod
    def of(func: prim.Func, kernels: Mapping[str, loop.Kernel]) -> _Plan:
        plan = _Plan([op for op in func.block_body.ops if isinstance(op, Op)], Aliases.of(func.block_body), [])
        for op in plan.ops:
            plan.accesses.append(plan._access(op, kernels))
        return plan

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose memory this one is, or is a view of."""
        return self.aliases.root(value)

    def _all(self, values: Iterable[SSAValue]) -> set[Any]:
        return {root for v in values for root in self.aliases.roots(v)}

    def _access(self, op: Op, kernels: Mapping[str, loop.Kernel]) -> tuple[set[Any], set[Any]]:
        match op:
            case buffer.Launch():
                inputs = kernels[op["kernel"]].operand_count
                read, written = op.operands[:inputs], list(op.operands[inputs:])
            case buffer.Copy() | buffer.Contract():
                read, written = op.operands[:-1], list(op.operands[-1:])
            case buffer.Extern():
                read, written = op.operands, [*op.results, *written_operands(op)]
                if torch.Tag.nondeterministic_seeded in overload(op["target"]).tags:
                    return {*self._all(read), _RANDOM}, {*self._all(written), _RANDOM}
            case _:
                return set(), set()
        return self._all(read), self._all(written)

    def candidates(self, func: prim.Func) -> list[tuple[int | None, SSAValue]]:
        """Memory of large results with its bytes, the largest first, and at last that of results of unknown sizes."""
        roots = dict.fromkeys(self.root(value) for _, value in _received(func))
        sizes = {root: bytes_of(root, ANY) or 0 for root in roots if not isinstance(root, BlockArgument)}
        found = [(bytes_of(root), root) for root, size in sizes.items() if MUCH * size >= max(sizes.values())]
        found = [f for f in found if f[0] is None or f[0] >= SPARED]
        return sorted(found, key=lambda f: (f[0] is None, -sizes[f[1]]))

    def closed(self, first: set[int]) -> set[int]:
        """These operations, and all later ones that must not run before them."""
        found: set[int] = set()
        read: set[Any] = set()
        written: set[Any] = set()
        for k, (r, w) in enumerate(self.accesses):
            if k in first or w & (read | written) or r & written:
                found.add(k)
                read |= r
                written |= w
        return found

    def with_large_operands(self, chosen: set[int], func: prim.Func) -> set[int]:
        """These, and the steps in front of them whose results are large: what a tail is given stays in the recording's memory for good."""
        while given := self.given(chosen):
            root = max(given, key=given.__getitem__)
            if given[root] < SPARED:
                break
            more = self.closed(chosen | self.writers(root))
            lighter = 2 * sum(self.given(more).values()) <= sum(given.values())
            if not lighter or self.count(more) - self.count(chosen) > UNKNOWN or not self.is_possible(more, func):
                break
            chosen = more
        return chosen

    def writers(self, root: SSAValue) -> set[int]:
        """The operations that write to this memory."""
        return {k for k, (_, written) in enumerate(self.accesses) if root in written}

    def made(self, chosen: set[int]) -> set[Any]:
        """What these write, and the others neither read nor write."""
        others = {root for k, access in enumerate(self.accesses) if k not in chosen for root in access[0] | access[1]}
        return {root for k in chosen for root in self.accesses[k][1]} - others

    def given(self, chosen: set[int]) -> dict[SSAValue, int]:
        """Memory that these need from the others, with its bytes."""
        read = {root for k in chosen for root in self.accesses[k][0] if isinstance(root, SSAValue)}
        others = {root for k, (_, written) in enumerate(self.accesses) if k not in chosen for root in written}
        return {root: bytes_of(root, ANY) or 0 for root in read & others if not isinstance(root, BlockArgument)}

    def count(self, chosen: set[int]) -> int:
        """How many kernels, library calls and copies these are."""
        return sum(isinstance(self.ops[k], buffer.Launch | buffer.Extern | buffer.Copy) for k in chosen)

    def is_possible(self, chosen: set[int], func: prim.Func) -> bool:
        """Whether these may run after all others, which are still worth a recording."""
        work = sum(isinstance(op, buffer.Launch | buffer.Extern) for op in self.ops) - self.count(chosen)
        if work < max(LEAST, self.count(chosen)):
            return False
        if any(isinstance(root, BlockArgument) for k in chosen for root in self.accesses[k][1]):
            return False
        calls = [op for op in (self.ops[k] for k in chosen) if isinstance(op, buffer.Extern)]
        # A call that gives what was not planned sends the program to eager: no argument may have been written to by then.
        late = bool(func.get("mutations")) and not func.get("writes_early")
        return all(op["target"].startswith("aten.") for op in calls) and not (calls and late)


def halves(
    func: prim.Func,
    kernels: Mapping[str, loop.Kernel],
    once: Sequence[Statement],
    head: Sequence[Statement],
    steps: Sequence[Emitted],
    run: Function,
    stream: Statement,
) -> Halves | None:
    """A program with large results as two functions; None: it has none, or would hardly be recorded.

    Args:
        func: its function at the `buffer` level.
        kernels: its kernels.
        once: what it does once.
        head: the lines in front of all steps.
        steps: its operations with their lines.
        run: the program as one function.
        stream: asks for the stream.
    """
    tail = find_tail(func, kernels)
    if tail is None:
        return None
    first, second = [*head, stream], [*(s for s in head if s.kind == "size"), stream]
    for op, lines in steps:
        lines = [line for line in lines if line.kind != "stream"]
        for target in (first, second):
            if _belongs(op, tail, target is second):
                target += lines
    mine, made = Names.of([*second, Statement(run.result)]), Names.of(first)
    given = sorted((mine.reads - mine.writes) & made.writes)
    values = tuple_of([*map(use, given)])
    taken = [Statement(f"{values} = {use('values')}", tuple(given))] if given else []
    functions = (
        Function("recorded", run.arguments, tuple(first), values),
        Function("tail", ("values", *run.arguments), (*taken, *second), run.result),
    )
    program = HostProgram(tuple(once), functions, ("recorded", "tail"))
    return Halves(program, len(tail.steps), tail.results)


def _belongs(op: Op, tail: Tail, late: bool) -> bool:
    """Whether an operation is one of the tail (`late`), or of what runs before it; views may be both."""
    match op:
        case buffer.Alloc():
            return late == (not _is_used(op.results[0], tail, late=False) and _is_used(op.results[0], tail, late=True))
        case buffer.View():
            return _is_used(op.results[0], tail, late)
        case buffer.Free():
            value = viewed(op.operands[0])
            return late == (value.owner in tail.steps or _is_used(value, tail, late=True))
    return late == (op in tail.steps or isinstance(op, prim.Return))


def _is_used(value: SSAValue, tail: Tail, late: bool) -> bool:
    """Whether the tail, or a step before it, uses this memory or a view of it."""
    for place in value.uses:
        user = place.operation
        same = [result for result in user.results if value in shared_operands(user, result)]
        if any(_is_used(result, tail, late) for result in same):
            return True
        pure = isinstance(user, buffer.View | buffer.Free)
        if not pure and late == (user in tail.steps or isinstance(user, prim.Return)):
            return True
    return False
