"""Gradients of results whose derivative is zero are zeros, as in eager; of results that an input has no part in there is none."""

import random

import torch

from tests.soak.judge import staged

PARTS = [
    lambda a, b: a.floor(),
    lambda a, b: a.clone().zero_() + b.detach(),
    lambda a, b: a.detach() * b,
    lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: a.sign() * b.round(),
    lambda a, b: (a * 2).data.sqrt() + b * 0,
    lambda a, b: a.sqrt(),
    lambda a, b: a * torch.zeros_like(b),
    lambda a, b: b.new_ones(3) + a.long(),
    lambda a, b: a.clone().copy_(b),
]


def gradients(f, given, used):
    leaves = [t.clone().requires_grad_() for t in given]
    results = f(*leaves)
    total = sum((results[k] * (k + 1)).sum() for k in used if results[k].requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    return [None if t.grad is None else t.grad.tolist() for t in leaves]


@torch.enable_grad()
def test_any_results_of_any_programs():
    rng = random.Random(11)
    with staged("interpreter") as compiled:
        for _ in range(14):
            chosen = [(rng.choice(PARTS), *rng.sample(range(3), 2)) for _ in range(3)]

            def f(*given, chosen=chosen):
                return [part(given[i], given[j]) for part, i, j in chosen]

            fast = compiled(f)
            given = [torch.tensor([0.0, 1.5, 4.0]), torch.tensor([-1.0, 0.25, 2.0]), torch.tensor([3.5, 0.0, -0.5])]
            for used in ([0, 1, 2], [0], [1, 2], [2]):
                wanted, found = (gradients(g, [t.abs() for t in given], used) for g in (f, fast))
                assert str(found) == str(wanted), ([(PARTS.index(p), i, j) for p, i, j in chosen], used)
