"""The table of dtypes: short name in IR text, torch dtype, C++ type, size in bytes, kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DType:
    """One row: everything the compiler knows about a dtype."""

    name: str  # in IR text
    torch: torch.dtype
    cpp: str  # storage type in generated C++
    bytes: int
    kind: str  # "float", "int", "uint", "bool", "complex"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed, unsigned and bool."""
        return self.kind in ("int", "uint", "bool")

    @property
    def compute(self) -> DType:
        """The dtype in which arithmetic on values of this dtype is done: half types and float8 compute in float32."""
        return BY_NAME["f32"] if self.is_float and self.bytes < 4 else self

    @property
    def exact(self) -> tuple[int, int]:
        """The integers, from the first to the last, that this dtype holds exactly, as it does all between them."""
        if self.kind in ("float", "complex"):
            most = 1 << _MANTISSA[self.name]
            return -most, most
        if self.kind == "bool":
            return 0, 1
        bits = 8 * self.bytes
        return (0, (1 << bits) - 1) if self.kind == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)

    def __repr__(self) -> str:
        return self.name


_MANTISSA = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3": 4, "f8e5m2": 3, "c64": 24, "c128": 53}


_ROWS = [
    DType("f64", torch.float64, "double", 8, "float"),
    DType("f32", torch.float32, "float", 4, "float"),
    DType("f16", torch.float16, "im::f16", 2, "float"),
    DType("bf16", torch.bfloat16, "im::bf16", 2, "float"),
    DType("f8e4m3", torch.float8_e4m3fn, "im::f8e4m3", 1, "float"),
    DType("f8e5m2", torch.float8_e5m2, "im::f8e5m2", 1, "float"),
    DType("i64", torch.int64, "int64_t", 8, "int"),
    DType("i32", torch.int32, "int32_t", 4, "int"),
    DType("i16", torch.int16, "int16_t", 2, "int"),
    DType("i8", torch.int8, "int8_t", 1, "int"),
    DType("u64", torch.uint64, "uint64_t", 8, "uint"),
    DType("u32", torch.uint32, "uint32_t", 4, "uint"),
    DType("u16", torch.uint16, "uint16_t", 2, "uint"),
    DType("u8", torch.uint8, "uint8_t", 1, "uint"),
    DType("bool", torch.bool, "bool", 1, "bool"),
    DType("c64", torch.complex64, "", 8, "complex"),
    DType("c128", torch.complex128, "", 16, "complex"),
]

BY_NAME: dict[str, DType] = {row.name: row for row in _ROWS}
BY_TORCH: dict[torch.dtype, DType] = {row.torch: row for row in _ROWS}

F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, C64, C128 = _ROWS


# The bits of float8_e4m3fn that stand for numbers beyond 464: the largest one, 448, or nan. Releases of torch differ.
E4M3_OVERFLOW = int(torch.tensor(1e9).to(torch.float8_e4m3fn).view(torch.uint8))


class UnknownDType(TypeError):
    """A dtype outside the table (other kinds of float8, quantized, bits)."""


def dtype_of(value: Any) -> DType:
    """The row for a torch dtype or a short name.

    Raises:
        UnknownDType: the dtype has no row.
    """
    row = BY_NAME.get(value) if isinstance(value, str) else BY_TORCH.get(value)
    if row is None:
        raise UnknownDType(f"dtype {value} is not supported; supported are {', '.join(BY_NAME)}")
    return row
