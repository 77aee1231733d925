"""Attention over short rows as a kernel: its loops give what the operator gives in float64, its code uses a GPU's matrix units, calls are chosen by size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_programs import captured, cases, heads, joint, of_heads, of_joint, windows
from product_programs import ptx_of
from torch import Tensor
from triton_programs import kernels_of
from xdsl.ir import Block

from intarsia.ir.dialects import kernel, loop
from intarsia.ir.dtypes import BF16, F32, DType
from intarsia.ir.interpreter.run import run
from intarsia.ir.types import tensor_type
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.clauses import broken
from intarsia.passes.kernels.attention import CUDNN, EFFICIENT, choose
from intarsia.passes.kernels.short_attention import LOOPS, takes_loops

CASES = cases()


def exact(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("name", CASES)
def test_loops(name: str) -> None:
    """The loops, by the reference interpreter, on the CPU's tensors."""
    tile, fn, args = CASES[name]
    program = captured(name, fn, args, tile)
    module = program.on_gpu()
    assert [k["sym_name"].startswith("attention_") for k in kernels_of(module)].count(True) == 1
    (found,) = run(module, program.args)
    expected = fn(*map(exact, args))
    bound = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[found.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
    assert not expected.isnan().any()


def test_masks_of_windows_are_read_once() -> None:
    """What is added to the scores has an entry for each window of an image, not one for each image."""
    _, fn, args = CASES["shifted_windows"]
    module = captured("windows", fn, args, "64x4").on_gpu()
    (attention,) = [k for k in kernels_of(module) if k["sym_name"].startswith("attention_")]
    shapes = [a.type.shape for a in attention.block_body.args]  # type: ignore[union-attr]
    assert shapes[:2] == [(4, 49, 3, 2, 32), (1, 2, 2, 49, 49)]


def test_masks_that_are_computed_get_whole_rows() -> None:
    """Not those that lie in memory: it would take a kernel."""
    x, bias = joint(256, 49, 3, 32), torch.randn(1, 3, 49, 49).bfloat16()
    for fn, columns in ((of_joint, 49), (lambda x, bias: of_joint(x, bias.tanh()), 64)):
        kernels = kernels_of(captured("rows", fn, [x, bias]).on_gpu())
        (attention,) = [k for k in kernels if k["sym_name"].startswith("attention_")]
        assert attention.block_body.args[1].type.shape[-1] == columns  # type: ignore[union-attr]
        assert len(kernels) == 1 + (columns == 64)


def test_equal_calls_share_a_kernel() -> None:
    def twice(x: Tensor, y: Tensor) -> Tensor:
        return of_joint(x) + of_joint(y)

    module = captured("twice", twice, [joint(2, 49, 2, 32), joint(2, 49, 2, 32)], "64x4").on_gpu()
    names = [op["kernel"] for op in module.walk() if isinstance(op, loop.Launch)]
    assert len([n for n in names if n.startswith("attention_")]) == 2
    assert len([k for k in kernels_of(module) if k["sym_name"].startswith("attention_")]) == 1


@pytest.mark.parametrize(("tokens", "tile"), [(49, "64x4"), (197, "64x8")])
def test_matrix_units(tokens: int, tile: str) -> None:
    """For Hopper both products are wgmma, queries, keys and values are read 16 bytes at a time, and nothing spills."""
    pytest.importorskip("triton")
    args = [joint(2, tokens, 2, 64), torch.randn(1, 2, tokens, tokens).bfloat16()]
    (found,) = kernels_of(captured("units", of_joint, args, tile).on_gpu())
    ptx = ptx_of(found)
    assert ptx.count("wgmma.mma_async") >= 8 and "ld.global.v4" in ptx and ".local" not in ptx


def calls_of(fn: Any, args: list[Tensor], tile: str = "") -> list[str]:
    """The library's calls that are left."""
    module = captured("call", fn, args, tile).on_gpu()
    return [op["target"] for op in module.walk() if isinstance(op, kernel.Extern)]


def test_what_stays_with_the_library() -> None:
    """Rows longer than 256, heads wider than 128 or of odd sizes, float64, heads that are shared, and all calls if asked for."""

    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    short = [heads(1, 2, 49, 32) for _ in range(3)]
    assert not calls_of(of_heads, short, "64x4")
    assert calls_of(of_heads, short, "library")
    assert calls_of(of_heads, [x.double() for x in short], "64x4")
    assert calls_of(of_heads, [heads(1, 2, 257, 32) for _ in range(3)], "64x4")
    assert calls_of(of_heads, [heads(1, 2, 49, 136) for _ in range(3)], "64x4")
    assert calls_of(of_heads, [heads(1, 2, 49, 20) for _ in range(3)], "64x4")
    assert calls_of(shared, [heads(1, 4, 49, 32), *short[1:]], "64x4")


def test_the_choice() -> None:
    """Windows are ours, long rows, float32 and a few heads of one image the library's."""

    def chosen(images: int, count: int, tokens: int, width: int, dtype: DType = BF16) -> str:
        kind = tensor_type([images, count, tokens, width], dtype, "cuda:0")
        attrs = {"target": kernel.ATTENTION, "operands": ("query", "key", "value")}
        found = choose(kernel.Extern.make(Block(arg_types=[kind] * 3).args, [kind], attrs), Machine())
        assert found is not None
        return found.name

    assert chosen(2048, 3, 49, 32) == chosen(32, 24, 49, 32) == LOOPS
    assert chosen(2048, 3, 49, 32, F32) == EFFICIENT
    assert chosen(32, 12, 512, 64) == CUDNN
    assert chosen(1, 12, 49, 64) == EFFICIENT
    assert not calls_of(
        windows, [joint(256, 49, 3, 32), torch.zeros(1, 3, 49, 49).bfloat16(), torch.zeros(64, 49, 49).bfloat16()]
    )


@pytest.mark.parametrize(
    ("mask", "fits"),
    [
        ((2, 3, 49, 33), True),
        ((3, 1, 33), True),
        ((49, 33), True),
        ((33,), True),
        ((2, 3, 49, 32), False),
        ((3, 3, 49, 33), False),
        ((33, 49), False),
        ((1, 2, 3, 49, 33), False),
    ],
    ids=str,
)
def test_masks_that_spread_to_the_scores(mask: tuple[int, ...], fits: bool) -> None:
    """Shapes on both sides of the clause; what it takes gives what the operator gives."""
    shapes = [(2, 3, 49, 32), (2, 3, 33, 32), (2, 3, 33, 32), mask]
    kinds = [tensor_type(shape, BF16, "cuda:0") for shape in shapes]
    attrs = {"target": kernel.ATTENTION, "operands": ("query", "key", "value", "attn_mask")}
    call = kernel.Extern.make(Block(arg_types=kinds).args, [kinds[0]], attrs)
    assert broken(takes_loops(call, Machine())) == (None if fits else "a mask that spreads to the scores")
    if fits and len(mask) > 1:
        q, k, v = heads(2, 3, 49, 32), *(heads(2, 3, 33, 32) for _ in range(2))
        program = captured("spread", of_heads, [q, k, v, torch.randn(mask).bfloat16()], "64x4")
        module = program.on_gpu()
        assert any(op["sym_name"].startswith("attention_") for op in kernels_of(module))
        (found,) = run(module, program.args)
        expected = of_heads(*map(exact, program.args))
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)
