"""Python's protocols as CPython follows them: `super()`, room for items, sums and extremes in turn, enumerations with code of the program's."""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import operator
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled, said
from torch import Tensor

X = torch.ones(2)


def supers(x: Tensor) -> Any:
    class Base:
        def f(self) -> str:
            return "base"

    class Derived(Base):
        def f(self) -> str:
            return super().f()

        def without_self(self) -> Any:
            del self
            return super().f()

        def nested(self) -> Any:
            def inner() -> Any:
                return super().f()  # type: ignore[misc]

            return inner()

        def variadic(*args: Any) -> Any:
            return super().f()  # type: ignore[misc]

        def another(self) -> Any:
            self = 1  # type: ignore[assignment]  # noqa: F841
            return super().f()

        def in_a_cell(self) -> Any:
            keep = lambda: self  # noqa: E731
            return super().f(), keep() is self

    def free() -> Any:
        return super().f()  # type: ignore[misc]

    made = Derived()
    return x, said(
        *(made.f, made.without_self, made.nested, made.variadic, made.another, made.in_a_cell, free),
        *(lambda: super(1, 2), lambda: super(Base, 1), lambda: super(), lambda: super(1, 2, 3)),  # type: ignore[misc,call-overload]
        *(lambda: super(Derived, Base()).f(), lambda: super(Derived, Derived).f(made), lambda: super(Derived, made).g),
    )


def room_for_items(x: Tensor) -> Any:
    asked: list[str] = []

    class Hints:
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def __iter__(self) -> Any:
            asked.append("iter")
            return iter([1, 2])

        def __length_hint__(self) -> Any:
            asked.append("hint")
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    takes: tuple[Any, ...] = (list, tuple, sorted, set, sum, max, deque, dict.fromkeys, operator.length_hint)
    takes += (lambda v: [*v], lambda v: [0].extend(v), lambda v: (lambda *a: a)(*v))
    answers = (5, -1, "a", NotImplemented, TypeError("t"), ValueError("v"))
    return x, [str(said(functools.partial(take, Hints(a)))[0]) for a in answers for take in takes], asked


ITERATED: tuple[Callable[[Any], Any], ...] = (
    *("".join, b"".join, sum, sorted, tuple, list, set, dict, max, any, deque),
    *(
        lambda v: [].extend(v),
        lambda v: {}.update(v),
        lambda v: set().update(v),
        lambda v: list(zip([1], v)),
        lambda v: list(map(str, v)),
        lambda v: list(enumerate(v)),
        dict.fromkeys,
        reversed,
    ),
    *(lambda v: [*v], lambda v: {*v}, lambda v: functools.reduce(max, v), lambda v: list(itertools.islice(v, 1))),
    *(iter, operator.length_hint, lambda v: operator.length_hint(v, 9), lambda v: {1}.union(v)),
)


def room_by_length(x: Tensor) -> Any:
    """Who asks for a length, whose, and what becomes of an error in the answer."""
    asked: list[Any] = []

    class Counted:
        def __init__(self, length: Any, hint: Any = 3) -> None:
            self.length, self.hint = length, hint

        def __iter__(self) -> Any:
            asked.append("iter")
            return Steps()

        def __len__(self) -> Any:
            asked.append("len")
            if isinstance(self.length, Exception):
                raise self.length
            return self.length

        def __length_hint__(self) -> Any:
            asked.append("hint")
            return self.hint

    class Steps:
        left = 2

        def __iter__(self) -> Any:
            asked.append("its own")
            return self

        def __next__(self) -> Any:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return str(self.left)

        def __length_hint__(self) -> Any:
            asked.append("hint of steps")
            return 2

    found = []
    for made in (
        *(lambda: Counted(2), lambda: Counted(-1), lambda: Counted(ValueError("v")), Steps),
        *(lambda: Counted(TypeError("t")), lambda: Counted("s", -1), lambda: Counted(None, "s")),
    ):
        for take in ITERATED:
            result = said(lambda: take(made()))[0]  # noqa: B023
            found.append(type(result) if hasattr(result, "__next__") else repr(result))
    return x, found, asked


def refused_iterables(x: Tensor) -> Any:
    class Refuses:
        def __iter__(self) -> Any:
            raise TypeError("mine")

    class Wrong:
        def __iter__(self) -> Any:
            return 5

    class Fails:
        def __iter__(self) -> Any:
            raise ValueError("mine")

    kinds: tuple[Any, ...] = (lambda: 1, lambda: None, lambda: 1.5, lambda: len, Refuses, Wrong, Fails)
    return x, [repr(said(lambda: take(made()))[0]) for made in kinds for take in ITERATED]  # noqa: B023


def symbols_as_keys(x: Tensor, n: int) -> Any:
    """A number that may change is a key once it comes from an iterator; beside a key it stays what it is."""
    both = (n, n + 1)
    keys = set(i for i in both), dict.fromkeys(iter(both)), {*iter(both)}, frozenset((i, n) for i in both)
    return x * n, keys, dict((i, i) for i in both), {}.fromkeys(map(abs, both)), {1}.union(iter(both))


def items_in_turn(x: Tensor) -> Any:
    order: list[Any] = []

    class Adds:
        def __init__(self, value: int) -> None:
            self.value = value

        def __radd__(self, other: Any) -> Any:
            order.append("add")
            return other + self.value

    def made() -> Any:
        for i in range(3):
            order.append(i)
            yield Adds(i)

    def noted(name: str, value: Any) -> Any:
        order.append(name)
        return value

    total = sum(made(), 0) + max(made(), key=lambda a: noted("key", a.value)).value
    total += functools.reduce(lambda a, b: noted("reduce", a + b.value), made(), 0)
    chain = itertools.chain.from_iterable(noted("chain", [i]) for i in range(3))
    order.append("made")
    return x + total, [next(chain), *chain], order, said(lambda: functools.reduce(max, []), lambda: sum([], 1), max)


def class_methods_around_descriptors(x: Tensor) -> Any:
    class Bound:
        def __init__(self, wrapped: Any) -> None:
            self.wrapped = wrapped

        def __call__(self, *args: Any) -> Any:
            return self.wrapped(*args)

    class Wrapper:
        def __init__(self, wrapped: Any) -> None:
            self.wrapped = wrapped

        def __call__(self, *args: Any) -> Any:
            return "called", len(args)

        def __get__(self, obj: Any, owner: Any) -> Any:
            return Bound(self.wrapped.__get__(obj, owner))

    class Kind:
        inner = Wrapper(classmethod(lambda cls: cls.__name__))
        outer = classmethod(Wrapper(lambda cls: cls.__name__))

    return x, said(Kind.inner, lambda: Kind.outer(), Kind().inner, lambda: Kind().outer())


def attributes_of_containers(x: Tensor) -> Any:
    queue: Any = deque([1], maxlen=3)
    table: Any = defaultdict(None, a=1)
    factory = table.default_factory
    table.default_factory = list
    generator: Any = (i for i in ())
    return (
        *(x, factory, table["b"], table),
        said(
            *(
                lambda: setattr(queue, "maxlen", 5),
                lambda: setattr(queue, "other", 1),
                lambda: delattr(queue, "maxlen"),
            ),
            *(lambda: generator.__setstate__, lambda: copy.copy(generator), lambda: setattr(table, "other", 1)),
            *(lambda: queue.index(), lambda: [].index(), lambda: [].remove()),  # type: ignore[call-arg]
        ),
    )


def hashes(x: Tensor) -> Any:
    class Three:
        def __hash__(self) -> int:
            return 3

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    made, parts = (Three(),), frozenset([Three()])
    return (
        x,
        said(
            lambda: hash((1, Three())) == hash((1, 3)), lambda: hash(parts), lambda: hash((made, 2)) == hash(((3,), 2))
        ),
        said(*(lambda v=v: hash(v) for v in (Unhashable(), (1, Unhashable()), [], (1, [])))),
    )  # type: ignore[misc]


class Doubling(enum.Enum):
    """Without members."""

    def doubled(self) -> Any:
        return self.value * 2


def enumerations(x: Tensor) -> Any:
    class Pair(enum.Enum):
        A = (1, 2)
        B = (3, 4)

        def __new__(cls, value: int, second: int) -> Pair:
            made = object.__new__(cls)
            made._value_, made.second = value, second  # type: ignore[attr-defined]
            return made

    class Text(str, enum.Enum):  # noqa: UP042
        A = "a"

        def __init__(self, text: str) -> None:
            self.length = len(text)

        def _generate_next_value_(name: str, *_: Any) -> str:  # type: ignore[override]
            return name * 2

        C = enum.auto()

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.A if value == "z" else None

    class Equal(enum.Enum):
        A = 1

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    pairs = (
        Pair.A.second,
        Pair(3).second,
        Pair["B"].value,
        len(Pair),
        repr(Pair.A),
        Pair(1) is Pair.A,
        {Pair.A: 1}[Pair(1)],
    )
    texts = Text.A.length, Text.C.value, Text("z").name
    made: Any = Doubling("Made", "a b")
    flags: Any = enum.Flag("Flags", ["p", "q"])
    called = made.b.doubled(), made.__module__, [m.name for m in made], (flags.p | flags.q).value, flags.__module__
    return (
        *(x * Pair.B.value, pairs, texts, called, Equal.A == 3, {Equal.A: 1}.get(Equal.A)),
        said(lambda: Text("q"), lambda: Pair(7), lambda: Equal.Q, lambda: setattr(Equal, "A", 2)),  # type: ignore[attr-defined]
    )


def extremes(x: Tensor) -> Any:
    """Each item is compared before the next one is taken, and what the program does in between is seen."""
    log: list[Any] = []

    class Ranked:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __gt__(self, other: Any) -> Any:
            log.append(("gt", self.rank, other.rank))
            if self.rank == 9:
                raise ValueError("nine")
            return [1] if self.rank > other.rank else []

        def __lt__(self, other: Any) -> Any:
            log.append(("lt", self.rank, other.rank))
            if len(grown) < 5:
                grown.append(Ranked(-len(grown)))
            return self.rank < other.rank

    def taken(*ranks: int) -> Any:
        for rank in ranks:
            log.append(rank)
            yield Ranked(rank)

    def key(value: Ranked) -> tuple[int, int]:
        log.append(("key", value.rank))
        return value.rank % 3, value.rank

    grown = [Ranked(2), Ranked(1)]
    best = max(taken(1, 3, 2)).rank, min(taken(3, 1, 2)).rank, max(taken(1, 5, 3), key=key).rank, min(grown).rank
    refused = said(
        *(lambda: max(taken(1, 9, 3)), lambda: max(iter([1, "a", 2])), max, lambda: max([], key=key)),
        *(lambda: max(1, 2, default=3), lambda: min([1], other=2)),  # type: ignore[call-overload]
    )
    tensors = max(t for t in (x.sum(), x.mean(), x.sum() - 1))
    return x * best[0], best, refused, log, len(grown), max([], default=x), tensors, max((t, 1) for t in (2, 5))


PROGRAMS = (
    *(
        extremes,
        supers,
        room_for_items,
        items_in_turn,
        class_methods_around_descriptors,
        attributes_of_containers,
        hashes,
    ),
    *(enumerations, room_by_length, refused_iterables),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program: Callable[..., Any]) -> None:
    check(program, X)


def test_symbols_as_keys() -> None:
    function, log = compiled(symbols_as_keys)
    for n in (3, 5, 6, 0):
        got, want = function(X, n), symbols_as_keys(X, n)
        assert torch.equal(got[0], want[0]) and repr(got[1:]) == repr(want[1:])
    assert not log.breaks
