"""Values that follow from integers of the caller's: guards compute them again, and a graph goes on."""

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
