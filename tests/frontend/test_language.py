"""Python's language features, one small function each: compiled and eager agree, in one graph."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import types
import typing

import pytest
import torch
import torch.nn.functional as F
from harness import check

X = torch.arange(6.0).reshape(2, 3)


def doubled(x):
    return x * 2


SCRIPTED = torch.jit.script(doubled)


def arithmetic(x):
    return (x + 1) * 2 - x / 3 + x**2 + 7 // 2 + (-x) + abs(x) + x % 2


def in_place(x):
    x += 1
    x *= 2
    return x


def chained_compare(x):
    n = x.shape[0]
    return x if 1 < n <= 2 else -x


def boolean_operators(x):
    return x + (x.dim() == 2 and 3 or 4) + (not x.dim())


def slices(x):
    return x[:, 1:], x[0], x[..., None], x[:, [0, 2]], x[-1, ::2]


def set_slices(x):
    y = x.clone()
    y[0] = 7
    y[:, 1] = y[:, 2]
    return y


def unpack(x):
    a, (b, *c), *d = (1, (2, 3, 4), 5, 6)
    return x + a + b + sum(c) + sum(d)


def unpack_tensor(x):
    a, b = x
    return a * b


def comprehension(x):
    return [x * i for i in range(3) if i], {i: x + i for i in range(2)}, {i % 2 for i in range(4)}


def nested_comprehension(x):
    return sum([[x * i * j for j in range(2)] for i in range(3)][2])


def generator(x):
    def values(n):
        for i in range(n):
            got = yield x + i
            assert got is None
        return 5

    return list(values(3)), sum(v for v in values(2))


def generator_delegates(x):
    def inner():
        yield 1
        yield 2
        return 3

    def outer():
        last = yield from inner()
        yield last

    return x * sum(outer())


def generator_send(x):
    def running():
        total = 0
        while True:
            total += yield total

    g = running()
    next(g)
    return x + g.send(3) + g.send(4)


class Proxy:
    def __init__(self, inner):
        self.inner = inner

    @property
    def broken(self):
        raise AttributeError("broken")

    def __getattr__(self, name):
        return (name, self.inner)


class Watched:
    def __init__(self):
        self.size = 3

    def __getattribute__(self, name):
        if name == "virtual":
            return 7
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2)


def attribute_hooks(x):
    w = Watched()
    w.other = 1
    return Proxy(x).anything, Proxy(x).broken, w.virtual, w.size, w.other, hasattr(w, "none")


def generator_dropped(x):
    seen = []

    def values():
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed")

    for v in values():
        break
    return x + v, seen


def script_function(x):
    return SCRIPTED(x)


def loops(x):
    for i in range(10):
        if i == 2:
            continue
        if i == 5:
            break
        x = x + i
    else:
        x = x * 100
    while x.dim() < 4:
        x = x[None]
    return x


def try_except(x):
    try:
        {}["missing"]
    except KeyError as error:
        x = x + len(error.args)
    else:
        x = x - 1
    finally:
        x = x * 2
    return x


def try_nested(x):
    def risky(n):
        try:
            if n:
                raise ValueError("n")
            return 1
        finally:
            seen.append(n)

    seen = []
    try:
        risky(0)
        risky(1)
    except (TypeError, ValueError) as e:
        return x + len(seen), str(e)
    return x


def reraise(x):
    try:
        try:
            raise RuntimeError("a")
        except RuntimeError:
            raise
    except RuntimeError as error:
        return x, error.args


def raise_from(x):
    try:
        try:
            int("z")
        except ValueError as e:
            raise TypeError("t") from e
    except TypeError as e:
        return x + 1, type(e.__cause__).__name__


def closure(x):
    n = 1

    def bump(k):
        nonlocal n
        n += k
        return x + n

    return bump(2), bump(3), n


def lambdas(x):
    fs = [lambda t, k=k: t * k for k in range(3)]
    return [f(x) for f in fs]


def keyword_arguments(x):
    def f(a, /, b, *rest, c, d=4, **more):
        return a + b + sum(rest) + c + d + sum(more.values())

    return f(x, 1, 2, 3, c=5, e=6), f(*(x, 1), **{"c": 2, "d": 3})


def decorated(x):
    def twice(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(f(*args, **kwargs))

        return wrapper

    @twice
    def grow(t):
        return t * 2 + 1

    return grow(x), grow.__name__


def partials(x):
    f = functools.partial(operator.add, x)
    g = functools.partial(lambda a, b, *, c: a * b + c, c=x)
    return f(1), g(2, 3)


def f_strings(x):
    n, name = x.shape[1], "x"
    return x, f"{name!r:>5}{n:03d}{n * 2=}{x.shape}", "%s-%d" % (name, n), "{}".format(n)


def string_methods(x):
    return x + len(",".join(s.upper() for s in "a b".split())), "abc".replace("b", "x").startswith("ax")


def isinstances(x):
    return (
        x
        + isinstance(x, torch.Tensor)
        + isinstance(3, (int, float))
        + issubclass(bool, int)
        + (type(x) is torch.Tensor)
    )


def attributes(x):
    return x + hasattr(x, "shape") + getattr(x, "nothing", 5) + (not hasattr(x, "nothing"))


class Shape:
    sides = 4
    unit = "cm"

    def __init__(self, size):
        self.size = size

    @property
    def area(self):
        return self.size * self.size

    @area.setter
    def area(self, value):
        self.size = value**0.5

    @classmethod
    def make(cls, size):
        return cls(size)

    @staticmethod
    def double(v):
        return v * 2

    @functools.cached_property
    def label(self):
        return self.size + 1

    def __add__(self, other):
        return type(self)(self.size + other)

    def __getitem__(self, i):
        if i >= 3:
            raise IndexError
        return self.size * i

    def __len__(self):
        return 3

    def __call__(self, v):
        return v + self.size

    def __eq__(self, other):
        return isinstance(other, Shape)

    def __hash__(self):
        return 1

    def __contains__(self, item):
        return item == 4

    def __bool__(self):
        return True

    def __enter__(self):
        self.size = self.size + 1
        return self

    def __exit__(self, *exc):
        self.size = self.size - 1
        return exc[0] is KeyError


class Square(Shape):
    def __init__(self, size):
        super().__init__(size)
        self.extra = super().double(1)

    @property
    def area(self):
        return super().area + 1

    def __getattr__(self, name):
        if name.startswith("dyn"):
            return len(name)
        raise AttributeError(name)


def objects(x):
    s = Shape.make(x)
    s.area = s.area + 1
    return s.area, s.label, s.label, s.double(x), (s + 1).size, [v for v in s], len(s), s(x), s == Shape(1), 4 in s


def inheritance(x):
    s = Square(x)
    return s.area, s.extra, s.dynamic, s.sides, getattr(s, "other", 1), isinstance(s, Shape)


def with_statement(x):
    with Shape(x) as s:
        y = s.size
    with Shape(x):
        raise KeyError
    return y, s.size


def with_contextlib(x):
    seen = []

    @contextlib.contextmanager
    def noted(n):
        seen.append(n)
        try:
            yield n + 1
        finally:
            seen.append(-n)

    with noted(1) as a, noted(2) as b, contextlib.nullcontext():
        x = x + a * b
    return x, seen


def with_suppress(x):
    with contextlib.suppress(ValueError):
        int("no")
    return x + 1


def returned_object(x):
    return Shape(x * 2)


@dataclasses.dataclass
class Point:
    a: torch.Tensor
    b: int = 2
    c: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.c.append(self.b)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: int = 1


def dataclass_values(x):
    p = Point(x, b=3)
    names = [f.name for f in dataclasses.fields(p)]
    return p, p.a * p.b, names, Frozen(2), dataclasses.replace(Frozen(2), b=5)


Pair = collections.namedtuple("Pair", "left right")


class Typed(typing.NamedTuple):
    a: torch.Tensor
    b: int = 3


def namedtuples(x):
    p = Pair(x, right=2)
    return p, p.left + p.right, p._replace(right=5), Typed(x), Typed(x).b


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def enums(x):
    return (
        x * Color(2).value + Level.HIGH,
        Color.RED is Color["RED"],
        Color.BLUE.name,
        Color.RED,
        [c.value for c in Color],
    )


def lists(x):
    a = [x, 1]
    a.append(x + 1)
    a.extend([2, 3])
    a.insert(0, 9)
    last = a.pop()
    a[1:2] = [x * 2, x * 3]
    del a[0]
    return a, last, [4, 1].index(1), [*a, 5], sorted([3, 1, 2], key=lambda v: -v), list(reversed([1, 2])), a[::-1]


def dicts(x):
    d = {"a": x, **{"b": 2}}
    d["c"] = d.pop("a") + 1
    d.update(e=5, f=x)
    d.setdefault("g", []).append(1)
    return d, d.get("zz", 7), list(d.keys()), [k for k, v in d.items() if v is x or k == "b"], "b" in d, d | {"q": 1}


def sets(x):
    s = {1, 2} | {3}
    s.add(4)
    s.discard(1)
    return x + len(s), s, frozenset([1]), s & {2, 3}, 2 in s


def other_containers(x):
    q = collections.deque([1, 2], maxlen=3)
    q.append(x)
    q.appendleft(0)
    o = collections.OrderedDict(a=x)
    o.move_to_end("a")
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    c = collections.Counter("aab")
    return q, o, dd, c["a"]


def defaultdict_lambda(x):
    d = collections.defaultdict(lambda: x + 1)
    return d["a"], dict(d)


def itertools_and_friends(x):
    a = list(itertools.chain([1], (2, 3)))
    b = list(itertools.accumulate([1, 2, 3], lambda p, q: p * q))
    c = [x * p for p, q in itertools.product(range(2), "ab")]
    d = list(zip(range(3), itertools.repeat(1))) + list(enumerate("ab", start=1))
    e = list(map(lambda v: v + x, [1, 2])) + list(filter(None, [0, 1]))
    return a, b, c, d, e, functools.reduce(lambda p, q: p + q, [x, x, 1]), max(3, 1), min([x.shape[0], 9]), any([0, 1])


def math_and_operator(x):
    scale = 1 / math.sqrt(x.shape[-1])
    return (
        x * scale + math.pi + math.floor(2.5),
        operator.itemgetter(1)([1, 2]),
        operator.mul(x, 2),
        divmod(7, 2),
        round(2.567, 1),
    )


def sums(x):
    return sum([x, x, x]), sum((x[i] for i in range(2)), torch.zeros(3))


def match_statement(x):
    def kind(v):
        match v:
            case 0:
                return 1
            case [a, b]:
                return a + b
            case {"k": k}:
                return k
            case Point(b=b):
                return b
            case str():
                return 10
            case _:
                return 20

    return x + kind(0) + kind([1, 2]) + kind({"k": 3}) + kind(Point(x)) + kind("s") + kind(1.5)


def walrus_and_ternary(x):
    return (n := x.shape[0]) * x if x.dim() > 1 else n


def identity_of_results(x):
    y = x + 1
    pair = [y, y]
    return pair, pair[0] is pair[1], x is x


def shared_structure(x):
    a = [x + 1]
    return a, a, {"k": a}


def recursive(x):
    def down(n):
        return x if n == 0 else down(n - 1) + n

    return down(5)


GLOBAL = {"scale": 3.0, "list": [1, 2]}


def globals_read(x):
    return x * GLOBAL["scale"] + len(GLOBAL["list"])


@functools.lru_cache
def cached(n):
    return n * 2


def lru_cached(x):
    return x + cached(3)


def shape_arithmetic(x):
    b, n = x.size()
    return (
        x.view(b * n),
        x.reshape(-1, 1),
        x.permute(1, 0).contiguous(),
        x.new_zeros(x.shape),
        x.T,
        x.numel() + x.stride(0),
    )


def torch_calls(x):
    a, b = torch.split(x, [1, 2], dim=1)
    v, i = x.max(dim=1)
    return torch.cat([a, b], 1), torch.stack([x, x]), F.softmax(x, -1), v, i, torch.einsum("ij,kj->ik", x, x), x.topk(2)


def torch_factories(x):
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    return (
        torch.zeros_like(x),
        torch.arange(4),
        torch.full((2,), 1.5),
        torch.tensor([1, 2]),
        mask,
        torch.finfo(x.dtype).min,
    )


def constant_tensor_item(x):
    return x * torch.tensor(3).item()


def out_argument(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y


def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y + 1
    return z.detach(), torch.is_grad_enabled()


@torch.no_grad()
def no_grad_decorator(x):
    return x * 2


def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
    return y, x @ x.T


def sdpa_context(x):
    q = x[None, None]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


def assertion(x):
    assert x.dim() == 2, "two dimensions"
    return x + 1


def dropout_eval(x):
    return F.dropout(x, 0.5, training=False)


def random_ops(x):
    return torch.rand(3) + F.dropout(x, 0.5, training=True)


def bound_method(x):
    f = x.add
    return f(1), torch.Tensor.mul(x, 2)


def simple_namespace(x):
    s = types.SimpleNamespace(a=x, b=1)
    s.c = s.a + s.b
    return s.c


def is_compiling_is_true(x):
    return x if torch.compiler.is_compiling() or True else -x


def star_expressions(x):
    return [*range(2), *(x, 1)], {*(1, 2)}, (*[x],)


def global_statement(x):
    global COUNTER
    COUNTER += 1
    return x + COUNTER


COUNTER = 0

CASES = [v for v in list(globals().values()) if isinstance(v, types.FunctionType) and v.__module__ == __name__]
CASES = [f for f in CASES if f.__name__ not in ("check", "cached", "global_statement")] + [cached and lru_cached]


@pytest.mark.parametrize("function", dict.fromkeys(CASES), ids=lambda f: f.__name__)
def test_language(function):
    check(function, X.clone())


def test_is_compiling_inside_capture():
    from harness import compiled

    fast, _ = compiled(lambda x: (x, torch.compiler.is_compiling()), fullgraph=True)
    assert fast(X)[1] is True
    assert not torch.compiler.is_compiling()


# ---- arguments that the program changes ----


def append_to(x, items):
    items.append(x + 1)
    items[0] = x
    return len(items)


def change_dict(x, d):
    d["new"] = x * 2
    del d["old"]
    d["nested"]["k"].append(3)
    return d["nested"]


def change_object(x, shape):
    shape.size = x + shape.size
    shape.fresh = [x]
    return shape


def change_set(x, s):
    s.add(9)
    return x


def change_tensor(x, y):
    x.add_(1)
    y[0] = x[1]
    return x


def mutated_and_returned(x, items):
    items.append(items[0] + x)
    return items


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (append_to, (X, [1, 2])),
        (change_dict, (X, {"old": 1, "nested": {"k": [1]}})),
        (change_object, (X, Shape(2.0))),
        (change_set, (X, {1})),
        (change_tensor, (X, X.clone())),
        (mutated_and_returned, (X, [X])),
        (lambda x, p: p.a * p.b + x, (X, Point(X, 2))),
        (lambda x, o: o["a"] + x, (X, collections.OrderedDict(a=X))),
        (lambda x, d: [v for v in d] + [d.maxlen], (X, collections.deque([1, 2], 5))),
        (lambda x, p: p.left + x, (X, Pair(X, 1))),
        (lambda x, e: x + e.value, (X, Color.BLUE)),
        (lambda x, f: f(x), (X, torch.relu)),
        (lambda x, *rest, **more: (x + sum(rest), more), (X, 1, 2)),
    ],
    ids=lambda v: getattr(v, "__name__", "args"),
)
def test_arguments(function, args):
    check(function, *args)


def test_identity_of_arguments():
    from harness import compiled

    items = [X, 1]
    fast, _ = compiled(lambda x, items: (x, items, [x]), fullgraph=True)
    a, b, c = fast(X, items)
    assert a is X and b is items and c[0] is X


def test_closure_cell_of_the_caller():
    from harness import compiled

    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x + n

    fast, log = compiled(count, fullgraph=True)
    first = fast(X)
    assert n == 1 and torch.equal(first, X + 1)
    second = fast(X)
    assert n == 2 and torch.equal(second, X + 2)


def test_global_statement():
    from harness import compiled

    before = COUNTER
    fast, _ = compiled(global_statement, fullgraph=True)
    assert torch.equal(fast(X), X + before + 1)
    assert before + 1 == COUNTER


def test_mutable_default():
    from harness import compiled

    def count(x, seen=[]):  # noqa: B006 (the point of the test)
        seen.append(1)
        return x + len(seen)

    fast, _ = compiled(count, fullgraph=True)
    assert [int((fast(X) - X)[0, 0]) for _ in range(3)] == [1, 2, 3]


def test_iterator_of_the_caller_is_consumed_once():
    from harness import compiled

    items = iter([1, 2, 3])
    fast, log = compiled(lambda x, it: x + next(it))
    assert [int((fast(X, items) - X)[0, 0]) for _ in range(3)] == [1, 2, 3]
    assert not log.breaks and len(log.captures) == 3  # one for each place
    with pytest.raises(StopIteration):
        fast(X, items)


def test_symbolic_float_arithmetic():
    from harness import compiled

    fast, log = compiled(
        lambda x: x * x.shape[0] ** -0.5 + x.shape[0] / 3 - math.sqrt(x.shape[1]), dynamic=True, fullgraph=True
    )
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), x * n**-0.5 + n / 3 - 2)
    assert len(log.captures) == 1


def test_returned_function():
    from harness import compiled

    def make(x):
        y = x + 1

        def inner(z, k=2):
            return z + y * k

        return inner

    fast, _ = compiled(make, fullgraph=True)
    assert torch.equal(fast(X)(X), make(X)(X))
