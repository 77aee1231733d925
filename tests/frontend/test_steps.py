"""A whole training step, optimizer included, as one compiled function: right, few breaks, no compile after the first step."""

import pytest
import torch
from harness import compile_into
from torch import nn

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw one by one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
}


def train(make, compile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(x, y):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    fast = compile(step)
    losses = []
    for _ in range(6):
        losses.append(fast(torch.randn(5, 4), torch.randn(5, 1)))
        schedule.step()
    return losses, list(model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step(name):
    logs = []
    compile = compile_into(logs)

    losses, parameters = train(OPTIMIZERS[name], lambda function: function)
    got, trained = train(OPTIMIZERS[name], compile)
    torch.testing.assert_close(got, losses)
    torch.testing.assert_close(trained, parameters)
    (log,) = logs
    assert (
        len(log.captures) == 2 and not log.fallbacks and not log.breaks
    )  # the step that makes the states, and all others
