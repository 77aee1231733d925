"""What changes between calls: values of the same type and shape that a capture must not take for constants.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import collections
import dataclasses
import enum
import functools
import sys
import types

import torch
from behaviour import LOG, Suite, t

case = Suite()


def add(k):
    def f(x):
        return x + k

    return f


class Item:
    limit = 1

    def __init__(self, v, **more):
        self.v = v
        self.__dict__.update(more)

    def scaled(self, x):
        return x * self.v

    @property
    def double(self):
        return self.v * 2

    def __call__(self, x):
        return x - self.v

    def __repr__(self):
        return f"Item({self.v})"


class Unequal(Item):
    def __eq__(self, other):
        return isinstance(other, Item) and self.v == other.v

    __hash__ = None


class Slots:
    __slots__ = ("v", "w")

    def __init__(self, v, w=None):
        self.v = v
        if w is not None:
            self.w = w


class Kind(enum.Enum):
    A = 1
    B = 2


def three(make):
    """Three argument sets from one builder."""
    return [lambda n=n: make(n) for n in (1, 2, 3)]


# ---- what arguments hold ----


@case(*three(lambda n: (t(), add(n))), whole=True)
def closure_contents(x, f):
    return f(x)


@case(*three(lambda n: (t(), functools.partial(torch.add, alpha=n))))
def partial_contents(x, f):
    return f(x, x), f.keywords["alpha"]


@case(*three(lambda n: (t(), Item(n).scaled)))
def bound_method(x, method):
    return method(x), method.__self__.v, method.__name__


@case(*three(lambda n: (t(), Item(n))))
def callable_object(x, item):
    return item(x), item.double, hasattr(item, "extra"), getattr(item, "extra", 0)


@case(lambda: (t(), Item(1)), lambda: (t(), Item(1, extra=5)), lambda: (t(), Item(1, extra=6)))
def optional_attribute(x, item):
    return x + getattr(item, "extra", 0), hasattr(item, "extra"), "extra" in vars(item), len(vars(item))


@case(lambda: (t(), Item(1, a=1, b=2)), lambda: (t(), Item(1, b=2, a=1)), lambda: (t(), Item(1, a=1, c=2)))
def attribute_names_in_order(x, item):
    return x, [n for n in item.__dict__], list(vars(item).items())


@case(lambda: (t(), Slots(1)), lambda: (t(), Slots(1, 2)), lambda: (t(), Slots(1, 3)), lambda: (t(), Slots(2)))
def optional_slot(x, item):
    return x + item.v + getattr(item, "w", 0), hasattr(item, "w")


@case(*three(lambda n: (t(), [n, [n]])))
def nested_list(x, v):
    return x + v[0] + v[1][0], v == [1, [1]], 2 in v, v.count(n := v[0]), n


@case(*three(lambda n: (t(), {"a": n, "b": {"c": n}})))
def nested_dict(x, d):
    return x + d["a"] + d["b"]["c"], d == {"a": 1, "b": {"c": 1}}, sorted(d["b"].values())


@case(lambda: (t(), {"a": 1, "b": 2}), lambda: (t(), {"b": 2, "a": 1}), lambda: (t(), {"a": 1, "c": 2}))
def dict_order(x, d):
    return x, list(d), [k for k in d if d[k] == 2]


@case(*three(lambda n: (t(), {n, 10})))
def set_contents(x, s):
    return x + sum(s), 1 in s, len(s), max(s), s == {1, 10}


@case(*three(lambda n: (t(), frozenset([n]), (n, (n,)))))
def frozen_contents(x, s, v):
    return x + v[0] + v[1][0], 1 in s, v == (1, (1,)), hash(v) == hash((1, (1,)))


@case(*three(lambda n: (t(), range(n), slice(n))))
def ranges_and_slices(x, r, s):
    return len(r), x[s], list(r), s.stop, r == range(1)


@case(*three(lambda n: (t(), collections.deque([n], maxlen=n))))
def deque_contents(x, q):
    q.append(5)
    return x + q[0], len(q), q.maxlen


@case(*three(lambda n: (t(), collections.OrderedDict(a=n), collections.Counter("ab" * n))))
def mapping_contents(x, d, c):
    return x + d["a"], c["a"], c.most_common(1), c.total()


@case(*three(lambda n: (t(), "x" * n, b"y" * n, n + 0.5, n * 1j)))
def scalar_contents(x, s, b, f, c):
    return x + len(s), s == "x", b == b"y", f > 2, c.imag, f"{s} {f}", s.upper() + str(b)


@case(lambda: (t(), True), lambda: (t(), False), lambda: (t(), 1), lambda: (t(), 0), lambda: (t(), None))
def truth_of_arguments(x, flag):
    return x + 1 if flag else x - 1, flag is True, flag == 1, type(flag).__name__


@case(lambda: (t(), Kind.A), lambda: (t(), Kind.B))
def enum_members(x, kind):
    return x * kind.value, kind is Kind.A, kind.name, kind == Kind.B


@case(lambda: (t(), torch.float32), lambda: (t(), torch.float64), lambda: (t(), torch.int64))
def dtypes(x, dtype):
    return x.to(dtype), dtype.is_floating_point, str(dtype), torch.zeros(1, dtype=dtype)


@case(lambda: (t(), Item), lambda: (t(), Unequal))
def classes(x, cls):
    return cls(2)(x), cls.__name__, cls.limit, isinstance(cls(1), Item), cls is Item


@case(lambda: (t(), ValueError("a")), lambda: (t(), ValueError("b", 1)), lambda: (t(), KeyError("a")))
def exceptions(x, error):
    return x, str(error), error.args, type(error).__name__, len(error.args)


@case(lambda: (t(), ValueError("a")), lambda: (t(), ValueError("b", 1)), lambda: (t(), KeyError("a")))
def exceptions_raised(x, error):
    try:
        raise error
    except (ValueError, KeyError) as caught:
        return x, str(caught), caught is error


@case(*three(lambda n: (t(), iter(range(n, 5)))), graphs="breaks")
def iterators(x, it):
    return x + next(it), list(it)


@case(*three(lambda n: (t(), (i * n for i in range(3)))), graphs="breaks")
def generators(x, g):
    next(g)
    return [x + v for v in g]


@case(*three(lambda n: (t(), types.SimpleNamespace(a=n, b=[n]))))
def namespaces(x, space):
    space.c = space.a + space.b[0]
    return x + space.c, vars(space)["a"]


@case(*three(lambda n: (t(), {"k": n}.keys(), {"k": n}.values(), {"k": n}.items())), graphs="breaks")
def dict_views(x, keys, values, items):
    return x, list(keys), list(values), list(items)


@case(*three(lambda n: (t(), types.MappingProxyType({"k": n}))), graphs="breaks")
def mapping_proxies(x, proxy):
    return x + proxy["k"], dict(proxy), len(proxy)


@case(*three(lambda n: (t(), bytearray([n]))), graphs="breaks")
def byte_arrays(x, data):
    data.append(7)
    return x + data[0], len(data), bytes(data)


@case(*three(lambda n: (t(), memoryview(bytes([n])))), graphs="breaks")
def memory_views(x, view):
    return x + view[0], view.nbytes


@case(*three(lambda n: (t(), complex(n, 1), fraction(n))))
def numbers_of_other_kinds(x, c, f):
    return x + float(f), c.real + f, f * 2, f > 1


def fraction(n):
    from fractions import Fraction

    return Fraction(n, 2)


@case(*three(lambda n: (t(), collections.namedtuple("P", "a b")(n, [n]))))
def named_tuple_of_a_new_class(x, p):
    return x + p.a + p.b[0], p._fields


P = collections.namedtuple("P", "a b")


@dataclasses.dataclass
class Options:
    a: int
    b: list = dataclasses.field(default_factory=list)


@case(*three(lambda n: (t(), P(n, [n]), Options(n, [n]))))
def records(x, p, o):
    p.b.append(o.a)
    return x + p.a + o.a, p, o == Options(1, [1]), dataclasses.replace(o, a=0)


@case(lambda: (t(), [t()], {"w": t()}), lambda: (t(), [t(), t()], {"w": t(1.0)}), lambda: (t(4.0), [], {}))
def containers_of_tensors(x, v, d):
    return [x.sum() + y for y in v], {k: y * 2 for k, y in d.items()}, len(v)


@case(lambda: (t(), None), lambda: (t(), t()), lambda: (t(), 3), lambda: (t(), [t()]))
def optional_tensor(x, y):
    if y is None:
        return x
    if isinstance(y, torch.Tensor):
        return x + y
    return x, y


@case(lambda: (t(), t()), lambda: (lambda v: (v, v))(t()), lambda: (lambda v: (v, v[:]))(t()))
def aliased_tensors(x, y):
    x = x + 1
    return x + y, x is y


@case(lambda: (t(), t()), lambda: (lambda v: (v, v))(t()), lambda: (lambda v: (v, v.view(-1)))(t()), graphs="eager")
def aliased_tensors_written(x, y):
    x.add_(1)
    return x * y


@case(lambda: ([1], [1]), lambda: (lambda v: (v, v))([1]), lambda: ([1, 2], [1]))
def aliased_lists(a, b):
    a.append(3)
    return a == b, a is b, len(b)


@case(
    lambda: (t(1.0, 2.0),),
    lambda: (t(1.0, 2.0).double(),),
    lambda: (t(1.0, 2.0).reshape(1, 2),),
    lambda: (t(1.0, 2.0).long(),),
)
def tensor_facts(x):
    return x * 2, x.dtype, x.dim(), x.shape, x.is_floating_point(), x.stride()


@case(lambda: (torch.ones(2, 3),), lambda: (torch.ones(3, 2).t(),), lambda: (torch.ones(4, 3)[::2],))
def tensor_strides(x):
    return x.contiguous().view(-1), x.is_contiguous(), x.stride(), x.storage_offset(), x + 1


@case(lambda: (t(), 0), lambda: (t(), 1), lambda: (t(), 2), lambda: (t(), 3), lambda: (t(), -1), lambda: (t(), 5))
def integers_as_indices(x, i):
    try:
        return x[i], [10, 20, 30][i], x[:i], x.roll(i)
    except IndexError as error:
        return str(error).split(" ")[0], i


@case(*[lambda n=n: (torch.ones(n),) for n in (0, 1, 2, 3, 7)])
def sizes_zero_one_and_more(x):
    n = x.shape[0]
    return x.sum(), n, x.reshape(-1, 1) if n else None, list(range(n)), n == 2, n > 1, f"{n}", x[: n // 2]


@case(*[lambda a=a, b=b: (torch.ones(a, 2), torch.ones(b, 2)) for a, b in ((2, 2), (2, 3), (3, 3), (3, 2), (1, 4))])
def sizes_of_two_tensors(x, y):
    if x.shape == y.shape:
        return x + y
    return torch.cat([x, y]), x.shape[0] + y.shape[0], x.shape[0] < y.shape[0]


@case(*[lambda n=n: (t(), n) for n in (1, 2, 3, 2.0, True, "3")])
def numbers_of_changing_type(x, n):
    return x * int(n), n == 2, type(n) is int, n * 2


# ---- what globals, classes and modules hold ----

_FACTOR = 1
_TABLE = {"k": [1]}
_HELPER = add(1)


def _set(**values):
    globals().update(values)
    return (t(),)


@case(*[lambda n=n: _set(_FACTOR=n) for n in (1, 2, 3, 2.5, "a")], watch="_FACTOR")
def global_value(x):
    return x, _FACTOR * 2, _FACTOR == 2


@case(*[lambda n=n: _set(_HELPER=add(n)) for n in (1, 2, 3)], watch="_HELPER")
def global_function(x):
    return _HELPER(x)


@case(*[lambda n=n: _set(_TABLE={"k": [n]}) for n in (1, 2, 3)], watch="_TABLE")
def global_table(x):
    return x + _TABLE["k"][0], len(_TABLE)


def _limit(n):
    Item.limit = n
    return t(), Item(n)


@case(*[lambda n=n: _limit(n) for n in (1, 2, 1)])
def class_attribute_changes(x, item):
    return x + Item.limit, item.limit, getattr(type(item), "limit")


def _method(n):
    Item.scaled = (lambda self, x: x * self.v) if n == 1 else (lambda self, x: x + self.v + n)
    return t(), Item(n)


@case(*[lambda n=n: _method(n) for n in (1, 2, 3, 1)])
def method_replaced(x, item):
    return item.scaled(x)


def _defaults(n):
    _with_default.__defaults__ = (n,)
    return (t(),)


def _with_default(x, k=0):
    return x + k


@case(*[lambda n=n: _defaults(n) for n in (1, 2, 3)])
def defaults_change(x):
    return _with_default(x)


def _code(n):
    _recoded.__code__ = (lambda x: x + 1).__code__ if n == 1 else (lambda x: x * 2).__code__
    return (t(),)


def _recoded(x):
    return x


@case(*[lambda n=n: _code(n) for n in (1, 2, 1)])
def code_changes(x):
    return _recoded(x)


def _module(n):
    module = types.ModuleType("settings_of_the_test")
    module.value = n
    sys.modules["settings_of_the_test"] = module
    return t(), module


@case(*[lambda n=n: _module(n) for n in (1, 2, 2)])
def module_contents(x, module):
    import settings_of_the_test

    return x + module.value, settings_of_the_test.value, settings_of_the_test is module


@case(*[lambda n=n: (t(), _list_of(n)) for n in (0, 1, 2, 60, 61)])
def list_lengths(x, v):
    return x + len(v), sum(v), v[-1:] == [n] if (n := len(v) - 1) >= 0 else "empty"


def _list_of(n):
    return list(range(n))


@case(*[lambda n=n: (t(), {i: i + n for i in range(60)}) for n in (0, 1, 2)])
def large_dicts(x, d):
    return x + d[3], d.get(59), max(d.values())


def _status(n):
    import os

    return os.stat_result([n] * 10 + [n + 0.5] * 3 + [0] * 6)


@case(*[lambda n=n: (t(), _status(n)) for n in (1, 2)], graphs="breaks")
def structure_with_hidden_fields(x, status):
    return x + status.st_mtime, status.st_mode, status[0], len(status), status


def _large(n):
    return {i: i + n for i in range(60)}


@case(*[lambda n=n: (t(), _large(n)) for n in (0, 1, 2)])
def large_dicts_written(x, d):
    alias = d
    d[3] = x
    d |= {"a": 1}
    d.update({"b": [2]}, c=3)
    d.setdefault("b", []).append(d.pop(5))
    del d[7]
    try:
        del d["none"]
    except KeyError as error:
        LOG.append(error.args)
    return (
        alias is d,
        len(d),
        list(d)[-3:],
        d.get(5),
        d["b"],
        3 in d,
        sum(v for k, v in d.items() if isinstance(k, int) and k > 50),
    )


@case(*[lambda n=n: (t(), _large(n)) for n in (0, 1)])
def large_dict_views_returned(x, d):
    return d.keys(), d.values(), d.items(), d


@case(*[lambda n=n: (t(), _large(n)) for n in (0, 1)], graphs="breaks")
def large_dict_viewed_then_written(x, d):
    keys = d.keys()
    d["new"] = 1
    return x, "new" in keys, len(keys)


class Tally:
    count = 0
    names = ("a",)

    def read(self):
        return self.count


class SubTally(Tally):
    def read(self):
        return super().count + self.count


def _tally(n):
    for cls, name in ((SubTally, "count"), (SubTally, "names"), (Tally, "extra")):
        if name in cls.__dict__:
            delattr(cls, name)
    Tally.count = n
    return t(), Tally(), SubTally()


@case(*[lambda n=n: _tally(n) for n in (0, 1, 5, 6)])
def class_attributes_written(x, a, b):
    Tally.count += 1
    out = [a.read(), b.read(), Tally.count, SubTally.count, type(a).count, getattr(b, "count")]
    b.count = 100
    SubTally.count = 50
    Tally.extra = [x]
    out += [b.read(), SubTally.count, a.count, a.extra[0] is x, hasattr(SubTally, "extra")]
    return x + Tally.count, out


@case(*[lambda n=n: _tally(n) for n in (0, 1)])
def class_attributes_after_the_call(x, a, b):
    Tally.count = 7
    SubTally.names = SubTally.names + ("b",)
    return x + a.count, Tally.__dict__["names"] if False else b.names


@case(*[lambda n=n: _module(n) for n in (1, 2, 3)])
def module_attributes_written(x, module):
    module.value += 1
    module.fresh = [x]
    return x + module.value, module.fresh[0] is x, hasattr(module, "other")


# ---- the same across a break ----


@case(*three(lambda n: (t(), Item(n), [n], {"a": n}, add(n), "s" * n)), graphs="breaks")
def all_of_it_across_a_break(x, item, v, d, f, s):
    y = f(x) + item.v
    print("break")
    item.v += 1
    v.append(item.v)
    d["b"] = v
    return f(y) + item.v, item(x), v, d, s + "!", len(s), item.double


@case(*three(lambda n: (t(), ValueError(n))), graphs="breaks")
def error_across_a_break(x, error):
    print("break")
    try:
        raise error
    except ValueError as caught:
        print("caught")
        return x, str(caught), caught.args


@case(*three(lambda n: (t(), n)))
def error_raised_by_what_is_not_captured(x, n):
    try:
        int("n" * n)
        float(print(n) or "q" * n)
    except ValueError as error:
        return x, str(error), error.args


@case(*three(lambda n: (t(), n)), graphs="breaks")
def error_from_a_pending_call(x, n):
    def fails(k):
        print("fails", k)
        raise KeyError(f"key {k}", k)

    try:
        fails(n)
    except KeyError as error:
        return x, str(error), error.args, repr(error)


@case(*three(lambda n: (t(), n)), graphs="breaks")
def generator_state_across_a_break(x, n):
    def counting():
        for i in range(n):
            yield i

    g = counting()
    first = next(g)
    print(first)
    return x + first, list(g)


@case(*three(lambda n: (t(), n)), graphs="breaks")
def values_of_a_broken_call(x, n):
    def read():
        print("read")
        return [n, Item(n), add(n), (n, "s" * n), {n: n}]

    v, item, f, pair, d = read()
    return f(x) + v + item.v, pair, d, item.double, len(pair[1])


@case(*three(lambda n: (t(*([1.0] * n)), n)), graphs="breaks")
def numbers_read_from_tensors(x, n):
    k = int(x.sum().item())
    return x + k, [0] * k, k == n, "s" * k, k > 2


@case(*three(lambda n: (t(), n)), graphs="breaks")
def closure_cells_across_a_break(x, n):
    total = n

    def bump(k):
        nonlocal total
        print("bump", total)
        total += k
        return total

    a = bump(1)
    b = bump(n)
    return x + total, a, b


@case(lambda: (t(1.0),), lambda: (t(-1.0),), lambda: (t(2.0, 3.0),), lambda: (t(-2.0, -3.0),), graphs="breaks")
def branches_leave_different_values(x):
    if x.sum() > 0:
        extra = [1]
        name = "positive"
    else:
        extra = {"k": 2}
        name = None
    LOG.append(name)
    return x + len(extra), extra, name


@case(lambda: (t(1.0),), lambda: (t(-1.0),), graphs="breaks")
def branch_leaves_a_variable_unbound(x):
    if x.sum() > 0:
        bound = 1
    print("after")
    try:
        return x + bound
    except UnboundLocalError as error:
        return x, str(error)


@case(*[lambda n=n: (t(), _list_of(n)) for n in (2, 3, 4)], graphs="breaks")
def loop_over_an_argument_with_breaks(x, v):
    for i in v:
        print(i)
        x = x + i
    return x


@case(*[lambda n=n: (t(), n) for n in (2, 3, 20)], graphs="breaks")
def loop_of_changing_length_with_breaks(x, n):
    out = []
    for i in range(n):
        if x.sum() > 1000:
            break
        out.append(i)
        x = x + i
    return x, out


test_changes = case.tests()
test_changes_whole = case.whole()
