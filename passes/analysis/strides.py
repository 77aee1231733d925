"""Which values are strided views of memory, and with which strides.

Below the tensor algebra a value is memory with strides. Reshapes, permutations, slices and broadcasts of memory cost nothing
when their result can be addressed with strides too; these functions say when that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import sympy
from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.symbols import Dim, FloorDiv, contiguous_strides, dim, known_equal, product
from ...ir.syntax import Op
from ...ir.types import TensorType
from .views import view_strides

Strides = tuple[Dim, ...]


@dataclass(frozen=True)
class View:
    """`value` is the memory of `base`, addressed with `strides` from `offset` (both in elements)."""

    base: SSAValue
    shape: tuple[Dim, ...]
    strides: Strides
    offset: Dim


def exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b when b divides a visibly, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    quotient = dim(FloorDiv(sympy.sympify(a), sympy.sympify(b)))
    return quotient if known_equal(dim(quotient * b), a) and not _has_division(quotient) else None


def _has_division(value: Dim) -> bool:
    return not isinstance(value, int) and bool(value.has(FloorDiv))


def memory_strides(value: SSAValue) -> Strides:
    """The strides with which a value lies in memory: recorded on its producer or on the function, else contiguous."""
    shape = cast(TensorType, value.type).shape
    recorded = recorded_strides(value)
    return contiguous_strides(shape) if recorded is None else recorded


def recorded_strides(value: SSAValue) -> Strides | None:
    """The strides written on the value's producer (or on the function for an argument); None: contiguous."""
    owner = value.owner
    if isinstance(owner, Block):
        func = owner.parent_op()
        strides = func.get("arg_strides") if isinstance(func, Op) else None
        index = owner.args.index(value)
    else:
        strides = cast(Op, owner).get("strides")
        index = owner.results.index(value)
    return strides[index] if strides else None


def same_layout(shape: Sequence[Dim], a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether both strides address every element alike: dimensions of size 1 do not count, nor does an empty tensor."""
    if any(s == 0 for s in shape):
        return True
    return all(s == 1 or known_equal(x, y) for s, x, y in zip(shape, a, b, strict=True))


_STRIDED = (prim.Reshape, prim.Permute, prim.After, prim.Slice, prim.Broadcast)


def is_view(op: object) -> bool:
    """Whether the operation may be a strided view of its operand's memory (flip is not: strides are not negative)."""
    return isinstance(op, _STRIDED)


def view_of(value: SSAValue, strides_of: Callable[[SSAValue], Strides] = memory_strides) -> View | None:
    """The value as a strided view of the memory at the end of its chain of views; None when strides cannot express it.

    `strides_of` gives the strides of that memory (default: as recorded).
    """
    chain: list[prim.PrimOp] = []
    base = value
    while isinstance(base.owner, _STRIDED):
        chain.append(base.owner)
        base = base.owner.operands[0]
    strides, offset = strides_of(base), cast(Dim, 0)
    for op in reversed(chain):
        found = view_strides(op, strides, offset)
        if found is None:
            return None
        strides, offset = found
    return View(base, cast(TensorType, value.type).shape, strides, offset)


def operand_strides(op: Op, index: int) -> Strides:
    """The strides with which a library call wants operand `index`: those recorded, unless its kernel cannot read them."""
    wanted = op.get("operand_strides")
    found: Strides | None = wanted[index] if wanted else None
    value, shape = op.operands[index], prim.tensor(op.operands[index]).shape
    if found is None or _reads(op, index, View(value, shape, found, 0)) is False:
        return contiguous_strides(shape)
    return found


def takes_view(op: Op, index: int, view: View) -> bool:
    """Whether a library call can read operand `index` in this view of memory as it is; ATen's calls want eager's strides."""
    reads = _reads(op, index, view)
    return same_layout(view.shape, view.strides, operand_strides(op, index)) if reads is None else reads


def _reads(op: Op, index: int, view: View) -> bool | None:
    """Whether the kernel that was chosen for a call reads a view; None: none was chosen, or it takes what was recorded.

    Attention of our own takes any as long as the last dimension has no gaps (a mask may have them), and its region reads any. The libraries' on a
    GPU want rows that begin at 16 bytes, too, but for a mask without gaps: one that is short by that has longer rows.
    """
    if isinstance(op, kernel.Contract) and {op.block_body.args[index]} == {op.product.operands[1]}:
        return True  # the host packs the weight
    name = op["operands"][index] if op.get("operands") is not None else ""
    mask = name == "attn_mask"
    if op.get("backend"):
        steps = [t for s, t in zip(view.shape[:-1], view.strides[:-1], strict=True) if s != 1]
        aligned = all(exact_quotient(t, 8) is not None for t in (*steps, view.offset))
        whole = mask and view.offset == 0 and same_layout(view.shape, view.strides, contiguous_strides(view.shape))
        return view.strides[-1] == 1 and (aligned or whole)
    if op.get("own") == "trained_attention" and name == "logsumexp":
        return True
    if op.get("own") in ("attention", "short_attention", "trained_attention"):
        by_region = name.startswith(kernel.PREFIX)
        return by_region or view.strides[-1] == 1 or view.shape[-1] == 1 or (view.strides[-1] == 0 and mask)
    return None


def result_strides(op: kernel.Fused | kernel.Extern, index: int) -> Strides:
    """The strides of a kernel's result."""
    return memory_strides(op.results[index])


def is_dense(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether the strides address each element of a gapless block of memory exactly once."""
    if any(s == 0 for s in shape):
        return True
    pairs = [(s, t) for s, t in zip(shape, strides, strict=True) if s != 1]
    running: Dim = 1
    while pairs:
        found = next((i for i, (_, t) in enumerate(pairs) if known_equal(t, running)), None)
        if found is None:
            return False
        running = dim(running * pairs.pop(found)[0])
    return known_equal(running, product(shape))


def channels_last(shape: Sequence[Dim]) -> Strides | None:
    """Strides of the channels-last layout of a 4- or 5-dimensional shape, None for other ranks."""
    if len(shape) not in (4, 5):
        return None
    return _in_order(shape, (0, *range(2, len(shape)), 1))


def dense_like(shape: Sequence[Dim], strides: Sequence[Dim]) -> Strides:
    """Gapless strides with the order of dimensions of `strides`, outermost first where the order is known."""
    return _in_order(shape, memory_order(strides))


def _in_order(shape: Sequence[Dim], order: Sequence[int]) -> Strides:
    """Gapless strides with these dimensions from the outermost to the innermost."""
    inner = dict(zip(order, contiguous_strides([shape[i] for i in order]), strict=True))
    return tuple(inner[i] for i in range(len(shape)))


def memory_order(strides: Sequence[Dim]) -> list[int]:
    """Dimensions from the outermost to the innermost in memory, those of stride 0 outside of all; as they are when strides are symbolic."""
    order = list(range(len(strides)))
    if all(isinstance(s, int) for s in strides):
        order.sort(key=lambda i: (strides[i] != 0, -cast(int, strides[i])))
    return order
