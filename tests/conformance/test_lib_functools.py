"""functools and operator: partial application, caches, dispatch, reduction, getters."""

import functools
import operator
from functools import cached_property, partial, partialmethod, reduce, singledispatch, total_ordering, wraps

import torch
from cases import case, t


@case(lambda: (t(3), 2), lambda: (t(5), 3))
def test_partial(x, n):
    return partial(torch.add, alpha=n)(x, x)


@case(lambda: (t(3),))
def test_partial_nested_with_override(x):
    add = partial(lambda a, b, *, scale=1: (a + b) * scale, x)
    twice = partial(add, scale=2)
    return twice(x), twice(x, scale=3), add.args[0] is x, twice.keywords


@case(lambda: (t(3),))
def test_partial_returned(x):
    made = partial(torch.mul, x)
    return made, made(x), made.func is torch.mul


def _scale(x, by, plus=0):
    return x * by + plus


_shared = partial(_scale, by=3)


@case(lambda: (t(3),), lambda: (t(4),))
def test_partial_from_globals(x):
    return _shared(x), _shared(x, plus=1)


@case(lambda: (partial(_scale, by=2), t(3)), lambda: (partial(_scale, by=5), t(3)))
def test_partial_as_argument(f, x):
    return f(x)


@case(lambda: ([t(3), t(3), t(3)],), lambda: ([t(3)],))
def test_reduce_tensors(xs):
    return reduce(lambda a, b: a * 2 + b, xs)


@case(lambda: ([t(3), t(3)],), lambda: ([],))
def test_reduce_with_start(xs):
    return reduce(operator.add, xs, torch.ones(3))


@case(lambda: ([],))
def test_reduce_of_nothing_raises(xs):
    return reduce(operator.add, xs)


@functools.lru_cache(maxsize=None)
def _table(n):
    return tuple(i * i for i in range(n))


@case(lambda: (t(3), 4), lambda: (t(3), 6))
def test_lru_cache_of_constants(x, n):
    return x * sum(_table(n))


@functools.cache
def _eye(n):
    return torch.eye(n)


@case(lambda: (t(3, 3),))
def test_cache_of_tensors(x):
    return x @ _eye(3), _eye(3) is _eye(3)


@case(lambda: (t(3),))
def test_lru_cache_made_inside(x):
    calls = []

    @functools.lru_cache
    def f(n):
        calls.append(n)
        return n + 1

    return x * f(1) + f(1) + f(2), calls


class _Lazy:
    def __init__(self, n):
        self.n, self.built = n, 0

    @cached_property
    def table(self):
        self.built += 1
        return torch.arange(self.n, dtype=torch.float32)

    @cached_property
    def size(self):
        return self.n * 2


@case(lambda: (_Lazy(3), t(3)), lambda: (_Lazy(4), t(4)))
def test_cached_property(o, x):
    return x + o.table + o.table, o.size, o.built


@case(lambda: (t(3),))
def test_cached_property_made_inside(x):
    o = _Lazy(3)
    return x + o.table, o.table is o.table, o.built, "table" in o.__dict__


def _logged(f):
    @wraps(f)
    def inner(*args, **kwargs):
        return f(*args, **kwargs) + 1

    inner.marker = "seen"
    return inner


@_logged
def _double(x):
    """Doubles."""
    return x * 2


@case(lambda: (t(3),))
def test_wraps(x):
    return _double(x), _double.__name__, _double.__doc__, _double.marker, _double.__wrapped__(x)


@case(lambda: (t(3),))
def test_wraps_inside(x):
    @_logged
    def triple(x):
        return x * 3

    return triple(x), triple.__name__


@singledispatch
def _kind(x):
    return "other"


@_kind.register
def _(x: int):
    return "int"


@_kind.register(list)
def _(x):
    return "list"


@_kind.register
def _(x: torch.Tensor):
    return x * 2


@case(lambda: (t(3), 1), lambda: (t(3), [1]), lambda: (t(3), "s"))
def test_singledispatch(x, y):
    return _kind(x), _kind(y)


class _Shape:
    @functools.singledispatchmethod
    def area(self, x):
        return 0

    @area.register
    def _(self, x: int):
        return x

    @area.register
    def _(self, x: float):
        return x * 2


@case(lambda: (t(2), _Shape(), 3), lambda: (t(2), _Shape(), 2.5))
def test_singledispatchmethod(x, shape, v):
    return x * shape.area(v)


@total_ordering
class _Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n


@case(lambda: (t(2), _Version(1), _Version(2)), lambda: (t(2), _Version(2), _Version(2)))
def test_total_ordering(x, a, b):
    if a >= b:
        x = x + 1
    return x, a <= b, a > b, a == b, max(a, b).n


class _Cell:
    def __init__(self, value):
        self.value = value

    def set(self, key, value):
        setattr(self, key, value)
        return self

    set_value = partialmethod(set, "value")


@case(lambda: (_Cell(t(2)), t(2)))
def test_partialmethod(cell, x):
    return cell.set_value(x + 1).value


@case(lambda: ([3, 1, 2], t(3)))
def test_cmp_to_key(items, x):
    order = sorted(items, key=functools.cmp_to_key(lambda a, b: b - a))
    return x * order[0], order


@case(lambda: ([t(3), t(3)], {"a": t(2), "b": 3}))
def test_itemgetter(xs, d):
    return operator.itemgetter(1)(xs), operator.itemgetter("a", "b")(d), operator.itemgetter(slice(0, 1))(xs)


class _Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def shifted(self, by, scale=1):
        return self.x * scale + by


@case(lambda: (_Point(t(2), _Point(t(3), 4)),))
def test_attrgetter_and_methodcaller(p):
    return (
        operator.attrgetter("x")(p),
        operator.attrgetter("y.x", "y.y")(p),
        operator.methodcaller("shifted", 2, scale=3)(p),
        operator.methodcaller("sum")(p.x),
    )


@case(lambda: (t(3), t(3)))
def test_operator_functions_on_tensors(x, y):
    return (
        operator.add(x, y),
        operator.matmul(x, y),
        operator.neg(x),
        operator.pow(x.abs(), 2),
        operator.lt(x, y),
        operator.and_(x > 0, y > 0),
        operator.truediv(x, 2),
        operator.getitem(x, 1),
        operator.abs(x),
        operator.inv(x > 0),
    )


@case(lambda: (t(3), [1, 2]))
def test_operator_in_place_functions(x, xs):
    y = operator.iadd(x, 1)
    zs = operator.iadd(xs, [3])
    return y is x, zs is xs, operator.imul(3, 4), operator.concat([1], [2]), operator.countOf([1, 1, 2], 1)


@case(lambda: ({"a": 1}, t(2)))
def test_operator_set_and_delete(d, x):
    operator.setitem(d, "b", x + 1)
    operator.delitem(d, "a")
    operator.setitem(x, 0, 5.0)
    return operator.contains(d, "a"), operator.index(3), operator.length_hint([1, 2]), operator.truth([])


@case(lambda: (t(3), 1, 1), lambda: (t(3), 1, 2))
def test_operator_comparisons(x, a, b):
    if operator.eq(a, b) or operator.is_(a, None):
        return x
    return x * (operator.ge(a, b) + 1), operator.is_not(a, b), operator.not_(a), operator.xor(a, b)
