"""Attention over short rows on a GPU as loops of our own: a program has a block of queries and all keys, so that memory is read and written once.

    s[c] = sum_d q[m, d] k[c, d] * scale + mask[m, c];  p[c] = exp(s[c] - max s);  y[m, e] = sum_c p[c] v[c, e] / sum p

`gpu-attention` gives calls to it (`own = "short_attention"`, `tile`: rows of a program, warps) where the libraries' kernels, made for long rows, are expected
to be slower. Scores are float32, the weights p are rounded to the values' dtype, as flash attention has it. A row without a score above -inf gives zeros.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import astuple, dataclass, replace
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.dtypes import BF16, BOOL, F16, F32, I64, DType
from ...ir.scalars import DOT
from ...ir.symbols import Dim, dim, free_symbols, power_of_two, symbol
from ...ir.syntax import Op
from ...ir.types import RefType, is_gpu, ref_type, scalar_type
from ..analysis.machine import Machine
from ..analysis.strides import Strides, View, memory_strides, view_of
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from .own_loops import launch_own

OWN = "short_attention"
ROWS = ("query", "key", "value")
MOST_KEYS, MOST_WIDTH = 256, 128
LEAST = 16  # of a tile, along each axis: what the matrix units take
FEW_KEYS = 64  # up to here the library's kernels for short rows are far from the limit

# In microseconds, on one H200 in half types.
FIXED, BYTES, MULTIPROCESSORS = 3.0, 4.2e6, 132
LIBRARY_HEAD = 0.0145  # the memory-efficient kernel for the windows of one head, of up to 64 tokens in heads of 32
TILE = 0.5  # our kernel on one multiprocessor for 64 queries by 64 keys
GAIN = 1.3  # what is asked of the estimate


@dataclass(frozen=True)
class Call:
    """The sizes of a call: `heads` is all that lies in front of rows and columns, `bytes` what must be read and written."""

    heads: int
    rows: int
    keys: int
    width: int
    values: int
    bytes: int

    @classmethod
    def of(cls, op: kernel.Extern, machine: Machine) -> Call | None:
        """None: a call that no kernel of ours can carry out."""
        given = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
        if broken(takes_short_attention(op, machine)) is not None or given["query"].rank != 4:
            return None
        q, k, v = (given[name] for name in ROWS)
        images, heads, rows, width, keys, values = cast(tuple[int, ...], (*q.shape, k.shape[2], v.shape[3]))
        mask = given.get("attn_mask")
        more = cast(int, mask.numel) if mask is not None else 0
        return cls.sized(images * heads, rows, keys, width, values, q.dtype, more)

    @classmethod
    def sized(
        cls, heads: int, rows: int, keys: int, width: int, values: int, dtype: DType, more: int = 0
    ) -> Call | None:
        """A call of these sizes, which reads `more` elements of a mask; None: out of what the kernel can do."""
        if keys > MOST_KEYS or max(width, values) > MOST_WIDTH or width % 8 or values % 8:
            return None
        moved = heads * (rows + keys) * (width + values) + more
        return cls(heads, rows, keys, width, values, moved * dtype.bytes)


def takes_short_attention(op: Op, machine: Machine) -> Clauses:
    """What the loops here take of `scaled_dot_product_attention`: rows and columns, and in front of them heads and any images of one size each."""
    given = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
    yield tuple(given) in (ROWS, (*ROWS, "attn_mask")), "queries, keys, values and perhaps a mask"
    q, k, v = (given[name] for name in ROWS)
    mask = given.get("attn_mask")
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    yield (
        not op.get("enable_gqa") and not op.get("epilogue"),
        "as many heads of keys as of queries, and nothing behind it",
    )
    yield is_gpu(q.device), "a GPU"
    yield q.dtype in ((F16, BF16, F32) if machine.tf32_products else (F16, BF16)), "half types, or products in TF32"
    yield all(t.dtype == q.dtype and t.device == q.device for t in (k, v)), "one type on one GPU"
    yield all(isinstance(n, int) and n > 0 for t in given.values() for n in t.shape), "known sizes, nothing empty"
    yield (
        q.rank == k.rank == v.rank and q.rank in (4, 5),
        "four dimensions, or five where windows have masks of their own",
    )
    yield q.shape[:-2] == k.shape[:-2] == v.shape[:-2], "as many heads each"
    yield q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2], "rows as long as keys, as many keys as values"
    yield mask is None or not op.get("is_causal"), "a mask, or causal, and not both"
    yield mask is None or mask.dtype in (BOOL, q.dtype), "a mask of the same type, or of truth values"
    scores = (*q.shape[:-1], k.shape[-2])
    sizes = zip(reversed(mask.shape), reversed(scores), strict=False) if mask is not None else ()
    yield (
        mask is None or 1 <= mask.rank <= q.rank and all(s in (1, t) for s, t in sizes),
        "a mask that spreads to the scores",
    )


@dataclass(frozen=True)
class Tile:
    """How many queries a program has, and how many warps.

    Attributes:
        padded: numbers that are added to the scores lie in memory as rows as long as a block of keys, -inf behind the last key: they are then
            read 16 bytes at a time, and no key is masked.
    """

    rows: int
    warps: int
    padded: int = 0

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The tile of a text such as "64x4"."""
        return cls(*map(int, text.split("x")))

    @property
    def attribute(self) -> tuple[int, ...]:
        """As the call has it."""
        return astuple(self)


def block_of(size: int) -> int:
    """The block that a whole row is."""
    return max(LEAST, power_of_two(size))


def choose(call: Call, dtype: DType) -> Tile | None:
    """The tile for a call; None where the library is expected to be about as fast."""
    if dtype == F32 or max(call.rows, call.keys) > FEW_KEYS:
        return None
    tile = Tile(block_of(call.rows), 4)
    return tile if own_time(call, tile) * GAIN < library_time(call) else None


def library_time(call: Call) -> float:
    """Microseconds of the library's call, for short rows."""
    return FIXED + max(call.bytes / BYTES, call.heads * LIBRARY_HEAD * max(1.0, call.width / 64))


def own_time(call: Call, tile: Tile) -> float:
    """Microseconds of our kernel."""
    programs = call.heads * -(-call.rows // tile.rows)
    scores = tile.rows * block_of(call.keys) / 4096
    return FIXED + max(call.bytes / BYTES, programs / MULTIPROCESSORS * TILE * max(scores, 0.5))


@dataclass(frozen=True)
class AttentionKernels(Pass):
    """Make loops of the attention that `gpu-attention` gave to a kernel of our own."""

    name: ClassVar[str] = "attention-kernels"
    level: ClassVar[str] = "loop"
    requires: ClassVar[tuple[str, ...]] = ("schedule",)
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if count := launch_own(module, OWN, _Plan.of):
            ctx.diagnostics.count(self.name, "launches", count)


@dataclass
class _Operand:
    """A tensor in memory: which of the kernel's memories it is in, and where."""

    memory: int
    strides: Strides
    offset: Dim
    dtype: DType

    def at(self, places: list[Dim]) -> Dim:
        return dim(self.offset + sum(p * s for p, s in zip(places, self.strides, strict=True)))


@dataclass
class _Plan:
    """One call: its memories, where its operands lie in them, and its numbers."""

    bases: list[SSAValue]
    operands: dict[str, _Operand]  # by the operator's names, and "result"
    result: RefType
    outer: tuple[Dim, ...]
    rows: int
    keys: int
    width: int
    values: int
    scale: float
    causal: bool
    tile: Tile

    @classmethod
    def of(cls, op: kernel.Extern) -> _Plan:
        shapes = {n: prim.tensor(v).shape for n, v in zip(op["operands"], op.operands, strict=True)}
        q = shapes["query"]
        bases: list[SSAValue] = []
        operands: dict[str, _Operand] = {}
        for name, value in zip(op["operands"], op.operands, strict=True):
            view = view_of(value)
            assert view is not None, "layout gives every operand of a call strides"
            if view.base not in bases:
                bases.append(view.base)
            strides = _spread(view, len(q))
            operands[name] = _Operand(bases.index(view.base), strides, view.offset, prim.tensor(value).dtype)
        result, strides = prim.tensor(op.results[0]), memory_strides(op.results[0])
        operands["result"] = _Operand(len(bases), strides, 0, result.dtype)
        scale = op.get("scale")
        rows, width, keys, values = cast(tuple[int, ...], (*q[-2:], shapes["key"][-2], shapes["value"][-1]))
        return cls(
            bases,
            operands,
            ref_type(result.shape, strides, result.dtype, result.device),
            q[:-2],
            rows,
            keys,
            width,
            values,
            1 / math.sqrt(width) if scale is None else scale,
            bool(op.get("is_causal")),
            _tile(op, keys),
        )

    @property
    def memories(self) -> list[RefType]:
        kinds = [(prim.tensor(b), memory_strides(b)) for b in self.bases]
        return [*(ref_type(t.shape, s, t.dtype, t.device) for t, s in kinds), self.result]

    @property
    def name(self) -> str:
        """Equal names, equal kernels."""
        places = {n: (o.memory, o.strides, o.offset, o.dtype.name) for n, o in self.operands.items()}
        numbers = (self.outer, self.rows, self.keys, self.width, self.values, self.scale, self.causal, self.tile)
        text = repr([[m.text for m in self.memories], places, numbers])
        return f"attention_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def kernel(self) -> loop.Kernel:
        """The loops."""
        block = Block(arg_types=self.memories)
        _Loops(self, block).write()
        symbols = sorted(map(str, free_symbols([e for m in self.memories for e in (*m.shape, *m.strides)])))
        attrs: dict[str, object] = {"sym_name": self.name, "inputs": len(self.bases), "warps": self.tile.warps}
        return loop.Kernel.make([], [], attrs | {"symbols": tuple(symbols), "lines": ()}, [Region(block)])


def _tile(op: kernel.Extern, keys: int) -> Tile:
    """The tile, `padded` only if the mask's memory is that still."""
    tile = Tile(*op["tile"])
    if not tile.padded:
        return tile
    view = view_of(op.operands[list(op["operands"]).index("attn_mask")])
    assert view is not None
    t = prim.tensor(view.base)
    whole = t.shape[-1:] == (block_of(keys),) and view.offset == 0 and t.shape[:-1] == view.shape[:-1]
    kept = isinstance(view.base.owner, loop.Launch) and view.strides == memory_strides(view.base)
    return tile if whole and kept else replace(tile, padded=0)


def _spread(view: View, rank: int) -> Strides:
    """The strides of a view as of so many dimensions; steps of 0 where it is the same for all places."""
    strides = [0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)]
    return (*(0,) * (rank - len(strides)), *strides)


class _Loops:
    """Writes the loops of one call."""

    def __init__(self, plan: _Plan, block: Block) -> None:
        self.plan, self.blocks, self.memories = plan, [block], list(block.args)
        self.columns = block_of(plan.keys)
        self.stop = self.columns if plan.tile.padded else plan.keys

    def add(self, op: Op) -> SSAValue:
        self.blocks[-1].add_op(op)
        return op.results[0] if op.results else self.memories[0]

    def write(self) -> None:
        plan = self.plan
        outer = [symbol(f"o{k}") for k in range(len(plan.outer) + 1)]
        extents = [(var, size, 1) for var, size in zip(outer, plan.outer, strict=False)]
        opened = []
        for var, stop, block in [*extents, (outer[-1], plan.rows, plan.tile.rows)]:
            opened.append({"kind": "parallel", "var": var, "stop": stop} | ({"block": block} if block > 1 else {}))
            self.blocks.append(Block())
        scores, places = self.scores([*outer]), [*outer[:-1]]
        top, total = self.weights(scores)
        self.values(scores, places, outer[-1], top, total)
        for attrs in reversed(opened):
            self.close(attrs)

    def scores(self, places: list[Dim]) -> SSAValue:
        """A row of scores."""
        plan, (*outer, row) = self.plan, places
        scores = self.add(loop.Local.make([], [ref_type([self.stop], None, F32)], {"size": self.stop}))
        c, d = symbol("c0"), symbol("d0")
        self.blocks.append(Block())
        acc = self.local(0.0)
        self.blocks.append(Block())
        self.dot(self.load("query", [*outer, row, d]), self.load("key", [*outer, c, d], c), acc)
        self.close({"kind": "reduce", "var": d, "stop": plan.width, "block": block_of(plan.width)})
        score = self.scalar("mul", self.read(acc), self.number(plan.scale))
        if "attn_mask" in plan.operands:
            mask = self.load("attn_mask", [*outer, row, c])
            if plan.operands["attn_mask"].dtype == BOOL:
                score = self.scalar("where", mask, score, self.number(-math.inf))
            else:
                score = self.scalar("add", score, mask)
        if plan.causal:
            index = self.add(loop.Index.make([], [scalar_type(I64)], {"value": dim(row - c)}))
            zero = self.add(loop.Constant.make([], [scalar_type(I64)], {"value": 0}))
            score = self.scalar("where", self.scalar("ge", index, zero), score, self.number(-math.inf))
        self.add(loop.Store.make([score, scores], [], {"index": c}))
        self.close({"kind": "serial", **self.along(c)})
        return scores

    def weights(self, scores: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Weights in the place of the scores; whether the row is shut, and their sum."""
        c = symbol("c1")
        top = self.local(-math.inf)
        self.blocks.append(Block())
        self.add(loop.Accumulate.make([self.read(scores, c), top], [], {"kind": "max", "index": 0}))
        self.close({"kind": "reduce", **self.along(c)})
        highest = self.read(top)
        shut = self.scalar("eq", highest, self.number(-math.inf))
        shift = self.scalar("where", shut, self.number(0.0), highest)
        c = symbol("c2")
        total = self.local(0.0)
        self.blocks.append(Block())
        weight = self.scalar("exp", self.scalar("sub", self.read(scores, c), shift))
        self.add(loop.Store.make([weight, scores], [], {"index": c}))
        self.add(loop.Accumulate.make([weight, total], [], {"kind": "sum", "index": 0}))
        self.close({"kind": "reduce", **self.along(c)})
        return shut, self.read(total)

    def values(self, weights: SSAValue, outer: list[Dim], row: Dim, shut: SSAValue, total: SSAValue) -> None:
        """The mean of the values."""
        plan, c, e = self.plan, symbol("c3"), symbol("e0")
        one = self.number(1.0)
        factor = self.scalar("div", one, self.scalar("where", shut, one, total))
        self.blocks.append(Block())
        acc = self.local(0.0)
        self.blocks.append(Block())
        self.dot(self.read(weights, c), self.load("value", [*outer, c, e], c), acc)
        self.close({"kind": "reduce", **self.along(c)})
        mean = self.scalar("mul", self.read(acc), factor)
        index = plan.operands["result"].at([*outer, row, e])
        self.add(loop.Store.make([mean, self.memories[-1]], [], {"index": index}))
        self.close({"kind": "serial", "var": e, "stop": plan.values, "block": block_of(plan.values)})

    def along(self, var: Dim) -> dict[str, object]:
        """A loop over the keys."""
        return {"var": var, "stop": self.stop, "block": self.columns}

    def local(self, value: float) -> SSAValue:
        return self.add(loop.Local.make([], [ref_type([1], None, F32)], {"size": 1, "value": value}))

    def dot(self, a: SSAValue, b: SSAValue, acc: SSAValue) -> None:
        dtype = self.plan.operands["query"].dtype
        attrs = {"kind": DOT, "index": 0, "dtype": dtype.name} | ({"tf32": True} if dtype == F32 else {})
        self.add(loop.Accumulate.make([a, b, acc], [], attrs))

    def load(self, name: str, places: list[Dim], key: Dim | None = None) -> SSAValue:
        """An element of an operand; `key`: zero behind the last one."""
        operand = self.plan.operands[name]
        dtype = BOOL if operand.dtype == BOOL else F32
        attrs: dict[str, object] = {"index": operand.at(places)}
        if key is not None and self.stop > self.plan.keys:
            attrs |= {"mask": (dim(self.plan.keys - 1 - key),), "other": 0.0}
        return self.add(loop.Load.make([self.memories[operand.memory]], [scalar_type(dtype)], attrs))

    def read(self, memory: SSAValue, index: Dim = 0) -> SSAValue:
        return self.add(loop.Load.make([memory], [scalar_type(F32)], {"index": index}))

    def number(self, value: float) -> SSAValue:
        return self.add(loop.Constant.make([], [scalar_type(F32)], {"value": value}))

    def scalar(self, name: str, *operands: SSAValue) -> SSAValue:
        return self.add(loop.scalar_op(name, *operands))

    def close(self, attrs: dict[str, object]) -> None:
        """The innermost open block is the body of a loop."""
        body = self.blocks.pop()
        self.add(loop.For.make([], [], attrs, [Region(body)]))
