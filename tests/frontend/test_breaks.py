"""Graph breaks in every place of a function: values, output, exceptions, tracebacks and thread state are eager's."""

import contextlib
import copy
import dataclasses
import io
import sys
import time
import traceback

import pytest
import torch
from harness import compiled

X = torch.arange(4.0)
LOG = []


def nested_break(x):
    def inner(y, k):
        z = y * 2
        LOG.append(float(z.sum()))
        return z + k

    a = inner(x, 1)
    b = inner(a, 2)
    return a + b


def deep(x):
    def f3(y):
        y = y + 1
        print("f3", y.sum().item())
        return y * 3

    def f2(y):
        t = y - 1
        r = f3(t)
        return r + t

    def f1(y):
        return f2(y * 2) + f2(y)

    return f1(x)


def in_with(x):
    with torch.no_grad():
        y = x * 2
        s = y.sum().item()
        z = y + s
    return z, torch.is_grad_enabled(), y.requires_grad


def in_try(x):
    try:
        y = x * 2
        n = int(y.sum().item())
        raise ValueError(n)
    except ValueError as e:
        y = y + e.args[0]
        print("caught", e)
    finally:
        print("finally")
    return y


def break_raises(x):
    try:
        y = x * 2
        y.numpy().reshape(99)
    except ValueError as e:
        return y + 1, str(e)


def bare_raise(x):
    try:
        try:
            int("x")
        except ValueError:
            print(sys.exc_info()[0])
            raise
    except ValueError as e:
        return x * 2, str(e), e.__context__


def comp(x):
    return [float(v) + i for i, v in enumerate([x[0], x[1], x.sum()])]


def comp2(x):
    def g(v):
        print("g")
        return v * 2

    return [g(v) for v in (x, x + 1)]


def nonloc(x):
    n = 0

    def add(k):
        nonlocal n
        n += k
        print(n)
        return n

    y = x + add(2)
    add(3)
    return y * n, add


def gen_break(x):
    def gen(k):
        for i in range(3):
            yield k + i

    g = gen(x)
    a = next(g)
    print("half")
    b = next(g)
    return a, b, list(g)


def sort_key(x):
    xs = [x + 3, x + 1, x + 2]
    return sorted(xs, key=lambda t: float(t.sum()))


class M(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(4, 4)
        s.count = 0

    def forward(s, x):
        y = s.l(x)
        s.count += 1
        if y.sum() > 0:
            y = y * 2
        print("count", s.count)
        return torch.relu(y)


class User:
    def __init__(self, v):
        self.v = v
        print("made")

    def __add__(self, o):
        print("add")
        return User(self.v + o.v)


def user_ops(x):
    a = User(x)
    b = User(x * 2)
    c = a + b
    return c.v


def while_data(x):
    n = 0
    while x.sum() < 100:
        x = x * 2
        n += 1
    return x, n


def with_user(x):
    class C:
        def __enter__(s):
            print("enter")
            return s

        def __exit__(s, *a):
            print("exit", a[0])
            return True

    with C():
        x + 1
        print("in")
        raise RuntimeError("boo")
    return x * 2


def fstring(x):
    return f"{x.sum().item():.2f} {x.shape}", x + 1


def dict_iter(x):
    d = {"a": x, "b": x * 2}
    out = 0
    for k, v in d.items():
        print(k)
        out = out + v
    return out


def zipper(x):
    tot = 0
    for i, (a, b) in enumerate(zip([x, x + 1], [x * 2, x * 3])):
        print(i)
        tot = tot + a * b
    return tot


def uncaught(x):
    x + 1
    print("pre")
    raise KeyError("k")


def uncaught_in_pending(x):
    y = x + 1
    return y.numpy().reshape(77)


def locs(x):
    a = 1
    y = x * 2
    d = dict(locals(), known="X" in globals())
    return sorted(d), y


def gen_expr(x):
    return sum(float(v) for v in x)


def ret_in_finally(x):
    try:
        print("a")
        raise ValueError
    finally:
        return x * 5


def mutate_args(x, out=None):
    out = [] if out is None else out
    out.append(x)
    print(len(out))
    out.append(x * 2)
    return out


def loop_else(x):
    for i in range(3):
        print(i)
        if i == 5:
            break
    else:
        x = x + 100
    return x


def loop_break(x):
    for i in range(10):
        if (x + i).sum() > 15:
            break
    return x * i


def nested_loops(x):
    acc = x
    for i in range(2):
        for j in [1, 2]:
            acc = acc + i * j
            print(i, j)
            if j == 2:
                continue
            acc = acc * 2
    return acc


def exitstack(x):
    with contextlib.ExitStack() as st:
        st.enter_context(torch.no_grad())
        st.callback(lambda: print("cb"))
        y = x * 2
        print("in", torch.is_grad_enabled())
    return y + 1


@contextlib.contextmanager
def cm(v):
    print("cm in")
    try:
        yield v
    finally:
        print("cm out")


def ctxman(x):
    with cm(x * 2) as y:
        z = y + 1
        print("mid")
    return z


def redirect(x):
    b = io.StringIO()
    with contextlib.redirect_stdout(b):
        print("inside")
        time.monotonic()
        y = x * 2
    return y, b.getvalue()


def suppress(x):
    with contextlib.suppress(ValueError):
        print("hi")
        raise ValueError
    return x + 1


def star(x):
    def f(*a, **k):
        print(len(a), k)
        return sum(a)

    return f(*[x, x + 1], **{"q": 1})


def lam(x):
    fs = [lambda t, i=i: t * i for i in range(3)]
    print("m")
    return [f(x) for f in fs]


@torch.no_grad()
def deco(x):
    y = x + 1
    print(torch.is_grad_enabled())
    return y


def tup(x):
    a, (b, c) = x[0].item(), (x[1].item(), x + 1)
    return a, b, c


def inplace(x):
    y = x.clone()
    y.add_(1)
    print(y.sum().item())
    y.mul_(2)
    v = y[1:]
    print("v")
    v.add_(5)
    return y, v


def autocast(x):
    m = x.reshape(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        a = m @ m
        print("ac", torch.is_autocast_enabled("cpu"))
        b = a @ m
    return a.dtype, b.dtype, (m @ m).dtype


def imp(x):
    import math

    print("x")
    from collections import OrderedDict as O

    return x * math.pi, O(a=1)


def walrus(x):
    return [y for v in (1, 2, 3) if (y := float(x.sum()) + v) > 7]


def glob(x):
    global G
    G = x + 1
    print("g")
    G = G * 2
    return G


def assertion(x):
    assert x.sum().item() > 0, "msg"
    return x * 2


def exc_chain(x):
    try:
        try:
            print("1")
            raise KeyError(1)
        except KeyError as k:
            print("2")
            raise ValueError(2) from k
    except ValueError as v:
        print("3")
        return type(v.__cause__).__name__, type(v.__context__).__name__, x + 1


CASES = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", None) == __name__ and callable(value) and name not in ("M", "User", "cm")
]


def observe(function, *args):
    """The result or the exception with the user's own traceback lines, the output, and what is left behind."""
    out = io.StringIO()
    LOG.clear()
    with contextlib.redirect_stdout(out):
        try:
            result = function(*args)
        except Exception as error:
            lines = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
            result = (type(error).__name__, str(error), lines[1:])
    return result, out.getvalue(), list(LOG), torch.is_grad_enabled()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return callable(b) if callable(a) else a == b


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_break(function):
    fast, log = compiled(function)
    for _ in range(2):
        expected = observe(function, X.clone())
        found = observe(fast, X.clone())
        assert equal(expected, found), f"expected {expected}, found {found}"
    assert log.fallbacks == [] and bool(log.breaks) is (function is not locs)  # names of variables are known


def test_module_with_breaks_and_state():
    net = M()
    twin = copy.deepcopy(net)
    fast, log = compiled(net)
    with torch.no_grad():
        for _ in range(3):
            assert equal(observe(twin, X), observe(fast, X))
    assert net.count == twin.count == 3 and log.breaks


def test_three_graphs_for_two_branches():
    def bar(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b.double() * -1
        return x * b

    fast, log = compiled(bar)
    for sign in (1, -1, 1, -1):
        b = sign * torch.ones(4)
        torch.testing.assert_close(fast(X, b), bar(X, b))
    assert sum(c.operations > 0 for c in log.captures) == 3 and len(log.captures) == 3


def test_loop_with_a_break_is_compiled_once():
    def loop(x, n):
        found = []
        for i in range(n):
            x = x + i
            print(i, x.sum().item())
            found.append(x * 2)
        return x, found

    fast, log = compiled(loop)
    assert equal(observe(loop, X, 12), observe(fast, X, 12))
    made = len(log.captures)
    assert made <= 10
    assert equal(observe(loop, X, 40), observe(fast, X, 40))
    assert len(log.captures) <= made + 1, "a round of the loop costs no capture once sizes and counters are symbols"


def test_prefix_is_not_run_again():
    calls = []

    def effect(x):
        calls.append("before")
        y = x.add_(1)
        n = y.sum().item()
        calls.append("after")
        return y + n

    fast, _ = compiled(effect)
    x, expected = X.clone(), X.clone() + 1
    torch.testing.assert_close(fast(x), expected + expected.sum())
    assert calls == ["before", "after"] and torch.equal(x, expected)


def test_equal_code_of_two_namespaces():
    text = "def inner(x):\n    y = x * 2\n    print('split')\n    return y + NUMBER\n"
    inners = []
    for number in (1, 100):
        namespace = {"NUMBER": number}
        exec(compile(text, f"<file {number}>", "exec"), namespace)
        inners.append(namespace["inner"])
    first, second = inners
    assert first.__code__ == second.__code__
    fast, _ = compiled(lambda x: (first(x), second(x)))
    assert equal(observe(fast, X)[0], (X * 2 + 1, X * 2 + 100))


# ---- values that are never the same twice ----


def text_of_a_value(x, said):
    y = (x * 2).sum()
    said.append(f"{y.item():.3f}")
    return x * y + 1


def key_of_a_value(x, said):
    name = str(round(x.sum().item(), 3))
    said.append(name)
    return {name: x}[name] * 2 + len(name[:1])


def scaled_by_a_value(x, said):
    scale = x.sum().item()
    y = torch.relu(x * scale) + scale
    return y * y


def class_in_a_function(x, said):
    y = x + 1

    class Scale:
        by = 3

        def __call__(self, v):
            return v * self.by + y

    said.append(Scale.__name__)
    return Scale()(x) * 2


def dataclass_in_a_function(x, said):
    @dataclasses.dataclass
    class Options:
        a: int
        b: int = 2

    options = Options(3)
    said.append(options.b)
    return x * options.a + options.b


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function", [text_of_a_value, key_of_a_value, scaled_by_a_value, class_in_a_function, dataclass_in_a_function]
)
def test_what_differs_in_every_call_ends_in_no_recompiling(function, grad):
    fast, log = compiled(function)
    counts = []
    for _ in range(100):
        x, mine, theirs = torch.randn(4, requires_grad=grad), [], []
        assert torch.equal(fast(x, mine).detach(), function(x, theirs).detach())
        assert mine == theirs
        counts.append(len(log.captures))
    assert counts[-1] == counts[70], log.recompiles[-1]
    assert not log.fallbacks


def test_a_break_inside_autocast_leaves_it_as_often_as_it_is_entered():
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
            print("inside")
            y = y @ x
        return y

    def depth():
        found = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        return found

    before = depth()
    fast, _ = compiled(f)
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()):
            fast(torch.ones(4, 4))
        assert depth() == before


def test_a_kernel_of_triton_is_one_break():
    """What Triton does to start a kernel is not captured; `triton.cdiv` and the like are."""
    text = "def run(x, n):\n    calls.append(n)\n    x.add_(float(x.sum()))\n"
    text += "class ConstexprFunction:\n    def __call__(self, n):\n        return n // 2\n"
    space = {"__name__": "triton.runtime.jit", "calls": []}
    exec(text, space)
    run, half = space["run"], space["ConstexprFunction"]()

    def f(x):
        y = x * 2
        run(y, half(len(x)))
        return y.sin()

    fast, log = compiled(f)
    for _ in range(3):
        torch.testing.assert_close(fast(X), f(X))
    assert space["calls"] == [2] * 6
    assert [b.reason for b in log.breaks] == ["a kernel of Triton is started (run)"]
    assert [c.operations for c in log.captures] == [1, 1]
