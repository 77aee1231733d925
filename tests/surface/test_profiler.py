"""torch's profiler sees graphs, kernels and the program's own ranges, and costs nothing when it is not active."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import intarsia


def seen(function: object, x: torch.Tensor) -> list[str]:
    """The names of the ranges of one call."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, torch.no_grad():
        function(x)  # type: ignore[operator]
    return [event.name for event in profiler.events()]


def test_ranges_of_graphs_kernels_and_of_the_program() -> None:
    @intarsia.compile
    def model(x: torch.Tensor) -> torch.Tensor:
        with record_function("encoder"):
            y = (x + 1).softmax(0)
        return y * 2

    x = torch.randn(8, 4)
    with torch.no_grad():
        plain = model(x)
        for _ in range(2):  # the first one compiles
            names = seen(model, x)
        assert "encoder" in names
        assert len([n for n in names if n.startswith("intarsia: model (test_profiler.py:")]) == 2
        assert [n for n in names if n.startswith("intarsia kernel ")]
        torch.testing.assert_close(model(x), plain)


def test_a_small_graph_that_is_written_into_its_function_is_seen_too() -> None:
    model = intarsia.compile(lambda x: x + 1)
    x = torch.randn(4)
    model(x)
    names = seen(model, x)
    assert [n for n in names if n.startswith("intarsia: <lambda>")] and [
        n for n in names if n.startswith("intarsia kernel ")
    ]
    assert not [n for n in seen(lambda x: x, x) if n.startswith("intarsia")]
    torch.testing.assert_close(model(x), x + 1)


def test_ranges_of_a_whole_graph() -> None:
    """Where the graph may not be split, the program's ranges are around all of it."""

    @intarsia.compile(fullgraph=True)
    def model(x: torch.Tensor) -> torch.Tensor:
        with record_function("encoder"):
            y = x + 1
            with record_function("inner", "with words"):
                y = y.softmax(0)
        return y * 2

    x = torch.randn(8, 4)
    with torch.no_grad():
        model(x)
    names = seen(model, x)
    assert names.count("encoder") == names.count("inner") == 1
    assert len([n for n in names if n.startswith("intarsia: model")]) == 1
