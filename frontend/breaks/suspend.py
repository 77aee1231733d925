"""The end of a capture that breaks: generated code that runs the break's instruction and hands on the frames' state."""

from __future__ import annotations

import builtins
import functools
import inspect
import pdb
import re
import sys
import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..bytecode.closing import is_noticed
from ..bytecode.frame import NULL, Frame, Lasti, Saved, kinds_of
from ..bytecode.liveness import live_names
from ..errors import Unsupported
from ..state import Interpreter
from ..values.kinds import isinstance
from .break_instruction import CALL_THUNK, BreakInstruction, Outcome, break_instruction, operand_count
from .breaks import Suspended
from .pieces import PASSED, Family, Piece, Step, Tail

if TYPE_CHECKING:
    from ..bytecode.instruction import Instruction
    from ..entry.residual import Residual

__all__ = ["suspend"]

# Builtins that look at the frame which calls them: CPython runs the rest of that frame.
_FRAME_READERS = {id(f) for f in (locals, vars, dir, eval, exec, breakpoint, builtins.globals)}
_FRAME_READERS |= {id(f) for f in (sys._getframe, inspect.currentframe, pdb.set_trace)}


@dataclass
class _State:
    """One suspended frame: the instruction of the break, what is below its operands, and the names that live on."""

    frame: Frame
    index: int
    below: list[Any]
    operands: list[Any]
    instruction: Instruction | None
    names: list[str]
    cells: list[str]
    native: bool = False  # whether CPython runs the rest of the frame

    @property
    def handled(self) -> BaseException | None:
        """The exception whose handler the frame is in."""
        saved = [v for v in self.below + self.operands if type(v) is Saved]
        return saved[-1].now if saved else None


def suspend(vm: Interpreter, body: Residual, suspended: Suspended, family: Family, root: bool) -> str:
    """The expression with which the generated function ends; statements go to `body`."""
    states = [_outer(f) for f in suspended.frames[:-1]] + [_innermost(suspended.frames[-1], vm.is_native)]
    # Outermost first: contexts are entered again in this order.
    last = suspended.frames[-1]
    texts = [(_state_text(body, s), _texts(body, s.operands if s.frame is last else [])) for s in states]
    missing = [scope for scope in vm.open_scopes if id(scope) not in body.known]
    if missing:
        raise Unsupported("a context manager is open at the graph break, and the frames do not hold it")
    inner: str | None = None
    for state, (kept, operands) in reversed(list(zip(states, texts, strict=True))):
        step = body.emit.constant(_step(state, family), "step")
        if inner is not None:
            operands = [inner]
        if state.handled is not None:
            operands = [body.value(state.handled), *operands]
        arguments = f"[{_tuple(operands)}, {_tuple(kept)}]"
        if state is states[0]:
            made = body.made()
            if root and (made or body.lets_go):  # this frame lives until the call returns
                body.post += [f"given = {arguments}", *([f"{' = '.join(made)} = None"] if made else [])]
                arguments = "given"
            elif not root and (body.lets_go or any(_is_left(v, arguments) for v in vm.user.given)):
                return f"{body.emit.constant(Tail, 'Tail')}(({step}.start, ({arguments},)))"  # behind this frame's end
            return f"{step}.{'run' if root else 'start'}({arguments})"
        inner = f"rest{len(body.post)}"  # a name for each: Python nests no more than 200 parentheses
        body.post.append(f"{inner} = {body.emit.constant(functools.partial, 'partial')}({step}.run, {arguments})")
    raise AssertionError("no frame")


def _is_left(unread: Any, handed_on: str) -> bool:
    """Whether a piece was given what it does not hand on, and a weak reference to that may be asked whether it is still there."""
    name = f"{unread.source.name()}_"
    return weakref.getweakrefcount(unread.value) > 0 and not re.search(rf"\b{re.escape(name)}\b", handed_on)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _texts(body: Residual, values: list[Any]) -> list[str]:
    return [body.value(v.now if type(v) is Saved else v) for v in values if v is not NULL and type(v) is not Lasti]


def _state_text(body: Residual, state: _State) -> list[str]:
    fast = state.frame.fast
    cells = [body.cell(fast[name]) for name in state.cells]
    return cells + [body.value(fast[name]) for name in state.names] + _texts(body, state.below)


def _innermost(frame: Frame, native: bool) -> _State:
    index = frame.ip - 1
    ins = frame.program.instructions[index]
    stack = list(frame.before)
    count = operand_count(ins)
    if ins.op == "POP_TOP" and not native:  # the piece begins behind it, without the value
        return _with_names(frame, index, stack, [], None)
    if native or count is None or _reads_frame(ins, stack):
        return _with_names(frame, index, stack, [], None, native=True)
    below = len(stack) - count
    return _with_names(frame, index, stack[:below], stack[below:], ins)


def _outer(frame: Frame) -> _State:
    return _with_names(frame, frame.ip - 1, list(frame.stack), [object()], CALL_THUNK)


def _with_names(
    frame: Frame, index: int, below: list[Any], operands: list[Any], ins: Instruction | None, native: bool = False
) -> _State:
    live = live_names(frame.code, index)
    boxed = {*frame.code.co_cellvars, *frame.code.co_freevars}
    kept = [n for n, v in frame.fast.items() if v is not NULL and (n in live or is_noticed(v))]
    cells = [n for n in kept if n in boxed and isinstance(frame.fast[n], types.CellType)]
    names = [n for n in kept if n not in cells]
    return _State(frame, index, below, operands, ins, names, cells, native)


def _reads_frame(ins: Instruction, stack: list[Any]) -> bool:
    if ins.op != "CALL":
        return False
    head = stack[len(stack) - ins.arg[0] - 2 :][:2]
    # An object with a finalizer lives as long as the frame's own references to it.
    return any(id(v) in _FRAME_READERS or isinstance(v, type) and hasattr(v, "__del__") for v in head)


def _step(state: _State, family: Family) -> Step:
    frame, kinds = state.frame, kinds_of(state.below + state.operands)
    below = kinds[: len(state.below)]
    code = frame.code
    made: BreakInstruction | None = None
    if state.instruction is not None:
        operands, handling = kinds[len(state.below) :], state.handled is not None
        made = break_instruction(frame.program, state.index, code, frame.globals, operands, handling, state.instruction)
    if made is None and frame.program.instructions[state.index].op == "POP_TOP" and not state.native:
        return Step(family, None, [_piece(state, below, Outcome(state.index, (), None))])
    if made is None:
        if state.operands:
            raise Unsupported(
                f"the bytecode instruction {frame.program.instructions[state.index].op} cannot be run alone"
            )
        piece = Piece(
            code, frame.globals, state.index, tuple(state.cells), tuple(state.names), tuple(below), native=True
        )
        return Step(family, None, [(piece, list(range(_count(state, below))))])
    return Step(family, made, [_piece(state, below, outcome) for outcome in made.outcomes])


def _count(state: _State, kinds: list[str]) -> int:
    return len(state.cells) + len(state.names) + sum(kind in PASSED for kind in kinds)


def _without_dropped(state: _State, outcome: Outcome, below: list[str]) -> tuple[Outcome, list[str]]:
    """An outcome at which values are dropped first, such as the iterator of a loop that is left: dropped before the piece begins.

    A piece keeps its arguments alive while it runs, and a generator is closed when it is dropped.
    """
    ip, pushed = outcome.ip, list(outcome.pushed)
    kept = list(below if outcome.keep is None else below[: outcome.keep])
    instructions, handler = state.frame.program.instructions, state.frame.program.handler
    while handler(ip) == handler(outcome.ip):
        if instructions[ip].op == "JUMP" and instructions[ip].arg > ip:
            ip = instructions[ip].arg
        elif instructions[ip].op == "POP_TOP" and not pushed and kept and kept[-1] == "value":
            kept.pop()
            ip += 1
        elif instructions[ip].op == "DELETE_FAST" and instructions[ip].arg in state.names:
            ip += 1
        else:
            break
    return Outcome(ip, tuple(pushed), len(kept)), kept


def _piece(state: _State, below: list[str], outcome: Outcome) -> tuple[Piece, list[int]]:
    """The piece of one outcome, and which entries of the state it takes."""
    frame = state.frame
    outcome, below = _without_dropped(state, outcome, below)
    live = live_names(frame.code, outcome.ip)
    cells = [(i, n) for i, n in enumerate(state.cells) if n in live]
    noticed = [n for n in state.names if n in live or is_noticed(frame.fast[n])]
    names = [(len(state.cells) + i, n) for i, n in enumerate(state.names) if n in noticed]
    kept = below if outcome.keep is None else below[: outcome.keep]
    first = len(state.cells) + len(state.names)
    stacked = range(first, first + sum(kind in PASSED for kind in kept))
    piece = Piece(
        frame.code,
        frame.globals,
        outcome.ip,
        tuple(n for _, n in cells),
        tuple(n for _, n in names),
        (*kept, *outcome.pushed),
    )
    return piece, [*(i for i, _ in cells), *(i for i, _ in names), *stacked]
