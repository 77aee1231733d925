"""Warnings and log messages: given out when the compiled call runs, with the line of the user's that they come from.

Which warnings are errors, and which levels are logged, is the state of the process: it is guarded where the program asks, and a
warning that would be raised breaks the graph, so that it is raised where the program can catch it.
"""

from __future__ import annotations

import functools
import gc
import io
import logging
import sys
import types
import warnings
from typing import Any

from ..bytecode.frame import Frame
from ..calls.registry import Rows, row_of
from ..errors import GraphBreak
from ..guards import process_state
from ..guards.source import Attr, Const
from ..runtime.hidden_frames import caller
from ..state import Interpreter
from ..values import object as objects
from ..values.kinds import isinstance
from ..values.lazy import Unread
from ..values.text import Text, copied

__all__ = ["check"]

ROWS = Rows()


def check(function: types.FunctionType) -> None:
    """Break before a Python function of `logging` or `warnings` that has no rule: it may change which messages are given out."""
    if function.__name__ in ("__init__", "_deprecated") or row_of(function) is not None:
        return
    raise GraphBreak(f"{function.__module__}.{function.__qualname__} is called, which decides what messages are shown")


class Place:
    """A line of the program's, as messages name it."""

    def __init__(self, frame: Frame) -> None:
        self.filename, self.line, self.function = frame.code.co_filename, frame.line, frame.code.co_name
        self.namespace = frame.globals

    @property
    def module(self) -> str:
        """The name that filters of warnings compare."""
        return str(self.namespace.get("__name__", "<string>"))


def _place(vm: Interpreter, level: int) -> Place | int:
    """The line `level` calls up; where the compiled call itself has that many frames no more, how far above its caller."""
    frames = vm.frames
    return Place(frames[-max(level, 1)]) if level <= len(frames) else level - len(frames)


# ---- warnings ----


def _shown_by_python() -> Any:
    """Python's own function behind `showwarning`, whatever is in its place while this module is imported."""
    found = getattr(warnings, "_showwarnmsg_impl", None)
    if isinstance(found, types.FunctionType) and found.__module__ == "warnings":
        return found
    return next(
        (f for f in gc.get_objects() if type(f) is types.FunctionType and f.__qualname__ == "_showwarnmsg_impl"), None
    )


class _Warning:
    """`warnings.warn` at one line of the program's, or that many frames above the compiled call."""

    __name__ = "warn"

    def __init__(self, where: Place | int) -> None:
        self.where = where

    def __call__(self, message: Any, category: type[Warning], source: Any = None) -> None:
        if isinstance(self.where, int):
            warnings.warn(message, category, self.where + 1, source)
            return
        namespace = self.where.namespace
        registry = namespace.setdefault("__warningregistry__", {})
        filename, line, module = self.where.filename, self.where.line, self.where.module
        warnings.warn_explicit(message, category, filename, line, module, registry, namespace, source)


_WARNINGS = Const(warnings, "warnings")
# What shows a warning, as long as the program has not put a function of its own in its place.
_SHOWS = {"showwarning": getattr(warnings, "_showwarning_orig", None), "_showwarnmsg_impl": _shown_by_python()}


@ROWS.rule(warnings.warn)
def _warn(
    vm: Interpreter, message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **more: Any
) -> None:
    if isinstance(message, Warning):
        category = type(message)
    category = UserWarning if category is None else category
    usual = isinstance(category, type) and issubclass(category, Warning) and isinstance(message, str | Text | Warning)
    if more or not usual:
        raise GraphBreak("a warning is given in an unusual way")
    where = _place(vm, int(stacklevel))
    if vm.effects.warned is not None:
        _inside(vm, message, category, where, source)
        return
    vm.guards.add("keys", Attr(_WARNINGS, "filters"), list(warnings.filters))
    vm.guards.add("equals", Attr(_WARNINGS, "defaultaction"), warnings.defaultaction)  # type: ignore[attr-defined]
    for name in _SHOWS:
        vm.guards.add("is", Attr(_WARNINGS, name), getattr(warnings, name))
    _check_streams(vm)
    action = _action(message if isinstance(message, Text) else str(message), category, where)
    if action == "ignore":
        return
    seen = any(getattr(warnings, name) is not original for name, original in _SHOWS.items())
    if action == "error" or seen and vm.splits:
        what = "the filters make an error" if action == "error" else "goes to a function or list of the program's"
        raise GraphBreak(f"a warning is given that {what}")
    given = (message, category) if source is None else (message, category, source)
    vm.effects.calls.append((_Warning(where), given, {}))


def _check_streams(vm: Interpreter) -> None:
    """Break where a message would go to a stream that the program has put in the place of Python's: it is given out behind the graph."""
    if any((id(sys.__dict__), name) in vm.effects.globals for name in ("stdout", "stderr")):
        raise GraphBreak("a message is given while sys.stdout or sys.stderr is another stream")


def _inside(vm: Interpreter, message: Any, category: type[Warning], where: Place | int, source: Any) -> None:
    """A warning inside of a block of `catch_warnings`."""
    state = vm.effects.warned
    if isinstance(where, int) or type(message) is Text or objects.find_method(category, "__str__") is not None:
        raise state.refused("a warning of an unusual kind is given")
    made = message if isinstance(message, Warning) else vm.call(category, (message,), {})
    text = str(message) if isinstance(message, str) else vm.native(str, message)
    state.warn(text, made, category, (where.filename, where.line, where.module), source)


def _action(text: str | Text, category: type[Warning], where: Place | int) -> str:
    """What the filters say of a warning; where its line is not known, the gravest that they may say."""
    for action, message, kind, module, line in warnings.filters:
        if not issubclass(category, kind):
            continue
        if message is not None:
            if isinstance(text, Text):
                raise GraphBreak("a warning with a tensor in it is given, and the filters look at its text")
            if not message.match(text):  # type: ignore[attr-defined]
                continue
        if isinstance(where, int):
            if action == "error" or module is None and line == 0:
                return action
        elif (module is None or module.match(where.module)) and line in (0, where.line):  # type: ignore[attr-defined]
            return action
    return str(warnings.defaultaction)  # type: ignore[attr-defined]


# ---- logging ----

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50, "fatal": 50}


class _Record:
    """A message of one logger at one line of the program's."""

    __name__ = "log"

    def __init__(self, where: Place | int) -> None:
        self.where = where

    def __call__(self, logger: logging.Logger, level: int, message: Any, *args: Any, extra: Any = None) -> None:
        if not logger.isEnabledFor(level):
            return
        if isinstance(self.where, Place):
            filename, line, function = self.where.filename, self.where.line, self.where.function
        else:
            frame = caller(sys._getframe(), self.where)
            filename, line, function = "(unknown file)", 0, "(unknown function)"
            if frame is not None:
                filename, line, function = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        logger.handle(logger.makeRecord(logger.name, level, filename, line, message, args, None, function, extra, None))


def _log(vm: Interpreter, logger: Any, level: Any, message: Any, *args: Any, **kwargs: Any) -> None:
    stacklevel = kwargs.pop("stacklevel", 1)
    changed = any(getattr(type(logger), n, None) is not getattr(logging.Logger, n) for n in ("_log", "findCaller"))
    if changed or kwargs.keys() - {"extra"} or type(level) is not int:
        raise GraphBreak("a message is logged in an unusual way")
    if not process_state.ask(vm, logging.Logger.isEnabledFor, (logger, level), {}):
        return
    _check_streams(vm)
    if vm.splits and process_state.ask(vm, _is_seen, (logger,), {}):
        raise GraphBreak("a message goes to a handler of the program's")
    given = copied(vm, (message, *args))
    vm.effects.calls.append((_Record(_place(vm, stacklevel)), (logger, level, *given), kwargs))


def _is_seen(logger: logging.Logger) -> bool:
    """Whether messages reach code of the program's: a handler, a filter or a record of another kind than Python's own."""
    now: Any = logger
    while now is not None:
        for holder in (now, *now.handlers):
            if holder.filters or not type(holder).__module__.startswith("logging") and holder is not now:
                return True
        now = now.parent if now.propagate else None
    return logging.getLogRecordFactory() is not logging.LogRecord


def _of_root(vm: Interpreter, level: int, message: Any, *args: Any, **kwargs: Any) -> None:
    if not logging.root.handlers:
        raise GraphBreak("the first message of all sets up logging")
    _log(vm, _held(vm, logging.root), level, message, *args, **kwargs)


def _held(vm: Interpreter, logger: logging.Logger) -> logging.Logger:
    """Loggers live as long as the process."""
    if vm.user.source_of(logger) is None and id(logger) not in vm.user.by_real:
        vm.user.track(logger, logger, Const(logger, f"logger {logger.name}"))
    return logger


for _name, _level in _LEVELS.items():
    ROWS.rule(getattr(logging.Logger, _name))(
        functools.partial(lambda level, vm, logger, *args, **kw: _log(vm, logger, level, *args, **kw), _level)
    )
    ROWS.rule(getattr(logging, _name))(
        functools.partial(lambda level, vm, *args, **kw: _of_root(vm, level, *args, **kw), _level)
    )
ROWS.rule(logging.Logger.log)(_log)


@ROWS.rule(logging.getLogger)
def _get_logger(vm: Interpreter, name: Any = None) -> Any:
    return _held(vm, vm.native(logging.getLogger, name))


def _asked(function: Any) -> None:
    ROWS.rule(function)(lambda vm, *args, **kwargs: process_state.ask(vm, function, args, kwargs))


for _function in (logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.hasHandlers):
    _asked(_function)
_asked(logging.getLevelName)


# ---- text into streams ----


@ROWS.rule(print)
def _print(
    vm: Interpreter, *values: Any, sep: Any = None, end: Any = None, file: Any = None, flush: Any = False
) -> Any:
    """Into a stream that the program has made; what everybody sees is written by CPython."""
    stream = vm.load_attr(sys, "stdout") if file is None else file
    if stream is None:
        return
    if not vm.is_created(stream):
        raise GraphBreak("print is called")
    # Unread until here: where the graph breaks, CPython alone looks at them.
    values = tuple(v.read() if type(v) is Unread else v for v in values)
    sep, end, flush = (v.read() if type(v) is Unread else v for v in (sep, end, flush))
    if not all(text is None or isinstance(text, str) for text in (sep, end)):
        vm.native(print, sep=sep, end=end, file=io.StringIO())  # which refuses them
    for place, value in enumerate(values):
        if place:
            vm.call(vm.load_attr(stream, "write"), (" " if sep is None else sep,), {})
        vm.call(vm.load_attr(stream, "write"), (vm.call(str, (value,), {}),), {})
    vm.call(vm.load_attr(stream, "write"), ("\n" if end is None else end,), {})
    if vm.truth(flush):
        vm.call(vm.load_attr(stream, "flush"), (), {})
