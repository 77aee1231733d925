"""Functions: arguments, closures, globals, decorators, recursion, scopes, comprehensions."""

import functools

import torch
from behaviour import LOG, Suite, t
from things import Counted

case = Suite()


@case(whole=True)
def all_kinds_of_parameters(x):
    def f(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a * b + c, rest, d, e, more

    return f(x, d=1), f(x, 1, 2, 3, 4, d=5, e=6, z=7), f(x, c=9, d=0, b=8)


@case()
def wrong_calls(x):
    def f(a, b, /, c, *, d):
        return a

    def g(a, b=1):
        return a

    def none():
        return 1

    out = []
    for call in (
        lambda: f(1),
        lambda: f(1, 2, 3),
        lambda: f(1, 2, 3, 4, d=1),
        lambda: f(1, 2, 3, d=1, e=2),
        lambda: f(1, b=2, c=3, d=4),
        lambda: f(a=1, b=2, c=3, d=4),
        lambda: f(1, 2, 3, c=4, d=5),
        lambda: f(),
        lambda: g(),
        lambda: g(1, 2, 3),
        lambda: g(1, a=2),
        lambda: none(1),
        lambda: none(z=1),
        lambda: g(*[1], **{"a": 1}),
        lambda: g(**{"a": 1}, **{"a": 2}),
        lambda: g(**{1: 2}),
        lambda: g(*3),
        lambda: g(**3),
    ):
        try:
            out.append(call())
        except TypeError as error:
            out.append(str(error))
    return x, out


@case(graphs="breaks")
def wrong_calls_of_builtins(x):
    out = []
    for call in (
        lambda: len(),
        lambda: len(3),
        lambda: "a".join(3),
        lambda: [].append(),
        lambda: int("z"),
        lambda: int([]),
        lambda: isinstance(1, 2),
        lambda: range(1, 2, 0),
        lambda: "a" < 1,
        lambda: 1 < "a",
        lambda: None + 1,
        lambda: -"a",
        lambda: [1] * "a",
        lambda: {}[[]],
        lambda: (1, 2)[5],
        lambda: [1]["a"],
        lambda: 3(),
        lambda: "abc".nothing,
        lambda: (3).real.nothing,
        lambda: sum(["a"]),
        lambda: max([]),
        lambda: next(3),
        lambda: iter(3),
        lambda: chr(-1),
        lambda: dict([1]),
        lambda: 1 in 3,
        lambda: {1: 2} < {1: 3},
        lambda: abs("a"),
        lambda: round("a"),
        lambda: float("q"),
        lambda: hash([]),
        lambda: "%d" % "a",
        lambda: "{:d}".format("a"),
        lambda: f"{1:zz}",
        lambda: (1).q,
        lambda: getattr(1, 3),
        lambda: setattr(1, "q", 3),
        lambda: del_item([]),
        lambda: object().q,
        lambda: object(1),
        lambda: 2 ** "a",
        lambda: divmod(1, 0),
        lambda: 1 % 0,
        lambda: 10.0**1000,
        lambda: [] + (),
        lambda: () + [],
        lambda: "a" + b"a",
        lambda: {} | 3,
        lambda: ~1.5,
        lambda: 1 << -1,
        lambda: "abc".index("z"),
        lambda: [1].index(2),
        lambda: [1].remove(2),
        lambda: [].pop(),
        lambda: {}.pop("a"),
        lambda: {}.popitem(),
        lambda: set().pop(),
        lambda: {1}.remove(2),
    ):
        try:
            out.append(call())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return x, out


def del_item(values):
    del values[0]


@case()
def mutable_default(x):
    def f(v, seen=[]):
        seen.append(v)
        return len(seen)

    return f(x), f(x), f(x, []), f.__defaults__


def _remembering(v, seen=[]):
    seen.append(v)
    return len(seen)


@case(lambda: (_remembering.__defaults__[0].clear(), t())[1:])
def mutable_default_of_a_global_function(x):
    return x + _remembering(1)


@case()
def defaults_are_evaluated_once(x):
    def made():
        LOG.append("made")
        return 3

    def f(v=made(), *, k=made()):
        return v + k

    return x + f(), f(1), f(k=2)


@case()
def keyword_order_kept(x):
    def f(**kwargs):
        return list(kwargs)

    return x, f(b=1, a=2, **{"z": 3, "c": 4})


@case()
def argument_evaluation_order(x):
    def note(v):
        LOG.append(v)
        return v

    def f(*args, **kwargs):
        return args, kwargs

    r = f(note(1), *[note(2)], note(3), a=note(4), **{"b": note(5)}, c=note(6))
    d = {note("k1"): note("v1"), note("k2"): note("v2")}
    v = [note(7), note(8)][note(0)]
    return x, r, d, v


@case()
def assignment_evaluation_order(x):
    def note(v):
        LOG.append(v)
        return v

    d = {}
    d[note("a")] = note(1)
    a = [0, 0]
    i = 0
    i, a[i] = 1, 5
    note(d)[note("b")] = note(2)
    a[note(0)] += note(3)
    return x, d, a, i


@case()
def closure_over_loop_variable(x):
    late = [lambda: i for i in range(3)]
    early = [lambda i=i: i for i in range(3)]
    return x, [f() for f in late], [f() for f in early]


@case()
def closure_counter(x):
    def counter():
        n = 0

        def bump(by=1):
            nonlocal n
            n += by
            return n

        def read():
            return n

        return bump, read

    bump, read = counter()
    other, _ = counter()
    bump()
    bump(5)
    other()
    return x + read(), other()


@case()
def closure_returned(x):
    n = 3

    def add(v):
        return v + n + x.shape[0]

    n = 4
    return add, add(x)


@case()
def closures_returned_share_a_cell(x):
    n = [0]
    m = 0

    def up():
        nonlocal m
        m += 1
        n[0] += 1
        return m

    def get():
        return m, n

    up()
    return up, get, n, x + 1


def _make_adder(k):
    total = 0

    def add(x):
        nonlocal total
        total += 1
        return x + k + total

    add.total = lambda: total
    return add


_ADDER = _make_adder(2)


@case()
def closure_of_the_callers_written(x):
    return _ADDER(x) - _ADDER.total()


@case(lambda: (t(), _make_adder(1)), lambda: (t(), _make_adder(5)))
def closure_argument(x, add):
    return add(x), add(x)


@case(lambda: (t(), lambda v: v * 2), lambda: (t(), lambda v: v + 3), lambda: (t(), torch.neg))
def function_argument(x, f):
    return f(x) + f(1) if f is not torch.neg else f(x)


@case()
def unassigned_closure_variable(x):
    def f():
        return later

    try:
        f()
    except NameError as error:
        out = str(error)
    later = 5
    return x + f(), out


@case()
def deleted_local(x):
    n = 5
    del n
    try:
        return x, n  # noqa: F821
    except UnboundLocalError as error:
        return x, str(error)


@case()
def deleted_twice(x):
    n = 5
    del n
    try:
        del n  # noqa: F821
    except UnboundLocalError as error:
        return x, str(error)


@case()
def deleted_closure_variable(x):
    n = 5

    def f():
        return n  # noqa: F821

    a = f()
    del n
    try:
        f()
    except NameError as error:
        return x + a, str(error)


_COUNT = 0
_ITEMS = [1, 2]
_TABLE = {"a": 1}
_TENSOR = torch.ones(3)


@case(watch="_COUNT")
def global_counter(x):
    global _COUNT
    _COUNT += 1
    return x + _COUNT


@case(watch="_COUNT")
def global_written_in_callee(x):
    def bump():
        global _COUNT
        _COUNT = _COUNT + 2

    bump()
    a = _COUNT
    bump()
    return x + a, _COUNT


@case(watch="_FRESH")
def global_created_and_deleted(x):
    global _FRESH
    try:
        _FRESH  # noqa: B018
    except NameError as error:
        LOG.append(str(error))
    _FRESH = x.shape[0]
    a = _FRESH
    del _FRESH
    try:
        del _FRESH
    except NameError as error:
        LOG.append(str(error))
    _FRESH = "again"
    return x + a


@case(watch="_ITEMS _TABLE")
def global_containers_changed(x):
    _ITEMS.append(len(_ITEMS))
    _TABLE["n"] = _ITEMS
    _TABLE["a"] += 1
    return x + sum(_ITEMS)


@case(watch="_TENSOR")
def global_tensor_changed(x):
    _TENSOR.add_(1)
    return x[:1] + _TENSOR


@case(watch="_TENSOR")
def global_tensor_replaced(x):
    global _TENSOR
    _TENSOR = _TENSOR + x[:1]
    return _TENSOR * 2


@case(watch="_TENSOR")
def global_shadowed_by_local(x):
    _TENSOR = x + 1
    return _TENSOR


@case()
def builtin_shadowed(x):
    len = lambda v: 42  # noqa: A001, E731
    return x + len(x), max(1, 2)


@case()
def decorators_stack(x):
    def tag(name):
        def deco(f):
            LOG.append(("decorate", name))

            @functools.wraps(f)
            def wrapper(*args, **kwargs):
                LOG.append(("call", name))
                return f(*args, **kwargs)

            wrapper.tag = name
            return wrapper

        return deco

    @tag("outer")
    @tag("inner")
    def g(v, k=1):
        """Doc."""
        return v * k

    return g(x, k=2), g.__name__, g.__doc__, g.tag, g.__wrapped__.tag, g.__qualname__


@case()
def decorated_function_returned(x):
    def deco(f):
        @functools.wraps(f)
        def wrapper(v):
            return f(v) + 1

        return wrapper

    @deco
    def g(v: int, *, k: str = "a") -> float:
        """Doc of g."""
        return v

    return g, g(x)


@case()
def function_with_annotations_returned(x):
    def f(a: int, b: "str" = "q", *, c: float = 1.5) -> None:
        """Doc."""

    f.note = 1
    return f, x + 1


@case()
def lambda_returned(x):
    k = 2
    return lambda v, w=3: v * k + w


@case(lambda: (setattr(_counted, "calls", 0), t())[1:])
def decorator_class(x):
    return _counted(x) + _counted(x), _counted.calls


@Counted
def _counted(x):
    return x * 2


@case()
def recursion_bounded(x):
    def power(v, n):
        return v if n == 0 else power(v * 2, n - 1)

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    return power(x, 5), even(7), odd(7)


@case(graphs="breaks")
def recursion_without_end(x):
    def down(n):
        return down(n + 1)

    try:
        down(0)
    except RecursionError as error:
        return x, str(error)


@functools.lru_cache
def _fibonacci(n):
    return n if n < 2 else _fibonacci(n - 1) + _fibonacci(n - 2)


@case()
def cached_function(x):
    return x + _fibonacci(20)


@case()
def cached_function_defined_inside(x):
    @functools.cache
    def f(n):
        LOG.append(n)
        return n * 2

    return x + f(1) + f(1) + f(2)


@case()
def function_attributes(x):
    def f(v):
        f.calls += 1
        return v

    f.calls = 0
    f(x)
    f(x)
    return x + f.calls, f.__name__, f.__defaults__, f.__code__.co_varnames, vars(f)


test_functions = case.tests()
test_functions_whole = case.whole()
