"""Opcodes of the normal form that jump, raise and call: `(vm, frame, arg)`, each under its name; "return" or "yield" ends the run."""

from __future__ import annotations

import sys
import types
from typing import Any

from torch import Tensor

from ..calls.contexts import enter
from ..errors import Unsupported, UserRaise
from ..state import Interpreter
from ..values import object as objects
from ..values.kinds import c_name, isinstance
from . import exceptions
from .frame import NULL, Frame, Saved
from .generator import KINDS, InterpretedGenerator, stopped_inside
from .unpacking import as_dict, match_class, match_keys

# ---- control flow ----


def JUMP(vm: Interpreter, frame: Frame, target: int) -> None:
    frame.ip = target


def POP_JUMP_IF_FALSE(vm: Interpreter, frame: Frame, target: int) -> str | None:
    truth = vm.decision(frame.stack.pop(), target)
    if not truth:
        if truth is None:
            return vm.branches.run(vm, frame, frame.ip, target)
        frame.ip = target
    return None


def POP_JUMP_IF_TRUE(vm: Interpreter, frame: Frame, target: int) -> str | None:
    truth = vm.decision(frame.stack.pop(), target)
    if truth:
        frame.ip = target
    elif truth is None:
        return vm.branches.run(vm, frame, target, frame.ip)
    return None


def POP_JUMP_IF_NONE(vm: Interpreter, frame: Frame, target: int) -> None:
    if frame.stack.pop() is None:
        frame.ip = target


def POP_JUMP_IF_NOT_NONE(vm: Interpreter, frame: Frame, target: int) -> None:
    if frame.stack.pop() is not None:
        frame.ip = target


def GET_ITER(vm: Interpreter, frame: Frame, _: Any) -> None:
    value = frame.pop()
    places = vm.branches.places(vm, frame, value)
    frame.push(vm.iterate(value) if places is None else places)


def FOR_ITER(vm: Interpreter, frame: Frame, target: int) -> str | None:
    if vm.branches.loops.is_counter(frame.stack[-1]):
        return vm.branches.count(vm, frame)
    if vm.branches.each(vm, frame):
        return None
    more, value = vm.advance(frame.stack[-1])
    if more:
        frame.push(value)
    else:
        frame.pop()
        frame.ip = target
    return None


def RETURN_VALUE(vm: Interpreter, frame: Frame, _: Any) -> str:
    frame.result = frame.pop()
    return "return"


def RETURN_GENERATOR(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(None)


def YIELD_VALUE(vm: Interpreter, frame: Frame, _: Any) -> str:
    frame.result = frame.pop()
    return "yield"


def GET_YIELD_FROM_ITER(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(vm.iterate(frame.pop()))


def SEND(vm: Interpreter, frame: Frame, target: int) -> None:
    value = frame.pop()
    receiver = frame.stack[-1]
    try:
        if isinstance(receiver, InterpretedGenerator):
            more, result = receiver.step(value, None)
        elif value is None:
            more, result = vm.advance(receiver)
        else:
            more, result = True, vm.call(objects.load_attr(vm, receiver, "send"), (value,), {})
    except UserRaise as raised:
        if not isinstance(raised.value, StopIteration):
            raise
        more, result = False, raised.value.value
    if more:
        frame.push(result)
    else:
        frame.stack[-1] = result
        frame.ip = target


def END_SEND(vm: Interpreter, frame: Frame, _: Any) -> None:
    del frame.stack[-2]


def STOPITERATION_ERROR(vm: Interpreter, frame: Frame, _: Any) -> None:
    ended = frame.stack[-1]
    if isinstance(ended, StopIteration) or frame.code.co_flags & 0x200 and isinstance(ended, StopAsyncIteration):
        frame.stack[-1] = stopped_inside(ended, KINDS.get(frame.code.co_flags & 0x280, "generator"))


# ---- exceptions and with ----


def PUSH_EXC_INFO(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.pop()
    frame.stack += [Saved(vm.current_error, error), error]
    vm.current_error = error


def POP_EXCEPT(vm: Interpreter, frame: Frame, _: Any) -> None:
    vm.current_error = frame.pop().before


def CHECK_EXC_MATCH(vm: Interpreter, frame: Frame, _: Any) -> None:
    kind = frame.pop()
    for one in kind if isinstance(kind, tuple) else (kind,):
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            text = "catching classes that do not inherit from BaseException is not allowed"
            raise UserRaise(TypeError(text))
    frame.push(isinstance(frame.stack[-1], kind))


def CHECK_EG_MATCH(vm: Interpreter, frame: Frame, _: Any) -> None:
    kinds = frame.pop()
    match, rest = exceptions.matched(vm, frame.pop(), kinds)
    frame.stack += [rest, match]
    if match is not None:  # what is handled from here on
        vm.current_error = match
        next(v for v in reversed(frame.stack) if type(v) is Saved).now = match


def PREP_RERAISE_STAR(vm: Interpreter, frame: Frame, _: Any) -> None:
    whole, raised = frame.pops(2)
    frame.push(exceptions.left_over(vm, whole, raised))


def RERAISE(vm: Interpreter, frame: Frame, depth: int) -> None:
    error = frame.pop()
    frame.again = getattr(frame.stack[-depth], "index", None) if depth else None
    raise UserRaise(error, again=True)


def CLEANUP_THROW(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.pop()
    if not isinstance(error, StopIteration):
        raise UserRaise(error, again=True)
    frame.stack[-2:] = [None, error.value]


def RAISE_VARARGS(vm: Interpreter, frame: Frame, n: int) -> None:
    if n == 0:
        if vm.current_error is None and vm.outer_error is not None:
            raise Unsupported("the exception is raised again that the caller is handling")
        if vm.current_error is None:
            raise UserRaise(RuntimeError("No active exception to reraise"))
        raise UserRaise(vm.current_error, again=True)
    cause = frame.pop() if n == 2 else None
    error = frame.pop()
    if isinstance(error, type) and issubclass(error, BaseException):
        kind, error = error, vm.call(error, (), {})
        if not isinstance(error, BaseException):
            text = f"calling {kind!r} should have returned an instance of BaseException, not {vm.type_of(error)!r}"
            raise UserRaise(TypeError(text))
    if not isinstance(error, BaseException):
        raise UserRaise(TypeError("exceptions must derive from BaseException"))
    if isinstance(cause, type) and issubclass(cause, BaseException):
        cause = vm.call(cause, (), {})
    if cause is not None and not isinstance(cause, BaseException):
        raise UserRaise(TypeError("exception causes must derive from BaseException"))
    if vm.user.source_of(error) is not None and (n == 2 or vm.current_error not in (None, error)):
        raise Unsupported("an exception of the caller's gets a cause or a context")
    if n == 2:
        error.__cause__ = cause
    exceptions.set_context(error, vm.current_error)
    raise UserRaise(error)


def LOAD_ASSERTION_ERROR(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(AssertionError)


def BEFORE_WITH(vm: Interpreter, frame: Frame, _: Any) -> None:
    manager = frame.pop()
    leave, value = enter(vm, manager)
    frame.stack += [leave, value]


def WITH_EXCEPT_START(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.stack[-1]
    frame.push(vm.call(frame.stack[-4], (type(error), error, exceptions.traceback_of(vm, error)), {}))


# ---- calls and functions ----


def CALL(vm: Interpreter, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    n, names = arg
    args = frame.pops(n)
    kwargs = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :], strict=True))
        del args[-len(names) :]
    _call(vm, frame, args, kwargs)


def _call(vm: Interpreter, frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> None:
    first, second = frame.pops(2)
    if first is NULL:
        function = second
    else:
        function = first
        if second is not NULL:
            args.insert(0, second)
    frame.push(vm.call(function, tuple(args), kwargs, True))


def CALL_FUNCTION_EX(vm: Interpreter, frame: Frame, has_kwargs: bool) -> None:
    kwargs = dict(as_dict(vm, frame.pop())) if has_kwargs else {}
    value = frame.pop()
    kind = vm.type_of(value)
    if not isinstance(value, Tensor) and not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        called = exceptions.signature_text(next(v for v in frame.stack[:-3:-1] if v is not NULL))
        raise UserRaise(TypeError(f"{called} argument after * must be an iterable, not {c_name(kind)}"))
    _call(vm, frame, vm.listed(value), kwargs)


def MAKE_FUNCTION(vm: Interpreter, frame: Frame, flags: int) -> None:
    code = frame.pop()
    closure = frame.pop() if flags & 8 else None
    annotations = frame.pop() if flags & 4 else None
    kwdefaults = frame.pop() if flags & 2 else None
    defaults = frame.pop() if flags & 1 else None
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure or _no_cells(code))
    function.__kwdefaults__ = kwdefaults
    if isinstance(annotations, tuple):
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    frame.push(vm.create(function))


def _no_cells(code: types.CodeType) -> tuple[types.CellType, ...] | None:
    return tuple(types.CellType() for _ in code.co_freevars) or None


def SET_FUNCTION_ATTRIBUTE(vm: Interpreter, frame: Frame, flag: int) -> None:
    function = frame.pop()
    value = frame.pop()
    if flag == 8:
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, value
        )
        made.__kwdefaults__ = function.__kwdefaults__
        function = vm.create(made)
    elif flag == 4:
        pairs = zip(value[::2], value[1::2], strict=True) if isinstance(value, tuple) else value
        function.__annotations__ = dict(pairs)
    else:
        setattr(function, {1: "__defaults__", 2: "__kwdefaults__"}[flag], value)
    frame.push(function)


def IMPORT_NAME(vm: Interpreter, frame: Frame, name: str) -> None:
    level, names = frame.pops(2)
    frame.push(vm.native(__import__, name, frame.globals, None, names, level))


def _import_from(module: Any, name: str) -> None:
    """Fails as `from module import name` does in CPython."""
    file = getattr(module, "__file__", None) or "unknown location"
    text = f"cannot import name {name!r} from {module.__name__!r} ({file})"
    raise ImportError(text, name=module.__name__, path=getattr(module, "__file__", None))


def IMPORT_FROM(vm: Interpreter, frame: Frame, name: str) -> None:
    module = frame.stack[-1]
    if not hasattr(module, name):
        full = f"{module.__name__}.{name}"
        if full in sys.modules:
            frame.push(sys.modules[full])
            return
        vm.native(_import_from, module, name)
    frame.push(objects.load_attr(vm, module, name))


# ---- match ----

# Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING: of several base classes the first one decides.
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6


def MATCH_MAPPING(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(bool(vm.type_of(frame.stack[-1]).__flags__ & _MAPPING))


def MATCH_SEQUENCE(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(bool(vm.type_of(frame.stack[-1]).__flags__ & _SEQUENCE))


def MATCH_KEYS(vm: Interpreter, frame: Frame, _: Any) -> None:
    subject, keys = frame.stack[-2:]
    frame.push(match_keys(vm, subject, keys))


def MATCH_CLASS(vm: Interpreter, frame: Frame, n: int) -> None:
    subject, cls, names = frame.pops(3)
    frame.push(match_class(vm, subject, cls, n, names))
