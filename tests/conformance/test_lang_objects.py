"""Classes: attributes, descriptors, operators, inheritance, metaclasses, dataclasses, enums, named tuples."""

import abc
import collections
import dataclasses
import enum
import functools
import operator
import typing

from behaviour import LOG, Suite, t

case = Suite()


class Point:
    """A point."""

    kind = "point"
    shared = []

    def __init__(self, x, y=0):
        self.x, self.y = x, y

    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return (self.x, self.y) == (other.x, other.y)

    def __hash__(self):
        return hash((self.x, self.y))

    def __repr__(self):
        return f"Point({self.x!r}, {self.y!r})"

    def __add__(self, other):
        LOG.append("add")
        if isinstance(other, Point):
            return Point(self.x + other.x, self.y + other.y)
        return NotImplemented

    def __radd__(self, other):
        LOG.append("radd")
        return Point(other + self.x, self.y)

    def __iadd__(self, other):
        LOG.append("iadd")
        self.x += other
        return self

    def __bool__(self):
        return bool(self.x)

    def __lt__(self, other):
        LOG.append("lt")
        return self.x < other.x

    def __format__(self, spec):
        return f"<{self.x:{spec or 'd'}}>"

    def moved(self, by):
        return type(self)(self.x + by, self.y)

    @classmethod
    def origin(cls):
        return cls(0, 0)

    @staticmethod
    def distance(a, b):
        return abs(a.x - b.x)

    @property
    def double(self):
        return self.x * 2

    @double.setter
    def double(self, value):
        LOG.append("set")
        self.x = value / 2

    @double.deleter
    def double(self):
        LOG.append("del")
        self.x = None


class Point3(Point):
    kind = "point3"

    def __init__(self, x, y=0, z=0):
        super().__init__(x, y)
        self.z = z

    def moved(self, by):
        made = super().moved(by)
        made.z = self.z
        return made

    @classmethod
    def origin(cls):
        p = super().origin()
        p.z = "origin"
        return p

    @property
    def double(self):
        return super().double + 1


@case(whole=True)
def instance_made_and_used(x):
    p = Point(2, 3)
    q = p.moved(1)
    return x * q.x + p.y, p == Point(2, 3), p != q, p == 3


@case()
def instance_returned(x):
    p = Point(x, [x])
    p.extra = p.y
    return p, {"p": p}


@case(lambda: (t(), Point(1)), lambda: (t(), Point(5, 6)))
def instance_argument_changed(x, p):
    p.x += 1
    p.fresh = x
    del p.y
    return x + p.x, hasattr(p, "y"), p.__dict__ is vars(p), sorted(p.__dict__)


@case(lambda: (t(), Point(1)), lambda: (t(), Point3(1)))
def argument_of_a_subclass(x, p):
    return x + p.double, p.kind, type(p).__name__, isinstance(p, Point3), p.moved(2)


@case(
    lambda: (t(), Point(1)),
)
def property_set_and_deleted(x, p):
    p.double = 10
    a = p.x
    del p.double
    return x + a, p.x


@case()
def property_without_setter(x):
    try:
        Point3(1).double = 5
    except AttributeError as error:
        return x, str(error)


@case()
def class_and_static_methods(x):
    return (
        x,
        Point3.origin().z,
        Point.origin().x,
        Point.distance(Point(5), Point(2)),
        Point3(1).distance(Point(1), Point(3)),
    )


@case()
def bound_and_unbound_methods(x):
    p = Point(1)
    m = p.moved
    return x + m(2).x, Point.moved(p, 3).x, m.__self__ is p, m.__func__ is Point.moved, m == p.moved, m is p.moved


@case()
def method_returned(x):
    p = Point(1)
    return p.moved, x + 1


@case()
def operators_and_reflected(x):
    a = Point(1) + Point(2)
    b = 5 + Point(1)
    c = Point(1)
    d = c
    c += 4
    try:
        Point(1) + 5
    except TypeError as error:
        LOG.append(str(error))
    try:
        Point(1) - Point(2)
    except TypeError as error:
        LOG.append(str(error))
    return x, a, b, c is d, c.x


@case()
def sum_of_objects(x):
    return x, sum([Point(1), Point(2)], Point(0)), sum([Point(1), Point(2)])


@case()
def truth_and_formatting(x):
    return (
        x,
        bool(Point(0)),
        not Point(1),
        f"{Point(3)} {Point(3):03d} {Point(3)!r}",
        str(Point(1)),
        [Point(1)] == [Point(1)],
    )


@case()
def sorting_objects(x):
    points = [Point(3), Point(1), Point(2)]
    LOG.append("sorted")
    ordered = sorted(points)
    points.sort(key=lambda p: -p.x)
    return x, ordered, points, min(points), max(points, key=operator.attrgetter("x"))


@case(graphs="breaks")
def hashing_objects(x):
    d = {Point(1): "a"}
    d[Point(1)] = "b"
    return x, d, Point(1) in d, d.get(Point(2)), {Point(1), Point(1), Point(2)}, Point(1) in [Point(1)]


class Reflecting:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name == "missing":
            raise AttributeError(name)
        LOG.append(("binary", name))
        return f"attribute {name}"

    def __sub__(self, other):
        LOG.append((self.name, "sub"))
        return NotImplemented

    def __rsub__(self, other):
        LOG.append((self.name, "rsub"))
        return "rsub"

    def __matmul__(self, other):
        return ("matmul", other)

    def __neg__(self):
        return "neg"

    def __pos__(self):
        return "pos"

    def __invert__(self):
        return "invert"

    def __abs__(self):
        return "abs"

    def __divmod__(self, other):
        return "divmod"

    def __round__(self, digits=None):
        return ("round", digits)

    def __int__(self):
        return 7

    def __float__(self):
        return 7.5

    def __complex__(self):
        return 7j

    def __index__(self):
        return 1

    def __pow__(self, other, mod=None):
        return ("pow", other, mod)

    def __rpow__(self, other):
        return ("rpow", other)

    def __truediv__(self, other):
        return ("div", other)

    def __len__(self):
        return 4

    def __contains__(self, item):
        LOG.append(("contains", item))
        return item

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def __reversed__(self):
        return "reversed"


class MoreReflecting(Reflecting):
    def __rsub__(self, other):
        LOG.append("subclass first")
        return "subclass rsub"


@case(graphs="breaks")
def numeric_protocol(x):
    r = Reflecting("r")
    return (
        x, -r, +r, ~r, abs(r), divmod(r, 2), round(r), round(r, 2), int(r), float(r), complex(r),
        [10, 20][r], r**2, 2**r, pow(r, 2, 3), r / 1, r @ 2, bin(r), hex(r), "ab" * r, range(5)[r:],
    )  # fmt: skip


@case()
def container_protocol(x):
    r = Reflecting("r")
    return x, len(r), 0 in r, "a" in r, 1 not in r, bool(r), r(1, k=2), reversed(r), callable(r)


@case()
def not_implemented_then_reflected(x):
    a, b = Reflecting("a"), Reflecting("b")
    out = []
    for left, right in ((a, b), (a, MoreReflecting("m")), (a, 1), (1, a)):
        try:
            out.append(left - right)
        except TypeError as error:
            out.append(str(error))
    return x, out


@case()
def attribute_fallback(x):
    r = Reflecting("r")
    return x, r.anything, r.name, hasattr(r, "missing"), getattr(r, "missing", 5), hasattr(r, "other")


class Comparing:
    def __init__(self, v, answer=True):
        self.v, self.answer = v, answer

    def __eq__(self, other):
        LOG.append(("eq", self.v))
        return self.answer

    def __ge__(self, other):
        LOG.append(("ge", self.v))
        return NotImplemented

    def __le__(self, other):
        LOG.append(("le", self.v))
        return "le"


@case()
def rich_comparisons(x):
    a, b = Comparing("a"), Comparing("b", [])
    out = [a == b, b == a, a != b, b != 1, a == 1, a >= b, a >= 3, a <= 3]
    try:
        a < b  # noqa: B015
    except TypeError as error:
        out.append(str(error))
    return x, out, a in [b, 3], [a].index(a), [b, a].count(1)


@case()
def unhashable_when_eq_defined(x):
    try:
        {Comparing("a"): 1}  # noqa: B018
    except TypeError as error:
        return x, str(error)


class Same:
    pass


@case()
def default_comparisons(x):
    a, b = Same(), Same()
    try:
        a < b  # noqa: B015
    except TypeError as error:
        LOG.append(str(error))
    return x, a == a, a == b, a != b, a is b, {a: 1}[a], a in [b, a], len({a, b})


@functools.total_ordering
class Ordered:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v == other.v

    def __lt__(self, other):
        return self.v < other.v


@case()
def total_ordering(x):
    a, b = Ordered(1), Ordered(2)
    return x, a < b, a <= b, a > b, a >= b, sorted([b, a])[0] is a, max(a, b) is b


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


@case()
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


class Plugin:
    found: typing.ClassVar[list] = []

    def __init_subclass__(cls, /, name="", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.name = name
        Plugin.found.append(name)

    def __class_getitem__(cls, item):
        return f"{cls.__name__}[{item}]"


class A(Plugin, name="a"):
    def who(self):
        return ["A"]


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


@case(graphs="breaks", watch="")
def class_attribute_written(x):
    Point.kind = "changed"
    try:
        return x, Point(1).kind
    finally:
        Point.kind = "point"


class Stats:
    calls = 0
    items = []


@case(lambda: (setattr(Stats, "calls", 0), Stats.items.clear(), t())[2:], graphs="breaks")
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


# ---- dataclasses, named tuples, enums ----


@dataclasses.dataclass
class Config:
    a: int
    b: float = 0.5
    items: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=3, repr=False, compare=False)

    def __post_init__(self):
        self.total = self.a + self.b


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Options:
    name: str
    size: int = 1


@dataclasses.dataclass
class Nested(Config):
    inner: Config = None
    _: dataclasses.KW_ONLY = None
    last: int = 9


@case()
def dataclass_made(x):
    c = Config(1, items=[x])
    d = Config(1)
    return x + c.total, c, d == Config(1), d != Config(2), repr(d), d.items is Config(1).items


@case()
def dataclass_helpers(x):
    c = Config(1, 2.0)
    n = Nested(1, inner=c, last=4)
    e = dataclasses.replace(c, a=5)
    names = [f.name for f in dataclasses.fields(n)]
    return x, dataclasses.asdict(n), dataclasses.astuple(c), e, names, dataclasses.is_dataclass(c)


@case(lambda: (t(), Config(1)), lambda: (t(), Config(4, items=[1])))
def dataclass_argument(x, c):
    c.items.append(c.a)
    c.a += 1
    return x * c.a, dataclasses.replace(c, b=9.0), c.total


@case()
def dataclass_frozen(x):
    v = Version(1, 2)
    try:
        v.major = 5
    except dataclasses.FrozenInstanceError as error:
        LOG.append(str(error))
    try:
        del v.major
    except AttributeError as error:
        LOG.append(str(error))
    return x, v < Version(1, 3), max(v, Version(0)), hash(v) == hash(Version(1, 2)), {v: 1}[Version(1, 2)], v


@case()
def dataclass_slots_and_keywords(x):
    o = Options(name="n")
    o.size += 1
    try:
        Options("n")
    except TypeError as error:
        LOG.append(str(error))
    return x + o.size, o, o == Options(name="n", size=2)


class Pair(typing.NamedTuple):
    first: int
    second: str = "s"

    def joined(self):
        return f"{self.first}{self.second}"


Triple = collections.namedtuple("Triple", "a b c", defaults=[9])


@case()
def named_tuples(x):
    p = Pair(1)
    q = p._replace(second="z")
    a, b, c = Triple(1, x)
    return p, q.joined(), q._asdict(), Triple(1, 2)._fields, Triple._make([1, 2, 3]), c, p == (1, "s"), p[0], p + (1,)


@case(lambda: (t(), Pair(1)), lambda: (t(), Pair(2, "b")))
def named_tuple_argument(x, p):
    return x + p.first, p.second, p, len(p), p._replace(first=x), isinstance(p, tuple)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    ALSO_RED = 1

    @property
    def lower(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.GREEN


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Mode(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Name(str, enum.Enum):
    A = "a"


@case()
def enums(x):
    return (
        x, Colour.RED, Colour(2), Colour["GREEN"], Colour.RED is Colour.ALSO_RED, Colour.RED.lower, Colour.default(),
        [c.name for c in Colour], len(Colour), Colour.RED in Colour, Level.HIGH + 1, Level.LOW < 3, sorted(Level)[0],
        Mode.READ | Mode.WRITE, Mode.READ in Mode.BOTH, bool(Mode.READ & Mode.WRITE), ~Mode.READ, Name.A == "a",
        f"{Colour.RED} {Level.LOW} {Name.A!r}", {Colour.RED: 1}[Colour(1)], Name("a").value.upper(), isinstance(Name.A, str),
    )  # fmt: skip


@case()
def enum_errors(x):
    out = []
    for call in (lambda: Colour(9), lambda: Colour["NO"], lambda: Colour.NO):
        try:
            out.append(call())
        except (ValueError, KeyError, AttributeError) as error:
            out.append((type(error).__name__, str(error)))
    return x, out


@case(lambda: (t(), Colour.RED), lambda: (t(), Colour.GREEN))
def enum_argument(x, c):
    if c is Colour.RED:
        return x + 1, c.value
    return x * 2, c


# ---- subclasses of builtin types ----


class Bag(dict):
    def __missing__(self, key):
        LOG.append(("missing", key))
        return f"no {key}"

    def __setitem__(self, key, value):
        LOG.append(("setitem", key))
        super().__setitem__(key, value)


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    @property
    def top(self):
        return self[-1]


class Words(str):
    def shout(self):
        return self.upper() + "!"


class Metres(float):
    def __add__(self, other):
        return Metres(float(self) + other)


class Vector(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self, other)))


@case()
def dict_subclass_made(x):
    b = Bag(a=1)
    b["c"] = x
    b.update(d=2)
    return b, b["zzz"], b.get("zzz"), "a" in b, len(b), list(b), b == {"a": 1}


@case(lambda: (t(), Bag(a=1)), lambda: (t(), Bag(b=2)), graphs="breaks")
def dict_subclass_argument(x, b):
    b["new"] = 5
    return x + len(b), b["none"], sorted(b), isinstance(b, dict)


@case(lambda: (t(), Bag(a=1)), lambda: (t(), Bag(a=2)))
def dict_subclass_argument_read(x, b):
    return x + b["a"], b.get("q"), "a" in b, list(b.items()), {**b}, dict(b)


@case()
def list_subclass_made(x):
    s = Stack([1])
    s.push(2).push(x)
    s[0] = 7
    return s, s.top, len(s), s[:2], type(s[:2]).__name__, s + [1]


@case(lambda: (t(), Stack([1])), lambda: (t(), Stack([1, 2])), graphs="breaks")
def list_subclass_argument(x, s):
    s.push(5)
    s[0] += 1
    return x + s.top, s


@case(graphs="breaks")
def other_builtin_subclasses(x):
    w, m, v = Words("ab"), Metres(1.5), Vector(1, 2)
    return x, w.shout(), type(w + "c").__name__, m + 2, type(m * 2).__name__, v + (1, 1), len(v), w == "ab"


@case(
    lambda: (t(), Words("ab"), Metres(2), Vector(1)),
    lambda: (t(), Words("c"), Metres(3), Vector(1, 2)),
    graphs="breaks",
)
def other_builtin_subclass_arguments(x, w, m, v):
    return x + float(m), w.shout(), m + 1, v, sum(v), w + "z"


class Wide:
    def __getitem__(self, key):
        return key

    def __setitem__(self, key, value):
        LOG.append(("set", key, value))

    def __delitem__(self, key):
        LOG.append(("del", key))


@case()
def user_item_access(x):
    w = Wide()
    w[1] = 2
    w[1:2, ...] = 3
    del w["k"]
    w[0] += (5,) if False else 1
    return x, w[1], w[1:2], w[::2, 0], w[...], w[1, 2], w[:], w[-1], w[None]


class Chained:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args):
            self.calls.append((name, args))
            return self

        return call


@case()
def fluent_calls(x):
    c = Chained().first(1).second(2, 3)
    return x, c.calls


@case()
def instances_with_shared_state(x):
    a = Point(1)
    b = Point(2)
    a.friend, b.friend = b, a
    return x + a.friend.friend.x, a


@case(lambda: (lambda p: (t(), p, [p]))(Point(1)))
def object_reached_twice(x, p, box):
    box[0].x = 5
    p.y = 6
    return x + p.x + box[0].y, box[0] is p


@case()
def monkeypatched_instance(x):
    p = Point(1)
    p.moved = lambda by: by * 10
    return x + p.moved(2), Point(1).moved(2).x


@case()
def introspection(x):
    p = Point(1, 2)
    return x, p.__dict__, isinstance(p, (int, Point)), type(p) is Point, callable(p.moved), vars(p) == {"x": 1, "y": 2}


@case()
def dynamic_attributes(x):
    p = Point(1)
    for i, name in enumerate(("a", "b")):
        setattr(p, name, i)
    delattr(p, "a")
    return x, p.b, getattr(p, "a", None), [n for n in ("a", "b", "x") if hasattr(p, n)]


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, v):
        self.v = v


@case()
def generic_classes(x):
    g = Generic[int](3)
    return x + g.v, list[int]([1]), dict[str, int](a=1), isinstance(g, Generic), typing.cast(int, "s")


class Resource:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(("del", self.name))


@case(graphs="breaks")
def finalizer_order(x):
    r = Resource("r")
    LOG.append("before")
    del r
    LOG.append("after")
    return x


@case()
def copy_of_objects(x):
    import copy

    p = Point([1], {"a": x})
    q, r = copy.copy(p), copy.deepcopy(Point([1], {"k": [2]}))
    q.x.append(2)
    return p.x is q.x, p.x, r, q.y is p.y


@case()
def operator_module(x):
    p = Point(3, {"k": [1, 2]})
    return (
        x,
        operator.attrgetter("x", "kind")(p),
        operator.itemgetter(1, 0)("ab"),
        operator.methodcaller("moved", 2)(p).x,
    )


@case()
def tensor_with_user_operand(x):
    class_like = TensorLike(2)
    return x * class_like.v, class_like * x


class TensorLike:
    def __init__(self, v):
        self.v = v

    def __mul__(self, other):
        return other * self.v

    def __rmul__(self, other):
        LOG.append("rmul")
        return other + self.v


test_objects = case.tests()
test_objects_whole = case.whole()
