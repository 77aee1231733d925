"""Generators that a program drops half-way: CPython closes them there and then, so that their cleanup runs in its place.

Capture closes its own in the same place, by counting references as CPython does. Where the cleanup cannot be captured, or a graph
break would hand the generator on in a way that keeps it alive for longer, the frame in which it is made runs in CPython from there on.
"""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ...ir.snapshots import members
from ..breaks.breaks import Restart
from ..errors import CaptureError, GraphBreak
from ..guards.source import Fetch
from ..state import Generator, Interpreter
from ..values.kinds import isinstance, namespace_of
from ..values.lazy import Unread
from .frame import Frame
from .instruction import Program, disassemble

__all__ = [
    "HOLDERS",
    "check_dropped",
    "check_left",
    "check_returned",
    "check_split",
    "holds_open",
    "is_noticed",
    "may_be_dropped",
    "must_run",
    "places_of",
]

_MESSAGE = "a generator is dropped half-way, and closing it here cannot be captured"


def places_of(vm: Interpreter) -> list[tuple[Frame, int]]:
    """The frames in which something is being made that can be suspended, and the instruction that each is at."""
    frames: list[tuple[Frame, int]] = []
    for frame in vm.frames:
        if not frame.direct:
            break
        frames.append((frame, frame.begun))
    return frames


def is_managed(vm: Interpreter) -> bool:
    """Whether a generator that is made now is that of a context manager, which ends it before it drops it."""
    return bool(vm.frames) and vm.frames[-1].code.co_filename == contextlib.__file__


def must_run(generator: Generator, reason: str = _MESSAGE, left: Frame | None = None) -> CaptureError:
    """The break that lets CPython run the frame around the generator, from where that was made on."""
    error = GraphBreak(reason)
    error.frames = tuple(generator.vm.places())
    alive = [id(frame) for frame in generator.vm.frames if frame is not left]
    ended = not generator.vm.frames  # the first frame has returned: where it stood is still known
    around = [step for frame, step in generator.places if ended or id(frame) in alive]
    error.split = Restart(around[-1], native=True) if around else None
    return error


def check_split(vm: Interpreter, frames: Iterable[Frame], native: bool) -> None:
    """Whether open generators come to their end in time behind a break: those that loops hold do, where pieces follow."""
    waiting = _open(vm, may_open=native)
    if not waiting:
        return
    held = [v for frame in frames for v in (*frame.stack, *frame.before)]
    named = {id(v) for frame in frames for v in frame.fast.values()}
    for generator in waiting:
        ends = generator.managed or _is_among(generator, held) and id(generator) not in named
        if native or not ends:  # CPython's rest of a frame is called with what the frame holds, which its caller keeps
            raise must_run(generator, "a generator is half-way at a graph break")


def check_returned(vm: Interpreter, known: Iterable[int]) -> None:
    """Whether each open generator is part of what the call leaves behind: others were dropped without capture seeing it."""
    for generator in _open(vm):
        if id(generator) not in known:
            raise must_run(generator)


def check_left(vm: Interpreter, frame: Frame) -> None:
    """An exception leaves a frame: its variables live as long as the traceback."""
    held = {id(value) for value in frame.fast.values()}
    for generator in _open(vm):
        if id(generator) in held:
            raise must_run(generator, "an exception leaves a frame that has a generator half-way", frame)


def check_dropped(vm: Interpreter, value: Any) -> None:
    """A piece drops an iterator that it was given: its caller would keep it alive until the piece ends."""
    real, source = (value.value, value.source) if type(value) is Unread else (value, vm.user.source_of(value))
    if source is None or not hasattr(type(real), "__next__"):
        return
    if closes(real):
        raise GraphBreak("a generator is closed that was made before this graph")
    vm.guards.add("equals", Fetch(closes, source), False)


def may_be_dropped(vm: Interpreter) -> bool:
    """Whether a generator waits that has something to do when the program drops it: those of context managers are ended before."""
    return any(not generator.managed for generator in _open(vm, may_open=True))


HOLDERS = frozenset([types.GeneratorType, list, tuple, dict, set, deque])
_MOST = 256  # items of a container that are looked at


def holds_open(value: Any, depth: int = 2) -> bool:
    """Whether a value is a real generator that is half-way and has something to do when it is closed, or a container that holds one."""
    if type(value) is types.GeneratorType:
        return value.gi_suspended and closes(value)
    return depth > 0 and any(type(v) in HOLDERS and holds_open(v, depth - 1) for v in _held(value))


def is_noticed(value: Any) -> bool:
    """Whether a variable's letting go of a value may be seen: real generators have something to do then, weak references are dead.

    These are asked of what the variable holds and of its items or attributes.
    """
    value = value.value if type(value) is Unread else value
    plain = not isinstance(value, (*_ELSEWHERE, weakref.ProxyType, weakref.CallableProxyType))
    attributes = namespace_of(value) if plain else None
    if _is_referred_to(value) or attributes and any(map(_is_referred_to, attributes.values())):
        return True
    if type(value) not in HOLDERS:
        return False
    if any(map(_is_referred_to, _held(value))):
        return True
    return any(type(v) is types.GeneratorType and closes(v) for v in (value, *_held(value)))


def _is_referred_to(value: Any) -> bool:
    return not isinstance(value, _ELSEWHERE) and weakref.getweakrefcount(value) > 0


# What others hold, too; fake tensors have weak references of torch's.
_ELSEWHERE = (Tensor, type, types.ModuleType, types.FunctionType)


def _held(value: Any) -> Iterable[Any]:
    if type(value) is types.GeneratorType or len(value) > _MOST:
        return ()
    return value.values() if type(value) is dict else value


def closes(value: Any) -> bool:
    """Whether dropping the value runs something of the program's: an iterator that is, or holds, a generator with handlers that has not ended."""
    if type(value) is types.GeneratorType:
        if value.gi_frame is None:
            return False
        if _cleans_up(disassemble(value.gi_code), None):
            return True
    elif type(value).__module__ not in ("builtins", "itertools"):
        return False
    return any(closes(held) for held in gc.get_referents(value) if hasattr(type(held), "__next__"))


def _open(vm: Interpreter, may_open: bool = False) -> list[Generator]:
    """The generators that wait at a `yield` inside of a block that has something to do when they are closed; or that may come to one."""
    waiting = [g for g in members(vm.generators) if (g.started or may_open) and not g.finished and not g.running]
    return [g for g in waiting if _cleans_up(g.frame.program, None if may_open else g.frame.ip - 1)]


def _cleans_up(program: Program, index: int | None) -> bool:
    entries = [program.handler(index)] if index is not None else program.exceptions
    ops = [program.instructions[entry.target : entry.target + 1] for entry in entries if entry is not None]
    # Since 3.12 each generator has a handler of the compiler's own, for StopIteration.
    return any(not found or not _is_the_compilers(found[0]) for found in ops)


def _is_the_compilers(ins: Any) -> bool:
    return "STOPITERATION_ERROR" in (ins.op, ins.arg)


def _is_among(generator: Generator, held: list[Any]) -> bool:
    """Whether the stack of a frame holds the generator, or that of a generator which is held so."""
    if any(v is generator for v in held):
        return True
    others = [v for v in held if type(v) is type(generator)]
    return any(_is_among(generator, other.frame.stack) for other in others)
