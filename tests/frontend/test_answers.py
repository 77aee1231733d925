"""What capture learns of the outside is asked again in every call: one thing is changed between the calls, and the result is eager's.

Each case is a generator: first the function, then the arguments of one call after the other; what stands between two
yields changes something.
"""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import types
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from harness import compiled
from torch import Tensor, nn

from intarsia.frontend.guards.set_tables import made_set, recipe

X = torch.ones(3)
CASES: list[Any] = []


def case(function: Any) -> Any:
    """Add a case to the table."""
    CASES.append(function)
    return function


def seen(value: Any) -> Any:
    """All that a program could see of a result, as text."""
    if isinstance(value, Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.requires_grad, value.detach().tolist().__repr__()
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [seen(v) for v in value]
    if isinstance(value, dict):
        return type(value), [(seen(k), seen(v)) for k, v in value.items()]
    return type(value), repr(value)


# ---- values ----


@case
def order_of_equal_sets() -> Iterator[Any]:
    def f(x: Tensor, values: Any) -> Any:
        total = x
        for value in values:
            total = total * 3 + value
        return total

    yield f
    yield X, {8, 16, 0, 3}
    yield X, {0, 3, 16, 8}
    yield X, {16, 8, 0, 3}


@case
def order_of_a_set_in_the_first_call() -> Iterator[Any]:
    def f(x: Tensor, values: Any) -> Any:
        total = x
        for value in values:
            total = total * 3 + len(value)
        return total, list(values)

    yield f
    for n in range(3, 14):
        yield X, {"ab" * i + str(n) for i in range(n)}
        shrunk = {"ab" * i + str(n) for i in range(30)}
        shrunk.difference_update([*shrunk][n:])
        yield X, shrunk


@case
def types_in_a_set() -> Iterator[Any]:
    def f(x: Tensor, values: Any) -> Any:
        return x * [*values][0], [*values]

    yield f
    for value in (1, 1.0, True):
        yield X, {value}
        yield X, frozenset({value})


@case
def types_of_keys() -> Iterator[Any]:
    def f(x: Tensor, values: Any) -> Any:
        return x + 1, [*values]

    yield f
    for key in (1, 1.0, True, 0.0, -0.0, (1, 2), (1.0, 2)):
        yield X, {key: 2}
        yield X, collections.OrderedDict({key: 2})


@case
def ranges() -> Iterator[Any]:
    def f(x: Tensor, r: Any) -> Any:
        return x + r.stop, r

    yield f
    yield X, range(0, 3, 2)
    yield X, range(0, 4, 2)
    yield X, range(0)
    yield X, range(2, 1)


@case
def slices() -> Iterator[Any]:
    def f(x: Tensor, s: Any) -> Any:
        return x + 1, s.stop, s.start

    yield f
    yield X, slice(1, 2)
    yield X, slice(1.0, 2)
    yield X, slice(True, 2)


@case
def time_zones() -> Iterator[Any]:
    def f(x: Tensor, t: Any) -> Any:
        return x + t.hour, t.isoformat(), t.fold

    zone = datetime.timezone
    noon = datetime.datetime(2020, 1, 1, 12, tzinfo=zone.utc)
    yield f
    yield X, noon
    yield X, noon.astimezone(zone(datetime.timedelta(hours=3)))
    yield X, noon.replace(tzinfo=zone(datetime.timedelta(0), "other"))
    yield X, noon.replace(fold=1)
    yield X, noon.replace(tzinfo=None)
    yield X, noon.replace(tzinfo=None, fold=1)
    yield X, noon.timetz()
    yield X, noon.timetz().replace(fold=1)


@case
def decimals() -> Iterator[Any]:
    def f(x: Tensor, d: Any) -> Any:
        return x + len(str(d)), d.as_tuple()

    yield f
    for text in ("1.0", "1.00", "1", "0", "-0", "0E+3", "sNaN", "NaN", "-NaN", "NaN12"):
        yield X, decimal.Decimal(text)


@case
def signs_inside() -> Iterator[Any]:
    @dataclasses.dataclass(frozen=True)
    class Point:
        at: Any

    def f(x: Tensor, values: Any) -> Any:
        value = values.at if isinstance(values, Point) else [*values][0]
        return x / value

    def nested(x: Tensor, values: Any) -> Any:
        return x / values[0][0]

    yield lambda x, v: nested(x, v) if isinstance(v, tuple) and isinstance(v[0], tuple) else f(x, v)
    for value in (0.0, -0.0):
        yield X, (value,)
        yield X, [value]
        yield X, {value}
        yield X, frozenset({value})
        yield X, {value: 1}
        yield X, Point(value)
        yield X, ((value,),)


@case
def numpy_numbers() -> Iterator[Any]:
    def f(x: Tensor, n: Any) -> Any:
        return x + 1, n

    yield f
    for value in (numpy.float64(0.0), numpy.float64(-0.0), numpy.float32(0.0), numpy.int64(0), numpy.bool_(False)):
        yield X, value


@case
def fractions_and_complex_numbers() -> Iterator[Any]:
    def f(x: Tensor, n: Any) -> Any:
        return x + 1, n

    yield f
    for value in (
        fractions.Fraction(2),
        complex(0.0, 0.0),
        complex(0.0, -0.0),
        complex(-0.0, 0.0),
        math.nan,
        -math.nan,
    ):
        yield X, value


# ---- functions ----


@case
def defaults_that_are_none() -> Iterator[Any]:
    def g(x: Tensor, a: Any = None, *, b: Any = None) -> Any:
        return x if a is None and b is None else x * 10, a, b

    def f(x: Tensor) -> Any:
        return g(x)

    yield f
    yield (X,)
    g.__defaults__ = (1,)
    yield (X,)
    g.__kwdefaults__["b"] = 3
    yield (X,)
    g.__kwdefaults__ = {"b": None}
    g.__defaults__ = (None,)
    yield (X,)
    g.__defaults__ = (None, 2)
    yield (X + 1,)


@case
def number_of_defaults() -> Iterator[Any]:
    def g(x: Any, a: Any = 2) -> Any:
        return x * a

    def f(x: Tensor) -> Any:
        try:
            return g(x)
        except TypeError:
            return x - 1

    yield f
    yield (X,)
    g.__defaults__ = None
    yield (X,)
    g.__defaults__ = (X, 5)
    yield (X,)
    g.__defaults__ = (5,)
    yield (X,)


@case
def defaults_of_the_compiled_function() -> Iterator[Any]:
    def f(x: Tensor, a: Any = None, *, b: Any = None) -> Any:
        return x + 1, a, b

    yield f
    yield (X,)
    f.__defaults__ = (2,)
    yield (X,)
    f.__kwdefaults__["b"] = 4
    yield (X,)
    f.__defaults__ = (2.0,)
    yield (X,)
    f.__kwdefaults__ = {"b": "c"}
    yield X, 3


@case
def default_factory() -> Iterator[Any]:
    def f(x: Tensor, d: Any) -> Any:
        return x + len(d), d["new"]

    made = collections.defaultdict(list)
    yield f
    yield X, made
    made.clear()
    made.default_factory = dict
    yield X, made
    yield X, collections.defaultdict(lambda: 3)
    yield X, collections.defaultdict(lambda: 4)


@case
def attributes_of_functions() -> Iterator[Any]:
    def g() -> None:
        pass

    def f(x: Tensor) -> Any:
        return x * getattr(g, "scale", 1), hasattr(g, "other"), g.__name__, g.__doc__

    yield f
    yield (X,)
    g.scale = 3  # type: ignore[attr-defined]
    yield (X,)
    g.other = 3  # type: ignore[attr-defined]
    yield (X,)
    del g.scale  # type: ignore[attr-defined]
    yield (X,)
    g.__name__ = "h"
    yield (X,)
    g.__doc__ = "of g"
    yield (X,)


# ---- modules, objects and classes ----


@case
def attributes_of_python_modules() -> Iterator[Any]:
    space: Any = types.ModuleType("space_of_test")

    def f(x: Tensor) -> Any:
        try:
            y = x * space.scale
        except AttributeError:
            y = x - 1
        return y, hasattr(space, "other"), getattr(space, "third", 3)

    yield f
    yield (X,)
    space.scale = 3
    yield (X,)
    space.other = 3
    yield (X,)
    space.third = 4
    yield (X,)
    del space.scale
    yield (X,)
    space.__getattr__ = lambda name: 7
    yield (X,)


class Base:
    scale = 2.0

    def method(self) -> float:
        return 3.0


class Middle(Base):
    pass


class Derived(Middle):
    pass


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    kept = {cls: dict(cls.__dict__) for cls in (Base, Middle, Derived)}
    yield
    for cls, names in kept.items():
        for name in [*cls.__dict__]:
            if name not in names:
                delattr(cls, name)
        for name in ("scale", "method"):
            if name in names:
                setattr(cls, name, names[name])


@case
def attributes_of_objects() -> Iterator[Any]:
    thing: Any = Derived()

    def f(x: Tensor) -> Any:
        return x * thing.scale + thing.method(), hasattr(thing, "other"), getattr(thing, "third", None)

    yield f
    yield (X,)
    thing.scale = 5.0
    yield (X,)
    thing.method = lambda: 8.0
    yield (X,)
    del thing.scale
    yield (X,)
    thing.other = None
    yield (X,)
    thing.third = None
    yield (X,)
    thing.third = 4
    yield (X,)


@case
def attributes_of_classes() -> Iterator[Any]:
    def f(x: Tensor) -> Any:
        kind: Any = Derived
        return x * kind.scale, hasattr(kind, "other"), getattr(kind, "third", None), kind().scale

    yield f
    yield (X,)
    Middle.scale = 5.0
    yield (X,)
    Derived.scale = 6.0
    yield (X,)
    Middle.other = 1  # type: ignore[attr-defined]
    yield (X,)
    Base.third = 1  # type: ignore[attr-defined]
    yield (X,)
    del Derived.scale
    yield (X,)
    Base.__getattr__ = lambda self, name: 9  # type: ignore[attr-defined]
    yield (X,)


@case
def methods_overridden_below() -> Iterator[Any]:
    thing = Derived()

    def f(x: Tensor) -> Any:
        return x * thing.method()

    yield f
    yield (X,)
    Middle.method = lambda self: 5.0  # type: ignore[method-assign,assignment]
    yield (X,)
    Derived.method = lambda self: 7.0  # type: ignore[method-assign,assignment]
    yield (X,)
    del Derived.method
    yield (X,)
    Middle.method = property(lambda self: lambda: 11.0)  # type: ignore[method-assign,assignment]
    yield (X,)
    Middle.method = staticmethod(lambda: 12.0)  # type: ignore[method-assign,assignment]
    yield (X,)
    Middle.method = classmethod(lambda cls: 13.0)  # type: ignore[method-assign,assignment]
    yield (X,)


@case
def super_of_a_class() -> Iterator[Any]:
    class Last(Derived):
        def method(self) -> float:
            return super().method() + 1

    thing = Last()

    def f(x: Tensor) -> Any:
        return x * thing.method()

    yield f
    yield (X,)
    Derived.method = lambda self: 7.0  # type: ignore[method-assign,assignment]
    yield (X,)


@case
def bases_of_a_class() -> Iterator[Any]:
    class Other:
        def method(self) -> float:
            return 20.0

    class Left(Base):
        pass

    thing: Any = Left()

    def f(x: Tensor) -> Any:
        return x * thing.method(), isinstance(thing, Base)

    class Swapped(Other):
        pass

    yield f
    yield (X,)
    Left.__bases__ = (Swapped,)
    yield (X,)


@case
def special_methods() -> Iterator[Any]:
    class Thing:
        def __add__(self, other: Any) -> Any:
            return other + 1

        def __getitem__(self, key: Any) -> Any:
            return key + 1

        def __len__(self) -> int:
            return 2

        def __call__(self, x: Any) -> Any:
            return x * 5

    thing: Any = Thing()

    def f(x: Tensor) -> Any:
        return thing + x, thing[2], len(thing), thing(x), bool(thing), 3 in thing, hasattr(thing, "__iter__")

    yield f
    yield (X,)
    Thing.__add__ = lambda self, other: other + 2  # type: ignore[method-assign,assignment,misc]
    yield (X,)
    Thing.__getitem__ = lambda self, key: key + 3 if key < 3 else 1 / 0  # type: ignore[method-assign,assignment,misc]
    Thing.__contains__ = lambda self, key: False  # type: ignore[attr-defined]
    yield (X,)
    Thing.__len__ = lambda self: 0  # type: ignore[method-assign,assignment,misc]
    yield (X,)
    Thing.__call__ = lambda self, x: x * 6  # type: ignore[method-assign,assignment,misc]
    yield (X,)
    Thing.__bool__ = lambda self: True  # type: ignore[attr-defined]
    yield (X,)
    Thing.__iter__ = lambda self: iter([3])  # type: ignore[attr-defined]
    del Thing.__contains__  # type: ignore[attr-defined]
    yield (X,)


@case
def special_methods_that_were_absent() -> Iterator[Any]:
    class Thing:
        pass

    one, two = Thing(), Thing()

    def f(x: Tensor) -> Any:
        return x + 1, one == two, bool(one), one != two, callable(one)

    yield f
    yield (X,)
    Thing.__eq__ = lambda self, other: True  # type: ignore[method-assign,assignment]
    yield (X,)
    Thing.__bool__ = lambda self: False  # type: ignore[attr-defined]
    yield (X,)
    Thing.__call__ = lambda self: False  # type: ignore[attr-defined]
    yield (X,)
    del Thing.__bool__  # type: ignore[attr-defined]
    yield (X,)
    Thing.__len__ = lambda self: 0  # type: ignore[attr-defined]
    yield (X,)


@case
def constructors() -> Iterator[Any]:
    class Thing:
        value = 1

    def f(x: Tensor) -> Any:
        return x * Thing().value

    yield f
    yield (X,)

    def init(self: Any) -> None:
        self.value = 7

    Thing.__init__ = init  # type: ignore[method-assign,assignment]
    yield (X,)


@case
def metaclasses() -> Iterator[Any]:
    class Meta(type):
        pass

    class Thing(metaclass=Meta):
        scale = 3

    def f(x: Tensor) -> Any:
        return x * Thing.scale, getattr(Thing, "other", 0)

    yield f
    yield (X,)
    Meta.other = 3  # type: ignore[attr-defined]
    yield (X,)
    Meta.other = 4  # type: ignore[attr-defined]
    yield (X,)
    Meta.scale = property(lambda cls: 8)  # type: ignore[attr-defined]
    yield (X,)


@case
def registered_classes() -> Iterator[Any]:
    class Shape(abc.ABC):
        pass

    class Square:
        pass

    square = Square()

    def f(x: Tensor) -> Any:
        return (
            x + 1,
            isinstance(square, Shape),
            issubclass(Square, (int, Shape)),
            isinstance(square, collections.abc.Sized),
        )

    yield f
    yield (X,)
    Shape.register(Square)
    yield (X,)
    Square.__len__ = lambda self: 2  # type: ignore[attr-defined]
    yield (X,)
    collections.abc.Sized.register(int)
    yield (X,)


@case
def slots() -> Iterator[Any]:
    class Thing:
        __slots__ = ("one", "two")

    thing: Any = Thing()

    def f(x: Tensor) -> Any:
        return x * getattr(thing, "one", 3), hasattr(thing, "two")

    yield f
    yield (X,)
    thing.one = 5
    yield (X,)
    thing.two = 5
    yield (X,)
    del thing.one
    yield (X,)


@case
def enum_members() -> Iterator[Any]:
    class Color(enum.Enum):
        RED = 1
        LIST = [1]  # noqa: RUF012

    color: Any = Color

    def f(x: Tensor, c: Any) -> Any:
        return x + 1, c.value, getattr(c, "extra", None), c.name

    yield f
    yield X, Color.RED
    yield X, Color.LIST
    Color.LIST.value.append(2)
    yield X, Color.LIST
    Color.RED.extra = 3  # type: ignore[attr-defined]
    yield X, Color.RED
    Color.RED._value_ = 5
    yield X, Color.RED
    color.extra = 7
    yield X, Color.LIST


@case
def members_of_modules() -> Iterator[Any]:
    layer: Any = nn.Linear(3, 3)

    def f(x: Tensor) -> Any:
        return layer(x), hasattr(layer, "other"), getattr(layer, "scale", None)

    torch.manual_seed(0)
    yield f
    yield (X,)
    layer.__dict__["weight"] = nn.Parameter(torch.zeros(3, 3))
    yield (X,)
    del layer.__dict__["weight"]
    yield (X,)
    layer.other = nn.ReLU()
    yield (X,)
    layer.register_buffer("scale", torch.ones(2))
    yield (X,)


@case
def class_attributes_of_modules() -> Iterator[Any]:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x * getattr(self, "scale", 2), self.training

    class Deeper(Net):
        pass

    net = Deeper()
    yield net
    yield (X,)
    Deeper.scale = 5  # type: ignore[attr-defined]
    yield (X,)
    Deeper.forward = lambda self, x: x - 1  # type: ignore[method-assign,assignment]
    yield (X,)
    net.forward = lambda x: x - 2  # type: ignore[method-assign,assignment]
    yield (X,)


@case
def cells() -> Iterator[Any]:
    def make(n: Any) -> Any:
        def get() -> Any:
            return n

        def put(value: Any) -> None:
            nonlocal n
            n = value

        return get, put

    get, put = make(2)

    def f(x: Tensor, k: int) -> Any:
        put(k)
        return x * get(), get.__closure__[0].cell_contents

    yield f
    yield X, 3
    put(7)
    yield X, 3
    yield X, 2


@case
def sets_that_are_made() -> Iterator[Any]:
    names = {
        0,
        33,
        2,
        67,
        36,
        101,
    }  # in no table in each other's way: what else there is to a set's order cannot be read

    def f(x: Tensor) -> Any:
        more = {"alpha", "beta", "gamma", "delta", "epsilon"}
        return x + 1, [*names], {*names}, names | {6}, names - {67}, {"a"} | more, more, {*more, *names}

    yield f
    yield (X,)
    names.add(39)
    yield (X,)
    names.discard(33)
    yield (X,)


@case
def sets_that_are_changed() -> Iterator[Any]:
    def f(x: Tensor, values: Any) -> Any:
        values.add(39)
        values.discard(2)
        return x + len(values), values

    yield f
    for n in range(12):
        yield X, {33 * i for i in range(n)}


@case
def metaclasses_that_answer() -> Iterator[Any]:
    class Meta(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return bool(value == 3)

    class Thing(metaclass=Meta):
        pass

    def f(x: Tensor, k: Any) -> Any:
        return x + 1, isinstance(k, Thing), isinstance(k, (str, Thing))

    yield f
    for k in (0, 3, 4, 3.0, Thing()):
        yield X, k
    Meta.__instancecheck__ = lambda cls, value: False  # type: ignore[method-assign,assignment]
    yield X, 3


@case
def names_of_classes() -> Iterator[Any]:
    class Thing:
        pass

    thing: Any = Thing()

    def f(x: Tensor) -> Any:
        return x + 1, type(thing).__name__, callable(thing), getattr(thing, "nope", None)

    yield f
    yield (X,)
    Thing.__name__ = "Other"
    yield (X,)
    Thing.__call__ = 3  # type: ignore[attr-defined]
    yield (X,)


# ---- facts of tensors ----


def _tensors() -> Iterator[Tensor]:
    base = torch.arange(12.0)
    yield base[:3]
    yield base[3:6]
    yield torch.arange(3.0)
    yield torch.arange(3.0).requires_grad_()
    yield torch.arange(3.0).requires_grad_() * 1
    yield (torch.arange(6.0).requires_grad_() * 1)[:3]
    yield torch.arange(6.0).requires_grad_()[:3].detach()
    with torch.inference_mode():
        yield torch.arange(3.0)
    yield torch.arange(3.0).share_memory_()
    yield nn.Parameter(torch.arange(3.0))
    yield torch.empty(3, dtype=torch.complex64).imag.fill_(1)
    split = torch.arange(6.0).requires_grad_().split(3)
    yield split[1]


FACTS: dict[str, Any] = {
    "is_leaf": lambda x: x.is_leaf,
    "leaf of a view": lambda x: x[:2].is_leaf,
    "storage_offset": lambda x: x.storage_offset(),
    "offset of a view": lambda x: x[1:].storage_offset(),
    "_is_view": lambda x: x._is_view(),
    "view of a view": lambda x: x.view(-1)._is_view(),
    "_base": lambda x: x._base is None,
    "base of a view": lambda x: x[1:]._base is None,
    "grad_fn": lambda x: x.grad_fn is None,
    "output_nr": lambda x: x.output_nr,
    "is_shared": lambda x: x.is_shared(),
    "is_inference": lambda x: x.is_inference(),
    "is_contiguous": lambda x: x.is_contiguous(memory_format=torch.contiguous_format),
    "layout": lambda x: x.layout,
    "requires_grad": lambda x: x.requires_grad,
    "retains_grad": lambda x: x.retains_grad,
    "type": lambda x: (type(x), isinstance(x, nn.Parameter)),
    "torch.is_inference": lambda x: torch.is_inference(x),
    "torch.is_same_size": lambda x: torch.is_same_size(x, X),
    "nbytes of the storage": lambda x: x.untyped_storage().nbytes(),
    "_backward_hooks": lambda x: x._backward_hooks,
    "grad": lambda x: x.grad,
    "is_set_to": lambda x: x.is_set_to(X),
    "attribute": lambda x: getattr(x, "mark", None),
}


@pytest.mark.parametrize("fact", FACTS)
def test_facts_of_tensors(fact: str) -> None:
    """Two tensors of the same size that differ in one fact."""
    ask = FACTS[fact]

    def f(x: Tensor) -> Any:
        return ask(x), x + 1

    fast, _ = compiled(f)
    for x in [*_tensors(), *_tensors()]:
        assert seen(fast(x)) == seen(f(x))


def _again(value: Any) -> Any:
    """The same value as another object, where a call changes it."""
    known = recipe(value) if type(value) is set else None
    return copy.copy(value) if isinstance(value, collections.defaultdict) else made_set(*known) if known else value


@pytest.mark.parametrize("steps", CASES, ids=lambda c: c.__name__)
def test_one_thing_changes(steps: Any) -> None:
    """The result is eager's in every call."""
    made = steps()
    function = next(made)
    fast, _ = compiled(function, recompile_limit=64)
    for args in made:
        mine = [_again(a) for a in args]
        want = seen(function(*args))
        assert seen(fast(*mine)) == want
