"""Values that follow from integers of the caller's: guards compute them again, and a graph goes on."""

import itertools

import torch
from harness import compiled, number_backend, same
from torch import nn


def agree(function, calls, captures, breaks=0):
    fast, log = compiled(function, number_backend)
    for args in calls:
        copies = [a.clone() for a in args]
        assert same(fast(*args), function(*copies)) and all(map(torch.equal, args, copies))
    assert len(log.captures) == captures and len(log.breaks) == breaks and not log.fallbacks, log.recompiles


def flagged(x, mask):
    hit = (mask > 0).flatten().any().item()
    parts = [] if hit else None
    for _ in range(2):
        x = x * 2
        if hit:
            parts.append(x)
    return x, parts, hit


X, ON, OFF = torch.arange(6.0), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 0])


def test_a_truth_is_asked_in_each_call():
    agree(flagged, [(X, OFF), (X, OFF.clone()), (X, ON), (X, OFF), (X, -ON)], captures=2)


def test_a_truth_that_follows_from_floats_breaks():
    agree(flagged, [(X, OFF.float())], captures=2, breaks=1)


def test_a_truth_of_memory_that_the_graph_writes_to():
    def after(x, mask):
        made = torch.zeros_like(mask)
        made[1:] = mask[:-1]
        made.masked_fill_(made == 7, -1)
        assert torch.all(made >= 0).item(), "negative"
        return x + made.sum()

    def before(x, mask):
        mask.add_(1)
        return flagged(x, mask)

    agree(after, [(X, ON), (X, OFF)], captures=1)
    agree(before, [(X, OFF - 1)], captures=3, breaks=1)


class Padded(nn.Module):
    def __init__(self, left):
        super().__init__()
        self.left, self.step = nn.Buffer(torch.tensor(left)), nn.Buffer(torch.tensor(2))

    def forward(self, x):
        extra = torch.ceil((x.shape[-1] + self.left) / self.step).to(torch.int64) * self.step - x.shape[-1]
        if max(self.left, extra) > 2:
            x = x + 1
        return nn.functional.pad(x, (self.left, extra))


def test_sizes_in_buffers():
    module = Padded(1)
    fast, log = compiled(module, number_backend, fullgraph=True)
    for left in (1, 1, 3, 1, 0):
        module.left.fill_(left)
        assert same(fast(X), module(X))
    assert len(log.captures) == 3, log.recompiles


def test_a_size_that_labels_decide():
    def kept(x, labels):
        found = (labels >= 0).nonzero()
        return x[found.view(-1)].sum(0) if found.size(0) > 0 else x * 0

    agree(
        kept, [(X, torch.tensor([0, -1, 2])), (X, torch.tensor([0, 1, 2])), (X, torch.tensor([-1, -1, -1]))], captures=2
    )


def test_columns_of_nonzero_are_written_in_place():
    def scaled(x):
        places = (x > 1).nonzero().float()
        places /= torch.tensor([2.0, 3.0])[None]
        return places

    agree(scaled, [(torch.arange(6.0).view(2, 3),), (torch.ones(2, 3) * 2,)], captures=1)


def grouped(x, kinds, mask):
    """As models of text and images number their places."""
    parts, place = [], 0
    for kind, group in itertools.groupby(kinds[mask].tolist()):
        size = len(list(group))
        parts.append(torch.arange(size) + place if kind == 0 else torch.full((size,), place))
        place += size if kind == 0 else 1
    return torch.cat(parts), x * place


KINDS, MASK = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([True, True, True, True, False, True])


def test_a_list_is_asked_in_each_call():
    calls = [(X, KINDS, MASK), (X, KINDS.clone(), MASK), (X, KINDS, ~MASK), (X, KINDS, MASK), (X, KINDS, MASK & False)]
    agree(lambda x, kinds, mask: grouped(x, kinds, mask) if mask.shape[0] else x, calls[:4], captures=2)


def test_a_list_that_follows_from_floats_breaks():
    agree(lambda x, kinds: [v for v in (kinds > 0.5).nonzero().flatten().tolist()], [(X, KINDS.float())], 2, breaks=1)


def test_a_list_of_memory_that_the_graph_has_written_to():
    def f(x, kinds):
        kinds.add_(1)
        return x * sum(kinds[kinds > 1].tolist())

    fast, log = compiled(f, number_backend)
    for _ in range(2):
        mine, theirs = KINDS.clone(), KINDS.clone()
        assert same(fast(X, mine), f(X, theirs)) and torch.equal(mine, theirs)
    assert log.breaks


def test_numbers_in_tensors_become_one():
    def f(x):
        ends = [row.max() + 1 - len(row) for row in x]
        return torch.tensor(ends).unsqueeze(1), torch.tensor((x.sum(),), dtype=torch.float64, device="cpu")

    for dtype in (torch.int64, torch.float32, torch.int16):
        agree(f, [(X.reshape(2, 3).to(dtype),), ((X * 3).reshape(2, 3).to(dtype),)], captures=1)
    agree(lambda x: torch.tensor([x.sum(), 1]), [(X,)], captures=2, breaks=1)


class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))
        self.dtype = torch.float32

    def forward(self, x):
        self.inner = self.inner.to(self.dtype)
        return self.inner(x)


def test_a_module_that_is_cast_to_what_it_is():
    module, x = Cast().eval(), torch.stack([X, X + 1])
    fast, log = compiled(module, number_backend)
    with torch.no_grad():
        for dtype in (torch.float32, torch.float32, torch.float64):
            module.to(dtype).dtype = dtype
            assert same(fast(x.to(dtype)), module(x.to(dtype)))
        assert not log.breaks and len(log.captures) == 2
        module.dtype = torch.float32
        assert same(fast(x), module(x)) and module.inner[0].weight.dtype == torch.float32
    assert "moved or cast" in log.breaks[0].reason
