"""Memory for the intermediate values of programs on a CPU, which lives for the length of a call: programs that run in turn share it.

A training step is three programs (forward, backward, update), and a model may be dozens. A program's text works out addresses once, so
that a program has a form for each block of memory that it has met: mostly one, as large as the largest program needs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .names import empty

Run = Callable[..., Sequence[Any]]
LEAST = 1 << 20  # bytes; programs with less have memory of their own, which costs less time a call


class _Program:
    """Stands for a program."""


@dataclass(eq=False)
class _Block:
    """Memory, and the forms of programs that are made for it; those of a program go when it does."""

    memory: torch.Tensor
    runs: weakref.WeakKeyDictionary[_Program, Run] = field(default_factory=weakref.WeakKeyDictionary)

    @property
    def bytes(self) -> int:
        return self.memory.numel()


_FREE: list[_Block] = []  # blocks that no call is using
_LOCK = threading.Lock()


def held_bytes() -> int:
    """Bytes of the blocks that wait for calls."""
    with _LOCK:
        return sum(block.bytes for block in _FREE)


def with_memory(make: Callable[..., Run], size: int) -> Run:
    """A program that needs that many bytes during each call; `make` takes what gives them. Several threads may call it at a time."""
    return alone(lambda: _made(make, empty)) if size < LEAST else _sharing(make, size)


def _made(make: Callable[..., Run], memory: Callable[[int], torch.Tensor]) -> Run:
    """A form of a program, whose tensors are those of any mode."""
    with torch.inference_mode(False), torch.no_grad():
        return make(empty=memory)


def alone(make: Callable[[], Run]) -> Run:
    """Each call that is under way has a form and memory of its own, which are kept for the next calls."""
    pool = [make()]

    def call(*args: Any) -> Sequence[Any]:
        try:
            run = pool.pop()  # atomic: another thread gets another one
        except IndexError:
            run = make()
        try:
            return run(*args)
        finally:
            pool.append(run)

    return call


def _sharing(make: Callable[..., Run], size: int) -> Run:
    program = _Program()

    def call(*args: Any) -> Sequence[Any]:
        block = _take(size)
        try:
            run = block.runs.get(program)
            if run is None:
                run = block.runs[program] = _made(make, lambda _: block.memory)
            return run(*args)
        finally:
            _give(block)

    weakref.finalize(program, _drop_unused).atexit = False  # the latest references go first: those of its forms
    return call


def _take(size: int) -> _Block:
    """The smallest free block of at least that size; where all are smaller, a new one takes the place of them."""
    with _LOCK:
        fits = [block for block in _FREE if block.bytes >= size]
        if fits:
            block = min(fits, key=lambda b: b.bytes)
            _FREE.remove(block)
            return block
        old = _FREE[:]
        _FREE.clear()
    del old  # before memory is asked for
    with torch.inference_mode(False):
        return _Block(empty(size))


def _give(block: _Block) -> None:
    """The block is free; one that no program needs any more is given back."""
    if block.runs:
        with _LOCK:
            _FREE.append(block)


def _drop_unused() -> None:
    """A program is no more. The collector may say so while this very thread holds the lock: then the next one that goes drops both."""
    if not _LOCK.acquire(blocking=False):
        return
    try:
        unused = [block for block in _FREE if not block.runs]
        for block in unused:
            _FREE.remove(block)
    finally:
        _LOCK.release()
