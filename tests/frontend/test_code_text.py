"""compile, eval and exec of known text in captured code: the names that it sees and stores, its errors, what outlives it."""

import sys
import types
import warnings

import pytest
import torch
from harness import compiled, number_backend, same

COUNT = 3


def evaluated(x):
    y = x + 1  # noqa: F841
    return eval("y * 2 + COUNT"), eval(" \t1 + 2"), eval(b"4"), [eval("n * n", {"n": n}) for n in range(3)]


def executed(x):
    names = {}
    exec("def f(t):\n    global seen\n    seen = t + k\n    return seen * 2\nk = 2\nclass C:\n    a = k + 1\n", names)
    result = names["f"](x)
    exec("del k\nfound = sorted(n for n in ('a', 'b'))", names)
    return (
        result,
        names["seen"],
        names["C"]().a,
        "k" in names,
        names["found"],
        names["C"].__module__,
        "__builtins__" in names,
    )


def two_namespaces(x):
    outer, inner = {"t": x, "n": 1}, {"n": 2}
    exec("m = n + 1\nt2 = t * n\nif True:\n    n = 5", outer, inner)
    return inner, outer["n"], eval("n + m", outer, inner)


class Recorded(dict):
    def __init__(self):
        super().__init__()
        self.log = []

    def __getitem__(self, name):
        self.log.append(name)
        return dict.__getitem__(self, name)

    def __setitem__(self, name, value):
        self.log.append((name, value))
        dict.__setitem__(self, name, value)


def mapping_as_locals(x):
    names = Recorded()
    exec("a = 1\nb = a + 1", {}, names)
    return x * names.log[-1][1], names.log


def variables_of_the_frame(x):
    n, unused = 2, 7  # noqa: F841

    def inner():
        return n + eval("n")

    n = 4
    return eval("x * n"), inner(), eval("(lambda: 5)() + unused")


def stored_beside(x):
    n = 1
    exec("n = 2\nfresh = n + 1")
    try:
        fresh_seen = eval("fresh")
    except NameError as error:
        fresh_seen = str(error)
    return x + n, fresh_seen


def errors(x):
    found = []
    for text in ("1 +", "x y", "(", "f(a=1, a=2)", "nonlocal q", "return 1"):
        try:
            compile(text, "<t>", "exec")
        except SyntaxError as error:
            found.append((type(error).__name__, error.msg, error.filename, error.lineno, error.offset, error.text))
    for text in ("1 / 0", "missing_name", "x.missing", "[][1]"):
        try:
            eval(text)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    for arguments in (("1", 5), ("1", {}, 5), (5,)):
        try:
            eval(*arguments)
        except TypeError as error:
            found.append(str(error))
    return x * 2, found


def code_objects(x):
    code = compile("a = x * 3", "<c>", "exec")
    names = {"x": x}
    exec(code, names)
    expression = compile("a + 1", "<c>", "eval")
    return names["a"], eval(expression, names), code.co_names, eval(code_objects_helper.__code__, {})


def code_objects_helper():
    return 11


def generators_and_closures(x):
    names = {}
    exec("def g(n):\n    def add(t): return t + n\n    for k in range(n):\n        yield add(k)\n", names)
    return x + sum(names["g"](3)), list(names["g"](2))


def imported(x):
    names = {}
    exec("import math\nfrom operator import add as plus\nr = plus(math.floor(2.5), 1)", names)
    return x * names["r"]


def own_builtins(x):
    try:
        eval("len([])", {"__builtins__": {}})
    except NameError as error:
        return x + 1, str(error), eval("len([1])", {"__builtins__": {"len": lambda v: 9}})


PROGRAMS = [
    *(evaluated, executed, two_namespaces, mapping_as_locals, variables_of_the_frame, stored_beside, errors),
    *(code_objects, generators_and_closures, imported, own_builtins),
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_one_graph(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    for x in (torch.arange(3.0), torch.ones(3), torch.arange(4.0)):
        assert same(fast(x), function(x))
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


def test_names_that_change_between_calls(monkeypatch):
    fast, log = compiled(evaluated, number_backend)
    for count in (3, 4, 3):
        monkeypatch.setitem(globals(), "COUNT", count)
        assert same(fast(torch.ones(2)), evaluated(torch.ones(2)))
    assert not log.breaks

    def text_changes(x, text):
        return eval(text) + 1

    fast, log = compiled(text_changes, number_backend)
    for text in ("x * 2", "x - 1", "x * 2"):
        assert same(fast(torch.ones(2), text), text_changes(torch.ones(2), text))
    assert not log.breaks


def test_globals_of_the_module():
    def writes(x):
        exec("global WRITTEN\nWRITTEN = 5")
        return x + WRITTEN  # noqa: F821

    for function in (writes, compiled(writes, number_backend)[0]):
        globals().pop("WRITTEN", None)
        assert same(function(torch.ones(2)), torch.full((2,), 6.0))
        assert globals().pop("WRITTEN") == 5


def test_a_break_inside():
    def function_breaks(x):
        names = {"seen": []}
        exec("def f(t):\n    seen.append(t.sum().item() > 2 and 'yes')\n    return t * 2\n", names)
        y = x + 1
        y = names["f"](y)
        return y * 3, names["seen"]

    def text_breaks(x):
        a = 1  # noqa: F841
        y = x + 1
        exec("print(end='')\nb = a + 1")
        return y * 2, eval("a")

    def then_locals(x):
        a = x + 1
        exec("fresh = 4")
        return a, sorted(locals()), "fresh" in locals()

    for function in (function_breaks, text_breaks, then_locals):
        fast, _ = compiled(function, number_backend)
        for x in (torch.ones(2), torch.zeros(2)):
            assert same(fast(x), function(x))


def test_what_outlives_the_call():
    def given_out(x):
        names = {}
        exec("def f(t):\n    global n\n    n += 1\n    return t + n\nn = 0", names)
        return names["f"](x), names["f"]

    fast, _ = compiled(given_out, number_backend)
    for _ in range(3):
        result, function = fast(torch.ones(2))
        assert same(result, torch.full((2,), 2.0))
        assert same(function(torch.ones(2)), torch.full((2,), 3.0))

    def namespace(x):
        names = {"x": x}
        exec("y = x * 2", names)
        return names

    fast, _ = compiled(namespace, number_backend)
    found = fast(torch.ones(2))
    assert found["__builtins__"] is namespace(torch.ones(2))["__builtins__"]
    assert same(found["y"], torch.full((2,), 2.0)) and list(found) == ["x", "__builtins__", "y"]

    def of_a_class(x):
        names = {}
        exec("class C:\n    def m(self, t): return t + k\nk = 4", names)
        return names["C"]()

    fast, _ = compiled(of_a_class, number_backend)
    assert same(fast(torch.ones(1)).m(torch.ones(1)), torch.full((1,), 5.0))


def test_dicts_of_the_callers():
    def stores(x, names):
        exec("y = t * 2\nn += 1", {"t": x}, names)
        return names["y"]

    def as_globals(x, names):
        exec("y = n * 2", names)
        return x + names["y"]

    for function in (stores, as_globals):
        fast, _ = compiled(function, number_backend)
        for n in (1, 2):
            first, second = {"n": n}, {"n": n}
            assert same(fast(torch.ones(2), first), function(torch.ones(2), second))
            for names in (first, second):
                names.pop("__builtins__", None)
            assert same(first, second)


def test_warnings_and_futures():
    def warns(x):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            compile("1 is 2", "<w>", "eval")
        return x * len(said)

    fast, _ = compiled(warns, number_backend)
    for _ in range(3):
        assert same(fast(torch.ones(2)), torch.ones(2))

    names = {}
    code = "from __future__ import annotations\ndef f(x):\n    ns = {}\n    exec('def g(a: missing): return a', ns)\n    return x + 1, ns['g'].__annotations__\n"
    exec(code, names)
    fast, log = compiled(names["f"], number_backend)
    assert same(fast(torch.ones(1)), names["f"](torch.ones(1)))
    assert not log.breaks

    def not_inherited(x):
        ns = {}
        try:
            exec("def g(a: missing): return a", ns)
        except NameError as error:
            return x + 1, str(error)

    fast, _ = compiled(not_inherited, number_backend)
    assert same(fast(torch.ones(1)), not_inherited(torch.ones(1)))


def test_code_objects_are_what_they_say():
    def made(x):
        return x, compile("1 + 1", "<m>", "eval")

    fast, _ = compiled(made, number_backend)
    assert isinstance(fast(torch.ones(1))[1], types.CodeType)
    assert eval(fast(torch.ones(1))[1]) == 2
    assert sys.getrefcount(fast(torch.ones(1))[1]) > 0


# ---- locals() ----


def variables(x, first=1, *rest, key=2):
    unbound = 3
    del unbound
    before = dict(locals())

    def inner(step):
        seen = first + step
        return sorted(locals()), locals()["seen"]

    first += 1
    return x * before["first"], sorted(before), inner(2), sorted(vars()), dir(), locals()["first"]


def one_dict(x):
    a = 1
    names = locals()
    names["fresh"] = 7
    names["a"] = 9
    before = a, names["a"]
    a = 2
    again = locals()
    b = 3  # noqa: F841
    return x * a, before, names is again, names["a"], "b" in names, "fresh" in locals(), names.get("names") is names


def stored_and_seen(x):
    a = 1  # noqa: F841
    exec("c = a + 1\na = 5")
    names = locals()
    return x, names.get("c"), names["a"], "c" in names


def in_a_class(x):
    class Body:
        a = 1
        names = sorted(n for n in locals() if not n.startswith("_"))
        locals()["b"] = 2

    return x + Body.b, Body.names


def builtin_dirs(x):
    return x + len(dir(int)), "append" in dir([]), dir(1) == dir(int)


@pytest.mark.parametrize("function", [variables, stored_and_seen, in_a_class, builtin_dirs])
def test_variables_of_a_frame(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    for x in (torch.arange(3.0), torch.ones(3), torch.arange(4.0)):
        assert same(fast(x), function(x))
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


def test_breaks_behind_locals():
    def broken(x):
        a = 1
        names = locals()
        y = x * 2
        print(end="")
        a = 2
        return y, locals()["a"], names["a"], sorted(names), a

    def in_a_call(x):
        return broken(x + 1), sorted(locals())

    for function in (broken, in_a_call, one_dict):
        fast, _ = compiled(function, number_backend)
        for x in (torch.ones(2), torch.zeros(2)):
            assert same(fast(x), function(x))
