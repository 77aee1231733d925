"""What programs see of frames, tracebacks and generators inside compiled functions."""

from __future__ import annotations

import gc
import inspect
import traceback
from typing import Any

import torch
from harness import check, compiled
from torch import Tensor

from intarsia.frontend.bytecode.version import V312

X = torch.arange(4.0)


def raised(function: Any, *args: Any) -> tuple[str, str]:
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def lines(function: Any) -> list[Any]:
    try:
        function()
    except Exception as error:
        trace, found = error.__traceback__.tb_next, []  # type: ignore[union-attr]
        while trace:
            frame = trace.tb_frame
            found.append((frame.f_lineno - frame.f_code.co_firstlineno, frame.f_code is function.__code__))
            trace = trace.tb_next
        return found
    return []


def test_lines_of_frames() -> None:
    def twice() -> None:
        try:
            [][1]
        except IndexError:
            {}["k"]

    def program(x: Tensor) -> Any:
        return x + 1, lines(twice), lines(lambda: 1 // 0)

    check(program, X)


def test_generators_say_of_themselves() -> None:
    class Wrong(Exception):
        def __new__(cls, *args: Any) -> Any:
            return cls

    def program(x: Tensor) -> Any:
        def inner() -> Any:
            states.append(inspect.getgeneratorstate(outer_one))
            yield 1

        def outer() -> Any:
            yield from inner()

        states: list[str] = []
        outer_one = outer()
        states.append(inspect.getgeneratorstate(outer_one))
        next(outer_one)
        states += [inspect.getgeneratorstate(outer_one), outer_one.gi_yieldfrom.gi_code.co_name]
        names = [outer_one.__name__, outer_one.gi_frame.f_code is outer.__code__]
        outer_one.__name__ = "other"
        errors = [raised(setattr, outer_one, "__name__", 1), raised(delattr, outer_one, "__qualname__")]
        errors += [raised(outer_one.throw, ValueError, 1, 2)[:1], raised(outer_one.throw, Wrong)[:1]]
        return x + 1, states, names, errors, outer_one.__name__, outer_one.gi_frame

    check(program, X)


def test_tracebacks_that_are_set() -> None:
    def program(x: Tensor, error: Exception) -> Any:
        try:
            x.no_such_thing
        except AttributeError as made:
            made.__traceback__ = None
            first = made.with_traceback(None) is made, made.__traceback__
        same = error.with_traceback(None) is error
        return x + 1, first, same, raised(error.with_traceback, 1)

    fast, log = compiled(program)
    for _ in range(2):
        mine = ValueError("v")
        raised(lambda: (_ for _ in ()).throw(mine))  # noqa: B023
        assert mine.__traceback__ is not None
        assert fast(X, mine)[1:] == program(X, ValueError("v"))[1:]
        assert mine.__traceback__ is None
    assert not log.breaks


class Manager:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.seen += [kind, error, trace is not None and trace.tb_frame.f_code.co_name]
        return True


def test_an_exception_of_the_caller_s_gets_a_traceback() -> None:
    def program(x: Tensor, error: Exception) -> Any:
        manager = Manager()
        with manager:
            raise error
        return x + 1, manager.seen, error.__traceback__ is not None

    fast, log = compiled(program)
    for _ in range(3):
        mine, other = ValueError("v"), ValueError("v")
        got, want = fast(X, mine), program(X, other)
        assert got[1][0] is ValueError and got[1][1] is mine and got[1][2] == want[1][2] == "program"
        assert got[2] is want[2] is True
        assert mine.__traceback__ is not None and mine.__traceback__.tb_frame.f_code.co_name == "program"
        assert fast(X, mine)[1][2] == "program"
    assert not log.breaks


def test_frames_of_a_traceback_outlive_the_capture() -> None:
    """On Python 3.12 they lost their globals when garbage was collected: the process ended where one was looked at."""

    def program(x: Tensor) -> Any:
        try:
            [][1]
        except IndexError as error:
            return x + 1, error

    for _ in range(2):
        _, error = compiled(program)[0](X)
        gc.collect()
        filled = [{i: i} for i in range(1000)]  # other objects, in the memory that was freed
        for _ in range(50):
            (found,) = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__))
        assert found.filename == __file__ and found.name == "program"
        assert filled and [*error.__traceback__.tb_frame.f_globals]


class Lacking:
    @property
    def found(self) -> Any:
        return self.missing  # type: ignore[attr-defined]


def texts_of_tracebacks() -> list[str]:
    def inner(a: Any, *, b: Any) -> Any:
        return (a +
                b["x"])  # fmt: skip

    def steps() -> Any:
        yield 1
        yield int("b") + 1

    def after() -> None:
        try:
            {}["k"]  # type: ignore[index]
        finally:
            said.append("finally")

    said: list[str] = []
    failing = [
        lambda: inner(1, b=3),
        lambda: list(steps()),
        lambda: Lacking().found,
        lambda: sorted([1, 2], key=lambda v: v.key),
        lambda: 1 / 0 + undefined,  # type: ignore[name-defined] # noqa: F821
        lambda: undefined.some.name,  # type: ignore[name-defined] # noqa: F821
        lambda: [1 for item in (1,) if item.absent],  # type: ignore[attr-defined]
        after,
    ]
    for function in failing:
        try:
            function()
        except Exception:
            said.append(traceback.format_exc())
    try:
        try:
            inner(1, b=2)
        except TypeError as error:
            raise ValueError("v") from error
    except ValueError as error:
        said.append("".join(traceback.format_exception(error)))
        after = traceback.extract_tb(error.__traceback__)  # type: ignore[assignment]
        said += [f"{entry.lineno} {entry.colno} {entry.end_lineno} {entry.end_colno} {entry.line}" for entry in after]  # type: ignore[attr-defined]
    return said


def test_texts_of_tracebacks_mark_the_same_columns() -> None:
    fast, log = compiled(lambda x: (x + 1, texts_of_tracebacks()))
    got, want = fast(X)[1], texts_of_tracebacks()

    def below(text: str) -> str:  # the first frame is the caller's of another line here
        return text.partition("in texts_of_tracebacks\n")[2]

    assert [below(text) or text for text in got] == [below(text) or text for text in want]
    assert any("^^^" in text for text in got) and not log.fallbacks
    # Since 3.12 `traceback` looks at the variables of frames for names that are alike.
    assert all(b.reason == "f_locals of a frame is read" for b in log.breaks) if V312 else not log.breaks
