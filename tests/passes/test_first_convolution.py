"""First layers with steps of two as layers with steps of one over four times the channels."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from intarsia.ir.interpreter.run import run
from intarsia.ir.symbols import FloorDiv, dim, symbol
from intarsia.ir.text import parse_module
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.layout.channels_last import ChannelsLast

PROGRAM = """
prim.func @main() {{arg_names = ["x", "w"], arg_static = [false, true]{symbols}}} ({{
^bb0(%x: !prim.tensor<{x}, f32, "cuda:0">, %w: !prim.tensor<{w}, f32, "cuda:0">):
  %a = kernel.extern<aten.convolution.default>(%x, %w) {{operands = ["input", "weight"], bias = none, stride = [2, 2], padding = {padding}, dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1}} : !prim.tensor<{y}, f32, "cuda:0">
  prim.return(%a)
}})
"""
SIZES = [(9, 16), (17, 8)]
WINDOWS = [(3, 3), (7, 4), (5, 3)]
PADDINGS = [(0, 1), (3, 2), (1, 0)]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("tf32", [True, False])
def test_as_the_plain_sum(channels: int, tf32: bool) -> None:
    torch.manual_seed(0)
    for size, window, padding in itertools.product(SIZES, WINDOWS, PADDINGS):
        x, w = torch.randn(2, channels, *size), torch.randn(5, channels, *window)
        expected = torch.conv2d(x, w, None, 2, padding)
        shapes = {name: list(t.shape) for name, t in (("x", x), ("w", w), ("y", expected))}
        module = parse_module(PROGRAM.format(**shapes, padding=list(padding), symbols=""))
        ctx = CompileContext(Machine(tf32=tf32))
        ChannelsLast().apply(ctx, module)
        module.verify()
        assert ("first convolutions" in ctx.diagnostics.statistics.get("channels-last", {})) == tf32
        torch.testing.assert_close(run(module, [x, w])[0], expected, atol=1e-4, rtol=1e-4)


def test_images_of_any_size() -> None:
    torch.manual_seed(0)
    for window, padding in zip(WINDOWS, PADDINGS, strict=True):
        sizes = [symbol("s0"), symbol("s1")]
        counts = [
            dim(FloorDiv(s + 2 * p - k, sympy.Integer(2)) + 1) for s, p, k in zip(sizes, padding, window, strict=True)
        ]
        shapes = {"x": [2, 3, *sizes], "w": [5, 3, *window], "y": [2, 5, *counts]}
        symbols = ', symbols = [["s0", 0, 2, 2, none], ["s1", 0, 3, 2, none]]'
        module = parse_module(PROGRAM.format(**shapes, padding=list(padding), symbols=symbols))
        ctx = CompileContext(Machine(tf32=True))
        ChannelsLast().apply(ctx, module)
        module.verify()
        assert ctx.diagnostics.statistics["channels-last"]["first convolutions"] == 1
        for size in SIZES:
            x, w = torch.randn(2, 3, *size), torch.randn(5, 3, *window)
            expected = torch.conv2d(x, w, None, 2, padding)
            torch.testing.assert_close(run(module, [x, w])[0], expected, atol=1e-4, rtol=1e-4)
