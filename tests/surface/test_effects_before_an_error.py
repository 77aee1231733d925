"""A graph that raises when it runs: what the program did before the line that raises has happened, and nothing else."""

import pytest
import torch

import intarsia

X = torch.arange(8.0)


def outcome(function, index, gradients=False):
    buffer, done = torch.zeros(3), []
    x = X.clone().requires_grad_(gradients)
    try:
        result = function(x, torch.tensor([index]), buffer, done)
    except Exception as error:
        result = type(error).__name__
    return [result if isinstance(result, str) else result.tolist(), buffer.tolist(), [str(d) for d in done]]


def mutations(x, i, buffer, done):
    buffer.add_(1)
    y = x[i]
    buffer.mul_(5)
    return y


def lists(x, i, buffer, done):
    done.append("before")
    buffer[0] = 4
    y = x.index_select(0, i)
    done.append("after")
    return y * buffer.sum()


def attributes(x, i, buffer, done):
    buffer.mul_(0).add_(x[:3].detach())
    done.append(1)
    total = x.gather(0, i) + buffer[0]
    buffer += 1
    done.append(2)
    return total


@pytest.mark.parametrize("function", [mutations, lists, attributes])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_effects_up_to_the_line(function, gradients, backend):
    if backend == "eager" and function is not mutations:
        pytest.skip("a graph of torch's own has written to its inputs by then")
    fast = intarsia.compile(function, backend=backend)
    for index in (2, 100, 3, -100, 100, 1):
        assert outcome(fast, index, gradients) == outcome(function, index, gradients)
