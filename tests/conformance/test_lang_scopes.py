"""Scopes, control flow, unpacking, assignment, and what arguments of all types are."""

import functools
import sys

from behaviour import LOG, Suite, t
from things import Counted

case = Suite()


@case()
def comprehension_scopes(x):
    i, j = 10, 20
    a = [i for i in range(3)]
    b = dict.fromkeys(range(2), i)
    c = {k for k in range(2)}
    d = [[i * j for j in range(2)] for i in range(2)]
    return x + i + j, a, b, c, d


@case()
def comprehension_with_conditions(x):
    pairs = [(i, j) for i in range(4) if i % 2 for j in range(i) if j != 1]
    flat = [v for row in [[1, 2], [3]] for v in row]
    return [x * v for v in flat], pairs, [v if v > 1 else -v for v in flat]


@case(whole=True)
def walrus(x):
    if (n := x.shape[0]) > 2:
        x = x + n
    values = [y := 1, y + 1, y**2]
    last = [z := v for v in range(3)]
    while (n := n - 1) > 0:
        LOG.append(n)
    return x, values, last, z, n, y


@case()
def conditional_expressions(x):
    n = x.shape[0]
    return (x if n > 2 else -x) + (1 if not n else 2 if n == 3 else 3), n and "yes" or "no", None or [] or 0


@case()
def short_circuits(x):
    def note(v):
        LOG.append(v)
        return v

    return x, note(0) and note(1), note(2) or note(3), not note(0), note(0) or note("") or note([])


@case()
def chained_comparisons(x):
    def note(v):
        LOG.append(v)
        return v

    a = note(1) < note(2) < note(3)
    b = note(1) < note(0) < note(5)
    c = 1 < x.shape[0] <= 3 != 4
    return x, a, b, c, 1 == 1.0 != None, "a" in "abc" in ["abc"]


@case()
def while_else(x):
    out = []
    for limit in (2, 9):
        n = 0
        while n < 5:
            if n == limit:
                out.append("break")
                break
            n += 1
        else:
            out.append("else")
    return x, out, n


@case()
def nested_loops_with_flags(x):
    found = None
    for i in range(5):
        for j in range(5):
            if i * j == 6:
                found = (i, j)
                break
        else:
            continue
        break
    return x, found, i, j


@case()
def star_unpacking(x):
    a, *b = [1, 2, 3]
    *c, d = (1, 2)
    e, *f, g = "abcd"
    (h, *i), j = [(1, 2, 3), 4]
    [k, [l, *m]] = [1, (2,)]  # noqa: E741
    first, *_ = range(3)
    return x, a, b, c, d, e, f, g, h, i, j, k, l, m, first


@case()
def unpacking_errors(x):
    out = []
    for values in ([1], [1, 2, 3], 3, None, "a"):
        try:
            a, b = values
            out.append((a, b))
        except (ValueError, TypeError) as error:
            out.append(str(error))
        try:
            a, *b, c = values
            out.append((a, b, c))
        except (ValueError, TypeError) as error:
            out.append(str(error))
    return x, out


@case()
def displays_with_stars(x):
    a, d = [1, 2], {"k": 1}
    return x, [*a, 3, *a], (*a, *"bc"), {*a, 5}, {**d, "m": 2, **{"k": 3}}


@case()
def swap_and_rotate(x):
    a, b, c = 1, 2, 3
    a, b = b, a
    a, b, c = c, a, b
    values = [1, 2, 3]
    values[0], values[2] = values[2], values[0]
    return x, a, b, c, values


@case()
def augmented_assignments(x):
    n = 7
    n += 1
    n -= 2
    n *= 3
    n //= 2
    n %= 5
    n **= 3
    n <<= 2
    n >>= 1
    n |= 3
    n &= 126
    n ^= 5
    f = 2.0
    f /= 4
    s = "a"
    s += "b"
    s *= 2
    v = alias = [1]
    v += (2,)
    v *= 2
    u = other = (1,)
    u += (2,)
    k = same = {1}
    k |= {2}
    k -= {1}
    d = merged = {"a": 1}
    d |= {"b": 2}
    return x, n, f, s, v is alias, v, u, other, k is same, k, d is merged, d


@case()
def augmented_on_items_and_attributes(x):
    class_like = functools.partial(int)
    class_like.n = 1
    class_like.n += 5
    d = {"a": [1]}
    d["a"] += [2]
    nested = ([1],)
    try:
        nested[0] += [2]
    except TypeError as error:
        LOG.append(str(error))
    return x, class_like.n, d, nested


@case()
def augmented_tensors(x):
    y = x.clone()
    alias = y
    y += 1
    y *= 2
    y -= x
    z = y
    z = z + 1
    y[0] += 5
    y[1:] *= 3
    return y, alias is y, z


@case(lambda: (t(),), lambda: (t(5.0),))
def argument_changed_in_place(x):
    y = x
    x += 1
    y.mul_(2)
    return y, x is y


@case()
def tensor_aliases(x):
    a = x[1:]
    b = x.view(-1)
    return a, b, x, [a, a], {"b": b}


@case()
def identity_of_results(x):
    a = [x]
    b = (a, a)
    return a, b, b[0] is b[1], x is a[0], a == [x]


@case(lambda: (t(), [1, [2]]), lambda: (t(), [[3], 4]))
def arguments_returned_keep_identity(x, v):
    return v, [v, v[0]], (x, v)


@case(lambda: (lambda v: (t(), v, v))([1]), lambda: (t(), [1], [1]))
def same_argument_twice(x, a, b):
    a.append(2)
    return x + len(b), a is b


@case(lambda: (lambda v: (v, v))(t()), lambda: (t(), t()))
def same_tensor_twice(x, y):
    x.add_(1)
    return x is y, y * 2


@case(lambda: (t(), 3, 2.5, "s", True, None), lambda: (t(), 4, 3.5, "u", False, 1))
def plain_arguments(x, i, f, s, b, n):
    return x * i + f, s * i, not b, n is None, (i, f, s, b, n)


@case(lambda: (t(), 3), lambda: (t(), 3.0), lambda: (t(), True), lambda: (t(), "3"))
def argument_of_another_type(x, n):
    return type(n).__name__, n * 2, x + 1


@case(lambda: (t(), 0), lambda: (t(), 1), lambda: (t(), 2), lambda: (t(), -7), lambda: (t(), 10**20))
def integer_arguments(x, n):
    return x + n % 5, n // 2, n > 1, str(n), n * n, -n


@case(lambda: (t(), 0.0), lambda: (t(), -0.0), lambda: (t(), 1.5), lambda: (t(), float("inf")))
def float_arguments(x, f):
    return x + f, f * 2, f > 1, str(f), repr(-f), f == 0


@case(lambda: (t(), float("nan")), lambda: (t(), float("nan")))
def nan_argument(x, f):
    return x * 2, f != f, f in [f], f is f


@case(lambda: (t(), range(3)), lambda: (t(), range(1, 9, 3)))
def range_argument(x, r):
    return [x + i for i in r], len(r), r[-1], 4 in r


@case(lambda: (t(), slice(1, None)), lambda: (t(), slice(None, None, 2)))
def slice_argument(x, s):
    return x[s], [1, 2, 3][s], s.start, s.indices(3)


@case(lambda: (t(), b"ab"), lambda: (t(), b"c"))
def bytes_argument(x, b):
    return x + len(b), b + b"z", list(b), b.hex()


@case(lambda: (t(), 2 + 3j), lambda: (t(), 1j))
def complex_argument(x, c):
    return x * 2, c * c, c.real, abs(c), c.conjugate()


@case(lambda: (t(), int), lambda: (t(), float), lambda: (t(), list))
def class_argument(x, cls):
    return x, cls(), cls is int, issubclass(cls, (int, float)), cls.__name__


@case()
def star_import_free_modules(x):
    import math
    from collections import OrderedDict as Ordered
    from os.path import join

    return x * math.pi, Ordered(a=1), join("a", "b")


@case()
def import_missing(x):
    try:
        import no_such_module_anywhere  # noqa: F401
    except ModuleNotFoundError as error:
        out = str(error)
    try:
        from math import no_such_name  # noqa: F401
    except ImportError as error:
        return x, out, error.name


@case(graphs="breaks")
def locals_and_globals(x):
    n = 3
    names = sorted(locals())
    return x + n, names, "LOG" in globals()


@case(graphs="breaks")
def eval_and_exec(x):
    n = 3
    a = eval("n + 1")
    space = {}
    exec("b = 5", space)
    return x + a + space["b"]


@case(graphs="breaks")
def dir_and_vars(x):
    box = Counted(len)
    box.extra = 1
    return x, "extra" in dir(box), sorted(vars(box)), vars(box)["extra"]


@case(graphs="breaks")
def id_and_is(x):
    a, b = [1], [1]
    return x, id(a) == id(a), id(a) == id(b), a is b, a is a, {id(a): 1}[id(a)]


@case(lambda: (t(), [1]), lambda: (t(), [2]), graphs="breaks")
def id_of_argument(x, v):
    return x, id(v) == id(v), id(x) == id(v), {id(v): "v"}[id(v)]


@case()
def hash_of_values(x):
    return x, hash(3) == hash(3.0), hash("a") == hash("a"), hash((1, 2)) == hash((1, 2))


@case(graphs="breaks")
def caller_frames(x):
    return x, sys._getframe().f_code.co_name


@case()
def function_compared(x):
    f = lambda: 1  # noqa: E731
    g = f
    return x, f is g, f == g, f != (lambda: 1), {f: 1}[g]


@case()
def functions_in_containers(x):
    table = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b}
    return [table[k](x, 2) for k in ("add", "mul")], sorted([3, 1, 2], key=lambda v: -v)


@case()
def positional_only_and_kwargs_clash(x):
    def f(a, /, **kwargs):
        return a, kwargs

    return f(x, a=1)


@case()
def returns_nothing(x):
    x.add_(1)


@case()
def returns_constants(x):
    return ..., NotImplemented, None, True, 1, 2.5, "s", b"b", (1, (2,)), frozenset([1])


@case(lambda: (t(),), lambda: (3,), lambda: ("s",), lambda: (None,))
def without_tensors(x):
    return [x, x], {"x": x}


def told(error):
    return type(error).__name__, str(error), error.name


@case()
def unbound_variables(x):
    out = []

    def inner():
        return y

    def deletes():
        nonlocal y
        del y

    for call in (inner, deletes, lambda: [y for _ in range(1)], lambda: list(y for _ in range(1))):
        try:
            call()
        except NameError as e:
            out.append(told(e))
    try:
        del y
    except NameError as e:
        out.append(told(e))
    y = x + 1
    return inner(), out


@case(graphs="breaks")
def unbound_in_a_suspended_closure(x):
    def inner():
        print(end="")
        return y

    try:
        inner()
    except NameError as e:
        out = told(e)
    print(end="")
    y = 3
    return x + inner(), out


LATER = {}


def _later():
    def read(x):
        try:
            return x + later
        except NameError as e:
            return x, told(e)

    def write(value):
        nonlocal later
        later = value

    def forget():
        nonlocal later
        del later

    if LATER:
        later = 0
    return read, write, forget


READ, WRITE, FORGET = _later()


def _with(value):
    def build():
        WRITE(value)
        return (t(),)

    return build


def _without():
    WRITE(0)
    FORGET()
    return (t(),)


@case(_without, _with(1.0), _without, _with(2.0), _without)
def variable_bound_later(x):
    return READ(x)


@case(_with(1.0), _with(3.0), graphs="breaks")
def variable_deleted_for_good(x):
    y = READ(x)
    FORGET()
    print(end="")
    return y, READ(x)


test_scopes = case.tests()
test_scopes_whole = case.whole()
