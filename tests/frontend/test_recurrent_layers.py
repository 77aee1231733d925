"""torch's recurrent layers: short ones with gradients are written out, long ones are the library's, between two graphs."""

import pytest
import torch
from torch import nn

import intarsia
from intarsia.frontend.calls.torch_calls import WRITTEN_OUT, _steps_with_gradients


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
def test_steps(kind, first):
    layer = kind(3, 4, num_layers=2, bidirectional=True, batch_first=first)
    states = torch.zeros(4, 5, 4)
    args = (torch.ones(5, 7, 3), [states, states] if kind is nn.LSTM else states, layer._flat_weights)
    args += (True, 2, 0.0, True, True, first)
    with torch.enable_grad():
        assert _steps_with_gradients(args) == (7 if first else 5) * 4
        assert _steps_with_gradients((args[0], args[1], [w.detach() for w in args[2]], *args[3:])) == 0
        packed = torch.ones(9, 3), torch.tensor([5, 4]), args[1], args[2], True, 2, 0.0, True, True
        assert _steps_with_gradients(packed) == 0
    with torch.no_grad():
        assert _steps_with_gradients(args) == 0


@pytest.mark.parametrize(("steps", "breaks"), [(4, 0), (WRITTEN_OUT + 1, 1)])
def test_gradients(steps, breaks):
    layer, x = nn.LSTM(3, 4), torch.randn(steps, 2, 3)

    def step(x):
        return layer(x * 2)[0].sin().sum()

    intarsia.reset()
    compiled = intarsia.compile(step)
    with torch.enable_grad():
        for _ in range(2):
            found, expected = (torch.autograd.grad(f(x), list(layer.parameters())) for f in (compiled, step))
            torch.testing.assert_close(found, expected)
    counts = intarsia.counters()
    assert (counts["breaks"], counts["fallbacks"]) == (breaks, 0)
    with torch.no_grad():
        intarsia.reset()
        torch.testing.assert_close(intarsia.compile(step)(x), step(x))
        assert intarsia.counters()["breaks"] == 0


def test_sequences_of_several_lengths_are_captured_once_more_only(caplog):
    layer = nn.GRU(3, 4)

    def step(x):
        return layer(x * 2)[0].sin().sum()

    intarsia.reset()
    compiled, captures = intarsia.compile(step), []
    with torch.enable_grad(), caplog.at_level("WARNING", "intarsia"):
        for steps in (20, 24, 31, 40):
            x = torch.randn(steps, 2, 3)
            found, expected = (torch.autograd.grad(f(x), list(layer.parameters())) for f in (compiled, step))
            torch.testing.assert_close(found, expected)
            captures.append(intarsia.counters()["captures"])
    assert "over 20 steps" in caplog.text and "inf" not in caplog.text
    assert captures[1] == captures[-1]
