"""Attention over short rows on a GPU as loops: a program has a block of queries and all keys.

Memory is read and written once:

    s[c] = sum_d q[m, d] k[c, d] * scale + mask[m, c];  p[c] = exp(s[c] - max s);  y[m, e] = sum_c p[c] v[c, e] / sum p

`attention` gives calls to it (`own = "short_attention"`, `tile`: rows of a program, warps) where the libraries'
kernels, made for long rows, are expected to be slower. Scores are float32, the weights p are rounded to the values'
dtype, as flash attention has it. A row without a score above -inf gives zeros.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.dtypes import BF16, BOOL, F16, F32, I64, DType
from ...ir.scalars import DOT
from ...ir.symbols import Dim, dim, free_symbols, power_of_two, symbol
from ...ir.syntax import Op
from ...ir.types import RefType, ref_type, scalar_type
from ..analysis.machine import Machine
from ..analysis.strides import Strides, View, memory_strides, view_of
from ..core.base import Pass
from ..core.clauses import Clauses
from ..core.context import CompileContext
from .own_loops import LoopWriter, launch_own

LOOPS = "short_attention"  # the attribute `own` of a call that these loops carry out
ROWS = ("query", "key", "value")
MOST_KEYS, MOST_WIDTH = 256, 128
LEAST = 16  # of a tile, along each axis: what the matrix units take

# In microseconds, on one H200 in half types.
FIXED, BYTES = 3.0, 4.2e6
TILE = 0.5  # one multiprocessor for 64 queries by 64 keys


def takes_loops(op: Op, machine: Machine) -> Clauses:
    """What the loops take: rows and columns, and in front of them heads and any images of one size each."""
    given = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
    yield tuple(given) in (ROWS, (*ROWS, "attn_mask")), "queries, keys, values and perhaps a mask"
    q, k, v = (given[name] for name in ROWS)
    mask = given.get("attn_mask")
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    yield not op.get("enable_gqa") and not op.regions, "as many heads of keys as of queries, and masks alone"
    yield machine.at(q.device).is_grid, "a GPU"
    yield q.dtype in ((F16, BF16, F32) if machine.tf32_products else (F16, BF16)), "half types, or products in TF32"
    yield all(t.dtype == q.dtype and t.device == q.device for t in (k, v)), "one type on one GPU"
    yield all(isinstance(n, int) and n > 0 for t in given.values() for n in t.shape), "known sizes, nothing empty"
    yield (
        q.rank == k.rank == v.rank and q.rank in (4, 5),
        "four dimensions, or five where windows have masks of their own",
    )
    yield q.shape[:-2] == k.shape[:-2] == v.shape[:-2], "as many heads each"
    yield q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2], "rows as long as keys, as many keys as values"
    keys, width, values = cast(tuple[int, ...], (k.shape[-2], q.shape[-1], v.shape[-1]))
    yield keys <= MOST_KEYS and max(width, values) <= MOST_WIDTH, "rows and heads that a program holds"
    yield width % 8 == values % 8 == 0, "heads of a multiple of 8 elements"
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
    """How many queries a program of the loops has, and how many warps.

    Attributes:
        padded: numbers that are added to the scores lie in memory as rows as long as a block of keys, -inf behind the
            last key: they are then read 16 bytes at a time, and no key is masked.
    """

    rows: int
    warps: int
    padded: int = 0

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The tile of a text such as "64x4"."""
        return cls(*map(int, text.split("x")))

    @classmethod
    def of(cls, op: Op) -> Tile:
        """The default for a call of short rows."""
        return cls(block_of(cast(int, prim.tensor(op.operands[0]).shape[-2])), 4)

    @property
    def attribute(self) -> tuple[int, ...]:
        """As the call has it."""
        return astuple(self)


def block_of(size: int) -> int:
    """The block that a whole row is."""
    return max(LEAST, power_of_two(size))


def moved_bytes(op: Op) -> int:
    """What must be read and written, where sizes are known."""
    q, k, v = (prim.tensor(x) for x in op.operands[:3])
    heads, width = math.prod(cast(tuple[int, ...], q.shape[:-2])), cast(int, dim(q.shape[-1] + v.shape[-1]))
    masks = sum(cast(int, prim.tensor(x).numel) for x in op.operands[3:])
    return (heads * cast(int, dim(q.shape[-2] + k.shape[-2])) * width + masks) * q.dtype.bytes


def loops_time(op: Op, tile: Tile, machine: Machine) -> float:
    """Microseconds of the loops."""
    *outer, rows, _ = cast(tuple[int, ...], prim.tensor(op.operands[0]).shape)
    programs = math.prod(outer) * -(-rows // tile.rows)
    scores = tile.rows * block_of(cast(int, prim.tensor(op.operands[1]).shape[-2])) / 4096
    return FIXED + max(moved_bytes(op) / BYTES, programs / machine.gpu.multiprocessors * TILE * max(scores, 0.5))


@dataclass(frozen=True)
class AttentionKernels(Pass):
    """Make loops of the attention that `attention` gave to them."""

    name: ClassVar[str] = "attention-kernels"
    level: ClassVar[str] = "loop"
    requires: ClassVar[tuple[str, ...]] = ("schedule",)
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if count := launch_own(module, LOOPS, _Plan, ctx.machine):
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


class _Plan:
    """One call: its memories, where its operands lie in them, and its numbers."""

    def __init__(self, op: kernel.Extern) -> None:
        views = {name: view_of(v) for name, v in zip(op["operands"], op.operands, strict=True)}
        found = {name: view for name, view in views.items() if view is not None}
        assert len(found) == len(views), "layout gives every operand of a call strides"
        *outer, rows, width = found["query"].shape
        result, strides = prim.tensor(op.results[0]), memory_strides(op.results[0])
        self.bases = list(dict.fromkeys(view.base for view in found.values()))
        self.operands = {  # by the operator's names, and "result"
            name: _Operand(self.bases.index(v.base), _spread(v, len(outer) + 2), v.offset, prim.tensor(v.base).dtype)
            for name, v in found.items()
        }
        self.operands["result"] = _Operand(len(self.bases), strides, 0, result.dtype)
        self.result = ref_type(result.shape, strides, result.dtype, result.device)
        self.outer, self.causal = tuple(outer), bool(op.get("is_causal"))
        sizes = (rows, found["key"].shape[-2], width, found["value"].shape[-1])
        self.rows, self.keys, self.width, self.values = cast(tuple[int, int, int, int], sizes)
        scale = op.get("scale")
        self.scale: float = 1 / math.sqrt(self.width) if scale is None else scale
        self.tile = _tile(op, self.keys)

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


class _Loops(LoopWriter):
    """Writes the loops of one call."""

    def __init__(self, plan: _Plan, block: Block) -> None:
        super().__init__(block)
        self.plan, self.columns = plan, block_of(plan.keys)
        self.stop = self.columns if plan.tile.padded else plan.keys

    def write(self) -> None:
        plan = self.plan
        *outer, row = [symbol(f"o{k}") for k in range(len(plan.outer) + 1)]
        extents = [(var, size, 1) for var, size in zip(outer, plan.outer, strict=True)]
        with self.nest([*extents, (row, plan.rows, plan.tile.rows)]):
            scores = self.scores(outer, row)
            self.values(scores, outer, row, *self.weights(scores))

    def scores(self, outer: Sequence[Dim], row: Dim) -> SSAValue:
        """A row of scores."""
        plan, c, d = self.plan, symbol("c0"), symbol("d0")
        scores = self.add(loop.Local.make([], [ref_type([self.stop], None, F32)], {"size": self.stop}))
        with self.loop("serial", c, self.stop, self.columns):
            acc = self.local()
            with self.loop("reduce", d, plan.width, block_of(plan.width)):
                self.dot(self.element("query", [*outer, row, d]), self.element("key", [*outer, c, d], c), acc)
            score = self.scalar("mul", self.read(acc), self.number(plan.scale))
            if "attn_mask" in plan.operands:
                mask = self.element("attn_mask", [*outer, row, c])
                if plan.operands["attn_mask"].dtype == BOOL:
                    score = self.scalar("where", mask, score, self.number(-math.inf))
                else:
                    score = self.scalar("add", score, mask)
            if plan.causal:
                index = self.add(loop.Index.make([], [scalar_type(I64)], {"value": dim(row - c)}))
                zero = self.add(loop.Constant.make([], [scalar_type(I64)], {"value": 0}))
                score = self.scalar("where", self.scalar("ge", index, zero), score, self.number(-math.inf))
            self.store(score, scores, c)
        return scores

    def weights(self, scores: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Weights in the place of the scores; whether the row is shut, and their sum."""
        c = symbol("c1")
        top = self.local(-math.inf)
        with self.loop("reduce", c, self.stop, self.columns):
            self.accumulate("max", self.read(scores, c), top)
        highest = self.read(top)
        shut = self.scalar("eq", highest, self.number(-math.inf))
        shift = self.scalar("where", shut, self.number(0.0), highest)
        c = symbol("c2")
        total = self.local()
        with self.loop("reduce", c, self.stop, self.columns):
            weight = self.scalar("exp", self.scalar("sub", self.read(scores, c), shift))
            self.store(weight, scores, c)
            self.accumulate("sum", weight, total)
        return shut, self.read(total)

    def values(self, weights: SSAValue, outer: Sequence[Dim], row: Dim, shut: SSAValue, total: SSAValue) -> None:
        """The mean of the values."""
        plan, c, e = self.plan, symbol("c3"), symbol("e0")
        one = self.number(1.0)
        factor = self.scalar("div", one, self.scalar("where", shut, one, total))
        with self.loop("serial", e, plan.values, block_of(plan.values)):
            acc = self.local()
            with self.loop("reduce", c, self.stop, self.columns):
                self.dot(self.read(weights, c), self.element("value", [*outer, c, e], c), acc)
            mean = self.scalar("mul", self.read(acc), factor)
            self.store(mean, self.memories[-1], plan.operands["result"].at([*outer, row, e]))

    def dot(self, a: SSAValue, b: SSAValue, acc: SSAValue) -> None:
        dtype = self.plan.operands["query"].dtype
        attrs = {"kind": DOT, "index": 0, "dtype": dtype.name} | ({"tf32": True} if dtype == F32 else {})
        self.add(loop.Accumulate.make([a, b, acc], [], attrs))

    def element(self, name: str, places: list[Dim], key: Dim | None = None) -> SSAValue:
        """An element of an operand; `key`: zero behind the last one."""
        operand = self.plan.operands[name]
        mask = () if key is None or self.stop == self.plan.keys else (dim(self.plan.keys - 1 - key),)
        dtype = BOOL if operand.dtype == BOOL else F32
        return self.load(self.memories[operand.memory], operand.at(places), mask, dtype)
