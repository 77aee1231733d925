"""Loops over the places that `nonzero()` finds: one graph of conditionals, right for no place, one, and all; what is none of these breaks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, number_backend
from torch import Tensor, nn

import intarsia


class Experts(nn.Module):
    def __init__(self, named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = [nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 4)) for _ in range(4)]
        self.named = named
        self.experts = nn.ModuleDict({f"expert_{k}": m for k, m in enumerate(made)}) if named else nn.ModuleList(made)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        mask = F.one_hot(chosen[:, None], 4).permute(2, 1, 0)
        hit = torch.greater(mask.sum((-1, -2)), 0).nonzero()
        out = torch.zeros_like(x)
        for e in hit:
            slot, token = torch.where(mask[e].squeeze(0))
            expert = self.experts[f"expert_{e[0]}"] if self.named else self.experts[e]
            out.index_add_(0, token, expert(x[None, token].reshape(-1, 4)))
        return out


CHOSEN = [[0, 1, 2, 3, 0], [2, 2, 2, 2, 2], [3, 0, 3, 3, 0], [1, 1, 0, 1, 2], []]


def found(fast: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad():
        return fast(*args)


@pytest.mark.parametrize("named", [False, True])
def test_experts_are_one_graph(named: bool):
    model = Experts(named).eval()
    fast, log = compiled(model, number_backend, on_error="raise")
    for chosen in CHOSEN[:-1]:
        x = torch.randn(5, 4)
        torch.testing.assert_close(found(fast, x, torch.tensor(chosen)), found(model, x, torch.tensor(chosen)))
    assert not log.breaks and len(log.captures) == 1


def counts(x: Tensor, mask: Tensor) -> Any:
    """A number, a tensor and two that are written to."""
    total, n, out, seen = torch.zeros(3), 0, torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    for e in mask.nonzero():
        out[e] = x[e] * 2
        seen += e
        total = total + out.sum(0) * e
        n = n + 1
    return total, n, out, seen


def decides(x: Tensor, mask: Tensor) -> Any:
    out = x * 1
    for (e,) in torch.argwhere(mask):
        if x[e].sum() > 0:
            out.index_add_(0, e[None], x[:1])
        else:
            out.mul_(0.5)
    return out


def passes_some(x: Tensor, mask: Tensor) -> Any:
    out = torch.zeros(3)
    for e in mask.nonzero():
        if int(e) == 2:
            continue
        out = out + x[e[0]]
    return out


def mask_is_written(x: Tensor, mask: Tensor) -> Any:
    """Later places are those that were found before."""
    mask, out = mask.clone(), torch.zeros(3)
    for e in mask.nonzero():
        mask.fill_(0)
        out = out + x[e[0]]
    return out, mask


def found_is_written(x: Tensor, mask: Tensor) -> Any:
    hit, out = mask.nonzero(), torch.zeros(3)
    for e in hit:
        hit += 1
        out = out + e
    return out


def part_is_read(x: Tensor, mask: Tensor) -> Any:
    out = torch.zeros(4, 3)
    row = out[0]
    for e in mask.nonzero():
        out += x[e]
        out += row.clone()
    return out


def place_is_kept(x: Tensor, mask: Tensor) -> Any:
    last = torch.zeros(1, dtype=torch.int64)
    for e in mask.nonzero():
        last = e
    return last * 2


def argument_is_written(x: Tensor, mask: Tensor) -> Any:
    for e in mask.nonzero():
        x[e] = 0.0
    return x + 1


def left(x: Tensor, mask: Tensor) -> Any:
    out = torch.zeros(3)
    for e in mask.nonzero():
        out = out + x[e[0]]
        if out.sum() > 1:
            break
    return out


def grows(x: Tensor, mask: Tensor) -> Any:
    return [x[e[0]] for e in mask.nonzero()]


def appended(x: Tensor, mask: Tensor) -> Any:
    out: list[Tensor] = []
    for e in mask.nonzero():
        out.append(x[e[0]])
    return out


def draws(x: Tensor, mask: Tensor) -> Any:
    out = torch.zeros(3)
    for e in mask.nonzero():
        out = out + torch.rand(3) * x[e[0]]
    return out


def other_sizes(x: Tensor, mask: Tensor) -> Any:
    out = x[:1]
    for e in mask.nonzero():
        out = torch.cat([out, x[e]])
    return out


def in_two_dimensions(x: Tensor, mask: Tensor) -> Any:
    out = torch.zeros(())
    for i, j in mask.reshape(2, 2).nonzero():
        out = out + x[i, j]
    return out


ONE_GRAPH = [counts, passes_some, mask_is_written]
BREAKS = [
    *(decides, found_is_written, part_is_read, place_is_kept, argument_is_written, left, grows, appended),
    *(draws, other_sizes, in_two_dimensions),
]
MASKS = [[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize("program", [*ONE_GRAPH, *BREAKS], ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., Any]):
    fast, log = compiled(program, number_backend, on_error="raise")
    for seed, mask in enumerate(MASKS):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        results = []
        for run in (program, fast):
            given = x.clone(), torch.tensor(mask)
            torch.manual_seed(seed)
            results.append((found(run, *given), given))
        torch.testing.assert_close(results[1], results[0])
    assert bool(log.breaks) is (program in BREAKS), [b.reason for b in log.breaks]


@pytest.mark.parametrize("seed", range(6))
def test_random_rounds(seed: int):
    """Statements drawn of what a round may do and what it may not: as eager, in one graph where all are of the first kind."""
    rng = random.Random(seed)
    may = [
        *("a = a + x[e[0]]", "b += x[e]", "b[e] = a", "n = n + int(e)", "a = torch.where(a > 0, a, x[e[0]] * n)"),
        *("b.index_add_(0, e, a[None])", "c = b.sum(0)\n  a = a - c", "b.mul_(0.5)", "a = names[int(e)] * a"),
    ]
    not_ = ["seen.append(1)", "a = a + torch.rand(3)", "kept = e", "hit.add_(0)", "x.mul_(1.5)"]
    lines = rng.choices(may, k=3) + ([rng.choice(not_)] if seed % 3 == 2 else [])
    rng.shuffle(lines)
    text = (
        "def program(x, mask):\n a, b, n, seen, names = torch.zeros(3), torch.ones(4, 3), 0, [], [1, 2, 3, 4]\n"
        " kept, hit = torch.zeros(1), mask.nonzero()\n for e in hit:\n"
        + "".join(f"  {line}\n" for line in lines)
        + " return a, b, n, len(seen), kept * 2\n"
    )
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    test_program(names["program"], seed % 3 != 2, text)


def test_program(program: Callable[..., Any] = counts, whole: bool = True, text: str = "") -> None:
    fast, log = compiled(program, number_backend, on_error="raise")
    for seed, mask in enumerate(MASKS):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        given, ours = [(x.clone(), torch.tensor(mask)) for _ in range(2)]
        torch.manual_seed(seed)
        wanted = found(program, *given), given
        torch.manual_seed(seed)
        torch.testing.assert_close((found(fast, *ours), ours), wanted, msg=text or None)
    assert bool(log.breaks) is not whole, (text, [b.reason for b in log.breaks])


def test_gradients_are_eagers():
    model = Experts()
    fast, log = compiled(model, number_backend, on_error="raise")
    for chosen in CHOSEN[:2]:
        grads = []
        for run in (model, fast):
            model.zero_grad()
            x = torch.ones(5, 4, requires_grad=True)
            run(x, torch.tensor(chosen)).pow(2).sum().backward()
            grads.append([x.grad, *(p.grad for p in model.parameters())])
        for a, b in zip(*grads, strict=True):
            assert (a is None) is (b is None)
            assert a is None or torch.allclose(a, b)
    assert any("and gradients are wanted through it" in b.reason for b in log.breaks)


def test_the_compiler_takes_the_conditionals():
    """A place is a number where it is an index, in the sides as well: no graph is left to eager."""
    before = intarsia.counters()["fallbacks"]
    fast = intarsia.compile(passes_some)
    for mask in MASKS:
        given = torch.randn(4, 3), torch.tensor(mask)
        torch.testing.assert_close(found(fast, *given), found(passes_some, *given))
    assert intarsia.counters()["fallbacks"] == before
