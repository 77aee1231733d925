"""Products through oneDNN: x @ w (+ bias), a parameter packed once, any other factor as it lies.

oneDNN multiplies with a weight packed once in 1.0 to 2.3 times the speed of MKL's call on the raw weight, so products
with a parameter go there. Of other factors (training: weights change in every step) it makes its own order in the call;
on AMD that takes half of MKL's time, elsewhere about as much: measured (targets/measure/choices.py).
"""

from __future__ import annotations

from typing import Any

import torch

from ...ir.dialects import prim
from ...ir.dtypes import BF16, F32
from ...ir.symbols import Dim, known_equal
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.core.clauses import Call, Clauses, broken
from ..torch_private import NO_ACTIVATION, onednn_bfloat16, onednn_linear, onednn_pack_linear
from .kernels import PackedOperand
from .steps import Fingerprint, PackedWeight, Step, is_static

PACKED, LYING = "packed-product", "product"  # the steps: with a packed copy of the weight, with the weight as it lies


class PackedProduct:
    """x @ w (+ bias) through oneDNN with a packed copy of the weight.

    Args:
        x, weight, bias: positions of the operands; bias is None without one.
        transposed: the weight operand is (in, out), as for mm, and not (out, in), as for linear.
        rows: how many rows x had at compile time; packing prepares for that many.
        limit: the most bytes that packed copies may take; without a copy the call is ATen's.
    """

    def __init__(
        self,
        x: int,
        weight: int,
        bias: int | None,
        transposed: bool,
        rows: int,
        fingerprint: Fingerprint,
        limit: int = -1,
    ) -> None:
        self.x, self.weight, self.bias, self.transposed = x, weight, bias, transposed
        self.packed = PackedWeight(
            lambda w: onednn_pack_linear((w.t() if transposed else w).contiguous(), rows),
            fingerprint,
            ("product", transposed, rows),
            limit,
        )

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        x, weight = operands[self.x], operands[self.weight]
        bias = None if self.bias is None else operands[self.bias]
        # Without a version a change could not be noticed.
        packed = None if weight.is_inference() or not x.numel() else self.packed(weight)
        if packed is None:
            return torch.nn.functional.linear(x, weight.t() if self.transposed else weight, bias)
        return onednn_linear(x, packed, bias, *NO_ACTIVATION)


class Product:
    """x @ w (+ bias) through oneDNN, the factors as they lie; the arguments are those of `PackedProduct`."""

    def __init__(
        self,
        x: int,
        weight: int,
        bias: int | None,
        transposed: bool,
        rows: int,
        fingerprint: Fingerprint | None = None,
        limit: int = -1,
    ) -> None:
        self.x, self.weight, self.bias, self.transposed = x, weight, bias, transposed

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        x, weight = operands[self.x], operands[self.weight]
        weight = weight.t() if self.transposed else weight
        bias = None if self.bias is None else operands[self.bias]
        if not (x.numel() and weight.numel()):  # of a symbolic size; oneDNN takes nothing empty
            return torch.nn.functional.linear(x, weight, bias)
        return onednn_linear(x, weight, bias, *NO_ACTIVATION)  # type: ignore[no-any-return]


def pack_panels(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """(columns, inner) -> (panels, inner, panel) in float32, (panels, inner / 2, panel, 2) in bfloat16; zeros behind the last column."""
    columns, inner = weight.shape
    panels = -(-columns // panel)
    if panels * panel != columns:
        weight = torch.cat((weight, weight.new_zeros(panels * panel - columns, inner)))
    if weight.dtype == torch.bfloat16:
        return weight.reshape(panels, panel, inner // 2, 2).permute(0, 2, 1, 3).contiguous()
    return weight.reshape(panels, panel, inner).permute(0, 2, 1).contiguous()


class PackedPanels:
    """The copy of a weight that the kernel of our own reads (`pack_panels`); empty, at the address 0, where copies may take no more memory.

    Args:
        transposed: the weight is (inner, columns), as for mm, and not (columns, inner), as for linear.
        panel: columns of a panel (targets/cpp/include/intarsia_linear.h).
        limit: the most bytes that packed copies may take.
    """

    def __init__(self, transposed: bool, panel: int, fingerprint: Fingerprint, limit: int = -1) -> None:
        self.packed = PackedWeight(
            lambda w: pack_panels(w.t() if transposed else w, panel), fingerprint, ("panels", panel, transposed), limit
        )
        self.none = torch.empty(0)

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        # Without a version a change could not be noticed.
        found = None if weight.is_inference() else self.packed(weight)
        return self.none if found is None else found


def panels_step(packs: PackedOperand) -> Step:
    """What packs the weight of a contraction in registers."""
    return Step("packed-panels", {"transposed": packs.transposed, "panel": packs.panel})


def takes_packed_product(op: Op, x: str, weight: str, bias: str | None) -> Clauses:
    """What oneDNN's product with a packed weight takes; it reads a bias as if it had no gaps."""
    call = Call.of(op)
    yield onednn_linear is not None, "a torch with oneDNN"
    yield (
        call.on_cpu and (call.are(F32) or (onednn_bfloat16 and call.are(BF16))),
        "float32, or bfloat16 where oneDNN has it",
    )
    yield (
        len(call.shape(x)) > 0 and len(call.shape(weight)) == 2 and not call.empty,
        "a matrix as the weight, nothing empty",
    )
    yield op.get("beta", 1) == 1 and op.get("alpha", 1) == 1, "no factors"
    if bias in call.names:
        yield call.shape(bias) == call.shape("result")[-1:], "a bias with a number for each column"
        yield call.lies_in_order(bias), "a bias without gaps"


def takes_product(op: Op, x: str, weight: str, bias: str | None) -> Clauses:
    """What oneDNN's product takes of factors as they lie, beyond `takes_packed_product`; ATen itself gives it those of half types."""
    call = Call.of(op)
    yield call.are(F32), "float32"
    kind = call.tensors[weight]
    assert isinstance(kind, RefType)
    rows, columns = kind.strides
    ordered = (rows == 1 and _reaches(columns, kind.shape[0])) or (columns == 1 and _reaches(rows, kind.shape[1]))
    yield ordered, "a weight whose rows or columns have no gaps and do not overlap"


def _reaches(stride: Dim, size: Dim) -> bool:
    """Whether rows of that size lie behind each other."""
    if isinstance(stride, int) and isinstance(size, int):
        return stride >= size
    return known_equal(stride, size)


def _choose_product(op: Op, func: prim.Func, x: str, weight: str, bias: str | None, transposed: bool) -> Step | None:
    names = list(op["operands"])
    if broken(takes_packed_product(op, x, weight, bias)):
        return None
    factor = op.operands[names.index(weight)]
    static = is_static(factor, func)
    if not static and broken(takes_product(op, x, weight, bias)):
        return None
    rows: Any = 1
    for size in Call.of(op).shape(x)[:-1]:
        rows = rows * size
    options: dict[str, Any] = {"x": names.index(x), "weight": names.index(weight)}
    options |= {"bias": names.index(bias) if bias in names else None}
    options |= {"transposed": transposed, "rows": rows if isinstance(rows, int) else 64}
    return Step(PACKED if static else LYING, options)


def choose_linear(op: Op, func: prim.Func) -> Step | None:
    return _choose_product(op, func, "input", "weight", "bias", transposed=False)


def choose_addmm(op: Op, func: prim.Func) -> Step | None:
    return _choose_product(op, func, "mat1", "mat2", "self", transposed=True)


def choose_mm(op: Op, func: prim.Func) -> Step | None:
    return _choose_product(op, func, "self", "mat2", None, transposed=True)
