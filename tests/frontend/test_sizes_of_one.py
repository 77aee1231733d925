"""Sizes that values decide may be 1 where an operator looks at other dimensions: no check, no eager, the same program."""

import torch

import intarsia


def rows_of(mask, x):
    """Rows by the two results of torch.where, which is nonzero, unbind and squeeze of a dimension of 1."""
    place, row = torch.where(mask[None])
    return x[None, row].reshape(-1, x.shape[1]) * (place + 1)[:, None]


def squeezed(mask, x):
    chosen = x[mask].unsqueeze(1)
    return chosen.squeeze(1).sum(0), chosen.unsqueeze(0).squeeze((0, 2)), chosen.squeeze(-2)


def written(mask, x):
    _, row = torch.where(mask[None])
    made = torch.zeros_like(x)
    return made.index_add_(0, row, x[row] * 2)


def spread(mask, x):
    return x.t()[:, mask].var(0), x[mask].std(1)


def test_one_or_none_or_more():
    def function(mask, x):
        return rows_of(mask, x), squeezed(mask, x), written(mask, x), spread(mask, x)

    intarsia.reset()
    compiled = intarsia.compile(function)
    x = torch.randn(6, 4)
    for count in (3, 1, 0, 6, 1):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[torch.randperm(6)[:count]] = True
        torch.testing.assert_close(compiled(mask, x), function(mask, x), equal_nan=True)
    counts = intarsia.counters()
    assert (counts["captures"], counts["breaks"], counts["fallbacks"]) == (1, 0, 0)


def test_all_dimensions_may_be_squeezed_only_where_none_is_one():
    """`squeeze()` looks at each size: a program takes sizes other than 1, and eager has the others."""

    def function(mask, x):
        return x[mask].squeeze() + 1

    intarsia.reset()
    compiled = intarsia.compile(function)
    x = torch.randn(6, 4)
    for count in (3, 1, 2):
        mask = torch.arange(6) < count
        torch.testing.assert_close(compiled(mask, x), function(mask, x))
