"""gpu-attention: what scaled_dot_product_attention reads and writes on a GPU, for the kernels that will carry it out.

Flash attention and cuDNN give results that lie as the query does, the memory-efficient kernel gives rows of all heads side by side. Masks are numbers of the
query's dtype with rows that begin at 16 bytes, and small: a library spreads a mask of truth values over batch and heads before it converts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, BOOL, F16, F32
from ...ir.symbols import Dim, contiguous_strides, dim, known_equal
from ...ir.syntax import Op
from ...ir.types import is_gpu
from ..analysis.machine import Machine
from ..analysis.strides import Strides, dense_like, view_of
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.own_kernels import ATTENTION, share_heads
from ..kernels.short_attention import OWN, Call, Tile, block_of, choose
from .cse import CSE

ALIGNED = 8  # elements of a half type: 16 bytes
FEW_KEYS = 64  # up to here the memory-efficient kernel is the fastest; see `backend`
CUDNN, FLASH, EFFICIENT, ANY = "cudnn", "flash", "efficient", "any"


@dataclass(frozen=True)
class GpuAttention(Pass):
    """Bring operands, masks and results of attention on a GPU into the form that the fastest kernel takes.

    Options:
        tile: queries of a program x warps ("64x4") of a kernel of our own for all calls that it can carry out, "library" for none; the
            default chooses by size.
    """

    name: ClassVar[str] = "gpu-attention"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("attention-mask", "written-attention")
    before: ClassVar[tuple[str, ...]] = ("hoist", "own-kernels", "channels-last", "fuse")

    tile: str = ""

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        found = False
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op["target"] != ATTENTION:
                continue
            tile = self._own(op, ctx.machine)
            if tile is not None:
                _give(op, tile)
                ctx.diagnostics.count(self.name, "kernels of our own")
                found = True
                continue
            if not _has_kernels(op):
                continue
            if _shares_heads(op):
                share_heads(op)
            _convert_mask(op)
            op["backend"] = backend(op)
            _place_result(op)
            op.attributes.pop("effect", None)  # without dropout it has none
            ctx.diagnostics.count(self.name, op["backend"])
            found = True
        if found:
            CSE().apply(ctx, module)  # layers share masks

    def _own(self, op: kernel.Extern, machine: Machine) -> Tile | None:
        """The tile of a kernel of our own; None: the library's call."""
        call = None if self.tile == "library" else Call.of(op, machine)
        if call is None:
            return None
        if self.tile:
            return Tile.parse(self.tile)
        tile = choose(call, prim.tensor(op.operands[0]).dtype)
        return tile and replace(tile, padded=int(_computes_mask(op)))


def _computes_mask(op: kernel.Extern) -> bool:
    """Whether the mask is not in memory yet: longer rows of it cost nothing then."""
    mask = dict(zip(op["operands"], op.operands, strict=True)).get("attn_mask")
    view = None if mask is None else view_of(mask)
    return mask is not None and (view is None or isinstance(view.base.owner, prim.PrimOp))


def _give(op: kernel.Extern, tile: Tile) -> None:
    """Let a kernel of our own carry out a call: `attention-kernels` writes it. The result's rows lie with all heads side by side."""
    made: list[Operation] = []

    def add(new: Op) -> SSAValue:
        new.location = op.location
        made.append(new)
        return new.results[0]

    values = dict(zip(op["operands"], op.operands, strict=True))
    literals = {k: v for k, v in op.literals.items() if k not in ("effect", "strides", "operand_strides")}
    given = op.get("operand_strides")
    mask = values.get("attn_mask")
    if mask is None:
        tile = replace(tile, padded=0)
    else:
        mask, windows = _before_windows(mask, add)
        if windows:
            for name in ("query", "key", "value"):
                values[name] = add(prim.reshape(values[name], (*windows, *prim.tensor(values[name]).shape[1:])))
            given = None
        values["attn_mask"] = _padded(mask, add) if tile.padded else mask
        tile = tile if values["attn_mask"] is not mask else replace(tile, padded=0)
    q, v = (prim.tensor(values[name]).shape for name in ("query", "value"))
    shape = (*q[:-1], v[-1])
    literals |= {"own": OWN, "tile": tile.attribute, "strides": (_side_by_side(shape),)}
    if given:
        literals["operand_strides"] = tuple(None if n == "attn_mask" else s for n, s in zip(values, given, strict=True))
    call = kernel.Extern.make(
        list(values.values()), [prim.tensor(op.results[0]).with_(shape=shape)], literals, loc=op.location
    )
    call.results[0].name_hint = op.results[0].name_hint
    made.append(call)
    result: SSAValue = call.results[0]
    if result.type != op.results[0].type:
        result = add(prim.reshape(result, prim.tensor(op.results[0]).shape))
    block = op.parent
    assert block is not None
    block.insert_ops_before(made, op)
    op.results[0].replace_all_uses_with(result)
    op.detach()
    op.erase()


def _padded(mask: SSAValue, add: Callable[[Op], SSAValue]) -> SSAValue:
    """A mask of numbers in rows as long as a block of keys, -inf behind the last key."""
    t = prim.tensor(mask)
    *outer, keys = t.shape
    if not isinstance(keys, int) or not t.dtype.is_float or block_of(keys) == keys or keys == 1:
        return mask
    zeros = (0,) * t.rank
    padding = {"low": zeros, "high": (*zeros[1:], block_of(keys) - keys), "value": -math.inf}
    padded = add(prim.Pad.make([mask], [t.with_(shape=(*outer, block_of(keys)))], padding))
    return add(prim.Slice.make([padded], [t], {"starts": zeros, "steps": (1,) * t.rank}))


def _side_by_side(shape: tuple[Dim, ...]) -> Strides:
    """Of results (..., heads, rows, width): rows with all heads side by side."""
    *outer, heads, rows, width = shape
    batch = contiguous_strides((*outer, dim(rows * heads * width)))[:-1]
    return (*batch, width, dim(heads * width), 1)


def _before_windows(mask: SSAValue, add: Callable[[Op], SSAValue]) -> tuple[SSAValue, tuple[Dim, ...]]:
    """A mask before it was spread over batch, heads or rows; and where that was over images, whose windows have masks of their own, how many of
    both there are: it has five dimensions then."""
    t = prim.tensor(mask)
    spread = mask.owner.operands[0].owner if isinstance(mask.owner, prim.Reshape) else None
    if isinstance(spread, prim.Broadcast) and t.rank == 4:
        wide = prim.tensor(spread.results[0]).shape
        if len(wide) == 5 and wide[2:] == t.shape[1:]:
            return _unspread(spread, add), wide[:2]
    return _unspread(mask.owner, add) if isinstance(mask.owner, prim.Broadcast) else mask, ()


def _has_kernels(op: kernel.Extern) -> bool:
    """Four dimensions, one floating type, heads of a multiple of 8 elements up to 256, a mask that is boolean or of that type, no dropout, nothing empty."""
    given = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
    q, k, v = (given[name] for name in ("query", "key", "value"))
    mask, depth = given.get("attn_mask"), q.shape[-1] if q.rank == 4 else None
    if op.get("dropout_p", 0.0) != 0.0 or not is_gpu(q.device) or q.dtype not in (F16, BF16, F32) or op.get("epilogue"):
        return False
    if any(t.rank != 4 or t.dtype != q.dtype or 0 in t.shape or t.shape[-1] != depth for t in (q, k, v)):
        return False
    if not isinstance(depth, int) or depth % ALIGNED or depth > 256:
        return False
    if op.get("is_causal"):
        return mask is None and known_equal(q.shape[2], k.shape[2])
    return mask is None or (mask.dtype in (BOOL, q.dtype) and 2 <= mask.rank <= 4)


def backend(op: kernel.Extern) -> str:
    """Which kernel is the fastest for a call that `_has_kernels`.

    On one H200, us for cuDNN, flash, memory-efficient (torch 2.11, cuDNN 9.19): 32 sequences of 512 tokens in 12 heads of 64 elements 69, 102, 218; causal with 8 of
    8,192 tokens in heads of 128 906, 1783, 3317; one query among 2,048 keys 9, 14, 67; windows of 49 tokens with a bias 161, -, 89; 64 sequences of 64 17, 20, 12.
    cuDNN prepares for each size anew, which takes milliseconds: with sizes that change flash attention.
    """
    q, k = (prim.tensor(v).shape for v in op.operands[:2])
    masked = "attn_mask" in op["operands"]
    if prim.tensor(op.operands[0]).dtype == F32:
        return EFFICIENT if known_equal(q[1], k[1]) else ANY
    if not all(isinstance(n, int) for n in (*q, *k)):
        return ANY if masked else FLASH
    few = all(isinstance(n, int) and n <= FEW_KEYS for n in (q[2], k[2]))
    return EFFICIENT if few and q[1] == k[1] else CUDNN


def _shares_heads(op: kernel.Extern) -> bool:
    """Whether the kernel that will be chosen reads heads of keys and values for several of the query."""
    sizes = [n for v in op.operands[:2] for n in prim.tensor(v).shape]
    fixed = all(isinstance(n, int) for n in sizes)
    return prim.tensor(op.operands[0]).dtype != F32 and (fixed or "attn_mask" not in op["operands"])


def _convert_mask(op: kernel.Extern) -> None:
    """The mask as four dimensions of numbers, and where its rows would not begin at 16 bytes as part of a wider one."""
    if "attn_mask" not in op["operands"]:
        return
    place = list(op["operands"]).index("attn_mask")
    made: list[Operation] = []

    def add(new: Op) -> SSAValue:
        new.location = op.location
        made.append(new)
        return new.results[0]

    mask, dtype = op.operands[place], prim.tensor(op.operands[0]).dtype
    shape = prim.tensor(mask).shape
    if len(shape) < 4:
        mask = add(prim.reshape(mask, (*(1,) * (4 - len(shape)), *shape)))
    mask = _before_spread(mask, add)
    t = prim.tensor(mask)
    if t.dtype == BOOL:
        opened, shut = (add(prim.full(n, t.with_(dtype=dtype))) for n in (0.0, float("-inf")))
        mask = add(prim.elementwise("where", mask, opened, shut))
    keys = t.shape[3]
    if isinstance(keys, int) and keys != 1 and keys % ALIGNED and not _is_aligned(mask):
        wide = -(-keys // ALIGNED) * ALIGNED
        padding = {"low": (0,) * 4, "high": (0, 0, 0, wide - keys), "value": 0.0}
        whole = prim.tensor(mask).with_(shape=(*t.shape[:3], wide))
        padded = add(prim.Pad.make([mask], [whole], padding))
        mask = add(prim.Slice.make([padded], [prim.tensor(mask)], {"starts": (0,) * 4, "steps": (1,) * 4}))
    block = op.parent
    assert block is not None
    block.insert_ops_before(made, op)
    op.operands[place] = mask
    given = op.get("operand_strides")
    if given:
        op["operand_strides"] = tuple(None if k == place else s for k, s in enumerate(given))


def _before_spread(mask: SSAValue, add: Callable[[Op], SSAValue]) -> SSAValue:
    """A mask that is the same for batch entries, heads or rows, once."""
    return _unspread(mask.owner, add) if isinstance(mask.owner, prim.Broadcast) else mask


def _unspread(spread: prim.Broadcast, add: Callable[[Op], SSAValue]) -> SSAValue:
    """What a broadcast spreads, with as many dimensions."""
    source = spread.operands[0]
    shape: list[Dim] = [1] * prim.tensor(spread.results[0]).rank
    for d, size in zip(spread["dims"], prim.tensor(source).shape, strict=True):
        shape[d] = size
    return source if prim.tensor(source).shape == tuple(shape) else add(prim.reshape(source, tuple(shape)))


def _is_aligned(mask: SSAValue) -> bool:
    view = view_of(mask)
    if view is None or isinstance(view.base.owner, prim.PrimOp):  # a value that is not in memory yet
        return False
    steps = [t for s, t in zip(view.shape, view.strides, strict=True) if s != 1]
    return steps[-1] == 1 and all(isinstance(t, int) and t % ALIGNED == 0 for t in (*steps[:-1], view.offset))


def _place_result(op: kernel.Extern) -> None:
    """Say how the result will lie: as the query where the kernel follows it, rows of all heads side by side otherwise."""
    b, h, rows, depth = prim.tensor(op.operands[0]).shape
    side_by_side: Strides = (dim(rows * h * depth), depth, dim(h * depth), 1)
    view = view_of(op.operands[0])
    query = side_by_side
    if view is not None and not isinstance(view.base.owner, prim.PrimOp) and view.strides[-1] == 1:
        if known_equal(view.strides[2], depth):
            query = contiguous_strides(view.shape)
        elif all(isinstance(t, int) for t in view.strides):
            query = dense_like(view.shape, view.strides)
    given = op.get("operand_strides") or (None,) * len(op.operands)
    op["operand_strides"] = (query, *given[1:])
    op["strides"] = (side_by_side if op["backend"] == EFFICIENT else query,)
