"""Dataclasses, named tuples, enums, subclasses of builtin types, objects that share state."""

import collections
import dataclasses
import enum
import operator
import typing

from behaviour import LOG, Suite, t
from things import Point

case = Suite()


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


@case(whole=True)
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


test_records = case.tests()
test_records_whole = case.whole()
