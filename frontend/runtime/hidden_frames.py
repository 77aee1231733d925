"""Frames of this package that do not count as callers: warnings and log messages of the program name the lines that they name in eager.

`warnings.warn(stacklevel=2)` and `Logger.findCaller` pass over frames of Python's own import system, which both of them know by
its file names: those that hold "importlib" and "_bootstrap". What stands between two frames of the program has such names too.
"""

from __future__ import annotations

import types
from typing import TypeVar

__all__ = ["caller", "is_unseen", "name_of", "unseen"]

_MARK = "#importlib_bootstrap"

F = TypeVar("F")


def name_of(file: str) -> str:
    """The file name of code whose frames are passed over; tracebacks show it, with the lines of the file."""
    return f"{file[:-1]}{_MARK}>" if file.endswith(">") else f"{file}{_MARK}"


def is_unseen(filename: str) -> bool:
    """Whether warnings pass over frames of the file."""
    return "importlib" in filename and "_bootstrap" in filename


def unseen(made: F) -> F:
    """The same function, or class with all functions in it, whose frames are passed over."""
    for member in vars(made).values() if isinstance(made, type) else (made,):
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(function, types.FunctionType):
            function.__code__ = _renamed(function.__code__)
    return made


def _renamed(code: types.CodeType) -> types.CodeType:
    if is_unseen(code.co_filename):
        return code
    constants = tuple(_renamed(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name_of(code.co_filename), co_consts=constants)


def caller(frame: types.FrameType | None, up: int) -> types.FrameType | None:
    """The frame that many above `frame`; those that warnings pass over are not counted."""
    while frame is not None and up:
        frame = frame.f_back
        up -= frame is None or not is_unseen(frame.f_code.co_filename)
    return frame
