"""Convolutions of images, of which few channels fill the matrix units badly: with steps of two, four pixels become one of four times the channels.

y[o] = sum_k w[k] x[2o + k - p]  =  sum_ji w'[2j + i] x'_i[o + j]    with x'_i every second pixel from i on, w' with zeros around it
"""

from __future__ import annotations

from typing import cast

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32
from ...ir.symbols import Dim, FloorDiv, dim
from ...ir.syntax import Op
from ..analysis.machine import Machine
from ..analysis.strides import channels_last
from ..core.clauses import Call
from ..core.rewriter import replace

CHANNELS = 16  # of the new image, with zeros: 64 bytes a pixel at most
LARGEST = 11  # rows or columns of a window


def is_first(op: kernel.Extern, machine: Machine) -> bool:
    """A two-dimensional `aten.convolution` on a GPU with steps of 2 over at most 4 channels, of images of any size.

    On one H200, 32 images of 224x224 pixels, 7x7 windows for 64 channels: in bfloat16 221 us, as four times the channels 92, in TF32 206 and 124.
    """
    if op["target"] != "aten.convolution.default" or tuple(op["operands"]) != ("input", "weight"):
        return False
    x, weight, result = (prim.tensor(v) for v in (*op.operands, op.results[0]))
    if (
        not machine.at(result.device).is_grid
        or not x.rank == weight.rank == result.rank == 4
        or not Call.of(op).two_numbers("stride", "padding", "dilation")
        or op["groups"] != 1
        or op.get("transposed") is True
    ):
        return False
    if result.dtype not in (F16, BF16, F32) or len({x.dtype, weight.dtype, result.dtype}) > 1 or x.shape[0] == 0:
        return False
    if not all(isinstance(n, int) for n in (x.shape[1], *weight.shape)) or 0 in (
        *x.shape,
        *weight.shape,
        *result.shape,
    ):
        return False
    steps = tuple(op["stride"]) == (2, 2) and tuple(op["dilation"]) == (1, 1)
    windows = all(2 < cast(int, n) <= LARGEST for n in weight.shape[2:])
    return steps and windows and 4 * cast(int, x.shape[1]) <= CHANNELS


def space_to_depth(op: kernel.Extern) -> kernel.Extern:
    """The same convolution with steps of 1, channels-last; the new image and weight are put in front of it."""
    made: list[Op] = []
    x, weight = op.operands
    shape, counts = (prim.tensor(v).shape[2:] for v in (x, op.results[0]))
    window = cast(tuple[int, ...], prim.tensor(weight).shape[2:])
    around: list[tuple[int, Dim, int, int]] = []  # zeros before and after the image, before and after the window
    for size, taps, count, padding in zip(shape, window, counts, op["padding"], strict=True):
        odd = padding % 2
        whole = taps + odd + (taps + odd) % 2
        low = padding + odd
        around.append((low, dim(2 * (count - 1) + whole - size - low), odd, whole - taps - odd))
    image = _to_depth(made, x, [(a[0], a[1]) for a in around])
    turned = _to_depth(made, weight, [(a[2], a[3]) for a in around])
    literals = {k: v for k, v in op.literals.items() if k not in ("operand_strides", "strides")}
    literals |= {"stride": (1, 1), "padding": (0, 0), "strides": (channels_last(prim.tensor(op.results[0]).shape),)}
    literals["operand_strides"] = tuple(channels_last(prim.tensor(v).shape) for v in (image, turned))
    call = kernel.Extern.make([image, turned], [op.results[0].type], literals, loc=op.location)
    for new in made:
        new.location = op.location
    replace(op, call.results, [*made, call])
    return call


def _to_depth(made: list[Op], value: SSAValue, around: list[tuple[int, Dim]]) -> SSAValue:
    """(n, c, h, w) with zeros around it as (n, CHANNELS, h / 2, w / 2): channel 8i + 4j + c has the pixels (2r + i, 2s + j) of channel c."""

    def add(op: Op) -> SSAValue:
        made.append(op)
        return op.results[0]

    t = prim.tensor(value)
    low = (0, 0, *(before for before, _ in around))
    high = (0, CHANNELS // 4 - cast(int, t.shape[1]), *(after for _, after in around))
    whole: list[Dim] = [dim(n + a + b) for n, a, b in zip(t.shape, low, high, strict=True)]
    value = add(prim.Pad.make([value], [t.with_(shape=whole)], {"low": low, "high": high, "value": 0.0}))
    n, channels, h, w = whole
    rows, columns = (dim(FloorDiv(sympy.sympify(size), sympy.Integer(2))) for size in (h, w))  # they are even
    value = add(prim.reshape(value, (n, channels, rows, 2, columns, 2)))
    value = add(prim.permute(value, (0, 3, 5, 1, 2, 4)))
    return add(prim.reshape(value, (n, CHANNELS, rows, columns)))
