"""Descriptors, attribute hooks, slots, metaclasses, constructors, classes made inside."""

import abc
import functools
import typing

from behaviour import LOG, Suite, t
from things import A, Plugin, Point, Point3, Same

case = Suite()


class Typed:
    """A data descriptor."""

    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name = "_" + name
        self.owner = owner.__name__

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        LOG.append(("get", self.name))
        return obj.__dict__.get(self.name, "unset")

    def __set__(self, obj, value):
        LOG.append(("set", self.name))
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name} wants {self.kind.__name__}")
        obj.__dict__[self.name] = value

    def __delete__(self, obj):
        LOG.append(("delete", self.name))
        del obj.__dict__[self.name]


class Lazy:
    """A non-data descriptor."""

    def __init__(self, f):
        self.f = f

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        LOG.append("computed")
        value = obj.__dict__[self.f.__name__] = self.f(obj)
        return value


class Described:
    n = Typed(int)
    s = Typed(str)

    def __init__(self):
        self.n = 1

    @Lazy
    def lazy(self):
        return self.n + 100

    @functools.cached_property
    def cached(self):
        LOG.append("cached")
        return [self.n]


@case(whole=True)
def descriptors(x):
    d = Described()
    d.n = 5
    out = [d.n, d.s, d.lazy, d.lazy, d.cached is d.cached, d.cached]
    try:
        d.s = 3
    except TypeError as error:
        out.append(str(error))
    del d.n
    out.append(d.n)
    return x, out, Described.n.kind, Described.n.owner, sorted(vars(d))


@case(lambda: (t(), Described()))
def descriptors_of_an_argument(x, d):
    d.n += 3
    del d.n
    d.s = "text"
    return x + d.lazy if d.n == "never" else x, d.s, d.cached


class Hooked:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(("set", name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append(("del", name))
        super().__delattr__(name)

    def __getattribute__(self, name):
        if name.startswith("virtual_"):
            return name[8:]
        return super().__getattribute__(name)


@case(lambda: (t(), Hooked()))
def attribute_hooks_of_an_argument(x, h):
    h.a = 1
    h.a += 1
    h.b = x
    del h.b
    h.c = 3
    return x + h.a, h.virtual_thing, hasattr(h, "b"), h.log


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class MoreSlotted(Slotted):
    __slots__ = ("c",)


@case(lambda: (t(), Slotted(1)), lambda: (t(), MoreSlotted(2)))
def slots(x, s):
    out = [s.a, hasattr(s, "b")]
    s.b = s.a + 1
    del s.a
    try:
        s.z = 1
    except AttributeError as error:
        out.append(str(error))
    try:
        s.a  # noqa: B018
    except AttributeError as error:
        out.append(str(error))
    made = MoreSlotted(5)
    made.c = x
    return x + s.b, out, made, hasattr(made, "__dict__")


class Meta(type):
    registry: typing.ClassVar[list] = []

    def __new__(mcs, name, bases, namespace, **kwargs):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.tag = kwargs.get("tag", "none")
        return cls

    def __init__(cls, name, bases, namespace, **kwargs):
        super().__init__(name, bases, namespace)
        Meta.registry.append(name)

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.built = cls.tag
        return made

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __len__(cls):
        return 12

    def __contains__(cls, item):
        return item == "in"

    def __iter__(cls):
        return iter(["m", "n"])

    @property
    def label(cls):
        return cls.__name__.lower()

    def __instancecheck__(cls, obj):
        return obj == "instance" or type.__instancecheck__(cls, obj)


class Built(metaclass=Meta, tag="built"):
    def __init__(self, v):
        self.v = v

    def __class_getitem__(cls, key):
        return "never"


@case()
def metaclass_protocol(x):
    b = Built(3)
    return (
        x + b.v,
        b.built,
        Built["k"],
        len(Built),
        "in" in Built,
        list(Built),
        Built.label,
        isinstance("instance", Built),
    )


class B(Plugin, name="b"):
    def who(self):
        return ["B"]


class C(A, B, name="c"):
    def who(self):
        return ["C", *super().who(), *super(A, self).who()]


@case()
def inheritance_and_hooks(x):
    return (
        x,
        C().who(),
        C.name,
        Plugin.found,
        C[3],
        [k.__name__ for k in C.__mro__],
        issubclass(C, B),
        super(C, C()).who(),
    )


class Once:
    _one = None

    def __new__(cls, *args):
        LOG.append("new")
        made = super().__new__(cls)
        made.args = args
        return made

    def __init__(self, *args):
        LOG.append("init")
        self.n = len(args)


class Other:
    def __new__(cls, v):
        return v if v else super().__new__(cls)

    def __init__(self, v):
        LOG.append("init other")


@case()
def custom_new(x):
    o = Once(1, 2)
    return x + o.n, o.args, Other(5), type(Other(0)).__name__


@case()
def init_returns_something(x):
    class_like = Broken
    try:
        class_like()
    except TypeError as error:
        return x, str(error)


class Broken:
    def __init__(self):
        return 5


@case()
def wrong_constructor_calls(x):
    out = []
    for make in (lambda: Same(1), lambda: Point(), lambda: Point(1, 2, 3), lambda: Point(1, z=2), lambda: object(1)):
        try:
            out.append(make())
        except TypeError as error:
            out.append(str(error))
    return x, out


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def twice(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, a):
        self.a = a

    def area(self):
        return self.a**2


@case()
def abstract_classes(x):
    try:
        Shape()
    except TypeError as error:
        LOG.append(str(error))
    return x * Square(2).twice(), isinstance(Square(1), Shape)


@case()
def class_attributes_read(x):
    p = Point(1)
    a = p.kind, Point3.kind, p.shared is Point.shared
    p.kind = "mine"
    return x, a, p.kind, Point.kind, p.__class__.__name__, p.__doc__, Point.__name__, Point.__qualname__, p.__module__


@case(watch="")
def class_attribute_written(x):
    Point.kind = "changed"
    try:
        return x, Point(1).kind
    finally:
        Point.kind = "point"


class Stats:
    calls = 0
    items = []


@case(lambda: (setattr(Stats, "calls", 0), Stats.items.clear(), t())[2:])
def class_counters(x):
    Stats.calls += 1
    Stats.items.append(Stats.calls)
    return x + Stats.calls, Stats.items


@case(graphs="breaks")
def class_defined_inside(x):
    class Local:
        factor = 3

        def __init__(self, v):
            self.v = v

        def scaled(self):
            return self.v * self.factor

    a = Local(x)
    return a.scaled(), Local.__name__, isinstance(a, Local)


@case(graphs="breaks")
def class_defined_inside_with_closure(x):
    k = 2

    class Base:
        def f(self):
            return x * k

    class Derived(Base):
        def f(self):
            return super().f() + 1

    return Derived().f()


@case(graphs="breaks")
def class_returned(x):
    class Made:
        n = 1

    return Made().n, x + 1


test_classes = case.tests()
test_classes_whole = case.whole()
