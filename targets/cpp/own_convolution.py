"""The C++ of a convolution of our own: its sizes, how many sums are held in registers, and what happens to each sum on its way to memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.epilogue import PREFIX
from ...ir.symbols import Dim, dim
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.strides import channels_last, same_layout
from ...passes.kernels.convolution import FEW_CHANNELS, dense_tile, depthwise_pixels, winograd_tiles
from .text import cpp_index

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


def convolution_body(op: Op) -> tuple[str, list[Dim], str]:
    """The statements of the kernel of a `buffer.extern` with own = "convolution", the sizes that they mention, and what stands before the kernel."""
    names = list(op["operands"])
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs[0], refs[-1]
    outputs, inputs, rows, columns = op["packed"]
    n, channels, height, width = x.shape
    _, _, out_height, out_width = out.shape
    stride, padding, dilation = op["stride"], op["padding"], op["dilation"]
    strides = x.strides
    rank = len(refs[1].shape)  # how the weight is packed (ir/packing.py)
    plain = rank == 5 and (rows, columns, *stride, *padding) == (1, 1, 1, 1, 0, 0)
    wanted = channels_last(x.shape)
    assert wanted is not None
    if plain and same_layout(x.shape, strides, wanted):  # pixels of all rows and images as one row
        width = out_width = dim(n * height * width)
        n = height = out_height = 1
        strides = (0, 1, 0, channels)
    values: list[Dim] = [n, height, width, channels, out_height, out_width, outputs, rows, columns]
    values += [*stride, *padding, *dilation, strides[0], strides[2], strides[3], strides[1]]
    if rank == 3:
        pixels = depthwise_pixels(out_width, columns, stride[1])
        call = (
            f"depthwise_convolution(s, in0, in1, tail, {pixels}, im::depthwise_block<{pixels}, {columns}, {stride[1]}>)"
        )
    else:
        blocks = refs[1].shape[0]
        assert isinstance(blocks, int)
        line, name = out_width, "dense_convolution" if inputs >= FEW_CHANNELS else "few_channels_convolution"
        if rank == 4:
            line, name = winograd_tiles(out.shape), "winograd"
        pixels, together = dense_tile(line, outputs)
        products = [f"im::add_products<{pixels}, {b}>" for b in (together, blocks % together or together)]
        call = f"{name}(s, in0, in1, tail, {pixels}, {together}, {', '.join(products)})"
    step = _finishing(names, op.get("epilogue", ()))
    pointers = ["out0", str(outputs), f"{{{', '.join(f'in{k}' for k in range(2, len(names)))}}}"]
    lines = [f"  const im::Convolution s{{{', '.join(cpp_index(v) for v in values)}}};"]
    lines.append(f"  const im::Tail tail{{&im::finish<{step.name}>, {', '.join(pointers)}}};")
    lines.append(f"  im::{call};")
    return "\n".join(lines) + "\n", values, step.text


@dataclass(frozen=True)
class _Finishing:
    """What happens to a sum on its way to memory: a struct of C++ with that name."""

    name: str
    text: str


def _finishing(names: list[str], steps: Sequence[tuple[Any, ...]]) -> _Finishing:
    """Bias and epilogue; operand k + 2 of the call is `tail.in[k]`."""
    lines = [f"v = v + tail.in[{names.index('bias') - 2}][column];"] if "bias" in names else []
    lines += [f"v = {_step(names, *step)};" for step in steps]
    words = [*(["bias"] if "bias" in names else []), *(step[0] for step in steps)]
    head = "  IM_FN float of(float v, const im::Tail& tail, int64_t at, int64_t column) {"
    body = "\n".join(
        [head, "    (void)tail, (void)at, (void)column;", *(f"    {line}" for line in lines), "    return v;", "  }"]
    )
    name = "_".join([*(words or ["plain"]), hashlib.sha256(body.encode()).hexdigest()[:6]])
    return _Finishing(name, f"struct {name} {{\n{body}\n}};\n")


def max_pool_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "max_pool", and the sizes that they mention."""
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs
    n, channels, height, width = x.shape
    values: list[Dim] = [n, height, width, channels, *out.shape[2:], channels]
    for name in ("kernel_size", "stride", "padding", "dilation"):
        values += op[name]
    values += [x.strides[0], x.strides[2], x.strides[3], x.strides[1]]
    lines = [
        f"  const im::Convolution s{{{', '.join(cpp_index(v) for v in values)}}};",
        "  im::max_pool(s, in0, out0);",
    ]
    return "\n".join(lines) + "\n", values


def _step(names: list[str], name: str, *arguments: Any) -> str:
    if name == "add":
        return f"v + tail.in[{names.index(f'{PREFIX}{arguments[0]}') - 2}][at]"
    return STEPS[name](*arguments)


def _number(value: float) -> str:
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{float(value)!r}f" if value == value else '__builtin_nanf("")'
