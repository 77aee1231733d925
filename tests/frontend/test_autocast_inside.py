"""Operators that are composed of others, under autocast and with gradients: autocast casts what they are composed of, where it does not cast their own arguments."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia

CELLS = {
    "lstm": (nn.LSTM(4, 6, num_layers=2, bidirectional=True), (2, 3, 4)),
    "gru": (nn.GRU(4, 6), (2, 3, 4)),
    "rnn": (nn.RNN(4, 6), (2, 3, 4)),
    "lstm_cell": (nn.LSTMCell(4, 6), (3, 4)),
    "gru_cell": (nn.GRUCell(4, 6), (3, 4)),
}


def same(got, wanted):
    got, wanted = (torch.utils._pytree.tree_leaves(v) for v in (got, wanted))
    assert [(t.dtype, t.shape) for t in got] == [(t.dtype, t.shape) for t in wanted]
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def composed(a, b, target):
    half = a.bfloat16()
    return (
        torch.einsum("ij,jk->ik", a, b),
        torch.tensordot(a, b, 1),
        torch.linalg.multi_dot([a, b, a]),
        torch.inner(a, b),
        torch.matrix_power(a, 3),
        F.nll_loss(half, target),
        nn.NLLLoss()(F.log_softmax(half, -1), target),
        F.cross_entropy(half, target),
        F.cosine_similarity(half, b.bfloat16()),
        half.norm(),
        (a @ b.t()).softmax(-1),
    )


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()


def run(function, *args, gradients=False):
    fast = intarsia.compile(function, fullgraph=True)
    with torch.set_grad_enabled(gradients), torch.autocast("cpu"):
        same(fast(*args), function(*args))
    assert not intarsia.counters()["fallbacks"]


def test_operators_composed_of_others():
    run(composed, torch.randn(4, 4), torch.randn(4, 4), torch.tensor([1, 0, 2, 3]))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_recurrent_layers(name, gradients):
    cell, shape = CELLS[name]
    try:
        with torch.autocast("cpu"):
            cell(torch.randn(shape))
    except RuntimeError as error:
        pytest.skip(f"eager has no such layer on this processor: {error}")
    run(cell, torch.randn(shape), gradients=gradients)


def test_no_cast_where_autocast_is_off_inside():
    def f(a, b):
        with torch.autocast("cpu", enabled=False):
            c = torch.einsum("ij,jk->ik", a, b)
        return c, torch.einsum("ij,jk->ik", a, b)

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu"):
        same(intarsia.compile(f)(a, b), f(a, b))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_recurrent_layer_in_training(needs_gradient):
    """torch's trace of it takes oneDNN's form for inference, or (2.11, 2.12) gives states with a dimension too many."""
    layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True)
    fast, x = intarsia.compile(layer, fullgraph=True), torch.randn(1, 5, 4, requires_grad=needs_gradient)
    found = []
    for call in (fast, layer):
        layer.zero_grad()
        result, (h, c) = call(x)
        assert h.shape == c.shape == (4, 5, 6)
        (result.sum() + (h * c).sum()).backward()
        found.append([result, h, c, *(p.grad.clone() for p in layer.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not intarsia.counters()["fallbacks"]


@pytest.mark.skipif(torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="this processor has such layers")
def test_a_recurrent_layer_that_the_library_refuses():
    layer, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    said = []
    for call in (layer, intarsia.compile(layer)):
        with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError) as raised:
            call(x)
        said.append(str(raised.value))
    assert said[0] == said[1]


def _stepped(lin: nn.Module, x: Tensor) -> Tensor:
    y = lin(x)
    with torch.no_grad():
        lin.weight.mul_(2)
    return y


def _cast_twice(lin: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return _stepped(lin, x), x @ lin.weight, lin(x)


def _apart(lin: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        first = _stepped(lin, x)
    with torch.autocast("cpu", torch.bfloat16):
        return first, lin(x)


def _without_a_cache(lin: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return _stepped(lin, x), lin(x)


@pytest.mark.parametrize("program", [_cast_twice, _apart, _without_a_cache, _stepped], ids=lambda f: f.__name__)
def test_weights_that_are_written_between_two_casts(program: Any) -> None:
    """Eager takes the first one again, until autocast ends."""
    fast = intarsia.compile(program, backend="eager")
    for around in (False, True):
        answers = []
        for function in (program, fast):
            torch.manual_seed(0)
            lin = nn.Linear(4, 4)
            with torch.autocast("cpu", torch.bfloat16, enabled=around), torch.enable_grad():
                found = [function(lin, torch.ones(2, 4)) for _ in range(2)]
            answers.append(str(found))
        assert answers[0] == answers[1]
