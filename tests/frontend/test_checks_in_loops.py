"""What raises in, in front of and behind loops that values end is a check: one graph, eager's errors with their messages, and its results."""

import random

import pytest
import torch
from harness import compiled, number_backend, said
from torch import nn

import intarsia
from intarsia.frontend.torch_private.regions import TAKES_ROUNDS

XS = [torch.linspace(-1, top, 12).reshape(4, 3) for top in (2.0, 0.1, 9.0, 40.0, 90.0)]
XS.append(XS[0] * float("nan"))
cell = nn.GRUCell(3, 3)


def newton(x):
    for i in range(12):
        step = (x**3 - 2) / (3 * x**2)
        x = x - step
        if step.norm() < 1e-3:
            return x, i
    raise RuntimeError(f"no convergence, {step.norm():.3f} left")


def in_a_round(x):
    while x.max() > 0.3:
        x = x * 0.5
        if x.min() > -0.1:
            raise ValueError(f"small: {x.min():.3f}")
    return x


def in_front(x):
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    while not x.max() < 0.3:
        x = x * 0.5
    return x


ASSERTED = """
def asserted(x):
    n = 0
    while x.max() > 0.3:
        assert x.sum() < 100, f"round {n}"
        x = x * 0.5
        n += 1
        assert (x > -5).all()
    return x + 1, n
"""
names: dict = {}
exec(ASSERTED, names)  # pytest writes the asserts of this file anew
asserted = names["asserted"]


def with_loops_behind(x):
    """An inner loop that would never end where the check fails."""
    for i in range(5):
        x = x * 0.7
        if x.max() > 25:
            raise OverflowError("too large")
        y = x.amax()
        while y < 25 and y != y.floor():
            y = torch.where(y > 20, y.floor(), y + 0.5)
        x = x + y * 0.01
        if x.sum() < 3:
            break
    return x, i, y


def indexes_behind(x):
    table, total, n = torch.arange(5.0), torch.zeros(()), 0
    i = x.max().nan_to_num().long()
    while total < 6:
        if i > 4:
            raise IndexError(f"too far in round {n}")
        total = total + table[i] + 1
        i = i + 1
        n += 1
    return total, n


def returns_in_a_block(x):
    with torch.no_grad():
        for t in range(9):
            x = x * 0.5
            if x.norm() < 2.2:
                return x, t
        return x * 2, 9


def code_behind(x):
    for t in range(4):
        x = x * 0.5
        if x.norm() < 2.2:
            return x + t
    y = torch.exp(x) @ x.t()
    z = y.softmax(-1).sum(0) @ x
    for j in range(3):
        z = z * 1.5 + j
        if z.max() > 30:
            return z.expand(4, 3).contiguous()
    return torch.cat([x[:2], x[2:] * 2]) + z


def both_raise(x):
    for i in range(6):
        x = x * 0.5
        if x.max() > 30:
            raise ValueError("large", i)
        if x.max() < 0.3:
            return x * 2
    raise RuntimeError("never")


def helper(x):
    if (x > 60).any():
        raise ValueError("above")
    return x * 0.4


def in_a_function(x):
    for _ in range(7):
        x = helper(x)
        if x.amax() < 0.5:
            break
    return x + 1


def caught(x):
    try:
        while x.max() > 0.3:
            x = x * 0.5
            if x.min() < -0.6:
                raise ValueError
    except ValueError:
        return x - 7
    return x + 1


ONE_GRAPH = [newton, in_a_round, in_front, asserted, with_loops_behind, indexes_behind, returns_in_a_block]
ONE_GRAPH += [code_behind, both_raise, in_a_function]


def check(f, fast, inputs=XS):
    for x in inputs:
        wanted, found = said(lambda x=x: f(x.clone()), lambda x=x: fast(x.clone()))
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("f", [*ONE_GRAPH, caught])
def test_errors_and_results_are_eagers(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, fast, [*XS, *reversed(XS)])
    assert not log.fallbacks
    assert f is caught or len(log.captures) == 1 and not log.breaks


@pytest.mark.parametrize("f", [newton, asserted, with_loops_behind, code_behind])
def test_compiled(f) -> None:
    check(f, intarsia.compile(f, fullgraph=True))


def trained(x):
    h = torch.zeros(4, 3)
    for t in range(6):
        h = cell(x, h)
        if h.abs().max() > 0.99:
            raise ValueError(f"saturated after {t}")
        if h.norm() > 1.5:
            return h.sum()
    raise RuntimeError("too quiet")


@pytest.mark.skipif(not TAKES_ROUNDS, reason="this torch has no scan that gives these gradients")
def test_gradients() -> None:
    with torch.no_grad():  # a cell whose rounds return for some inputs, and are too quiet for others
        for k, p in enumerate(cell.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)) * 0.5)
    fast, log = compiled(trained, number_backend, on_error="raise")
    grads = []
    for run in (trained, fast):
        for x in (XS[0], XS[2], XS[1] * 0):
            cell.zero_grad(set_to_none=True)
            (result,) = said(lambda x=x, run=run: run(x))
            if isinstance(result, torch.Tensor):
                result.backward()
            grads.append((result, *(p.grad for p in cell.parameters())))
    for a, b in zip(grads[:3], grads[3:], strict=True):
        assert a[0] == b[0] if isinstance(a[0], str) else True
        torch.testing.assert_close(b[1:], a[1:])
    assert len({type(g[0]) for g in grads}) == 2
    assert not log.breaks and not log.fallbacks


def drawn(seed):
    """The source of a random program with one loop."""
    draw = random.Random(seed)
    number = lambda: round(draw.uniform(-1, 3), 2)  # noqa: E731
    part = lambda: draw.choice(["x.max()", "x.min()", "x.sum() * 0.1", "x.mean()", "x[0, 0]", "x[1].norm()"])  # noqa: E731
    asks = lambda: f"{part()} {draw.choice('<>')} {number()}"  # noqa: E731
    statements = [
        lambda: f"x = x * {draw.choice([0.5, 0.8, -0.7])} + {round(draw.uniform(-0.1, 0.1), 2)}",
        lambda: f"if {asks()}:\n            raise ValueError(f'{draw.randint(0, 9)} {{n}}')",
        lambda: f"assert {asks()}, n",
        lambda: f"if {asks()}:\n            break",
        lambda: f"if {asks()}:\n            return x * {number()}",
        lambda: f"if {asks()}:\n            x = x + {number()}",
    ]
    head = f"while {asks()} and n < 9:" if draw.random() < 0.5 else "for _ in range(9):"
    body = [draw.choice(statements)() for _ in range(draw.randint(1, 4))] + ["n += 1"]
    draw.shuffle(body)
    before = [draw.choice(statements[1:3])().replace("            ", "        ")] if draw.random() < 0.4 else []
    behind = [f"if {asks()}:\n        raise KeyError(n)"] if draw.random() < 0.4 else []
    lines = ["def f(x):", "    x, n = x + 0.01, 0", *(f"    {line}" for line in before), f"    {head}"]
    return "\n".join(
        [*lines, *(f"        {line}" for line in body), *(f"    {line}" for line in behind), "    return x * 2"]
    )


def test_random_programs(tmp_path) -> None:
    """Few break: a way out in the middle of a round with more than a few operators before it."""
    breaks = 0
    for seed in range(16):
        names: dict = {}
        exec(compile(drawn(seed), str(tmp_path / f"{seed}.py"), "exec"), names)
        fast, log = compiled(names["f"], number_backend, on_error="raise")
        try:
            check(names["f"], fast)
        except AssertionError as error:
            raise AssertionError(drawn(seed)) from error
        breaks += bool(log.breaks)
    assert breaks < 8


def two_zeros(x):
    while True:
        x = x * 0.5
        if x.max() < 0.3:
            return 0.0
        if x.min() > -0.2:
            return -0.0


def test_ways_out_with_constants_that_compare_equal() -> None:
    fast, _ = compiled(two_zeros, number_backend, on_error="raise")
    results = [repr(two_zeros(x)) for x in XS[:-1]]
    assert [repr(fast(x)) for x in XS[:-1]] == results and len({*results}) == 2
