"""Floats that change between calls, and floats that are computed from sizes: computed in Python, passed to the graph."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from harness import Log, check, compiled, graph_backend, leaves
from torch import nn

from intarsia.counters import counters
from intarsia.frontend.runtime.callable import compile_callable
from intarsia.graph_compiler import default_backend

RATES = [0.1, 0.3, -0.25, 1e-3, 2.0, 0.1 + 0.2, 0.0, 1.0]
SIZES = [8, 5, 17, 13, 12, 9, 6]


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


def numbers_backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return graph_backend(module, inputs)


numbers_backend.takes_floats = True  # type: ignore[attr-defined]
BACKENDS = {"graph": numbers_backend, "compiled": default_backend}


def runs(function: Any, calls: list[tuple[Any, ...]], backend: str, captures: int = 2) -> Log:
    log, before = Log(), counters()["fallbacks"]
    fast = compile_callable(function, backend=BACKENDS[backend], observer=log)
    for args in calls:
        mine, theirs = ([a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2))
        got, want = leaves(fast(*mine)), leaves(function(*theirs))
        assert [(t.dtype, t.shape, t.stride()) for t in got] == [(t.dtype, t.shape, t.stride()) for t in want]
        half = any(
            t.dtype in (torch.float16, torch.bfloat16) for t in want
        )  # eager rounds some numbers to half precision first
        rtol, atol = (0, 0) if backend == "graph" else (2e-2, 2e-3) if half else (1e-5, 1e-5)
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        torch.testing.assert_close(leaves(mine), leaves(theirs), rtol=rtol, atol=atol, equal_nan=True)
    assert not log.fallbacks and counters()["fallbacks"] == before
    assert len(log.captures) == captures, log.recompiles
    return log


OPERATIONS = {
    "mul": lambda x, r: x * r,
    "add and sub": lambda x, r: (x + r, r - x, x - r),
    "div": lambda x, r: x / (r + 3.0),
    "compare": lambda x, r: (x > r, x <= r),
    "clamp": lambda x, r: x.clamp(min=r),
    "full": lambda x, r: torch.full((3,), r) + x.shape[0],
    "where": lambda x, r: torch.where(x > 0, x, r),
    "arithmetic in Python": lambda x, r: x * (1.0 - r * 0.1) ** 2 / math.sqrt(abs(r) + 0.5),
    "result": lambda x, r: (x * r, r * 2 + 1, -r),
}
FLOATING = {
    "alpha": lambda x, r: torch.add(x, x + 1, alpha=r),
    "in place": lambda x, r: x.add_(x * 2, alpha=-r),
    "pow": lambda x, r: x.abs() ** r,
    "addcdiv": lambda x, r: x.addcdiv(x, x.abs() + 1, value=-r),
    "addcmul": lambda x, r: x.addcmul(x, x + 1, value=r),
    "lerp": lambda x, r: x.lerp(x + 1, r),
    "leaky_relu": lambda x, r: F.leaky_relu(x, r),
    "masked_fill": lambda x, r: x.masked_fill(x > 0, r),
    "full_like": lambda x, r: torch.full_like(x, r) + x,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_float_argument(name, dtype, backend):
    x = (torch.randn(5, 7) * 3).to(dtype)
    runs(OPERATIONS[name], [(x, r) for r in RATES], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_a_float_argument_of_an_operator(name, dtype, backend):
    x = torch.randn(5, 7).to(dtype)
    # Fake tensors of torch 2.11 take the square apart from other powers.
    asked = 1 if name == "pow" and torch.__version__ < (2, 13) else 0
    runs(FLOATING[name], [(x, r) for r in RATES if r != 1.0], backend, captures=2 + asked)


@pytest.mark.parametrize("backend", BACKENDS)
def test_floats_in_containers_and_objects(backend):
    def f(x, options):
        return x * options["lr"] + options["betas"][0]

    runs(f, [(torch.randn(3), {"lr": r, "betas": (r * 2, 0.9)}) for r in RATES], backend)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / self.temperature


def test_an_attribute_of_a_module():
    module, log = Scaled(), Log()
    fast = compile_callable(module, backend=default_backend, observer=log)
    for temperature in (1.0, 0.5, 0.7, 2.0):
        module.temperature = temperature
        x = torch.randn(2, 4)
        torch.testing.assert_close(fast(x), module(x))
    assert len(log.captures) == 2


def test_an_optimizer_step():
    def step(p, g, m, v, rate, n):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        scale = rate * math.sqrt(1 - 0.999**n) / (1 - 0.9**n)
        p.addcdiv_(m, v.sqrt() + 1e-8, value=-scale)
        return p

    calls = [(*(torch.rand(6) for _ in range(4)), 0.1 / n, n) for n in range(1, 9)]
    runs(step, calls, "compiled")


SIZED = {
    "sqrt": lambda x: x / math.sqrt(x.shape[0]),
    "power": lambda x: x * x.shape[0] ** -0.5,
    "quotient": lambda x: x * (0.1 + 0.2 * (1 / x.shape[0])),
    "float": lambda x: x * float(x.shape[0]),
    "part of a size": lambda x: x[: int(x.shape[0] * 0.5)] + x.shape[0] / 2,
    "rounded": lambda x: x[: round(x.shape[0] * 0.33)] * math.floor(x.shape[0] * 0.7),
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 3)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZED)
def test_floats_of_sizes(name, backend):
    runs(SIZED[name], [(torch.randn(n, 3),) for n in SIZES], backend)


def test_upsampling_and_recurrent_layers():
    lstm, gru = nn.LSTM(4, 6, batch_first=True), nn.GRU(4, 6)
    runs(lambda x: lstm(x)[0], [(torch.randn(n, 5, 4),) for n in SIZES], "compiled")
    runs(lambda x: lstm(x)[0], [(torch.randn(2, n, 4),) for n in SIZES[:3]], "compiled")
    runs(lambda x: gru(x)[0], [(torch.randn(3, n, 4),) for n in SIZES], "compiled")
    runs(lambda x: F.interpolate(x, scale_factor=2.0), [(torch.randn(1, 2, n, 5),) for n in SIZES], "compiled")
    runs(
        lambda x, image: [F.interpolate(t, size=(t.shape[2] * 2, 10), mode="bilinear") for t in (x, image)],
        [(torch.randn(1, 2, n, 5), torch.randint(0, 256, (1, 2, n, 5), dtype=torch.uint8)) for n in SIZES],
        "compiled",
    )


def test_truths_among_numbers():
    runs(lambda x, k: x * (k + True) + sum([k, True, 2]) - (True - k), [(torch.randn(3), k) for k in SIZES], "compiled")


def test_control_is_guarded():
    log = runs(lambda x, r: x + 1 if r > 0.2 else x * r, [(torch.randn(3), r) for r in RATES], "compiled", captures=3)
    assert "r: expected r > 0.2" in log.recompiles[-1]


def test_a_value_that_is_written_down_or_needed_by_an_operator_is_a_constant():
    rates = [0.1, 0.3, 0.5]
    runs(lambda x, r: (x * r, f"{r:.3f}"), [(torch.randn(3), r) for r in rates], "compiled", captures=3)
    runs(lambda x, r: F.layer_norm(x, (3,), eps=r), [(torch.randn(2, 3), r) for r in rates], "compiled", captures=3)


def test_values_that_are_no_numbers():
    fast, log = compiled(lambda x, r: x * r)
    for r in (1.0, math.nan, math.inf, 0.5, -math.inf, math.nan):
        torch.testing.assert_close(fast(torch.ones(2), r), torch.ones(2) * r, equal_nan=True)
    assert len(log.captures) <= 5


def test_other_backends_get_no_floats():
    seen = []

    def backend(module, inputs):
        seen.extend(inputs)
        return module.forward

    fast = compile_callable(lambda x, r: x * r, backend=backend)
    for r in RATES[:3]:
        fast(torch.ones(2), r)
    assert not any(isinstance(x, torch.SymFloat) for x in seen)


def _if_zero(x, k):
    return (x / k if k == 0 else x * k), k


def _if_computed_zero(x, k):
    d = k * 0.0
    return (x / d if d == 0 else x * d), d, -d


def _if_equal(x, k, j=-0.0):
    return (x / j if k == j else x * k), k - j, j - k


def _if_read_zero(x, k):
    k = k.item()
    return (x / k if k == 0 else x * k), k


ZEROS = (1.0, 2.0, 0.0, -0.0, 0.0, -3.0, 4.0, -0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [_if_zero, _if_computed_zero, _if_equal, _if_read_zero], ids=lambda f: f.__name__)
def test_the_sign_of_zero_is_kept_where_a_float_is_compared(function, backend):
    x = torch.ones(2)
    wrap = torch.tensor if function is _if_read_zero else float
    calls = [(x, wrap(k)) for k in ZEROS]
    if function is _if_equal:
        calls += [(x, a, b) for a in ZEROS for b in (a, -a)]
    fast = compile_callable(function, backend=BACKENDS[backend])
    for args in calls:
        for mine, theirs in zip(fast(*args), function(*args), strict=True):
            assert str(mine) == str(theirs), args


HALF = numpy.float64(0.5)


def test_a_number_of_numpys_is_a_plain_one_in_the_graph() -> None:
    """Its own text is no text that a graph's code can have."""
    check(lambda x: (torch.acos(x) + HALF, x * HALF, torch.full((2,), HALF)), torch.rand(3))
