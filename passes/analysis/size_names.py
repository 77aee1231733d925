"""Names for sizes that are expressions, while the loops of a kernel are planned.

A convolution with a stride gives sizes such as `FloorDiv(s0 - 1, 2) + 1`. Products of them are sums once they are multiplied out, by which no division
cancels. With a name for each, as many elements as rows times columns are one product again, and indices become as short as those of known sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sympy
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter

from ...ir.dialects import kernel
from ...ir.symbols import Dim, FloorDiv, replace_terms, substitute, symbol
from ...ir.syntax import Op, defined_values
from ...ir.types import RefType, TensorType, ref_type, tensor_type

Kind = TypeVar("Kind", bound=Attribute)


@dataclass(frozen=True)
class SizeNames:
    """What divisions stand for in terms of names, and what the names stand for.

    Attributes:
        divisions: each division that is a size but for a constant, as its name without that constant.
        sizes: the size of each name.
    """

    divisions: Mapping[sympy.Expr, Dim]
    sizes: Mapping[sympy.Symbol, Dim]

    def named(self, value: Dim) -> Dim:
        """An expression in names: whatever is replaced stands for an integer."""
        return replace_terms(value, self.divisions) if isinstance(value, sympy.Expr) else value

    def spelled(self, value: Dim) -> Dim:
        """An expression without names."""
        return substitute(value, self.sizes)


def names_of(dims: Iterable[Dim], prefix: str = "size") -> SizeNames:
    """Names for the sizes that are a division, and a constant; a division that is in several of them is named by the first."""
    divisions: dict[sympy.Expr, Dim] = {}
    sizes: dict[sympy.Symbol, Dim] = {}
    for size in dims:
        if isinstance(size, int):
            continue
        constant, rest = size.as_coeff_Add()
        if isinstance(rest, FloorDiv) and constant.is_Integer and rest not in divisions:
            name = symbol(f"{prefix}{len(sizes)}")
            divisions[rest], sizes[name] = name - constant, size
    return SizeNames(divisions, sizes)


def named_kernel(op: kernel.Fused) -> tuple[kernel.Fused, SizeNames] | None:
    """The kernel in names, to be erased after use, with these; None where no size needs one."""
    values = [*op.operands, *op.results, *(r for inner in op.block_body.ops for r in inner.results)]
    found = names_of(d for v in values if isinstance(v.type, TensorType) for d in v.type.shape)
    if not found.sizes:
        return None
    copy = op.clone()
    replace_sizes(copy, found.divisions)
    return copy, found


def replace_sizes(op: Op, mapping: Mapping[sympy.Expr, Dim]) -> None:
    """Put other expressions in the place of these, in an operation and all that is in it: attributes, and types of what they define."""
    for inner in op.walk():
        for value in list(defined_values(inner)):
            _retype(value, mapping)
        if isinstance(inner, Op):
            for name, literal in inner.literals.items():
                changed = _replaced(literal, mapping)
                if changed is not literal:
                    inner[name] = changed


def replaced_type(kind: Kind, mapping: Mapping[sympy.Expr, Dim]) -> Kind:
    """The type of a tensor, or of memory, with other expressions."""
    made: Any = kind
    if isinstance(kind, TensorType):
        made = tensor_type(_replaced(kind.shape, mapping), kind.dtype, kind.device)
    elif isinstance(kind, RefType):
        made = ref_type(_replaced(kind.shape, mapping), _replaced(kind.strides, mapping), kind.dtype, kind.device)
    return made  # type: ignore[no-any-return]  # of the kind that it was


def _retype(value: SSAValue, mapping: Mapping[sympy.Expr, Dim]) -> None:
    changed = replaced_type(value.type, mapping)
    if changed != value.type:
        Rewriter.replace_value_with_new_type(value, changed)


def _replaced(value: Any, mapping: Mapping[sympy.Expr, Dim]) -> Any:
    if isinstance(value, tuple):
        made = tuple(_replaced(v, mapping) for v in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if isinstance(value, sympy.Expr) and value.has(*mapping):
        return replace_terms(value, mapping)
    return value
