"""Ways out in the middle of a round, behind writes: what decides may lie behind what it does not need, and the last part of a round is done once more."""

import random

import pytest
import torch
from harness import compiled, number_backend

import intarsia

XS = [torch.linspace(-1, top, 12).reshape(4, 3) for top in (2.0, 0.1, 9.0, -3.0)]


def until_a_number(x):
    """As decoding ends: at a token that is read, or when the cache is full."""
    n, found, token = 0, torch.zeros(4, dtype=torch.long), (x.sum() + 0.3).long().view(1)
    cache = torch.zeros(2, 4, 3)
    part = cache[:1]
    while n < 4:
        part[:, n] = x[n] + token
        token = (part.sum((0, 1)) * 3).argmax(-1, keepdim=True) + token % 5
        if token.item() > 6:
            break
        found[n] = token[0]
        n += 1
    return found, n, cache


def until_it_stays(x):
    centre = x[0].clone()
    for i in range(60):
        new = (centre + x.mean(0)) * 0.5
        if torch.allclose(new, centre, atol=1e-3):
            break
        centre = new
    return centre, i


def the_callers_where_it_stays(x):
    for i in range(60):
        new = x * 0.5 - 0.25 + (x > 4) * 2
        if torch.allclose(new, x, atol=1e-3):
            break
        x = new
    return x, i


def views_of_the_callers(x):
    part, row, n = x[:2], x.t()[0], 0
    while n < 3 and part.sum() < 9:
        part[:, n] = part[:, n] * 2 + row.sum() * 0.1
        n += 1
    return part * 1, row + 0, n


def read_where_it_was_written(x):
    """The condition needs what the round has written before it."""
    out, n = torch.zeros(6), 0
    while n < 5:
        out[n] = x.sum() * 0.1 + n
        if out.sum() > 3:
            break
        out[n + 1] = 1.0
        x = x * 0.9
        n += 1
    return out, n


PROGRAMS = [until_a_number, until_it_stays, the_callers_where_it_stays, views_of_the_callers, read_where_it_was_written]


def check(f, fast, inputs=XS):
    for x in inputs:
        mine, other = x.clone(), x.clone()
        wanted, found = f(mine), fast(other)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(other, mine)
        assert [t is mine for t in wanted] == [t is other for t in found]


@pytest.mark.parametrize("f", PROGRAMS)
def test_each(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    fixed = torch.full((4, 3), -0.5)
    check(f, fast, [*XS, fixed, XS[0]])
    assert not log.fallbacks
    assert f is read_where_it_was_written or len(log.captures) == 1 and not log.breaks


def test_compiled() -> None:
    check(until_a_number, intarsia.compile(until_a_number, fullgraph=True))


def drawn(seed):
    """The source of a random program with writes between its ways out."""
    draw = random.Random(seed)
    part = lambda: draw.choice(["x.max()", "s", "out[0]", "row.sum()", "x[1].norm()", "out.sum() * 0.1"])  # noqa: E731
    asks = lambda: f"{part()} {draw.choice('<>')} {round(draw.uniform(-1, 3), 2)}"  # noqa: E731
    statements = [
        lambda: f"x = x * {draw.choice([0.5, 0.8, -0.7])} + {round(draw.uniform(-0.1, 0.1), 2)}",
        lambda: f"out[n] = {part()}",
        lambda: f"given[:, 1] = {part()} + given[:, 0]",
        lambda: f"s = s * 0.5 + {part()}",
        lambda: f"if {asks()}:\n            break",
        lambda: f"if {asks()}:\n            return out, x * 2, n",
        lambda: "n += 1",
    ]
    body = [draw.choice(statements)() for _ in range(draw.randint(2, 5))] + ["n += 1", "s = s + x.sum() * 0.01"]
    draw.shuffle(body)
    head = draw.choice(["while n < 5:", f"while n < 5 and {asks()}:", "for _ in range(3):"])
    lines = ["def f(given):", "    x, n, s, out, row = given + 0.01, 0, given[0, 0] * 1, torch.zeros(12), given[0]"]
    return "\n".join([*lines, f"    {head}", *(f"        {line}" for line in body), "    return out, x, n"])


def test_random_programs() -> None:
    breaks = 0
    for seed in range(16):
        names: dict = {"torch": torch}
        exec(drawn(seed), names)
        fast, log = compiled(names["f"], number_backend, on_error="raise")
        try:
            check(names["f"], fast, [x for x in XS])
        except Exception as error:
            raise AssertionError(drawn(seed)) from error
        breaks += bool(log.breaks)
    assert breaks < 12
