"""Objects of the caller's that derive from numbers and texts, and holders that Python's library writes in Python."""

import argparse
import collections

import torch
from behaviour import Suite, t

case = Suite()


class Int(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


def each(kind, *values):
    return tuple((lambda v: lambda: (t(1.0, 2.0), kind(v)))(v) for v in values)


@case(*each(Int, 1, 2, 0), graphs="breaks")
def own_int(x, n):
    at = [1, 2, 3][n], x[n - 1 :], {1: 2}.get(n), {n: 1}, n == 1
    return x * n, at, n + 1, str(n), list(range(n)), divmod(7, n + 1), f"{n:3d}", abs(n), max(n, 0), hash(n)


@case(*each(Real, 1.5, 2.5, 0.0))
def own_float(x, u):
    return x * u, x + u, u * 2, {1.5: 1}.get(u), f"{u:.1f}", u > 1, torch.full((2,), u), x.clamp(max=u), {u: 1}, u


@case(*each(Int, 0, -1))
def own_int_as_dimension(x, d):
    return x.sum(d), x.view(1, 2).sum(dim=d), torch.zeros(d + 1, 2), x.unsqueeze(d), torch.cat([x, x], d)


@case(*each(Text, "float32", "float64"), graphs="breaks")
def own_text(x, s):
    found = {"float64": 3}.get(s), x * {"float32": 2}.get(s, 7), s in ("float32",), [s].index(s)
    return x.to(getattr(torch, s)), s.startswith("f"), s.upper(), s + "b", f"{s:>9}", s[:1], "a" in s, found, s


@case(*each(lambda a: argparse.Namespace(a=a), 1, 2), graphs="breaks")
def namespace_as_text(x, options):
    options.a = options.a + 1
    return x * options.a, str(options), f"{options}", vars(options), "b" in options


@case(*each(collections.UserDict, {"a": 1}, {"a": 2, "b": 3}, {}), graphs="breaks")
def user_dict_as_text(x, held):
    held["k"] = 2
    return x + len(held), str(held), f"{held}", held == held, sorted(held), held.get("a"), repr([held])


@case(*each(collections.UserList, [1], [2, 3], []), graphs="breaks")
def user_list_as_text(x, held):
    held.append(3)
    return x + len(held), held[0], sum(held), list(held), held + [1], str(held), "%s" % held  # noqa: UP031


test_case = case.tests()
