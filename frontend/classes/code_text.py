"""`compile`, `eval` and `exec` of known text: Python's compiler runs at capture, and the code that it gives is interpreted.

Names are those of the namespaces that the program gives, dicts that capture has made, or else of the frame that asks. The code cannot be
suspended, nor can a function that it defines be while that has its globals in such a dict: capture begins again in front of the call.
"""

from __future__ import annotations
import __future__

import builtins
import inspect
import types
import warnings
from collections.abc import Iterable
from typing import Any

from ..breaks.breaks import restart_point
from ..bytecode.frame import NULL, Frame
from ..bytecode.instruction import disassemble, per_code
from ..bytecode.version import KEEPS_LOCALS
from ..calls.registry import Rows
from ..errors import GraphBreak, UserRaise
from ..guards.source import Const
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.container import GlobalsDict, InstanceDict
from ..values.kinds import isinstance
from ..values.lazy import Unread
from ..values.namespaces import load_cell
from ..values.object import load_attr, shown_globals

__all__ = ["ROWS"]

ROWS = Rows()
_FUTURE = 0  # flags of `from __future__ import ...` that a text inherits
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
_FUTURE &= ~inspect.CO_NESTED


@ROWS.rule(builtins.compile)
def _compile(
    vm: Interpreter,
    source: Any,
    filename: Any,
    mode: Any,
    flags: Any = 0,
    dont_inherit: Any = False,
    optimize: Any = -1,
    **kwargs: Any,
) -> Any:
    given = (source, filename, mode, flags, dont_inherit, optimize)
    if not all(map(is_constant, (*given, *kwargs.values()))):
        raise GraphBreak("compile() is called with more than constants")
    inherited = 0 if dont_inherit else _inherited(vm)
    return _compiled(vm, source, filename, mode, flags | inherited if type(flags) is int else flags, optimize, kwargs)


def _inherited(vm: Interpreter) -> int:
    return vm.frames[-1].code.co_flags & _FUTURE


def _compiled(vm: Interpreter, source: Any, filename: Any, mode: Any, flags: Any, optimize: Any, kwargs: Any) -> Any:
    if vm.effects.warned is not None:  # which gets the warnings
        return vm.native(compile, source, filename, mode, flags, True, optimize, **kwargs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = vm.native(compile, source, filename, mode, flags, True, optimize, **kwargs)
    if said:
        raise GraphBreak(f"compile() warns: {said[0].message}")
    return found


@ROWS.rule(builtins.eval)
def _eval(vm: Interpreter, source: Any, globals: Any = None, locals: Any = None, /) -> Any:
    if isinstance(source, str | bytes):
        source = source.lstrip(" \t" if isinstance(source, str) else b" \t")  # type: ignore[arg-type]
    return _run(vm, "eval", source, globals, locals)


@ROWS.rule(builtins.exec)
def _exec(vm: Interpreter, source: Any, globals: Any = None, locals: Any = None, /, *, closure: Any = None) -> Any:
    if closure is not None:
        raise GraphBreak("exec is called with a closure")
    _run(vm, "exec", source, globals, locals)


def _run(vm: Interpreter, who: str, source: Any, globals: Any, locals: Any) -> Any:
    frame = vm.frames[-1]
    namespace = frame.globals if globals is None else _given(vm, who, globals)
    if locals is not None and is_constant(locals):
        vm.native(getattr(builtins, who), "0", {}, locals)  # which refuses it
    code = source if type(source) is types.CodeType else None
    if code is None:
        if not isinstance(source, str | bytes) and is_constant(source):
            vm.native(getattr(builtins, who), source)  # which refuses it
        if not isinstance(source, str | bytes) or not is_constant(source):
            raise GraphBreak(f"{who} is called with a {vm.type_of(source).__name__}")
        code = _compiled(vm, source, "<string>", who, _inherited(vm), -1, {})
    if code.co_freevars:
        raise UserRaise(TypeError(f"code object passed to {who}() may not contain free variables"))
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise GraphBreak(f"{who} is called with the code of a generator")
    function = vm.create(types.FunctionType(code, namespace))
    inner = Frame(function, {})
    own = globals is None and locals is None and frame.names is None
    if own and not _stores(code) and frame.stored is None:
        inner.names = _variables(vm, frame, code.co_names)
    elif own:
        inner.names = _locals(vm, frame)
    elif locals is None:
        inner.names = globals if globals is not None else frame.names
    else:
        inner.names = locals if isinstance(locals, InstanceDict) else vm.materialize(locals)
    return vm.resume(inner, None)[1]


def _given(vm: Interpreter, who: str, globals: Any) -> Any:
    """A dict that capture has made, or that of a module, as the globals of code."""
    if type(globals) is GlobalsDict:
        return globals.obj
    if not isinstance(globals, dict):
        if is_constant(globals):
            vm.native(getattr(builtins, who), "0", globals)  # which refuses it
        raise GraphBreak(f"{who} is called with a {vm.type_of(globals).__name__} as globals")
    if type(globals) is not dict or vm.user.source_of(globals) is not None:
        raise GraphBreak(f"{who} is called with a dict of the caller's as globals")
    if not vm.is_created(globals):
        vm.create(globals)
        vm.definitions.made[id(globals)] = restart_point(vm), tuple(vm.places())
    if "__builtins__" not in globals:
        found = vm.frames[-1].globals.get("__builtins__", builtins)
        found = found if isinstance(found, dict) else found.__dict__
        if vm.user.source_of(found) is None:
            vm.user.track(found, found, Const(found, "builtins"))
        globals["__builtins__"] = found
    return globals


def _variables(vm: Interpreter, frame: Frame, wanted: Iterable[str]) -> dict[str, Any]:
    """Those of a frame's variables that have a value, read."""
    boxed, found = {*frame.code.co_cellvars, *frame.code.co_freevars}, {}
    for name in wanted:
        value = frame.fast.get(name, NULL)
        if type(value) is Unread:
            value = value.read()
        if name in boxed and isinstance(value, types.CellType):
            try:
                value = load_cell(vm, value, name)
            except UserRaise:  # it is not bound
                continue
        if value is not NULL:
            found[name] = value
    return found


def _locals(vm: Interpreter, frame: Frame) -> Any:
    """`locals()` in a frame. Until 3.12 it is one dict, which is brought up to date each time that somebody asks for it."""
    if frame.names is not None:
        return frame.names
    code = frame.code
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise GraphBreak("the variables of a generator are looked at, all of them")
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    found = _variables(vm, frame, names)
    if not KEEPS_LOCALS:
        return found
    kept = {} if frame.stored is None else frame.stored
    for name in names:
        if name not in found:
            kept.pop(name, None)
    kept.update(found)
    frame.stored = kept
    if not _asks_once(code):  # a piece of the frame would not know the dict
        frame.direct = False
    return kept


@ROWS.rule(builtins.locals)
def _asked(vm: Interpreter) -> Any:
    return _locals(vm, vm.frames[-1])


@ROWS.rule(builtins.globals)
def _globals(vm: Interpreter) -> Any:
    return shown_globals(vm, vm.frames[-1].globals)


@ROWS.rule(vars)
def _vars(vm: Interpreter, *args: Any) -> Any:
    return load_attr(vm, args[0], "__dict__") if args else _asked(vm)


@per_code
def _asks_once(code: types.CodeType) -> bool:
    """Whether code asks for its variables at one place, to which it comes once."""
    instructions = disassemble(code).instructions
    named = [i for i in instructions if i.op in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") and i.arg in _ASKING]
    again = any(i.op.startswith(("JUMP", "POP_JUMP")) and i.arg <= at for at, i in enumerate(instructions))
    return len(named) == 1 and not again


_ASKING = ("locals", "vars", "dir", "eval", "exec")


def _stores(code: types.CodeType) -> bool:
    """Whether code at the top of a module, as it is, changes the names there."""
    return any(i.op in ("STORE_NAME", "DELETE_NAME", "SETUP_ANNOTATIONS") for i in disassemble(code).instructions)
