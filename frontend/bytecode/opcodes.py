"""One short function per opcode of the normal form: `(vm, frame, arg)`; "return" or "yield" ends the run."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..calls.visibility import check_keys, is_same
from ..entry.effects import DELETED
from ..errors import Unsupported, UserRaise
from ..guards.source import Const
from ..values import object as objects
from ..values import operators
from ..values.container import InstanceDict, LazyDict
from ..values.function import InterpretedGenerator, stopped_inside
from ..values.kinds import isinstance
from ..values.unread import Append, Unread
from . import closing
from . import exceptions as raising
from .machine import NULL, Saved
from .unpacking import as_dict, match_class, match_keys, taken

if TYPE_CHECKING:
    from .machine import Frame, Interpreter

__all__ = ["HANDLERS", "NOT_CAPTURED", "unsupported_opcode"]

Handler = Callable[["Interpreter", "Frame", Any], str | None]
HANDLERS: dict[str, Handler] = {}

# Opcodes that capture refuses, and why.
NOT_CAPTURED = {
    "SETUP_ANNOTATIONS": "class and module bodies are not captured",
    "LOAD_LOCALS": "class and module bodies are not captured",
    "LOAD_NAME": "class and module bodies are not captured",
    "STORE_NAME": "class and module bodies are not captured",
    "DELETE_NAME": "class and module bodies are not captured",
    "LOAD_FROM_DICT_OR_DEREF": "class and module bodies are not captured",
    "LOAD_FROM_DICT_OR_GLOBALS": "class and module bodies are not captured",
    "IMPORT_STAR": "`import *` is not captured",
    "PRINT_EXPR": "interactive expressions are not captured",
    "GET_AWAITABLE": "async code is not captured",
    "GET_AITER": "async code is not captured",
    "GET_ANEXT": "async code is not captured",
    "END_ASYNC_FOR": "async code is not captured",
    "BEFORE_ASYNC_WITH": "async code is not captured",
    "ASYNC_GEN_WRAP": "async code is not captured",
    "CHECK_EG_MATCH": "exception groups are not captured",
    "PREP_RERAISE_STAR": "exception groups are not captured",
    "CALL_INTRINSIC_2": "exception groups and type parameters are not captured",
}


# The empty slot of a call is where the running version of CPython has it, so that a suspended stack is CPython's.
METHOD_ORDER = (lambda found: (found, NULL)) if sys.version_info >= (3, 13) else (lambda found: (NULL, found))


def unsupported_opcode(vm: Interpreter, frame: Frame, op: str) -> None:
    """Refuse an opcode."""
    raise Unsupported(NOT_CAPTURED.get(op, f"the bytecode instruction {op} is not captured"))


def _op(function: Handler) -> Handler:
    HANDLERS[function.__name__] = function
    return function


# ---- stack and constants ----


@_op
def LOAD_CONST(vm: Interpreter, frame: Frame, value: Any) -> None:
    frame.stack.append(value)


@_op
def POP_TOP(vm: Interpreter, frame: Frame, _: Any) -> None:
    value = frame.stack.pop()
    if vm.unread:
        closing.check_dropped(vm, value)


@_op
def PUSH_NULL(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.stack.append(NULL)


@_op
def COPY(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.stack.append(frame.stack[-n])


@_op
def SWAP(vm: Interpreter, frame: Frame, n: int) -> None:
    stack = frame.stack
    stack[-1], stack[-n] = stack[-n], stack[-1]


@_op
def END_FOR(vm: Interpreter, frame: Frame, _: Any) -> None:
    raise Unsupported("END_FOR was reached: the normal form should have skipped it")


# ---- names ----


@_op
def LOAD_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(frame.fast[name])
    except KeyError:
        raise raising.unbound_local(name) from None


@_op
def LOAD_FAST_AND_CLEAR(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(frame.fast.pop(name, NULL))


@_op
def STORE_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if value is NULL:
        frame.fast.pop(name, None)
    else:
        frame.fast[name] = value


@_op
def DELETE_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.fast:
        raise raising.unbound_local(name)
    del frame.fast[name]


@_op
def LOAD_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(vm.load_global(frame, name))


@_op
def LOAD_BUILD_CLASS(vm: Interpreter, frame: Frame, _: Any) -> None:
    found = frame.globals.get("__builtins__", builtins)
    frame.push((found if isinstance(found, dict) else found.__dict__)["__build_class__"])  # whose call breaks the graph


@_op
def STORE_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    vm.effects.globals[id(frame.globals), name] = (frame.globals, frame.pop())


@_op
def DELETE_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    written = vm.effects.globals.get((id(frame.globals), name))
    if written is None and name not in frame.globals or written is not None and written[1] is DELETED:
        raise raising.name_error(name)
    if written is None:
        vm.guards.add("contains", Const(frame.globals, frame.globals.get("__name__", "globals")), name)
    vm.effects.globals[id(frame.globals), name] = (frame.globals, DELETED)


def _settled(value: Any) -> Any:
    return value.read() if type(value) is Unread else value


@_op
def MAKE_CELL(vm: Interpreter, frame: Frame, name: str) -> None:
    cell = types.CellType(_settled(frame.fast[name])) if name in frame.fast else types.CellType()
    frame.fast[name] = vm.create(cell)


@_op
def LOAD_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(vm.load_cell(frame.fast[name], name))


@_op
def STORE_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    vm.store_cell(frame.fast[name], frame.pop())


@_op
def DELETE_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    cell = frame.fast[name]
    vm.load_cell(cell, name)
    if vm.is_created(cell):
        del cell.cell_contents
    else:
        vm.effects.cells[id(cell)] = (cell, DELETED)


# ---- operators ----


@_op
def BINARY_OP(vm: Interpreter, frame: Frame, symbol: str) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = operators.binary(vm, symbol, frame.stack[-1], right)


@_op
def UNARY(vm: Interpreter, frame: Frame, symbol: str) -> None:
    frame.push(operators.unary(vm, symbol, frame.pop()))


@_op
def COMPARE_OP(vm: Interpreter, frame: Frame, symbol: str) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = operators.compare(vm, symbol, frame.stack[-1], right)


@_op
def IS_OP(vm: Interpreter, frame: Frame, invert: bool) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = is_same(vm, frame.stack[-1], right) is not invert


@_op
def CONTAINS_OP(vm: Interpreter, frame: Frame, invert: bool) -> None:
    container = frame.pop()
    frame.push(operators.contains(vm, container, frame.pop()) is not invert)


@_op
def BINARY_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    key = frame.pop()
    frame.push(operators.get_item(vm, frame.pop(), key))


@_op
def STORE_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    value, obj, key = frame.pops(3)
    operators.set_item(vm, obj, key, value)


@_op
def DELETE_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    obj, key = frame.pops(2)
    operators.delete_item(vm, obj, key)


@_op
def LOAD_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    if type(frame.stack[-1]) is not Append:
        frame.stack[-1] = objects.load_attr(vm, frame.stack[-1], name)


@_op
def LOAD_METHOD(vm: Interpreter, frame: Frame, name: str) -> None:
    found = frame.stack[-1]
    if type(found) is not Append:
        found = objects.load_attr(vm, found, name)
    frame.stack[-1:] = METHOD_ORDER(found)


@_op
def LOAD_SUPER_ATTR(vm: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    sup, cls, obj = frame.pops(3)
    made = objects.Super(cls, obj) if sup is super else vm.call(sup, (cls, obj) if arg[1] else (), {})
    frame.push(objects.load_attr(vm, made, arg[0]))


@_op
def STORE_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    value, obj = frame.pops(2)
    objects.store_attr(vm, obj, name, value)


@_op
def DELETE_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    objects.delete_attr(vm, frame.pop(), name)


@_op
def GET_LEN(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(vm.call(len, (frame.stack[-1],), {}))


# ---- building ----


@_op
def BUILD_TUPLE(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(tuple(frame.pops(n)))


@_op
def BUILD_LIST(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(frame.pops(n))


@_op
def BUILD_SET(vm: Interpreter, frame: Frame, n: int) -> None:
    values = frame.pops(n)
    check_keys(vm, values)
    frame.push(vm.native(set, values))


@_op
def BUILD_MAP(vm: Interpreter, frame: Frame, n: int) -> None:
    items = frame.pops(2 * n)
    check_keys(vm, items[::2])
    frame.push(vm.native(dict, list(zip(items[::2], items[1::2], strict=True))))


@_op
def BUILD_CONST_KEY_MAP(vm: Interpreter, frame: Frame, n: int) -> None:
    keys = frame.pop()
    frame.push(dict(zip(keys, frame.pops(n), strict=True)))


@_op
def BUILD_STRING(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push("".join(frame.pops(n)))


@_op
def BUILD_SLICE(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(slice(*frame.pops(n)))


@_op
def LIST_APPEND(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    frame.stack[-n].append(value)  # the list of a comprehension that was split may still be unread


@_op
def SET_ADD(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    check_keys(vm, (value,))
    vm.native(frame.stack[-n].add, value)


@_op
def MAP_ADD(vm: Interpreter, frame: Frame, n: int) -> None:
    key, value = frame.pops(2)
    check_keys(vm, (key,))
    vm.native(frame.stack[-n].__setitem__, key, value)


@_op
def LIST_EXTEND(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    if (
        not isinstance(value, Tensor)
        and not hasattr(vm.type_of(value), "__iter__")
        and not hasattr(vm.type_of(value), "__getitem__")
    ):
        text = f"Value after * must be an iterable, not {vm.type_of(value).__name__}"
        raise UserRaise(TypeError(text))
    frame.stack[-n].extend(vm.listed(value))


@_op
def SET_UPDATE(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    # A set is added as one, in a table for both: the order comes from that.
    values = value if type(value) in (set, frozenset) else vm.listed(value)
    check_keys(vm, values)
    vm.native(frame.stack[-n].update, values)


@_op
def DICT_UPDATE(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    vm.native(frame.stack[-n].update, as_dict(vm, value))


@_op
def DICT_MERGE(vm: Interpreter, frame: Frame, n: int) -> None:
    given = frame.pop()
    target, function = frame.stack[-n], frame.stack[-2 - n]
    if not isinstance(given, dict | LazyDict | InstanceDict) and not hasattr(vm.type_of(given), "keys"):
        text = (
            f"{raising.signature_text(function)} argument after ** must be a mapping, not {vm.type_of(given).__name__}"
        )
        raise UserRaise(TypeError(text))
    value = as_dict(vm, given)
    for key in value:
        if not isinstance(key, str):
            raise UserRaise(TypeError("keywords must be strings"))
        if key in target:
            called = raising.signature_text(function)
            raise UserRaise(TypeError(f"{called} got multiple values for keyword argument '{key}'"))
    target.update(value)


@_op
def LIST_TO_TUPLE(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(tuple(frame.pop()))


@_op
def UNPACK_SEQUENCE(vm: Interpreter, frame: Frame, n: int) -> None:
    values, _ = taken(vm, frame.pop(), n + 1)
    if len(values) > n:
        raise UserRaise(ValueError(f"too many values to unpack (expected {n})"))
    if len(values) < n:
        raise UserRaise(ValueError(f"not enough values to unpack (expected {n}, got {len(values)})"))
    frame.stack.extend(reversed(values))


@_op
def UNPACK_EX(vm: Interpreter, frame: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    values, iterator = taken(vm, frame.pop(), before)
    if len(values) == before:
        values += vm.listed(iterator)
    if len(values) < before + after:
        wanted = f"expected at least {before + after}, got {len(values)}"
        raise UserRaise(ValueError(f"not enough values to unpack ({wanted})"))
    end = len(values) - after
    frame.stack.extend(reversed([*values[:before], values[before:end], *values[end:]]))


@_op
def CONVERT_VALUE(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(vm.call({"str": str, "repr": repr, "ascii": ascii}[name], (frame.pop(),), {}))


@_op
def FORMAT_SIMPLE(vm: Interpreter, frame: Frame, _: Any) -> None:
    value = frame.pop()
    frame.push(value if type(value) is str else vm.call(format, (value,), {}))


@_op
def FORMAT_WITH_SPEC(vm: Interpreter, frame: Frame, _: Any) -> None:
    value, spec = frame.pops(2)
    frame.push(vm.call(format, (value, spec), {}))


# ---- control flow ----


@_op
def JUMP(vm: Interpreter, frame: Frame, target: int) -> None:
    frame.ip = target


@_op
def POP_JUMP_IF_FALSE(vm: Interpreter, frame: Frame, target: int) -> None:
    if not vm.truth(frame.stack.pop()):
        frame.ip = target


@_op
def POP_JUMP_IF_TRUE(vm: Interpreter, frame: Frame, target: int) -> None:
    if vm.truth(frame.stack.pop()):
        frame.ip = target


@_op
def POP_JUMP_IF_NONE(vm: Interpreter, frame: Frame, target: int) -> None:
    if frame.stack.pop() is None:
        frame.ip = target


@_op
def POP_JUMP_IF_NOT_NONE(vm: Interpreter, frame: Frame, target: int) -> None:
    if frame.stack.pop() is not None:
        frame.ip = target


@_op
def GET_ITER(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(vm.iterate(frame.pop()))


@_op
def FOR_ITER(vm: Interpreter, frame: Frame, target: int) -> None:
    more, value = vm.advance(frame.stack[-1])
    if more:
        frame.push(value)
    else:
        frame.pop()
        frame.ip = target


@_op
def RETURN_VALUE(vm: Interpreter, frame: Frame, _: Any) -> str:
    frame.result = frame.pop()
    return "return"


@_op
def RETURN_GENERATOR(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(None)


@_op
def YIELD_VALUE(vm: Interpreter, frame: Frame, _: Any) -> str:
    frame.result = frame.pop()
    return "yield"


@_op
def GET_YIELD_FROM_ITER(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(vm.iterate(frame.pop()))


@_op
def SEND(vm: Interpreter, frame: Frame, target: int) -> None:
    value = frame.pop()
    receiver = frame.stack[-1]
    try:
        if type(receiver) is InterpretedGenerator:
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


@_op
def END_SEND(vm: Interpreter, frame: Frame, _: Any) -> None:
    del frame.stack[-2]


@_op
def STOPITERATION_ERROR(vm: Interpreter, frame: Frame, _: Any) -> None:
    if isinstance(frame.stack[-1], StopIteration):
        frame.stack[-1] = stopped_inside(frame.stack[-1])


# ---- exceptions and with ----


@_op
def PUSH_EXC_INFO(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.pop()
    frame.stack += [Saved(vm.current_error, error), error]
    vm.current_error = error


@_op
def POP_EXCEPT(vm: Interpreter, frame: Frame, _: Any) -> None:
    vm.current_error = frame.pop().before


@_op
def CHECK_EXC_MATCH(vm: Interpreter, frame: Frame, _: Any) -> None:
    kind = frame.pop()
    for one in kind if isinstance(kind, tuple) else (kind,):
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            text = "catching classes that do not inherit from BaseException is not allowed"
            raise UserRaise(TypeError(text))
    frame.push(isinstance(frame.stack[-1], kind))


@_op
def RERAISE(vm: Interpreter, frame: Frame, _: Any) -> None:
    raise UserRaise(frame.pop(), again=True)


@_op
def CLEANUP_THROW(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.pop()
    if not isinstance(error, StopIteration):
        raise UserRaise(error, again=True)
    frame.stack[-2:] = [None, error.value]


@_op
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
    raising.set_context(error, vm.current_error)
    raise UserRaise(error)


@_op
def LOAD_ASSERTION_ERROR(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(AssertionError)


@_op
def BEFORE_WITH(vm: Interpreter, frame: Frame, _: Any) -> None:
    from ..calls.contexts import enter

    manager = frame.pop()
    leave, value = enter(vm, manager)
    frame.stack += [leave, value]


@_op
def WITH_EXCEPT_START(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.stack[-1]
    frame.push(vm.call(frame.stack[-4], (type(error), error, error.__traceback__), {}))


# ---- calls and functions ----


@_op
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
    vm.tail = True
    frame.push(vm.tail_call(function, tuple(args), kwargs))


@_op
def CALL_FUNCTION_EX(vm: Interpreter, frame: Frame, has_kwargs: bool) -> None:
    kwargs = dict(as_dict(vm, frame.pop())) if has_kwargs else {}
    value = frame.pop()
    kind = vm.type_of(value)
    if not isinstance(value, Tensor) and not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        called = raising.signature_text(next(v for v in frame.stack[:-3:-1] if v is not NULL))
        raise UserRaise(TypeError(f"{called} argument after * must be an iterable, not {kind.__name__}"))
    _call(vm, frame, vm.listed(value), kwargs)


@_op
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


@_op
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


@_op
def IMPORT_NAME(vm: Interpreter, frame: Frame, name: str) -> None:
    level, names = frame.pops(2)
    frame.push(vm.native(__import__, name, frame.globals, None, names, level))


def _import_from(module: Any, name: str) -> None:
    """Fails as `from module import name` does in CPython."""
    file = getattr(module, "__file__", None) or "unknown location"
    text = f"cannot import name {name!r} from {module.__name__!r} ({file})"
    raise ImportError(text, name=module.__name__, path=getattr(module, "__file__", None))


@_op
def IMPORT_FROM(vm: Interpreter, frame: Frame, name: str) -> None:
    import sys

    module = frame.stack[-1]
    if not hasattr(module, name):
        full = f"{module.__name__}.{name}"
        if full in sys.modules:
            frame.push(sys.modules[full])
            return
        vm.native(_import_from, module, name)
    frame.push(objects.load_attr(vm, module, name))


# ---- match ----


@_op
def MATCH_MAPPING(vm: Interpreter, frame: Frame, _: Any) -> None:
    from collections.abc import Mapping

    frame.push(issubclass(vm.type_of(frame.stack[-1]), Mapping))


@_op
def MATCH_SEQUENCE(vm: Interpreter, frame: Frame, _: Any) -> None:
    from collections.abc import Sequence

    kind = vm.type_of(frame.stack[-1])
    frame.push(issubclass(kind, Sequence) and not issubclass(kind, str | bytes | bytearray))


@_op
def MATCH_KEYS(vm: Interpreter, frame: Frame, _: Any) -> None:
    subject, keys = frame.stack[-2:]
    frame.push(match_keys(vm, subject, keys))


@_op
def MATCH_CLASS(vm: Interpreter, frame: Frame, n: int) -> None:
    subject, cls, names = frame.pops(3)
    frame.push(match_class(vm, subject, cls, n, names))
