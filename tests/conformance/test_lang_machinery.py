"""Attribute interception, descriptors, dispatch, containers from collections.abc, and other corners.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import collections
import contextlib
import functools
import operator
import typing
import weakref

import torch
from behaviour import LOG, Suite, t
from things import Base, Both, Left, Right, note

case = Suite()


class Fallback:
    def __init__(self):
        self.data = {"a": 1}

    def __getattr__(self, name):
        LOG.append(("getattr", name))
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(f"no {name}") from None

    @property
    def broken(self):
        LOG.append("broken")
        return self.nothing_here

    def __dir__(self):
        return ["x"]


@case(lambda: (t(), Fallback()), lambda: (t(), Fallback()))
def attribute_fallbacks(x, f):
    out = [f.a, getattr(f, "b", 5), hasattr(f, "c")]
    try:
        f.broken
    except AttributeError as error:
        out.append(str(error))
    f.data["b"] = 2
    return x + f.b, out


class Guarded:
    def __init__(self, v):
        object.__setattr__(self, "v", v)
        object.__setattr__(self, "reads", [])

    def __getattribute__(self, name):
        if name != "reads":
            object.__getattribute__(self, "reads").append(name)
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        if name == "locked":
            raise AttributeError("locked")
        super().__setattr__(name, value)

    def method(self):
        return self.v


@case(lambda: (t(), Guarded(1)), lambda: (t(), Guarded(2)))
def attribute_interception(x, g):
    g.v += 1
    try:
        g.locked = 1
    except AttributeError as error:
        LOG.append(str(error))
    return x + g.method(), getattr(g, "zzz", None), g.reads


class Validated:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner):
        return self if obj is None else obj.__dict__.get(self.name)

    def __set__(self, obj, value):
        LOG.append((self.name, value))
        obj.__dict__[self.name] = value


class Record:
    a = Validated()
    b = Validated()
    plain = 5

    def __init__(self, a, b):
        self.a, self.b = a, b


@case(lambda: (t(), Record(1, 2)), lambda: (t(), Record(3, [4])))
def descriptor_stores_under_its_own_name(x, r):
    r.a += 1
    r.b = [r.a]
    r.plain = 6
    made = Record(x, r)
    return made, r.a, list(vars(r)), Record.plain


@case()
def bound_methods_and_functions_of_objects(x):
    class_like = Base
    b = Base()
    f = b.hello
    g = Base.hello
    h = Base.make
    k = functools.partial(b.hello)
    return (
        x,
        f(),
        g(b),
        h().hello(),
        k(),
        f.__self__ is b,
        f.__func__ is g,
        h.__self__ is Base,
        f == b.hello,
        class_like is Base,
    )


@case()
def method_caches_on_instances(x):
    b = Both(1)
    b.cached = b.hello
    b.hello = lambda: "patched"
    return x, b.cached(), b.hello(), Both.hello is not b.hello


class Cached:
    def __init__(self):
        self.count = 0

    @functools.cached_property
    def value(self):
        self.count += 1
        LOG.append("computed")
        return [self.count]

    @functools.lru_cache
    def method(self, k):
        LOG.append(("method", k))
        return k * 2

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return 7


@case(lambda: (t(), Cached()), lambda: (t(), Cached()))
def cached_properties(x, c):
    a = c.value
    b = c.value
    del c.value
    return x + a[0], a is b, c.value, c.count, "value" in vars(c)


@case()
def weak_references(x):
    b = Base()
    r = weakref.ref(b)
    return x, r() is b, r() is None


@case()
def classes_as_values(x):
    kinds = {"l": Left, "r": Right}
    made = [kinds[k](1) for k in "lr"]
    return (
        x,
        [type(m) for m in made],
        Left.__bases__,
        Left.__dict__["hello"] is Left.hello,
        issubclass(Both, (Right, int)),
        Base in Both.__mro__,
        Left == Left,
        {Left: 1}[Left],
    )


@case()
def type_checks(x):
    return (
        x, isinstance(1, int | str), isinstance("a", typing.get_args(typing.Union[int, str])), isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping), isinstance(x, torch.Tensor), issubclass(bool, int), callable(len), isinstance(iter([]), collections.abc.Iterator),
        isinstance((i for i in ()), collections.abc.Generator), isinstance(note, collections.abc.Callable), isinstance(None, type(None)),
    )  # fmt: skip


@case(graphs="breaks")
def dispatch_by_type(x):
    @functools.singledispatch
    def kind(v):
        return "object"

    @kind.register
    def _(v: int):
        return "int"

    return x, kind(1)


@functools.singledispatch
def _kind(v):
    return "object"


@_kind.register
def _(v: int):
    return "int"


@_kind.register(list)
def _(v):
    return "list " + _kind(v[0])


@case()
def dispatch_of_a_global_function(x):
    return x, _kind(1), _kind("a"), _kind([2]), _kind(True), _kind(x)


@case()
def delegating_container(x):
    class_like = Wrapper([1, 2, 3])
    return (
        x,
        len(class_like),
        class_like[0],
        list(class_like),
        2 in class_like,
        class_like.index(3),
        list(reversed(class_like)),
        class_like.count(1),
    )


class Wrapper(collections.abc.Sequence):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        LOG.append(i)
        return self.items[i]


class Table(collections.abc.MutableMapping):
    def __init__(self, **items):
        self.items_ = dict(items)

    def __getitem__(self, k):
        LOG.append(("get", k))
        return self.items_[k]

    def __setitem__(self, k, v):
        LOG.append(("set", k))
        self.items_[k] = v

    def __delitem__(self, k):
        del self.items_[k]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


@case(lambda: (t(), Table(a=1)), lambda: (t(), Table(b=2)))
def abstract_mapping(x, m):
    m["z"] = 5
    m.setdefault("y", []).append(1)
    m.update(w=3)
    return x, m.get("nope"), m.pop("z"), list(m), dict(m), {**m}, "y" in m, len(m), list(m.items()), m == {"a": 1}


class UserList(collections.UserList):
    pass


class UserDict(collections.UserDict):
    def __setitem__(self, k, v):
        LOG.append(k)
        super().__setitem__(k, v)


@case(lambda: (t(), UserList([1]), UserDict(a=1)), lambda: (t(), UserList([2, 3]), UserDict(b=1)))
def user_containers(x, v, d):
    v.append(5)
    v[0] += 1
    d["n"] = len(v)
    return x + v[0], v + [1], d["n"], list(d), len(v), v[-1], 5 in v


@case(graphs="breaks")
def context_variables(x):
    import contextvars

    var = contextvars.ContextVar("v", default=3)
    return x + var.get()


@case()
def nested_functions_deeply(x):
    def a():
        n = 1

        def b():
            nonlocal n
            n += 1
            m = n

            def c(k=m):
                nonlocal m
                m += k
                return lambda: (n, m, k)

            return c()

        return b(), b()

    first, second = a()
    return x, first(), second()


@case()
def class_scope_is_not_enclosing(x):
    return x, Scoped.values, Scoped().read()


_NAME = "global"


class Scoped:
    _NAME = "class"
    values = [_NAME for _ in range(1)]

    def read(self):
        return _NAME


@case()
def conditional_imports_and_names(x):
    try:
        import json as encoder
    except ImportError:
        encoder = None
    if x.dim() == 1:
        from collections import Counter as C
    return x, encoder.dumps({"a": [1, None]}), C("aab")["a"]


@case()
def multiple_targets_and_chains(x):
    a = b = c = [0]
    a[0], b = 5, b + [1]
    i = v = 0
    v, w = [i := 7, i + 1]
    d = {}
    d["k"], (d["m"], *d["rest"]) = 1, (2, 3, 4)
    return x, a, b, c, i, v, w, d


@case()
def augmented_assignment_evaluates_once(x):
    d = {"k": [1, 2]}
    d[note("k")][note(0)] += note(5)
    holder = [d]
    holder[note(0)]["k"] += [note(9)]
    return x, d


@case()
def try_in_loops_in_functions(x):
    def attempt(n):
        for i in range(n):
            try:
                if i == 1:
                    continue
                if i == 3:
                    return i
                try:
                    if i == 2:
                        raise KeyError(i)
                except ValueError:
                    LOG.append("never")
                else:
                    LOG.append(("else", i))
            except KeyError as error:
                LOG.append(error.args)
            finally:
                LOG.append(("finally", i))
        return "end"

    return x, attempt(2), attempt(6)


@case()
def exception_from_finally_of_a_generator(x):
    def g():
        try:
            yield 1
        finally:
            raise KeyError("from finally")

    it = g()
    next(it)
    try:
        it.close()
    except KeyError as error:
        return x, error.args, type(error.__context__).__name__


@case()
def with_and_generators_interleaved(x):
    @contextlib.contextmanager
    def scope(name):
        LOG.append(("in", name))
        yield
        LOG.append(("out", name))

    def values():
        with scope("gen"):
            yield 1
            yield 2

    with scope("outer"):
        for v in values():
            LOG.append(v)
    return x


@case(lambda: (t(), (lambda: 1, lambda: 2)), lambda: (t(), (lambda: 3, lambda: 4)))
def lambdas_in_arguments(x, fs):
    return x + sum(f() for f in fs), [f() for f in reversed(fs)]


@case(lambda: (t(), {"f": torch.sin, "g": len}), lambda: (t(), {"f": torch.cos, "g": sum}))
def c_functions_in_arguments(x, d):
    return d["f"](x), d["g"]([1, 2])


def _handling(f):
    try:
        raise KeyError("outer")
    except KeyError:
        return f()


@case()
def called_inside_a_handler(x):
    def inner():
        try:
            raise ValueError("inner")
        except ValueError as error:
            return repr(error.__context__)

    return x, _handling(inner)


@case()
def boolean_operators_return_operands(x):
    empty, full = [], [1]
    return x, (empty or full) is full, (full and empty) is empty, (None or 0 or "") == "", not (empty or None)


@case()
def operators_as_functions(x):
    v = [1, 2]
    operator.setitem(v, 0, 5)
    operator.iadd(v, [3])
    operator.delitem(v, 1)
    return (
        x,
        v,
        operator.contains(v, 5),
        operator.getitem(v, 0),
        operator.concat([1], [2]),
        operator.countOf([1, 1], 1),
        operator.truth([]),
    )


test_machinery = case.tests()
