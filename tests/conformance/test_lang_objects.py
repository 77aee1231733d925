"""Classes: attributes, descriptors, operators, inheritance, metaclasses, dataclasses, enums, named tuples."""

import functools
import operator

from behaviour import LOG, Suite, t
from things import Point, Point3, Same

case = Suite()


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


test_objects = case.tests()
test_objects_whole = case.whole()
