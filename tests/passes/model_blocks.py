"""Blocks of well-known models at the `prim` level: builders that return a module and arguments for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.dtypes import BY_TORCH
from intarsia.ir.symbols import contiguous_strides
from intarsia.ir.syntax import Op
from intarsia.ir.types import tensor_type

Program = tuple[ModuleOp, list[torch.Tensor]]


class Builder:
    """A function under construction, and random arguments for it."""

    def __init__(self) -> None:
        self.block = Block()
        self.args: list[torch.Tensor] = []

    def arg(self, *shape: int, channels_last: bool = False) -> SSAValue:
        x = torch.rand(shape) + 0.5
        return self.given(x.to(memory_format=torch.channels_last) if channels_last else x)

    def given(self, x: torch.Tensor) -> SSAValue:
        self.args.append(x)
        return self.block.insert_arg(tensor_type(x.shape, BY_TORCH[x.dtype]), len(self.block.args))

    def module(self, *results: SSAValue) -> Program:
        self.block.add_op(prim.Return.make(results))
        strides = [tuple(a.stride()) for a in self.args]
        attrs = {
            "sym_name": "main",
            "arg_names": tuple(f"a{i}" for i in range(len(self.args))),
            "arg_strides": tuple(
                None if s == contiguous_strides(a.shape) else s for s, a in zip(strides, self.args, strict=True)
            ),
            "results": tuple(("value", k) for k in range(len(results))),
        }
        return ModuleOp([prim.Func.make([], [], attrs, [Region(self.block)])]), self.args

    def add(self, op: Op) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def op(self, name: str, *xs: SSAValue | float) -> SSAValue:
        """An elementwise operation; numbers become constants, row values and features are broadcast."""
        tensors = [x for x in xs if isinstance(x, SSAValue)]
        like = max((prim.tensor(x) for x in tensors), key=lambda t: t.rank)
        values = [x if isinstance(x, SSAValue) else self.add(prim.full(x, like)) for x in xs]
        return self.add(prim.elementwise(name, *values))

    def spread(self, x: SSAValue, like: SSAValue, dims: Sequence[int]) -> SSAValue:
        return self.add(prim.broadcast(x, prim.tensor(like).shape, tuple(dims)))

    def reduce(self, kind: str, x: SSAValue, *dims: int) -> SSAValue:
        return self.add(prim.reduce(kind, x, dims))

    def view(self, x: SSAValue, *shape: int) -> SSAValue:
        return self.add(prim.reshape(x, shape))

    def permute(self, x: SSAValue, *perm: int) -> SSAValue:
        return self.add(prim.permute(x, perm))

    def call(self, target: str, names: str, shape: Sequence[int], *xs: SSAValue, **attrs: object) -> SSAValue:
        first = prim.tensor(xs[0])
        literals = {"target": target, "operands": tuple(names.split()), **attrs}
        return self.add(kernel.Extern.make(xs, [first.with_(shape=shape)], literals))

    def linear(self, x: SSAValue, features: int) -> SSAValue:
        *outer, inner = prim.tensor(x).shape
        weight, bias = self.arg(features, inner), self.arg(features)
        return self.call("aten.linear.default", "input weight bias", (*outer, features), x, weight, bias)

    def softmax(self, x: SSAValue) -> SSAValue:
        last = prim.tensor(x).rank - 1
        rows = range(last)
        e = self.op("exp", self.op("sub", x, self.spread(self.reduce("max", x, last), x, rows)))
        return self.op("div", e, self.spread(self.reduce("sum", e, last), x, rows))

    def layer_norm(self, x: SSAValue) -> SSAValue:
        last = prim.tensor(x).rank - 1
        n, rows = float(prim.tensor(x).shape[last]), range(last)
        mean = self.op("div", self.reduce("sum", x, last), n)
        centred = self.op("sub", x, self.spread(mean, x, rows))
        variance = self.op("div", self.reduce("sum", self.op("mul", centred, centred), last), n)
        scale = self.op("rsqrt", self.op("add", variance, 1e-5))
        y = self.op("mul", centred, self.spread(scale, x, rows))
        weight, bias = self.arg(int(n)), self.arg(int(n))
        return self.op("add", self.op("mul", y, self.spread(weight, x, [last])), self.spread(bias, x, [last]))

    def gelu(self, x: SSAValue) -> SSAValue:
        inner = self.op("add", self.op("erf", self.op("mul", x, 0.7071067811865476)), 1.0)
        return self.op("mul", self.op("mul", x, 0.5), inner)

    def gelu_tanh(self, x: SSAValue) -> SSAValue:
        cube = self.op("mul", self.op("mul", x, x), x)
        inner = self.op("mul", self.op("add", x, self.op("mul", cube, 0.044715)), 0.7978845608)
        return self.op("mul", self.op("mul", x, 0.5), self.op("add", self.op("tanh", inner), 1.0))

    def heads(self, x: SSAValue, heads: int) -> SSAValue:
        b, s, h = prim.tensor(x).shape
        return self.permute(self.view(x, b, s, heads, h // heads), 0, 2, 1, 3)

    def attention(self, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue) -> SSAValue:
        """Softmax attention over heads; operands of the products lie as eager has them."""
        b, n, s, d = prim.tensor(q).shape
        strides = (s * n * d, d, n * d, 1)
        turned = (s * n * d, d, 1, n * d)
        k = self.permute(k, 0, 1, 3, 2)
        product = {"operand_strides": (strides, turned)}
        scores = self.call("aten.matmul.default", "self other", (b, n, s, s), q, k, **product)
        scores = self.op("add", self.op("mul", scores, d**-0.5), mask)
        p = self.softmax(scores)
        out = self.call("aten.matmul.default", "self other", (b, n, s, d), p, v, operand_strides=(None, strides))
        return self.view(self.permute(out, 0, 2, 1, 3), b, s, n * d)

    def batch_norm(self, x: SSAValue) -> SSAValue:
        c = prim.tensor(x).shape[1]
        mean, var, weight, bias = (self.arg(c) for _ in range(4))
        scale = self.op("rsqrt", self.op("add", var, 1e-5))
        y = self.op("mul", self.op("sub", x, self.spread(mean, x, [1])), self.spread(scale, x, [1]))
        return self.op("add", self.op("mul", y, self.spread(weight, x, [1])), self.spread(bias, x, [1]))


def bert(layers: int = 2, batch: int = 2, length: int = 8, hidden: int = 32, heads: int = 4) -> Program:
    """Embeddings with their norm, the mask, and encoder layers."""
    b = Builder()
    ids = b.given(torch.randint(0, 50, (batch, length)))
    attend = b.given(torch.ones(batch, length, dtype=torch.int64))
    words, places = b.arg(50, hidden), b.arg(length, hidden)
    x = b.add(prim.Take.make([words, ids], [tensor_type([batch, length, hidden], BY_TORCH[torch.float32])], {"dim": 0}))
    x = b.layer_norm(b.op("add", x, b.spread(places, x, [1, 2])))
    mask = b.add(prim.cast(b.view(attend, batch, 1, 1, length), BY_TORCH[torch.float32]))
    mask = b.op("mul", b.op("sub", 1.0, mask), -3.0e38)
    for _ in range(layers):
        q, k, v = (b.heads(b.linear(x, hidden), heads) for _ in range(3))
        full = b.add(prim.broadcast(mask, (batch, heads, length, length), (0, 1, 2, 3)))
        a = b.linear(b.attention(q, k, v, full), hidden)
        x = b.layer_norm(b.op("add", a, x))
        m = b.linear(b.gelu(b.linear(x, 4 * hidden)), hidden)
        x = b.layer_norm(b.op("add", m, x))
    return b.module(x)


def gpt2(layers: int = 2, batch: int = 2, length: int = 8, hidden: int = 32, heads: int = 4) -> Program:
    """Decoder layers with the norm before each part, q, k and v cut from one product."""
    b = Builder()
    x = b.arg(batch, length, hidden)
    mask = b.arg(length, length)
    for _ in range(layers):
        qkv = b.linear(b.layer_norm(x), 3 * hidden)
        t = prim.tensor(x)
        parts = []
        for k in range(3):
            attrs = {"starts": (0, 0, k * hidden), "steps": (1, 1, 1)}
            parts.append(b.heads(b.add(prim.Slice.make([qkv], [t], attrs)), heads))
        q, k, v = parts
        d = hidden // heads
        rows = (length * 3 * hidden, d, 3 * hidden, 1)
        scores = b.call(
            "aten.matmul.default",
            "self other",
            (batch, heads, length, length),
            q,
            b.permute(k, 0, 1, 3, 2),
            operand_strides=(rows, (rows[0], rows[1], 1, rows[2])),
        )
        scores = b.op("add", b.op("mul", scores, d**-0.5), b.spread(mask, scores, [2, 3]))
        p = b.softmax(scores)
        shape = (batch, heads, length, d)
        out = b.call("aten.matmul.default", "self other", shape, p, v, operand_strides=(None, rows))
        a = b.linear(b.view(b.permute(out, 0, 2, 1, 3), batch, length, hidden), hidden)
        x = b.op("add", a, x)
        m = b.linear(b.gelu_tanh(b.linear(b.layer_norm(x), 4 * hidden)), hidden)
        x = b.op("add", m, x)
    return b.module(b.layer_norm(x))


def resnet_block(channels_last: bool = False, size: int = 8) -> Program:
    """Two convolutions with batch norms (of fixed statistics), the shortcut, and the pooling after the last block."""
    b = Builder()
    n, c = 2, 8
    x = b.arg(n, c, size, size, channels_last=channels_last)
    strides = (c * size * size, 1, c * size, c)
    layout = {"operand_strides": (strides, None), "strides": (strides,)} if channels_last else {}

    def conv(y: SSAValue) -> SSAValue:
        attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, **layout}
        return b.call("aten.conv2d.default", "input weight", (n, c, size, size), y, b.arg(c, c, 3, 3), **attrs)

    def relu(y: SSAValue) -> SSAValue:
        return b.op("max", y, 0.0)

    y = relu(b.batch_norm(conv(x)))
    y = relu(b.op("add", b.batch_norm(conv(y)), x))
    pooled = b.op("div", b.reduce("sum", y, 2, 3), float(size * size))
    return b.module(b.linear(pooled, 10))


def llama_layer(batch: int = 2, length: int = 8, hidden: int = 32, heads: int = 4) -> Program:
    """RMS norm, rotary positions and a gated part."""
    b = Builder()
    x = b.arg(batch, length, hidden)
    d = hidden // heads
    cos, sin = b.arg(length, d), b.arg(length, d)

    def norm(y: SSAValue) -> SSAValue:
        square = b.reduce("sum", b.op("mul", y, y), 2)
        scale = b.op("rsqrt", b.op("add", b.op("div", square, float(hidden)), 1e-6))
        return b.op("mul", b.op("mul", y, b.spread(scale, y, [0, 1])), b.spread(b.arg(hidden), y, [2]))

    def rotate(y: SSAValue) -> SSAValue:
        t = prim.tensor(y)
        half = t.with_(shape=(*t.shape[:3], d // 2))
        cut = {"starts": (0, 0, 0, 0), "steps": (1, 1, 1, 1)}
        low = b.add(prim.Slice.make([y], [half], cut))
        high = b.add(prim.Slice.make([y], [half], cut | {"starts": (0, 0, 0, d // 2)}))
        turned = b.add(prim.Concat.make([b.op("neg", high), low], [t], {"dim": 3}))
        return b.op("add", b.op("mul", y, b.spread(cos, y, [2, 3])), b.op("mul", turned, b.spread(sin, y, [2, 3])))

    y = norm(x)
    q, k = (rotate(b.heads(b.linear(y, hidden), heads)) for _ in range(2))
    shape = (batch, heads, length, length)
    turned = b.permute(k, 0, 1, 3, 2)
    strides = (heads * length * d, length * d, 1, d)
    scores = b.call("aten.matmul.default", "self other", shape, q, turned, operand_strides=(None, strides))
    v = b.heads(b.linear(y, hidden), heads)
    rows = (length * hidden, d, hidden, 1)
    out = b.call(
        "aten.matmul.default",
        "self other",
        (batch, heads, length, d),
        b.softmax(scores),
        v,
        operand_strides=(None, rows),
    )
    x = b.op("add", x, b.linear(b.view(b.permute(out, 0, 2, 1, 3), batch, length, hidden), hidden))
    y = norm(x)
    gate = b.linear(y, 64)
    gated = b.op("mul", b.op("mul", gate, b.op("sigmoid", gate)), b.linear(y, 64))
    return b.module(b.op("add", x, b.linear(gated, hidden)))


def group_norm(groups: int = 4) -> Program:
    """Group norm with its weights per channel and a SiLU after it."""
    b = Builder()
    n, c, size = 4, 16, 8
    x = b.arg(n, c, size, size)
    grouped = b.view(x, n, groups, c // groups * size * size)
    count = float(c // groups * size * size)
    mean = b.op("div", b.reduce("sum", grouped, 2), count)
    centred = b.op("sub", grouped, b.spread(mean, grouped, [0, 1]))
    var = b.op("div", b.reduce("sum", b.op("mul", centred, centred), 2), count)
    scale = b.op("rsqrt", b.op("add", var, 1e-5))
    y = b.view(b.op("mul", centred, b.spread(scale, grouped, [0, 1])), n, c, size, size)
    y = b.op("add", b.op("mul", y, b.spread(b.arg(c), y, [1])), b.spread(b.arg(c), y, [1]))
    return b.module(b.op("mul", y, b.op("sigmoid", y)))


def swin_shift(batch: int = 2, size: int = 8, hidden: int = 16, window: int = 4) -> Program:
    """A norm, the cyclic shift, and the cut into windows before a product."""
    b = Builder()
    y = b.layer_norm(b.arg(batch, size, size, hidden))
    for d in (1, 2):
        t = prim.tensor(y)
        parts = []
        for start, count in ((2, size - 2), (0, 2)):
            starts = tuple(start if i == d else 0 for i in range(4))
            shape = tuple(count if i == d else s for i, s in enumerate(t.shape))
            parts.append(b.add(prim.Slice.make([y], [t.with_(shape=shape)], {"starts": starts, "steps": (1,) * 4})))
        y = b.add(prim.Concat.make(parts, [t], {"dim": d}))
    k = size // window
    y = b.permute(b.view(y, batch, k, window, k, window, hidden), 0, 1, 3, 2, 4, 5)
    return b.module(b.linear(b.view(y, batch * k * k, window * window, hidden), hidden))
