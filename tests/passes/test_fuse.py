"""How many kernels blocks of well-known models become, and that their values stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from model_blocks import Program, bert, gpt2, group_norm, llama_layer, resnet_block, swin_shift

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import print_module
from intarsia.passes.core.context import CompileContext, Diagnostics
from intarsia.passes.fusion.fuse import Fuse
from intarsia.passes.layout.layout import Layout


def kernels(module) -> int:
    """The number of kernels of the function."""
    func = next(op for op in module.ops if isinstance(op, prim.Func))
    return sum(isinstance(op, kernel.Fused) for op in func.block_body.ops)


CASES: dict[str, tuple[Callable[[], Program], int]] = {
    # embeddings + norm; the mask; a layer: softmax, heads back together, residual + norm, gelu, residual + norm
    "bert": (partial(bert, layers=2), 2 + 2 * 5),
    # a layer: norm (with the residual before it), softmax, heads back together, residual + norm, gelu; then residual + norm
    "gpt2": (partial(gpt2, layers=2), 2 * 5 + 1),
    # norm + relu; norm + shortcut + relu + pooling
    "resnet": (resnet_block, 2),
    # norm; two rotations; softmax; heads back together; residual + norm; gate; residual
    "llama": (llama_layer, 8),
    "group norm": (group_norm, 1),
    # the norm's statistics; normalise where the windows are written
    "swin": (swin_shift, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    make, expected = CASES[name]
    torch.manual_seed(0)
    module, args = make()
    module.verify()
    before = run(module, args)
    for step in (Fuse(), Layout()):
        step.apply(CompileContext(), module)
        module.verify()
        for x, y in zip(before, run(module, args), strict=True):
            torch.testing.assert_close(x, y)
    assert kernels(module) <= expected, print_module(module)


def test_channels_last_block() -> None:
    module, args = resnet_block(channels_last=True)
    before = run(module, args)
    Fuse().apply(CompileContext(), module)
    Layout().apply(CompileContext(), module)
    for x, y in zip(before, run(module, args), strict=True):
        torch.testing.assert_close(x, y)
    stored = next(op for op in module.walk() if isinstance(op, kernel.Fused) and op.results[0].type.rank == 4)
    assert stored["strides"] == ((512, 1, 64, 8),)


def test_same_text_twice() -> None:
    texts = set()
    for _ in range(2):
        module, _ = bert(layers=2)
        Fuse().apply(CompileContext(), module)
        texts.add(print_module(module))
    assert len(texts) == 1


def test_thousands_of_operations_take_a_moment() -> None:
    module, _ = bert(layers=30)
    func = next(op for op in module.ops if isinstance(op, prim.Func))
    count = sum(1 for _ in func.block_body.ops)
    started = time.process_time()
    Fuse().apply(CompileContext(), module)
    assert time.process_time() - started < 2.0 * count / 2000


def test_remarks_are_only_built_when_wanted() -> None:
    quiet, wanted = Diagnostics(), Diagnostics(want_remarks=True)
    for diagnostics in (quiet, wanted):
        module, _ = bert(layers=1)
        Fuse().apply(CompileContext(diagnostics=diagnostics), module)
    assert not quiet.remarks
    assert {r.kind for r in wanted.remarks} >= {"fused", "refused"}
    assert quiet.statistics["fuse"]["kernels"] < quiet.statistics["fuse"]["kernels before"]
