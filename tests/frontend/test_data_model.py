"""Corners of Python's data model: methods that are no functions, fallbacks, names of objects, hashes, printing into streams."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import copy
import functools
import io
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled, said
from torch import Tensor

X = torch.arange(4.0)


def outcomes(steps: list[Callable[[], Any]]) -> list[Any]:
    """What each step gives, or the text of its TypeError."""
    found: list[Any] = []
    for step in steps:
        try:
            found.append(step())
        except TypeError as error:
            found.append(str(error))
    return found


def unusual_methods(x: Tensor) -> Any:
    """Special methods that are static, of the class, objects, or None."""

    class Called:
        def __call__(self, other: Any) -> Any:
            return "called", other

    class Odd:
        __add__ = staticmethod(lambda other: ("static", other))
        __eq__ = staticmethod(lambda other: other == 3)  # type: ignore[assignment]
        __lt__ = classmethod(lambda cls, other: (cls.__name__, other))
        __sub__ = __rmul__ = __ne__ = None  # type: ignore[assignment]
        __xor__ = Called()
        __len__ = staticmethod(lambda: 4)
        __getitem__ = staticmethod(lambda key: key * 2)
        __contains__ = staticmethod(lambda key: key == 2)
        __hash__ = staticmethod(lambda: 9)  # type: ignore[assignment]
        __neg__ = classmethod(lambda cls: cls.__name__)
        __iter__ = staticmethod(lambda: iter([1, 2]))
        __str__ = staticmethod(lambda: "text")  # type: ignore[assignment]

    class Calls:
        __call__ = Called()

    odd: Any = Odd()
    found = said(
        *(lambda: odd + 1, lambda: odd == 3, lambda: odd < 4, lambda: odd - 1, lambda: 2 * odd, lambda: odd != 1),
        *(lambda: odd ^ 5, lambda: len(odd), lambda: odd[3], lambda: 2 in odd, lambda: hash(odd), lambda: -odd),
        *(lambda: list(odd), lambda: str(odd), lambda: [odd] == [3], lambda: [odd].index(3), lambda: {odd: 1}[odd]),
        *(lambda: Calls()(7), lambda: max([odd, odd]) is odd),
    )
    return x * len(found), found


def blocked_and_virtual(x: Tensor) -> Any:
    log: list[str] = []

    class Base(abc.ABC):  # noqa: B024
        def __eq__(self, other: object) -> Any:
            log.append("base")
            return NotImplemented

        def __radd__(self, other: object) -> str:
            return "radd"

    class Blocks(Base):
        __eq__ = __radd__ = None  # type: ignore[assignment]

    @Base.register
    class Virtual:
        def __eq__(self, other: object) -> Any:
            log.append("virtual")
            return NotImplemented

    made = Base(), Blocks(), Virtual()
    found = said(*(lambda a=a, b=b: a == b for a in made for b in made), lambda: 1 + made[0], lambda: 1 + made[1])  # type: ignore[misc]
    return x + 1, found, log


def numbers(x: Tensor) -> Any:
    class Index(int):
        def __index__(self) -> int:
            return 42

    class Refuses:
        def __divmod__(self, other: Any) -> Any:
            return NotImplemented

    class Reflects(Refuses):
        def __rdivmod__(self, other: Any) -> Any:
            return "reflected"

    seven = Index(7)
    made = int(seven), float(seven), operator.index(seven), [1] * Index(2), [5, 6][Index(1)], (3, 4)[Index(0) :]
    return (
        x / made[0],
        made,
        [1, 2].index(2, Index(0)),
        said(
            *(lambda: divmod(Refuses(), 1), lambda: divmod(Refuses(), Reflects()), lambda: divmod(1, Reflects())),
            *(lambda: divmod("a", 1), lambda: divmod(7, 2), lambda: divmod(Refuses(), Refuses())),
        ),
    )


def thrown_through(x: Tensor) -> Any:
    """What is thrown into a delegate has the context of the generator that delegates."""

    def inner() -> Any:
        yield 1

    def outer(error: Exception) -> Any:
        try:
            raise error
        except Exception:
            try:
                yield from inner()
            except Exception as caught:
                yield caught is caught.__context__, repr(caught.__context__)

    found = []
    for error, thrown in [(KeyError("a"), ValueError("b")), (same := KeyError("c"), same)]:
        made = outer(error)
        next(made)
        found.append(made.throw(thrown))
    return x - 1, found


class Named:
    one, two = 1, 2


def names(x: Tensor) -> Any:
    class Own(Named):
        three = 3

        def __init__(self) -> None:
            self.four = 4

    class Says:
        def __dir__(self) -> list[str]:
            return ["b", "a"]

    made = Own()
    shown = [[n for n in dir(value) if not n.startswith("_")] for value in (made, Own, Named, Named())]
    del Own.three
    return x + len(shown), shown, dir(Says()), hasattr(made, "three"), said(lambda: delattr(Own, "three"))


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024


def hashes(x: Tensor) -> Any:
    class Plain:
        pass

    one, other = Plain(), Plain()
    table = {hash(one): 1, hash(other): 2}
    texts = hash(Point(1, "a")) == hash((1, "a")), hash(type("T", (str,), {})("b")) == hash("b")
    return x * table[hash(one)], hash(one) == hash(one), hash(one) != hash(other), isinstance(hash(one), int), texts


def printed(x: Tensor) -> Any:
    class Stream:
        def __init__(self) -> None:
            self.parts: list[str] = []

        def write(self, text: str) -> None:
            self.parts.append(text)

        def flush(self) -> None:
            self.parts.append("flushed")

    class Shown:
        def __str__(self) -> str:
            return "shown"

    own, text = Stream(), io.StringIO()
    with contextlib.redirect_stdout(text):
        print("a", 1, Shown(), sep="-", end="!")
        print(file=own)
        print("b", file=own, flush=True)
    refused = said(lambda: print("a", sep=1, file=own), lambda: print("a", file=text, end=2))  # type: ignore[call-overload]
    return x + len(own.parts), own.parts, text.getvalue(), refused


def callables(x: Tensor) -> Any:
    class Part(functools.partial):  # type: ignore[type-arg]
        pass

    class Half:
        def __enter__(self) -> None:
            pass

    def enter() -> None:
        with Half():  # type: ignore[attr-defined]
            pass

    made, wrong = Part(pow, 2), functools.partial(dict)
    wrong.keywords[3] = 4  # type: ignore[index]
    part = slice([1], [2])
    return x * made(3), said(wrong, enter), copy.copy(part) is part, asyncio.iscoroutinefunction(enter)


class Odd:
    __class__ = 5  # type: ignore[assignment]


def lying_class(x: Tensor) -> Any:
    return x + Odd().__class__, type(Odd()) is Odd


PROGRAMS = (
    *(unusual_methods, blocked_and_virtual, numbers, thrown_through, names, hashes, printed, callables, lying_class),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program: Callable[..., Any]) -> None:
    check(program, X)


def test_names_that_change_between_calls() -> None:
    class Open:
        one = 1

    value: Any = Open()
    function, log = compiled(lambda x, value: (x + 1, [n for n in dir(value) if n[0] != "_"]))
    for change in (lambda: None, lambda: setattr(Open, "two", 2), lambda: setattr(value, "three", 3)):
        change()
        assert function(X, value)[1] == [n for n in dir(value) if n[0] != "_"]
    delattr(Open, "one")
    assert function(X, value)[1] == ["three", "two"]
    assert not log.breaks


class Blocked:
    __imul__ = None
    __add__ = None

    def __mul__(self, other: Any) -> int:
        return 3

    def __radd__(self, other: Any) -> int:
        return 4


class Adds:
    def __add__(self, other: Any) -> int:
        return 5


def test_operators_that_a_class_blocks() -> None:
    def in_place() -> Any:
        made = Blocked()
        made *= 2
        return made

    steps = [in_place, lambda: Blocked() * 2, lambda: Blocked() + 1, lambda: Adds() + Blocked(), lambda: 1 + Blocked()]

    def function(x: Tensor) -> Any:
        return x + 1, outcomes(steps)

    assert check(function, X).breaks == []


def test_truths_of_arguments_that_do_not_fit() -> None:
    def function(x: Tensor) -> Any:
        return x + 1, bool(), bool(2), outcomes([lambda: bool(1, 2), lambda: bool(x=1)])

    assert check(function, X).breaks == []
