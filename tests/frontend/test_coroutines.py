"""Coroutines that captured code makes and drives itself: await, async with, async for, what they raise, when they are dropped."""

import collections.abc
import inspect
import types
import warnings

import pytest
import torch
from harness import compiled, number_backend, same


class Step:
    """Something to wait for."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return got


def run(coroutine, send=lambda value: value):
    """Drive a coroutine to its end: what it gave up on the way, and what it returned."""
    seen, value = [], None
    while True:
        try:
            given = coroutine.send(value)
        except StopIteration as stop:
            return seen, stop.value
        seen.append(given)
        value = send(given)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    async def __aenter__(self):
        self.log.append("in")
        await Step("entering")
        return self

    async def __aexit__(self, kind, value, trace):
        self.log.append(kind and kind.__name__)
        await Step("leaving")
        return self.swallow


class Counter:
    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.n:
            raise StopAsyncIteration
        self.n -= 1
        return await Step(self.n)


async def doubled(x):
    got = await Step("first")
    return x * 2, got


async def nested(x):
    y, got = await doubled(x)
    log = []
    async with Manager(log) as m, Manager(log, True):
        log.append(m.swallow)
        raise KeyError(1)
    total = 0
    async for k in Counter(3):
        total += k
    else:
        log.append("else")
    return y + total, got, log


def awaits(x):
    return run(nested(x))


@types.coroutine
def by_generator():
    got = yield "plain"
    return got


def of_a_generator(x):
    async def outer():
        return await by_generator()

    return x + 1, run(outer(), lambda value: len(value))


def thrown(x):
    log = []

    async def inner():
        try:
            await Step("waiting")
        except ValueError as error:
            log.append(str(error))
            return 5
        finally:
            log.append("finally")

    async def outer():
        return await inner() + 1

    coroutine = outer()
    coroutine.send(None)
    try:
        coroutine.throw(ValueError("in"))
    except StopIteration as stop:
        log.append(stop.value)
    closed = outer()
    closed.send(None)
    closed.close()
    outer().close()
    return x * 2, log


def errors(x):
    found = []

    def note(make):
        try:
            run(make())
        except Exception as error:
            found.append((type(error).__name__, str(error), type(error.__cause__).__name__))

    class Bare:
        pass

    class HalfManager:
        async def __aenter__(self):
            pass

    class BadAwait:
        def __await__(self):
            return 5

    class BadNext:
        def __aiter__(self):
            return self

        def __anext__(self):
            return 5

    class BadIter:
        def __aiter__(self):
            return 5

    async def plain(value):
        await value

    async def within(value):
        async with value:
            pass

    async def over(value):
        async for _ in value:
            pass

    async def stops():
        raise StopIteration(3)

    for function, value in (
        *((plain, 5), (plain, Bare()), (plain, BadAwait()), (within, Bare()), (within, HalfManager())),
        *((over, Bare()), (over, BadNext()), (over, BadIter())),
    ):
        note(lambda function=function, value=value: function(value))
    note(stops)
    used = plain(Step(1))
    run(used)
    note(lambda: used)
    fresh = doubled(x)
    try:
        fresh.send(1)
    except TypeError as error:
        found.append(str(error))
    fresh.close()
    return x, found


def what_it_is(x):
    coroutine, generator = doubled(x), (k for k in "ab")
    found = [
        *(
            isinstance(coroutine, kind)
            for kind in (types.CoroutineType, collections.abc.Coroutine, types.GeneratorType)
        ),
        *(isinstance(coroutine, kind) for kind in (collections.abc.Awaitable, collections.abc.Iterator)),
        *(inspect.iscoroutine(coroutine), inspect.isawaitable(coroutine), inspect.isgenerator(generator)),
        *(type(coroutine) is types.CoroutineType, inspect.iscoroutinefunction(doubled), coroutine.__name__),
        *(coroutine.cr_running, coroutine.cr_await, hasattr(coroutine, "gi_code_") or coroutine.cr_code.co_name),
    ]
    coroutine.send(None)
    found += [type(coroutine.cr_await).__name__, coroutine.cr_frame is not None]
    coroutine.close()
    return x + 1, found, coroutine.cr_frame


@pytest.mark.parametrize("function", [awaits, of_a_generator, thrown, errors, what_it_is])
def test_one_graph(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
        assert same(fast(x), function(x))
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


def test_never_awaited():
    def drops(x):
        doubled(x)
        return x + 1

    def held(x):
        kept = doubled(x)
        return x * (kept is not None)

    for function in (drops, held):
        fast, _ = compiled(function, number_backend)
        for _ in range(3):
            counts = []
            for one in (function, fast):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    one(torch.ones(1))
                counts.append([str(m.message) for m in said])
            assert counts[0] == counts[1] == ["coroutine 'doubled' was never awaited"]


def test_what_outlives_or_breaks():
    def given_out(x):
        return doubled(x + 1)

    def half_way(x):
        coroutine = doubled(x)
        return coroutine.send(None), coroutine

    async def printing(x):
        await Step("before")
        print(end="")
        y = x * 3
        await Step("behind")
        return y

    def broken(x):
        return run(printing(x + 1))

    fast, _ = compiled(given_out, number_backend)
    for _ in range(2):
        assert same(run(fast(torch.ones(1))), run(given_out(torch.ones(1))))
    fast, _ = compiled(half_way, number_backend)
    first, coroutine = fast(torch.ones(1))
    assert first == "first"
    with pytest.raises(StopIteration) as stop:
        coroutine.send(4)
    assert same(stop.value.value, (torch.full((1,), 2.0), 4))
    fast, _ = compiled(broken, number_backend)
    for _ in range(2):
        assert same(fast(torch.ones(1)), broken(torch.ones(1)))

    async def target(x):
        return x + await Step(1)

    fast, _ = compiled(target, number_backend)
    assert same(run(fast(torch.ones(1)), lambda v: 2), run(target(torch.ones(1)), lambda v: 2))
