"""Sizes that change: twenty batch sizes cost two compiles; a promise that a size changes is kept or an error."""

import torch

import intarsia


def pool(x: torch.Tensor) -> torch.Tensor:
    """The mean of each half of the rows."""
    half = x.shape[0] // 2
    return torch.stack([x[:half].mean(0), x[half:].mean(0)])


fast = intarsia.compile(pool)
with torch.no_grad():
    for rows in range(2, 22):
        x = torch.randn(rows, 16)
        assert torch.allclose(fast(x), pool(x), atol=1e-6)
print("twenty sizes, captured", intarsia.counters()["captures"], "times")


def only_pairs(x: torch.Tensor) -> torch.Tensor:
    """Treats one size in a way of its own."""
    return x + 1 if x.shape[0] == 2 else x


x = torch.randn(2, 16)
intarsia.mark_dynamic(x, 0)
try:
    intarsia.compile(only_pairs)(x)
except intarsia.ConstraintError as error:
    print(error)
