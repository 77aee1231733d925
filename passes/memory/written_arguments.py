"""Which arguments a program may write to where they are, rather than copy a new value into them at its end.

A KV cache that gets one more row is the case: `index_copy` and `slice_scatter` give a new cache, which costs a copy of it, and another one to
bring it back into the user's tensor. Where nobody reads the old contents afterwards, the call writes its few elements into the argument.
So does a kernel that computes each element of an argument anew, as the steps of optimizers do.

What a loop carries is memory of the loop's own (`owned` of its body): a round writes the few elements that change into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sympy
from xdsl.ir import Operation, OpResult, SSAValue

from ...ir.dialects import buffer, kernel, loop, prim
from ...ir.symbols import Dim, contiguous_strides, dim, known_equal
from ...ir.types import RefType, ref_type
from ..analysis.aliases import Aliases
from ..analysis.strides import memory_strides, same_layout
from .launches import Launches

# Calls that write some elements of their first operand and leave the others, with their twins that write in place.
IN_PLACE = {
    "aten.index_copy.default": "aten.index_copy_.default",
    "aten.index_put.default": "aten.index_put_.default",
    "aten.scatter.src": "aten.scatter_.src",
    "aten.scatter.value": "aten.scatter_.value",
    "aten.index_fill.int_Scalar": "aten.index_fill_.int_Scalar",
}
PARTS = ("aten.slice_scatter.default", "aten.select_scatter.default")  # a copy into a view


@dataclass(frozen=True)
class Writes:
    """What is written in place.

    Attributes:
        target: for the result of each such call, the argument whose memory it is.
        mutations: the entries (argument, returned value) of the function, of `owned` too, that need no copy any more.
        early: whether something that comes after a write can fail; every launch on a GPU can.
    """

    target: dict[SSAValue, SSAValue]
    mutations: frozenset[tuple[int, int]]
    early: bool = False


def in_place_writes(
    func: prim.Func, aliases: Aliases, launches: Launches, is_asynchronous: Callable[[SSAValue], bool]
) -> Writes:
    """The calls and kernels of a function that may write to an argument.

    Where errors are seen at once, only kernels from which on nothing can fail: updates of weights, at the end of a step. Elsewhere what
    stands behind all that the program relies on of sizes that values decide (`assumes`): where those are others the call begins again in
    eager. Of what a loop owns nobody sees anything when a round fails.
    """
    steps = list(func.block_body.ops)
    number = {op: i for i, op in enumerate(steps)}
    root, last = aliases.root, aliases.last_uses(func.block_body)
    returned, memory = steps[-1].operands, aliases.counts(steps[-1].operands)
    readers = _Readers(aliases)
    received = {spec[1] for spec in func.get("results", ()) if spec[0] in ("value", "alias_output")}
    targets: dict[SSAValue, SSAValue] = {}
    done = set()
    mutations = func.get("mutations", ()) if "results" in func.attributes else ()
    sure = launches.sure_from(func) if mutations else len(steps)
    relied = _last_relied(steps) if mutations else -1
    given_up = dict.fromkeys(func.block_body.args[argument] for argument, _ in func.get("owned", ()))
    for argument, k in (*mutations, *func.get("owned", ())):
        target, value = func.block_body.args[argument], returned[k]
        if k in received and target not in given_up:
            continue
        queued = is_asynchronous(target) or target in given_up
        begin = relied if target not in given_up else -1  # the step behind which it may be written to
        first = root(value)
        if first is not value or launches.updated_unread(value.owner) is not None:
            step = number.get(first.owner, -1) if isinstance(first.owner, Operation) else -1
            early = queued and step > begin and memory[first] == 1 and last.get(target, -1) <= step
            if early and _updates(first, target, readers, launches):
                targets[first] = target
                done.add((argument, k))
                continue
        if memory[value] == 1 and isinstance(value.owner, loop.Launch) and target not in given_up:
            step = number[value.owner]
            calm = last.get(target, -1) <= step and (queued and step > begin or step >= sure)
            if calm and _computes_anew(value.owner, value, target, readers, launches):
                targets[value] = target
                done.add((argument, k))
            continue
        chain = _chain(value, target) if queued else []
        if not chain:
            continue
        versions = [chain[0].operands[0], *(op.results[0] for op in chain)]
        # Each version is read before the next one is written, and by nobody in the same call.
        calm = all(last[v] == number[op] for v, op in zip(versions, chain, strict=False))
        alone = all(len(readers.of(op, v)) == 1 for v, op in zip(versions, chain, strict=False))
        if calm and alone and number[chain[0]] > begin and sum(memory[v] for v in versions) == 1:
            targets |= dict.fromkeys((op.results[0] for op in chain), target)
            done.add((argument, k))
    seen = [v for v, target in targets.items() if target not in given_up]
    early = any(is_asynchronous(v) or number[v.owner] < sure for v in seen)  # type: ignore[index]
    return Writes(targets, frozenset(done), early)


def _last_relied(steps: Sequence[Operation]) -> int:
    """The number of the last step that relies on sizes; -1 where none does."""
    found = (i for i in reversed(range(len(steps))) if any("assumes" in op.attributes for op in steps[i].walk()))
    return next(found, -1)


@dataclass
class _Readers:
    """By operation and root: the operands that may be its memory. An optimizer's kernel has thousands, so that each is walked over once."""

    aliases: Aliases
    _found: dict[Operation, dict[SSAValue, list[int]]] = field(default_factory=dict)

    def of(self, op: Operation, root: SSAValue) -> list[int]:
        found = self._found.get(op)
        if found is None:
            found = self._found[op] = {}
            for i, operand in enumerate(op.operands):
                for r in self.aliases.roots(operand):
                    found.setdefault(r, []).append(i)
        return found.get(root, [])


def _updates(value: SSAValue, target: SSAValue, readers: _Readers, launches: Launches) -> bool:
    """Whether a kernel changes some elements of this argument, which it does not read otherwise."""
    op = value.owner
    if not isinstance(op, Operation) or launches.updated_unread(op) is not target:
        return False
    a, b = prim.tensor(value), prim.tensor(target)
    ordered = a.dtype == b.dtype and all(
        same_layout(t.shape, memory_strides(v), contiguous_strides(t.shape)) for t, v in ((a, value), (b, target))
    )
    return (_fits(value, target) or ordered) and len(readers.of(op, target)) == 1


def _computes_anew(op: loop.Launch, value: SSAValue, target: SSAValue, readers: _Readers, launches: Launches) -> bool:
    """Whether a kernel may write its result into this argument, which nobody reads later."""
    if not _fits(value, target):
        return False
    reads = readers.of(op, target)
    assert isinstance(value, OpResult)
    place = value.index
    return len(reads) <= 1 and all(op.operands[i] is target and launches.pairs(op, i, place) for i in reads)


def _chain(value: SSAValue, argument: SSAValue) -> list[kernel.Extern]:
    """The calls from the argument to its new value; empty where one cannot write in place."""
    found: list[kernel.Extern] = []
    while value is not argument:
        op = value.owner
        if not isinstance(op, kernel.Extern) or not _writes_elements(op) or not _fits(value, argument):
            return []
        found.append(op)
        value = op.operands[0]
    return found[::-1]


def _writes_elements(op: kernel.Extern) -> bool:
    names = list(op["operands"])
    if op.get("own") or len(op.results) != 1 or not names or names[0] not in ("self", "input"):
        return False
    if op["target"] in PARTS:
        return _part(op) is not None
    return op["target"] in IN_PLACE and not op.get("accumulate")


def _fits(value: SSAValue, argument: SSAValue) -> bool:
    a, b = prim.tensor(value), prim.tensor(argument)
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and same_layout(a.shape, memory_strides(value), memory_strides(argument))


def _part(op: kernel.Extern) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim] | None:
    """Sizes, strides and offset of the part of its first operand that a scatter call writes to; None: not known."""
    into, source = prim.tensor(op.operands[0]), prim.tensor(op.operands[1])
    strides, d = memory_strides(op.operands[0]), int(op.get("dim", 0))
    size = into.shape[d]
    if op["target"] == "aten.select_scatter.default":
        start = _begin(op.get("index"), size)
        return None if start is None else (source.shape, (*strides[:d], *strides[d + 1 :]), dim(start * strides[d]))
    step, start, end = op.get("step", 1), _begin(op.get("start") or 0, size), op.get("end")
    if start is None or not isinstance(step, int):
        return None
    if step == 1 and end is not None and not (isinstance(end, int) and isinstance(start, int)):
        if not known_equal(dim(sympy.sympify(end) - start), source.shape[d]):  # it may be cut off
            return None
    elif not isinstance(start, int) or not isinstance(size, int):
        return None
    start = min(start, size) if isinstance(start, int) and isinstance(size, int) else start
    taken = tuple(dim(s * step) if i == d else s for i, s in enumerate(strides))
    return source.shape, taken, dim(start * strides[d])


def _begin(start: Dim, size: Dim) -> Dim | None:
    """A start that is not counted from the end."""
    if isinstance(start, int):
        if start >= 0:
            return start
        return max(0, start + size) if isinstance(size, int) else None
    return start if sympy.sympify(start).is_nonnegative else None


def write_in_place(op: kernel.Extern, operands: Sequence[SSAValue], literals: dict[str, object]) -> list[Operation]:
    """The steps that write to the argument's memory, which is the first operand."""
    if op["target"] in IN_PLACE:
        attrs = {**literals, "target": IN_PLACE[op["target"]]}
        return [buffer.Extern.make(list(operands), [], attrs, loc=op.location)]
    part = _part(op)
    assert part is not None
    ref = operands[0].type
    assert isinstance(ref, RefType)
    shape, strides, offset = part
    view = buffer.View.make([operands[0]], [ref_type(shape, strides, ref.dtype, ref.device)], {"offset": offset})
    return [view, buffer.Copy.make([operands[1], view.results[0]], [], {}, loc=op.location)]


def give_own_memory(functions: Sequence[prim.Func]) -> None:
    """Let loops be given copies of what their bodies write to."""
    written = {func["sym_name"]: {row[0] for row in func.get("owned", ())} for func in functions}
    for op in [op for func in functions for op in func.block_body.ops if isinstance(op, buffer.Extern)]:
        for k, name in enumerate(op["operands"]):
            group, _, number = name.partition(".")
            if group != "carried" or int(number) not in written.get(op.get("body"), ()):
                continue
            given = op.operands[k]
            own = buffer.Alloc.make([], [given.type], {"pool": "output"}, loc=op.location)
            copy = buffer.Copy.make([given, own.results[0]], [], {}, loc=op.location)
            assert op.parent is not None
            op.parent.insert_ops_before([own, copy], op)
            op.operands[k] = own.results[0]
