"""Calls of attention with gradients: the rewritten call gives what the program's gives, and is one that fused kernels take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import intarsia
from intarsia import fused_attention

INF = float("-inf")


def rewritten(monkeypatch: pytest.MonkeyPatch, fn: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Any, ...]:
    """The arguments of the call of attention, after both forms of the graph gave the same."""
    monkeypatch.setattr(fused_attention, "_is_on_gpu", lambda operand: isinstance(operand, fx.Node))
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        before = fx.GraphModule(gm, fx.Graph())
        before.graph.output(before.graph.graph_copy(gm.graph, {}))
        before.recompile()
        fused_attention.prepare_attention(gm)
        gm.recompile()
        (call,) = gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)

        def run(*args: Any) -> Any:
            state = torch.get_rng_state()
            wanted = before(*args)
            torch.set_rng_state(state)
            results = gm(*args)
            torch.testing.assert_close(results, wanted if isinstance(wanted, tuple) else (wanted,), equal_nan=True)
            found.append(call.args)
            return results

        return run

    with torch.enable_grad():
        intarsia.compile(fn, backend=backend, fullgraph=True)(x.requires_grad_())
    return found[0]


def heads(x: Tensor) -> Tensor:
    return x.view(2, 8, 4, 16).transpose(1, 2)


LEFT_OUT: dict[str, Callable[[], Tensor]] = {
    "ones": lambda: torch.ones(2, 8, dtype=torch.bool)[:, None, None, :].expand(2, 1, 8, 8),
    "zeros": lambda: torch.zeros(8, 8),
}
CAUSAL: dict[str, Callable[[], Tensor]] = {
    "tril": lambda: torch.ones(8, 8).tril() == 1,
    "comparison": lambda: torch.arange(8)[:, None] >= torch.arange(8),
    "added": lambda: torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) == 1, INF),
    "for each head": lambda: (torch.arange(8)[:, None] >= torch.arange(8)).expand(2, 4, 8, 8),
}
KEPT: dict[str, Callable[[], Tensor]] = {
    "one is shut": lambda: (torch.arange(8) < 7).expand(8, 8),
    "nearly a triangle": lambda: torch.arange(8)[:, None] + 1 >= torch.arange(8),
    "finite": lambda: torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) == 1, -3.0),
    "a bias": lambda: torch.arange(8.0).expand(8, 8) * -0.1,
    "random": lambda: torch.rand(8, 8) > 0.3,
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_mask_that_lets_everything_through_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=LEFT_OUT[name]())

    assert rewritten(monkeypatch, fn, torch.randn(2, 8, 64))[3:6] == (None, 0.0, False)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_triangle_is_causal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=CAUSAL[name]())

    assert rewritten(monkeypatch, fn, torch.randn(2, 8, 64))[3:6] == (None, 0.0, True)


@pytest.mark.parametrize("name", KEPT)
def test_other_masks_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=KEPT[name]())

    assert isinstance(rewritten(monkeypatch, fn, torch.randn(2, 8, 64))[3], fx.Node)


def test_a_mask_of_the_programs_values_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        mask = x[0, :, :8] > -100  # lets everything through, but who knows
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=mask)

    assert isinstance(rewritten(monkeypatch, fn, torch.randn(2, 8, 64))[3], fx.Node)


def test_a_mask_that_is_written_to_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool)
        mask[0, 3] = False
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=mask)

    assert isinstance(rewritten(monkeypatch, fn, torch.randn(2, 8, 64))[3], fx.Node)


def test_a_triangle_begins_at_the_upper_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        mask = torch.arange(4)[:, None] >= torch.arange(8)
        return F.scaled_dot_product_attention(heads(x)[:, :, :4], heads(x), heads(x), attn_mask=mask)

    args = rewritten(monkeypatch, fn, torch.randn(2, 8, 64))
    assert args[3] is None and args[5] is True


def test_operands_lie_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def across(x: Tensor) -> Tensor:
        q = x.view(2, 4, 16, 8).transpose(-1, -2)
        return F.scaled_dot_product_attention(q, q, heads(x), attn_mask=x[0, :, :8].t())

    args = rewritten(monkeypatch, across, torch.randn(2, 8, 64))
    assert all(node.meta["example_value"].stride(-1) == 1 for node in args[:4])
    assert args[2].target == "transpose"  # values lay so
