"""The one instruction at which a frame is split, as a small Python function that CPython runs at the user's line.

`break_instruction` turns an instruction of the normal form into `function(*operands) -> (outcome, pushed)`. The outcomes of an
instruction say where its frame goes on: `next` with what it pushes, `jump` for the other way of a branch or the end of
a loop, `raise` with the exception when the frame has a handler for it. The function has the name, file and line of the
user's, so that tracebacks, warnings and debuggers show the user's own line.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..bytecode.instruction import Instruction, Program
from ..bytecode.version import METHOD_SLOT_FIRST

__all__ = ["CALL_THUNK", "Outcome", "BreakInstruction", "operand_count", "break_instruction"]


@dataclass(frozen=True)
class Outcome:
    """Where a frame goes on: instruction `ip`, with the kinds of the values that were pushed on top of `keep` entries.

    `keep` is None when all entries below the operands stay.
    """

    ip: int
    pushed: tuple[str, ...]
    keep: int | None = None


@dataclass(frozen=True)
class BreakInstruction:
    """How to run one instruction: `function(*operands)` gives (index into `outcomes`, values pushed)."""

    function: Callable[..., tuple[int, tuple[Any, ...]]]
    operands: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class _Form:
    """How many operands, which text runs it, what it pushes. `{0}` is the lowest operand, `{arg}` the argument."""

    operands: int
    text: str
    pushed: tuple[str, ...] = ("value",)
    branch: bool = False  # the text is a condition: true jumps


CALL_THUNK = Instruction("CALL", (0, ()))

_FORMS: dict[str, _Form] = {
    "UNARY": _Form(1, "{arg} {0}"),
    "COMPARE_OP": _Form(2, "{0} {arg} {1}"),
    "BINARY_SUBSCR": _Form(2, "{0}[{1}]"),
    "STORE_SUBSCR": _Form(3, "{1}[{2}] = {0}", ()),
    "DELETE_SUBSCR": _Form(2, "del {0}[{1}]", ()),
    "LOAD_ATTR": _Form(1, "i_getattr({0}, {arg!r})"),
    "STORE_ATTR": _Form(2, "i_setattr({1}, {arg!r}, {0})", ()),
    "DELETE_ATTR": _Form(1, "i_delattr({0}, {arg!r})", ()),
    "GET_LEN": _Form(1, "i_len({0})", ("value",)),
    "GET_ITER": _Form(1, "i_iter({0})"),
    "GET_YIELD_FROM_ITER": _Form(1, "i_iter({0})"),
    "FORMAT_SIMPLE": _Form(1, "i_format({0})"),
    "FORMAT_WITH_SPEC": _Form(2, "i_format({0}, {1})"),
    "CONVERT_VALUE": _Form(1, "i_{arg}({0})"),
    "CHECK_EXC_MATCH": _Form(2, "i_isinstance({0}, {1})"),
    "IMPORT_NAME": _Form(2, "i_import({arg!r}, i_globals(), None, {1}, {0})"),
    "IMPORT_FROM": _Form(1, "i_import_from({0}, {arg!r})"),
    "LOAD_GLOBAL": _Form(0, "{arg}"),
    "POP_JUMP_IF_FALSE": _Form(1, "not {0}", (), branch=True),
    "POP_JUMP_IF_TRUE": _Form(1, "{0}", (), branch=True),
    "POP_JUMP_IF_NONE": _Form(1, "{0} is None", (), branch=True),
    "POP_JUMP_IF_NOT_NONE": _Form(1, "{0} is not None", (), branch=True),
    "LIST_TO_TUPLE": _Form(1, "i_tuple({0})"),
    "MATCH_MAPPING": _Form(1, "i_is_mapping({0})"),
    "MATCH_SEQUENCE": _Form(1, "i_is_sequence({0})"),
}
# Instructions that leave their first operands on the stack: how many they keep.
_KEEPS = {"GET_LEN": 1, "CHECK_EXC_MATCH": 1, "IMPORT_FROM": 1, "MATCH_MAPPING": 1, "MATCH_SEQUENCE": 1}
_ACCUMULATE = {
    "LIST_APPEND": "{0}.append({1})",
    "SET_ADD": "{0}.add({1})",
    "LIST_EXTEND": "{0}.extend({1})",
    "SET_UPDATE": "{0}.update({1})",
    "DICT_UPDATE": "{0}.update({1})",
}
# How many operands the instructions take whose text is not a form.
_OPERANDS = dict.fromkeys(("FOR_ITER", "BEFORE_WITH", "UNPACK_SEQUENCE", "UNPACK_EX", "LOAD_METHOD"), 1)
_OPERANDS |= {"BINARY_OP": 2, "CONTAINS_OP": 2, "MATCH_KEYS": 2, "LOAD_SUPER_ATTR": 3, "WITH_EXCEPT_START": 4}


def _import_from(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        full = f"{module.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        raise ImportError(f"cannot import name {name!r} from {module.__name__!r}") from None


def _is_mapping(value: Any) -> bool:
    return bool(type(value).__flags__ & (1 << 6))


def _is_sequence(value: Any) -> bool:
    return bool(type(value).__flags__ & (1 << 5))


# What the texts call: bound as keyword defaults, because the function's globals are the user's.
_CALLED = (getattr, setattr, delattr, len, iter, format, str, repr, ascii, isinstance, globals, tuple, type, set, slice)
_HELPERS: dict[str, Any] = {f"i_{function.__name__}": function for function in _CALLED} | {
    "i_import": __import__,
    "i_import_from": _import_from,
    "i_is_mapping": _is_mapping,
    "i_is_sequence": _is_sequence,
    "i_base": BaseException,
}


def operand_count(ins: Instruction) -> int | None:
    """How many stack entries the instruction takes, `NULL` entries included; None when it cannot be run alone."""
    op, arg = ins.op, ins.arg
    if op in _FORMS:
        return _FORMS[op].operands
    if op in _ACCUMULATE:
        return int(arg) + 1
    if op in _OPERANDS:
        return _OPERANDS[op]
    if op == "CALL":
        return int(arg[0]) + 2
    if op == "CALL_FUNCTION_EX":
        return 3 + bool(arg)
    if op in ("BUILD_SET", "BUILD_STRING", "BUILD_SLICE"):
        return int(arg)
    if op == "BUILD_MAP":
        return 2 * int(arg)
    if op == "DICT_MERGE":
        return int(arg) + 1
    return None


def break_instruction(
    program: Program,
    index: int,
    code: types.CodeType,
    namespace: dict[str, Any],
    operands: list[str],
    handling: bool,
    instruction: Instruction | None = None,
) -> BreakInstruction | None:
    """How to run instruction `index` of `code` alone, or None when that is not possible.

    `operands` are the kinds of its stack entries; only values and handled exceptions are passed. With `handling`, the
    first argument of the function is the exception that the frame is handling meanwhile. `instruction` stands in for
    the one in the program: a call of a suspended callee.
    """
    ins = instruction or program.instructions[index]
    made = _text(ins, operands)
    if made is None:
        return None
    entry = program.handler(index)
    line = program.instructions[index].line
    outcomes = _outcomes(program, index, ins, operands)
    if entry is not None:
        pushed = ("lasti", "value") if entry.push_lasti else ("value",)  # lasti itself is not passed on
        outcomes.append(Outcome(entry.target, pushed, entry.depth))
    names = _passed(operands)
    body = _function_text(made, names, handling, entry is not None, len(outcomes) - 1)
    function = _assemble(body, code, namespace, line)
    return BreakInstruction(function, len(operands), tuple(outcomes))


def _passed(operands: list[str]) -> list[str]:
    return [f"x{i}" for i in range(sum(kind in ("value", "saved") for kind in operands))]


def _outcomes(program: Program, index: int, ins: Instruction, operands: list[str]) -> list[Outcome]:
    if ins.op.startswith("POP_JUMP_IF"):
        return [Outcome(index + 1, ()), Outcome(ins.arg, ())]
    if ins.op == "FOR_ITER":
        return [Outcome(index + 1, ("value", "value")), Outcome(ins.arg, ())]
    return [Outcome(index + 1, _pushed(ins, operands))]


def _pushed(ins: Instruction, operands: list[str]) -> tuple[str, ...]:
    op = ins.op
    if op == "LOAD_METHOD":
        return ("null", "value") if METHOD_SLOT_FIRST else ("value", "null")
    if op == "UNPACK_SEQUENCE":
        return ("value",) * int(ins.arg)
    if op == "UNPACK_EX":
        return ("value",) * ((ins.arg & 0xFF) + 1 + (ins.arg >> 8))
    if op == "BEFORE_WITH":
        return ("value", "value")
    if op in ("WITH_EXCEPT_START", "MATCH_KEYS"):
        return (*operands, "value")
    if op in _ACCUMULATE or op == "DICT_MERGE":
        return tuple(operands[:-1])
    if op in _KEEPS:
        return (*operands[: _KEEPS[op]], "value")
    return _FORMS[op].pushed if op in _FORMS else ("value",)


def _text(ins: Instruction, operands: list[str]) -> str | None:
    """Statements that run the instruction and end in `return`, over the names x0, x1 ... of the values."""
    op, arg = ins.op, ins.arg
    names = _passed(operands)
    n = len(names)
    if op == "CALL":
        return _call_text(arg, operands, names)
    if op == "CALL_FUNCTION_EX":
        rest = f", **{names[-1]}" if arg else ""
        return f"return 0, ({names[0]}(*{names[1]}{rest}),)" if n == 2 + bool(arg) else None
    if op in _ACCUMULATE:
        kept = ", ".join(names[:-1])
        return f"{_ACCUMULATE[op].format(names[0], names[-1])}\nreturn 0, ({kept},)"
    if op == "BINARY_OP":
        if arg.endswith("="):
            return f"x0 {arg} x1\nreturn 0, (x0,)"
        return f"return 0, (x0 {arg} x1,)"
    if op == "CONTAINS_OP":
        return f"return 0, (x0 {'not in' if arg else 'in'} x1,)"
    if op == "FOR_ITER":
        return "for x1 in x0:\n    return 0, (x0, x1)\nreturn 1, ()"
    if op == "LOAD_METHOD":
        plain = arg.isidentifier() and not _mangled(arg)
        return f"return 0, (x0.{arg},)" if plain else f"return 0, (i_getattr(x0, {arg!r}),)"
    if op == "BEFORE_WITH":
        return "leave = x0.__exit__\nreturn 0, (leave, i_type(x0).__enter__(x0))"
    if op == "WITH_EXCEPT_START":
        kept = ", ".join(names)
        return f"return 0, ({kept}, x0(i_type({names[-1]}), {names[-1]}, {names[-1]}.__traceback__))"
    if op == "UNPACK_SEQUENCE":
        if arg == 0:
            return "[] = x0\nreturn 0, ()"
        targets = [f"y{i}" for i in range(arg)]
        return f"{', '.join(targets)}, = x0\nreturn 0, ({', '.join(reversed(targets))},)"
    if op == "UNPACK_EX":
        before, after = arg & 0xFF, arg >> 8
        places = [f"y{i}" for i in range(before)] + ["*rest"] + [f"z{i}" for i in range(after)]
        back = [t.removeprefix("*") for t in reversed(places)]
        return f"{', '.join(places)}, = x0\nreturn 0, ({', '.join(back)},)"
    if op == "LOAD_SUPER_ATTR":
        return f"return 0, (i_getattr(x0({'x1, x2' if arg[1] else ''}), {arg[0]!r}),)"
    if op == "BUILD_SET":
        return f"return 0, ({{{', '.join(names)}}},)" if names else "return 0, (i_set(),)"
    if op == "BUILD_MAP":
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(names[::2], names[1::2], strict=True))
        return f"return 0, ({{{pairs}}},)"
    if op == "BUILD_SLICE":
        return f"return 0, (i_slice({', '.join(names)}),)"
    if op not in _FORMS:
        return None
    form = _FORMS[op]
    text = form.text.format(*names, arg=arg)
    if form.branch:
        return f"if {text}:\n    return 1, ()\nreturn 0, ()"
    if not form.pushed:
        return f"{text}\nreturn 0, ()"
    kept = "".join(f"{n}, " for n in names[: _KEEPS.get(op, 0)])
    return f"return 0, ({kept}{text},)"


def _mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _call_text(arg: tuple[int, tuple[str, ...]], operands: list[str], names: list[str]) -> str | None:
    count, keywords = arg
    given = names[len(names) - count :] if count else []
    head = names[: len(names) - count]
    if not head:
        return None
    args = [*head[1:], *given[: count - len(keywords)]]
    args += [f"{k}={v}" for k, v in zip(keywords, given[count - len(keywords) :], strict=True)]
    return f"return 0, ({head[0]}({', '.join(args)}),)"


def _function_text(text: str, names: list[str], handling: bool, caught: bool, outcome: int) -> str:
    lines = text.split("\n")
    if caught:
        lines = [
            "try:",
            *(f"    {line}" for line in lines),
            "except i_base as error:",
            f"    return {outcome}, (error,)",
        ]
    if handling:
        # sys.exc_info() is what it is in the user's handler; raising again would lengthen the traceback.
        lines = [
            "trace = handled.__traceback__",
            "try:",
            "    raise handled",
            "except i_base:",
            "    handled.__traceback__ = trace",
            *(f"    {line}" for line in lines),
        ]
    parameters = (["handled"] if handling else []) + names
    helpers = [h for h in _HELPERS if re.search(rf"\b{h}\b", "\n".join(lines))]
    parameters += ["*", *helpers] if helpers else []
    return "\n".join([f"def break_instruction({', '.join(parameters)}):", *(f"    {line}" for line in lines)])


def _assemble(text: str, code: types.CodeType, namespace: dict[str, Any], line: int) -> Any:
    made = _compiled(text, code.co_filename, line)
    made = made.replace(co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line)
    function = types.FunctionType(made, namespace, code.co_name)
    helpers = made.co_varnames[made.co_argcount : made.co_argcount + made.co_kwonlyargcount]
    function.__kwdefaults__ = {name: _HELPERS[name] for name in helpers}
    return function


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, filename: str, line: int) -> types.CodeType:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.excepthandler | ast.keyword | ast.alias):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    code = compile(tree, filename, "exec", dont_inherit=True)
    return next(c for c in code.co_consts if isinstance(c, types.CodeType))
