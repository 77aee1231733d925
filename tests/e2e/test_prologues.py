"""What stands in front of a product by a parameter is computed by the product's kernel: one call, and no kernel before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xdsl.ir import BlockArgument

import intarsia
from intarsia.ir.dialects import buffer
from intarsia.ir.text import parse_module
from intarsia.targets.build.toolchain import detect_isa, dots_bfloat16
from intarsia.testing import check

pytestmark = pytest.mark.skipif(detect_isa() != "avx512", reason="a kernel for AVX-512")

INNER, COLUMNS = 96, 50
Step = Callable[[Tensor, "Layer"], Tensor]


class Layer(nn.Module):
    """A linear layer behind a step."""

    def __init__(self, step: Step, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = step
        self.scale = nn.Parameter(torch.randn(INNER, dtype=dtype))
        self.shift = nn.Parameter(torch.randn(INNER, dtype=dtype))
        self.layer = nn.Linear(INNER, COLUMNS, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        made = self.step(x, self)
        return (self.layer(made[0]), *made[1:]) if isinstance(made, tuple) else self.layer(made)


class Dequantized(nn.Module):
    """A weight of bytes, with a number for each row, each column, or both."""

    def __init__(self, rows: bool, columns: bool, size: int = INNER) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(-127, 128, (COLUMNS, size), dtype=torch.int8))
        self.register_buffer("rows", torch.rand(COLUMNS) / 64 if rows else None)
        self.register_buffer("columns", torch.rand(size) if columns else None)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        weight = weight if self.rows is None else weight * self.rows[:, None]
        return F.silu(F.linear(x, weight if self.columns is None else weight * self.columns))


def calls(model: nn.Module, *args: Tensor) -> tuple[int, int]:
    """Factors that kernels of products compute, and launches of other kernels."""
    with torch.no_grad():
        lowered = intarsia.lower(model, *args)
    text = list(lowered.stages.values())[-1]
    return computed(text), text.count("buffer.launch")


def computed(text: str) -> int:
    """How many factors the kernels of a program compute."""
    products = [op.product for op in parse_module(text).walk() if isinstance(op, buffer.Contract)]
    return sum(not isinstance(factor, BlockArgument) for product in products for factor in product.operands)


def in_float64(model: nn.Module, *args: Tensor) -> Tensor:
    """The exact values."""
    return model.double()(*(x.double() for x in args))


FUSED: dict[str, Step] = {
    "a norm's scale": lambda x, m: x * m.scale,
    "scale and shift": lambda x, m: x * m.scale + m.shift,
    "an activation": lambda x, m: F.gelu(x) * 0.5,
    "a number for each row": lambda x, m: x * x.new_tensor([0.5] * x.shape[-2])[:, None] + 1,
    "a part of a tensor": lambda x, m: torch.tanh(x[..., 1:, :]),
    "flipped": lambda x, m: torch.relu(x.flip(-1)) - m.scale,
    "turned": lambda x, m: torch.sigmoid(x.transpose(-1, -2).contiguous().transpose(-1, -2)) * m.scale,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(40, INNER), (3, 11, INNER)], ids=str)
@pytest.mark.parametrize("name", FUSED)
@torch.no_grad()
def test_x_is_computed(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not dots_bfloat16():
        pytest.skip("no dot product of bfloat16")
    model, x = Layer(FUSED[name], dtype), torch.randn(shape, dtype=dtype)
    assert calls(model, x) == (1, 0)
    check(model, (x,))
    found = intarsia.compile(model, fullgraph=True)(x)
    bound = 1e-4 if dtype == torch.float32 else 4e-2
    exact = in_float64(model, x)
    assert float((found.double() - exact).abs().max()) <= bound * float(exact.abs().max())


@pytest.mark.parametrize(("rows", "columns"), [(True, False), (False, True), (True, True), (False, False)])
@torch.no_grad()
def test_dequantized_rows(rows: bool, columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_PACKING", "0")  # a small weight stays narrow, too
    model, x = Dequantized(rows, columns), torch.randn(7, INNER)
    assert calls(model, x) == (1, 0)
    found = intarsia.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.double(), in_float64(model, x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_both_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_PACKING", "0")
    inner = Dequantized(True, True)
    model = nn.Sequential(nn.Tanh(), inner)
    x = torch.randn(18, INNER)
    text = list(intarsia.lower(model, x).stages.values())[-1]
    assert computed(text) == 2 and "buffer.launch" not in text
    check(model, (x,))


LEFT: dict[str, Step] = {
    "read by someone else": lambda x, m: ((y := x * m.scale), y.sum(-1)),
    "read through a view": lambda x, m: ((y := x * m.scale), y.transpose(0, 1)),
    "a sum in front": lambda x, m: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    "a norm": lambda x, m: F.layer_norm(x, (INNER,), m.scale, m.shift),
    "sines": lambda x, m: torch.sin(x) * m.scale,
    "nothing to compute": lambda x, m: x[3:],
}


@pytest.mark.parametrize("name", LEFT)
@torch.no_grad()
def test_what_stays_in_front(name: str) -> None:
    model, x = Layer(LEFT[name]), torch.randn(40, INNER)
    assert calls(model, x)[0] == 0
    check(model, (x,))


@torch.no_grad()
def test_what_follows_one_product_is_not_in_front_of_the_next() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 80), nn.GELU(), nn.Linear(80, 48)), torch.randn(40, 64)
    assert calls(model, x) == (0, 0)
    check(model, (x,))


@torch.no_grad()
def test_a_large_x_is_computed_by_a_kernel_of_its_own() -> None:
    model = Layer(FUSED["a norm's scale"])
    found = [calls(model, torch.randn(rows, INNER)) for rows in (341, 342)]  # 128 KiB
    assert found == [(1, 0), (0, 1)]


@torch.no_grad()
def test_memory_with_gaps() -> None:
    """x of every layout; what has gaps may be copied first."""
    model = Layer(FUSED["scale and shift"])
    for x in (torch.randn(INNER, 40).t(), torch.randn(80, INNER)[::2], torch.randn(1, INNER).expand(40, INNER)):
        check(model, (x,))


RANDOM: list[Step] = [
    lambda y, m: y * m.scale,
    lambda y, m: torch.maximum(y, m.shift),
    lambda y, m: y.sigmoid(),
    lambda y, m: torch.where(y > 0, y, -y),
    lambda y, m: y.flip(0),
    lambda y, m: y.clamp(-1, 1),
    lambda y, m: y - y.mean(-1, keepdim=True),
]


def random_step(seed: int) -> Step:
    """Operations on single elements, with columns beside them, and sometimes a second reader or a sum."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, len(RANDOM) + 1, (4,), generator=generator).tolist()

    def step(x: Tensor, m: Layer) -> Tensor | tuple[Tensor, ...]:
        y, others = x, []
        for kind in kinds:
            if kind == len(RANDOM):
                others.append(y * 2)
            else:
                y = RANDOM[kind](y, m)
        return (y, *others) if others else y

    return step


@pytest.mark.parametrize("first", [0, 8])
@torch.no_grad()
def test_random_steps(first: int) -> None:
    seen = set()
    for seed in range(first, first + 6):
        model, x = Layer(random_step(seed)), torch.randn(24, INNER)
        seen.add(calls(model, x)[0])
        check(model, (x,))
    assert seen == {0, 1}
