"""pad-products: products on a GPU whose rows begin anywhere in memory get longer rows, which begin at multiples of 16 bytes.

    %3 = kernel.extern<aten.mm.default>(%dy, %w)          dy: (4096, 50257), w: (50257, 768)
    =>
    %1 = prim.pad(%dy) {high = [0, 7], ...}                zeros, so that they change no sum
    %2 = prim.pad(%w) {high = [7, 0], ...}
    %3 = kernel.extern<aten.mm.default>(%1, %2)

The library's fast kernels ask for such rows, of both factors and of the result; the slowest take eight times as long. A factor
that a kernel of ours computes is written with its zeros, so that nothing is copied; of a longer result a slice is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16
from ...ir.symbols import Dim, contiguous_strides
from ...ir.syntax import Op
from ..analysis.machine import Machine, Processor
from ..analysis.product_model import FEW, MULTIPLE, Shape, pays_longer_rows, pays_padding
from ..analysis.sizes import hint
from ..analysis.strides import view_of
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import replace as put_in_place
from ..fusion.join import layout_of, uses_of
from .contractions import Contraction, contraction_of

Letters = frozenset[str]  # of a contraction's dimensions: k is summed over, n are the result's columns, m its rows


@dataclass(frozen=True)
class PadProducts(Pass):
    """Give products whose rows begin anywhere sizes at multiples of 16 bytes, where that is expected to pay.

    Options:
        tiles: whether kernels of our own may carry out products (`choose-products`): they store rows that begin anywhere.
    """

    name: ClassVar[str] = "pad-products"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "cse", "dce", "hoist")
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    tiles: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            calls = [op for op in func.block_body.ops if isinstance(op, kernel.Extern) and _is_padded(op, ctx.machine)]
            if not calls:
                continue
            padding = _Padding(func.get("size_hints") or (), ctx.machine.gpu, self.tiles)
            # Factors first: a result with longer rows costs nothing where a factor has been made longer for another product.
            for op in [padding.factors(_contraction(op)).op for op in calls]:
                padding.result(_contraction(op))
            ctx.diagnostics.count(self.name, "padded products", padding.count)


def _contraction(op: kernel.Extern) -> Contraction:
    """The product as it is now: another one may have made a factor longer."""
    found = contraction_of(op)
    assert found is not None
    return found


def _is_padded(op: kernel.Extern, machine: Machine) -> bool:
    found = contraction_of(op)
    return found is not None and not broken(takes_padding(found, machine))


def takes_padding(found: Contraction, machine: Machine) -> Clauses:
    """Which products can be given other sizes."""
    values = (*found.op.operands, *found.op.results)
    yield machine.at(found.type.device).is_grid, "values on a GPU"
    yield len({(prim.tensor(v).dtype, prim.tensor(v).device) for v in values}) == 1, "one dtype on one GPU"
    yield found.type.dtype in (BF16, F16), "half types"
    yield all(prim.tensor(v).rank == 2 for v in (found.a, found.b)), "matrices"
    yield layout_of(found.op.results[0]) is None, "a result that is contiguous"
    yield found.added is None or prim.tensor(found.added).rank == 1, "a bias with a number for each column, if any"


@dataclass
class _Padding:
    """The padded values of a function.

    Attributes:
        known: what is a value with so many zeros behind its rows and columns.
        count: how many products were changed.
    """

    hints: object
    gpu: Processor
    tiles: bool
    known: dict[tuple[SSAValue, tuple[int, int]], prim.Pad] = field(default_factory=dict)
    count: int = 0

    def factors(self, found: Contraction) -> Contraction:
        """The product with longer factors, where their rows begin anywhere and that pays."""
        wanted = frozenset(letter for v, dims in _factors(found) for letter in [_uneven(v, dims)] if letter is not None)
        sizes = _sizes(found)
        if not wanted or not all(_can_grow(sizes[letter]) for letter in wanted):
            return found
        rows, columns, inner = (self._number(sizes[letter]) for letter in "mnk")
        copies = sum(self._copied(v) for v, dims in _factors(found) if wanted & set(dims))
        return self._grown(found, wanted) if pays_padding(rows, columns, inner, copies) else found

    def result(self, found: Contraction) -> None:
        """Longer rows of the result, where they would begin anywhere and that pays."""
        sizes = _sizes(found)
        rows, columns, inner = (self._number(sizes[letter]) for letter in "mnk")
        if not _can_grow(sizes["n"]) or rows <= FEW or any(_uneven(v, d) for v, d in _factors(found)):
            return
        if self.tiles and self._goes_on_with_elements(
            found.op.results[0]
        ):  # what follows is computed in the product's kernel
            return
        size = prim.tensor(found.a).dtype.bytes
        shape = Shape(
            *(1, rows, columns, inner, found.type.dtype.name),
            shared_bytes=self.gpu.shared_bytes,
            multiprocessors=self.gpu.multiprocessors,
            tensor_maps=self.gpu.tensor_maps and isinstance(sizes["m"], int),
        )
        whole, copied = rows * columns * size, self._copied(found.b)
        tiles = self.tiles and isinstance(sizes["k"], int)
        sliced = self._is_read_as_slice(found.op.results[0])
        read, cut = (whole, 0) if sliced else (0, whole)
        if pays_longer_rows(shape, copied, read, cut, tiles):
            self._grown(found, frozenset("n"))

    def _number(self, size: Dim) -> int:
        return hint(size, cast(Mapping[str, int], dict(self.hints)))  # type: ignore[call-overload]

    def _copied(self, value: SSAValue) -> int:
        """The bytes that the zeros behind a value cost: a copy, unless a kernel of ours makes it for products alone."""
        root, _ = _turned(value)
        if any(v is root for v, _ in self.known) or any(_is_longer(use.operation) for use in root.uses):
            return 0
        t = prim.tensor(root)
        whole = self._number(t.numel) * t.dtype.bytes
        if isinstance(root.owner, (Block, kernel.Extern, *prim.VIEWS)):
            return 2 * whole
        return 0 if _is_for_products(root) else whole

    def _grown(self, found: Contraction, letters: Letters) -> Contraction:
        """The product with these of its sizes rounded up, and a slice of its result in its place."""
        op, form = found.op, found.form
        values: dict[str, SSAValue] = {
            form.a: self._padded(found.a, _places(form.maps[0]), letters, op),
            form.b: self._padded(found.b, _places(form.maps[1]), letters, op),
        }
        if found.added is not None:
            values[form.added] = _longer(found.added, op) if "n" in letters else found.added
        names = list(op["operands"])
        operands = [values[name] for name in names]
        old = found.type
        shape = [n + -n % MULTIPLE if letter in letters else n for n, letter in zip(old.shape, "mn", strict=True)]
        attrs = {k: v for k, v in op.literals.items() if k not in ("operand_strides", "strides")}
        views = [view_of(v) for v in operands]
        strides = [None if v is None or v.strides == contiguous_strides(v.shape) else v.strides for v in views]
        if any(s is not None for s in strides):
            attrs["operand_strides"] = tuple(strides)
        made = kernel.Extern.make(operands, [old.with_(shape=shape)], attrs, loc=op.location)
        result: list[Op] = [made]
        if tuple(shape) != tuple(old.shape):
            result.append(
                prim.Slice.make([made.results[0]], [old], {"starts": (0, 0), "steps": (1, 1)}, loc=op.location)
            )
        put_in_place(op, [result[-1].results[0]], result)
        self.count += 1
        return _contraction(made)

    def _padded(self, value: SSAValue, places: str, letters: Letters, before: kernel.Extern) -> SSAValue:
        """The value with zeros behind it along these of its dimensions."""
        root, turned = _turned(value)
        sizes = cast(tuple[Dim, Dim], prim.tensor(root).shape)
        dims = places[::-1] if turned else places
        high = tuple(-n % MULTIPLE if letter in letters else 0 for n, letter in zip(sizes, dims, strict=True))
        if not any(high):
            return value
        pad = self.known.get((root, high)) or _padded_already(root, high)  # type: ignore[arg-type]
        if pad is None:
            t = prim.tensor(root).with_(shape=[n + more for n, more in zip(sizes, high, strict=True)])
            pad = prim.Pad.make([root], [t], {"low": (0, 0), "high": high, "value": 0.0}, loc=before.location)
            if not self._stands_for(pad, root):
                before.parent.insert_op_before(pad, before)  # type: ignore[union-attr]  # it stands in a function
        elif not pad.is_before_in_block(before):
            pad.detach()
            before.parent.insert_op_before(pad, before)  # type: ignore[union-attr]
        self.known[root, high] = pad  # type: ignore[index]
        if not turned:
            return pad.results[0]
        made = prim.permute(pad.results[0], (1, 0))
        before.parent.insert_op_before(made, before)  # type: ignore[union-attr]
        return made.results[0]

    def _stands_for(self, pad: prim.Pad, root: SSAValue) -> bool:
        """Let products read the first rows of a longer value, where it is computed for products alone: it is stored once then."""
        owner = root.owner
        if (
            pad["high"][1]
            or not isinstance(owner, prim.PrimOp)
            or isinstance(owner, prim.VIEWS)
            or not _is_for_products(root)
        ):
            return False
        block = owner.parent
        assert block is not None
        block.insert_op_after(pad, owner)
        first = prim.Slice.make([pad.results[0]], [root.type], {"starts": (0, 0), "steps": (1, 1)}, loc=pad.location)
        block.insert_op_after(first, pad)
        for use in [use for use in root.uses if use.operation is not pad]:
            use.operation.operands[use.index] = first.results[0]
        return True

    def _goes_on_with_elements(self, value: SSAValue) -> bool:
        """Whether single elements are computed of a value, and nothing is reduced at once."""
        todo, reduced, computed = [value], False, False
        while todo:
            for use in todo.pop().uses:
                op = use.operation
                reduced |= isinstance(op, prim.Reduce)
                if isinstance(op, (*prim.VIEWS, prim.Cast)):
                    todo.append(op.results[0])
                computed |= isinstance(op, prim.Elementwise)
        return computed and not reduced

    def _is_read_as_slice(self, value: SSAValue) -> bool:
        """Whether only kernels of ours read a value, which may lie with gaps then."""
        todo = [value]
        while todo:
            for use in todo.pop().uses:
                if isinstance(use.operation, prim.VIEWS):
                    todo.append(use.operation.results[0])
                elif not isinstance(use.operation, prim.PrimOp) or isinstance(use.operation, prim.Return):
                    return False
        return True


def _is_longer(op: object) -> bool:
    """Whether an operation gives a matrix with zeros behind its rows, or behind its columns."""
    return isinstance(op, prim.Pad) and not any(op["low"]) and op["value"] == 0


def _padded_already(root: SSAValue, high: tuple[Dim, ...]) -> prim.Pad | None:
    """What the program has of a matrix with so many zeros behind it."""
    found = [cast(prim.Pad, use.operation) for use in root.uses if _is_longer(use.operation)]
    return next((pad for pad in found if tuple(pad["high"]) == high), None)


def _is_for_products(value: SSAValue) -> bool:
    """Whether only products read a value."""
    readers = [use.operation for use in uses_of(value, (prim.Permute,)) if not isinstance(use.operation, prim.Pad)]
    return all(isinstance(op, kernel.Extern) and contraction_of(op) is not None for op in readers)


def _places(dims: str) -> str:
    """The letters of a matrix's dimensions; all rows are m."""
    return dims.replace("*", "m")


def _factors(found: Contraction) -> list[tuple[SSAValue, str]]:
    """Both factors with the letters of their dimensions."""
    a, b = found.form.maps
    return [(found.a, _places(a)), (found.b, _places(b))]


def _sizes(found: Contraction) -> dict[str, Dim]:
    return {"m": found.rows, "n": found.columns, "k": found.inner}


def _can_grow(size: Dim) -> bool:
    return isinstance(size, int) and size % MULTIPLE != 0


def _uneven(value: SSAValue, dims: str) -> str | None:
    """The dimension along which a matrix is contiguous, where what is contiguous does not begin at multiples of 16 bytes."""
    view = view_of(value)
    strides = contiguous_strides(prim.tensor(value).shape) if view is None else view.strides
    if strides[1] == 1:
        along, across = 1, strides[0]
    elif strides[0] == 1:
        along, across = 0, strides[1]
    else:
        return None
    return dims[along] if isinstance(across, int) and across % MULTIPLE else None


def _turned(value: SSAValue) -> tuple[SSAValue, bool]:
    """What a matrix is the transpose of, where it is one."""
    owner = value.owner
    if isinstance(owner, prim.Permute) and tuple(owner["perm"]) == (1, 0):
        return _unpadded(owner.operands[0]), True
    return _unpadded(value), False


def _unpadded(value: SSAValue) -> SSAValue:
    """What a matrix is that is all of another one but the zeros behind it: another product has made that longer."""
    cut = value.owner
    if isinstance(cut, prim.Slice) and not any(cut["starts"]) and set(cut["steps"]) == {1}:
        pad = cut.operands[0].owner
        if isinstance(pad, prim.Pad) and _is_longer(pad) and pad.operands[0].type == value.type:
            return pad.operands[0]
    return value


def _longer(bias: SSAValue, before: Op) -> SSAValue:
    """A bias with zeros behind it."""
    t = prim.tensor(bias)
    more = -cast(int, t.shape[0]) % MULTIPLE
    pad = prim.Pad.make([bias], [t.with_(shape=[t.shape[0] + more])], {"low": (0,), "high": (more,), "value": 0.0})
    before.parent.insert_op_before(pad, before)  # type: ignore[union-attr]  # it stands in a function
    return pad.results[0]
