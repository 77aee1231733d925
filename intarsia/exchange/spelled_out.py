"""Convolutions, sorts, scatters, argmax and running reductions as elementwise operations, reductions, products and gathers, for forms without them.

A sort counts for each element those in front of it, a running reduction joins for each place all up to it, a scatter looks for each place through
all that may go there: of n elements they take n * n steps, which the other compiler may fuse or recognise. The results are those of the
operators, but for the sign of a zero that a running sum begins with; of several elements for one place of a scatter the last wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from ..ir.dialects import prim
from ..ir.dtypes import F32, I32, I64
from ..ir.scalars import identity
from ..ir.symbols import Dim, dim
from ..ir.syntax import Op
from ..passes.analysis.machine import Machine
from ..passes.core.rewriter import replace
from ..passes.graph.aten_rules.builder import Builder, NotCovered, Rule


class _OfPrim(Builder):
    """Builds what stands for an operation that is no call."""

    def __post_init__(self) -> None:
        self.names = []


# ---- two places along one dimension ---------------------------------------------------------------------------------------


class _Pairs:
    """All pairs of places (i, j) along dimension d of values of a shape: i is dimension d, j the next one."""

    def __init__(self, b: Builder, shape: Sequence[Dim], d: int, count: Dim | None = None) -> None:
        """`count`: how many places j there are, if not as many as i."""
        self.b, self.d, self.rank = b, d, len(shape)
        self.shape = (*shape[: d + 1], shape[d] if count is None else count, *shape[d + 1 :])

    def at_i(self, value: SSAValue) -> SSAValue:
        """The value at place i."""
        return self._spread(value, self.d)

    def at_j(self, value: SSAValue) -> SSAValue:
        """The value at place j."""
        return self._spread(value, self.d + 1)

    def _spread(self, value: SSAValue, place: int) -> SSAValue:
        dims = tuple(place if k == self.d else k + (k > self.d) for k in range(self.rank))
        return self.b.add(prim.broadcast(value, self.shape, dims))

    def place(self, j: bool) -> SSAValue:
        """The number i or j itself."""
        kind = self.b.type.with_(shape=self.shape, dtype=I64)
        return self.b.add(prim.Iota.make([], [kind], {"dim": self.d + j, "start": 0, "step": 1}))

    def over_j(self, kind: str, value: SSAValue) -> SSAValue:
        """Joined over all j."""
        return self.b.reduce(kind, value, (self.d + 1,))


def _scan(b: Builder, x: SSAValue, kind: str, d: int) -> SSAValue:
    pairs = _Pairs(b, b.shape_of(x), d)
    known = b.ew("le", pairs.place(j=True), pairs.place(j=False))
    return pairs.over_j(kind, b.ew("where", known, pairs.at_j(x), identity(kind, b.dtype_of(x))))


def _sorted(b: Builder, x: SSAValue, d: int, down: bool) -> list[SSAValue]:
    """Values and places; equal elements keep their order, NaN counts as the largest."""
    if not b.rank_of(x) or b.dtype_of(x).kind == "complex":
        raise NotCovered("a sort of one number, or of complex ones")
    key = b.cast(x, I32) if b.dtype_of(x).kind == "bool" else x
    pairs = _Pairs(b, b.shape_of(x), d)
    own, other = pairs.at_i(key), pairs.at_j(key)

    def is_before(first: SSAValue, second: SSAValue) -> SSAValue:
        found = b.ew("gt" if down else "lt", first, second)
        if not b.dtype_of(key).is_float:
            return found
        large, small = (first, second) if down else (second, first)
        return b.ew("or", found, b.ew("and", b.ew("isnan", large), b.ew("not", b.ew("isnan", small))))

    same = b.ew("not", b.ew("or", is_before(own, other), is_before(other, own)))
    earlier = b.ew("and", same, b.ew("lt", pairs.place(j=True), pairs.place(j=False)))
    rank = pairs.over_j("sum", b.cast(b.ew("or", is_before(other, own), earlier), I64))
    wanted = b.ew("eq", pairs.at_j(rank), pairs.place(j=False))
    places = pairs.over_j("sum", b.ew("where", wanted, pairs.place(j=True), 0))
    kind = prim.tensor(x)
    return [b.add(prim.Gather.make([x, places], [kind], {"dim": d, "inside": True})), places]


def _sort(b: Builder) -> list[SSAValue]:
    x = b.tensor("self")
    return _sorted(b, x, int(b.get("dim", b.rank_of(x) - 1)), bool(b.get("descending", False)))


def _topk(b: Builder) -> list[SSAValue]:
    d, count = int(b.get("dim")), b.get("k")
    return [b.slice(v, d, 0, count) for v in _sorted(b, b.tensor("self"), d, bool(b.get("largest")))]


# ---- places that values decide --------------------------------------------------------------------------------------------


def _scattered(b: Builder, x: SSAValue, index: SSAValue, source: SSAValue, kind: str, d: int, wrap: bool) -> SSAValue:
    """Each place of the result looks through all that the index sends along d, and takes the last of it, or the sum."""
    shape, count, dtype = b.shape_of(x), b.shape_of(index)[d], b.dtype_of(x)
    if 0 in b.shape_of(index):
        return x
    index = b.cast(index, I64)
    if wrap:
        index = b.ew("where", b.ew("lt", index, 0), b.ew("add", index, shape[d]), index)
    # The index may be shorter than the result in the other dimensions: nothing goes there.
    more = [0 if k == d else dim(n - m) for k, (n, m) in enumerate(zip(shape, b.shape_of(index), strict=True))]
    index, source = _longer(b, index, more, -1), _longer(b, source, more, False if dtype.kind == "bool" else 0)
    pairs = _Pairs(b, shape, d, count)
    here = b.ew("eq", pairs.at_j(index), pairs.place(j=False))
    if kind == "set":
        last = pairs.over_j("max", b.ew("where", here, pairs.place(j=True), -1))
        found = prim.tensor(source).with_(shape=shape)
        at = b.ew("max", last, 0)
        taken = b.add(prim.Gather.make([source, at], [found], {"dim": d, "inside": True}))
        return b.ew("where", b.ew("ge", last, 0), taken, x)
    wide = F32 if dtype.is_float and dtype.compute == F32 else dtype
    given = pairs.over_j("sum", b.ew("where", here, pairs.at_j(b.cast(source, wide)), 0))
    made = b.cast(b.ew("add", b.cast(x, wide), given), dtype)
    return b.ew("where", pairs.over_j("any", here), made, x)  # a place to which nothing goes keeps the sign of its zero


def _longer(b: Builder, x: SSAValue, more: Sequence[Dim], value: Any) -> SSAValue:
    """With `more` elements of this value behind those there are, along each dimension."""
    if all(n == 0 for n in more):
        return x
    kind = prim.tensor(x)
    shape = [dim(n + a) for n, a in zip(kind.shape, more, strict=True)]
    attributes = {
        "low": (0,) * len(shape),
        "high": tuple(more),
        "value": float(value) if kind.dtype.is_float else value,
    }
    return b.add(prim.Pad.make([x], [kind.with_(shape=shape)], attributes))


def _first_extreme(b: Builder, x: SSAValue, kind: str, d: int) -> SSAValue:
    """The first place of the largest or smallest along d; a NaN is both."""
    key = b.cast(x, I32) if b.dtype_of(x).kind == "bool" else x
    shape = b.shape_of(key)
    best = b.spread(b.reduce(kind.removeprefix("arg"), key, (d,)), shape, (d,))
    here = b.ew("eq", key, best)
    if b.dtype_of(key).is_float:
        here = b.ew("or", here, b.ew("isnan", key))
    place = b.add(prim.Iota.make([], [prim.tensor(key).with_(dtype=I64)], {"dim": d, "start": 0, "step": 1}))
    return b.reduce("min", b.ew("where", here, place, shape[d]), (d,))


# ---- convolutions ---------------------------------------------------------------------------------------------------------


def _padded(b: Builder, x: SSAValue, low: Sequence[Dim], high: Sequence[Dim]) -> SSAValue:
    """Zeros around the last dimensions; negative numbers take away."""
    if all(n == 0 for n in (*low, *high)):
        return x
    kind, left = prim.tensor(x), b.rank_of(x) - len(low)
    low, high = (0,) * left + tuple(low), (0,) * left + tuple(high)
    shape = [dim(n + a + c) for n, a, c in zip(kind.shape, low, high, strict=True)]
    return b.add(prim.Pad.make([x], [kind.with_(shape=shape)], {"low": low, "high": high, "value": 0.0}))


def _with_gaps(b: Builder, x: SSAValue, steps: Sequence[int]) -> SSAValue:
    """`steps[k] - 1` zeros between two elements of each of the last dimensions."""
    for k, step in enumerate(steps):
        d = b.rank_of(x) - len(steps) + k
        shape = b.shape_of(x)
        if step == 1:
            continue
        apart = b.reshape(x, (*shape[: d + 1], 1, *shape[d + 1 :]))
        apart = _padded(b, apart, (0,) * (len(steps) - k), (step - 1, *(0,) * (len(steps) - k - 1)))
        joined = b.reshape(apart, (*shape[:d], dim(shape[d] * step), *shape[d + 1 :]))
        x = b.slice(joined, d, 0, dim((shape[d] - 1) * step + 1))
    return x


def _convolution(b: Builder) -> SSAValue:
    """The sums over a window and the channels of a group, of an operand with zeros around it."""
    x, w, bias = b.tensor("input"), b.tensor("weight"), b.maybe("bias")
    rank, groups = b.rank_of(w) - 2, int(b.get("groups"))
    if rank < 1 or b.rank_of(x) != rank + 2 or not b.dtype_of(x).is_float or b.dtype_of(x) != b.dtype_of(w):
        raise NotCovered("a convolution of one image, or not of floats of one dtype")
    stride, dilation, padding, more = (
        [int(n) for n in b.get(name)] for name in ("stride", "dilation", "padding", "output_padding")
    )
    window: list[Any] = list(b.shape_of(w)[2:])
    if any(n == 0 for n in b.shape_of(w)) or any(not isinstance(n, int) for n in window):
        raise NotCovered("a convolution of nothing, or with windows of no known size")
    low = high = padding
    if b.get("transposed"):
        x = _with_gaps(b, x, stride)
        low = [d * (k - 1) - p for d, k, p in zip(dilation, window, padding, strict=True)]
        high = [n + extra for n, extra in zip(low, more, strict=True)]
        inputs, outputs = b.shape_of(w)[:2]
        w = b.reshape(w, (groups, dim(inputs // groups), outputs, *window))
        w = b.permute(w, [0, 2, 1, *range(3, rank + 3)])
        w = b.add(prim.Flip.make([w], [prim.tensor(w)], {"dims": tuple(range(3, rank + 3))}))
        stride = [1] * rank
    else:
        outputs, inputs = b.shape_of(w)[:2]
        w = b.reshape(w, (groups, dim(outputs // groups), inputs, *window))
    x = _padded(b, x, low, high)
    batch, channels, *sizes = b.shape_of(x)
    x = b.reshape(x, (batch, groups, dim(channels // groups), *sizes))
    made = b.type.shape[2:]
    n, g, o, *places = prim.axes(3 + 2 * rank + 1)
    out, (c, *inner) = places[:rank], places[rank:]
    moved = [p * s + k * d for p, s, k, d in zip(out, stride, inner, dilation, strict=True)]
    maps = [[n, g, c, *moved], [g, o, c, *inner]]
    shape = (batch, groups, b.shape_of(w)[1], *made)
    sums = b.add(prim.contract(x, w, maps, shape, [b.shape_of(w)[2], *window]))
    sums = b.reshape(sums, b.type.shape)
    if bias is not None:
        wide = b.add(prim.broadcast(b.cast(bias, b.dtype_of(sums)), b.type.shape, (1,)))
        sums = b.ew("add", sums, wide)
    return b.cast(sums, b.type.dtype)


CALLS: dict[str, Rule] = {
    "aten.convolution.default": _convolution,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.topk.default": _topk,
}


def is_written_out(op: Operation) -> bool:
    """Whether `write_out` takes it: all running reductions, scatters that add no truths, argmax and argmin along one dimension."""
    if isinstance(op, prim.Scatter):
        return op["kind"] == "set" or prim.tensor(op.results[0]).dtype.kind != "bool"
    if isinstance(op, prim.Reduce):
        return str(op["kind"]).startswith("arg") and len(op["dims"]) == 1  # type: ignore[arg-type]
    return isinstance(op, prim.Scan)


def write_out(op: Operation, machine: Machine) -> None:
    """Put what a running reduction, a scatter or an argmax is in its place."""
    assert isinstance(op, Op)
    b = _OfPrim(op, machine)  # type: ignore[arg-type]
    kind, x = str(op["kind"]), op.operands[0]
    if isinstance(op, prim.Reduce):
        made = _first_extreme(b, x, kind, *op["dims"])  # type: ignore[misc]
    elif isinstance(op, prim.Scatter):
        d: Any = op["dim"]
        made = _scattered(b, x, op.operands[1], op.operands[2], kind, d, bool(op.get("wrap", False)))
    else:
        made = _scan(b, x, kind, int(op["dim"]))  # type: ignore[call-overload]
    replace(op, [made], b.ops)
