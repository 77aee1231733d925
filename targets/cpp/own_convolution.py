"""The C++ of a convolution of our own: its sizes, how many sums are held in registers, and what happens to each sum on its way to memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ir.epilogue import PREFIX
from ...ir.symbols import Dim, dim
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.convolution import dense_tile, depthwise_pixels
from ...passes.strides import channels_last, same_layout
from .emit import cpp_index

_GELU: dict[str, str] = {
    "none": "0.5f * v * (1.0f + im::erf(v * 0.70710678f))",
    "tanh": "0.5f * v * (1.0f + im::tanh(0.79788456f * (v + 0.044715f * v * v * v)))",
}
# The expression of a step of the epilogue on `v`. NaN stays NaN in each.
STEPS: dict[str, Callable[..., str]] = {
    "relu": lambda: "im::relu(v)",
    "hardtanh": lambda least, most: f"im::clamp(v, {_number(least)}, {_number(most)})",
    "hardsigmoid": lambda: "im::clamp(v + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "hardswish": lambda: "v * im::clamp(v + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "silu": lambda: "v * im::sigmoid(v)",
    "sigmoid": lambda: "im::sigmoid(v)",
    "tanh": lambda: "im::tanh(v)",
    "leaky_relu": lambda slope: f"v > 0.0f ? v : v * {_number(slope)}",
    "gelu": _GELU.__getitem__,
}


def convolution_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "convolution", and the sizes that they mention."""
    names = list(op["operands"])
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs[0], refs[-1]
    outputs, inputs, rows, columns = op["packed"]
    n, channels, height, width = x.shape
    _, _, out_height, out_width = out.shape
    stride, padding, dilation = op["stride"], op["padding"], op["dilation"]
    strides = x.strides
    depthwise = len(refs[1].shape) == 3
    plain = (rows, columns, *stride, *padding) == (1, 1, 1, 1, 0, 0)
    wanted = channels_last(x.shape)
    assert wanted is not None
    if plain and not depthwise and same_layout(x.shape, strides, wanted):  # pixels of all rows and images as one row
        width = out_width = dim(n * height * width)
        n = height = out_height = 1
        strides = (0, 1, 0, channels)
    values: list[Dim] = [n, height, width, channels, out_height, out_width, outputs, rows, columns]
    values += [*stride, *padding, *dilation, strides[0], strides[2], strides[3], strides[1]]
    if depthwise:
        pixels = depthwise_pixels(out_width, columns, stride[1])
        call = f"depthwise_convolution<{pixels}, {columns}, {stride[1]}>"
    else:
        pixels, together = dense_tile(out_width, outputs)
        blocks = refs[1].shape[0]
        assert isinstance(blocks, int)
        call = f"dense_convolution<{pixels}, {together}, {blocks % together or together}>"
    lines = [f"  const im::Convolution s{{{', '.join(cpp_index(v) for v in values)}}};"]
    lines.append("  const auto tail = [=](float v, int64_t at, int64_t column) {")
    lines.append("    (void)at, (void)column;")
    if "bias" in names:
        lines.append(f"    v = v + in{names.index('bias')}[column];")
    lines += [f"    v = {_step(names, *step)};" for step in op.get("epilogue", ())]
    lines += ["    return v;", "  };", f"  im::{call}(s, in0, in1, out0, tail);"]
    return "\n".join(lines) + "\n", values


def max_pool_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "max_pool", and the sizes that they mention."""
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs
    n, channels, height, width = x.shape
    window = _pair(op["kernel_size"])
    values: list[Dim] = [n, height, width, channels, *out.shape[2:], channels, *window]
    values += [*_pair(op.get("stride") or window), *_pair(op.get("padding", 0)), *_pair(op.get("dilation", 1))]
    values += [x.strides[0], x.strides[2], x.strides[3], x.strides[1]]
    lines = [
        f"  const im::Convolution s{{{', '.join(cpp_index(v) for v in values)}}};",
        "  im::max_pool(s, in0, out0);",
    ]
    return "\n".join(lines) + "\n", values


def _pair(sizes: Any) -> tuple[Any, Any]:
    """PyTorch's sizes of a window: one number, one in a list, or two."""
    if not isinstance(sizes, list | tuple):
        return sizes, sizes
    return (sizes[0], sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _step(names: list[str], name: str, *arguments: Any) -> str:
    if name == "add":
        return f"v + in{names.index(f'{PREFIX}{arguments[0]}')}[at]"
    return STEPS[name](*arguments)


def _number(value: float) -> str:
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{float(value)!r}f" if value == value else '__builtin_nanf("")'
