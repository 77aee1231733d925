"""Graph breaks inside every construct: the order of effects, the values, nothing run twice."""

import contextlib
import functools
import sys
import time

import numpy as np
import torch
from behaviour import LOG, Suite, t

case = Suite()


@case(graphs="breaks", whole=True)
def print_between(x):
    y = x + 1
    print("a", y.shape)
    LOG.append("b")
    y = y * 2
    print("c", end="!")
    return y


@case(graphs="breaks")
def print_of_a_tensor(x):
    print(x + 1)
    return x * 2


@case(graphs="breaks")
def print_order_with_callees(x):
    def inner(v, k):
        print("in", k)
        v = v * k
        print("out", k)
        return v

    print("start")
    x = inner(x, 2)
    x = inner(x, 3)
    print("end")
    return x


@case(lambda: (t(1.0, 2.0),), lambda: (t(-1.0, -2.0),), lambda: (t(-3.0, 9.0),), graphs="breaks")
def if_on_data(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


@case(lambda: (t(1.0, 2.0),), lambda: (t(-1.0, -2.0),), graphs="breaks")
def if_else_on_data_then_more(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
        LOG.append("positive")
    else:
        y = y - 1
        LOG.append("negative")
    return y * 10


@case(lambda: (t(1.0),), lambda: (t(7.0),), graphs="breaks")
def while_on_data(x):
    n = 0
    while x.sum() < 10:
        x = x * 2
        n += 1
    return x, n


@case(lambda: (t(3.0, -1.0),), lambda: (t(-3.0, 1.0, 2.0),), graphs="breaks")
def for_with_data_branch(x):
    out = []
    for i, v in enumerate(x):
        if v > 0:
            out.append(v * i)
            continue
        if i == 2:
            break
        out.append(v - i)
    else:
        out.append("else")
    return out


@case(lambda: (t(3.0, -1.0),), lambda: (t(-3.0, 1.0, 2.0),), graphs="breaks")
def comprehension_with_item(x):
    return [v.item() for v in x if v > 0], {int(v): v for v in x}, sum(float(v) for v in x)


@case(graphs="breaks")
def item_feeds_python(x):
    n = int(x.sum().item()) + 3
    return x * n, [0] * n, "a" * n


@case(graphs="breaks")
def item_as_size(x):
    n = int(x.abs().sum())
    return torch.zeros(n) + 1, x[:n]


@case(graphs="breaks")
def tolist_and_numpy(x):
    v = x.tolist()
    a = (x * 2).numpy()
    return v, a.sum().item(), np.square(a).tolist(), x + 1


@case(graphs="breaks")
def bool_of_a_tensor(x):
    a = bool(x.sum() > 100)
    return x + 1, a, not x.sum(), (x.sum() > 0) and "yes" or "no"


@case(graphs="breaks")
def break_in_nested_calls(x):
    def deepest(v):
        v = v + 1
        print("deepest")
        return v * 2

    def middle(v):
        LOG.append("before")
        v = deepest(v) + deepest(v)
        LOG.append("after")
        return v

    return middle(x) + middle(x * 2)


@case(graphs="breaks")
def break_in_recursion(x):
    def down(v, n):
        if n == 0:
            print("bottom")
            return v
        v = down(v + 1, n - 1)
        print("level", n)
        return v * 2

    return down(x, 3)


@case(graphs="breaks")
def break_in_callbacks(x):
    def key(v):
        print("key", v)
        return -v

    return (
        x,
        sorted([1, 3, 2], key=key),
        list(map(lambda v: print(v) or v + 1, [1, 2])),
        functools.reduce(lambda a, b: print(a, b) or a + b, [1, 2, 3]),
    )


@case(graphs="breaks")
def break_in_with(x):
    @contextlib.contextmanager
    def scope(name):
        print("enter", name)
        try:
            yield name
        finally:
            print("leave", name)

    with scope("a") as a, scope("b"):
        print("body", a)
        x = x + 1
    return x


@case(graphs="breaks")
def break_in_no_grad(x):
    with torch.enable_grad():
        print(torch.is_grad_enabled())
        with torch.no_grad():
            print(torch.is_grad_enabled())
            y = x * 2
        a = torch.is_grad_enabled()
    return y, a, torch.is_grad_enabled()


@case(graphs="breaks")
def return_inside_with_after_break(x):
    with torch.enable_grad():
        print("in")
        if x.sum() > 1:
            return x.detach() + 1
        return x.detach() - 1


@case(graphs="breaks")
def break_in_try_finally(x):
    try:
        print("try")
        x = x + 1
        return x
    finally:
        print("finally")
        LOG.append("f")


@case(graphs="breaks")
def break_in_except(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        print("caught", error)
        x = x + 1
        try:
            raise
        except ValueError as again:
            print(again is error)
    print(sys.exc_info())
    return x


@case(graphs="breaks")
def break_in_finally_with_pending_error(x):
    try:
        try:
            raise ValueError("v")
        finally:
            print("cleanup")
            x = x + 1
    except ValueError as error:
        return x, str(error)


@case(graphs="breaks")
def exception_from_the_broken_instruction(x):
    y = x + 1
    try:
        n = int(y.sum().item()) // 0
    except ZeroDivisionError as error:
        return y, str(error)
    return y * n


@case(graphs="breaks", lines=True)
def exception_out_of_the_broken_instruction(x):
    y = x + 1
    v = [1, 2][int(y.abs().sum().item()) + 5]
    return y * v


@case(lambda: (t(), [1]), lambda: (t(), [2, 3]), graphs="breaks")
def mutations_around_a_break(x, v):
    v.append(10)
    print(v)
    v.append(20)
    x += 1
    print(x.sum() > 0)
    x *= 2
    return v


@case(lambda: (lambda v: (t(), v, {"v": v}))([1]), graphs="breaks")
def identities_across_a_break(x, v, d):
    w = d["v"]
    made = [v]
    d["made"] = made
    print("break")
    made.append(x)
    return w is v, d["made"] is made, made[0] is v, d["v"] is w, made[1] is x


@case(graphs="breaks")
def tensor_identities_across_a_break(x):
    y = x + 1
    z = y
    view = y[1:]
    print("break")
    y += 5
    return z is y, view, y, z


@case(graphs="breaks")
def closures_across_a_break(x):
    n = 1

    def bump():
        nonlocal n
        n += 1
        return n

    bump()
    print("break", n)
    bump()
    return x + n, bump


_STATE = {"n": 0}
_TOTAL = 0


@case(graphs="breaks", watch="_STATE _TOTAL")
def globals_across_a_break(x):
    global _TOTAL
    _TOTAL += 1
    _STATE["n"] += 1
    print(_TOTAL, _STATE)
    _TOTAL += 1
    _STATE["n"] *= 2
    return x + _TOTAL


class Box:
    def __init__(self, v):
        self.v = v
        self.seen = []

    def step(self, x):
        self.v += 1
        print("step", self.v)
        self.seen.append(x)
        self.v *= 2
        return x * self.v


@case(lambda: (t(), Box(1)), lambda: (t(), Box(5)), graphs="breaks")
def object_across_a_break(x, box):
    return box.step(x) + box.step(x + 1), box.v


@case(graphs="breaks")
def made_object_across_a_break(x):
    box = Box(1)
    box.other = box
    y = box.step(x)
    return y, box, box.other is box


class Loud:
    def __init__(self, x):
        print("init")
        self.x = x + 1

    @property
    def twice(self):
        print("property")
        return self.x * 2

    def __add__(self, other):
        print("add")
        return self.x + other

    def __getitem__(self, key):
        print("item", key)
        return self.x[key]

    def __len__(self):
        print("len")
        return 3

    def __bool__(self):
        print("bool")
        return True

    def __iter__(self):
        print("iter")
        return iter([1, 2])

    def __contains__(self, item):
        print("contains")
        return True

    def __eq__(self, other):
        print("eq")
        return True

    def __call__(self, v):
        print("call")
        return v

    def __enter__(self):
        print("enter")
        return self

    def __exit__(self, *info):
        print("exit", info[0])
        return True

    def __getattr__(self, name):
        print("getattr", name)
        return name

    def __format__(self, spec):
        print("format")
        return "loud"


@case(graphs="breaks")
def break_in_special_methods(x):
    v = Loud(x)
    out = [v.twice, v + 1, v[0], len(v), not v, list(v), 5 in v, v == 3, v(7), v.missing, f"{v}"]
    for i in v:
        out.append(i)
    a, b = v
    with v as w:
        raise ValueError
    if v:
        out.append("true")
    return out, a, b, w is v


@case(graphs="breaks")
def break_in_argument_evaluation(x):
    def f(*args, **kwargs):
        return args, kwargs

    def note(v):
        print(v)
        return v

    return f(note(1), x + 1, *[note(2)], k=note(x.shape[0]), **{"z": note(3)})


@case(graphs="breaks")
def break_in_middle_of_an_expression(x):
    return (x + 1) * (print("a") or 2) + (x * 3) * (print("b") or 1) - len([print(i) for i in range(2)])


@case(graphs="breaks")
def break_in_subscripts(x):
    d = {"a": [1, 2]}
    d[print("key") or "a"][print("index") or 0] += print("value") or 5
    return x, d


@case(graphs="breaks")
def break_in_condition_chain(x):
    def ask(v):
        print("ask", v)
        return v

    return (
        x,
        ask(0) or ask(1) and ask(2),
        1 < ask(2) < ask(3),
        [v for v in range(3) if ask(v)],
        ask(1) if ask(0) else ask(9),
    )


@case(graphs="breaks")
def break_in_match(x):
    def ask(v):
        print("ask", v)
        return v

    match ask([1, 2]):
        case [a, b] if ask(a > b):
            out = "first"
        case [a, b] if ask(a < b):
            out = "second"
    return x, out, a


@case(graphs="breaks")
def break_in_loop_many_times(x):
    for i in range(12):
        print(i)
        x = x + i
    return x


@case(graphs="breaks")
def break_in_nested_loops(x):
    for i in range(3):
        for j in range(2):
            if x.sum() > 1e6:
                return "never"
            x = x + i * j
            print(i, j)
    return x


@case(graphs="breaks")
def break_in_loop_over_dict(x):
    d = {"a": 1, "b": 2}
    for k, v in d.items():
        print(k)
        x = x + v
    return x


@case(graphs="breaks")
def break_in_loop_over_zip(x):
    for i, (a, b) in enumerate(zip([1, 2, 3], "abc")):
        print(i, a, b)
        x = x + a
    return x


@case(graphs="breaks")
def break_in_while_else(x):
    n = 0
    while n < 3:
        print(n)
        n += 1
    else:
        print("else")
    return x + n


@case(graphs="breaks")
def break_in_generator_loop(x):
    def values():
        for i in range(3):
            LOG.append(i)
            yield x + i

    out = 0
    for v in values():
        print("got")
        out = out + v
    return out


@case(graphs="breaks")
def break_between_star_unpackings(x):
    a, *b = [print("one") or 1, x, 3]
    *c, d = [*b, print("two")]
    return a, b, c, d


@case(graphs="breaks")
def numpy_in_the_middle(x):
    y = x * 2
    z = torch.from_numpy(np.fft.fft(y.numpy()).real.astype(np.float32))
    return z + y


@case(graphs="breaks")
def clock_and_random(x):
    a = time.time() > 0
    return x + 1, a


@case(graphs="breaks")
def user_function_disabled(x):
    @torch.compiler.disable
    def off(v):
        LOG.append("off")
        return v + 1

    return off(x * 2) * 3


@case(graphs="breaks")
def explicit_graph_break(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


@case(graphs="breaks")
def random_python_numbers(x):
    import random

    random.seed(3)
    return x + random.random(), random.randint(0, 5)


@case(graphs="breaks")
def lambda_with_break(x):
    f = lambda v: print("lambda") or v + 1  # noqa: E731
    return f(x) + f(x)


@case(graphs="breaks")
def decorated_with_break(x):
    def loud(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            print("before", f.__name__)
            out = f(*args, **kwargs)
            print("after")
            return out

        return wrapper

    @loud
    def g(v, k=2):
        return v * k

    return g(x) + g(x, k=3)


@case(graphs="breaks")
def super_with_break(x):
    return Derived(2).run(x)


class Base:
    def __init__(self, k):
        self.k = k

    def run(self, x):
        print("base", self.k)
        return x * self.k


class Derived(Base):
    def __init__(self, k):
        super().__init__(k + 1)

    def run(self, x):
        y = super().run(x)
        print("derived")
        return y + super().run(x)


@case(lambda: (t(1.0, 2.0), 3), lambda: (t(1.0, 2.0), 5), lambda: (t(-1.0, 2.0), 7), graphs="breaks")
def integers_across_a_break(x, n):
    m = n * 2
    print(m)
    return x + m + n, m


@case(lambda: (t(1.0, 2.0),), lambda: (t(1.0, 2.0, 3.0),), lambda: (t(1.0, 2.0, 3.0, 4.0),), graphs="breaks")
def sizes_across_a_break(x):
    n = x.shape[0]
    print("break")
    return x.sum() + n, torch.ones(n), n + 1


@case(graphs="breaks")
def unused_values_are_dropped(x):
    y = x + 1
    del x
    print("break")
    try:
        return y, x  # noqa: F821
    except UnboundLocalError as error:
        return y, str(error)


@case(graphs="breaks")
def print_to_a_file_object(x):
    import io

    out = io.StringIO()
    print("a", 1, sep="-", file=out)
    out.write("b")
    return x, out.getvalue()


@case(graphs="breaks")
def open_and_read_a_file(x):
    with open(__file__) as source:
        first = source.readline()
    return x + len(first)


@case(graphs="breaks")
def warnings_in_order(x):
    import warnings

    warnings.warn("first", stacklevel=1)
    print("between")
    warnings.warn("second", DeprecationWarning, stacklevel=1)
    return x + 1


@case(lambda: (t(), [3, 1, 2]), lambda: (t(4.0), [2, 1]), lambda: (t(), [1, "a"]), graphs="breaks")
def keys_made_by_a_comparison(x, items):
    """What stands for `cmp_to_key` during capture is that behind a break, and so are its keys."""
    backwards = functools.cmp_to_key(lambda a, b: b - a)
    first = backwards(items[0])
    print("between")
    found = sorted(items, key=backwards)
    print("again")
    return x, found, max(items, key=backwards), first < backwards(items[1]), backwards(1) > backwards(2)


class Meter:
    """Its text has numbers of tensors in it."""

    def __init__(self, v):
        self.v = v

    def __str__(self):
        return f"mean {self.v}"

    __repr__ = __str__

    def __format__(self, spec):
        return f"<{self.v}{spec}>"


@case(graphs="breaks")
def texts_of_objects_in_texts(x):
    meter = Meter(x.sum())
    return x, str(meter), f"{meter}", f"{meter!r}", f"{meter:a}", "%s" % meter, "{:b}".format(meter), f"{[meter]}"


test_breaks = case.tests()
test_breaks_whole = case.whole()
