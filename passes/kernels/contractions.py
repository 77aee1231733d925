"""Contractions: which library calls are sums of products, and the kernel around one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import F32
from ...ir.symbols import Dim, known_equal, product
from ...ir.syntax import Op, single_block
from ...ir.types import TensorType
from ..fusion.join import layout_of

Kernel = TypeVar("Kernel", bound=kernel.Fused)


@dataclass(frozen=True)
class Form:
    """An operator of ATen as a contraction: which operands are the factors, and what is added to the sums.

    `maps`: the dimensions of the factors: k is added up, n are the result's columns, m its rows and b its batch; * are
    all rows.
    """

    a: str
    b: str
    added: str
    maps: tuple[str, str]


LINEAR = "aten.linear.default"
FORMS = {
    LINEAR: Form("input", "weight", "bias", ("*k", "nk")),
    "aten.addmm.default": Form("mat1", "mat2", "self", ("mk", "kn")),
    "aten.mm.default": Form("self", "mat2", "", ("mk", "kn")),
    "aten.bmm.default": Form("self", "mat2", "", ("bmk", "bkn")),
    "aten.baddbmm.default": Form("batch1", "batch2", "self", ("bmk", "bkn")),
}


@dataclass
class Contraction:
    """A library call that is a contraction: its factors and what is added to them.

    Attributes:
        a, b: the factors.
        added: what is added to the sums, if there is something.
        transposed: b is (columns, inner).
        batch, rows, columns, inner: the sizes.
    """

    op: kernel.Extern
    a: SSAValue
    b: SSAValue
    added: SSAValue | None

    @property
    def form(self) -> Form:
        return FORMS[self.op["target"]]

    @property
    def type(self) -> TensorType:
        """Of the result."""
        return prim.tensor(self.op.results[0])

    @property
    def transposed(self) -> bool:
        return self.form.maps[1].endswith("k")

    @property
    def batched(self) -> bool:
        return "b" in self.form.maps[0]

    @property
    def batch(self) -> Dim:
        return self.type.shape[0] if self.batched else 1

    @property
    def rows(self) -> Dim:
        return self.type.shape[1] if self.batched else product(self.type.shape[:-1])

    @property
    def columns(self) -> Dim:
        return self.type.shape[-1]

    @property
    def inner(self) -> Dim:
        return prim.tensor(self.a).shape[-1]


def contraction_of(op: Op) -> Contraction | None:
    """What a call multiplies; None where it is no contraction, or has more to it than the table says."""
    if not isinstance(op, kernel.Extern) or op["target"] not in FORMS:
        return None
    form, names = FORMS[op["target"]], list(op["operands"])
    plain = op.get("beta", 1) == 1 and op.get("alpha", 1) == 1 and not any(map(op.get, ("own", "effect")))
    if not plain or not {form.a, form.b} <= set(names) <= {form.a, form.b, form.added}:
        return None
    values = dict(zip(names, op.operands, strict=True))
    found = Contraction(op, values[form.a], values[form.b], values.get(form.added))
    a, b = prim.tensor(found.a), prim.tensor(found.b)
    if not a.rank or b.rank != len(form.maps[1]) or 0 in (*a.shape, *b.shape):
        return None
    return found if found.added is None or _spreads(prim.tensor(found.added), found.type) else None


def _spreads(added: TensorType, result: TensorType) -> bool:
    """Whether a tensor is broadcast to the result's shape by the usual rule."""
    if added.rank > result.rank:
        return False
    pairs = zip(reversed(added.shape), reversed(result.shape), strict=False)
    return all(s == 1 or known_equal(s, t) for s, t in pairs)


def sums_kernel(found: Contraction, choice: str, why: str, chunks: int = 1) -> kernel.Contract:
    """A kernel of the sums alone in front of the call. Chunks of the inner size are the first dimension of its result."""
    block = (region := single_block(arg_types=[found.a.type, found.b.type])).block
    sums = _sums(found, block, chunks)
    block.add_ops([sums, kernel.Yield.make([sums.results[0]])])
    made = kernel.Contract.make(
        [found.a, found.b], [sums.type], {"choice": choice, "why": why}, [region], found.op.location
    )
    found.op.parent.insert_op_before(made, found.op)  # type: ignore[union-attr]  # it stands in a function
    return made


def contract_kernel(found: Contraction, choice: str, why: str) -> kernel.Contract:
    """A kernel in the place of the call: the sums, what is added to them, rounded to the result's dtype."""
    return put(found, as_kernel(found, choice, why))


def as_kernel(found: Contraction, choice: str, why: str) -> kernel.Contract:
    """What `contract_kernel` puts in the place of the call, not yet in a block."""
    values = [v for v in (found.a, found.b, found.added) if v is not None]
    block = (region := single_block(arg_types=[v.type for v in values])).block
    sums = _sums(found, block)
    block.add_op(sums)
    _finish(found, block, sums.results[0], block.args[2:])
    attrs = {"choice": choice, "why": why, **_layout(found)}
    return kernel.Contract.make(values, [found.type], attrs, [region], found.op.location)


def added_chunks(found: Contraction, parts: SSAValue) -> kernel.Fused:
    """A kernel in the place of the call that adds up the sums of its chunks."""
    values = [v for v in (parts, found.added) if v is not None]
    block = (region := single_block(arg_types=[v.type for v in values])).block
    kind = prim.tensor(parts)
    total: SSAValue | None = None
    for k in range(int(kind.shape[0])):
        attrs = {"starts": (k, *[0] * (kind.rank - 1)), "steps": (1,) * kind.rank}
        cut = prim.Slice.make([block.args[0]], [kind.with_(shape=(1, *kind.shape[1:]))], attrs)
        part = prim.reshape(cut.results[0], kind.shape[1:])
        block.add_ops([cut, part])
        total = part.results[0] if total is None else _added(block, total, part.results[0])
    assert total is not None
    _finish(found, block, total, block.args[1:])
    return put(found, kernel.Fused.make(values, [found.type], _layout(found), [region], found.op.location))


def _sums(found: Contraction, block: Block, chunks: int = 1) -> prim.Contract:
    """The sums of products of the block's first two arguments."""
    shape, inner = found.type.shape, found.inner
    *rows, column, walk = prim.axes(len(shape) + (chunks > 1) + 1)
    if chunks > 1:
        first, *rows = rows
        shape, inner = (chunks, *shape), inner // chunks
        walk = inner * first + walk
    places = {"*": rows, "b": rows[:1], "m": rows[-1:], "n": [column], "k": [walk]}
    maps = [[place for letter in dims for place in places[letter]] for dims in found.form.maps]
    attrs = {"tf32": True} if found.type.dtype == F32 and found.type.device != "cpu" else {}
    made = prim.contract(block.args[0], block.args[1], maps, shape, (inner,), **attrs)
    made.location = found.op.location
    return made


def _finish(found: Contraction, block: Block, wide: SSAValue, added: tuple[SSAValue, ...]) -> None:
    """Yield the sums with what is added to them, in the result's dtype."""
    narrow, rank = found.type.dtype, found.type.rank
    for shift in added:
        if narrow != F32:
            block.add_op(up := prim.cast(shift, F32))
            shift = up.results[0]
        spread = prim.broadcast(shift, found.type.shape, tuple(range(rank - prim.tensor(shift).rank, rank)))
        block.add_op(spread)
        wide = _added(block, wide, spread.results[0], found.op)
    if narrow != F32:
        block.add_op(down := prim.cast(wide, narrow))
        wide = down.results[0]
    block.add_op(kernel.Yield.make([wide]))


def _added(block: Block, a: SSAValue, b: SSAValue, source: Op | None = None) -> SSAValue:
    block.add_op(made := prim.elementwise("add", a, b))
    if source is not None:
        made.location = source.location
    return made.results[0]


def _layout(found: Contraction) -> dict[str, object]:
    strides = layout_of(found.op.results[0])
    return {} if strides is None else {"strides": (strides,)}


def put(found: Contraction, made: Kernel) -> Kernel:
    """Let a kernel stand in the place of the call."""
    op = found.op
    made.results[0].name_hint = op.results[0].name_hint
    op.parent.insert_op_before(made, op)  # type: ignore[union-attr]  # it stands in a function
    op.results[0].replace_all_uses_with(made.results[0])
    op.detach()
    op.erase()
    return made
