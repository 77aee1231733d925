"""Operators that stay library calls, brought into the form in which the library takes them fastest."""

from __future__ import annotations

from typing import cast

from xdsl.ir import SSAValue

from ....ir.dialects import kernel, prim
from ....ir.dialects.aten import overload
from ....ir.dialects.kernel import ATTENTION
from ....ir.dtypes import BF16, F16
from ....ir.symbols import dim, product
from ....ir.types import TensorType
from ...analysis.cost import IMAGE_CHANNELS
from .builder import CPU_RULES, Builder, NotCovered, Result, rule


@rule("linear.default")
def _linear(b: Builder) -> Result:
    """linear(x) -> reshape(linear(reshape(x))) for more than two dimensions: the library would do the same at every call."""
    x = b.tensor("input")
    given = [*b.op.get("operand_strides", ()), *b.op.get("strides", ())]
    if b.rank_of(x) <= 2 or b.rank_of(b.tensor("weight")) != 2 or any(s is not None for s in given):
        raise NotCovered("a product that the library does")
    shape = b.shape_of(x)
    rows = product(shape[:-1])
    flat = b.reshape(x, (rows, shape[-1]))
    operands = [flat if v is x else v for v in b.op.operands]
    result = b.type.with_(shape=(rows, b.type.shape[-1]))
    attrs = {"target": b.op.target, **b.op.literals}
    call = b.add(kernel.Extern.make(operands, [result], attrs))
    return b.add(prim.reshape(call, b.type.shape))


@rule("convolution.default", table=CPU_RULES)
def _convolution(b: Builder) -> Result:
    """convolution(x, w) -> linear(x, w) for images and windows of one pixel in bfloat16: oneDNN's call takes 25 to 50 us for what takes 2.

    Squeezed features of MobileNets and EfficientNets. Those of float32 go to a convolution of our own, with what follows them.
    """
    x, weight, bias = b.tensor("input"), b.tensor("weight"), b.maybe("bias")
    shape = b.shape_of(x)
    if b.rank_of(x) != 4 or b.dtype_of(x) != BF16 or shape[2:] != (1, 1) or b.shape_of(weight)[2:] != (1, 1):
        raise NotCovered("a convolution of more than one pixel")
    if b.get("transposed") or b.get("groups") != 1 or any(b.get("padding")) or 0 in (*shape, *b.type.shape):
        raise NotCovered("other ways of going over the image")
    operands = [b.reshape(x, shape[:2]), b.reshape(weight, b.shape_of(weight)[:2]), *([] if bias is None else [bias])]
    attrs = {"target": "aten.linear.default", "operands": ("input", "weight", "bias")[: len(operands)]}
    call = b.add(kernel.Extern.make(operands, [b.type.with_(shape=b.type.shape[:2])], attrs))
    return b.add(prim.reshape(call, b.type.shape))


@rule("convolution.default")
def _convolution_on_gpu(b: Builder) -> Result:
    """convolution(x, w, bias) -> convolution(x, w) + bias, or a product where the windows are patches side by side.

    ATen adds the bias in a pass of its own, ours is part of what follows.
    """
    x, weight, bias = b.tensor("input"), b.tensor("weight"), b.maybe("bias")
    patches = _patches(b, x, weight)
    if bias is None and patches is None or not b.type.dtype.is_float:
        raise NotCovered("a convolution of the library's")
    plain = _plain(b) if patches is None else patches
    if bias is None:
        return plain
    spread = b.add(prim.broadcast(bias, b.type.shape, (1,)))
    return b.finish(b.ew("add", b.up(plain), b.up(spread)))


@rule("convolution_backward.default")
def _convolution_backward(b: Builder) -> Result:
    """The bias's gradient is a sum of ours, part of what computes the gradient that arrives; the image's gradient of a convolution with
    one filter a channel is such a convolution with the window turned round (18 of ConvNeXt's: 67 us each by cuDNN, 10 by ours on an H200).
    """
    g, weight = b.tensor("grad_output"), b.tensor("weight")
    returned: tuple[int, ...] = tuple(b.op.literals.get("returned", (0, 1, 2)))
    if not b.on_gpu or not b.dtype_of(g).is_float:
        raise NotCovered("a derivative of the library's")
    made: dict[int, SSAValue] = {}
    if 2 in returned:
        sizes = [d for d in range(b.rank_of(g)) if d != 1]
        made[2] = b.finish(b.reduce("sum", b.up(g), sizes), returned.index(2))
    if 0 in returned and _turns_round(b, g, weight):
        made[0] = _turned_round(b, g, weight, returned.index(0))
    if not made:
        raise NotCovered("a derivative of the library's")
    rest = [k for k, which in enumerate(returned) if which not in made]
    if rest:
        literals = dict(b.op.literals) | {"returned": tuple(returned[k] for k in rest)}
        literals["output_mask"] = tuple(k in literals["returned"] for k in range(3))
        if literals.get("strides"):
            literals["strides"] = tuple(literals["strides"][k] for k in rest)
        kinds = [b.op.results[k].type for k in rest]
        call = kernel.Extern.make(list(b.op.operands), kinds, {"target": b.op.target, **literals})
        b.add(call)
        made |= {returned[k]: value for k, value in zip(rest, call.results, strict=True)}
    return [made.get(which) for which in range(max(returned) + 1)]


def _turns_round(b: Builder, g: SSAValue, weight: SSAValue) -> bool:
    """Whether the image's gradient is a convolution of one filter a channel."""
    known = b.shape_of(weight)
    if b.rank_of(g) != 4 or not all(isinstance(n, int) for n in known) or b.get("transposed"):
        return False
    alone = b.get("groups") == known[0] == b.shape_of(b.tensor("input"))[1] and known[0] > 1
    steps = all(set(b.get(name)) == {1} for name in ("stride", "dilation"))
    return alone and steps and all(low < size for low, size in zip(b.get("padding"), known[2:], strict=True))


def _turned_round(b: Builder, g: SSAValue, weight: SSAValue, result: int) -> SSAValue:
    """The convolution of the gradient that arrives with each filter turned round."""
    turned = b.add(prim.Flip.make([weight], [prim.tensor(weight)], {"dims": (2, 3)}))
    low = tuple(size - 1 - low for size, low in zip(b.shape_of(weight)[2:], b.get("padding"), strict=True))
    literals: dict[str, object] = {"target": "aten.convolution.default", "operands": ("input", "weight")}
    literals |= {name: b.op.literals[name] for name in ("stride", "dilation", "transposed", "output_padding", "groups")}
    given, strides = b.op.literals.get("operand_strides"), b.op.literals.get("strides")
    if given and given[b.names.index("grad_output")] is not None:
        literals["operand_strides"] = (given[b.names.index("grad_output")], None)
    if strides and strides[result] is not None:
        literals["strides"] = (strides[result],)
    kind = prim.tensor(b.op.results[result])
    return b.add(kernel.Extern.make([g, turned], [kind], {**literals, "padding": low}))


def _plain(b: Builder) -> SSAValue:
    """The convolution without a bias."""
    kept = [place for place, name in enumerate(b.names) if name != "bias"]
    literals = dict(b.op.literals)
    for name in ("operands", "operand_strides"):
        if literals.get(name):
            literals[name] = tuple(literals[name][place] for place in kept)
    operands = [b.op.operands[place] for place in kept]
    return b.add(kernel.Extern.make(operands, [b.type], {"target": b.op.target, **literals}))


def _patches(b: Builder, x: SSAValue, weight: SSAValue) -> SSAValue | None:
    """Patches of an image of few channels, side by side, as rows of a product with the weight: the first layer of vision transformers."""
    if b.dtype_of(x) not in (F16, BF16) or b.rank_of(x) != 4 or b.get("transposed") or b.get("groups") != 1:
        return None
    n, *known = b.shape_of(x)
    if not all(isinstance(s, int) and s > 0 for s in (*known, *b.shape_of(weight))) or n == 0:
        return None
    channels, *sizes = cast(list[int], known)
    outputs, _, high, wide = cast(tuple[int, ...], b.shape_of(weight))
    rows, columns, inner = sizes[0] // high, sizes[1] // wide, channels * high * wide
    apart = tuple(b.get("stride")) == (high, wide) and not any(b.get("padding")) and set(b.get("dilation")) == {1}
    if not apart or channels >= IMAGE_CHANNELS or inner % 8 or min(high, wide) < 2 or 0 in (rows, columns):
        return None
    x = b.slice(b.slice(x, 2, 0, rows * high), 3, 0, columns * wide)
    x = b.permute(b.reshape(x, (n, channels, rows, high, columns, wide)), (0, 2, 4, 1, 3, 5))
    operands = [b.reshape(x, (dim(n * rows * columns), inner)), b.reshape(weight, (outputs, inner))]
    attrs = {"target": "aten.linear.default", "operands": ("input", "weight")}
    result = b.type.with_(shape=(dim(n * rows * columns), outputs))
    call = b.add(kernel.Extern.make(operands, [result], attrs))
    return b.permute(b.reshape(call, (n, rows, columns, outputs)), (0, 3, 1, 2))


@rule("_native_multi_head_attention.default")
def _multi_head_attention(b: Builder) -> Result:
    """The fast path of torch.nn.MultiheadAttention -> linear, attention, linear on a GPU, where attention has faster kernels than the path knows."""
    x = b.tensor("query")
    if b.tensor("key") is not x or b.tensor("value") is not x or b.has("mask"):
        raise NotCovered("attention between different sequences")
    if b.get("need_weights", True) or b.rank_of(x) != 3 or any(r.first_use is not None for r in b.op.results[1:]):
        raise NotCovered("attention whose weights are needed")
    n, length, width = b.shape_of(x)
    heads = b.get("num_head")
    if not isinstance(width, int) or b.shape_of(b.tensor("qkv_weight")) != (3 * width, width) or width % heads:
        raise NotCovered("heads of other sizes")
    rows = dim(n * length)
    all_ = b.reshape(_product(b, b.reshape(x, (rows, width)), "qkv"), (n, length, 3, heads, width // heads))
    parts = [b.reshape(b.slice(all_, 2, k, 1), (n, length, heads, width // heads)) for k in range(3)]
    operands = [b.permute(part, (0, 2, 1, 3)) for part in parts]
    attrs = {"target": ATTENTION, "operands": ("query", "key", "value")}
    mixed = b.add(kernel.Extern.make(operands, [prim.tensor(operands[0])], attrs))
    flat = b.reshape(b.permute(mixed, (0, 2, 1, 3)), (rows, width))
    result = b.reshape(_product(b, flat, "proj"), (n, length, width))
    return [result, *(None for _ in b.op.results[1:])]


def _product(b: Builder, x: SSAValue, name: str) -> SSAValue:
    """x by the weight and bias of that name."""
    weight = b.tensor(f"{name}_weight")
    result = b.type.with_(shape=(b.shape_of(x)[0], b.shape_of(weight)[0]))
    attrs = {"target": "aten.linear.default", "operands": ("input", "weight", "bias")}
    return b.add(kernel.Extern.make([x, weight, b.tensor(f"{name}_bias")], [result], attrs))


_SEEDS = ("philox_seed", "philox_offset", "rng_state", "unused")


@rule(
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
)
def _saved_attention(b: Builder) -> Result:
    """attention(q, k, v) -> attention(q, k, v), with zeros for the states of random generators where nothing is dropped.

    They are memory without values on whichever device the library likes; zeros lie where the types say, and recordings can copy them.
    """
    if b.get("dropout_p", 0.0) != 0.0:
        raise NotCovered("attention with dropout")
    made = kernel.Extern.make(
        list(b.op.operands), [r.type for r in b.op.results], {"target": b.op.target, **b.op.literals}
    )
    b.add(made)
    results: list[SSAValue | None] = list(made.results)
    for k, returned in enumerate(overload(b.op.target)._schema.returns):
        old = b.op.results[k]
        if returned.name in _SEEDS and isinstance(old.type, TensorType):
            results[k] = b.add(prim.full(0, old.type))
    return results
