"""Code objects that go on in the middle of a function: for frames and generators that a graph break has suspended.

The original instructions stay as they are, with their lines and exception table. In front of them, a prologue pushes the
value stack and jumps to where the frame stopped. All cells of the original become free variables, so that functions
which share them still do.
"""

from __future__ import annotations

import functools
import sys
import types

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label

from .instruction import Instruction, disassemble

__all__ = ["free_names", "generator_code", "resume_code"]

_PROLOGUE = frozenset({"COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "RESUME"})
_GENERATOR = 0x20
_V312 = sys.version_info >= (3, 12)
_V313 = sys.version_info >= (3, 13)


def free_names(code: types.CodeType) -> tuple[str, ...]:
    """The cells that a function made of `code` takes as its closure, in order."""
    return code.co_freevars


@functools.lru_cache(maxsize=2048)
def resume_code(code: types.CodeType, index: int, names: tuple[str, ...], layout: tuple[str, ...]) -> types.CodeType:
    """`code` from normal-form instruction `index` on.

    Args:
        names: the plain local variables that are bound there; they become parameters.
        layout: the kind of each entry of the value stack, bottom first. A "value" is a parameter; so is the exception of a
            "saved" entry, the mark that a handler leaves on the stack while its exception is handled. "null" is the empty
            slot of a call, "lasti" the position that CPython keeps for a re-raise.
    """
    return _assemble(code, index, names, layout, [], generator=False)


@functools.lru_cache(maxsize=2048)
def generator_code(
    code: types.CodeType, index: int, names: tuple[str, ...], layout: tuple[str, ...], started: bool
) -> types.CodeType:
    """A generator function whose generator stands where another was suspended.

    A started one stands at the YIELD_VALUE `index`, with `layout` below the yielded value: `send(None)` once, which
    yields None, brings it there. One that has not started begins at its first instruction.
    """
    if not started:
        first = next(i for i, ins in enumerate(disassemble(code).instructions) if ins.op == "RETURN_GENERATOR")
        return _assemble(code, first + 2, names, (), [], generator=True)
    return _assemble(code, index, names, layout, [Instr("LOAD_CONST", None)], generator=True)


def _assemble(
    code: types.CodeType,
    index: int,
    names: tuple[str, ...],
    layout: tuple[str, ...],
    extra: list[Instr],
    generator: bool,
) -> types.CodeType:
    program = disassemble(code)
    body = Bytecode.from_code(code, prune_caches=True, conserve_exception_block_stackdepth=True)
    line = program.instructions[min(index, len(program.instructions) - 1)].line
    between, ordinal = _rest_of_expansion(program.instructions, program.origins, index, code)
    target = Label()
    made = Bytecode()
    for name in ("name", "qualname", "filename", "first_lineno", "docstring"):
        setattr(made, name, getattr(body, name))
    made.flags = body.flags & ~0x0C  # no *args, no **kwargs
    made.freevars = sorted({*code.co_cellvars, *code.co_freevars})
    stacked = [f"$stack_{i}" for i, kind in enumerate(layout) if kind in ("value", "saved")]
    made.argnames = [*names, *stacked]
    made.argcount = len(made.argnames)
    made += _prologue(made, layout, generator)
    made += extra + between
    made.append(Instr("JUMP_FORWARD", target))
    for ins in made:
        if isinstance(ins, Instr):
            ins.lineno = line
    seen, started = -1, False
    for item in body:
        if not isinstance(item, Instr):
            made.append(item)
            continue
        seen += 1
        if seen == ordinal:
            made.append(target)
        if not started and (item.name in _PROLOGUE or item.name == "POP_TOP"):
            started = item.name == "RESUME"
            continue
        if isinstance(item.arg, CellVar):
            item.arg = FreeVar(item.arg.name)
        made.append(item)
    return made.to_code(stacksize=code.co_stacksize + len(layout) + 8, compute_exception_stack_depths=False)


def _prologue(made: Bytecode, layout: tuple[str, ...], generator: bool) -> list[Instr]:
    out: list[Instr] = []
    if made.freevars:
        out.append(Instr("COPY_FREE_VARS", len(made.freevars)))
    if generator:
        out += [Instr("RETURN_GENERATOR"), Instr("POP_TOP")]
    out.append(Instr("RESUME", 0))
    for i, kind in enumerate(layout):
        if kind == "null":
            out.append(Instr("PUSH_NULL"))
        elif kind == "lasti":
            out.append(Instr("LOAD_CONST", 0))
        else:
            # Gone from the locals at once: the user's program may look at them.
            out += [Instr("LOAD_FAST", f"$stack_{i}"), Instr("DELETE_FAST", f"$stack_{i}")]
            if kind == "saved":  # handle the exception again, and leave what was handled before
                out += [Instr("PUSH_EXC_INFO"), Instr("POP_TOP")]
    return out


def _rest_of_expansion(
    instructions: tuple[Instruction, ...], origins: tuple[tuple[int, int], ...], index: int, code: types.CodeType
) -> tuple[list[Instr], int]:
    """Real instructions for what is left of a real instruction whose first parts have run, and where to jump then."""
    if index >= len(instructions):
        raise ValueError(f"{code.co_qualname} has no instruction {index}")
    ordinal, part = origins[index]
    if part == 0:
        ins = instructions[index]
        if _V313 and ins.op == "CALL" and ins.arg[1]:
            return [Instr("LOAD_CONST", ins.arg[1])], ordinal
        if _V313 and ins.op in ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"):
            return [Instr("TO_BOOL")], ordinal
        return [], ordinal
    rest = []
    while index < len(instructions) and origins[index][0] == ordinal:
        rest.append(instructions[index])
        index += 1
    if rest[-1].op == "POP_TOP" and (rest[0].op.startswith("POP_JUMP") or len(rest) == 1):  # JUMP_IF_..._OR_POP
        return [Instr("POP_TOP")], ordinal if len(rest) > 1 else ordinal + 1
    return [i for ins in _joined(rest) for i in _real(ins)], ordinal + 1


def _joined(rest: list[Instruction]) -> list[Instruction]:
    """FORMAT_VALUE of old versions converts and formats in one."""
    if rest[0].op == "CONVERT_VALUE" and len(rest) > 2:  # convert, swap, format
        return [rest[0], rest[1], rest[2]]
    return rest


def _real(ins: Instruction) -> list[Instr]:
    op, arg = ins.op, ins.arg
    if op == "LOAD_GLOBAL":
        return [Instr("LOAD_GLOBAL", (False, arg))]
    if op == "BINARY_SUBSCR" or op == "STORE_SUBSCR" or op == "RETURN_VALUE" or op == "PUSH_NULL" or op == "POP_TOP":
        return [Instr(op)]
    if op in ("LOAD_FAST", "STORE_FAST", "LOAD_CONST", "SWAP", "COPY"):
        return [Instr(op, arg)]
    if op == "CONVERT_VALUE":
        # str, repr and ascii give a str, which formatting without a spec leaves alone.
        return [Instr("CONVERT_VALUE", arg) if _V313 else Instr("FORMAT_VALUE", {"str": 1, "repr": 2, "ascii": 3}[arg])]
    if op == "FORMAT_SIMPLE":
        return [Instr(op) if _V313 else Instr("FORMAT_VALUE", 0)]
    if op == "FORMAT_WITH_SPEC":
        return [Instr(op) if _V313 else Instr("FORMAT_VALUE", 4)]
    raise ValueError(f"a function cannot be resumed inside {op}")


