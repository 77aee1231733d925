"""What changes between calls, or is the same object in one call and another in the next, is seen."""

import enum
import functools
import itertools
import os
import random
import threading
import types
import weakref

import numpy as np
import torch
import torch.nn.functional as F
from cases import case, scenario, t
from torch import nn


class Holder:
    factor = 2

    def __init__(self, n=0):
        self.n = n

    def scaled(self, x):
        return x * self.factor


FIRST, SECOND = Holder(1), Holder(1)
MISSING = object()
SHARED_LIST = [1]

# ---- identity ----


@case(lambda: (t(2), FIRST, SECOND), lambda: (t(2), FIRST, FIRST))
def test_two_objects_or_one(x, a, b):
    return x if a is b else -x


@case(lambda: (t(2), object()), lambda: (t(2), MISSING))
def test_sentinel(x, value):
    return x if value is MISSING else -x


@case(lambda: (t(2), [1]), lambda: (t(2), SHARED_LIST))
def test_list_of_the_module(x, items):
    return x if items is SHARED_LIST else -x


@case(lambda: (t(2), [1]), lambda: (t(2), None))
def test_list_or_none(x, items):
    return x if items is None else -x


@scenario
def test_object_in_a_list(compile):
    fast = compile(lambda x, o, items: x * (o in items) + x * items.count(o))
    p, q = Holder(1), Holder(1)
    return [fast(t(2), p, [q]), fast(t(2), p, [p]), fast(t(2), q, [p, q])]


@scenario
def test_objects_compared(compile):
    fast = compile(lambda x, o, p: x * (o == p) + (o != p))
    p, q = Holder(1), Holder(1)
    return [fast(t(2), p, q), fast(t(2), p, p)]


@scenario
def test_functions_compared(compile):
    def make():
        return lambda x: x

    one, other = make(), make()
    fast = compile(lambda x, f: x if f is one else -x)
    return [fast(t(2), other), fast(t(2), one)]


@scenario
def test_parameter_given_as_argument(compile):
    net = nn.Linear(2, 2)
    fast = compile(lambda x: x if x is net.weight else -x)
    return [fast(t(2, 2)).detach(), fast(net.weight).detach()]


@scenario
def test_object_changed_through_another_name(compile):
    def run(a, b, x):
        a.n = a.n + 1
        return x * b.n

    fast, p, q = compile(run), Holder(1), Holder(1)
    return [fast(p, q, t(2)), fast(q, q, t(2)), p.n, q.n]


@scenario
def test_tensors_of_a_list_that_become_one(compile):
    def run(xs):
        xs[0].add_(1)
        return xs[0] + xs[1]

    fast, a, b = compile(run), t(2), t(2)
    return [fast([a, b]), fast([a, a]), fast([b, a]), a, b]


@scenario(expect="eager")
def test_arguments_that_come_to_overlap(compile):
    def run(x, y):
        x.add_(1)
        return y * 2

    fast, a, b = compile(run), t(4), t(4)
    return [fast(a.clone(), t(4)), fast(a, a[1:]), a, fast(b, b)]


# ---- globals, classes, closures ----

TABLE = {"k": 1}
NUMBERS = [1, 2]


@scenario
def test_containers_of_the_module(compile):
    TABLE["k"], NUMBERS[:] = 1, [1, 2]
    fast = compile(lambda x: x * TABLE["k"] + sum(NUMBERS))
    out = [fast(t(2))]
    TABLE["k"] = 3
    out.append(fast(t(2)))
    NUMBERS.append(3)
    return [*out, fast(t(2))]


@scenario
def test_class_attribute(compile):
    fast, holder = compile(lambda h, x: h.scaled(x)), Holder()
    out = [fast(holder, t(2))]
    Holder.factor = 5
    out.append(fast(holder, t(2)))
    holder.factor = 7
    out.append(fast(holder, t(2)))
    Holder.factor = 2
    return out


@scenario
def test_methods_replaced(compile):
    fast, holder, old = compile(lambda h, x: h.scaled(x)), Holder(), Holder.scaled
    out = [fast(holder, t(2))]
    Holder.scaled = lambda self, x: x + 100
    out.append(fast(holder, t(2)))
    holder.scaled = lambda x: x + 200
    out.append(fast(holder, t(2)))
    Holder.scaled = old
    return out


@scenario
def test_method_of_a_base_class_replaced(compile):
    class Base:
        def f(self, x):
            return x + 1

    class Derived(Base):
        def f(self, x):
            return super().f(x) * 2

    fast = compile(Derived().f)
    out = [fast(t(2))]
    Base.f = lambda self, x: x + 10
    return [*out, fast(t(2))]


@scenario
def test_closure_variable(compile):
    n = 1

    def run(x):
        return x * n

    fast = compile(run)
    out = [fast(t(2))]
    n = 5
    return [*out, fast(t(2))]


@scenario
def test_defaults_and_attributes_of_a_function(compile):
    def inner(x, k=2):
        return x * k + inner.shift

    inner.shift = 1
    fast = compile(lambda x: inner(x))
    out = [fast(t(2))]
    inner.__defaults__ = (9,)
    out.append(fast(t(2)))
    inner.shift = 4
    return [*out, fast(t(2))]


@scenario
def test_attribute_of_a_module_object(compile):
    module = types.ModuleType("made_here")
    module.k = 2
    fast = compile(lambda x: x * module.k)
    out = [fast(t(2))]
    module.k = 4
    return [*out, fast(t(2))]


@scenario
def test_environment(compile):
    fast = compile(lambda x: x * int(os.environ.get("INTARSIA_TEST_LATE", "1")))
    out = [fast(t(2))]
    for value in ("4", "5"):
        os.environ["INTARSIA_TEST_LATE"] = value
        out.append(fast(t(2)))
    del os.environ["INTARSIA_TEST_LATE"]
    return [*out, fast(t(2))]


@scenario
def test_functions_in_a_list(compile):
    box = [torch.sin]
    fast = compile(lambda x: box[0](x))
    out = [fast(t(2))]
    for f in (torch.cos, lambda v: v + 1, lambda v: v + 2, functools.partial(torch.add, other=3)):
        box[0] = f
        out.append(fast(t(2)))
    return out


@scenario
def test_partial_replaced(compile):
    box = [functools.partial(torch.add, alpha=1)]
    fast = compile(lambda x: box[0](x, x))
    out = [fast(t(2))]
    box[0] = functools.partial(torch.add, alpha=3)
    return [*out, fast(t(2))]


@scenario
def test_thread_local(compile):
    local = threading.local()
    local.v = 2
    fast = compile(lambda x: x * local.v)
    out = [fast(t(2))]
    local.v = 5
    return [*out, fast(t(2))]


@scenario
def test_weak_reference_replaced(compile):
    a, b = Holder(2), Holder(3)
    box = [weakref.ref(a)]
    fast = compile(lambda x: x * box[0]().n)
    out = [fast(t(2))]
    box[0] = weakref.ref(b)
    out.append(fast(t(2)))
    b.n = 9
    return [*out, fast(t(2))]


# ---- attribute protocols ----


@scenario
def test_dynamic_attributes(compile):
    class Lazy:
        def __init__(self):
            self.table = {"k": 2}

        def __getattr__(self, name):
            return self.table[name]

    lazy = Lazy()
    fast = compile(lambda x: x * lazy.k)
    out = [fast(t(2))]
    lazy.table["k"] = 3
    out.append(fast(t(2)))
    lazy.k = 7
    return [*out, fast(t(2))]


@scenario
def test_descriptor_replaced(compile):
    class Twice:
        def __get__(self, obj, cls):
            return obj.n * 2

    class Box:
        v = Twice()
        n = 1

    box = Box()
    fast = compile(lambda x: x * box.v)
    out = [fast(t(2))]
    box.n = 3
    out.append(fast(t(2)))
    Box.v = 5
    return [*out, fast(t(2))]


@scenario
def test_property_with_a_setter(compile):
    class Doubling:
        value = 1

        @property
        def v(self):
            return self.value

        @v.setter
        def v(self, value):
            self.value = value * 2

    def run(p, x):
        p.v = p.v + 1
        return x * p.v

    fast, p = compile(run), Doubling()
    return [fast(p, t(2)) for _ in range(3)], p.value


@scenario
def test_slots(compile):
    class Point:
        __slots__ = ("a", "b")

    def run(p, x):
        p.b = p.a * 2
        return x * p.b

    fast, p = compile(run), Point()
    p.a = 1
    out = [fast(p, t(2))]
    p.a = 4
    return [*out, fast(p, t(2))], p.b


@scenario
def test_attribute_of_a_tensor(compile):
    fast = compile(lambda x: x * 2 if getattr(x, "flag", False) else x)
    x = t(2)
    out = [fast(x).clone()]
    x.flag = True
    return [*out, fast(x)]


# ---- modules ----


@scenario
def test_plain_attributes_of_a_module(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cfg, self.table = types.SimpleNamespace(k=2), {"a": [1, 2]}

        def forward(self, x):
            return x * self.cfg.k + self.table["a"][0]

    net = Net()
    fast = compile(net)
    out = [fast(t(2))]
    net.cfg.k = 3
    out.append(fast(t(2)))
    net.table["a"][0] = 9
    out.append(fast(t(2)))
    net.cfg = types.SimpleNamespace(k=7)
    return [*out, fast(t(2))]


@scenario
def test_list_of_parameters(compile):
    ps = [nn.Parameter(t(2)), nn.Parameter(t(2))]
    fast = compile(lambda x: sum(p * x for p in ps).detach())
    out = [fast(t(2))]
    ps[0] = nn.Parameter(t(2) * 5)
    out.append(fast(t(2)))
    ps.append(nn.Parameter(t(2)))
    out.append(fast(t(2)))
    ps[1].data.fill_(3)
    return [*out, fast(t(2))]


@scenario
def test_one_of_many_modules_replaced(compile):
    net = nn.ModuleList([nn.Linear(2, 2) for _ in range(60)])
    fast = compile(lambda x: sum(m.weight.sum() for m in net) * x)
    out = [fast(t(2))]
    net[40] = nn.Linear(2, 2)
    nn.init.ones_(net[40].weight)
    return [*out, fast(t(2))]


@scenario
def test_mode_of_a_module_read_outside(compile):
    net = nn.Dropout(0.5)
    fast = compile(lambda x: F.dropout(x, 0.5, net.training))
    out = [fast(t(4))]
    net.eval()
    return [*out, fast(t(4))]


# ---- large containers ----


@scenario
def test_large_containers(compile):
    table, items = {i: i for i in range(100)}, list(range(100))
    fast = compile(lambda x: x * table[50] + len(table) + sum(table.values()) + items[50] + len(items))
    out = [fast(t(2))]
    table[50] = 3
    out.append(fast(t(2)))
    table[200] = 1
    out.append(fast(t(2)))
    items[50] = 3
    items.append(1)
    return [*out, fast(t(2))]


# ---- arguments of other types and values ----


@scenario
def test_numbers_of_all_kinds(compile):
    fast = compile(lambda x, v: (x * v, v == 1, isinstance(v, int), v / 2))
    return [fast(t(2), v) for v in (1, 1.0, True, 2, 2.0, float("nan"), float("nan"), float("inf"), 0.0, -0.0, 0, 3)]


@scenario
def test_devices_dtypes_and_names(compile):
    fast = compile(lambda x, d: x.to(d))
    return [fast(t(2), d) for d in ("cpu", torch.device("cpu"), torch.float64, torch.int32)]


@scenario
def test_enum_members(compile):
    class Kind(enum.Enum):
        A, B = 1, 2

    fast = compile(lambda x, kind: x * kind.value)
    return [fast(t(2), Kind.A), fast(t(2), Kind.B)]


@scenario
def test_sets(compile):
    fast = compile(lambda x, s: x * (3 in s) + len(s))
    return [fast(t(2), s) for s in ({3}, {4}, {3, 4}, frozenset([3]))]


@scenario
def test_keywords(compile):
    fast = compile(lambda x, **k: x * k.get("s", 1) + len(k))
    return [fast(t(2)), fast(t(2), s=2), fast(t(2), s=2, z=1), fast(t(2), z=1, s=2)]


@scenario
def test_dict_of_tensors_changed(compile):
    def run(d):
        d["n"] = d["x"] * 2
        d["x"].add_(1)
        return len(d)

    fast, a, b = compile(run), {"x": t(2)}, {"x": t(2)}
    return [fast(a), fast(b), fast(a), a, b]


@scenario
def test_layouts_and_gradients(compile):
    fast = compile(lambda x: x * 2 if x.requires_grad else (x.sum() if x.is_contiguous() else x.t()))
    x = t(2, 3)
    return fast(x), fast(x.t()), fast(x.clone().requires_grad_()).detach(), fast(x)


# ---- state that moves on with every call ----


@scenario(expect="breaks")
def test_iterators_of_the_caller(compile):
    count, numbers = itertools.count(), (i * i for i in range(9))
    fast = compile(lambda x: x * next(count) + next(numbers))
    return [fast(t(2)) for _ in range(4)], next(count), next(numbers)


@scenario(expect="breaks")
def test_random_objects_of_the_caller(compile):
    rng, generator = random.Random(0), np.random.default_rng(0)
    fast = compile(lambda x: x * rng.random() + generator.random())
    return [fast(t(2)) for _ in range(3)], rng.random(), generator.random()


@scenario(expect="breaks")
def test_array_of_the_caller(compile):
    fast = compile(lambda x, a: x + torch.from_numpy(a))
    a = np.ones(2, dtype=np.float32)
    out = [fast(t(2), a)]
    a[0] = 5
    return [*out, fast(t(2), a)]


@scenario
def test_callable_object_with_a_counter(compile):
    class Counter:
        def __init__(self):
            self.i = 0

        def __call__(self, x):
            self.i += 1
            return x * self.i

    counter = Counter()
    fast = compile(counter)
    return [fast(t(2)) for _ in range(4)], counter.i


@scenario
def test_recursion_with_other_depths(compile):
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    fast = compile(lambda x, n: x * factorial(n))
    return [fast(t(2), n) for n in (3, 4, 5, 3)]
