"""Classes and functions that programs of several of these files use."""

import functools
import typing

from behaviour import LOG


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


class Same:
    pass


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


class Failure(Exception):
    def __init__(self, code, detail=None):
        super().__init__(f"failure {code}")
        self.code = code
        self.detail = detail


class Quiet(Exception):
    pass


def fails(kind, *args):
    LOG.append("fails")
    raise kind(*args)


class Counted:
    def __init__(self, f):
        functools.update_wrapper(self, f)
        self.f = f
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1
        return self.f(*args)


def counting(n):
    LOG.append("start")
    try:
        for i in range(n):
            LOG.append(i)
            got = yield i
            if got is not None:
                LOG.append(("got", got))
    finally:
        LOG.append("end")
    return n * 10


def note(v):
    LOG.append(v)
    return v


class Base:
    registry: typing.ClassVar[dict] = {}

    def __init__(self, *args, **kwargs):
        LOG.append(("Base", args, kwargs))
        super().__init__()

    def hello(self):
        return "base"

    @classmethod
    def make(cls, *args):
        LOG.append(cls.__name__)
        return cls(*args)

    @property
    def value(self):
        return 1

    @staticmethod
    def helper(v):
        return v + 1


class Left(Base):
    def __init__(self, a, **kwargs):
        LOG.append(("Left", a))
        super().__init__(a, **kwargs)

    def hello(self):
        return "left " + super().hello()

    @property
    def value(self):
        return super().value + 10

    @classmethod
    def make(cls, *args):
        return super().make(*args)


class Right(Base):
    def __init__(self, *args, k=0, **kwargs):
        LOG.append(("Right", args, k))
        super().__init__(*args, **kwargs)

    def hello(self):
        return "right " + super().hello()


class Both(Left, Right):
    def hello(self):
        def inner():
            return super(Both, self).hello()

        return "both " + inner() + [super(Left, self).hello() for _ in range(1)][0]

    @staticmethod
    def helper(v):
        return Base.helper(v) * 2

    @property
    def value(self):
        return super().value + 100
