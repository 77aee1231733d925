"""What can go wrong in capture: three classes of errors, each with the user's own line."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import types
from dataclasses import dataclass
from typing import Any

from .breaks.hints import remedy

__all__ = [
    *("Busy", "CaptureError", "SourceLine", "GraphBreak", "InternalError", "Overridden", "Unsupported", "UserRaise"),
    *("Refused", "lines_of"),
]


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's program that capture was in: file, line number, function name."""

    filename: str
    lineno: int
    function: str

    @property
    def text(self) -> str:
        """The source text of the line, stripped; empty when the source is not available."""
        try:
            return linecache.getline(self.filename, self.lineno).strip()
        except ValueError:  # a name with a null byte, which code that was made from text may have
            return ""


def lines_of(stack_trace: str | None) -> list[SourceLine]:
    """The lines in the text that graphs keep of where a node comes from, outermost first."""
    return [SourceLine(file, int(number), function) for file, number, function in _LINE.findall(stack_trace or "")]


_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')


class Busy(Exception):
    """What torch allows one thread at a time is in use by another; the call runs in eager, a later one is captured."""


class CaptureError(Exception):
    """Base of the three: `reason` says what, `advice` what to do; the place is filled in by the interpreter."""

    heading = "cannot be captured"
    default_advice = ""  # of a subclass, where the usual remedies do not fit

    def __init__(self, reason: str, advice: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice or self.default_advice or remedy(reason)
        self.frames: tuple[SourceLine, ...] = ()
        self.split: Any = None  # where the frames can be split, see `breaks`
        self.asked = False  # whether the program asked for an error here (torch._dynamo.error_on_graph_break)

    def forget(self) -> None:
        """Let go of the frames of the capture, and with them of the call's arguments; the text stays."""
        self.split = self.__cause__ = self.__context__ = self.__traceback__ = None

    @property
    def place(self) -> SourceLine:
        """The innermost line that is neither torch's nor Python's own."""
        own = [f for f in self.frames if not (is_library(f.filename) or is_foreign(f.filename))]
        return (own or list(self.frames) or [SourceLine("<unknown>", 0, "<unknown>")])[-1]

    @property
    def filename(self) -> str:
        return self.place.filename

    @property
    def lineno(self) -> int:
        return self.place.lineno

    @property
    def line(self) -> str:
        return self.place.text

    def __str__(self) -> str:
        if not self.frames:
            return f"{self.reason}\n  what to do: {self.advice}"
        out = [f"{self.filename}:{self.lineno}: {self.line}", f"  {self.heading}: {self.reason}"]
        if self.frames[-1] != self.place:
            inner = self.frames[-1]
            out.append(f"  inside {inner.filename}:{inner.lineno}, in {inner.function}: {inner.text}")
        callers = [f for f in self.frames if not is_library(f.filename) and f != self.place]
        for frame in callers[:-5:-1]:
            out.append(f"  called from {frame.filename}:{frame.lineno}, in {frame.function}: {frame.text}")
        out.append(f"  what to do: {self.advice}")
        return "\n".join(out)


class Unsupported(CaptureError):
    """The program uses something that capture does not know; the call runs in eager."""


class Overridden(Unsupported):
    """A call is given an object that is no tensor, whose `__torch_function__` says what the call means."""


class GraphBreak(CaptureError):
    """The program leaves the graph here: it needs a tensor's values, prints, or calls foreign code."""

    heading = "graph break"


class InternalError(CaptureError):
    """A mistake in the frontend itself."""

    heading = "internal error of the frontend (please report it)"


class Refused(BaseException):  # what handles errors of capture lets it pass
    """The graph does more than it may: capture starts again without `what` (checks, branches, loops, hits, texts, draws, shells, functions, leaves, through), and breaks at the first of these."""

    def __init__(self, reason: str, what: str = "checks") -> None:
        super().__init__(reason)
        self.reason, self.what = reason, what


class UserRaise(Exception):
    """Carries an exception that the interpreted program raised; never leaves the interpreter.

    `again` says that it goes on from where it was caught, which leaves no new entry in its traceback.
    """

    def __init__(self, value: BaseException, again: bool = False) -> None:
        super().__init__(value)
        self.value, self.again = value, again


def is_library(filename: str) -> bool:
    """Whether a file belongs to torch, to Python's standard library or to this package."""
    return filename.startswith(_LIBRARY_ROOTS) or "site-packages/torch/" in filename or filename.startswith("<")


def is_foreign(filename: str) -> bool:
    """Whether a file belongs to Python's library, or to an installed package that does not use torch: nothing in it is worth capturing
    where a graph breaks inside of it."""
    _, installed, rest = filename.rpartition("site-packages" + os.sep)
    if not installed:
        return filename.startswith((_STDLIB, "<frozen "))
    top = rest.partition(os.sep)[0].removesuffix(".py")
    if top not in _USES_TORCH and any(
        _uses_torch(m) for n, m in list(sys.modules.items()) if n == top or n.startswith(f"{top}.")
    ):
        _USES_TORCH.add(top)
    return top not in _USES_TORCH


_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_USES_TORCH = {"torch"}  # installed packages that were found to use it


def _uses_torch(module: Any) -> bool:
    for value in list(getattr(module, "__dict__", {}).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name.partition(".")[0] == "torch":
            return True
    return False


def _roots() -> tuple[str, ...]:
    here = os.path.dirname(os.path.abspath(__file__))
    names = """
    contextlib.py functools.py collections/ typing.py enum.py dataclasses.py copy.py inspect.py abc.py warnings.py logging/
    _collections_abc.py operator.py re/
    """.split()  # noqa: SIM905
    return tuple(_STDLIB + n for n in names) + (here + os.sep,)


_LIBRARY_ROOTS = _roots()
