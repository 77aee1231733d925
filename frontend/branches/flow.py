"""Where the two ways of a conditional jump meet again."""

from __future__ import annotations

import types

from ..bytecode.instruction import Program, disassemble, per_code

__all__ = ["always_raises", "following", "join_of", "landed"]

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
    to go, `ends` those at which the frame ends, too.
    """
    found: int | None = _join_of(code, index, cut, ends)
    return found


@per_code
def _join_of(code: types.CodeType, index: int, cut: frozenset[tuple[int, int]], ends: frozenset[int]) -> int | None:
    program = disassemble(code)
    end = len(program.instructions)
    behind = _behind(code, cut, ends)
    shared = behind[index] & ~(1 << index)
    # The nearest of those that every path passes is the one behind which all others lie.
    join = next((at for at in range(end) if shared >> at & 1 and behind[at] == shared), end)
    seen: set[int] = set()
    ahead = _after(program, index, cut, ends)
    while ahead:
        at = ahead.pop()
        if at == join or at in seen:
            continue
        if at == index or program.instructions[at].op in _WAITS:
            return None
        seen.add(at)
        ahead += _after(program, at, cut, ends)
    return join


@per_code
def _behind(code: types.CodeType, cut: frozenset[tuple[int, int]], ends: frozenset[int]) -> list[int]:
    """By instruction, the bits of those that every path from it to a `return` passes, itself and the end among them."""
    program = disassemble(code)
    end = len(program.instructions)
    everything = (1 << end + 1) - 1
    behind = [everything] * end + [1 << end]
    changed = True
    while changed:
        changed = False
        for at in range(end - 1, -1, -1):
            after = everything
            last = program.instructions[at].op == "RETURN_VALUE" or at in ends
            for other in [end] if last else _after(program, at, cut, ends):
                after &= behind[other]
            after |= 1 << at
            if after != behind[at]:
                behind[at], changed = after, True
    return behind


def _after(program: Program, at: int, cut: frozenset[tuple[int, int]], ends: frozenset[int]) -> list[int]:
    if at in ends:
        return []
    return [target for k, target in cut if k == at] or following(program, at)
