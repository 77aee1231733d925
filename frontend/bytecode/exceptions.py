"""What the program's exceptions look like: CPython's own messages, contexts, and tracebacks of the program's lines.

An exception that the program catches during capture never went through real frames. So that the program can look at its
traceback all the same, each interpreted frame that it leaves adds an entry whose frame has the code's name and file and
whose line is the program's.
"""

from __future__ import annotations

import dis
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

from ..errors import CaptureError, GraphBreak, UserRaise
from ..graph.sym_nodes import concrete
from ..guards.definitions import lookup
from ..guards.source import Attr, Const, Fetch, Source
from ..state import Interpreter
from ..torch_private.symbols import is_of_this_call
from ..values.kinds import HEAP_TYPE, SYMBOLIC, isinstance
from .frame import Frame
from .instruction import disassemble, per_code, raw_instructions
from .version import CLOSE_RUNS

__all__ = [
    "add_entry",
    "binding_error",
    "builtin_members",
    "cleaned",
    "first_context",
    "frame_attr",
    "guarded",
    "handled_outside",
    "left_over",
    "matched",
    "name_error",
    "note",
    "note_missing",
    "set_context",
    "shown_frame",
    "signature_text",
    "standing_for",
    "traceback_of",
    "unbound_local",
]

_NOTHING = (lambda: None).__code__
_FRAME = (lambda: (yield)).__code__  # the frame of a generator that never began refers to no other frames
_KINDS = 0x04 | 0x08  # *args, **kwargs


def binding_error(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException:
    """The TypeError of a call whose arguments do not fit, in the words of the running version of CPython."""
    code = function.__code__
    empty = _NOTHING.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=code.co_varnames,
        co_nlocals=code.co_nlocals,
        co_flags=(_NOTHING.co_flags & ~_KINDS) | (code.co_flags & _KINDS),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
    twin = types.FunctionType(empty, {}, function.__name__, function.__defaults__)
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__ = function.__qualname__
    try:
        twin(*args, **kwargs)
    except TypeError as error:
        return cleaned(error)
    raise AssertionError(f"the arguments fit {function.__qualname__} after all")


def unbound_local(name: str) -> UserRaise:
    """A local variable, of this function, without a value."""
    text = f"cannot access local variable '{name}' where it is not associated with a value"
    return UserRaise(_named(UnboundLocalError(text), None))


def name_error(name: str, free: bool = False) -> UserRaise:
    """A global name that does not exist, or a variable of an enclosing function without a value."""
    if free:
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        return UserRaise(_named(NameError(text), name))
    return UserRaise(_named(NameError(f"name '{name}' is not defined"), name))


def _named(error: Any, name: str | None) -> Any:
    error.name = name
    return error


def note_missing(vm: Interpreter, error: BaseException, obj: Any, name: str) -> None:
    """Note on an AttributeError that a look-up ends in what was looked for, as CPython does where it says neither."""
    kind = type(error)
    if not issubclass(kind, AttributeError) or error.name is not None or error.obj is not None:  # type: ignore[attr-defined]
        return
    own = kind is not AttributeError and any(field in vars(c) for c in kind.__mro__[:-4] for field in _NOTED)
    if own or vm.user.source_of(error) is not None:
        vm.call(setattr, (error, "name", name), {})
        vm.call(setattr, (error, "obj", obj), {})
        return
    error.name = name  # type: ignore[attr-defined]
    if not vm.is_frontend_class(type(obj)) or not vm.is_frontend_class(vm.type_of(obj)):
        error.obj = obj  # type: ignore[attr-defined] # a `super()` is none that the program may have


_NOTED = ("__setattr__", "name", "obj")


def signature_text(function: Any) -> str:
    """How errors of a call name what is called: `module.qualname()`."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def cleaned(error: BaseException, outer: BaseException | None = None) -> BaseException:
    """An exception of C code without what the frontend's own frames left on it."""
    error.__traceback__ = None
    if isinstance(error.__context__, UserRaise | CaptureError) or error.__context__ is outer is not None:
        suppressed = error.__suppress_context__
        error.__context__ = None
        error.__suppress_context__ = suppressed
    return error


def guarded(error: BaseException, args: Any, kwargs: Any) -> BaseException:
    """The error of C code, which may follow from the numbers that it is given (`1 / k`): those that change are guarded to be these.

    What is said of types, attributes and ends of iterators is the same for all numbers.
    """
    if isinstance(error, TypeError | AttributeError | StopIteration):
        return error
    for value in _held_by((args, kwargs)):
        if isinstance(value, SYMBOLIC) and is_of_this_call(value):
            concrete(value)
    return error


def _held_by(value: Any) -> Iterator[Any]:
    """What containers hold; an `OrderedDict` that was changed as a plain dict knows no order to go by, but its values as one."""
    for leaf in pytree.tree_leaves(value, is_leaf=lambda v: type(v) is OrderedDict):
        if type(leaf) is OrderedDict:
            yield from _held_by([*dict.values(leaf)])
        else:
            yield leaf


class note:
    """Keeps what an exception says of its origin while C code carries it from a callback to the interpreter."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._facts = (error.__cause__, error.__context__, error.__suppress_context__, error.__traceback__)

    def restore(self) -> BaseException:
        """The exception as it was noted."""
        error = self.error
        error.__cause__, error.__context__, error.__suppress_context__, error.__traceback__ = self._facts
        return error


def set_context(error: BaseException, handled: BaseException | None) -> None:
    """What a `raise` does while `handled` is being handled; a chain never becomes a circle."""
    if handled is None or handled is error:
        return
    link: BaseException | None = handled
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__context__ is error:
            link.__context__ = None
            break
        link = link.__context__
    error.__context__ = handled


def builtin_members(error: BaseException) -> list[str]:
    """The fields of a builtin exception class that its constructor does not fill from `args` when it is only allocated."""
    if isinstance(error, BaseExceptionGroup | OSError):
        return []
    classes = [c for c in type(error).__mro__ if not c.__flags__ & HEAP_TYPE]
    names = [n for c in classes for n, d in c.__dict__.items() if type(d) is types.MemberDescriptorType]
    return [n for n in names if n != "__suppress_context__" and getattr(error, n, None) is not None]


def first_context(vm: Interpreter) -> None:
    """Rely on the caller handling no exception, which would be the context of the program's first one."""
    if vm.outer_error is not None:
        raise GraphBreak("the exception is read that the caller is handling")
    vm.guards.add("equals", Fetch(handled_outside, Const(sys, "sys")), None)


def handled_outside(_: Any) -> BaseException | None:
    """The exception that the caller of a compiled function is handling."""
    return sys.exc_info()[1]


def add_entry(vm: Interpreter, error: BaseException, frame: Frame) -> None:
    """Note in the traceback that `error` leaves, or is caught in, the line that `frame` is at."""
    source = vm.user.source_of(error)
    if source is not None:
        _add_to_caller_s(vm, error, frame, source)
    else:
        error.__traceback__ = _entry(error.__traceback__, frame)
    if frame.shown is not None:
        frame.shown.line = frame.line


def _entry(behind: types.TracebackType | None, frame: Frame) -> types.TracebackType:
    return types.TracebackType(behind, shown_frame(frame), _offsets(frame.code)[frame.index], frame.line)


@per_code
def _offsets(code: types.CodeType) -> list[int]:
    """Where CPython is when an instruction of the normal form raises: of a call's group at the call itself."""
    found: list[int] = []
    for ins in reversed(raw_instructions(code)):
        found.append(found[-1] if ins.opname in ("KW_NAMES", "PRECALL") else ins.offset)
    found.reverse()
    return [found[ordinal] for ordinal, _ in disassemble(code).origins]


def _add_to_caller_s(vm: Interpreter, error: BaseException, frame: Frame, source: Source) -> None:
    """The same for an exception that was there before, and has not been raised by then: others keep the traceback that they have."""
    written, trace = vm.effects.attr(error, "__traceback__")
    if not written and error.__traceback__ is not None:
        return
    if not written:
        vm.guards.add("is", Attr(source, "__traceback__"), None)
    vm.effects.write_attr(error, "__traceback__", _entry(trace, frame))


def traceback_of(vm: Interpreter, error: BaseException) -> Any:
    """`error.__traceback__`, as the program has left it."""
    written, trace = vm.effects.attr(error, "__traceback__")
    return trace if written else error.__traceback__


class Shown:
    """What stands for an interpreted frame where the program looks at it: a frame of CPython's, the line at which the other was last left."""

    __slots__ = ("code", "frame", "globals", "line", "waiting")

    def __init__(self, frame: Frame) -> None:
        self.code, self.globals, self.line = frame.code, frame.globals, frame.line
        waiting = types.FunctionType(_code_of(frame.code), {"__builtins__": {}, _SHOWN: self})()
        self.frame: types.FrameType = waiting.gi_frame
        # Else the generator goes at once, and its frame becomes an object of its own. In one circle both would be collected together, also
        # where a traceback still holds the frame, which would lose the globals that it borrows of the generator's function.
        self.waiting = waiting if CLOSE_RUNS else None


_SHOWN = "<shown>"


def shown_frame(frame: Frame) -> types.FrameType:
    """The frame of CPython's that stands for an interpreted one: the same each time."""
    if frame.shown is None:
        frame.shown = Shown(frame)
    made: types.FrameType = frame.shown.frame
    return made


def standing_for(frame: types.FrameType) -> Shown | None:
    """What is known of the interpreted frame that one of CPython's stands for; None of any other."""
    shown = frame.f_globals.get(_SHOWN)
    return shown if type(shown) is Shown else None


def frame_attr(vm: Interpreter, frame: types.FrameType, name: str) -> Any:
    """An attribute of a frame that stands for an interpreted one; NotImplemented of any other."""
    shown = standing_for(frame)
    if shown is None:
        return NotImplemented
    if name == "f_lineno":
        return next((f.line for f in vm.frames if f.shown is shown), shown.line)
    if name in ("f_code", "f_globals"):
        return shown.code if name == "f_code" else shown.globals
    raise GraphBreak(f"{name} of a frame is read")


@per_code
def _code_of(code: types.CodeType) -> types.CodeType:
    """It is never run; where its instructions stand in the source is asked by what shows tracebacks."""
    never = bytes([dis.opmap["NOP"], 0]) * (max(len(code.co_code) - len(_FRAME.co_code), 0) // 2)
    return _FRAME.replace(
        co_code=_FRAME.co_code + never,
        co_linetable=code.co_linetable,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


# ---- `except*` ----


def matched(vm: Interpreter, error: Any, kinds: Any) -> tuple[Any, Any]:
    """What of an exception an `except* kinds` takes, as a group, and what it leaves; None where that is nothing."""
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            text = "catching classes that do not inherit from BaseException is not allowed"
            raise UserRaise(TypeError(text))
        if issubclass(kind, BaseExceptionGroup):
            text = "catching ExceptionGroup with except* is not allowed. Use except instead."
            raise UserRaise(TypeError(text))
    if error is None:
        return None, None
    if isinstance(error, kinds):
        return (error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", (error,))), None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    _check_derived(error)
    return vm.native(BaseExceptionGroup.split, error, kinds)  # type: ignore[no-any-return]


def left_over(vm: Interpreter, whole: BaseException, handled: list[Any]) -> Any:
    """What is raised behind all `except*` of an exception: what nobody took, or raised again, as it was in the group, and what was raised anew."""
    if not handled or not isinstance(whole, BaseExceptionGroup):
        return handled[0] if handled else None
    _check_derived(whole)
    mine = _origin(whole)
    again = [e for e in handled if e is not None and all(a is b for a, b in zip(_origin(e), mine, strict=True))]
    leaves = {id(leaf) for error in again for leaf in _leaves(error)}
    rest = vm.native(whole.subgroup, lambda e: id(e) in leaves) if leaves else None
    anew = [e for e in handled if e is not None and not any(e is other for other in again)]
    if not anew:
        return rest
    anew += [] if rest is None else [rest]
    return BaseExceptionGroup("", anew) if len(anew) > 1 else anew[0]


def _check_derived(group: BaseException) -> None:
    if lookup(type(group), "derive")[0] is not BaseExceptionGroup.__dict__["derive"]:
        raise GraphBreak("an exception group with a `derive` of its own is split")


def _origin(error: BaseException) -> tuple[Any, ...]:
    """What parts of one group have in common, and what is raised anew has not."""
    notes = getattr(error, "__notes__", None)
    return notes, error.__traceback__, error.__cause__, error.__context__, isinstance(error, BaseExceptionGroup)


def _leaves(error: BaseException) -> list[BaseException]:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [error]
