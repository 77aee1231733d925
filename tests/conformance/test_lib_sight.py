"""What C code sees: objects with special methods of their own, and objects of C types, changed between calls."""

import datetime
import decimal
import fractions
import functools
import math
import operator
import re

import numpy as np
import pytest
import torch
from cases import check_case, t


class Weight:
    """Every special method that C code may call."""

    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n

    def __gt__(self, other):
        return self.n > other.n

    def __eq__(self, other):
        return self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __str__(self):
        return f"Weight {self.n}"

    def __float__(self):
        return float(self.n)

    def __index__(self):
        return self.n

    def __round__(self):
        return self.n * 10

    def __bool__(self):
        return self.n > 1

    def __contains__(self, value):
        return value == self.n

    def __iter__(self):
        return iter([self.n])

    def __add__(self, other):
        return Weight(self.n + (other.n if isinstance(other, Weight) else other))

    __radd__ = __add__

    def __divmod__(self, other):
        return self.n, other

    def __format__(self, spec):
        return str(self.n)

    def __len__(self):
        return self.n

    def __reversed__(self):
        return iter([self.n, 5])

    def __abs__(self):
        return self.n + 100

    def __call__(self, value):
        return value * self.n

    def __getitem__(self, i):
        return self.n + i

    def __floor__(self):
        return self.n * 3

    def __neg__(self):
        return Weight(-self.n)

    def __mul__(self, other):
        return self.n * other

    def __enter__(self):
        return self.n

    def __exit__(self, *_):
        return None


def _in_place_sort(x, a, b):
    items = [b, a]
    items.sort()
    return x * (1 if items[0] is a else 5)


def _with(x, a, b):
    with b as n:
        return x * n


WEIGHTS = {
    "max": lambda x, a, b: x * (1 if max(a, b) is a else 5),
    "min of a list": lambda x, a, b: x * (1 if min([a, b]) is a else 5),
    "max by key": lambda x, a, b: (x * max((a, b), key=lambda w: w.n).n, max((a, b), key=float).n),
    "max by attribute": lambda x, a, b: x * max((a, b), key=operator.attrgetter("n")).n,
    "sorted": lambda x, a, b: x * (1 if sorted([b, a])[0] is a else 5),
    "sort": _in_place_sort,
    "in": lambda x, a, b: x * (b in [Weight(0)]),
    "in values": lambda x, a, b: x * (Weight(0) in {"k": b}.values()),
    "equal lists": lambda x, a, b: x * ([b] == [Weight(0)]),
    "ordered tuples": lambda x, a, b: x * ((1, a) < (1, b)),
    "key of a dict": lambda x, a, b: x * ({Weight(0): 3}.get(b, 4)),
    "item of a set": lambda x, a, b: x * len({a, b, Weight(0)}),
    "text": lambda x, a, b: (x, str(b), f"{b}", "%s" % b, "{}".format(b), "-".join(str(v) for v in (a, b))),
    "float": lambda x, a, b: x * float(b),
    "round": lambda x, a, b: x * round(b),
    "index": lambda x, a, b: (x * [1, 2, 3][b], list(range(b))),
    "truth": lambda x, a, b: (x if b else -x, bool(b), not b, any([b]), all([a, b]), b and 3),
    "contains": lambda x, a, b: x * (0 in b),
    "iteration": lambda x, a, b: (x * sum(b), list(b), tuple(a), [*b], set(b), max(b), dict(zip("a", b))),
    "sum": lambda x, a, b: x * sum([a, b], Weight(1)).n,
    "divmod": lambda x, a, b: x * divmod(b, 2)[0],
    "len": lambda x, a, b: x * len(b),
    "reversed": lambda x, a, b: (x, list(reversed(b))),
    "abs and minus": lambda x, a, b: (x * abs(b), (-b).n),
    "call": lambda x, a, b: (b(x), list(map(b, [x]))),
    "item": lambda x, a, b: x * b[1],
    "floor": lambda x, a, b: x * math.floor(b),
    "times": lambda x, a, b: x * (b * 2),
    "with": _with,
    "hash": lambda x, a, b: x * (hash(b) == hash(2)),
    "index of a tensor": lambda x, a, b: (torch.zeros(3)[b], x.sum()),
    "count": lambda x, a, b: (x, [a, b, Weight(0)].count(Weight(0)), [Weight(0), b].index(b)),
    "reduce": lambda x, a, b: x * functools.reduce(lambda p, q: p + q, [a, b]).n,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_own_methods(name):
    check_case(
        WEIGHTS[name], lambda: (t(2), Weight(1), Weight(2)), lambda: (t(2), Weight(1), Weight(0)), expect="breaks"
    )


DAY = datetime.date
VALUES = {
    "year of a date": (lambda x, d: x * d.year, DAY(2020, 1, 1), DAY(2021, 1, 1)),
    "dates compared": (lambda x, d: x * (d > DAY(2020, 5, 5)), DAY(2020, 1, 1), DAY(2021, 1, 1)),
    "time difference": (lambda x, d: x * d.days, datetime.timedelta(2), datetime.timedelta(3)),
    "decimal": (lambda x, d: x * float(d), decimal.Decimal(2), decimal.Decimal(3)),
    "fraction": (lambda x, d: x * float(d), fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "pattern": (lambda x, d: x if d.match("a") else -x, re.compile("a"), re.compile("b")),
    "NumPy float": (lambda x, d: x * float(d), np.float32(2), np.float32(3)),
    "NumPy bool": (lambda x, d: x if d else -x, np.bool_(True), np.bool_(False)),
}
OPAQUE = {
    "length of a byte array": (lambda x, d: x * len(d), lambda: bytearray(b"a"), lambda: bytearray(b"bc")),
    "byte": (lambda x, d: x * d[0], lambda: bytearray(b"a"), lambda: bytearray(b"b")),
    "length of an array": (lambda x, d: x * len(d), lambda: np.array([1.0, 2]), lambda: np.array([2.0, 3, 4])),
    "item of an array": (lambda x, d: x * float(d[0]), lambda: np.array([1.0, 2]), lambda: np.array([2.0, 3])),
    "size of an array": (lambda x, d: x * d.size, lambda: np.array([1.0, 2]), lambda: np.array([2.0, 3, 4])),
    "array iterated": (lambda x, d: [x * float(v) for v in d], lambda: np.ones(2), lambda: np.ones(3) * 2),
    "NumPy int": (lambda x, d: (x[:d], torch.zeros(d), x * d), lambda: np.int64(1), lambda: np.int64(2)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    function, first, second = VALUES[name]
    check_case(function, lambda: (t(2), first), lambda: (t(2), second))


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque_objects(name):
    function, first, second = OPAQUE[name]
    check_case(function, lambda: (t(2), first()), lambda: (t(2), second()), expect="breaks")
