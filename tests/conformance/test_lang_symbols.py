"""Sizes and integers that change between calls, and so become symbols, in everything that Python does with a number.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator

import torch
from behaviour import LOG, Suite, t

case = Suite()


def ints(*values):
    """One argument set for each number."""
    return [lambda n=n: (t(), n) for n in values or (3, 4, 5, 2, 1, 0, -1, 7)]


def sizes(*values):
    """One vector for each length."""
    return [lambda n=n: (torch.arange(float(n)),) for n in values or (3, 4, 5, 2, 1, 0, 7)]


@case(*ints())
def arithmetic(x, n):
    return x, n + 1, 1 - n, n * n, n // 2, n % 3, -n, +n, ~n, abs(n), n**2, 2 * n - 7, n - n, n * 0


@case(*ints(3, 4, 5, 2, 1, 7, -2))
def division(x, n):
    return x, 12 / n, n / 2, 12 // n, 12 % n, divmod(12, n), divmod(n, 4), n / n, -7 // n, -7 % n


@case(*ints())
def bits(x, n):
    return x, n & 3, n | 8, n ^ 1, n << 2, n >> 1, n.bit_length(), (n).real, n.conjugate(), int.__add__(n, 1)


@case(*ints())
def comparisons(x, n):
    return (
        x,
        n == 4,
        n != 4,
        n < 4,
        1 <= n < 5,
        3 in (n, 1),
        n in [3, 4],
        n is None,
        n == 4.0,
        not n,
        n and "yes",
        n or "no",
    )


@case(*ints())
def branches(x, n):
    if n > 3:
        x = x + n
    elif n == 0:
        x = x * 0
    else:
        x = x - n
    return x, "big" if n >= 5 else "small", [i for i in range(3) if i < n]


@case(*ints())
def conversions(x, n):
    return (
        x,
        int(n),
        float(n),
        str(n),
        repr(n),
        bool(n),
        complex(n),
        f"{n}|{n:03d}|{n!r}|{n=}",
        "%d %5d" % (n, n),
        f"{n:x}",
        chr(65 + abs(n)),
    )


@case(*ints())
def math_functions(x, n):
    return (
        x,
        math.floor(n / 2),
        math.ceil(n / 2),
        math.sqrt(abs(n)),
        math.gcd(n, 12),
        math.isclose(n, 3),
        round(n / 3, 2),
        round(n),
        math.log(abs(n) + 1),
        math.pow(n, 2),
    )


@case(*ints(3, 4, 5, 2, 1, 0, 7))
def loops(x, n):
    for _ in range(n):
        x = x + 1
    total = 0
    while total < n:
        total += 1
    return x, total, list(range(n)), list(range(n, 0, -1)), len(range(n)), sum(range(n)), n in range(5)


@case(*ints(3, 4, 5, 2, 1, 0, 7))
def sequences(x, n):
    v = list("abcdefgh")
    return x, [0] * n, "ab" * n, (1,) * n, v[:n], v[n:], v[-n:], v[n], v[::n] if n else None, n * [None]


@case(*ints())
def keys(x, n):
    d = {n: "n", 3: "three", "k": n}
    d[n] = d.get(n, 0), n
    return (
        x,
        d,
        d[n],
        n in d,
        {n, 3, 4},
        len({n, 4}),
        {n: 1}.get(4),
        (n, 1) in {(4, 1): 0},
        d.pop(n),
        hash(n) == hash(4),
    )


@case(*ints())
def types_of_numbers(x, n):
    return (
        x,
        type(n),
        isinstance(n, int),
        isinstance(n, (float, str)),
        type(n) is int,
        type(n).__name__,
        callable(n),
        n.__class__,
        hasattr(n, "bit_length"),
    )


@case(*ints())
def builtins_of_numbers(x, n):
    return (
        x,
        max(n, 3),
        min(n, 3),
        max([n, 2, 9]),
        sum([n, n, 1]),
        sorted([n, 3, 1]),
        pow(n, 2),
        pow(n, 2, 5),
        any([n]),
        all([n, 1]),
        bin(n),
        hex(n),
        oct(n),
    )


@case(*ints())
def stored_and_returned(x, n):
    box = [n, {"n": n}, (n, n + 1)]
    box.append(n * 2)
    return x, box, n


@case(*[lambda n=n: (t(), n, [n], {"k": n}) for n in (3, 4, 5, 1, 0)])
def stored_into_arguments(x, n, v, d):
    v.append(n + 1)
    v[0] *= 2
    d["k"] += n
    d[n] = n
    return x + v[0], v[-1] - d["k"]


_TOTAL = 0


@case(*ints(3, 4, 5, 1, 0), watch="_TOTAL")
def added_to_a_global(x, n):
    global _TOTAL
    _TOTAL += n
    return x + _TOTAL


class Counter:
    def __init__(self, n):
        self.n = n

    def add(self, k):
        self.n += k
        return self

    @property
    def twice(self):
        return self.n * 2


@case(*[lambda n=n: (t(), n, Counter(n)) for n in (3, 4, 5, 1, 0)])
def stored_in_objects(x, n, counter):
    counter.add(n).add(1)
    made = Counter(n)
    return x + counter.twice, made, made.twice, counter.n


@case(*ints())
def through_calls(x, n):
    def f(a, b=n, *rest, c, **more):
        return a + b + sum(rest) + c + sum(more.values())

    g = functools.partial(f, n, c=1)
    return x, f(n, c=n), f(1, 2, n, c=3, d=n), g(), g(5), (lambda k=n: k + 1)()


@case(*ints())
def in_closures(x, n):
    total = n

    def bump(k=1):
        nonlocal total
        total += k
        return total

    bump()
    bump(n)
    return x, total, bump, (lambda: n + total)()


@case(*ints(3, 4, 5, 1, 0))
def in_generators(x, n):
    def counting(k):
        for i in range(k):
            got = yield i * n
            if got:
                LOG.append(got)
        return k

    g = counting(n)
    return x, list(counting(n)), sum(v for v in counting(n)), g, list(itertools.islice(itertools.count(n), 2))


@case(*ints())
def in_patterns(x, n):
    def name(v):
        match v:
            case 3:
                return "three"
            case 4 | 5:
                return "four or five"
            case int() if v < 0:
                return "negative"
            case int(k):
                return f"int {k}"

    match (n, x.dim()):
        case (0, _):
            out = "zero"
        case (k, 1):
            out = k
    return x, name(n), out


@case(*ints())
def in_exceptions(x, n):
    out = []
    try:
        raise ValueError(n, f"n is {n}")
    except ValueError as error:
        out += [error.args, str(error)]
    try:
        [1, 2, 3, 4][n]
    except IndexError as error:
        out.append(str(error))
    try:
        assert n < 4, n
    except AssertionError as error:
        out.append(error.args)
    try:
        12 % n
    except ZeroDivisionError as error:
        out.append(str(error))
    return x, out


@case(*ints())
def with_operator_functions(x, n):
    return (
        x,
        operator.add(n, 1),
        operator.index(n),
        operator.lt(n, 4),
        operator.neg(n),
        functools.reduce(operator.mul, [n, 2, 3]),
        list(map(str, [n])),
        list(zip([n], "a")),
    )


@case(*ints(), graphs="breaks")
def in_records(x, n):
    @dataclasses.dataclass
    class Made:
        n: int

    return x, Made(n).n


@dataclasses.dataclass
class Record:
    n: int
    items: list = dataclasses.field(default_factory=list)


P = collections.namedtuple("P", "n m")


@case(*ints())
def in_library_records(x, n):
    r = Record(n)
    r.items.append(n)
    return (
        x,
        r,
        Record(n) == Record(4),
        P(n, 1),
        P(n, 1) == (4, 1),
        P(n, 2)._replace(m=n),
        dataclasses.asdict(r),
        repr(r),
    )


@case(*ints(3, 4, 5, 1, 0))
def walrus_and_unpacking(x, n):
    first, *rest = [n, n + 1, n + 2]
    if (k := n * 2) > 6:
        rest.append(k)
    a = b = n
    a += 1
    return x, first, rest, k, a, b, [*range(n), n], {**{"n": n}}


# ---- sizes ----


@case(*sizes())
def size_arithmetic(x):
    n = x.shape[0]
    return (
        n * 2,
        n // 2,
        x.numel() - 1,
        len(x),
        x.size(0) + 1,
        n**2,
        n % 2 == 0,
        -n,
        n / 2,
        (n + 1) // 2,
        x.shape,
        tuple(x.shape),
    )


@case(*sizes())
def size_in_python(x):
    n = len(x)
    return (
        f"{n} {x.shape} {tuple(x.shape)}",
        [0] * n,
        {n: "n"},
        list(range(n)),
        str(x.shape),
        n in (2, 3),
        x.shape == (3,),
        x.shape[0] is None,
    )


@case(*sizes())
def size_in_new_tensors(x):
    n = x.shape[0]
    return torch.zeros(n), torch.arange(n), torch.ones(n, 2).sum(0), x.new_zeros(n + 1), torch.full((n,), n), x * n


@case(*sizes(3, 4, 5, 2, 1, 7), whole=True)
def size_in_slices(x):
    n = x.shape[0]
    return (
        x[: n // 2],
        x[n // 2 :],
        x[-1],
        x[: n - 1],
        x[n - 1],
        x.reshape(n, 1),
        x.view(1, -1),
        x[::2],
        x.split(max(n // 2, 1)),
    )


@case(*sizes(2, 4, 6, 8))
def size_split_in_halves(x):
    n = x.shape[0] // 2
    a, b = x[:n], x[n:]
    return a + b, x.view(2, n), torch.stack([a, b]).shape, torch.cat([b, a])


@case(*sizes())
def size_branches(x):
    if x.shape[0] == 0:
        return "empty"
    if x.numel() > 3:
        return x.mean(), x.shape[0]
    return x.sum() / len(x)


@case(*sizes(3, 4, 5, 2))
def size_loops(x):
    out = []
    for i in range(x.shape[0]):
        out.append(x[i] * i)
    for i, row in enumerate(x):
        out.append(row + i)
    return out, [v for v in x], len(list(x))


@case(*[lambda a=a, b=b: (torch.ones(a, b),) for a, b in ((2, 3), (4, 3), (4, 5), (3, 3), (1, 5), (5, 1))])
def two_sizes(x):
    a, b = x.shape
    return (
        a + b,
        a * b == x.numel(),
        x.t().shape,
        x.reshape(-1),
        x.view(b, a) if a == b else None,
        a > b,
        max(a, b),
        x.sum(0) * a,
    )


@case(*[lambda a=a, b=b: (torch.ones(a), torch.ones(b)) for a, b in ((2, 2), (3, 3), (4, 4), (4, 5), (1, 4), (4, 1))])
def equal_sizes(x, y):
    if x.shape[0] == y.shape[0]:
        return x + y, "same"
    return x[:1] + y[:1], x.shape, y.shape, x.shape[0] - y.shape[0]


@case(*[lambda n=n, k=k: (torch.ones(n), k) for n, k in ((3, 1), (4, 2), (5, 3), (6, 3), (2, 2))])
def size_and_integer(x, k):
    n = x.shape[0]
    return x[:k], x[k:], n - k, n > k, x.roll(k), [n] * k, k * n, x.repeat(k)


@case(*sizes(3, 4, 5, 2), graphs="breaks")
def sizes_across_breaks(x):
    n = x.shape[0]
    print(n)
    y = x + n
    print(y.shape)
    return y[: n - 1], n, [n, {"n": n}], f"{n}"


@case(*ints(3, 4, 5, 2), graphs="breaks")
def integers_across_breaks(x, n):
    box = [n]
    print(n)
    box.append(n + 1)
    k = n * 2
    print(box, k)
    return x + k, box, {k: n}, "s" * n, range(n)


@case(*sizes(3, 4, 5, 2), graphs="eager")
def sizes_from_values(x):
    chosen = x[x > 1]
    return chosen * 2, chosen.shape[0], torch.zeros(chosen.shape[0]), len(chosen) > 1, x.nonzero().shape


@case(*[lambda n=n: (t(), n) for n in (0.5, 1.5, 2.5, 3, True, -0.0, 1e30)])
def floats(x, f):
    return (
        x * f,
        f + 1,
        f > 1,
        str(f),
        f == 1.5,
        f"{f:.2f}",
        [f],
        {f: 1},
        int(f),
        f // 1,
        -f,
        type(f).__name__,
        max(f, 1.0),
    )


@case(*[lambda n=n: (t(), [n, n + 1], {"n": n}, (n, [n])) for n in (3, 4, 5, 0)])
def numbers_in_containers(x, v, d, p):
    return (
        x + v[0] + d["n"] + p[0],
        v == [4, 5],
        d == {"n": 4},
        p == (4, [4]),
        sum(v),
        sorted(v, reverse=True),
        max(d.values()),
        v.index(v[1]),
        4 in v,
        v + [d["n"]],
        str(v),
        f"{p}",
    )


@case(*ints(3, 4, 5, 100, 10**6, 2**40, 2**63, 2**70))
def large_integers(x, n):
    return x, n * n, n + 2**62, n > 2**62, n % 7, n << 3, str(n), -n, n == 10**6


test_symbols = case.tests()
test_symbols_whole = case.whole()
