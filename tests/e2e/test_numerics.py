"""`options={"numerics": "eager"}`: half types are rounded wherever eager rounds, so that chains of operations agree bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia

CHAINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "products": lambda x, y: (x * 0.3 + y) * x - y / 3,
    "roots": lambda x, y: F.relu(x + y) * y + x.abs().sqrt() - torch.rsqrt(x.abs() + 1),
    "scaled": lambda x, y: torch.addcmul(x, y, x, value=0.5).clamp(-1, 1) * 2 + x.add(y, alpha=0.7).sub(x, alpha=3),
    "activations": lambda x, y: F.hardswish(x) * F.leaky_relu(y) + torch.where(x > y, x, y * 1.7),
    "rows": lambda x, y: F.layer_norm(x + y, (x.shape[-1],)) * 0.5 + ((x + 1) * (y - 2)).sum(-1, keepdim=True),
    "softmax": lambda x, y: torch.softmax(x * 0.5 + y, -1) * x + (x > y) * y,
    "views": lambda x, y: (
        (x * y).t().reshape(-1, 8)[1:] * 3 + torch.cat([x * 2 + 1, y]).view(-1, 8)[1 : x.numel() // 8]
    ),
    "casts": lambda x, y: (x * y + 1).float() * (x - y).float(),
    "written": lambda x, y: x.clone().mul_(y).add_(y).div_(3),
}


def compiled(fn: Callable[..., Any], numerics: str) -> Callable[..., Any]:
    return intarsia.compile(fn, fullgraph=True, options={"numerics": numerics, "verify_each": True})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chains_agree_bit_by_bit(dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(chain(x, y) for chain in CHAINS.values())

    torch.manual_seed(0)
    x, y = (torch.randn(32, 64).to(dtype) for _ in range(2))
    for name, found, wanted in zip(CHAINS, compiled(program, "eager")(x, y), program(x, y), strict=True):
        assert torch.equal(found, wanted), name


def test_the_default_keeps_float32_and_is_nearer() -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(64, 64).bfloat16() for _ in range(2))
    chain = CHAINS["products"]
    gold, eager, ours = chain(x.double(), y.double()), chain(x, y), compiled(chain, "float32")(x, y)
    assert not torch.equal(ours, eager)
    assert (ours - gold).norm() < (eager - gold).norm()


def test_what_follows_a_product_reads_it_rounded() -> None:
    torch.manual_seed(0)
    x, w, r = torch.randn(64, 96).bfloat16(), torch.randn(80, 96).bfloat16(), torch.randn(64, 80).bfloat16()
    product = F.linear(x, w)  # that of another library adds up in another order

    def program(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        product = F.linear(x, w)
        return product, F.relu(product) * 3 + r

    found, after = compiled(program, "eager")(x, w, r)
    torch.testing.assert_close(found, product)
    assert torch.equal(after, F.relu(found) * 3 + r)


def test_gradients() -> None:
    torch.manual_seed(0)
    with torch.enable_grad():
        ours, eager = (
            torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
            for _ in range(2)
        )
        y = torch.randn(32, 64).bfloat16()
        chain = CHAINS["products"]
        compiled(chain, "eager")(ours, y).backward(y)
        chain(eager, y).backward(y)
    assert torch.equal(ours.grad, eager.grad)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'eager'"):
        intarsia.compile(lambda x: x, options={"numerics": "eagre"})
