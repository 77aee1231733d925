"""Conditions of several parts (`a or b`, `a and (b or c)`): what the last one decides by is made of all.

A part that Python comes to only by the truth of the one before it is computed for nothing where it is not asked for. So it may be a few
cheap operators that fail for no values, and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..bytecode.closing import may_be_dropped
from ..bytecode.frame import Frame
from ..bytecode.instruction import Program
from ..errors import Refused
from ..gradients.state import VisibleState
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .flow import following, landed
from .selects import is_cheap, pieces_of, taken
from .sides import Ended, Prevented, run_side
from .truths import tensor_of_truth

__all__ = ["combined"]

_CHEAP = 12  # operators of a part
_LONGEST = 60  # instructions of a part
_JUMPS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")


def combined(vm: Interpreter, frame: Frame, predicate: Tensor, true: int, false: int) -> bool:
    """Whether the jump on a tensor that runs is a part of a condition: the frame stands at the next part's jump then.

    On its stack is a tensor that leads there where both parts together lead.
    """
    if vm.out.inside or may_be_dropped(vm) or frame.code.co_flags & 0x20:
        return False
    for truth, start, target in ((False, false, true), (True, true, false)):
        jump = _next_jump(frame.program, start)
        if jump is None:
            continue
        ways = _ways(frame.program, jump)
        leads = [value for value, way in ways.items() if landed(frame.program, way) == landed(frame.program, target)]
        if leads and _join(vm, frame, predicate, (truth, start, target), jump, leads[0]):
            return True
    return False


def _next_jump(program: Program, start: int) -> int | None:
    """The conditional jump that is come to from an instruction without another one."""
    at = start
    for _ in range(_LONGEST):
        if program.instructions[at].op in _JUMPS:
            return at
        after = following(program, at)
        if len(after) != 1:
            return None
        at = after[0]
    return None


def _ways(program: Program, jump: int) -> dict[bool, int]:
    """Where a jump goes, by the truth."""
    ins = program.instructions[jump]
    jumps = ins.op == "POP_JUMP_IF_TRUE"
    return {jumps: ins.arg, not jumps: jump + 1}


def _join(vm: Interpreter, frame: Frame, predicate: Tensor, way: tuple[bool, int, int], jump: int, leads: bool) -> bool:
    """Run the next part, up to its jump, which goes to the target for the truth `leads`; False where it does too much."""
    truth, start, target = way
    state = VisibleState(vm)
    with vm.out.beside([]) as aside:
        try:
            end = run_side(vm, frame, start, frozenset([jump]))
            second, nodes = _decides(vm, end), pieces_of(aside)
            cheap = len(nodes) <= _CHEAP and all(map(is_cheap, nodes)) and end.failed is None
        except Prevented:
            cheap = False
        written = aside.writes()
    if written or state.is_changed():
        raise Refused(f"a part of a condition writes to what was there before: {frame.line}", "branches")
    if not cheap or second is None or not _leaves_only(frame, end):
        return False
    if isinstance(second, Tensor) and (second.device != predicate.device or second.numel() != 1):
        return False
    if not isinstance(second, Tensor) and second is leads:  # both ways lead to the target
        frame.ip = target
        return True
    second = _decides(vm, run_side(vm, frame, start, frozenset([jump])))
    # The first part leads to the target, or to the next part.
    first = taken(vm, predicate)
    made = vm.out.call_function(torch.logical_not, (first,), {}) if truth is leads else first
    if isinstance(second, Tensor):
        made = vm.out.call_function(torch.logical_or if leads else torch.logical_and, (made, taken(vm, second)), {})
    frame.push(made)
    frame.ip = jump
    return True


def _decides(vm: Interpreter, end: Ended) -> Any:
    """What a jump asks for: a tensor, a truth that is known, or None."""
    value = end.stack[-1].read() if type(end.stack[-1]) is Unread else end.stack[-1]
    found = tensor_of_truth(vm, value)
    if isinstance(found, Tensor):
        plain = (
            vm.out.is_known(found) and getattr(found, "constant", None) is None and not vm.overrides.concern((found,))
        )
        return found if plain else None
    return bool(found) if is_constant(found) else None


def _leaves_only(frame: Frame, end: Ended) -> bool:
    """Whether a part leaves the frame as it was, but for one value more."""
    values = all(a is b for a, b in zip(frame.stack, end.stack, strict=False))
    names = frame.fast.keys() == end.fast.keys() and all(end.fast[name] is value for name, value in frame.fast.items())
    return values and names and len(end.stack) == len(frame.stack) + 1 and not end.grown
