"""Handwritten kernels: each a function that builds the region of one `kernel.fused` from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.dtypes import BF16, BOOL, F32, F64, I64, DType
from intarsia.ir.symbols import Dim, symbol
from intarsia.ir.syntax import Op
from intarsia.ir.types import TensorType, tensor_type

Shape = Sequence[Dim]
S0 = symbol("s0")
# constants of passes/analysis/cost.py that passes/schedule/gpu/cooperative.py reads as for a GPU that holds a few hundred elements
SMALL_GPU = {"SHARED_ROW_BYTES": 512, "SHARED_LEAST": 512, "ALONE": 256, "HELD": 128, "HELD_ODD": 128, "READ_ONCE": 64}
SMALL_GPU |= {"SHARED_LANES": (32, 32)}  # type: ignore[dict-item]


@dataclass
class Region_:
    """Appends prims to a block; each method returns the new value."""

    block: Block

    def add(self, op: Op) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def __getattr__(self, name: str) -> Callable[..., SSAValue]:
        if name in ("and_", "or_", "not_"):
            name = name[:-1]
        return lambda *args: self.add(prim.elementwise(name, *args))

    def const(self, value: Any, like: SSAValue) -> SSAValue:
        return self.add(prim.full(value, prim.tensor(like)))

    def cast(self, x: SSAValue, dtype: DType) -> SSAValue:
        return self.add(prim.cast(x, dtype))

    def bc(self, x: SSAValue, shape: Shape, dims: Sequence[int]) -> SSAValue:
        return self.add(prim.broadcast(x, tuple(shape), tuple(dims)))

    def reshape(self, x: SSAValue, *shape: Dim) -> SSAValue:
        return self.add(prim.reshape(x, shape))

    def permute(self, x: SSAValue, *perm: int) -> SSAValue:
        return self.add(prim.permute(x, perm))

    def slice(self, x: SSAValue, starts: Shape, steps: Shape, shape: Shape) -> SSAValue:
        return self.add(prim.Slice.make([x], [prim.tensor(x).with_(shape=shape)], {"starts": starts, "steps": steps}))

    def flip(self, x: SSAValue, *dims: int) -> SSAValue:
        return self.add(prim.Flip.make([x], [x.type], {"dims": dims}))

    def pad(self, x: SSAValue, low: Shape, high: Shape, value: Any) -> SSAValue:
        t = prim.tensor(x)
        shape = [s + a + b for s, a, b in zip(t.shape, low, high, strict=True)]
        return self.add(prim.Pad.make([x], [t.with_(shape=shape)], {"low": low, "high": high, "value": value}))

    def concat(self, dim: int, *xs: SSAValue) -> SSAValue:
        types = [prim.tensor(x) for x in xs]
        shape = list(types[0].shape)
        shape[dim] = sum(t.shape[dim] for t in types)
        return self.add(prim.Concat.make(xs, [types[0].with_(shape=shape)], {"dim": dim}))

    def take(self, x: SSAValue, index: SSAValue, dim: int, wrap: bool = False) -> SSAValue:
        t, i = prim.tensor(x), prim.tensor(index)
        shape = (*t.shape[:dim], *i.shape, *t.shape[dim + 1 :])
        return self.add(prim.Take.make([x, index], [t.with_(shape=shape)], {"dim": dim, "wrap": wrap}))

    def gather(self, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
        t, i = prim.tensor(x), prim.tensor(index)
        return self.add(prim.Gather.make([x, index], [t.with_(shape=i.shape)], {"dim": dim}))

    def reduce(self, kind: str, x: SSAValue, *dims: int) -> SSAValue:
        return self.add(prim.reduce(kind, x, dims))

    def scan(self, kind: str, x: SSAValue, dim: int) -> SSAValue:
        return self.add(prim.Scan.make([x], [x.type], {"kind": kind, "dim": dim}))

    def iota(self, shape: Shape, dim: int, start: Dim = 0, step: Dim = 1, dtype: DType = I64) -> SSAValue:
        attrs = {"dim": dim, "start": start, "step": step}
        return self.add(prim.Iota.make([], [tensor_type(shape, dtype)], attrs))

    # common pieces

    def keep(self, x: SSAValue, like: SSAValue, dim: int) -> SSAValue:
        """Broadcast a reduction over `dim` back to the shape of `like`."""
        shape = prim.tensor(like).shape
        return self.bc(x, shape, [d for d in range(len(shape)) if d != dim])

    def softmax(self, x: SSAValue, dim: int) -> SSAValue:
        e = self.exp(self.sub(x, self.keep(self.reduce("max", x, dim), x, dim)))
        return self.div(e, self.keep(self.reduce("sum", e, dim), x, dim))

    def mean(self, x: SSAValue, *dims: int) -> SSAValue:
        total = self.reduce("sum", x, *dims)
        count: Any = 1
        for d in dims:
            count = count * prim.tensor(x).shape[d]
        return self.div(total, self.const(count, total))

    def layer_norm(self, x: SSAValue, w: SSAValue, b: SSAValue) -> SSAValue:
        """Over the last dimension."""
        shape, last = prim.tensor(x).shape, prim.tensor(x).rank - 1
        centered = self.sub(x, self.keep(self.mean(x, last), x, last))
        var = self.mean(self.mul(centered, centered), last)
        scale = self.rsqrt(self.add_(var, self.const(1e-5, var)))
        y = self.mul(centered, self.keep(scale, x, last))
        return self.add_(self.mul(y, self.bc(w, shape, [last])), self.bc(b, shape, [last]))

    def add_(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.add(prim.elementwise("add", a, b))

    def gelu(self, x: SSAValue) -> SSAValue:
        half, root = self.const(0.5, x), self.const(0.7071067811865476, x)
        return self.mul(self.mul(x, half), self.add_(self.erf(self.mul(x, root)), self.const(1.0, x)))


def t(*shape: Dim, dtype: DType = F32) -> TensorType:
    return tensor_type(shape, dtype)


@dataclass
class Case:
    """A kernel: the types of its inputs and what it yields. `sizes`: values of symbols. `high`: bound of integer inputs."""

    name: str
    types: list[TensorType]
    build: Callable[..., Any]
    sizes: dict[str, int]
    high: int
    arg_strides: list[Any] | None = None
    strides: list[Any] | None = None

    def module(self) -> ModuleOp:
        """The kernel alone in a function."""
        block = Block(arg_types=self.types)
        inner = Block(arg_types=self.types)
        found = self.build(Region_(inner), *inner.args)
        outs = list(found) if isinstance(found, tuple | list) else [found]
        inner.add_op(kernel.Yield.make(outs))
        attrs = {"strides": self.strides} if self.strides else {}
        fused = kernel.Fused.make(list(block.args), [o.type for o in outs], attrs, [Region(inner)])
        block.add_op(fused)
        block.add_op(prim.Return.make(list(fused.results)))
        symbols = []
        for name in self.sizes:
            for k, a in enumerate(self.types):
                where = [d for d, s in enumerate(a.shape) if s == symbol(name)]
                if where:
                    symbols.append((name, k, where[0], 0, None))
                    break
        nothing = [None] * len(self.types)
        func_attrs = {
            "sym_name": "main",
            "arg_names": [f"x{k}" for k in range(len(self.types))],
            "arg_strides": self.arg_strides or nothing,
            "arg_static": [False] * len(self.types),
            "result_strides": self.strides or [None] * len(outs),
            "symbols": symbols,
            "results": [("value", k) for k in range(len(outs))],
            "mutations": [],
        }
        return ModuleOp([prim.Func.make([], [], func_attrs, [Region(block)])])


CASES: dict[str, Case] = {}


def case(
    *types: TensorType,
    high: int = 4,
    arg_strides: list[Any] | None = None,
    strides: list[Any] | None = None,
    **sizes: int,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(build: Callable[..., Any]) -> Callable[..., Any]:
        name = build.__name__.rstrip("_")
        CASES[name] = Case(name, list(types), build, sizes, high, arg_strides, strides)
        return build

    return note


@case(t(5, 7), t(5, 7))
def sin_cos(k, x, y):
    return k.add_(k.sin(x), k.cos(y))


@case(t(S0, 7), t(7), s0=5)
def bias_gelu(k, x, b):
    return k.gelu(k.add_(x, k.bc(b, (S0, 7), [1])))


@case(t(300, 130))
def long_relu(k, x):
    return k.max(x, k.const(0.0, x))


@case(t(1030, 40), t(40))
def channel_statistics(k, x, w):
    """Chunks of the columns have a mean of their own; the last chunk is shorter."""
    x = k.add_(x, k.const(50.0, x))
    mean = k.mean(x, 0)
    d = k.sub(x, k.bc(mean, (1030, 40), [1]))
    variance = k.mean(k.mul(d, d), 0)
    return mean, variance, k.mul(k.rsqrt(k.add_(variance, k.const(1e-5, variance))), w)


@case(t(1030, 40), t(1030, 40), t(40))
def channel_gradients(k, g, x, mean):
    """Two sums of columns in one reading, and what is computed of a column behind them."""
    d = k.sub(x, k.bc(mean, (1030, 40), [1]))
    first, second = k.reduce("sum", g, 0), k.reduce("sum", k.mul(g, d), 0)
    return first, second, k.add_(first, k.mul(second, mean))


LAST = [40 * 272, 1, 40 * 17, 40]  # channels-last strides of (4, 40, 16, 17)


@case(*[t(4, 40, 16, 17)] * 4, *[t(40)] * 2, arg_strides=[LAST] * 4 + [None] * 2, strides=[None] * 5 + [LAST])
def gradients_of_two_norms(k, g, y, x, z, m, n):
    """Sums over the same columns of two norms, and what both add up: one nest of chunks reads and stores all."""
    g = k.where(k.le(y, k.const(0.0, y)), k.const(0.0, g), g)
    found = []
    for v, mean in ((x, m), (z, n)):
        total = k.reduce("sum", k.mul(g, k.sub(v, k.bc(mean, (4, 40, 16, 17), [1]))), 0, 2, 3)
        found += [k.mul(total, mean), k.mul(total, total)]
    return *found, k.reduce("sum", g, 0, 2, 3), g


@case(*[t(4, 40, 16, 17)] * 2, t(4), t(40), arg_strides=[LAST, LAST, None, None], strides=[None, None, LAST, None])
def gradients_of_image_and_rows(k, g, x, keep, w):
    """Columns of an image, and of a matrix of its pixels: one stage, and both are stored by it."""
    g = k.mul(g, k.bc(keep, (4, 40, 16, 17), [0]))
    rows = k.reshape(k.permute(k.mul(g, k.bc(w, (4, 40, 16, 17), [1])), 0, 2, 3, 1), 1088, 40)
    return k.reduce("sum", k.mul(g, x), 0, 2, 3), k.reduce("sum", rows, 0), g, rows


@case(t(3, 40, 90, 91), t(3, 40, 88, 89), arg_strides=[[40 * 8190, 1, 40 * 91, 40], [40 * 7832, 1, 40 * 89, 40]])
def gradients_of_windows(k, x, y):
    """Columns of an image whose loops do not become one, because of what is put around the other."""
    inside = k.pad(y, (0, 0, 1, 1), (0, 0, 1, 1), 0.0)
    return k.reduce("sum", k.mul(x, inside), 0, 2, 3), k.reduce("sum", k.add_(x, inside), 0, 2, 3)


@case(t(3, 17, 30, 64), t(3, 17, 30, 64))
def columns_in_pieces(k, x, y):
    """Columns that lie in three pieces of 64, as a bias's gradient behind attention; and a scale of each."""
    flat = [k.reshape(k.permute(v, 1, 2, 0, 3), 510, 192) for v in (x, y)]
    total = k.reduce("sum", flat[0], 0)
    return total, k.reduce("sum", k.mul(*flat), 0), k.mul(total, total)


@case(t(24, 40, 50), t(24, 40, 50), t(24))
def row_gradients(k, g, x, mean):
    """Two sums of rows, and the rows again: a batch norm's derivative."""
    d = k.sub(x, k.bc(mean, (24, 40, 50), [0]))
    first, second = k.mean(g, 1, 2), k.mean(k.mul(g, d), 1, 2)
    wide = [k.bc(v, (24, 40, 50), [0]) for v in (first, second)]
    return first, second, k.sub(k.sub(g, wide[0]), k.mul(d, wide[1]))


@case(t(5, 33))
def softmax(k, x):
    return k.softmax(x, 1)


@case(t(S0, 3, 40), s0=4)
def softmax_symbolic(k, x):
    return k.softmax(x, 2)


@case(t(40, 70))
def softmax_columns(k, x):
    return k.softmax(x, 0)


@case(t(3, 40, 70))
def softmax_middle(k, x):
    return k.softmax(x, 1)


@case(t(4, S0), s0=37)
def softmax_long_rows(k, x):
    return k.softmax(x, 1)


@case(t(70000))
def softmax_one_row(k, x):
    return k.softmax(x, 0)


@case(t(16, 1101))
def softmax_shared_rows(k, x):
    return k.softmax(x, 1)


@case(t(150, 40))
def softmax_columns_shared_rows(k, x):
    return k.softmax(x, 0)


@case(t(3, 150, 24))
def column_variance_shared_rows(k, x):
    mean = k.mean(x, 1)
    c = k.sub(x, k.keep(mean, x, 1))
    return mean, k.mean(k.mul(c, c), 1)


@case(t(16, 1024, dtype=BF16), t(1024), t(1024))
def layer_norm_shared_rows(k, x, w, b):
    return k.layer_norm(k.cast(x, F32), w, b)


@case(t(6, 20, 9, 10))
def mean_var_shared_rows(k, x):
    mean = k.mean(x, 0, 2, 3)
    c = k.sub(x, k.bc(mean, (6, 20, 9, 10), [1]))
    return mean, k.mean(k.mul(c, c), 0, 2, 3)


@case(t(4, 6, 32), t(32), t(32))
def layer_norm(k, x, w, b):
    return k.layer_norm(x, w, b)


@case(t(4, 6, 32), t(4, 6, 32), t(32), t(32))
def add_layer_norm(k, x, r, w, b):
    y = k.add_(x, r)
    return y, k.layer_norm(y, w, b)


@case(t(24, 32), t(32), t(32))
def layer_norm_stats(k, x, w, b):
    mean = k.mean(x, 1)
    c = k.sub(x, k.keep(mean, x, 1))
    rstd = k.rsqrt(k.mean(k.mul(c, c), 1))
    y = k.mul(c, k.keep(rstd, x, 1))
    out = k.add_(k.mul(y, k.bc(w, (24, 32), [1])), k.bc(b, (24, 32), [1]))
    return k.reshape(out, 4, 6, 32), k.reshape(mean, 24, 1), rstd


@case(t(4, 6, 32), t(32), t(32))
def reshape_layer_norm(k, x, w, b):
    return k.reshape(k.layer_norm(k.reshape(x, 24, 32), w, b), 4, 6, 32)


@case(t(40, 51), t(40, dtype=I64), high=51)
def cross_entropy(k, x, target):
    m = k.keep(k.reduce("max", x, 1), x, 1)
    logsum = k.log(k.reduce("sum", k.exp(k.sub(x, m)), 1))
    logits = k.sub(k.sub(x, m), k.keep(logsum, x, 1))
    picked = k.reshape(k.gather(logits, k.reshape(target, 40, 1), 1), 40)
    return k.neg(k.mean(picked, 0))


@case(t(300, 70))
def column_sum(k, x):
    return k.reduce("sum", x, 0)


@case(t(3000, 70))
def column_sum_tall(k, x):
    return k.reduce("sum", x, 0)


@case(t(3000, 70))
def column_mean_var(k, x):
    mean = k.mean(x, 0)
    c = k.sub(x, k.keep(mean, x, 0))
    return mean, k.mean(k.mul(c, c), 0)


@case(t(3000, 70), t(70))
def batch_norm_1d(k, x, w):
    mean = k.mean(x, 0)
    c = k.sub(x, k.keep(mean, x, 0))
    scale = k.mul(w, k.rsqrt(k.mean(k.mul(c, c), 0)))
    return k.mul(c, k.keep(scale, x, 0)), mean


@case(t(4, 5, 6, 7), t(5))
def batch_norm_2d(k, x, w):
    mean = k.mean(x, 0, 2, 3)
    c = k.sub(x, k.bc(mean, (4, 5, 6, 7), [1]))
    scale = k.mul(w, k.rsqrt(k.mean(k.mul(c, c), 0, 2, 3)))
    return k.mul(c, k.bc(scale, (4, 5, 6, 7), [1])), mean


@case(t(4, 5, 6, 7), t(4, 5, 6, 7))
def sum_of_batch_norms(k, x, y):
    found = []
    for z in (x, y):
        mean = k.mean(z, 0, 2, 3)
        c = k.sub(z, k.bc(mean, (4, 5, 6, 7), [1]))
        var = k.mean(k.mul(c, c), 0, 2, 3)
        found += [mean, var, k.mul(c, k.bc(k.rsqrt(var), (4, 5, 6, 7), [1]))]
    return found[0], found[1], found[3], found[4], k.add_(found[2], found[5])


@case(t(4, 50, 60, 7))
def mixed_reduce(k, x):
    return k.reduce("sum", x, 0, 2)


@case(t(300, 700))
def full_sum(k, x):
    return k.reduce("sum", x, 0, 1)


@case(t(300, 700))
def full_norm(k, x):
    norm = k.sqrt(k.reduce("sum", k.mul(x, x), 0, 1))
    return k.div(x, k.bc(norm, (300, 700), [])), norm


@case(t(S0, 9), s0=3000)
def full_sum_symbolic(k, x):
    return k.mean(x, 0, 1)


@case(t(3, 5))
def reductions(k, x):
    kinds = ("sum", "prod", "max", "min", "argmax", "argmin")
    return [k.reduce(kind, x, d) for kind in kinds for d in (0, 1)]


@case(t(3, 5, dtype=I64))
def integer_reductions(k, x):
    odd = k.eq(k.mod(x, k.const(2, x)), k.const(1, x))
    return k.reduce("any", odd, 0), k.reduce("all", odd, 1), k.reduce("max", x, 0, 1), k.reduce("argmin", x, 0)


@case(t(7, 300), t(5, 20000, dtype=BOOL))
def counts(k, x, m):
    positive = k.cast(k.gt(x, k.const(0.0, x)), I64)
    return k.reduce("sum", positive, 1), k.reduce("sum", positive, 0), k.reduce("sum", k.cast(m, I64), 1)


@case(t(90000))
def argmax_long(k, x):
    return k.reduce("argmax", x, 0)


@case(t(70, 90))
def transpose_add(k, x):
    return k.add_(k.permute(x, 1, 0), k.const(1.0, k.permute(x, 1, 0)))


@case(t(70, 90), t(90, 70))
def transpose_plus(k, x, y):
    return k.add_(k.permute(x, 1, 0), y)


@case(t(4, 5, 6), t(4, 6, 5))
def permute_mul(k, x, y):
    return k.mul(k.permute(x, 2, 0, 1), k.permute(y, 1, 0, 2))


@case(t(2, 3, 4, 5), t(3), arg_strides=[(60, 1, 15, 3), None], strides=[(60, 1, 15, 3)])
def channels_last(k, x, b):
    return k.add_(x, k.bc(b, (2, 3, 4, 5), [1]))


@case(t(2, 3, 4, 5), arg_strides=[(60, 1, 15, 3)])
def channels_last_sum(k, x):
    return k.reduce("sum", x, 2, 3), k.reduce("max", x, 1)


@case(t(6, 20), t(6, 12))
def cat(k, x, y):
    return k.concat(1, k.exp(x), k.neg(y), k.mul(x, x))


@case(t(S0, 4), t(3, 4), s0=5)
def cat_symbolic(k, x, y):
    return k.concat(0, x, k.exp(y))


@case(t(6, 20))
def cat_of_reduce(k, x):
    return k.concat(1, k.sub(x, k.keep(k.mean(x, 1), x, 1)), x)


@case(t(6, 20), t(5, 20))
def cat_rows_of_reduce(k, x, y):
    a, b = k.reduce("sum", x, 1), k.reduce("max", y, 1)
    return k.concat(0, a, b)


@case(t(5, 6))
def pads(k, x):
    return k.pad(k.exp(x), [1, 2], [0, 3], 2.5), k.pad(x, [-1, 0], [1, -2], 0.0)


@case(t(5, 6))
def pad_then_sum(k, x):
    return k.reduce("sum", k.pad(x, [1, 2], [3, 4], 1.0), 1)


@case(t(8, 6))
def slices(k, x):
    return k.mul(k.slice(x, [1, 0], [2, 3], [3, 2]), k.flip(k.slice(x, [0, 1], [3, 2], [3, 2]), 0, 1))


@case(t(2, 12))
def reshapes(k, x):
    return k.add_(k.reshape(k.permute(k.reshape(x, 2, 3, 4), 1, 0, 2), 4, 6), k.reshape(x, 4, 6))


@case(t(10, 16), t(4, 3, dtype=I64), t(16), t(16), high=10)
def embedding_norm(k, table, ids, w, b):
    return k.layer_norm(k.take(table, ids, 0), w, b)


@case(t(4, 7), t(3, dtype=I64), high=7)
def index_select(k, x, i):
    return k.exp(k.take(x, i, 1))


@case(t(4, 7), t(3, dtype=I64), high=7)
def index_negative(k, x, i):
    return k.take(x, k.sub(i, k.const(7, i)), 1, True)


@case(t(4, 7), t(2, 7, dtype=I64), high=4)
def gather(k, x, i):
    return k.gather(k.exp(x), i, 0)


@case(t(4, 7), t(3, dtype=I64), high=4)
def take_of_sum(k, x, i):
    return k.take(k.reduce("sum", x, 1), i, 0)


@case(t(6, 9))
def iotas(k, x):
    i, j = k.iota((6, 9), 0), k.iota((6, 9), 1)
    return k.where(k.ge(i, j), x, k.const(float("-inf"), x))


@case(t(6, 9))
def cumsum(k, x):
    return k.scan("sum", k.exp(x), 1), k.scan("max", x, 0)


@case(t(6, 9))
def cumsum_used(k, x):
    s = k.scan("sum", x, 1)
    return k.div(s, k.keep(k.reduce("max", s, 1), x, 1))


@case(t(6, 9))
def cumsum_of_softmax(k, x):
    return k.scan("sum", k.softmax(x, 1), 1)


@case(t(7))
def cumsum_of_cumsum(k, x):
    s = k.scan("min", k.scan("sum", k.exp(x), 0), 0)
    return k.sqrt(k.abs(s)), k.reduce("max", s, 0)


@case(t(), t(3), t(3, 4))
def cat_of_scalar(k, x, y, z):
    return k.concat(1, k.bc(x, (3, 2), []), k.reshape(y, 3, 1), z)


@case(t(6, 9, dtype=F64), t(9, dtype=F64))
def double(k, x, y):
    wide = k.bc(y, (6, 9), [1])
    return k.floordiv(x, wide), k.sqrt(x), k.softmax(x, 1)


@case(t(6, 40, dtype=BF16))
def half_softmax(k, x):
    return k.cast(k.softmax(k.cast(x, F32), 1), BF16)


@case(t(6, 40, dtype=BF16), t(6, 40, dtype=BF16))
def half_mixed(k, x, y):
    rounded = k.cast(k.mul(k.cast(x, F32), k.cast(y, F32)), BF16)
    return k.add_(k.cast(rounded, F32), k.const(0.1, k.cast(x, F32))), k.max(x, y), k.cast(x, F64)


@case(t(6, dtype=BOOL), t(6, dtype=I64))
def bools(k, a, b):
    return k.and_(a, k.gt(b, k.const(1, b))), k.cast(a, F32), k.cast(b, BOOL)


@case(t())
def scalar(k, x):
    return k.exp(x)


@case(t(0, 5))
def empty(k, x):
    return k.exp(x), k.reduce("sum", x, 0), k.reduce("sum", x, 1)


@case(t(1, 5, 1), t(5))
def ones(k, x, y):
    return k.add_(k.reshape(x, 5), y), k.reduce("sum", x, 0), k.reduce("sum", x, 1)


@case(t(12, 8), t(3, 8))
def repeat_of_reduce(k, x, y):
    s = k.reduce("sum", x, 1)
    r = k.reshape(k.bc(s, (12, 2), [0]), 24)
    return r, k.reduce("max", y, 0)


@case(t(4, 6, 8))
def two_levels(k, x):
    rows = k.reduce("max", x, 2)
    top = k.reduce("sum", rows, 1)
    return k.sub(rows, k.bc(top, (4, 6), [0])), k.exp(k.sub(x, k.bc(rows, (4, 6, 8), [0, 1])))


@case(t(4, 6, 8))
def group_norm(k, x):
    g = k.reshape(x, 4, 2, 24)
    c = k.sub(g, k.keep(k.mean(g, 2), g, 2))
    y = k.mul(c, k.keep(k.rsqrt(k.mean(k.mul(c, c), 2)), g, 2))
    return k.reshape(y, 4, 6, 8)


@case(t(4, 30, 30))
def channel_first_norm(k, x):
    c = k.sub(x, k.keep(k.mean(x, 1), x, 1))
    return k.mul(c, k.keep(k.rsqrt(k.mean(k.mul(c, c), 1)), x, 1))


@case(t(7, 5))
def copy(k, x):
    return x, k.permute(x, 1, 0), k.bc(k.slice(x, [0, 0], [1, 1], [1, 5]), (3, 5), [0, 1])


@case(t(5, 40), t(5, 40))
def sibling_rows(k, x, y):
    return k.reduce("sum", x, 1), k.reduce("max", y, 1), k.add_(x, y)


@case(t(5, 7))
def long_chain(k, x):
    for _ in range(150):
        x = k.sin(k.permute(x, 1, 0))
        x = k.flip(k.neg(x), 0)
    return x
