"""Loops that tensors' values decide are loops of the graph: values, aliases and what is written are eager's, the rest breaks with its reason."""

import re

import pytest
import torch
from harness import compiled, number_backend
from torch import nn
from torch.utils import _pytree as pytree

import intarsia
from intarsia.frontend.torch_private.regions import TAKES_ROUNDS

XS = [torch.linspace(-1, top, 12).reshape(4, 3) for top in (2.0, 0.1, 9.0, 40.0)]
cell = nn.GRUCell(3, 3).requires_grad_(False)


def while_it_is_large(x):
    while x.max() > 0.3:
        x = x * 0.5
    return x + 1


def given_back(x):
    while x.max() > 0.3:
        x = x * 0.5
    return x


def counted(x):
    n = 0
    while x.max() > 0.3 and n < 3:
        x = x * 0.5
        n += 1
    return x + 1, n


def left_early(x):
    for i in range(5):
        x = x * 0.5 - i
        if x.max() < 0.7:
            break
    return x, i


def left_early_or_else(x):
    for _ in range(3):
        x = x * 0.5
        if x.max() < 0.3:
            break
    else:
        x = x + 3
    return x + 1


def returned_from(x):
    for _ in range(5):
        x = x * 0.5
        if x.max() < 0.3:
            return x * 3
    return x


def two_ways_out(x):
    for i in range(20):
        x = x * 0.7
        if x.max() < 0.2:
            break
        x = x + 0.01
        if x.min() > -0.1:
            break
    return x, i


def continued(x):
    x = x + 0.1
    while x.max() > 0.3:
        if x.min() < 0:
            x = x + 1.5
            continue
        x = x * 0.5
    return x + 1


def nested(x):
    rounds = 0
    while x.max() > 0.3:
        while x.sum() > 4:
            x = x * 0.8
        x = x * 0.9
        rounds += 1
    return x, rounds


def written(x):
    out, n, last = torch.zeros(12), 0, torch.zeros(())
    while x.max() > 0.3:
        out[n] = last = x.sum()
        x = x * 0.5
        n = n + 1
    return out, n, last * 2


def written_argument(x):
    while x.max() > 0.3:
        x.mul_(0.5)
    return x + 1


def pair_carried(x):
    state = x * 2, (x.sum(), 0)
    while state[0].max() > 0.3:
        h, (total, n) = state
        state = h * 0.5, (total + h.sum(), n + 1)
    return state


def with_range_of_steps(x):
    seen = torch.zeros(10)
    for i in range(9, 0, -2):
        seen[i] = x.sum()
        x = x * 0.4
        if x.max() < 0.3:
            break
    return seen, i


def recurrent(x):
    h, done = torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool)
    for _ in range(16):
        h = torch.where(done[:, None], h, cell(x, h))
        done = done | (h.abs().amax(-1) > 0.35)
        if done.all():
            break
    return h, done


def decoded(x):
    """Greedy decoding with a static cache."""
    cache, out, n = torch.zeros(6, 3), torch.zeros(6, dtype=torch.long), 0
    row = x[0]
    while n < 6 and not (row > 1).all():
        cache[n] = row
        row = row * 1.5 + cache.mean(0) * 0.1
        out[n] = row.argmax()
        n += 1
    return out, cache, n


def decoded_into_an_argument(x):
    n = 0
    while n < 3 and x.sum() < 30 and x.max() < 20:
        x[:, n] = x[:, n] * 2 + 1
        n += 1
    return x.sum(), n


def two_caches(x):
    first, second, n = torch.zeros(5, 3), torch.ones(5, 3), 0
    while x.max() > 0.3 and n < 5:
        first[n], second[n] = x[0] + second[n - 1], x[1] + first.sum(0)
        x = x * 0.5
        n += 1
    return first, second, n


def read_behind_the_write(x):
    out, before, n = torch.zeros(5, 3), torch.zeros(5, 3), 0
    while x.max() > 0.3 and n < 5:
        before = out.clone()
        out[n] = x[0] + out[n - 1]
        x = x * 0.5 + before.sum() * 0.01
        n += 1
    return out, before


def loops_in_loops(x):
    out, n = torch.zeros(4, 3), 0
    while x.max() > 0.3 and n < 4:
        out[n] = x[0]
        y = out * 1
        while y.sum() > 1:
            y = y * 0.5
        x = x * 0.5 + y.mean() * 0.1
        n += 1
    return out, x + 1


def index_that_the_length_guards(x):
    n, row = 0, x.flatten()
    while n < 12 and row[n] < 1:
        n += 1
    return n, row * 2


def views_of_what_is_written(x):
    out = torch.zeros(4, 3)
    row = out[0]
    while x.max() > 0.3:
        out[0] = x[0]
        x = x * 0.5 + row.sum() * 0
    return out, row


class Halving(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Buffer(torch.tensor(0.5))

    def step(self, x):
        while x.amax() > 0.3:
            x = x * self.scale
        return x + 0

    def forward(self, x):
        return self.step(x) + self.step(x * 2)


in_a_method = Halving()
ONE_GRAPH = [
    while_it_is_large,
    given_back,
    counted,
    left_early,
    left_early_or_else,
    returned_from,
    two_ways_out,
    continued,
]
LOOPS_WITH_CACHES = [decoded, decoded_into_an_argument, two_caches, read_behind_the_write, loops_in_loops]
ONE_GRAPH += [
    *LOOPS_WITH_CACHES,
    nested,
    written,
    written_argument,
    pair_carried,
    with_range_of_steps,
    recurrent,
    index_that_the_length_guards,
    views_of_what_is_written,
    in_a_method,
]


def check(f, calls, fast):
    for x in calls:
        mine, other = x.clone(), x.clone()
        wanted, found = f(mine), fast(other)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(other, mine)
        kinds = [type(v) for v in pytree.tree_leaves(wanted)]
        assert [type(v) for v in pytree.tree_leaves(found)] == kinds
        for a, b in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True):
            assert (a is mine) == (b is other)
            assert not isinstance(a, torch.Tensor) or a.stride() == b.stride()


@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, XS, fast)
    assert len(log.captures) == 1 and not log.breaks and not log.fallbacks


@pytest.mark.parametrize("f", [counted, left_early, nested, written, recurrent, *LOOPS_WITH_CACHES])
def test_one_program(f) -> None:
    fast = intarsia.compile(f, fullgraph=True)
    check(f, XS, fast)
    report = intarsia.explain(f)(XS[0])
    assert len(report.graphs) == 1 and "runs in eager" not in str(report)


def another_dtype(x):
    while x.max() > 0.3:
        x = (x * 0.5).double()
    return x


def another_size(x):
    while x.max() > 0.3:
        x = torch.cat([x * 0.5, x[:1] * 0.1])
    return x


def another_kind(x):
    last = None
    while x.max() > 0.3:
        last = x
        x = x * 0.5
    return x, last


def prints(x):
    while x.max() > 0.3:
        print("a round")
        x = x * 0.5
    return x


def grows(x):
    seen = []
    while x.max() > 0.3:
        x = x * 0.5
        seen.append((x, 1))
    return seen


def draws(x):
    while x.max() > 0.3:
        x = x * torch.rand(()) * 0.5
    return x


def bound_in_the_loop(x):
    while x.max() > 0.3:
        y = x
        x = x * 0.5
    return x, (y if x.min() < -5 else x)


REASONS = {
    another_dtype: "x has the dtype torch.float32 before a round of the loop and torch.float64 behind it",
    another_size: "x has the sizes",
    another_kind: "last is None before a round of the loop and a Tensor behind it",
    prints: 'print\\("a round"\\)',
    grows: "a tuple is appended to a list in a loop",
    draws: "rand draws random numbers in the loop",
    bound_in_the_loop: "y is bound on one side",
}


@pytest.mark.parametrize("f", REASONS)
def test_breaks_with_its_reason(f) -> None:
    fast, log = compiled(f, number_backend)
    for x in XS:
        results = []
        for run in (f, fast):
            torch.manual_seed(0)
            results.append(run(x.clone()))
        torch.testing.assert_close(*results)
    reasons = " ".join(b.reason for b in log.breaks)
    assert re.search(REASONS[f], reasons), reasons


def test_what_a_round_writes_is_not_copied() -> None:
    """The memory that the loop carries is copied once, in front of it."""
    host = "".join(graph.code["host.py"] for graph in intarsia.explain(decoded)(XS[0]).graphs)
    assert "select_scatter" not in host and host.count("empty_strided((6, 3)") == 1


@pytest.mark.skipif(not TAKES_ROUNDS, reason="this torch has no scan that gives these gradients")
def test_gradients_go_through() -> None:
    fast, log = compiled(left_early, number_backend)
    grads = []
    for run in (left_early, fast):
        x = XS[2].clone().requires_grad_()
        run(x)[0].sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    assert not log.breaks
