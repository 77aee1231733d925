"""Sizes that are expressions: kernels of a GPU are as short as for known sizes, and right for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from intarsia.frontend.entry.capture import capture
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import kernel, loop
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.symbols import FloorDiv, Mod, dim, simplify_index, symbol
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.size_names import names_of
from intarsia.passes.analysis.views import reshape_strides
from intarsia.passes.core.context import CompileContext
from intarsia.passes.kernels.choose_products import ChooseProducts
from intarsia.passes.pipeline import default_pipeline

SIZES = [(2, 13, 18), (3, 16, 16), (4, 5, 31)]


def images(n: int, h: int, w: int) -> Tensor:
    return (torch.randn(n, 16, h, w) * 0.5).bfloat16()


def on_gpu(fn: Callable[[Tensor], Tensor]) -> ModuleOp:
    """The kernels of a function of an image of any size, whose products are all kernels."""
    captured = capture(fn, (images(2, 20, 20),), dynamic=True)
    module = import_fx(functionalize(captured.graph_module, captured.example_inputs)).module
    module = parse_module(print_module(module))
    retarget(module, "cuda:0")
    for item in default_pipeline([ChooseProducts(tile="16x16x16x1x2")], gpu=True, until="plan-buffers"):
        item.apply(CompileContext(), module)
    module.verify()
    return module


def pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x.relu(), 3, 2, 1) * 2


def rows(x: Tensor) -> Tensor:
    """A product with a row for each pixel of an image of half the size."""
    y = F.max_pool2d(x, 3, 2, 1).permute(0, 2, 3, 1)
    n, h, w, c = y.shape
    return ((y.reshape(n * h * w, c) @ torch.ones(16, 8, dtype=x.dtype)).relu() * 0.5).view(n, h, w, 8) + 1


@pytest.mark.parametrize("fn", [pooled, rows])
def test_any_size(fn: Callable[[Tensor], Tensor]) -> None:
    """One program gives what eager gives, for all sizes."""
    module = on_gpu(fn)
    for sizes in SIZES:
        x = images(*sizes)
        (found,) = run(module, [x])
        torch.testing.assert_close(found, fn(x), rtol=2e-2, atol=2e-2)


def test_statistics_of_a_batch() -> None:
    """Batch norm in training: the running variance divides by one less than there are."""
    mean, variance = torch.zeros(16), torch.ones(16)

    def normed(x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        found = torch.ops.aten._native_batch_norm_legit_functional(x, None, None, mean, variance, True, 0.1, 1e-5)
        return found[0], found[3], found[4]

    captured = capture(normed, (images(2, 6, 6).float(), mean, variance), dynamic=True)
    module = import_fx(functionalize(captured.graph_module, captured.example_inputs)).module
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="plan-buffers"):
        item.apply(CompileContext(), module)
    assert not any(isinstance(op, kernel.Extern) for op in module.walk())
    for sizes in SIZES:
        x = images(*sizes).float()
        found = run(module, [x, mean, variance])
        for a, b in zip(found, normed(x, mean, variance), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_rows_are_memory() -> None:
    """A row for each pixel is where the pixel is: neither divisions nor a copy."""
    module = on_gpu(rows)
    kernels = [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]
    (product,) = [k for k in kernels if any(isinstance(op, loop.Accumulate) for op in k.block_body.walk())]
    indices = [op["index"] for op in product.block_body.walk() if isinstance(op, loop.Load | loop.Store)]
    reading = [k for k in kernels if any(isinstance(op, loop.Load) for op in k.block_body.walk())]
    assert len(reading) == 2 and not any(sympy.sympify(i).has(Mod) for i in indices)


def test_names() -> None:
    s = symbol("s0")
    half, rest = FloorDiv(s - 1, sympy.Integer(2)), FloorDiv(s, sympy.Integer(4))
    names = names_of([s, dim(half + 1), 7, dim(half + 3), rest])
    a, b = symbol("size0"), symbol("size1")
    assert names.named(dim((half + 1) * (rest + 2))) == dim(a * (b + 2)) and names.named(dim(half + 3)) == dim(a + 2)
    assert names.spelled(dim(a * b)) == dim((half + 1) * rest)


def test_quotients_times_sizes() -> None:
    """n*w*(i // w % h) and the like become one index."""
    i, h, w = symbol("i"), symbol("h"), symbol("w")
    row = FloorDiv(i, w)
    index = 8 * Mod(i, w) + 8 * w * Mod(row, h) + 8 * w * h * FloorDiv(row, h)
    assert simplify_index(dim(index), {i: (0, None)}) == 8 * i  # type: ignore[dict-item]  # no limit


def test_rows_of_an_image() -> None:
    s = symbol("s0")
    h = dim(FloorDiv(s - 1, sympy.Integer(2)) + 1)
    shape = (4, h, h, 8)
    strides = (dim(8 * h * h), dim(8 * h), 8, 1)
    assert reshape_strides(shape, strides, (dim(4 * h * h), 8)) == (8, 1)
    assert reshape_strides((dim(4 * h * h), 8), (8, 1), shape) == strides
    assert reshape_strides(shape, strides, (dim(4 * h), h, 4, 2)) == (dim(8 * h), 8, 2, 1)
    assert reshape_strides(shape, strides, (dim(4 * h * h + 1), 8)) is None
    assert reshape_strides((6, 4), (8, 1), (8, 3)) is None
