"""Classes that the program makes inside captured code: in the graph, given out, made again in each call, in front of a break."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import gc

import pytest
import torch
from harness import compiled

X = torch.arange(3.0)
TOLD: list[str] = []


class Told:
    def __init_subclass__(cls, tag="", **rest):
        super().__init_subclass__(**rest)
        TOLD.append(cls.__name__ + tag)


class Named:
    def __set_name__(self, owner, name):
        self.name, owner.seen = name, name

    def __get__(self, obj, kind):
        return self.name, obj is None


class Meta(type):
    @classmethod
    def __prepare__(meta, name, bases, **words):
        return {"prepared": name}

    def __new__(meta, name, bases, namespace, by=1):
        return super().__new__(meta, name, bases, {**namespace, "by": by})

    def __init__(cls, name, bases, namespace, by=1):
        cls.known = sorted(n for n in namespace if not n.startswith("__"))

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.called = True
        return made


def plain(x):
    scale = 2

    class Base:
        number: int = 3
        scaled = [i * scale for i in range(3)]

        def __init__(self, value):
            self.value = value

        def run(self):
            return self.value * self.number + self.scaled[2]

        @property
        def twice(self):
            return self.run() * 2

        @classmethod
        def named(cls):
            return cls.__name__

    class Derived(Base):
        def run(self):
            return super().run() + x

    return Derived(x).twice, Derived.named(), Base.__annotations__, Derived.__mro__[1] is Base, Base.__qualname__


def told_and_named(x):
    class Inner(Told, tag="!"):
        field = Named()

    return x + len(TOLD), list(TOLD), Inner().field, Inner.field, Inner.seen, Inner.__bases__ == (Told,)


def with_metaclass(x):
    class One(metaclass=Meta, by=7):
        two = 2

    Two = type("Two", (One,), {"run": lambda self: self.by + self.two})
    return x * Two().run(), One.known, Two.known, One.prepared, Two().called, Two.__module__, type(Two) is Meta


def of_the_library(x):
    @dataclasses.dataclass(order=True)
    class Point:
        a: int
        b: list = dataclasses.field(default_factory=list)

    class Colour(enum.Enum):
        RED = 1
        GREEN = 2

    pair = collections.namedtuple("pair", "a b", defaults=[4])(x)
    point = Point(2)
    point.b.append(3)
    facts = repr(point), point == Point(2, [3]), Point(1) < point, Colour(1).name, [c.value for c in Colour]
    return pair.a * pair.b * point.a, facts, pair._fields, str(Colour["GREEN"])


def refused_by_python(x):
    said = []

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def run(self): ...

    class Fails:
        def __init_subclass__(cls):
            raise ValueError("not this one")

    for make in (
        Abstract,
        lambda: type("A", (int, str), {}),
        lambda: type("B", (Fails,), {}),
        lambda: type("C", (3,), {}),
    ):
        try:
            make()
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__} {error}")
    return x + len(said), said


def of_its_own_kind(x):
    class Error(ValueError):
        def __init__(self, value):
            self.value = value

    try:
        raise Error(3)
    except Error as error:
        return x + error.value


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    "function",
    [plain, told_and_named, with_metaclass, of_the_library, refused_by_python, of_its_own_kind],
    ids=lambda f: f.__name__,
)
def test_a_class_inside_the_graph(function):
    fast, log = compiled(function)
    for x in (X, X + 1, X * 2):
        TOLD.clear()
        expected = function(x)
        TOLD.clear()
        assert same(expected, fast(x))
    assert not log.breaks and not log.fallbacks and len(log.captures) == 1


def gives_a_class(x):
    class A:
        """Text."""

        held = x + 1
        __slots__ = ("value",)

        def __init__(self, value):
            self.value = value

        def run(self):
            return self.value * 2 + self.held.sum()

        @property
        def first(self):
            return super().__getattribute__("value")

        @classmethod
        def kind(cls):
            return __class__

    return A(x * 2)


def gives_an_error(x):
    class Error(ValueError):
        pass

    try:
        raise Error("text", x)
    except Error as error:
        return error


def gives_an_abstract_one(x):
    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self): ...

    class Inner(Base):
        own = None

        def run(self):
            return x

    Inner.own = Inner
    return Inner()


def gives_a_dataclass(x):
    @dataclasses.dataclass
    class Point:
        a: torch.Tensor
        b: int = 4

    Point.later = 5
    return Point(x)


def gives_a_slotted_dataclass(x):
    @dataclasses.dataclass(slots=True, frozen=True)
    class Point:
        a: torch.Tensor

        def run(self):
            return self.a + x

    return Point(x)


def gives_a_named_tuple(x):
    return collections.namedtuple("pair", "a b")(x, 2)


FACTS = {
    gives_a_class: lambda o: [o.run(), o.first, o.kind() is type(o), o.__doc__, type(o).__qualname__],
    gives_an_error: lambda o: [str(o.args[0]), o.args[1], type(o).__bases__],
    gives_an_abstract_one: lambda o: [o.run(), type(o).own is type(o), type(o).__mro__[1].__abstractmethods__],
    gives_a_dataclass: lambda o: [o.a, o.b, o.later, repr(o), o == 3],
    gives_a_slotted_dataclass: lambda o: [o.run(), hasattr(o, "__dict__")],
    gives_a_named_tuple: lambda o: [o.a, o._fields, o._replace(b=3).b],
}


@pytest.mark.parametrize("function", FACTS, ids=lambda f: f.__name__)
def test_a_class_that_outlives_the_graph_is_another_one_in_each_call(function):
    fast, log = compiled(function)
    kinds = set()
    for x in (X, X + 1, X * 2):
        expected, found = function(x), fast(x)
        kinds.add(type(found))
        assert same(FACTS[function](expected), FACTS[function](found))
        names, own = (list(vars(type(o))) for o in (expected, found))
        assert names == own
    assert not log.breaks and not log.fallbacks and len(log.captures) == 1 and len(kinds) == 3


def test_its_base_is_told_once_in_each_call():
    def f(x):
        class Inner(Told):
            pass

        return Inner, x + 1

    fast, log = compiled(f)
    for _ in range(3):
        TOLD.clear()
        made = fast(X)[0]
        assert made.__bases__ == (Told,) and TOLD == ["Inner"]
    assert not log.breaks


def test_a_class_that_cannot_be_made_again_breaks_at_its_statement():
    def f(x):
        y = x + 1

        class Colour(enum.Enum):
            RED = 1

        return y * 2, Colour.RED

    fast, log = compiled(f)
    first, second = fast(X), fast(X)
    assert torch.equal(first[0], (X + 1) * 2) and str(first[1]) == "Colour.RED"
    assert type(first[1]) is not type(second[1])
    assert [b.place.text.strip() for b in log.breaks] == ["class Colour(enum.Enum):"] and not log.fallbacks


def test_a_class_that_is_alive_at_a_break():
    def f(x):
        class Scale:
            by = x.sum()

            def run(self, y):
                return y * self.by

        print(end="")
        return Scale().run(x)

    fast, log = compiled(f)
    assert all(torch.equal(fast(x), f(x)) for x in (X, X + 1))
    assert {b.reason for b in log.breaks} == {"print is called"} and not log.fallbacks


def test_what_the_base_holds_is_guarded():
    class Base:
        by = 2

    def f(x):
        class Inner(Base):
            pass

        return x * Inner.by, hasattr(Inner, "other"), issubclass(Inner, collections.abc.Sized)

    fast, _ = compiled(f)
    assert same(fast(X), (X * 2, False, False))
    Base.by = 3
    assert same(fast(X), (X * 3, False, False))
    Base.other = 1
    assert same(fast(X), (X * 3, True, False))
    Base.__len__ = lambda self: 1
    assert same(fast(X), (X * 3, True, True))


def test_capture_leaves_no_class_behind():
    class Base:
        pass

    def f(x):
        class Inner(Base):
            held = x + 1

        return Inner.held

    fast, _ = compiled(f)
    fast(X)
    gc.collect()
    assert Base.__subclasses__() == []


def test_a_function_of_autograds_that_outlives_the_graph():
    """It breaks at its statement; derived and called without gradients it stays inside."""

    def function(x, out):
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 5

        class Derived(Doubled):
            pass

        with torch.no_grad():
            y = Derived.apply(x)
        out.append(Derived if len(out) else Derived.__name__)
        return Derived.apply(x) + y

    for given, broken in (([], False), ([1], True)):
        fast, log = compiled(function)
        x = X.clone().requires_grad_()
        for _ in range(2):
            result = fast(x, found := list(given))
            assert torch.equal(result, X * 4)
            assert torch.equal(torch.autograd.grad(result.sum(), x)[0], torch.full((3,), 5.0))
        assert bool(log.breaks) == broken
        if broken:
            assert torch.equal(found[1].apply(x), X * 2)
            assert "a function of autograd's" in log.breaks[0].reason


def test_flags_that_are_made_inside_remember_what_is_computed_of_them() -> None:
    def function(x: torch.Tensor) -> object:
        class Access(enum.Flag):
            READ = 1
            WRITE = 2
            RUN = 4

        read, write, run = Access
        both = read | write
        return (
            x + 1,
            ~Access.READ is write | run,
            repr(~both),
            ~Access(0) is both | run,
            vars(both)["_inverted_"] is run,
        )

    fast, log = compiled(function)
    assert [fast(X)[1:], fast(X)[1:]] == [function(X)[1:]] * 2 and not log.breaks and not log.fallbacks
