"""The loops of a function's code that a conditional jump may leave, as its instructions say."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

from ..bytecode.instruction import Program, disassemble, per_code
from .flow import following, landed

__all__ = ["Shape", "Test", "leads_alike", "shape_of"]

_MOST = 400  # instructions that are compared


@dataclass(frozen=True)
class Test:
    """An instruction that leaves a loop: where it goes on in the loop, and where behind it; of a jump, the truth that stays."""

    stay: int
    leave: int
    truth: bool | None


@dataclass(frozen=True)
class Shape:
    """One loop around a jump.

    Attributes:
        inside: its instructions.
        heads: the jump, and those that do the same: CPython writes the condition of a `while` in front of the loop and at its end.
        tests: what leaves it, and what does the same in front of it.
    """

    inside: frozenset[int]
    heads: frozenset[int]
    tests: dict[int, Test]


def shape_of(code: types.CodeType, index: int) -> Shape | None:
    """The innermost loop that the instruction leaves or stays in; None where it is no such test."""
    found: Shape | None = _shape_of(code, index)
    return found


def leads_alike(code: types.CodeType, first: int, second: int) -> bool:
    """Whether the same happens from two instructions on: a short `return` behind a loop is written once for each way out."""
    return first == second or _alike(disassemble(code), first, second)


@per_code
def _shape_of(code: types.CodeType, index: int) -> Shape | None:
    program = disassemble(code)
    jumps = [k for k, ins in enumerate(program.instructions) if _is_test(ins.op)]
    heads = [k for k in jumps if k == index or _alike(program, k, index)]
    around = {k: _around(program, k) for k in heads}
    left = [k for k in heads if k in around[k] and _test(program, k, around[k]) is not None]
    if not left:
        return None
    inner = max(left, key=lambda k: len(around[k]))
    inside = around[inner]
    tests = {k: test for k in jumps if k in inside and (test := _test(program, k, inside)) is not None}
    for k in jumps:
        same = next((t for t in tests if k not in inside and _alike(program, k, t)), None)
        if same is not None:
            stay, leave = _ways(program, k) if tests[same].truth is not False else _ways(program, k)[::-1]
            tests[k] = Test(stay, leave, tests[same].truth)
    return Shape(inside, frozenset(k for k in heads if k in tests), tests)


def _is_test(op: str) -> bool:
    return op in ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "FOR_ITER")


def _ways(program: Program, index: int) -> tuple[int, int]:
    """Where an instruction goes if what it asks for is true (there is one more item), and where otherwise."""
    ins = program.instructions[index]
    return (ins.arg, index + 1) if ins.op == "POP_JUMP_IF_TRUE" else (index + 1, ins.arg)


def _test(program: Program, index: int, inside: frozenset[int]) -> Test | None:
    true, false = _ways(program, index)
    if (true in inside) == (false in inside):
        return None
    truth = None if program.instructions[index].op == "FOR_ITER" else true in inside
    return Test(true, false, truth) if true in inside else Test(false, true, truth)


def _around(program: Program, index: int) -> frozenset[int]:
    """The instructions of the innermost loop around one; none where there is no loop."""
    before: dict[int, list[int]] = {}
    for at in range(len(program.instructions)):
        for after in following(program, at):
            before.setdefault(after, []).append(at)
    found, within = frozenset[int](), frozenset(range(len(program.instructions)))
    while index in within:
        ahead = _reached(index, lambda at: following(program, at), within)
        cycle = ahead & _reached(index, lambda at: before.get(at, []), within)
        if not cycle:
            break
        found = cycle
        within = cycle - {at for at in cycle if at == 0 or any(b not in cycle for b in before[at])}
    return found


def _reached(index: int, after: Callable[[int], list[int]], within: frozenset[int]) -> frozenset[int]:
    seen, ahead = set[int](), after(index)[:]
    while ahead:
        at = ahead.pop()
        if at in within and at not in seen:
            seen.add(at)
            ahead += after(at)
    return frozenset(seen)


def _alike(program: Program, first: int, second: int) -> bool:
    """Whether the same happens from two instructions on."""
    assumed, ahead = set[tuple[int, int]](), [(first, second)]
    while ahead:
        a, b = (landed(program, at) for at in ahead.pop())
        if a == b or (a, b) in assumed:
            continue
        assumed.add((a, b))
        one, other = program.instructions[a], program.instructions[b]
        if len(assumed) > _MOST or program.handler(a) != program.handler(b):
            return False
        if _is_test(one.op) and _is_test(other.op) and (one.op == "FOR_ITER") == (other.op == "FOR_ITER"):
            ahead += zip(_ways(program, a), _ways(program, b), strict=True)
        elif one.op != other.op or type(one.arg) is not type(other.arg) or repr(one.arg) != repr(other.arg):
            return False
        else:
            ahead += zip(following(program, a), following(program, b), strict=True)
    return True
