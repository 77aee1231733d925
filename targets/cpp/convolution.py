"""The C++ of a convolution of our own: its sizes, how many sums are held in registers, and what happens to each sum on its way to memory."""

from __future__ import annotations

from ...ir.symbols import Dim, dim
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.strides import channels_last, same_layout
from ...passes.kernels.convolution import FEW_CHANNELS, GRADIENTS, gradients_of, is_pointwise
from .tail import tail_of
from .text import cpp_index


def convolution_body(op: Op) -> tuple[str, list[Dim], str]:
    """The statements of the kernel of a `buffer.extern` with own = "convolution", the sizes that they mention, and what stands before the kernel."""
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs[0], refs[-1]
    outputs, inputs, rows, columns = op["packed"]
    n, channels, height, width = x.shape
    _, _, out_height, out_width = out.shape
    stride, padding, dilation = op["stride"], op["padding"], op["dilation"]
    strides = x.strides
    rank = len(refs[1].shape)  # how the weight is packed (ir/packing.py)
    wanted = channels_last(x.shape)
    assert wanted is not None
    if (
        rank == 5 and is_pointwise(op) and same_layout(x.shape, strides, wanted)
    ):  # pixels of all rows and images as one row
        width = out_width = dim(n * height * width)
        n = height = out_height = 1
        strides = (0, 1, 0, channels)
    values: list[Dim] = [n, height, width, channels, out_height, out_width, outputs, rows, columns]
    values += [*stride, *padding, *dilation, strides[0], strides[2], strides[3], strides[1]]
    if rank == 3:
        (pixels,) = op["tile"]
        block = f"im::depthwise_block<{pixels}, {columns}, {stride[1]}>"
        call = f"depthwise_convolution(s, in0, in1, tail, {pixels}, {block})"
    else:
        blocks, (pixels, together) = refs[1].shape[0], op["tile"]
        assert isinstance(blocks, int)
        name = (
            "winograd" if rank == 4 else "dense_convolution" if inputs >= FEW_CHANNELS else "few_channels_convolution"
        )
        products = [f"im::add_products<{pixels}, {b}>" for b in (together, blocks % together or together)]
        call = f"{name}(s, in0, in1, tail, {pixels}, {together}, {', '.join(products)})"
    tail = tail_of(op, outputs, 2 if "bias" in op["operands"] else None)
    sizes = f"  const im::Convolution s{{{', '.join(cpp_index(v) for v in values)}}};"
    return "\n".join([sizes, tail.statement, f"  im::{call};"]) + "\n", values, tail.text


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


def planes_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "planes", and the sizes that they mention."""
    gradients = op["target"] == GRADIENTS
    refs = [v.type for v in op.operands if isinstance(v.type, RefType)]
    image, weight, out = (refs[1], refs[2], refs[0]) if gradients else refs
    values = [*image.shape, *out.shape[2:], *op["stride"], *op["padding"]]
    high, wide = weight.shape[2:]
    call = f"depthwise<{high}, {wide}>(s, in0, in1, out0)"
    if gradients:
        places = {position: f"out{k}" for k, position in enumerate(gradients_of(op))}
        call = f"depthwise_gradients<{high}, {wide}>(s, in0, in1, in2, {places.get(0, 'nullptr')}, {places.get(1, 'nullptr')})"
    return f"  const im::Depthwise s{{{', '.join(cpp_index(v) for v in values)}}};\n  im::{call};\n", values


def points_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "points", and the sizes that they mention."""
    gradients = op["target"] == GRADIENTS
    refs = [v.type for v in op.operands if isinstance(v.type, RefType)]
    image, weight = refs[gradients : gradients + 2]
    n, inputs, rows, columns = image.shape
    values = [n, inputs, weight.shape[0], dim(rows * columns)]
    if gradients:
        places = {position: f"out{k}" for k, position in enumerate(gradients_of(op))}
        results = ", ".join(places.get(position, "nullptr") for position in range(3))
        call = f"points_gradients(s, in0, in1, in2, {results})"
    else:
        call = f"points(s, in0, in1, {'in2' if 'bias' in op['operands'] else 'nullptr'}, out0)"
    return f"  const im::Points s{{{', '.join(cpp_index(v) for v in values)}}};\n  im::{call};\n", values
