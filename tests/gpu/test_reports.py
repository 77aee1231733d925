"""What a user can look at: explain before and after calls, with times, and doctor."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

import intarsia
from intarsia.tools.doctor import doctor

GPU = "cuda:0"


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def network(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.layer_norm(F.gelu(torch.mm(x, w)), (w.shape[1],))
    return x.softmax(-1)


def arguments(rows: int = 64, columns: int = 256) -> list[torch.Tensor]:
    return [torch.randn(rows, columns, device=GPU), torch.randn(columns, columns, device=GPU)]


def test_explain_tells_of_recordings() -> None:
    args = arguments()
    assert "will be recorded" in intarsia.explain(network)(*args).graphs[0].recording
    fn = intarsia.compile(network)
    for _ in range(6):
        fn(*args)
    e = intarsia.explain(fn)(*args)
    assert e.graphs[0].recording.startswith("1 recording, ") and not e.fallbacks
    assert all(k.facts is not None and k.facts.device == GPU and k.facts.grid for k in e.kernels)
    assert intarsia.counters()["recorded_bytes"] > 0
    off = intarsia.compile(network, options={"cuda_graphs": False})
    assert intarsia.explain(off)(*args).graphs[0].recording == "not recorded: cuda_graphs is off"


def test_times_of_a_copy_are_those_of_a_copy() -> None:
    x = torch.randn(1 << 26, device=GPU)  # 256 MiB: no cache holds it
    e = intarsia.explain(lambda x: x * 2 + 1, timed=True)(x)
    (times,) = e.graphs[0].times
    (step,) = times.steps
    assert times.device == torch.cuda.get_device_name(GPU) and times.copy > 1e11
    assert step.bytes == 2 * x.nbytes and step.limit == "copy" and 0.7 < step.share < 1.2, times


def test_times_of_a_large_product_are_near_the_product_rate() -> None:
    a, b = (torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    (times,) = intarsia.explain(lambda a, b: torch.mm(a, b), timed=True)(a, b).graphs[0].times
    (step,) = times.steps
    assert step.limit == "product" and step.operations == 2 * 8192**3 and 0.6 < step.share < 1.2, times


def test_times_of_a_program_that_is_recorded() -> None:
    args = arguments(2048, 1024)
    fn = intarsia.compile(network)
    for _ in range(6):
        fn(*args)
    e = intarsia.explain(fn, timed=True)(*args)
    torch.testing.assert_close(e.result, network(*args), rtol=1e-3, atol=1e-3)
    (times,) = e.graphs[0].times
    assert sum(step.calls for step in times.steps) >= 4 and 0 < times.at_the_limits <= times.seconds < 0.1
    assert "of its limit" in str(e) and "in all; " in str(e)


def test_doctor() -> None:
    text = io.StringIO()
    code = doctor(Console(file=text, width=120))
    found = text.getvalue()
    assert code == 0 and "right answer" in found.split("GPU test kernel")[1], found
    assert torch.cuda.get_device_name(0) in found
