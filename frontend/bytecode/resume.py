"""Code objects that go on in the middle of a function: for frames and generators that a graph break has suspended.

The original instructions stay as they are, with their lines and exception table. In front of them, a prologue pushes the
value stack and jumps to where the frame stopped. All cells of the original become free variables, so that functions
which share them still do.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from bytecode import Bytecode, CellVar, ConcreteBytecode, ConcreteInstr, FreeVar, Label
from bytecode import Instr as TypedInstr

from .instruction import Instruction, Program, disassemble, per_code
from .version import V312, V313

__all__ = ["free_names", "generator_code", "resume_code"]

Instr: Any = TypedInstr  # the form of its argument depends on its name and on the version

_PROLOGUE = frozenset({"COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "POP_TOP", "RESUME"})
_GENERATOR, _OTHER_COROUTINES, _STARRED = 0x20, 0x80 | 0x200, 0x0C
_KINDS = frozenset({"value", "saved", "null", "lasti"})
# Where an instruction sees its operand as a bool, real ones of this version need it to be one.
_TRUTH = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "UNARY_NOT"}) if V313 else frozenset()
# A variable that the original's compiler knew to be bound may not be: it is looked at first.
_LOAD = "LOAD_FAST_CHECK" if V312 else "LOAD_FAST"
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": (_LOAD, _LOAD),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", _LOAD),
}
_LIST = "$given"  # the parameter of a function made
_SLOTS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST"})


def free_names(code: types.CodeType) -> tuple[str, ...]:
    """The cells that a function made of `code` takes as its closure, in order."""
    return code.co_freevars


def resume_code(code: types.CodeType, index: int, names: tuple[str, ...], layout: tuple[str, ...]) -> types.CodeType:
    """`code` from normal-form instruction `index` on: of a function of one list, which it empties.

    The list holds the values of `names`, then those of `layout`. What CPython is given as arguments it may keep alive until the function
    returns (it does while torch.compile looks at calls); what was taken from a list lives as long as the frame wants.

    Args:
        names: the plain local variables that are bound there. A cell given as one is filled.
        layout: the kind of each entry of the value stack, bottom first. A "value" is in the list; so is the exception of a
            "saved" entry, the mark that a handler leaves on the stack while its exception is handled. "null" is the empty
            slot of a call, "lasti" the position that CPython keeps for a re-raise.

    Raises:
        ValueError: the code is a generator's or coroutine's, or no frame of it can stand at that instruction.
    """
    if code.co_flags & (_GENERATOR | _OTHER_COROUTINES):
        raise ValueError(f"{code.co_qualname} is a generator or coroutine; it cannot be resumed as a function")
    return _cached(code, index, names, layout, False)


def generator_code(
    code: types.CodeType, index: int, names: tuple[str, ...], layout: tuple[str, ...], started: bool
) -> types.CodeType:
    """A generator function whose generator stands where another was suspended.

    A started one stands at the YIELD_VALUE `index`, with `layout` below the yielded value: `send(None)` once, which
    yields None, brings it there. One that has not started begins at its first instruction; it has no stack.

    Raises:
        ValueError: the code is not a generator's, or `index` is not a YIELD_VALUE.
    """
    if not code.co_flags & _GENERATOR:
        raise ValueError(f"{code.co_qualname} is not a generator")
    ops = [ins.op for ins in disassemble(code).instructions]
    if not started:
        return _cached(code, ops.index("RETURN_GENERATOR") + 2, names, (), False)
    if ops[index] != "YIELD_VALUE":
        raise ValueError(f"{code.co_qualname} cannot be suspended at its instruction {index}, {ops[index]}")
    return _cached(code, index, names, layout, True)


@per_code
def _cached(
    code: types.CodeType,
    index: int,
    names: tuple[str, ...],
    layout: tuple[str, ...],
    suspended: bool,
) -> types.CodeType:
    program = disassemble(code)
    if not 0 <= index < len(program.instructions):
        raise ValueError(f"{code.co_qualname} has no instruction {index}")
    if _stands_between(program, index):
        raise ValueError(f"{code.co_qualname} cannot be suspended at its instruction {index}")
    if not _KINDS.issuperset(layout):
        raise ValueError(f"unknown kinds of stack entries: {sorted({*layout} - _KINDS)}")
    made, original = Bytecode(), Bytecode.from_code(code, prune_caches=True, conserve_exception_block_stackdepth=True)
    for name in ("name", "qualname", "filename", "first_lineno", "docstring"):
        setattr(made, name, getattr(original, name))
    made.flags = original.flags & ~_STARRED
    made.freevars = sorted({*code.co_cellvars, *code.co_freevars})
    boxed = frozenset(made.freevars)
    stacked = [f"$stack_{i}" for i, kind in enumerate(layout) if kind in ("value", "saved")]
    given = [*(f"${name}" if name in boxed else name for name in names), *stacked]
    generator = bool(code.co_flags & _GENERATOR)
    made.argnames = given if generator else [_LIST]
    made.argcount = len(made.argnames)
    target = Label()
    at = program.instructions[index]
    prologue = _prologue(made.freevars, names, layout, None if generator else given)
    if suspended:
        prologue.append(Instr("LOAD_CONST", None))  # yielded at once
    if V313 and at.op == "CALL" and at.arg[1]:
        prologue.append(Instr("LOAD_CONST", at.arg[1]))  # the keyword names, which the normal form has in the call
    prologue.append(Instr("JUMP_FORWARD", target))
    # A generator that has not started stands where it is defined.
    line = code.co_firstlineno if generator and not suspended else at.line
    for ins in prologue:
        ins.lineno = line
    made += prologue
    made += _body(original, program, index, target, _Names(code, boxed, frozenset(names)))
    concrete = made.to_concrete_bytecode(compute_exception_stack_depths=False)
    _share_slots(concrete, boxed)
    # What the prologue pushes is the original's stack, with at most one more entry above it, after the list's values or a slice of it.
    depth = max(code.co_stacksize + 2, len(given), 3)
    return concrete.to_code(stacksize=depth, compute_exception_stack_depths=False)


def _stands_between(program: Program, index: int) -> bool:
    """Whether the instruction belongs with the one before: a cell is half made, or a handler half left."""
    ops = [ins.op for ins in program.instructions[max(index - 2, 0) : index + 1]]
    return ops[-1] == "MAKE_CELL" or ops[-2:] == ["COPY", "POP_EXCEPT"] or ops == ["COPY", "POP_EXCEPT", "RERAISE"]


def _prologue(
    cells: list[str], names: tuple[str, ...], layout: tuple[str, ...], listed: list[str] | None
) -> list[TypedInstr]:
    """What rebuilds the frame from variables: those `listed` are taken from the list that a function is given, a generator has them."""
    out: list[TypedInstr] = []
    if cells:
        out.append(Instr("COPY_FREE_VARS", len(cells)))
    if listed is None:
        out += [Instr("RETURN_GENERATOR"), Instr("POP_TOP")]
    out.append(Instr("RESUME", 0))
    if listed is not None:
        out += [Instr("LOAD_FAST", _LIST), Instr("UNPACK_SEQUENCE", len(listed))]
        out += [Instr("STORE_FAST", name) for name in listed]
        none = Instr("LOAD_CONST", None)
        out += [*_take(_LIST), none, none.copy(), Instr("BUILD_SLICE", 2), Instr("DELETE_SUBSCR")]
    for name in names:
        if name in cells:
            out += [*_take(f"${name}"), Instr("STORE_DEREF", FreeVar(name))]
    for i, kind in enumerate(layout):
        if kind == "null":
            out.append(Instr("PUSH_NULL"))
        elif kind == "lasti":
            out.append(Instr("LOAD_CONST", 0))
        else:
            out += _take(f"$stack_{i}")
            if kind == "saved":  # handle the exception again, and leave what was handled before
                out += [Instr("PUSH_EXC_INFO"), Instr("POP_TOP")]
    return out


def _take(name: str) -> list[TypedInstr]:
    """Push a parameter that is none of the user's variables, which may be looked at: it is gone from the locals at once."""
    return [Instr("LOAD_FAST", name), Instr("DELETE_FAST", name)]


class _Names:
    """How the variables of the original are reached in the code made: its cells are free variables there."""

    def __init__(self, code: types.CodeType, boxed: frozenset[str], bound: frozenset[str]) -> None:
        self.boxed, self.bound = boxed, bound
        self.first = code.co_varnames[0] if code.co_argcount and "__class__" in boxed else None

    def instr(self, name: str, arg: Any) -> Instr:
        """An instruction over one variable, at no line yet."""
        arg = getattr(arg, "name", arg)
        if arg not in self.boxed:
            return Instr(_LOAD if name == "LOAD_FAST" and arg not in self.bound else name, arg)
        if name not in _SLOTS or V313:
            return Instr("LOAD_FAST" if name == _LOAD else name, FreeVar(arg))
        return Instr(name, arg)  # brought to the cell's slot by `_share_slots`

    def load_first(self) -> Instr:
        """The value of the function's first parameter."""
        assert self.first is not None
        if self.first in self.boxed:
            return Instr("LOAD_DEREF", FreeVar(self.first))
        return self.instr("LOAD_FAST", self.first)


def _body(original: Any, program: Program, index: int, target: Label, names: _Names) -> Iterator[Any]:
    """The original after its prologue, with `target` before the part of an instruction that `index` is."""
    ordinal, part = program.origins[index]
    seen, started, last = -1, False, ""
    for item in original:
        if not isinstance(item, Instr):
            yield item
            continue
        seen += 1
        if not started and item.name in _PROLOGUE:
            started = item.name == "RESUME"
            continue
        if seen == ordinal and part:
            group = [i for i, origin in zip(program.instructions, program.origins, strict=True) if origin[0] == ordinal]
            parts = [_real(ins, item) for ins in group]
            if parts[part].name == "UNARY_NOT":  # of `not not`, which the real instruction does by giving a bool
                parts = [item, *[Instr("TO_BOOL"), Instr("UNARY_NOT")] * 2]
                part = 1 + 2 * (part - len(group) + 2)
        elif item.name in _PAIRS:
            parts = [Instr(op, arg) for op, arg in zip(_PAIRS[item.name], item.arg, strict=True)]
        else:
            parts = [item]
            if seen == ordinal and item.name.replace("_FORWARD", "").replace("_BACKWARD", "") in _TRUTH:
                parts = [Instr("TO_BOOL"), item]
        for i, made in enumerate(_with_super(parts, last, names)):
            if seen == ordinal and i == part:
                yield target
            if isinstance(made.arg, CellVar | FreeVar) or made.name in _SLOTS:
                made = names.instr(made.name, made.arg)
            made.location = item.location
            yield made
        if item.name == "LOAD_GLOBAL" and item.arg[1] == "super":
            last = "super"
        elif item.name == "PRECALL" and last == "super" and item.arg == 0:
            last = "PRECALL"
        elif item.name != "PUSH_NULL" or last != "super":  # a call in parts: the name, then the empty slot
            last = ""


def _with_super(parts: list[TypedInstr], last: str, names: _Names) -> list[TypedInstr]:
    """`super()` looks for its class and object in the frame that calls it; here they are given to it."""
    ins: Any = parts[0]
    if names.first is None:
        return parts
    if ins.name == "LOAD_SUPER_ATTR":
        ins.arg = (ins.arg[0], True, ins.arg[2])
    if last == "PRECALL" and ins.name == "CALL":
        return [Instr("CALL", 2)]
    if last == "super" and ins.name in ("PRECALL", "CALL") and ins.arg == 0:
        return [Instr("LOAD_DEREF", FreeVar("__class__")), names.load_first(), Instr(ins.name, 2)]
    return parts


def _real(ins: Instruction, whole: Any) -> Instr:
    """One part of `whole`, as an instruction of its own."""
    op, arg = ins.op, ins.arg
    if op == "LOAD_GLOBAL":
        return Instr(op, (False, arg))
    if op == "LOAD_SUPER_ATTR":
        return Instr(op, (False, *whole.arg[1:]))
    if op == "UNARY":
        return Instr("UNARY_NOT")
    if op == "COMPARE_OP":
        return Instr(op, whole.arg)
    if op in ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"):
        return Instr(op.replace("JUMP", "JUMP_FORWARD"), whole.arg)  # of 3.11, where these jump forward only
    if op == "CONVERT_VALUE":  # str, repr and ascii give a str, which formatting without a spec leaves alone
        return Instr("FORMAT_VALUE", {"str": 1, "repr": 2, "ascii": 3}[arg])
    if op == "FORMAT_SIMPLE":
        return Instr("FORMAT_VALUE", 0)
    if op == "FORMAT_WITH_SPEC":
        return Instr("FORMAT_VALUE", 4)
    return Instr(op) if arg is None and op != "LOAD_CONST" else Instr(op, arg)


def _share_slots(concrete: ConcreteBytecode, boxed: frozenset[str]) -> None:
    """Instructions over the slot of a cell mean the free variable: comprehensions of 3.12 put cells aside with them."""
    first_free = len(concrete.varnames)
    for ins in concrete:
        if isinstance(ins, ConcreteInstr) and ins.name in _SLOTS and concrete.varnames[ins.arg :][:1]:
            name = concrete.varnames[ins.arg]
            if name in boxed:
                slot = first_free + concrete.freevars.index(name)
                if slot > 255:
                    raise ValueError(f"too many variables to resume at: {slot}")
                ins.arg = slot
