"""Random numbers are eager's: their values, their order in memory, and the state of the generator afterwards."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.soak.judge import staged


def unused(x):
    F.dropout(x)
    torch.rand_like(x)
    return x * torch.rand_like(x)


def transposed(x):
    return F.dropout(x.t()), F.dropout(x, 1.0), F.gumbel_softmax(x.t()), F.dropout((x * 1)[:, ::2])


def in_place(x):
    y = x.t() * 2
    with torch.no_grad():
        y.uniform_()
        (x * 1)[:, ::2].normal_()
    return y + torch.rand(()), y


RECURRENT = nn.RNN(20, 4, num_layers=2, dropout=0.3)
ENCODER = nn.TransformerEncoderLayer(20, 2, 8, dropout=0.1)
CASES = [unused, transposed, in_place, lambda x: RECURRENT(x)[0], lambda x: ENCODER(x.view(2, 3, 20))]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", CASES, ids=["unused", "transposed", "in place", "recurrent", "encoder"])
def test_numbers_and_state(case, gradients):
    found = []
    with staged("interpreter") as compiled:
        for function in (case, compiled(case, options={"random": "eager"})):
            torch.manual_seed(7)
            x = torch.randn(6, 20, requires_grad=gradients)
            with torch.set_grad_enabled(gradients):
                results = function(x)
            found.append((results if isinstance(results, tuple) else (results,), torch.rand(2)))
    (wanted, later), (results, later_too) = found
    assert torch.equal(later, later_too)
    for a, b in zip(wanted, results, strict=True):
        torch.testing.assert_close(b, a)
        assert a.stride() == b.stride()
