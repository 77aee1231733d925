"""CPython bytecode of 3.11, 3.12 and 3.13 brought to one normal form; nothing else knows the version.

The normal form has these conventions:

- Jumps carry the *index* of their target instruction; direction and interrupt checks are gone.
- A call is `CALL (n_args, keyword_names)` over `callable, NULL, args...` or `NULL, callable, args...` or
  `method, self, args...`. `NULL` marks the empty slot, wherever the version puts it.
- `LOAD_METHOD` pushes the attribute and then `NULL`. `LOAD_CLOSURE` is `LOAD_FAST` of the cell's slot.
- Superinstructions, slices, f-string flags and constants that are returned are spelled out.
- `FOR_ITER` pops its iterator on exhaustion; `SEND` leaves only the result.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .version import V312, V313

__all__ = ["ExceptionEntry", "Instruction", "Program", "cell_twins", "disassemble", "per_code"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the normal form: `op` is its name, `arg` its resolved argument, `line` its source line."""

    op: str
    arg: Any = None
    line: int = 0

    def __str__(self) -> str:
        return self.op if self.arg is None else f"{self.op} {self.arg!r}"


@dataclass(frozen=True, slots=True)
class ExceptionEntry:
    """Instructions `start <= i < end` unwind to `target` with the stack cut to `depth`."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A code object in normal form.

    `origins` gives, for each instruction, the real one it comes from (counted without caches and argument extensions;
    the first of a call's group) and which part of it it is.
    """

    instructions: tuple[Instruction, ...]
    exceptions: tuple[ExceptionEntry, ...]
    origins: tuple[tuple[int, int], ...]

    def handler(self, index: int) -> ExceptionEntry | None:
        """The exception entry that covers instruction `index`, if any."""
        for entry in self.exceptions:
            if entry.start <= index < entry.end:
                return entry
        return None


_DROPPED = {"CACHE", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME", "COPY_FREE_VARS", "TO_BOOL", "EXIT_INIT_CHECK"}
_UNARY = {"UNARY_POSITIVE": "+", "UNARY_NEGATIVE": "-", "UNARY_NOT": "not", "UNARY_INVERT": "~"}
_RENAMED = {
    "LOAD_CLOSURE": "LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
}
_INTRINSICS_1 = {
    1: "PRINT_EXPR",
    2: "IMPORT_STAR",
    3: "STOPITERATION_ERROR",
    4: "ASYNC_GEN_WRAP",
    5: "UNARY_POSITIVE",
    6: "LIST_TO_TUPLE",
}
_CONVERSIONS = {0: None, 1: "str", 2: "repr", 3: "ascii"}


_MOST_CODE = 8192


def per_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remember the results of `function(code, ...)` by the code object itself: those of two files compare equal where their text does."""
    known: dict[tuple[Any, ...], tuple[CodeType, Any]] = {}

    @functools.wraps(function)
    def remembered(code: CodeType, *rest: Any) -> Any:
        key = (id(code), *rest)
        found = known.get(key)
        if found is not None and found[0] is code:
            return found[1]
        if len(known) >= _MOST_CODE:
            known.clear()
        made = function(code, *rest)
        known[key] = (code, made)
        return made

    return remembered


def raw_instructions(code: CodeType) -> list[dis.Instruction]:
    """What CPython runs, without caches and what extends arguments."""
    return [ins for ins in dis.get_instructions(code) if ins.opname not in ("CACHE", "EXTENDED_ARG")]


@per_code
def disassemble(code: CodeType) -> Program:
    """Bring one code object to normal form."""
    raw = raw_instructions(code)
    out: list[Instruction] = []
    origins: list[tuple[int, int]] = []
    group: int | None = None
    index_of: dict[int, int] = {}
    jumps: list[int] = []
    line = code.co_firstlineno
    keyword_names: tuple[str, ...] = ()
    renamed, cells = twins(code), cell_twins(code)
    first_free = len({*code.co_varnames, *code.co_cellvars})
    for ordinal, ins in enumerate(raw):
        line = _line_of(ins) or line
        index_of[ins.offset] = len(out)
        if ins.opname == "KW_NAMES":
            keyword_names = code.co_consts[ins.arg or 0]
            group = ordinal if group is None else group
            continue
        if V313 and _makes_bool(ins) and not _wants_bool(raw, ordinal + 1):
            # `not not x`: the optimizer leaves the conversion alone.
            parts = [*([] if ins.opname == "TO_BOOL" else _expand(ins)), ("UNARY", "not"), ("UNARY", "not")]
            origins += [(ordinal, part) for part in range(len(parts))]
            out += [Instruction(op, arg, line) for op, arg in parts]
            continue
        if ins.opname in _DROPPED:
            if ins.opname == "PRECALL":
                group = ordinal if group is None else group
            continue
        if ins.opname == "CALL":
            out.append(Instruction("CALL", (ins.arg, keyword_names), line))
            origins.append((ordinal if group is None else group, 0))
            keyword_names, group = (), None
            continue
        if ins.opname == "CALL_KW":
            names = out.pop().arg
            out.append(Instruction("CALL", (ins.arg, names), line))
            origins[-1] = (ordinal, 0)
            continue
        for part, (op, arg) in enumerate(_expand(ins)):
            origins.append((ordinal, part))
            if op.startswith(("JUMP", "POP_JUMP", "FOR_ITER", "SEND", "END_ASYNC_FOR")) and arg is not None:
                jumps.append(len(out))
            own = renamed and op in _FAST and arg in renamed
            if cells and arg in cells and ins.opcode in _BY_SLOT:
                own = (ins.arg or 0) < first_free
            out.append(Instruction(op, local_twin(arg) if own else arg, line))
    end = len(out)
    starts = sorted(index_of)

    def index_at(offset: int) -> int:
        if offset in index_of:
            return index_of[offset]
        following = [s for s in starts if s >= offset]
        return index_of[following[0]] if following else end

    for at in jumps:
        ins_n = out[at]
        out[at] = Instruction(ins_n.op, _target(out, ins_n.op, index_at(ins_n.arg)), ins_n.line)
    table = tuple(
        ExceptionEntry(index_at(start), index_at(stop), index_at(target), depth, lasti)
        for start, stop, target, depth, lasti in _exception_table(code.co_exceptiontable)
    )
    return Program(tuple(out), tuple(e for e in table if e.start < e.end), tuple(origins))


@per_code
def lines_of(code: CodeType) -> list[int | None]:
    """The line of each instruction in normal form; those that the compiler has added have none."""
    lines = [None if ins.positions is None else ins.positions.lineno for ins in raw_instructions(code)]
    return [lines[ordinal] for ordinal, _ in disassemble(code).origins]


_FAST = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST"})


def twins(code: CodeType) -> frozenset[str]:
    """Names that are a variable of the code's own and, at the same time, a variable of the closure.

    Python 3.12 runs comprehensions in the frame around them: in a class body, or where a comprehension's variable has a
    name that the function reads from its closure, both are in one frame. A frame here has one variable a name: the code's
    own goes by `local_twin` of it.
    """
    return frozenset({*code.co_varnames} & {*code.co_freevars}) if V312 else frozenset()


def local_twin(name: str) -> str:
    return f"{name} of a comprehension"


def cell_twins(code: CodeType) -> frozenset[str]:
    """Names of variables for inner functions that are variables of the code around it, too, as `__class__` in a class body may be.

    In a class body the code's own goes by `local_twin`.
    """
    return frozenset({*code.co_cellvars} & {*code.co_freevars})


_BY_SLOT = frozenset((*dis.hasfree, *dis.haslocal))


def _makes_bool(ins: dis.Instruction) -> bool:
    return ins.opname == "TO_BOOL" or (ins.opname == "COMPARE_OP" and bool((ins.arg or 0) & 16))


def _wants_bool(raw: list[dis.Instruction], at: int) -> bool:
    """Whether the instruction takes a truth value by itself in the normal form."""
    name = raw[at].opname if at < len(raw) else ""
    return name in ("TO_BOOL", "UNARY_NOT", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")


def _line_of(ins: dis.Instruction) -> int | None:
    positions = ins.positions
    return positions.lineno if positions is not None else None


def _target(out: list[Instruction], op: str, index: int) -> int:
    """FOR_ITER and SEND of 3.12 and later jump to a clean-up that the interpreter itself skips; so do we."""
    if op == "FOR_ITER" and index < len(out) and out[index].op == "END_FOR":
        index += 1
        if V313 and index < len(out) and out[index].op == "POP_TOP":
            index += 1
    if op == "SEND" and index < len(out) and out[index].op == "END_SEND":
        index += 1
    return index


def _expand(ins: dis.Instruction) -> list[tuple[str, Any]]:
    """The normal form of one instruction, as (op, arg) pairs."""
    name, arg, value = ins.opname, ins.arg or 0, ins.argval
    if name in _RENAMED:
        return [(_RENAMED[name], value)]
    if name in _UNARY:
        return [("UNARY", _UNARY[name])]
    expand = _EXPANSIONS.get(name)
    if expand is not None:
        return expand(arg, value, ins.argrepr)
    if name.startswith(("POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_")):
        return [("POP_JUMP_IF_" + name.split("_IF_")[1], value)]
    return [(name, value)]


def _load_global(arg: int, value: Any, _: str) -> list[tuple[str, Any]]:
    if not arg & 1:
        return [("LOAD_GLOBAL", value)]
    load, null = ("LOAD_GLOBAL", value), ("PUSH_NULL", None)
    return [load, null] if V313 else [null, load]


def _load_attr(arg: int, value: Any, _: str) -> list[tuple[str, Any]]:
    return [("LOAD_METHOD" if V312 and arg & 1 else "LOAD_ATTR", value)]


def _load_super(arg: int, value: Any, _: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = [("LOAD_SUPER_ATTR", (value, bool(arg & 2)))]
    if not arg & 1:
        return pairs
    return [*pairs, ("PUSH_NULL", None)] if V313 else [*pairs, ("PUSH_NULL", None), ("SWAP", 2)]


def _format_value(arg: int, _: Any, __: str) -> list[tuple[str, Any]]:
    conversion, has_spec = _CONVERSIONS[arg & 3], bool(arg & 4)
    out: list[tuple[str, Any]] = []
    if conversion:
        convert = ("CONVERT_VALUE", conversion)
        out += [("SWAP", 2), convert, ("SWAP", 2)] if has_spec else [convert]
    return out + [("FORMAT_WITH_SPEC" if has_spec else "FORMAT_SIMPLE", None)]


def _intrinsic_1(arg: int, _: Any, __: str) -> list[tuple[str, Any]]:
    name = _INTRINSICS_1.get(arg, f"CALL_INTRINSIC_1_{arg}")
    return [("UNARY", "+")] if name == "UNARY_POSITIVE" else [(name, None)]


_EXPANSIONS: dict[str, Any] = {
    "LOAD_GLOBAL": _load_global,
    "LOAD_ATTR": _load_attr,
    "LOAD_CLASSDEREF": lambda _, value, __: [("LOAD_LOCALS", None), ("LOAD_FROM_DICT_OR_DEREF", value)],
    "LOAD_SUPER_ATTR": _load_super,
    "FORMAT_VALUE": _format_value,
    "CONVERT_VALUE": lambda arg, _, __: [("CONVERT_VALUE", _CONVERSIONS[arg])],
    "CALL_INTRINSIC_1": _intrinsic_1,
    "CALL_INTRINSIC_2": lambda arg, _, __: [("PREP_RERAISE_STAR" if arg == 1 else "CALL_INTRINSIC_2", None)],
    "CALL_FUNCTION_EX": lambda arg, _, __: [("CALL_FUNCTION_EX", bool(arg & 1))],
    "BINARY_OP": lambda _, __, text: [("BINARY_OP", text)],
    "COMPARE_OP": lambda _, value, __: [("COMPARE_OP", str(value).removeprefix("bool(").removesuffix(")"))],
    "IS_OP": lambda arg, _, __: [("IS_OP", bool(arg))],
    "CONTAINS_OP": lambda arg, _, __: [("CONTAINS_OP", bool(arg))],
    "RETURN_CONST": lambda _, value, __: [("LOAD_CONST", value), ("RETURN_VALUE", None)],
    "BINARY_SLICE": lambda _, __, ___: [("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)],
    "STORE_SLICE": lambda _, __, ___: [("BUILD_SLICE", 2), ("STORE_SUBSCR", None)],
    "JUMP_IF_FALSE_OR_POP": lambda _, value, __: [("COPY", 1), ("POP_JUMP_IF_FALSE", value), ("POP_TOP", None)],
    "JUMP_IF_TRUE_OR_POP": lambda _, value, __: [("COPY", 1), ("POP_JUMP_IF_TRUE", value), ("POP_TOP", None)],
    "LOAD_FAST_LOAD_FAST": lambda _, value, __: [("LOAD_FAST", n) for n in value],
    "STORE_FAST_STORE_FAST": lambda _, value, __: [("STORE_FAST", n) for n in value],
    "STORE_FAST_LOAD_FAST": lambda _, value, __: [("STORE_FAST", value[0]), ("LOAD_FAST", value[1])],
    "SET_FUNCTION_ATTRIBUTE": lambda arg, _, __: [("SET_FUNCTION_ATTRIBUTE", arg)],
    "MAKE_FUNCTION": lambda arg, _, __: [("MAKE_FUNCTION", arg)],
    "RAISE_VARARGS": lambda arg, _, __: [("RAISE_VARARGS", arg)],
}


def _exception_table(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """Decode `co_exceptiontable`: (start, end, target) in bytes, stack depth, whether the offset is pushed."""
    data = iter(table)
    out = []
    for first in data:
        start = _varint(first, data) * 2
        length = _varint(next(data), data) * 2
        target = _varint(next(data), data) * 2
        depth_lasti = _varint(next(data), data)
        out.append((start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    return out


def _varint(first: int, data: Any) -> int:
    value = first & 63
    while first & 64:
        first = next(data)
        value = (value << 6) | (first & 63)
    return value
