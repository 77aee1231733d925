"""Locks that a call makes, with what lies on them; exceptions of the program's that are no `Exception`, on their way through C code; patterns."""

from __future__ import annotations

import collections
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harness import compiled


class Box:
    """What the caller holds."""


BOX = Box()


def held(lock: Any) -> str:
    """Whether a lock is taken, as its text says."""
    return repr(lock).split()[0]


def conditions(x: torch.Tensor) -> Any:
    condition, lock, event = threading.Condition(), threading.Lock(), threading.Event()
    some, one = threading.Semaphore(2), threading.BoundedSemaphore(1)
    out: list[Any] = [lock.locked(), condition._is_owned()]  # type: ignore[attr-defined]
    with condition:
        out.append(condition._is_owned())  # type: ignore[attr-defined]
        condition.notify()
    with lock:
        out.append(lock.locked())
    with some:
        out += [some.acquire(blocking=False), some.acquire(blocking=False)]
        some.release()
    with one:
        pass
    try:
        one.release()
    except ValueError as error:
        out.append(str(error))
    event.set()
    out += [event.is_set(), event.wait()]
    try:
        lock.release()
    except RuntimeError as error:
        out.append(str(error))
    return x + len(out), out, lock.acquire(False), lock.acquire(False), lock.release()


def kept(x: torch.Tensor) -> Any:
    lock, BOX.condition = threading.RLock(), threading.Condition()  # type: ignore[attr-defined]
    with lock, lock:
        y = x * 2
    BOX.lock = lock  # type: ignore[attr-defined]
    return y


def kept_held(x: torch.Tensor) -> Any:
    BOX.lock = lock = threading.Lock()  # type: ignore[attr-defined]
    return x + 1, lock.acquire()


def given_back(x: torch.Tensor) -> Any:
    BOX.lock = lock = threading.Lock()  # type: ignore[attr-defined]
    lock.acquire()
    y = x + 1
    lock.release()
    return y


def around_a_break(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    with lock:
        y = x + 1
        os.stat("/")
        y = y * (2 if lock.locked() else 3)
    return y, lock.locked()


def waits(x: torch.Tensor) -> Any:
    with threading.Lock() as _, threading.Condition() as _:
        pass
    return x + 1, threading.Event().wait(0.001)


def waits_for_itself(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    with lock:
        return x + 1, lock.acquire(True, 0.001)


@pytest.mark.parametrize(
    ("program", "whole"),
    [
        (conditions, True),
        (kept, True),
        (given_back, True),
        (kept_held, False),
        (around_a_break, False),
        (waits, False),
        (waits_for_itself, False),
    ],
)
def test_locks_that_a_call_makes(program: Callable[..., Any], whole: bool) -> None:
    """One that waits, or is held where it is given out, is CPython's."""
    fast, log = compiled(program)
    x = torch.ones(2)
    for _ in range(3):
        vars(BOX).clear()
        want = program(x)
        lock, others = held(vars(BOX).get("lock")), [*vars(BOX)]
        vars(BOX).clear()
        assert str(fast(x)) == str(want)
        assert (held(vars(BOX).get("lock")), [*vars(BOX)]) == (lock, others)
    assert (not log.breaks and not log.fallbacks) == whole


# ---- loops that values end: none of them may have run ----


def taken_in_a_loop(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    take, is_held = lock.acquire, lock.locked
    while x.sum() < 10:
        x = x + 1
        take(False)
    return x * 2, is_held()


def taken_again_in_a_loop(x: torch.Tensor) -> Any:
    lock, count = threading.RLock(), 0
    while x.sum() < 10:
        x = x + 1
        lock.acquire()
    while lock._is_owned():  # type: ignore[attr-defined]
        lock.release()
        count += 1
    return x * 2, count


def taken_and_freed_in_a_loop(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    while x.sum() < 10:
        with lock, threading.Lock():
            x = x + 1
    return x * 2, lock.locked()


def taken_on_a_side(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    if x.sum() > 0:
        lock.acquire()
    return x + 1, lock.locked()


def taken_in_a_condition(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    y = x + 1
    if x.sum() > 4 or lock.acquire():
        y = y * 2
    return y, lock.locked()


@pytest.mark.parametrize(
    "program",
    [taken_in_a_loop, taken_again_in_a_loop, taken_and_freed_in_a_loop, taken_on_a_side, taken_in_a_condition],
)
def test_locks_that_are_taken_where_values_say_so(program: Callable[..., Any]) -> None:
    fast, log = compiled(program)
    for value in (1.0, 60.0, 4.5, -2.0, 70.0):
        x = torch.full((2,), value)
        assert str(fast(x)) == str(program(x))
    assert (not log.breaks and not log.fallbacks) == (program is taken_and_freed_in_a_loop)


# ---- exceptions that are no Exception ----


class Raises:
    """Whose methods raise."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        raise self.kind("eq")

    def __hash__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        raise self.kind("next")

    def __lt__(self, other: object) -> bool:
        raise self.kind("lt")


def thrown(value: Any) -> Any:
    def steps() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            pass

    running: Any = steps()
    next(running)
    running.throw(value.kind("thrown"))


def closed(value: Any) -> Any:
    def steps() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise value.kind("closed")

    running: Any = steps()
    next(running)
    running.close()


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize(
    "act",
    [
        thrown,
        closed,
        lambda value: [1, 2].index(value),
        lambda value: {3: 1}[value],
        lambda value: list(value),
        lambda value: sorted([value, value]),
        lambda value: functools.reduce(lambda a, b: next(value), [1, 2]),
        lambda value: max([1, 2], key=lambda _: next(value)),
    ],
)
def test_exceptions_that_are_no_exception(act: Callable[..., Any], kind: Any) -> None:
    """The program catches what its own code raises below C code."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        try:
            act(Raises(kind))
        except kind as error:
            y = y * len(error.args[0])
        return y

    fast, log = compiled(program)
    x = torch.ones(2)
    assert torch.equal(fast(x), program(x))
    assert not log.breaks


@pytest.mark.parametrize("given", [(), (None,), (3,), ("bye",), ((1, 2),), (SystemExit(4),), ([5],), (1, 2)])
def test_sys_exit(given: tuple[Any, ...]) -> None:
    """It raises, as any other function may."""

    def program(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            try:
                sys.exit(*given)
            finally:
                y = y * 2
        except SystemExit as error:
            return y, type(error), error.args, error.code
        except TypeError as error:
            return y, str(error)

    def leaves(x: torch.Tensor) -> Any:
        sys.exit(*given)

    x = torch.ones(2)
    fast, log = compiled(program)
    for _ in range(2):
        assert str(fast(x)) == str(program(x))
    assert not log.breaks and not log.fallbacks
    for function in (leaves, compiled(leaves)[0]):
        with pytest.raises((SystemExit, TypeError)) as raised:
            function(x)
        assert raised.value.args == program(x)[2] if len(given) < 2 else True


# ---- patterns ----

BASES: list[tuple[type, ...]] = [
    (collections.UserDict, collections.abc.Sequence),
    (collections.UserDict, list),
    (dict, collections.abc.Sequence),
    (collections.UserList, collections.abc.Mapping),
    (list, collections.abc.Mapping),
    (collections.UserList, dict),
    (str,),
    (collections.deque,),
    (object,),
]


def test_a_pattern_takes_the_first_of_two_kinds() -> None:
    """A class that is a mapping and a sequence is what its first base is."""

    def program(x: torch.Tensor, bases: tuple[type, ...]) -> Any:
        kind = type("Kind", bases, {"__slots__": ()})
        found = []
        for value in (kind(), bases[0]()):
            match value:
                case [*_]:
                    found.append("sequence")
                case {}:
                    found.append("mapping")
                case _:
                    found.append("other")
        return x + 1, found

    x = torch.ones(2)
    for bases in BASES:
        fast, _ = compiled(program)
        assert fast(x, bases)[1] == program(x, bases)[1], bases
