"""Numbers that Python itself refuses (`1 / 0`, `1 << -1`, `math.sqrt(-1.0)`): in no order of calls is one answered for another."""

import functools
import math
import operator
import random

import pytest
import torch
from harness import compiled, number_backend, same

OPERATIONS = {
    "1 / v": lambda v: 1 / v,
    "7 // v": lambda v: 7 // v,
    "7 % v": lambda v: 7 % v,
    "divmod(7, v)": lambda v: divmod(7, v),
    "v / (v - 2)": lambda v: v / (v - 2),
    "0.0 ** v": lambda v: 0.0**v,
    "v ** -1": lambda v: v**-1,
    "v ** 0.5": lambda v: v**0.5,
    "3 ** v": lambda v: 3**v,
    "1 << v": lambda v: operator.lshift(1, v),
    "256 >> v": lambda v: operator.rshift(256, v),
    "math.sqrt(v)": math.sqrt,
    "math.log(v)": math.log,
    "math.exp(400 * v)": lambda v: math.exp(400 * v),
    "inplace": lambda v: operator.ifloordiv(9, v),
}
NUMBERS = {"ints": [-2, -1, 0, 1, 2, 3, 4, 5], "floats": [-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5]}


def caught(operation, x, v):
    try:
        return x * 2, operation(v)
    except (ArithmeticError, ValueError, TypeError) as error:
        return x + 1, type(error).__name__, str(error)


def uncaught(operation, x, v):
    y = x + 1
    return y, operation(v)


def outcome(function, *args):
    try:
        return function(*args)
    except (ArithmeticError, ValueError, TypeError) as error:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        return type(error).__name__, str(error), last.tb_frame.f_code.co_name, last.tb_lineno


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_call_has_its_own_answer(name, kind):
    rng, x = random.Random(f"{name} {kind}"), torch.tensor([1.0, -2.0])
    for function in (caught, uncaught):
        target = functools.partial(function, OPERATIONS[name])
        for _ in range(2):
            fast, log = compiled(target, number_backend)
            for v in rng.choices(NUMBERS[kind], k=7):
                assert same(outcome(fast, x, v), outcome(target, x, v)), (name, v)
            assert all("program raises" in reason or "math" in reason for *_, reason in log.fallbacks), log.fallbacks


def quotient(x):
    n = x.nonzero().shape[0]
    return x + 1, 12 // n, 12 % n


def quotient_in_try(x):
    n = x.nonzero().shape[0]
    try:
        return x, 12 // (n - 1)
    except ZeroDivisionError:
        return x - 1, -1


@pytest.mark.parametrize("function", [quotient, quotient_in_try])
def test_numbers_that_are_read(function):
    fast, _ = compiled(function, number_backend)
    for values in ([1.0, 2.0], [1.0, 0.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]):
        x = torch.tensor(values)
        assert same(outcome(fast, x), outcome(function, x)), values


CALLS, FACTOR = [], 1


@functools.lru_cache(maxsize=4)
def noted(n):
    CALLS.append(n)
    return n * 2


@functools.lru_cache(maxsize=4)
def of_a_global(n):
    return [FACTOR for _ in range(n)]


@functools.lru_cache(maxsize=4)
def of_arguments(n):
    return math.ceil(n / 2) + sum(i for i in range(3))


@pytest.mark.parametrize(("cached", "graphs"), [(noted, False), (of_a_global, False), (of_arguments, True)])
def test_caches_of_sizes(cached, graphs, monkeypatch):
    """What a cached function does beside its answer, or reads beside its arguments, it does once for each size."""

    def function(x):
        return x.sum() + 1, cached(x.shape[0])

    accounts = []
    for target in (function, None):
        log = None
        if target is None:
            target, log = compiled(function, number_backend)
        cached.cache_clear()
        CALLS.clear()
        seen = []
        for factor, n in enumerate([3, 4, 3, 5, 4, 6, 3]):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            result = target(torch.ones(n))
            seen.append((result[0].item(), str(result[1]), tuple(CALLS)))
        accounts.append(seen)
    assert accounts[0] == accounts[1]
    assert bool(log.breaks) is not graphs
