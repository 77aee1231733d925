"""Operators of ONNX, opsets 13 to 20, as calls of torch: a rule each. They hold for values of a graph and for tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .onnx_places import PLACES

Rule = Callable[[Any], Any]  # takes a `from_onnx.Call`


def _same(function: Any) -> Rule:
    return lambda c: function(*c.values)


def _matmul(c: Any) -> Any:
    return torch.matmul(*c.values)


def _gemm(c: Any) -> Any:
    a, b = c.values[:2]
    a, b = (v.transpose(0, 1) if c.get(name, 0) else v for v, name in ((a, "transA"), (b, "transB")))
    made = torch.matmul(a, b)
    made = made if c.get("alpha", 1.0) == 1.0 else made * c.get("alpha", 1.0)
    if c.has(2):
        beta = c.get("beta", 1.0)
        made = made + (c.values[2] if beta == 1.0 else c.values[2] * beta)
    return made


def _pow(c: Any) -> Any:
    return torch.pow(c.values[0], c.values[1]).to(c.dtype(0))


def _div(c: Any) -> Any:
    whole = not c.dtype(0).is_floating_point
    return torch.div(*c.values, rounding_mode="trunc") if whole else torch.div(*c.values)


def _mod(c: Any) -> Any:
    return (torch.fmod if c.get("fmod", 0) else torch.remainder)(*c.values)


def _joined(function: Any) -> Rule:
    """Of one or more."""

    def rule(c: Any) -> Any:
        made = c.values[0]
        for value in c.values[1:]:
            made = function(made, value)
        return made

    return rule


def _clip(c: Any) -> Any:
    x = c.values[0]
    x = torch.maximum(x, c.values[1]) if c.has(1) else x
    return torch.minimum(x, c.values[2]) if c.has(2) else x


def _gelu(c: Any) -> Any:
    return F.gelu(c.values[0], approximate=c.get("approximate", "none"))


def _hard_sigmoid(c: Any) -> Any:
    return torch.clamp(c.values[0] * c.get("alpha", 0.2) + c.get("beta", 0.5), 0.0, 1.0)


def _conv(c: Any) -> Any:
    x, w = c.values[:2]
    bias = c.values[2] if c.has(2) else None
    rank = len(c.shape(0)) - 2
    if rank not in (1, 2, 3):
        c.fail(f"a convolution of {rank} dimensions")
    ones = [1] * rank
    stride, dilation = c.get("strides", ones), c.get("dilations", ones)
    kernel = list(c.shape(1)[2:])
    low, high = _pads(c, rank, kernel, stride, dilation)
    if low != high:
        x = F.pad(x, [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair])
        low = [0] * rank
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return run(x, w, bias, stride, low, dilation, c.get("group", 1))


def _pads(c: Any, rank: int, kernel: list[int], stride: list[int], dilation: list[int]) -> tuple[list[int], list[int]]:
    """What stands in front of and behind each dimension."""
    auto = c.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = c.get("pads", [0] * (2 * rank))
        return pads[:rank], pads[rank:]
    if auto == "VALID":
        return [0] * rank, [0] * rank
    low, high = [], []
    for size, k, s, d in zip(c.shape(0)[2:], kernel, stride, dilation, strict=True):
        more = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        small, large = more // 2, more - more // 2
        low.append(large if auto == "SAME_LOWER" else small)
        high.append(small if auto == "SAME_LOWER" else large)
    return low, high


def _conv_transpose(c: Any) -> Any:
    rank = len(c.shape(0)) - 2
    if rank not in (1, 2, 3) or c.get("auto_pad", "NOTSET") != "NOTSET" or c.get("output_shape", None):
        c.fail("this padding is not taken")
    ones, pads = [1] * rank, c.get("pads", [0] * (2 * rank))
    if pads[:rank] != pads[rank:]:
        c.fail("paddings of two sizes are not taken")
    run: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    more = c.get("output_padding", [0] * rank)
    bias = c.values[2] if c.has(2) else None
    return run(
        *c.values[:2], bias, c.get("strides", ones), pads[:rank], more, c.get("group", 1), c.get("dilations", ones)
    )


def _max_pool(c: Any) -> Any:
    x, kernel = c.values[0], c.get("kernel_shape")
    rank = len(kernel)
    stride, dilation = c.get("strides", [1] * rank), c.get("dilations", [1] * rank)
    low, high = _pads(c, rank, kernel, stride, dilation)
    if rank not in (1, 2, 3) or c.get("ceil_mode", 0) or c.outputs > 1:
        c.fail("rounding up, or the places of the largest, is not taken")
    if not c.dtype(0).is_floating_point:
        c.fail("the largest of integers is not taken")
    if any((*low, *high)):
        x = F.pad(x, [n for p in zip(reversed(low), reversed(high), strict=True) for n in p], value=-math.inf)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1](x, kernel, stride, 0, dilation)


def _average_pool(c: Any) -> Any:
    kernel = c.get("kernel_shape")
    rank = len(kernel)
    stride = c.get("strides", [1] * rank)
    low, high = _pads(c, rank, kernel, stride, [1] * rank)
    if rank not in (1, 2, 3) or c.get("ceil_mode", 0) or low != high or any(n != 1 for n in c.get("dilations", [1])):
        c.fail("rounding up, and paddings of two sizes, are not taken")
    run: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    return run(c.values[0], kernel, stride, low, count_include_pad=bool(c.get("count_include_pad", 0)))


def _global_average(c: Any) -> Any:
    return torch.mean(c.values[0], list(range(2, len(c.shape(0)))), keepdim=True)


def _batch_norm(c: Any) -> Any:
    x, scale, bias, mean, var = c.values[:5]
    if c.get("training_mode", 0):
        c.fail("batch norm in training is not taken")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, c.get("epsilon", 1e-5))


def _layer_norm(c: Any) -> Any:
    axis = c.axis(c.get("axis", -1))
    shape = list(c.shape(0)[axis:])
    bias = c.values[2] if c.has(2) else None
    if list(c.shape(1)) != shape or c.outputs > 1:
        c.fail("a scale that is broadcast, or more than one result, is not taken")
    return F.layer_norm(c.values[0], shape, c.values[1], bias, c.get("epsilon", 1e-5))


def _instance_norm(c: Any) -> Any:
    return F.instance_norm(c.values[0], None, None, c.values[1], c.values[2], True, 0.0, c.get("epsilon", 1e-5))


def _reshape(c: Any) -> Any:
    wanted = c.integers(1)
    if not c.get("allowzero", 0):
        wanted = [c.shape(0)[k] if n == 0 else n for k, n in enumerate(wanted)]
    return c.values[0].reshape(wanted)


def _flatten(c: Any) -> Any:
    axis, shape = c.get("axis", 1), c.shape(0)
    axis += len(shape) if axis < 0 else 0
    return c.values[0].reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))


def _transpose(c: Any) -> Any:
    return c.values[0].permute(c.get("perm", list(reversed(range(len(c.shape(0)))))))


def _concat(c: Any) -> Any:
    return torch.cat(list(c.values), c.get("axis"))


def _split(c: Any) -> Any:
    axis = c.axis(c.get("axis", 0))
    size = c.shape(0)[axis]
    part = -(-size // c.outputs)
    sizes = c.integers(1) if c.has(1) else [min(part, size - k * part) for k in range(c.outputs)]
    made = torch.split(c.values[0], sizes, axis)
    return [made[k] for k in range(c.outputs)]


def _slice(c: Any) -> Any:
    x, shape = c.values[0], c.shape(0)
    starts, ends = c.integers(1), c.integers(2)
    axes = c.integers(3) if c.has(3) else list(range(len(starts)))
    steps = c.integers(4) if c.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = c.axis(axis)
        taken = range(*slice(start, end if step > 0 or end >= -shape[d] else None, step).indices(shape[d]))
        if step < 0:
            x = torch.flip(x, [d])
            first = shape[d] - 1 - taken.start
            found = slice(first, first + (len(taken) - 1) * -step + 1 if taken else first, -step)
        else:
            found = slice(taken.start, taken.stop, step)
        x = x[(*[slice(None)] * d, found)]
    return x


def _gather(c: Any) -> Any:
    axis, (x, index) = c.axis(c.get("axis", 0)), c.values
    size = c.shape(0)[axis]
    known = c.known(1)
    if known is None or bool((known < 0).any()):
        index = torch.where(index < 0, index + size, index)
    if c.shape(1) == ():
        return torch.index_select(x, axis, index.reshape(1)).squeeze(axis)
    made = torch.index_select(x, axis, index.reshape(-1))
    return made.reshape([*c.shape(0)[:axis], *c.shape(1), *c.shape(0)[axis + 1 :]])


def _gather_elements(c: Any) -> Any:
    axis, (x, index) = c.axis(c.get("axis", 0)), c.values
    return torch.gather(x, axis, torch.where(index < 0, index + c.shape(0)[axis], index).to(torch.int64))


def _squeeze(c: Any) -> Any:
    shape = c.shape(0)
    axes = [c.axis(a) for a in c.integers(1)] if c.has(1) else [k for k, n in enumerate(shape) if n == 1]
    if any(shape[a] != 1 for a in axes):
        c.fail("a size that is not 1 is squeezed")
    return c.values[0].reshape([n for k, n in enumerate(shape) if k not in axes])


def _unsqueeze(c: Any) -> Any:
    axes, shape = c.integers(1), list(c.shape(0))
    rank = len(shape) + len(axes)
    for a in sorted(a + rank if a < 0 else a for a in axes):
        shape.insert(a, 1)
    return c.values[0].reshape(shape)


def _expand(c: Any) -> Any:
    return c.values[0].expand(torch.broadcast_shapes(c.shape(0), tuple(c.integers(1))))


def _tile(c: Any) -> Any:
    return c.values[0].repeat(c.integers(1))


def _cast(c: Any) -> Any:
    return c.values[0].to(c.dtype_numbered(c.get("to")))


def _cast_like(c: Any) -> Any:
    return c.values[0].to(c.dtype(1))


def _constant_of_shape(c: Any) -> Any:
    value = c.get("value", None)
    value = torch.zeros(1, device="cpu") if value is None else value
    return c.make(torch.full, c.integers(0), value.reshape(-1)[0].item(), dtype=value.dtype)


def _range(c: Any) -> Any:
    start, stop, step = (c.number(k) for k in range(3))
    return c.make(torch.arange, start, stop, step, dtype=c.dtype(0))


def _reduced(function: Any) -> Rule:
    """Axes are an attribute or, from opset 18 on (sums: 13), an input."""

    def rule(c: Any) -> Any:
        given = c.integers(1) if c.has(1) else c.get("axes", None)
        if not given and c.get("noop_with_empty_axes", 0):
            return c.values[0]
        axes = [c.axis(a) for a in given] if given else list(range(len(c.shape(0))))
        return function(c.values[0], axes, bool(c.get("keepdims", 1))) if axes else c.values[0]

    return rule


def _prod(x: Any, axes: list[int], keep: bool) -> Any:
    for a in sorted(axes, reverse=True):
        x = torch.prod(x, a, keepdim=keep)
    return x


def _arg(function: Any) -> Rule:
    def rule(c: Any) -> Any:
        if c.get("select_last_index", 0):
            c.fail("the last place is not taken")
        return function(c.values[0], c.axis(c.get("axis", 0)), bool(c.get("keepdims", 1)))

    return rule


def _cumsum(c: Any) -> Any:
    if c.get("exclusive", 0) or c.get("reverse", 0):
        c.fail("a sum without the element, or backwards, is not taken")
    return torch.cumsum(c.values[0], c.axis(int(c.number(1))), dtype=c.dtype(0))


def _pad(c: Any) -> Any:
    mode, pads, rank = c.get("mode", "constant"), c.integers(1), len(c.shape(0))
    axes = [c.axis(a) for a in c.integers(3)] if c.has(3) else list(range(rank))
    table = [[0, 0] for _ in range(rank)]
    for k, a in enumerate(axes):
        table[a] = [pads[k], pads[k + len(axes)]]
    if mode != "constant":
        c.fail(f"the mode {mode} is not taken")
    value = c.number(2) if c.has(2) else 0
    return F.pad(c.values[0], [n for pair in reversed(table) for n in pair], value=value)


def _trilu(c: Any) -> Any:
    k = int(c.number(1)) if c.has(1) else 0
    return (torch.triu if c.get("upper", 1) else torch.tril)(c.values[0], k)


def _softmax(function: Any) -> Rule:
    return lambda c: function(c.values[0], c.axis(c.get("axis", -1)))


def _dropout(c: Any) -> Any:
    if c.has(2) and bool(c.number(2)):
        c.fail("dropout in training is not taken")
    return c.values[0]


def _topk(c: Any) -> Any:
    made = torch.topk(
        c.values[0],
        int(c.integers(1)[0]),
        c.axis(c.get("axis", -1)),
        bool(c.get("largest", 1)),
        bool(c.get("sorted", 1)),
    )
    return [made[0], made[1]]


CALLS: dict[str, Rule] = {
    **{
        name: _same(function)
        for name, function in {
            "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Sqrt": torch.sqrt, "Erf": torch.erf,
            "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Relu": torch.relu, "Exp": torch.exp, "Log": torch.log,
            "Neg": torch.neg, "Abs": torch.abs, "Reciprocal": torch.reciprocal, "Sin": torch.sin, "Cos": torch.cos,
            "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign, "Softplus": F.softplus,
            "HardSwish": F.hardswish, "Where": torch.where, "Equal": torch.eq, "Less": torch.lt, "Greater": torch.gt,
            "LessOrEqual": torch.le, "GreaterOrEqual": torch.ge, "And": torch.logical_and, "Or": torch.logical_or,
            "Xor": torch.logical_xor, "Not": torch.logical_not, "IsNaN": torch.isnan, "Atan": torch.atan,
            "Sinh": torch.sinh, "Cosh": torch.cosh, "Tan": torch.tan,
        }.items()
    },
    "Identity": lambda c: c.values[0], "MatMul": _matmul, "Gemm": _gemm, "Pow": _pow, "Div": _div, "Mod": _mod,
    "Min": _joined(torch.minimum), "Max": _joined(torch.maximum), "Sum": _joined(torch.add), "Clip": _clip,
    "Gelu": _gelu, "HardSigmoid": _hard_sigmoid, "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "LeakyRelu": lambda c: F.leaky_relu(c.values[0], c.get("alpha", 0.01)),
    "Elu": lambda c: F.elu(c.values[0], c.get("alpha", 1.0)),
    "AveragePool": _average_pool, "GlobalAveragePool": _global_average, "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm, "Reshape": _reshape,
    "Flatten": _flatten, "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather,
    "GatherElements": _gather_elements, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Expand": _expand, "Tile": _tile,
    "Cast": _cast, "CastLike": _cast_like, "ConstantOfShape": _constant_of_shape, "Range": _range,
    "ReduceMean": _reduced(torch.mean), "ReduceSum": _reduced(lambda x, a, k: torch.sum(x, a, k)),
    "ReduceMax": _reduced(torch.amax), "ReduceMin": _reduced(torch.amin), "ReduceProd": _reduced(_prod),
    "ReduceL2": _reduced(lambda x, a, k: torch.sqrt(torch.sum(x * x, a, k))),
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "CumSum": _cumsum, "Pad": _pad, "Trilu": _trilu,
    "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax), "Dropout": _dropout, "TopK": _topk,
    "Einsum": lambda c: torch.einsum(c.get("equation"), *c.values), **PLACES,
}  # fmt: skip
