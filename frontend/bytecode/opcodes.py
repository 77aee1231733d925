"""The opcodes of the normal form: which function interprets each, which are refused, and why."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from ..breaks.break_instruction import operand_count
from ..breaks.breaks import Nowhere, Restart, suspendable
from ..errors import Unsupported
from ..state import Interpreter
from . import control_opcodes, coroutine, data_opcodes, name_opcodes
from .frame import Frame
from .instruction import Instruction, cell_twins, disassemble, per_code

__all__ = ["ALL", "HANDLERS", "NOT_CAPTURED", "steps_of"]

HANDLERS: dict[str, Callable[[Interpreter, Frame, Any], str | None]] = {
    name: handler
    for module in (data_opcodes, control_opcodes, name_opcodes, coroutine)
    for name, handler in vars(module).items()
    if name.isupper() and isinstance(handler, types.FunctionType)
}

# Opcodes that capture refuses, and why.
NOT_CAPTURED = {
    "IMPORT_STAR": "`import *` is not captured",
    "PRINT_EXPR": "interactive expressions are not captured",
    "CALL_INTRINSIC_2": "type parameters are not captured",
}


def _unsupported(vm: Interpreter, frame: Frame, op: str) -> None:
    """Refuse an opcode."""
    raise Unsupported(NOT_CAPTURED.get(op, f"the bytecode instruction {op} is not captured"))


def _named_twice(vm: Interpreter, frame: Frame, name: str) -> None:
    """Refuse code whose own variable has the name of one around it, as a frame here has one variable a name."""
    error = Unsupported(f"`{name}` is a variable of a comprehension's and of the code around it")
    depth = suspendable(vm.frames[:-1])
    error.split = Restart(vm.frames[depth - 1].begun) if depth else Nowhere()
    raise error


@per_code
def steps_of(code: types.CodeType) -> tuple[tuple[Callable[..., Any], Any, int], ...]:
    """For each instruction: its handler, the argument, and how many operands from the top it looks at."""
    program = disassemble(code)
    if (twice := cell_twins(code)) and code.co_flags & inspect.CO_OPTIMIZED:
        return ((_named_twice, min(twice), 0),) * len(program.instructions)
    steps = []
    for at, ins in enumerate(program.instructions):
        handler = HANDLERS.get(ins.op)
        touched = 0 if ins.op in _MOVES else _looked_at(ins)
        if ins.op == "LIST_APPEND":
            touched = 1  # the list itself may stay unread
        elif ins.op in ("BUILD_TUPLE", "BUILD_LIST") and program.instructions[at + 1].op == "RETURN_VALUE":
            touched = 0  # arguments that are only returned; frames below the first have none
        steps.append((handler, ins.arg, touched) if handler is not None else (_unsupported, ins.op, ALL))
    return tuple(steps)


def _looked_at(ins: Instruction) -> int:
    """How many operands from the top an instruction looks at: `ALL` where that is not known."""
    if ins.op in ("BUILD_TUPLE", "BUILD_LIST"):
        return int(ins.arg)
    if ins.op == "BUILD_CONST_KEY_MAP":
        return int(ins.arg) + 1
    if ins.op == "MAKE_FUNCTION":  # the code, and a value for each bit: defaults, annotations, closure
        return 1 + int(ins.arg or 0).bit_count()
    count = operand_count(ins)
    return ALL if count is None else count


ALL = 1 << 30
# Instructions that move values without looking at them: arguments that were not read yet stay so.
_MOVES = frozenset(
    """
    LOAD_CONST LOAD_FAST STORE_FAST DELETE_FAST LOAD_FAST_AND_CLEAR LOAD_GLOBAL LOAD_DEREF PUSH_NULL COPY SWAP POP_TOP
    JUMP RETURN_VALUE POP_EXCEPT LOAD_ASSERTION_ERROR NOP END_SEND
    """.split()  # noqa: SIM905
)
