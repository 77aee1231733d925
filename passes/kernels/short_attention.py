"""Attention over short rows on a GPU as loops of our own: a program has a block of queries and all keys, so that memory is read and written once.

    s[c] = sum_d q[m, d] k[c, d] * scale + mask[m, c];  p[c] = exp(s[c] - max s);  y[m, e] = sum_c p[c] v[c, e] / sum p

`attention` gives calls to it (`own = "short_attention"`, `tile`: rows of a program, warps) where the libraries' kernels, made for long rows, are expected to be
slower. Scores are float32, the weights p are rounded to the values' dtype, as flash attention has it. A row without a score above -inf gives zeros.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.dtypes import BOOL, F32, I64, DType
from ...ir.scalars import DOT
from ...ir.symbols import Dim, dim, free_symbols, symbol
from ...ir.syntax import Op
from ...ir.types import RefType, ref_type, scalar_type
from ..analysis.strides import Strides, View, memory_strides, view_of
from ..core.base import Pass
from ..core.context import CompileContext
from .attention import LOOPS, Tile, block_of
from .own_loops import launch_own


@dataclass(frozen=True)
class AttentionKernels(Pass):
    """Make loops of the attention that `attention` gave to them."""

    name: ClassVar[str] = "attention-kernels"
    level: ClassVar[str] = "loop"
    requires: ClassVar[tuple[str, ...]] = ("schedule",)
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if count := launch_own(module, LOOPS, _Plan.of):
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
