"""Graph breaks: where the frames of a capture are split, and what they leave behind for the rest of the call.

A break that happens inside an instruction which has done nothing yet suspends the frames as they stand. Where the
instruction was already under way (a callback of C code, a constructor), capture starts again and stops before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..bytecode.frame import Frame
from ..errors import CaptureError, GraphBreak, SourceLine, is_foreign
from ..state import Interpreter

__all__ = [
    "Break",
    "Nowhere",
    "Restart",
    "Stop",
    "Suspended",
    "before_caller",
    "restart_point",
    "split_point",
    "suspendable",
]


@dataclass(frozen=True)
class Break:
    """One place where the graph broke: for reports.

    `frames` are the user's lines, outermost first; `reason` and `advice` are sentences.
    """

    reason: str
    advice: str
    frames: tuple[SourceLine, ...]
    place: SourceLine

    @staticmethod
    def of(error: CaptureError) -> Break:
        """The report of an error."""
        return Break(error.reason, error.advice, error.frames, error.place)


@dataclass(frozen=True)
class Suspended:
    """Frames to be split, outermost first; the last one stands before the break's instruction."""

    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Restart:
    """Capture has to start again and stop before the instruction with this number.

    With `native`, CPython runs the rest of the frame that the instruction is in.
    """

    step: int
    native: bool = False


class Nowhere:
    """Nothing of the capture can be kept: the whole call runs in eager."""


class Stop:
    """A break found in an earlier attempt, to be raised again before its instruction has begun."""

    def __init__(self, error: CaptureError, native: bool = False) -> None:
        self.error, self.native = error, native

    def again(self, frame: Frame) -> CaptureError:
        """The same break, at `frame`."""
        error = GraphBreak(self.error.reason, self.error.advice)
        error.frames = self.error.frames
        return error


def split_point(vm: Interpreter) -> Suspended | Restart | None:
    """Where the capture can be split, seen from the frame in which a break was raised; None when it cannot be."""
    frames, depth = vm.frames, suspendable(vm.frames)
    if depth == 0:
        return None
    last = frames[depth - 1]
    untouched = last.begun == vm.step and vm.under_way != vm.step and vm.out.size == vm.out_size
    if depth == len(frames) and untouched:
        return Suspended(tuple(frames))
    return Restart(last.begun)


def restart_point(vm: Interpreter) -> Restart | None:
    """Where capture can begin again and stop in front of what it does now."""
    depth = suspendable(vm.frames)
    return Restart(vm.frames[depth - 1].begun) if depth else None


def suspendable(frames: list[Frame]) -> int:
    """How many frames can be suspended."""
    if not frames or not frames[0].direct:
        return 0
    depth = 1
    while depth < len(frames) and frames[depth].direct:
        depth += 1
    return min(depth, _outside(frames))


def _outside(frames: list[Frame]) -> int:
    """How many frames are around the innermost ones that are other libraries' code: these run as one call."""
    count = len(frames)
    while count > 1 and is_foreign(frames[count - 1].code.co_filename):
        count -= 1
    return count


def before_caller(suspended: Suspended) -> Restart | None:
    """The next place to try when frames cannot be suspended: before the call that made the innermost one."""
    if len(suspended.frames) < 2:
        return None
    return Restart(suspended.frames[-2].begun)
