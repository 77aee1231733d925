"""Memory of a call: what the plan says, and that views do not keep what they view."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import intarsia

ROWS, WIDTH = 256, 64
ONE = ROWS * WIDTH * 4  # bytes of one activation


class Chain(nn.Module):
    """Library calls whose results are used through views."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            heads = layer(x).view(ROWS, 4, WIDTH // 4).transpose(0, 1)
            x = torch.tanh(heads @ heads.transpose(1, 2) @ heads / ROWS).transpose(0, 1).reshape(ROWS, WIDTH)
        return x


def most_allocated(function, x):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function(x)
    now = most = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def test_results_of_libraries_end_with_their_views():
    model, x = Chain().eval(), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        fast = intarsia.compile(model)
        fast(x)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        assert most_allocated(fast, x) <= most_allocated(model, x)


def test_explain_compares_with_eager():
    def f(x):
        return (torch.exp(x) + 1).sum(1) * 2

    with torch.no_grad():
        (graph,) = intarsia.explain(f)(torch.randn(ROWS, WIDTH)).graphs
    assert graph.memory == ROWS * 4
    assert graph.kept_memory == 0
    assert graph.eager_memory == 2 * ONE


def test_sizes_that_are_not_known():
    with torch.no_grad():
        explained = intarsia.explain(lambda x: torch.exp(x) + 1, dynamic=True)(torch.randn(ROWS, WIDTH))
    assert explained.graphs[0].memory is None
    assert "at most" not in str(explained)
