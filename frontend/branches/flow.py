"""Where the two ways of a conditional jump meet again."""

from __future__ import annotations

import types
from typing import Any

from ..bytecode.instruction import Instruction, Program, disassemble, per_code

__all__ = ["alike", "always_raises", "following", "join_of", "landed"]

_MOVES = ("RETURN_VALUE", "POP_TOP", "SWAP", "COPY", "LOAD_CONST")  # beside calls at the end of a `with`
_LONGEST = 400  # instructions of a side that raises
_WAITS = ("YIELD_VALUE", "SEND", "RETURN_GENERATOR")


def following(program: Program, at: int) -> list[int]:
    """The instructions that may come next where nothing raises; none behind a `raise` or `return`."""
    op, arg = program.instructions[at].op, program.instructions[at].arg
    if op in ("RAISE_VARARGS", "RERAISE", "RETURN_VALUE"):
        return []
    if op == "JUMP":
        return [arg]
    return [at + 1, arg] if op.startswith(("POP_JUMP", "FOR_ITER")) else [at + 1]


def landed(program: Program, at: int) -> int:
    """The instruction that runs where another leads, behind plain jumps."""
    seen = 0
    while program.instructions[at].op == "JUMP" and seen < _LONGEST:
        at, seen = program.instructions[at].arg, seen + 1
    return at


def always_raises(code: types.CodeType, index: int, other: int = -1) -> bool:
    """Whether everything from this instruction on ends in a `raise`, or at the other way's first one, if given: a condition had more parts."""
    return bool(_always_raises(code, index, other))


@per_code
def _always_raises(code: types.CodeType, index: int, other: int) -> bool:
    program = disassemble(code)
    seen: set[int] = set()
    ahead = [index]
    raises = False
    while ahead:
        at = ahead.pop()
        if at in seen or at == other:
            continue
        if at >= len(program.instructions) or len(seen) > _LONGEST:
            return False
        seen.add(at)
        op = program.instructions[at].op
        if op == "RETURN_VALUE" or op in _WAITS:
            return False
        found = following(program, at)
        raises = raises or not found
        ahead += found
    return raises


def join_of(
    code: types.CodeType, index: int, cut: frozenset[tuple[int, int]] = frozenset(), ends: frozenset[int] = frozenset()
) -> int | None:
    """The first instruction that both ways of the conditional jump `index` come to; the number of instructions: the frame's end.

    None where a way leads back to the jump, or waits: a loop, a generator. `cut` are instructions and where they are known
    to go, `ends` those at which the frame ends, too. Ends of the code that do the same count as one: it is the first of these.
    """
    found: int | None = _join_of(code, index, cut, ends)
    return found


def alike(code: types.CodeType, index: int) -> frozenset[int]:
    """The instructions from which the same happens as from this one, up to a `return`: CPython writes the end of a `with` once for each."""
    first = _ends(code)
    return frozenset(k for k, other in enumerate(first) if other == first[index])


@per_code
def _ends(code: types.CodeType) -> list[int]:
    """By instruction, the first one from which the same happens, without another jump, up to a `return`, if a `with` is left on the way; else itself."""
    program = disassemble(code)
    first, known = list(range(len(program.instructions))), dict[Any, int]()
    behind: dict[int, list[int]] = {}
    ahead, calls = list[int](), dict[int, bool]()
    for at, ins in enumerate(program.instructions):
        if ins.op == "RETURN_VALUE":
            ahead.append(at)
        elif len(after := following(program, at)) == 1:
            behind.setdefault(after[0], []).append(at)
    while ahead:
        at = ahead.pop(0)
        ins, after = program.instructions[at], following(program, at)
        leaves = (
            ins.op == "CALL" and program.instructions[at - 3 : at] == (Instruction("LOAD_CONST", None, ins.line),) * 3
        )
        calls[at] = leaves or bool(after) and calls[after[0]]
        if ins.op == "JUMP":
            first[at] = first[after[0]]
        elif leaves or ins.op in _MOVES:
            line = ins.line if leaves else None
            what = ins.op, type(ins.arg), repr(ins.arg), line, _handled(program, at), first[after[0]] if after else -1
            first[at] = known.setdefault(what, at)
        else:
            continue
        ahead += behind.get(at, [])
    return [other if calls.get(at) else at for at, other in enumerate(first)]


def _handled(program: Program, at: int) -> tuple[int, int, bool] | None:
    entry = program.handler(at)
    return None if entry is None else (entry.target, entry.depth, entry.push_lasti)


@per_code
def _join_of(code: types.CodeType, index: int, cut: frozenset[tuple[int, int]], ends: frozenset[int]) -> int | None:
    program = disassemble(code)
    end = len(program.instructions)
    behind = _behind(code, cut, ends)
    shared = behind[index] & ~(1 << index)
    # The nearest of those that every path passes is the one behind which all others lie.
    join = next((at for at in range(end) if shared >> at & 1 and behind[at] == shared), end)
    seen: set[int] = set()
    first = _ends(code)
    ahead = _after(program, index, cut, ends, first)
    while ahead:
        at = ahead.pop()
        if at == join or at in seen:
            continue
        if at == index or program.instructions[at].op in _WAITS:
            return None
        seen.add(at)
        ahead += _after(program, at, cut, ends, first)
    return join


@per_code
def _behind(code: types.CodeType, cut: frozenset[tuple[int, int]], ends: frozenset[int]) -> list[int]:
    """By instruction, the bits of those that every path from it to a `return` passes, itself and the end among them."""
    program = disassemble(code)
    end = len(program.instructions)
    everything = (1 << end + 1) - 1
    behind, first = [everything] * end + [1 << end], _ends(code)
    changed = True
    while changed:
        changed = False
        for at in range(end - 1, -1, -1):
            after = everything
            last = program.instructions[at].op == "RETURN_VALUE" or at in ends
            for other in [end] if last else _after(program, at, cut, ends, first):
                after &= behind[other]
            after |= 1 << at
            if after != behind[at]:
                behind[at], changed = after, True
    return behind


def _after(
    program: Program, at: int, cut: frozenset[tuple[int, int]], ends: frozenset[int], first: list[int]
) -> list[int]:
    if at in ends:
        return []
    return [first[other] for other in [target for k, target in cut if k == at] or following(program, at)]
