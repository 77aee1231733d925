"""`for i in range(t.item())`: loops over as many numbers as a tensor says are loops of the graph."""

import pytest
import torch
from harness import compiled, number_backend
from torch.utils import _pytree as pytree

import intarsia

COUNTS = [3, 0, 1, 7, -2, 3]
XS = [torch.linspace(-1, 2, 12).reshape(4, 3)]


def halved(x, n):
    for _ in range(n.item()):
        x = x * 0.5
    return x + 1


def of_the_largest(x, n):
    for i in range(int((torch.arange(3) * n).max())):
        x = x * 0.5 + i
    return x + 0


def from_another(x, n):
    for i in range(-1, n.item() + 2):
        x = x + i * n
    return x + 0, n


def rows(x, n):
    out = torch.zeros(8, 3)
    for i in range(n.item()):
        out[i] = x[0] + i
    return out


def in_each_other(x, n):
    k = n.item()
    for i in range(k):
        for j in range(k):
            x = x + i * j
    return x * 2


def summed(x, n):
    total = 0
    for i in range(n.item()):
        total += i
    return total, x + 1


def left_early(x, n):
    for _ in range(n.item()):
        if x.max() > 9:
            break
        x = x * 2
        if x.sum() > 20:
            break
    else:
        x = x * 5
    return x + 1


def returned_from(x, n):
    for i in range(n.item()):
        x = x + 1
        if i == 2:
            return x * 3
    return x + 1


def in_a_while(x, n):
    while x.max() > 0.3:
        for _ in range(n.clamp(0, 9).item()):
            x = x * 0.9
            if x.sum() < 3:
                break
        x = x * 0.8
    return x + 1


def recurrent(x, n):
    h = torch.zeros(3)
    for t in range(n.clamp(0, 4).item()):
        h = torch.tanh(h + x[t])
    return h


def raising(x, n):
    for i in range(n.item()):
        if i > 3:
            raise ValueError(i)
        x = x + 1
    return x + 1


ONE_GRAPH = [halved, of_the_largest, from_another, rows, in_each_other, summed, left_early, returned_from, in_a_while]
ONE_GRAPH += [recurrent, raising]


def collected(x, n):
    return [x * i for i in range(n.item())]


def last_number(x, n):
    for i in range(n.item() + 3):
        x = x * 0.5
    return x, i


def by_twos(x, n):
    for i in range(0, n.item(), 2):
        x = x + i
    return x + 1


def grows(x, n):
    for _ in range(n.item()):
        x = torch.cat([x, x])
    return x + 1


def printed(x, n):
    for _ in range(n.item()):
        print(end="")
        x = x + 1
    return x + 1


def outcome(f, n):
    x = XS[0].clone()
    try:
        return [*pytree.tree_leaves(f(x, torch.tensor(n))), x]
    except Exception as error:
        return [repr(error), x]


def check(f, fast):
    for n in COUNTS:
        wanted, found = outcome(f, n), outcome(fast, n)
        assert list(map(type, found)) == list(map(type, wanted))
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, fast)
    assert len(log.captures) == 1 and not log.breaks and not log.fallbacks


@pytest.mark.parametrize("f", [collected, last_number, by_twos, grows, printed])
def test_others_are_unrolled_for_each_number_or_break(f) -> None:
    fast, log = compiled(f, number_backend)
    check(f, fast)
    assert len(log.captures) > 1 and not log.fallbacks


def test_the_count_is_read_by_the_loop_alone() -> None:
    """No number is read of the tensor: the loop compares what it has counted with it."""
    fast = intarsia.compile(recurrent, fullgraph=True)
    check(recurrent, fast)
    host = "".join(graph.code["host.py"] for graph in intarsia.explain(recurrent)(XS[0], torch.tensor(3)).graphs)
    assert "while_loop" in host and ".item()" not in host
