"""What C code asks of arguments, mappings and classes, and what it says of them: each as in eager, in one graph."""

from __future__ import annotations

import abc
import codecs
import collections
import copy
import functools
import gc
import operator
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, same
from test.support.import_helper import import_fresh_module
from torch import Tensor

X = torch.arange(4.0)
KEPT: list[Any] = [1]


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or the exception's type and words."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)


CALLS: list[tuple[Any, int, tuple[str, ...]]] = [
    *((f, n, ()) for f in (getattr, setattr, hasattr, isinstance, issubclass) for n in (0, 1, 4, 5)),
    *((f, n, ()) for f in (len, hash, id, callable, repr, bool, float, abs) for n in (0, 2, 3)),
    *((f, n, ()) for f in (next, iter, divmod, sum, sorted, max, format, type, str, int, list) for n in (0, 4, 5)),
    *((f, n, ()) for f in (functools.reduce, operator.add, operator.contains, functools.partial) for n in (0, 1, 4)),
    *(
        (f, n, ())
        for f in (dict.get, set.pop, list.append, str.join, [].append, {}.setdefault, [].sort)
        for n in (0, 4)
    ),
    *((f, n, ("foo",)) for f in (getattr, len, min, zip, next, functools.reduce, isinstance, map) for n in (1, 2, 3)),
    (functools.cmp_to_key, 0, ()),
    (functools.cmp_to_key, 1, ("foo",)),
]


def misfits(x: Tensor) -> Any:
    found = []
    for function, n, names in CALLS:
        found.append(raised(function, *(3,) * n, **dict.fromkeys(names, 3)))
    return x + 1, *[text for text in found if type(text) is tuple]


def one_more(x: Tensor) -> Any:
    key = functools.cmp_to_key(mycmp=lambda a, b: b - a)
    return x + 1, getattr(3, "none", 5), next(iter(()), 7), sorted([1, 3, 2], key=key), raised(key), raised(key, foo=1)


class Keys(dict[str, int]):
    def keys(self) -> Any:
        return ["zz"]


class Iterates(dict[str, int]):
    def __iter__(self) -> Any:
        return iter(["a"])


class Items(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 7


class OrderedKeys(collections.OrderedDict[str, int]):
    def keys(self) -> Any:
        return ["a"]


class OrderedItems(collections.OrderedDict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 7


class Default(collections.defaultdict[str, int]):
    def __iter__(self) -> Any:
        return iter(["b"])


def merged(value: Any) -> list[Any]:
    target = {"q": 1}
    return [
        raised(lambda: {**value}),
        raised(lambda: dict(value)),
        raised(lambda: dict(value, c=3)),
        raised(target.update, value),
        target,
        raised(lambda: dict(**value)),
        raised(lambda: list(collections.OrderedDict(value).items())),
        raised(lambda: list(collections.defaultdict(int, value).items())),
    ]


def mappings(x: Tensor) -> Any:
    return (
        x + 1,
        [merged(kind(a=1, b=2)) for kind in (Keys, Iterates, Items, OrderedKeys, OrderedItems)],
        merged(Default(int, a=1, b=2)),
    )


def mapping_of_the_caller(x: Tensor, value: Any) -> Any:
    return x + 1, merged(value)


class Shown:
    __class__ = str  # type: ignore[assignment]


class Asked:
    def __init__(self) -> None:
        self.times = 0

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        self.times += 1
        return int


class Silent:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AttributeError("no class")


class NoClass:
    __class__ = 413  # type: ignore[assignment]


class Abstract(abc.ABC):  # noqa: B024
    pass


Abstract.register(int)
KINDS = (str, int, (int, str), int | str, Shown, Asked, Silent, object, Abstract, collections.abc.Sized)


def shown_classes(x: Tensor) -> Any:
    made = [Shown(), Asked(), Silent(), NoClass()]
    return x + 1, [raised(isinstance, value, kind) for value in made for kind in KINDS], made[1].times  # type: ignore[attr-defined]


def shown_class_of_the_caller(x: Tensor, value: Any) -> Any:
    return x + 1, [raised(isinstance, value, kind) for kind in KINDS]


def codings(x: Tensor) -> Any:
    return x + 1, codecs.encode("abc", "rot13"), codecs.decode(b"616263", "hex"), raised(codecs.encode, "a", "none")


def methods_in_c(x: Tensor) -> Any:
    made: list[int] = []
    same_one = hash(made.append) == hash(made.append), hash(made.__add__) == hash(made.__add__)
    others = hash(made.append) == hash([].append), hash(made.append) == hash(made.pop)
    return x + 1, same_one, others, made.append in {made.append}, made.__add__ in {[].__add__}


def methods_of_the_callers(x: Tensor) -> Any:
    kept = KEPT.append
    return x + 1, kept in {KEPT.append}, kept == KEPT.append, type(kept).__name__, kept.__self__ is KEPT


def addresses_in_messages(x: Tensor) -> Any:
    try:
        float(memoryview(b"abc"))  # type: ignore[arg-type]
    except ValueError as error:
        return x + 1, "<memory at" in str(error), len(error.args)
    return x


def own_class_in_a_class(x: Tensor) -> Any:
    class Outer:
        def named(self) -> Any:
            class Inner:
                found = __class__

                def other(self) -> Any:
                    return __class__

            return Inner.found is Outer, Inner().other() is Inner

    return x + 1, Outer().named()


class Held:
    pass


HELD = Held()


def copies_that_are_the_same(x: Tensor) -> Any:
    made = Held()
    values = [weakref.ref(HELD), weakref.ref(made), range(3), property(len), len, KEPT.append, Held, property]
    return (
        x + 1,
        [copy.copy(v) is v for v in values],
        [copy.deepcopy(v) is v for v in values],
        copy.copy(values[1])() is made,
    )


def thresholds(x: Tensor) -> Any:
    return x + 1, gc.get_threshold()


ALONE = [
    *(misfits, one_more, mappings, shown_classes, codings, methods_in_c, addresses_in_messages),
    *(thresholds, methods_of_the_callers, own_class_in_a_class, copies_that_are_the_same),
]


@pytest.mark.parametrize("function", ALONE, ids=lambda f: f.__name__)
def test_each(function: Any) -> None:
    fast, log = compiled(function)
    for _ in range(2):
        assert same(fast(X), function(X))
    assert not log.breaks and not log.fallbacks


def comprehension_of_the_same_name(x: Tensor) -> Any:
    """From 3.12 on a break: the comprehension's variable is one of the function's frame, and so is the one around it."""
    name = 3

    def inner() -> Any:
        return name, [f() for f in [lambda: name for name in (1, 2)]], name

    return x + 1, inner()


def test_a_name_of_two_variables() -> None:
    fast, log = compiled(comprehension_of_the_same_name)
    for _ in range(2):
        assert same(fast(X), comprehension_of_the_same_name(X))
    assert len(log.breaks) <= (sys.version_info >= (3, 12))
    name = 4

    def around(x: Tensor) -> Any:
        return x + name, [f() for f in [lambda: name for name in (1, 2)]], name

    fast, log = compiled(around)
    assert same(fast(X), around(X))
    assert len(log.fallbacks) <= (sys.version_info >= (3, 12))


@pytest.mark.parametrize("kind", [Keys, Iterates, Items, OrderedKeys, OrderedItems], ids=lambda k: k.__name__)
def test_a_mapping_that_changes(kind: Any) -> None:
    fast, log = compiled(mapping_of_the_caller)
    value = kind(a=1, b=2)
    for change in ({}, {"a": 5}, {"c": 3}):
        value.update(change)
        assert same(fast(X, value), mapping_of_the_caller(X, value))
    assert not log.breaks and not log.fallbacks


def test_a_class_that_changes() -> None:
    class Says:
        def __init__(self, shown: Any) -> None:
            self.shown = shown

        @property
        def __class__(self) -> Any:  # type: ignore[override]
            return self.shown

    fast, log = compiled(shown_class_of_the_caller)
    for shown in (str, int, 413, dict):
        assert same(fast(X, Says(shown)), shown_class_of_the_caller(X, Says(shown)))
    assert not log.breaks and not log.fallbacks


def test_a_threshold_that_changes() -> None:
    fast, _ = compiled(thresholds)
    before = gc.get_threshold()
    try:
        for first in (before[0], 900, 901):
            gc.set_threshold(first)
            assert same(fast(X), thresholds(X))
    finally:
        gc.set_threshold(*before)


def test_methods_whose_list_is_another_one() -> None:
    """The hash of a method of the caller's object may be known outside: it is a break to ask a table of others for it."""

    def function(x: Tensor, items: list[int], known: Any) -> Any:
        return x + 1, hash(items.append) == known

    fast, _ = compiled(function)
    lists = [[1], [1]]
    for items in lists * 2:
        assert same(fast(X, items, hash(lists[0].append)), function(X, items, hash(lists[0].append)))


TWIN: Any = import_fresh_module("operator", fresh=["_operator"])


def in_the_place_of_a_module(x: Tensor) -> Any:
    before = sys.modules["operator"]
    sys.modules["operator"] = TWIN
    try:
        copied = pickle.loads(pickle.dumps(TWIN.itemgetter(1)))  # noqa: S301
    finally:
        sys.modules["operator"] = before
    return x + 1, copied([1, 2]), type(copied) is TWIN.itemgetter, TWIN.itemgetter(1)("ab"), TWIN.attrgetter("real")(3)


def test_getters_of_a_module_that_was_imported_twice() -> None:
    fast, _ = compiled(in_the_place_of_a_module)
    for _ in range(2):
        assert same(fast(X), in_the_place_of_a_module(X))
    assert sys.modules["operator"] is operator


class Squares:
    def __init__(self, size: int) -> None:
        self.size, self.asked = size, list[Any]()

    def __len__(self) -> int:
        self.asked.append("len")
        return self.size

    def __getitem__(self, at: int) -> int:
        self.asked.append(at)
        if at >= self.size:
            raise IndexError
        return at * at


class Sevens(list[int]):
    def __getitem__(self, at: Any) -> Any:
        return 7


class SevenOf(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 7


def backwards(x: Tensor) -> Any:
    values = Squares(4)
    them = reversed(values)
    first = next(them), operator.length_hint(them)
    values.size = 2
    others = list(reversed(Sevens([1, 2]))), list(reversed(SevenOf(a=1))), raised(reversed, {1})
    return x + 1, first, list(them), values.asked, type(them) is reversed, others


def backwards_over_a_break(x: Tensor) -> Any:
    values, found = Squares(3), []
    for value in reversed(values):
        print(end="")
        found.append(x + value)
    return found, values.asked


def backwards_of_the_callers(x: Tensor, values: Any, sevens: Any) -> Any:
    return x + 1, list(reversed(values)), list(reversed(sevens)), values.asked


@pytest.mark.parametrize("function", [backwards, backwards_over_a_break])
def test_reversed_asks_for_an_item_at_a_time(function: Any) -> None:
    fast, log = compiled(function)
    for _ in range(2):
        assert same(fast(X), function(X))
    assert bool(log.breaks) is (function is backwards_over_a_break) and not log.fallbacks


def test_reversed_of_what_changes() -> None:
    fast, log = compiled(backwards_of_the_callers)
    for size, sevens in ((3, [1]), (3, [1, 2]), (2, [4, 5])):
        given = [(Squares(size), Sevens(sevens)) for _ in range(2)]
        assert same(fast(X, *given[0]), backwards_of_the_callers(X, *given[1]))
    assert not log.fallbacks


def thrown_in_three_parts(x: Tensor) -> Any:
    def steps() -> Any:
        try:
            yield 1
        except ValueError as error:
            yield str(error)

    made = steps()
    next(made)
    return x + 1, made.throw(ValueError, "three", None), raised(made.throw, 3)


def test_what_python_warns_of_is_warned_of() -> None:
    fast, _ = compiled(thrown_in_three_parts)
    for _ in range(2):
        told = []
        for function in (thrown_in_three_parts, fast):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = function(X)
            told.append((result[1:], [(str(w.message), w.category, w.filename, w.lineno) for w in seen]))
        assert told[0] == told[1] and bool(told[0][1]) is (sys.version_info >= (3, 12))
