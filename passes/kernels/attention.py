"""attention: which kernel carries out each `scaled_dot_product_attention`, and its operands as that kernel wants them.

`LOWERINGS` is the choice: what each kernel takes, and how long it is expected to need. A call that none takes is the
library's operator, as eager has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.kernel import ATTENTION
from ...ir.dtypes import BF16, BOOL, F16, F32, DType
from ...ir.symbols import Dim, contiguous_strides, dim, known_equal
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.machine import Machine
from ..analysis.strides import Strides, dense_like, view_of
from ..core.base import Pass
from ..core.clauses import Call, Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import InFrontOf
from ..fusion.call_region import LEFT, MOST_OPERATIONS
from .short_attention import BYTES, FIXED, LOOPS, ROWS, Tile, block_of, loops_time, moved_bytes, takes_loops

CPP = "attention"  # the C++ kernel, as LOOPS by the attribute `own`
CUDNN, FLASH, EFFICIENT, ANY = "cudnn", "flash", "efficient", "any"  # kernels of libraries, by the attribute `backend`
ALIGNED = 8  # elements of a half type: 16 bytes
MOST_WIDTH = 256  # of a head, in the libraries
FEW_KEYS = 64  # up to here the libraries' kernels are far from the limit of the memory

# In microseconds, on one H200 in half types.
LIBRARY_HEAD = 0.0145  # the memory-efficient kernel for the windows of one head, of up to 64 tokens in heads of 32
GAIN = 1.3  # what is asked of the estimate
# How much longer each needs than the fastest library, up to FEW_KEYS and beyond. On one H200, us for cuDNN, flash,
# memory-efficient (torch 2.11, cuDNN 9.19): 64 sequences of 64 tokens 17, 20, 12; 32 of 512 in 12 heads of 64 elements
# 69, 102, 218; causal with 8 of 8,192 in heads of 128 906, 1783, 3317; one query among 2,048 keys 9, 14, 67; windows of
# 49 tokens with a bias 161, -, 89.
SLOWER = {CUDNN: (1.4, 1.0), FLASH: (1.7, 1.5), EFFICIENT: (1.0, 3.2), ANY: (4.0, 4.0)}
# Masks on a GPU are numbers of the operands' type, none between these and -inf: times log2(e) they still are numbers,
# added to a score they leave nothing of it.
LOWEST = {F16: -65504.0, BF16: -1e30, F32: -1e30}


@dataclass(frozen=True)
class Lowering:
    """One way to carry out a call.

    Attributes:
        takes: which calls.
        time: microseconds that are expected; infinite where it is out of the question.
        prepare: gives a call to the kernel, with operands and results as that wants them.
    """

    name: str
    takes: Callable[[Op, Machine], Clauses]
    time: Callable[[Op, Machine], float]
    prepare: Callable[[_Call], None]


@dataclass(frozen=True)
class Attention(Pass):
    """Choose a kernel for each attention, and bring operands, masks and results into the form that it takes.

    Options:
        tile: queries of a program x warps ("64x4") of the loops for short rows, for all calls that they can carry out;
            "library": no kernel that is generated; the default chooses by size.
    """

    name: ClassVar[str] = "attention"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("match-attention",)
    before: ClassVar[tuple[str, ...]] = ("hoist", "own-kernels", "channels-last", "fuse")

    tile: str = ""

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        masks = Masks()
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op["target"] != ATTENTION or op.get("backend"):
                continue
            call = _Call(op, ctx.machine, masks, self.tile)
            if op.get("own"):
                if op.regions:  # which `match-attention` has found a kernel for
                    call.share_heads()
                continue
            if self.tile == "library" or broken(takes_cpp(op, ctx.machine)) is not None:
                call.write_out_empty_rows()
            lowering = choose(op, ctx.machine, self.tile)
            if lowering is not None:
                lowering.prepare(call)
                ctx.diagnostics.count(self.name, lowering.name)


def choose(op: Op, machine: Machine, tile: str = "") -> Lowering | None:
    """The lowering that is expected to be the fastest; None: the operator. `tile`: see `Attention`."""
    found = [way for way in LOWERINGS if broken(way.takes(op, machine)) is None]
    if tile:
        generated = [way for way in found if way.name in (CPP, LOOPS)]
        found = [way for way in found if way not in generated] if tile == "library" else generated or found
        if generated and tile != "library":
            return generated[0]
    times = {way.name: way.time(op, machine) for way in found}
    best = min(found, key=lambda way: times[way.name], default=None)
    return best if best is not None and times[best.name] < math.inf else None


def has_kernel(op: Op, machine: Machine) -> bool:
    """Whether a call is worth making of two products that a program has written.

    Where oneDNN multiplies in bfloat16 the products are faster on a CPU for several queries: Zen 4, one thread, products
    over call 0.86 for 48 heads of 512 tokens, 0.9 for 5 queries, but 1.75 for one query. In float16 they take 25 to 40
    times as long.
    """
    t = prim.tensor(op.operands[0])
    dots = machine.bfloat16 and t.dtype == BF16 and not machine.at(t.device).is_grid
    return (not dots or t.shape[-2] == 1) and choose(op, machine) is not None


# ---- what each takes, and how long it needs ----


def takes_cpp(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_attention.h takes of `scaled_dot_product_attention`."""
    call = Call.of(op)
    yield call.names in (ROWS, (*ROWS, "attn_mask")), "queries, keys, values and perhaps a mask"
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    yield call.are(F32, BF16, F16, names=(*ROWS, "result")), "one floating type"
    yield call.on_cpu, "memory of the host"
    q, k, v = (call.shape(name) for name in ROWS)
    yield {len(q), len(k), len(v)} == {4}, "four dimensions"
    yield not any(0 in shape for shape in (q, k, v)), "nothing empty"
    mask = call.tensors.get("attn_mask")
    yield mask is None or not op.get("is_causal"), "a mask, or causal, and not both"
    yield (
        mask is None or mask.dtype in (BOOL, F32, call.tensors["query"].dtype),
        "a mask of the same type, in float32, or of truth values",
    )
    yield mask is None or 2 <= len(mask.shape) <= 4, "a mask of two to four dimensions"
    yield known_equal(q[1], k[1]) or bool(op.get("enable_gqa")), "as many heads, or shared ones"
    yield known_equal(k[1], v[1]), "as many heads of keys as of values"
    yield known_equal(q[0], k[0]) and known_equal(q[0], v[0]), "equal batches"
    memories = [kind for name in (*ROWS, "result") if isinstance(kind := call.tensors.get(name), RefType)]
    yield all(m.shape[-1] == 1 or m.strides[-1] == 1 for m in memories), "rows without gaps"
    if op.regions:
        yield from takes_scores(op)


def takes_scores(op: Op) -> Clauses:
    """What may happen to scores there: operations on single elements, whose places follow from the score's."""
    *steps, _ = op.block_body.ops
    work = [step for step in steps if isinstance(step, prim.Elementwise | prim.Cast)]
    moves = (prim.Broadcast, prim.Reshape, prim.Permute, *prim.SOURCES)
    yield all(step in work or type(step) in moves for step in steps), "operations on single elements"
    yield len(work) <= MOST_OPERATIONS and not any(step.name in LEFT for step in work), "operations in one loop"
    kinds = [prim.tensor(argument) for argument in op.block_body.args]
    yield all(t.device == "cpu" and t.dtype.kind != "complex" for t in kinds), "numbers in the host's memory"
    starts = [step[name] for step in steps if isinstance(step, prim.Iota) for name in ("start", "step")]
    yield not any(isinstance(n, float) for n in starts), "positions in whole numbers"


def takes_short(op: Op, machine: Machine) -> Clauses:
    """Which calls of programs the loops can carry out."""
    yield prim.tensor(op.operands[0]).rank == 4, "four dimensions"
    yield from takes_loops(op, machine)


def takes_library(op: Op, machine: Machine) -> Clauses:
    """What the libraries' kernels on a GPU have in common."""
    given = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
    q, k, v = (given[name] for name in ROWS)
    mask = given.get("attn_mask")
    yield machine.at(q.device).is_grid and not op.regions, "a GPU, and masks alone"
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    yield all(t.rank == 4 and t.dtype == q.dtype and 0 not in t.shape for t in (q, k, v)), "four dimensions of one type"
    yield q.dtype in (F16, BF16, F32), "half types or float32"
    depth = q.shape[-1]
    yield isinstance(depth, int) and depth % ALIGNED == 0 and depth <= MOST_WIDTH, "heads of a multiple of 8 elements"
    yield k.shape[-1] == depth == v.shape[-1], "heads of one size"
    yield (op.get("scale") or 1) > 0, "a positive factor: the largest score is sought before it"
    if op.get("is_causal"):
        yield mask is None and known_equal(q.shape[2], k.shape[2]), "a square triangle"
    yield mask is None or mask.dtype in (BOOL, q.dtype) and 2 <= mask.rank <= 4, "a mask of that type or of truths"


def takes_cudnn(op: Op, machine: Machine) -> Clauses:
    """It prepares for each size anew, which takes milliseconds."""
    yield from takes_library(op, machine)
    yield prim.tensor(op.operands[0]).dtype != F32, "half types"
    yield _has_known_sizes(op), "sizes that do not change"


def takes_flash(op: Op, machine: Machine) -> Clauses:
    """Without a mask."""
    yield from takes_library(op, machine)
    yield prim.tensor(op.operands[0]).dtype != F32 and "attn_mask" not in op["operands"], "half types without a mask"


def takes_efficient(op: Op, machine: Machine) -> Clauses:
    """The memory-efficient kernel reads every head of keys and values."""
    yield from takes_library(op, machine)
    q, k = (prim.tensor(v) for v in op.operands[:2])
    yield known_equal(q.shape[1], k.shape[1]), "as many heads"
    yield q.dtype == F32 or _has_known_sizes(op) and not _shared_heads(op), "float32, or known sizes without repetition"


def _has_known_sizes(op: Op) -> bool:
    return all(isinstance(n, int) for v in op.operands[:2] for n in prim.tensor(v).shape)


def is_short(op: Op) -> bool:
    """Whether rows of queries and of keys are few."""
    lengths = [prim.tensor(v).shape[-2] for v in op.operands[:2]]
    return all(isinstance(n, int) and n <= FEW_KEYS for n in lengths)


def library_time(op: Op) -> float:
    """Microseconds of the fastest library for short rows."""
    *outer, _, width = cast(tuple[int, ...], prim.tensor(op.operands[0]).shape)
    heads = math.prod(outer)
    return FIXED + max(moved_bytes(op) / BYTES, heads * LIBRARY_HEAD * max(1.0, width / 64))


def _time_of(name: str) -> Callable[[Op, Machine], float]:
    """The time of a library: beyond short rows only the order counts."""

    def time(op: Op, machine: Machine) -> float:
        few, many = SLOWER[name]
        if not is_short(op):
            return many
        return few * (library_time(op) if broken(takes_short(op, machine)) is None else 1.0)

    return time


def _time_of_loops(op: Op, machine: Machine) -> float:
    """Infinite where the libraries are expected to be about as fast, or are faster as a rule."""
    if prim.tensor(op.operands[0]).dtype == F32 or not is_short(op):
        return math.inf
    time = loops_time(op, Tile.of(op), machine)
    return time if time * GAIN < library_time(op) else math.inf


# ---- calls as the kernels want them ----


Made = TypeVar("Made")


class Masks(dict[tuple[object, ...], Any]):
    """What is known of masks and made of them, by what they were: layers share them."""

    def once(self, make: Callable[[], Made], *key: object) -> Made:
        """What `make` gives for these keys."""
        if key not in self:
            self[key] = make()
        return cast(Made, self[key])


class _Call:
    """One call that is changed for a kernel."""

    def __init__(self, op: kernel.Extern, machine: Machine, masks: Masks, tile: str = "") -> None:
        self.op, self.machine, self.masks, self.tile = op, machine, masks, tile
        self.add = InFrontOf(op).add
        self.values = dict(zip(op["operands"], op.operands, strict=True))

    def set(self, name: str, value: SSAValue) -> None:
        """Another operand, which lies as it likes."""
        if value is self.values[name]:
            return
        self.values[name] = value
        place = list(self.op["operands"]).index(name)
        self.op.operands[place] = value
        if given := self.op.get("operand_strides"):
            self.op["operand_strides"] = tuple(None if k == place else s for k, s in enumerate(given))

    def share_heads(self) -> None:
        """attention(q, repeat(k), repeat(v)) -> attention(q, k, v) {enable_gqa}: no repeated heads in memory."""
        if found := _shared_heads(self.op):
            self.set("key", found[0])
            self.set("value", found[1])
            self.op["enable_gqa"] = True

    def write_out_empty_rows(self) -> None:
        """What `empty_rows` says as numbers of the mask: libraries have their own ideas of rows without a score."""
        rows = self.op.get("empty_rows")
        self.op.attributes.pop("empty_rows", None)
        mask, dtype = self.values.get("attn_mask"), prim.tensor(self.values["query"]).dtype
        if rows is None or mask is None:
            return
        deadly = rows == "nan"
        self.set("attn_mask", self.masks.once(lambda: self.bounded(mask, dtype, deadly), mask, dtype, deadly))

    def bounded(self, mask: SSAValue, dtype: DType, deadly: bool) -> SSAValue:
        """The mask in a type, no number below LOWEST but -inf; `deadly`: nan in rows that are -inf all over."""
        spread = mask.owner
        if isinstance(spread, prim.Broadcast | prim.Reshape) and _before_images(mask) is not None:
            inner = self.bounded(spread.operands[0], dtype, deadly)
            kind, attributes = prim.tensor(mask).with_(dtype=dtype), dict(spread.attributes)
            return self.add(type(spread).create(operands=[inner], result_types=[kind], attributes=attributes))
        add, whole = self.add, prim.tensor(mask).shape
        like = prim.tensor(mask).with_(dtype=F32)
        lowest = add(prim.full(LOWEST[dtype], like))
        if like.dtype != prim.tensor(mask).dtype and prim.tensor(mask).dtype == BOOL:
            shut = add(prim.full(-math.inf, like))
            total = add(prim.elementwise("where", mask, add(prim.full(0.0, like)), shut))
        else:
            total = mask if prim.tensor(mask).dtype == F32 else add(prim.cast(mask, F32))
        nothing = add(prim.full(-math.inf, like))
        result = add(prim.elementwise("max", total, lowest))
        result = add(prim.elementwise("where", add(prim.elementwise("eq", total, nothing)), nothing, result))
        if deadly:
            rank = len(whole)
            highest = add(prim.reduce("max", total, (rank - 1,)))
            dead = add(prim.elementwise("eq", highest, add(prim.full(-math.inf, prim.tensor(highest)))))
            rows = add(prim.broadcast(dead, whole, tuple(range(rank - 1))))
            result = add(prim.elementwise("where", rows, add(prim.full(math.nan, like)), result))
        return result if dtype == F32 else add(prim.cast(result, dtype))

    # The kernels.

    def for_cpp(self) -> None:
        self.op["own"] = CPP
        self.share_heads()

    def for_loops(self) -> None:
        """The result's rows lie with all heads side by side."""
        op, values, add = self.op, self.values, self.add
        tile = Tile.parse(self.tile) if self.tile else replace(Tile.of(op), padded=int(self.computes_mask()))
        literals = {k: v for k, v in op.literals.items() if k not in ("effect", "strides", "operand_strides")}
        given = op.get("operand_strides")
        mask = values.get("attn_mask")
        if mask is None:
            tile = replace(tile, padded=0)
        else:
            mask, windows = self.before_windows(mask)
            if windows:
                for name in ROWS:
                    values[name] = add(prim.reshape(values[name], (*windows, *prim.tensor(values[name]).shape[1:])))
                given = None
            values["attn_mask"] = self.masks.once(lambda: self.padded(mask), mask, "padded") if tile.padded else mask
            tile = tile if values["attn_mask"] is not mask else replace(tile, padded=0)
        q, v = (prim.tensor(values[name]).shape for name in ("query", "value"))
        shape = (*q[:-1], v[-1])
        literals |= {"own": LOOPS, "tile": tile.attribute, "strides": (heads_side_by_side(shape),)}
        if given:
            literals["operand_strides"] = tuple(
                None if n == "attn_mask" else s for n, s in zip(values, given, strict=True)
            )
        call = kernel.Extern.make(list(values.values()), [prim.tensor(op.results[0]).with_(shape=shape)], literals)
        result = add(call)
        result.name_hint = op.results[0].name_hint
        if result.type != op.results[0].type:
            result = add(prim.reshape(result, prim.tensor(op.results[0]).shape))
        op.results[0].replace_all_uses_with(result)
        assert op.parent is not None
        op.parent.erase_op(op)

    def for_library(self, backend: str) -> None:
        """A mask of numbers, heads shared where the kernel reads them so, and how the result will lie.

        Flash attention and cuDNN give results that lie as the query does, the others rows of all heads side by side.
        """
        op = self.op
        if backend in (CUDNN, FLASH):
            self.share_heads()
        if mask := self.values.get("attn_mask"):
            dtype = prim.tensor(self.values["query"]).dtype
            self.set("attn_mask", self.masks.once(lambda: self.aligned(mask, dtype), mask, dtype))
        op["backend"] = backend
        b, h, rows, depth = prim.tensor(op.operands[0]).shape
        beside = query = heads_side_by_side((b, h, rows, depth))
        view = view_of(op.operands[0])
        if view is not None and not isinstance(view.base.owner, prim.PrimOp) and view.strides[-1] == 1:
            if known_equal(view.strides[2], depth):
                query = contiguous_strides(view.shape)
            elif all(isinstance(t, int) for t in view.strides):
                query = dense_like(view.shape, view.strides)
        given = op.get("operand_strides") or (None,) * len(op.operands)
        op["operand_strides"] = (query, *given[1:])
        op["strides"] = (beside if backend == EFFICIENT else query,)
        op.attributes.pop("effect", None)  # without dropout it has none

    # Masks.

    def computes_mask(self) -> bool:
        """Whether the mask is not in memory yet: longer rows of it cost nothing then."""
        mask = self.values.get("attn_mask")
        view = None if mask is None else view_of(mask)
        return mask is not None and (view is None or isinstance(view.base.owner, prim.PrimOp))

    def padded(self, mask: SSAValue) -> SSAValue:
        """A mask of numbers in rows as long as a block of keys, -inf behind the last key."""
        t = prim.tensor(mask)
        keys = t.shape[-1]
        if not isinstance(keys, int) or not t.dtype.is_float or block_of(keys) == keys or keys == 1:
            return mask
        return self.part_of_wider(mask, block_of(keys), -math.inf)

    def aligned(self, mask: SSAValue, dtype: DType) -> SSAValue:
        """Four dimensions of numbers, in memory once for what it is the same for, and rows that begin at 16 bytes.

        A library spreads a mask of truth values over batch and heads before it converts it.
        """
        shape = prim.tensor(mask).shape
        if len(shape) < 4:
            mask = self.add(prim.reshape(mask, (*(1,) * (4 - len(shape)), *shape)))
        mask = self.before_spread(mask)
        t = prim.tensor(mask)
        if t.dtype == BOOL:
            opened, shut = (self.add(prim.full(n, t.with_(dtype=dtype))) for n in (0.0, -math.inf))
            mask = self.add(prim.elementwise("where", mask, opened, shut))
        keys = t.shape[3]
        if isinstance(keys, int) and keys != 1 and keys % ALIGNED and not _is_aligned(mask):
            return self.part_of_wider(mask, -(-keys // ALIGNED) * ALIGNED, 0.0)
        return mask

    def part_of_wider(self, mask: SSAValue, wide: int, value: float) -> SSAValue:
        """The mask as the beginning of longer rows."""
        t = prim.tensor(mask)
        zeros = (0,) * t.rank
        padding = {"low": zeros, "high": (*zeros[1:], wide - cast(int, t.shape[-1])), "value": value}
        longer = self.add(prim.Pad.make([mask], [t.with_(shape=(*t.shape[:-1], wide))], padding))
        return self.add(prim.Slice.make([longer], [t], {"starts": zeros, "steps": (1,) * t.rank}))

    def before_windows(self, mask: SSAValue) -> tuple[SSAValue, tuple[Dim, ...]]:
        """A mask before it was spread over batch, heads or rows.

        Where that was over images, whose windows have masks of their own, with how many of both there are: it has five
        dimensions then.
        """
        images = _before_images(mask) if isinstance(mask.owner, prim.Reshape) else None
        if images is not None:
            return self.before_spread(images.results[0]), prim.tensor(images.results[0]).shape[:2]
        return self.before_spread(mask), ()

    def before_spread(self, mask: SSAValue) -> SSAValue:
        """What a broadcast spreads, with as many dimensions."""
        spread = mask.owner
        if not isinstance(spread, prim.Broadcast):
            return mask
        source = spread.operands[0]
        shape: list[Dim] = [1] * prim.tensor(mask).rank
        for d, size in zip(spread["dims"], prim.tensor(source).shape, strict=True):
            shape[d] = size
        return source if prim.tensor(source).shape == tuple(shape) else self.add(prim.reshape(source, tuple(shape)))


def heads_side_by_side(shape: tuple[Dim, ...]) -> Strides:
    """The strides of results (..., heads, rows, width) whose rows lie with all heads side by side."""
    *outer, heads, rows, width = shape
    batch = contiguous_strides((*outer, dim(rows * heads * width)))[:-1]
    return (*batch, width, dim(heads * width), 1)


def _before_images(mask: SSAValue) -> prim.Broadcast | None:
    """The broadcast over images behind (images * windows, heads, rows, keys), or that makes the value itself."""
    t, op = prim.tensor(mask), mask.owner
    if isinstance(op, prim.Broadcast):
        return op if t.rank == 5 else None
    spread = op.operands[0].owner if isinstance(op, prim.Reshape) else None
    if not isinstance(spread, prim.Broadcast) or t.rank != 4:
        return None
    wide = prim.tensor(spread.results[0]).shape
    return spread if len(wide) == 5 and wide[2:] == t.shape[1:] else None


def _is_aligned(mask: SSAValue) -> bool:
    view = view_of(mask)
    if view is None or isinstance(view.base.owner, prim.PrimOp):  # a value that is not in memory yet
        return False
    steps = [t for s, t in zip(view.shape, view.strides, strict=True) if s != 1]
    return steps[-1] == 1 and all(isinstance(t, int) and t % ALIGNED == 0 for t in (*steps[:-1], view.offset))


def _shared_heads(op: Op) -> tuple[SSAValue, SSAValue] | None:
    """Keys and values before each of their heads was repeated for several of the query."""
    names = list(op["operands"])
    k, v = (_before_repeat(op.operands[names.index(name)]) for name in ("key", "value"))
    if op.get("enable_gqa") or k is None or v is None or prim.tensor(k).shape[1] != prim.tensor(v).shape[1]:
        return None
    return k, v


def _before_repeat(value: SSAValue) -> SSAValue | None:
    """(b, h, l, d) for reshape(broadcast(...), (b, h * g, l, d)) over (b, h, g, l, d); None for anything else."""
    reshape = value.owner
    broadcast = reshape.operands[0].owner if isinstance(reshape, prim.Reshape) else None
    if not isinstance(broadcast, prim.Broadcast):
        return None
    wide, whole = prim.tensor(broadcast.results[0]).shape, prim.tensor(value).shape
    if len(wide) != 5 or (whole[0], whole[2], whole[3]) != (wide[0], wide[3], wide[4]):
        return None
    source = broadcast.operands[0]
    kept = (wide[0], wide[1], wide[3], wide[4])
    if tuple(broadcast["dims"]) == (0, 1, 3, 4) and prim.tensor(source).shape == kept:
        return source
    inner = source.owner
    if (
        tuple(broadcast["dims"]) == (0, 1, 2, 3, 4)
        and isinstance(inner, prim.Reshape)
        and prim.tensor(source).shape == (wide[0], wide[1], 1, wide[3], wide[4])
        and prim.tensor(inner.operands[0]).shape == kept
    ):
        return inner.operands[0]
    return None


LOWERINGS = (
    Lowering(CPP, takes_cpp, lambda op, machine: 0.0, _Call.for_cpp),  # the only one on a CPU
    Lowering(LOOPS, takes_short, _time_of_loops, _Call.for_loops),
    Lowering(CUDNN, takes_cudnn, _time_of(CUDNN), lambda call: call.for_library(CUDNN)),
    Lowering(FLASH, takes_flash, _time_of(FLASH), lambda call: call.for_library(FLASH)),
    Lowering(EFFICIENT, takes_efficient, _time_of(EFFICIENT), lambda call: call.for_library(EFFICIENT)),
    Lowering(ANY, takes_library, _time_of(ANY), lambda call: call.for_library(ANY)),
)
