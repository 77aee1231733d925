"""Which addresses a kernel on a GPU may rely on: multiples of 16 bytes, but for views that begin elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import buffer, loop
from ...ir.symbols import Dim, dim
from ...ir.types import RefType
from .machine import Machine

ALIGNMENT = 16  # bytes that addresses are multiples of, as kernels are compiled


def note_unaligned(ops: Iterable[object], kernels: Mapping[str, loop.Kernel], machine: Machine) -> None:
    """Write onto each kernel on a GPU which of its arguments some launch gives as a view that begins between two multiples of 16 bytes."""
    found: dict[str, set[int]] = {}
    for op in ops:
        if isinstance(op, buffer.Launch):
            places = found.setdefault(op["kernel"], set())
            places.update(k for k, value in enumerate(op.operands) if not _begins_aligned(value, machine))
    for name, places in found.items():
        if places:
            kernels[name]["unaligned"] = sorted(places)


def _begins_aligned(value: SSAValue, machine: Machine) -> bool:
    """Whether a value that a grid of programs reads begins at a multiple of 16 bytes in memory that does."""
    ref = value.type
    if not isinstance(ref, RefType) or not machine.at(ref.device).is_grid:
        return True
    begin: Dim = 0
    while isinstance(value.owner, buffer.View):
        base = value.owner.operands[0]
        assert isinstance(base.type, RefType)
        begin, value = dim(begin + value.owner["offset"] * base.type.dtype.bytes), base
    return is_multiple(begin, ALIGNMENT)


def is_multiple(value: Dim, of: int) -> bool:
    """Whether a size is a multiple of a number, whatever its symbols are."""
    return all(term.as_coeff_Mul()[0] % of == 0 for term in sympy.Add.make_args(sympy.expand(value)))
