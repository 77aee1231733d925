"""Functions of Python's library that meet classes of the program's: each as in eager, in one graph."""

from __future__ import annotations

import collections
import enum
import importlib
import itertools
import math
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled, same
from torch import Tensor

X = torch.arange(4.0)


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, str]:
    """The exception of a call: its type and its words."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


class Number:
    """A number by its methods; `asked` is where it is written down that it was asked."""

    def __init__(self, value: float, asked: list[Any]) -> None:
        self.value, self.asked = value, asked

    def __float__(self) -> float:
        self.asked.append(self.value)
        return self.value

    def __lt__(self, other: Number) -> bool:
        self.asked.append((self.value, other.value))
        if other.value == 13:
            raise ValueError("unlucky")
        return self.value < other.value


class Pair:
    def __init__(self, a: int) -> None:
        self.a = a

    def __getitem__(self, i: int) -> int:
        if i > 1:
            raise IndexError
        return self.a + i

    def __add__(self, other: Any) -> str:
        return "added"


def searches(x: Tensor) -> Any:
    letters = list("abracadabra")
    found = [letters.index("r", *b) for b in ((-3,), (-30,), (3, 30), (-4, -1), (2,))]
    errors = [raised(letters.index, "r", *b) for b in ((0, 2), (9,), (5, 3), (None,), (0, 1, 2))]
    return x + 1, found, errors, tuple(letters).index("b", -3), raised((1, 2).index, 3), raised([Pair(1)].index, "z")


def sorts(x: Tensor) -> Any:
    asked: list[Any] = []
    numbers = [Number(v, asked) for v in (5, 2, 13, 1, 4, 3)]
    failed = raised(numbers.sort)
    half = [n.value for n in numbers]
    plain = [n for n in numbers if n.value != 13]
    plain.sort(reverse=True)
    seen: list[int] = []
    growing = [3, 1, 2]

    def key(v: int) -> int:
        seen.append(len(growing))
        growing.append(v)
        growing.pop()
        return v

    changed = raised(growing.sort, key=key)
    mixed: list[Any] = [3, 1, "a", 0]
    words = raised(mixed.sort)
    return x * 2, failed, half, [n.value for n in plain], asked, changed, growing, seen, mixed, words


def numbers_of_objects(x: Tensor) -> Any:
    asked: list[Any] = []
    one = Number(1.5, asked)
    got = [math.sin(one), math.atan2(one, 2.0), math.floor(one), math.ceil(one), math.hypot(3.0, one)]
    wrong = [raised(math.atan2, "no number", one), raised(math.trunc, one), raised(math.pow, one, None)]
    return x + got[0], got, wrong, asked


class NotAnIterator:
    def __iter__(self) -> Any:
        return self


class OnlyNext:
    def __next__(self) -> int:
        return 1


def iterators(x: Tensor) -> Any:
    errors = [raised(f, v()) for f in (itertools.cycle, list, zip, sum) for v in (NotAnIterator, OnlyNext)]
    return x + 1, errors, raised(lambda: [*NotAnIterator()])


def operators_as_functions(x: Tensor) -> Any:
    errors = [
        raised(operator.le),
        raised(operator.and_, 1),
        raised(operator.concat, 1, 2),
        raised(operator.countOf, 3, 3),
    ]
    counts = operator.countOf(Pair(1), 2), operator.indexOf(Pair(1), 2), raised(operator.indexOf, Pair(1), 7)
    return x + 1, errors, counts, operator.concat(Pair(1), Pair(2)), operator.concat([1], [2]), raised(sorted, 1, 2, 3)


class Owner:
    nothing = property()


def properties(x: Tensor) -> Any:
    unnamed = property(lambda self: 1)

    class Late:
        pass

    Late.late = unnamed
    one, other = Owner(), Late()
    return x, [raised(f) for f in (
        lambda: one.nothing, lambda: setattr(one, "nothing", 1), lambda: delattr(one, "nothing"),
        lambda: setattr(other, "late", 1), lambda: delattr(other, "late"),
    )]  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [searches, sorts, numbers_of_objects, iterators, operators_as_functions, properties],
    ids=lambda f: f.__name__,
)
def test_as_in_eager(program: Callable[[Tensor], Any]) -> None:
    check(program, X)


def test_a_list_that_is_sorted_and_the_caller_s() -> None:
    def program(x: Tensor, items: list[Any]) -> Any:
        items.sort(key=lambda v: -v)
        return x + items[0], items.index(2, -2)

    check(program, X, [1, 3, 2])


def imported_again(name: str) -> Any:
    """A second copy of a C module."""
    before = sys.modules.pop(name)
    try:
        return importlib.import_module(name)
    finally:
        sys.modules[name] = before


def test_a_module_that_was_imported_twice() -> None:
    second, tools = imported_again("_operator"), imported_again("_functools")
    assert second.add is not operator.add

    def program(x: Tensor) -> Any:
        add = tools.partial(second.add, x)
        return (
            add(2),
            second.concat([1], [2]),
            type(add) is tools.partial,
            raised(second.le, 1),
            tools.reduce(second.mul, [2, 3]),
        )

    check(program, X)


def test_sets_and_classes_that_answer_for_them() -> None:
    class Colour(enum.Enum):
        RED = 1

    def program(x: Tensor) -> Any:
        class Items:
            def __init__(self, *items: int) -> None:
                self.items = items

            def __rand__(self, other: set[int]) -> Any:
                return sorted(other), self.items

            def __ge__(self, other: Any) -> str:
                return "asked"

        class Named:
            @property
            def __name__(self) -> str:
                return "mine"

        errors = [raised(lambda: {1} | Items(1)), raised(setattr, Colour, "RED", 2)]  # type: ignore[operator]
        return x + 1, {1, 2} & Items(3), {1} <= Items(2), errors, Named().__name__, Named.__qualname__[-5:]

    check(program, X)


class Converted:
    """A number, as it says."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value

    __float__ = __index__ = __complex__ = __int__


class DerivedInt(int):
    pass


class DerivedFloat(float):
    pass


def conversions(x):
    found = []
    for value in (1, 2.5, "a", True, DerivedInt(3), DerivedFloat(2.0), None, 1j, [1]):
        for convert in (int, float, complex, operator.index):
            try:
                made = convert(Converted(value))
            except TypeError as error:
                made = str(error)
            found.append((type(made), repr(made)))
    return x * 2, found


def test_conversions_check_what_a_method_gives():
    fast, _ = compiled(conversions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.ones(1), torch.zeros(1)):
            assert same(fast(x), conversions(x))


class Counted:
    """A mixin in front of a dict of C's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size  # more than the dict holds

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) + 1  # type: ignore[misc]


class CountedPairs(Counted, collections.OrderedDict):  # type: ignore[type-arg]
    """Whose constructor is C's, called with an object that has its own `__getitem__`."""


class CountedDefaults(Counted, collections.defaultdict):  # type: ignore[type-arg]
    """The same of another class."""


@pytest.mark.parametrize("kind", [CountedPairs, CountedDefaults])
def test_a_dict_with_its_own_getitem_is_made(kind: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = kind(3)
        made["a"] = 1
        made.update([("b", 2)])
        return x + 1, made["a"], list(made), made.size, dict.__init__(made, c=5), dict(made)

    fast, log = compiled(program)
    x = torch.ones(2)
    for _ in range(2):
        assert str(fast(x)) == str(program(x))
    assert not log.breaks and not log.fallbacks


def test_iterators_of_the_caller_s_are_compared() -> None:
    """A comparison takes nothing from them."""

    class Holder:
        def __init__(self) -> None:
            self.steps, self.pairs, self.items = (i for i in range(3)), zip([1], [2], strict=True), {1, 2}

    def program(x: torch.Tensor, h: Any) -> Any:
        found: list[Any] = [h.steps == h.items, h.items != h.steps, h.steps == h.steps, h.pairs == h.steps]
        try:
            found.append(h.items < h.steps)
        except TypeError as error:
            found.append(str(error))
        return x + 1, found, h.pairs != 3

    fast, log = compiled(program)
    x = torch.ones(2)
    for _ in range(2):
        holder = Holder()
        assert str(fast(x, holder)) == str(program(x, Holder()))
        assert list(holder.steps) == [0, 1, 2] and list(holder.pairs) == [(1, 2)]
    assert not log.breaks and not log.fallbacks
