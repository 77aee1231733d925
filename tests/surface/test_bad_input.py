"""What compile refuses, what it says, and that the uncompiled function stays usable."""

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


@pytest.mark.parametrize("thing", [3, "f", None.__class__, [len]], ids=str)
def test_not_callable(thing):
    if callable(thing):
        return
    with pytest.raises(TypeError, match="takes a function or an nn.Module"):
        intarsia.compile(thing)


def two(a, b, *, c=1):
    return a + b + c


class Two(torch.nn.Module):
    def forward(self, a, b):
        return a + b


@pytest.mark.parametrize(
    ("args", "kwargs"), [((X,), {}), ((X, X, X), {}), ((X, X), {"d": 1}), ((X,), {"a": X}), ((), {}), ((X, X), {"c": 1, "e": 2})]
)
@pytest.mark.parametrize("target", [two, Two()], ids=["function", "module"])
def test_wrong_arguments_give_the_functions_own_error(target, args, kwargs):
    with pytest.raises(TypeError) as expected:
        target(*args, **kwargs)
    with pytest.raises(TypeError) as found:
        intarsia.compile(target)(*args, **kwargs)
    assert str(found.value) == str(expected.value)


def test_recursion_without_end():
    def down(x):
        return down(x + 1)

    with torch.no_grad(), pytest.raises(RecursionError):
        intarsia.compile(down, backend="eager")(X)
    torch.testing.assert_close(intarsia.compile(lambda x: x + 1)(X), X + 1)


def test_unknown_mode_and_option():
    with pytest.raises(ValueError, match="did you mean 'max-autotune'"):
        intarsia.compile(two, mode="max-autotun")
    with pytest.raises(ValueError, match="unknown option 'thread'; did you mean 'threads'"):
        intarsia.compile(two, options={"thread": 2})
