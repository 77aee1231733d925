"""What CPython answers before any code of a class or function runs: calls that do not fit, objects that hold themselves, special methods
that are objects. Each as in eager, in one graph."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import functools
import importlib
import pickle
import reprlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled, said, same
from torch import Tensor

X = torch.arange(3.0)
RAW = array.array("i", [1, 2])
FILE = sys.__stdout__


def calls_that_do_not_fit(x: Tensor) -> Any:
    fresh: Any = array.array("i")
    number: Any = int
    return x + 1, said(
        *(lambda: fresh.append(), lambda: fresh.append(1, 2), lambda: fresh.append(a=1), lambda: fresh.reverse(1)),
        *(lambda: number.bit_length(), lambda: number.bit_length("a"), lambda: (1).bit_length(2)),
        *(lambda: sys.getrefcount(), lambda: sys.getrefcount(1, 2), lambda: sys.getrefcount(a=1)),
        *(lambda: sys._getframe(a=1), lambda: sys.setprofile(), lambda: sys.settrace(*[1, 2])),
        *(lambda: type(fresh).append(), lambda: type(fresh).append(1), lambda: list.append([]), lambda: "a".upper(1)),
    )


def calls_of_the_callers(x: Tensor) -> Any:
    given: Any = RAW
    return x + 1, said(
        lambda: given.append(), lambda: given.reverse(1), lambda: given.append(a=1), lambda: type(given).append(given)
    )


def objects_that_hold_themselves(x: Tensor) -> Any:
    @dataclasses.dataclass
    class Link:
        to: Any
        n: int = 0

    @dataclasses.dataclass
    class Longer(Link):
        more: Any = None

    class Listed:
        def __init__(self, fails: bool = False) -> None:
            self.items, self.fails = [self], fails

        @reprlib.recursive_repr("<...>")
        def __repr__(self) -> str:
            if self.fails:
                raise ValueError("no")
            return f"Listed({self.items!r})"

    one, two = Link(None), Link(None)
    one.to, two.to = two, one
    longer = Longer(one)
    longer.more, listed, failing = longer, Listed(), Listed(True)
    texts = said(lambda: repr(failing), lambda: repr(failing))
    return x + 1, repr(one), str(two), f"{longer}", repr(listed), repr([listed, listed]), texts


class Noting:
    """An object that is called, and no function: nothing binds it."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    def __call__(self, *args: Any) -> Any:
        self.seen.append((self.name, [type(a).__name__ for a in args]))
        return len(self.seen)


def special_methods_that_are_objects(x: Tensor) -> Any:
    seen: list[Any] = []

    def made(**names: Any) -> Any:
        held = type("Held", (), {f"__{name}__": value for name, value in names.items()})
        return type("Holder", (), {"item": held()})

    def used(cls: Any) -> None:
        holder = cls()

        def store() -> None:
            holder.item = 3

        def delete() -> None:
            del holder.item

        seen.append(said(store, lambda: holder.item, delete, lambda: cls.item if "__get__" in vars(type(cls)) else 0))
        seen.append(said(lambda: cls.item))

    each = {name: Noting(name, seen) for name in ("get", "set", "delete")}
    used(made(**each))
    used(made(get=staticmethod(lambda *args: len(args)), set=staticmethod(lambda *args: seen.append(len(args)))))
    used(
        made(
            get=functools.partial(lambda *args: len(args), 1), set=functools.partial(lambda *a: seen.append(len(a)), 1)
        )
    )
    used(made(get=lambda *args: 7, set=None))
    used(made(get=None))
    used(made(get=lambda *args: 8, set=classmethod(lambda *args: seen.append(len(args)))))
    used(made(get=lambda *args: 9, delete=property(lambda self: lambda holder: seen.append("deleted"))))
    return x + 1, seen


def dicts_and_others(x: Tensor) -> Any:
    class Merged(dict[Any, Any]):
        def __ror__(self, other: Any) -> Any:
            return "merged", dict(other), dict(self)

    chain: Any = collections.ChainMap({1: 2}, {3: 4})
    found: list[Any] = []
    for known in ({5: 6}, collections.OrderedDict(a=1), collections.defaultdict(int, b=2)):
        for left, right in ((known, chain), (chain, known), (known, Merged(c=1)), (known, collections.UserDict(d=1))):
            merged = left | right
            found.append((type(merged).__name__, merged if isinstance(merged, tuple) else dict(merged)))
        found += said(lambda d=known: d | [(1, 2)], lambda d=known: [(1, 2)] | d)
    return x + 1, found


def iterators_by_index(x: Tensor) -> Any:
    class Few:
        def __getitem__(self, i: int) -> int:
            if i > 6:
                raise IndexError
            return i * 2

    class All:
        def __getitem__(self, i: int) -> int:
            return i

    steps: Any = iter(Few())  # type: ignore[call-overload]
    found: list[Any] = [next(steps)]
    steps.__setstate__(5)
    found += list(steps)
    steps.__setstate__(0)
    found.append(list(steps))
    steps = iter(Few())  # type: ignore[call-overload]
    steps.__setstate__(-3)
    found += [next(steps), said(*(lambda v=v: steps.__setstate__(v) for v in ("a", 2.0, 2**70)), lambda: next(steps))]
    far: Any = iter(All())  # type: ignore[call-overload]
    far.__setstate__(sys.maxsize - 1)
    return x + 1, found, said(lambda: next(far), lambda: next(far), lambda: next(far))


def names_of_types_in_messages(x: Tensor) -> Any:
    class No:
        def __ror__(self, other: Any) -> Any:
            return NotImplemented

        def __gt__(self, other: Any) -> Any:
            return NotImplemented

    class Iterated:
        def __iter__(self) -> Any:
            return collections.OrderedDict()

    made: list[Any] = [collections.OrderedDict(), collections.defaultdict(int), collections.deque(), No(), 1, [], {}]
    found: list[Any] = []
    for value in (*made, datetime.timedelta(1), array.array("i"), types.MappingProxyType({}), functools.partial(max)):
        found += said(
            *(lambda v=value: v | No(), lambda v=value: v < No(), lambda v=value: v @ v, lambda v=value: v < 1j),
            *(
                lambda v=value: reversed(v) and 1,
                lambda v=value: 1 in v,
                lambda v=value: max(**v),
                lambda v=value: v.no,
            ),
        )
    found += said(
        lambda: max(**{"a": 1}, **{"a": 2}), lambda: made[5].append(**{1: 2}), lambda: No(*[1], **{"b": 1}, **made[2])
    )
    return x + 1, found, said(lambda: list(Iterated()), lambda: made[0](), lambda: made[2](1), lambda: No()())


def classes_are_changed(x: Tensor) -> Any:
    class One:
        __slots__ = ("a", "b")

    class Two:
        __slots__ = ("a", "b")

    class Three:
        def f(self) -> int:
            return 1

    class Four(Three):
        def f(self) -> int:
            return 2

    slots: Any = One()
    slots.a = 3
    slots.__class__ = Two
    plain: Any = Three()
    plain.__class__ = Four
    listed: Any = []

    def assign(obj: Any, cls: Any) -> Callable[[], None]:
        return lambda: setattr(obj, "__class__", cls)

    refused = [assign(slots, Three), assign(plain, One), assign(plain, int), assign(listed, Three), assign(True, int)]
    return x + 1, slots.a, type(slots) is Two, plain.f(), said(lambda: slots.b, *refused)


PROGRAMS = [
    *(calls_that_do_not_fit, calls_of_the_callers, objects_that_hold_themselves, special_methods_that_are_objects),
    *(dicts_and_others, iterators_by_index, classes_are_changed, names_of_types_in_messages),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program: Callable[..., Any]) -> None:
    check(program, X)


def test_calls_that_fit_are_still_unknown() -> None:
    fast, log = compiled(lambda x: (x + 1, sys.getrefcount(x) > 0))
    assert fast(X)[1] is True and "sys.getrefcount" in log.breaks[0].reason


def test_an_object_of_another_class_leaves_the_graph() -> None:
    class One:
        __slots__ = ("a",)

    class Two:
        __slots__ = ("a",)

    def program(x: Tensor) -> Any:
        made: Any = One()
        made.a = x + 1
        made.__class__ = Two
        return made

    fast, log = compiled(program)
    for _ in range(2):
        got = fast(X)
        assert type(got) is Two and torch.equal(got.a, X + 1)
    assert not log.breaks and not log.fallbacks


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_refer_to_what_the_program_has_put_in_a_modules_place(protocol: int, monkeypatch: Any) -> None:
    """By its name in the program's own module, written and read, in eager's bytes."""
    one, two = types.ModuleType("shapes_of_tests"), types.ModuleType("shapes_of_tests")
    for module in (one, two):
        exec("class Shape:\n    def __init__(self, n):\n        self.n = n\ndef make():\n    pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "shapes_of_tests", importlib.import_module("types"))

    def program(x: Tensor) -> Any:
        before = sys.modules["shapes_of_tests"]
        sys.modules["shapes_of_tests"] = one
        try:
            data = pickle.dumps([one.Shape(3), one.make, one.Shape], protocol)
            sys.modules["shapes_of_tests"] = two
            shape, make, cls = pickle.loads(data)
            return x + 1, data, shape.n, type(shape) is two.Shape, make is two.make, cls is two.Shape
        finally:
            sys.modules["shapes_of_tests"] = before

    fast, log = compiled(program)
    for _ in range(2):
        assert same(fast(X), program(X))
    assert not log.breaks, log.breaks
