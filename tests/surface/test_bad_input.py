"""What compile refuses, what it says, and that the uncompiled function stays usable."""

import functools
import re

import pytest
import torch

import intarsia

X = torch.randn(3)


def generator(x):
    yield x


async def coroutine(x):
    return x


async def stream(x):
    yield x


@pytest.mark.parametrize(
    ("function", "kind"), [(generator, "a generator"), (coroutine, "an async function"), (stream, "an async generator")]
)
def test_functions_whose_call_runs_nothing(function, kind):
    with pytest.raises(TypeError, match=f"{function.__name__} is {kind}") as caught:
        intarsia.compile(function)
    assert __file__ in str(caught.value) and len(str(caught.value).splitlines()) <= 15


class Yields(torch.nn.Module):
    def forward(self, x):
        yield x


class Called:
    async def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("thing", "name"),
    [(functools.partial(generator, X), "generator"), (Yields(), "Yields.forward"), (Called(), "Called.__call__")],
    ids=["partial", "module", "object"],
)
def test_objects_whose_call_runs_nothing(thing, name):
    with pytest.raises(TypeError, match=f"{name} is an? "):
        intarsia.compile(thing)


@pytest.mark.parametrize("thing", [3, "f", [len], property(generator)], ids=["int", "str", "list", "property"])
@pytest.mark.parametrize("name", ["compile", "explain", "lower"])
def test_not_callable(name, thing):
    with pytest.raises(TypeError, match=f"intarsia.{name} takes a function or an nn.Module"):
        getattr(intarsia, name)(thing)


def test_classes():
    with pytest.raises(TypeError, match=r"Yields is a class(.|\n)*intarsia.compile\(Yields\(...\)\)"):
        intarsia.compile(Yields)
    with pytest.raises(TypeError, match="Called is a class"):
        intarsia.compile(Called)


def two(a, b, *, c=1):
    return a + b + c


class Two(torch.nn.Module):
    def forward(self, a, b):
        return a + b


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X,), {}), ((X, X, X), {}), ((X, X), {"d": 1}), ((X,), {"a": X}), ((), {}), ((X, X), {"c": 1, "e": 2})],
)
@pytest.mark.parametrize("target", [two, Two()], ids=["function", "module"])
def test_wrong_arguments_give_the_functions_own_error(target, args, kwargs):
    with pytest.raises(TypeError) as expected:
        target(*args, **kwargs)
    with pytest.raises(TypeError) as found:
        intarsia.compile(target)(*args, **kwargs)
    # Every parameter may get a default later, for which CPython needs one in the signature: it then says "from 0 to 2".
    assert re.sub(r"from \d+ to ", "", str(found.value)) == str(expected.value)


class Deeper(torch.nn.Module):
    def forward(self, x):
        return self(x + 1)


def down(x):
    return down(x + 1)


def there(x):
    return back(x + 1)


def back(x):
    return there(x * 2)


def after_a_break(x):
    print(end="")
    return after_a_break(x + 1)


@pytest.mark.parametrize("endless", [down, there, after_a_break, Deeper()], ids=["one", "two", "break", "module"])
def test_recursion_without_end(endless):
    with torch.no_grad(), pytest.raises(RecursionError):
        intarsia.compile(endless, backend="eager")(X)
    torch.testing.assert_close(intarsia.compile(lambda x: x + 1)(X), X + 1)


def test_unknown_mode_and_option():
    with pytest.raises(ValueError, match="did you mean 'max-autotune'"):
        intarsia.compile(two, mode="max-autotun")
    with pytest.raises(ValueError, match="unknown option 'thread'; did you mean 'threads'"):
        intarsia.compile(two, options={"thread": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamic": "yes"}, "dynamic takes None, True or False"),
        ({"fullgraph": "no"}, "fullgraph takes True or False"),
        ({"options": ["threads"]}, "options takes a dict of settings, not list"),
        ({"passes": [3]}, "derive from Pass, or files with such classes, not int"),
        ({"backend": None}, "a name of list_backends\\(\\) or a callable, not NoneType"),
        ({"mode": 3}, "unknown mode 3"),
        ({"options": {3: 3}}, "unknown option '3'"),
        ({"options": {"cache": "maybe"}}, "the option 'cache' takes true or false, not 'maybe'"),
        ({"options": {"threads": "many"}}, "the option 'threads' takes a number of threads.*, not 'many'"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_settings_of_the_wrong_kind(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        intarsia.compile(two, **settings)
    torch.testing.assert_close(two(X, X), X + X + 1)


def test_a_promise_that_the_code_breaks():
    def only_four(x):
        return x + 1 if x.shape[0] == 4 else x

    for mark in (intarsia.mark_dynamic, torch._dynamo.mark_dynamic):
        x = torch.arange(4.0)
        mark(x, 0)
        with pytest.raises(
            intarsia.ConstraintError, match="marked dynamic, but the program needs it to be 4"
        ) as caught:
            intarsia.compile(only_four)(x)
        assert "if x.shape[0] == 4" in str(caught.value) and len(str(caught.value).splitlines()) <= 15
        torch.testing.assert_close(only_four(x), x + 1)


def test_partials_with_tensors():
    fast = intarsia.compile(functools.partial(two, X, c=3), fullgraph=True)
    torch.testing.assert_close(fast(X), X + X + 3)
