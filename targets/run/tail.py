"""Programs with large results: the steps that write these are no part of a recording, but run after it, into memory of the caller's own.

A model's logits are the case: hundreds of MiB, written by the last product. What a recording writes has to be copied before the caller may
keep it; what its tail writes has not. `find_tail` names the steps, `halves` writes them and all others as two functions:

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

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import buffer, loop, prim
from ...ir.dialects.aten import overload
from ...ir.symbols import Dim, free_symbols, substitute
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.aliases import Aliases, shared_operands, written_operands
from ..torch_private import storage_address
from .pieces import Names
from .playback import Gpu, Maker, result_makers
from .recordable import LEAST

SPARED = (
    8 << 20
)  # bytes that need no copy, for each step of the tail: a copy of so many takes 4 us, a launch 8, often hidden
UNKNOWN = 2  # steps for a result whose size is a symbol: whether they are worth it is decided when it is known
ANY = 256  # a size for all symbols, where memory is compared
MOST = 8  # results that are looked at, the largest first
MUCH = 16  # times as many bytes in the largest result as in one that is looked at
Run = Callable[..., Sequence[Any]]
Step = tuple[Op, list[str]]  # an operation of a host program, and its lines
Halves = tuple[str, int, Sequence[int]]  # the text of both functions, and `steps` and `results` of `Divided`
_MEMORY = re.compile(r"[b-z]\d+")  # names of values in a host program that are no arguments
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


def find_tail(func: prim.Func, kernels: dict[str, loop.Kernel]) -> Tail | None:
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
            if 2 * sum(plan.given(more).values()) <= sum(_bytes(root, ANY) or 0 for root in made):
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
    def of(func: prim.Func, kernels: dict[str, loop.Kernel]) -> _Plan:
        plan = _Plan([op for op in func.block_body.ops if isinstance(op, Op)], Aliases.of(func.block_body), [])
        for op in plan.ops:
            plan.accesses.append(plan._access(op, kernels))
        return plan

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose memory this one is, or is a view of."""
        return self.aliases.root(value)

    def _all(self, values: Iterable[SSAValue]) -> set[Any]:
        return {root for v in values for root in self.aliases.roots(v)}

    def _access(self, op: Op, kernels: dict[str, loop.Kernel]) -> tuple[set[Any], set[Any]]:
        match op:
            case buffer.Launch():
                inputs = kernels[op["kernel"]]["inputs"]
                read, written = op.operands[:inputs], list(op.operands[inputs:])
            case buffer.Copy():
                read, written = op.operands[:1], list(op.operands[1:])
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
        sizes = {root: _bytes(root, ANY) or 0 for root in roots if not isinstance(root, BlockArgument)}
        found = [(_bytes(root), root) for root, size in sizes.items() if MUCH * size >= max(sizes.values())]
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
        return {root: _bytes(root, ANY) or 0 for root in read & others if not isinstance(root, BlockArgument)}

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


def _bytes(value: SSAValue, each: int | None = None) -> int | None:
    """How many bytes a value takes; None: that depends on sizes. With `each` all of these are this number."""
    ref = value.type
    assert isinstance(ref, RefType)
    symbols = free_symbols([*ref.shape, *ref.strides])
    if symbols and each is None:
        return None
    numbers: dict[sympy.Symbol, Dim] = dict.fromkeys(symbols, each or 0)
    shape, strides = ([int(substitute(d, numbers)) for d in dims] for dims in (ref.shape, ref.strides))
    if 0 in shape:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * ref.dtype.bytes


def halves(
    func: prim.Func,
    kernels: dict[str, loop.Kernel],
    steps: Sequence[Step],
    once: Sequence[str],
    head: tuple[Sequence[str], Sequence[str]],
    stream: str,
) -> Halves | None:
    """A program with large results as two functions; None: it has none, or would hardly be recorded.

    Args:
        func: its function at the `buffer` level.
        kernels: its kernels.
        steps: its operations with their lines.
        once: the lines of `make`.
        head: lines that both functions begin with, and lines in front of all steps.
        stream: the line that asks for the stream.
    """
    tail = find_tail(func, kernels)
    if tail is None:
        return None
    first, second = [*head[0], *head[1], stream], [*head[0], stream]
    for op, text in steps:
        lines = [line for line in text if line != stream]
        for target in (first, second):
            if _belongs(op, tail, target is second):
                target += lines
    mine = Names.of(second)
    given = ", ".join(sorted(n for n in mine.loaded - mine.stored if _MEMORY.fullmatch(n)))
    values = f"({given}{',' if given and ',' not in given else ''})"
    taken = [f"{values} = values"] if given else []
    arguments = [f"a{k}" for k in range(len(func.block_body.args))]
    lines = [
        *once,
        f"def recorded({', '.join(arguments)}):",
        *("    " + line for line in [*first, f"return {values}"]),
        f"def tail({', '.join(['values', *arguments])}):",
        *("    " + line for line in [*taken, *second]),
        "return recorded, tail",
    ]
    return "\n".join(["def make():", *("    " + line for line in lines), ""]), len(tail.steps), tail.results


def _belongs(op: Op, tail: Tail, late: bool) -> bool:
    """Whether an operation is one of the tail (`late`), or of what runs before it; views may be both."""
    match op:
        case buffer.Alloc():
            return late == (not _is_used(op.results[0], tail, late=False) and _is_used(op.results[0], tail, late=True))
        case buffer.View():
            return _is_used(op.results[0], tail, late)
        case buffer.Free():
            value = op.operands[0]
            while isinstance(value.owner, buffer.View):
                value = value.owner.operands[0]
            return late == (value.owner in tail.steps or _is_used(value, tail, late=True))
    return late == (op in tail.steps or isinstance(op, prim.Return))


def _is_used(value: SSAValue, tail: Tail, late: bool) -> bool:
    """Whether the tail, or a step before it, uses this memory or a view of it."""
    for use in value.uses:
        user = use.operation
        same = [result for result in user.results if value in shared_operands(user, result)]
        if any(_is_used(result, tail, late) for result in same):
            return True
        pure = isinstance(user, buffer.View | buffer.Free)
        if not pure and late == (user in tail.steps or isinstance(user, prim.Return)):
            return True
    return False


@dataclass(frozen=True)
class Divided:
    """A program as two functions.

    Attributes:
        make: makes what is recorded, which gives values for the tail, and the tail, which takes these and the program's arguments.
        steps: of the tail.
        results: positions of the results whose memory the tail takes.
    """

    make: Callable[[], Sequence[Run]]
    steps: int
    results: Sequence[int]


class Ending:
    """The tail of a recorded program.

    Args:
        run: the function.
        values: what the recording gives, as it lies in its memory.
        gpu: where it runs.
    """

    def __init__(self, run: Run, values: Sequence[Any], gpu: Gpu) -> None:
        self.run, self.values, self.gpu = run, tuple(values), gpu
        self.places = {storage_address(v) for v in values if isinstance(v, torch.Tensor)}
        self.copied: list[tuple[int, Maker]] | None = (
            None  # results in the recording's memory; known after the first call
        )

    def __call__(self, args: Sequence[Any], stream: int) -> list[Any]:
        """The user's results. The caller holds the lock of the recording's memory."""
        results = list(self.run(self.values, *args))
        if self.copied is None:
            ours = [
                k for k, r in enumerate(results) if isinstance(r, torch.Tensor) and storage_address(r) in self.places
            ]
            makers, _ = result_makers([results[k] for k in ours], (), self.gpu)
            self.copied = list(zip(ours, makers, strict=True))
        done: list[Any] = []
        for k, make in self.copied:
            done.append(make((), done, stream))
            results[k] = done[-1]
        return results
