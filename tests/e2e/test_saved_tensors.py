"""Hooks on saved tensors in the captured code: what they compute is part of forward and backward, as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import intarsia


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    intarsia.reset()
    with torch.enable_grad():
        yield


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))


def rounded(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16) if t.dtype is torch.float32 else t


def widened(t: Tensor) -> Tensor:
    return t.to(torch.float32) if t.dtype is torch.bfloat16 else t


def same(t: Tensor) -> Tensor:
    return t


CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    CASES[function.__name__] = function
    return function


@case
def kept_as_they_are(m, x, y):
    with saved_tensors_hooks(same, same):
        return F.mse_loss(m(x), y)


@case
def in_half_the_bytes(m, x, y):
    with saved_tensors_hooks(rounded, widened):
        return F.mse_loss(torch.tanh(m(x)), y)


@case
def large_ones_alone(m, x, y):
    def pack(t):
        return (t.half(), "half") if t.numel() > 40 and t.is_floating_point() else t

    def unpack(packed):
        return packed[0].float() if isinstance(packed, tuple) else packed

    with saved_tensors_hooks(pack, unpack):
        return F.cross_entropy(m(x), y.argmax(1))


@case
def scaled_by_a_value_of_the_graph(m, x, y):
    scale = y.abs().amax() + 1
    with saved_tensors_hooks(lambda t: t * scale, lambda t: t / scale if t.is_floating_point() else t):
        return F.mse_loss(m(x), y)


@case
def several_parts(m, x, y):
    def pack(t):
        return {"sign": torch.sign(t), "size": t.abs().bfloat16(), "dtype": t.dtype}

    with saved_tensors_hooks(pack, lambda p: (p["sign"] * p["size"]).to(p["dtype"])):
        return F.mse_loss(m(x), y)


@case
def nested(m, x, y):
    with saved_tensors_hooks(rounded, widened):
        h = torch.tanh(m(x))
        with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            h = torch.sigmoid(m(h)) * h
        h = torch.sin(h)
    return F.mse_loss(torch.exp(h), y)


@case
def on_the_host(m, x, y):
    with save_on_cpu():
        return F.mse_loss(m(x), y)


@case
def forbidden(m, x, y):
    with disable_saved_tensors_hooks("not here"):
        loss = F.mse_loss(m(x), y)
        try:
            with saved_tensors_hooks(rounded, widened):
                loss = loss * 2
        except RuntimeError as error:
            assert str(error) == "not here"
            loss = loss * 3
    return loss


@case
def gradients_off(m, x, y):
    with torch.no_grad(), saved_tensors_hooks(rounded, widened):
        t = m(x).tanh()
    return F.mse_loss(m(x), t)


def penalized(m, x, y):
    x = x.detach().requires_grad_()
    with saved_tensors_hooks(rounded, widened):
        loss = F.mse_loss(torch.tanh(m(x)), y)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + g.square().sum()


def trained(function, m, inside, steps=3):
    def step(x, y):
        loss = function(m, x, y)
        loss.backward()
        return loss.detach()

    def outer(x, y):
        loss = run(x, y)
        loss.backward()
        return loss.detach()

    def given(x, y):
        return function(m, x, y)

    exact = {"numerics": "eager"}  # else a kernel skips the rounding of what it unpacks itself
    run = intarsia.compile(step if inside else given, fullgraph=True, options=exact) if inside is not None else step
    found = []
    for k in range(steps):
        torch.manual_seed(k)
        found.append((outer if inside is False else run)(torch.randn(4, 8), torch.randn(4, 8)))
    return [*found, *(p.grad.clone() for p in m.parameters())]


def models(count):
    for _ in range(count):
        torch.manual_seed(0)
        yield model()


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    for inside in (True, False):
        first, second = models(2)
        wanted, found = trained(CASES[name], first, None), trained(CASES[name], second, inside)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)  # half types round to either side
    assert intarsia.counters()["breaks"] == intarsia.counters()["fallbacks"] == 0


def test_gradients_of_gradients():
    first, second = models(2)
    torch.testing.assert_close(trained(penalized, second, True), trained(penalized, first, None), rtol=1e-5, atol=1e-6)


def test_what_they_make_is_what_backward_reads():
    m, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(256, 64)

    def program(x):
        with saved_tensors_hooks(rounded, widened):
            return m(x).sum()

    explained = intarsia.explain(program)(x)
    (saved,) = explained.graphs[0].partition.saved
    assert saved.type == "bfloat16[256, 64]"


SEEN: list[Any] = []


def noted(t):
    SEEN.append(t.shape)
    return t


def counted_in_backward(t):
    SEEN.append(0)
    return t


def read_later(m):
    state = {"scale": 2.0}
    return lambda t: t, lambda t: t * state["scale"] / state["scale"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hooks", [(noted, same), (same, counted_in_backward)])
def test_what_the_program_sees_breaks_the_graph(hooks):
    def program(m, x, y):
        with saved_tensors_hooks(*hooks):
            return F.mse_loss(m(x), y)

    found = []
    for compiled in (False, True):
        SEEN.clear()
        (m,) = models(1)
        run = intarsia.compile(program) if compiled else program
        loss = run(m, torch.ones(4, 8), torch.zeros(4, 8))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in m.parameters())])
        assert SEEN  # what is saved differs, not that hooks see it
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert intarsia.counters()["breaks"]


def test_a_break_inside_of_the_block():
    def program(m, x, y):
        with saved_tensors_hooks(rounded, widened):
            h = torch.tanh(m(x))
            print(end="")
            h = torch.sin(h)
        return F.mse_loss(h, y)

    first, second = models(2)
    found = []
    for m, run in ((first, program), (second, intarsia.compile(program))):
        loss = run(m, torch.ones(4, 8), torch.zeros(4, 8))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in m.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_errors_are_eagers_and_leave_no_hooks():
    def program(x):
        with saved_tensors_hooks(rounded, widened):
            y = torch.tanh(x)
            return y @ torch.ones(3, 3)

    for run in (program, intarsia.compile(program)):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            run(torch.ones(4, 8, requires_grad=True))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_hooks_around_a_compiled_module():
    (m,) = models(1)
    compiled, seen = intarsia.compile(m), []

    def pack(t):
        seen.append(t)
        return t.clone()

    for run in (m, compiled, compiled):
        seen.clear()
        m.zero_grad()
        with saved_tensors_hooks(pack, lambda t: t * 1):
            run(torch.ones(4, 8)).sum().backward()
        assert seen


def test_an_error_of_a_hook_around_a_compiled_module_is_the_programs():
    """The module has done all by then, and is not called again."""
    m = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Sigmoid())
    x, found = torch.randn(4, 8), []

    def pack(t):
        found.append(t.shape)
        raise ValueError("no room")

    with saved_tensors_hooks(pack, lambda t: t), pytest.raises(ValueError, match="no room"):
        intarsia.compile(m)(x)
    assert len(found) == 1 and m[1].num_batches_tracked == 1 and intarsia.counters()["fallbacks"] == 0
