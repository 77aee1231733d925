"""Types and attributes of the IR.

`!prim.tensor<[s0, 4*s0 + 1], f32>` says what must agree for an operation to be legal: shape, dtype, device.
`!buffer.ref<[s0, 768], [768, 1], f32>` adds strides and stands for memory. `!loop.scalar<f32>` is one element in a loop body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from xdsl.ir import Data, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from .dtypes import BY_NAME, DType
from .literals import Literal, LiteralError, parse_literal, print_literal
from .symbols import Dim, contiguous_strides, dim, product

CPU = "cpu"


class _TextData(Data[Any]):
    """Data whose identity is its printed text, so that 1, 1.0 and true differ and nan equals itself."""

    __slots__ = ("_text",)

    @property
    def text(self) -> str:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        """As xDSL's printer writes it, which takes a hundred times as long; verifiers name types in their messages."""
        return f"{'!' if isinstance(self, TypeAttribute) else '#'}{self.name}<{self.text}>"

    @classmethod
    def from_text(cls, text: str) -> Any:
        raise NotImplementedError

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Any:
        start = parser.pos
        body = parser._parse_dialect_symbol_body()
        try:
            return cls.from_text(body)
        except (LiteralError, ValueError, KeyError) as error:
            offset = error.offset if isinstance(error, LiteralError) else 0
            parser.raise_error(str(error), start + 1 + offset, start + 1 + len(body))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.text}>")


@irdl_attr_definition
class LiteralAttr(_TextData):
    """An attribute's value: see `literals`. `.data` is the Python value (lists are tuples)."""

    name = "prim.literal"

    @cached_property
    def text(self) -> str:
        return print_literal(self.data)

    @classmethod
    def from_text(cls, text: str) -> Literal:
        return parse_literal(text)


def _parse_fields(text: str) -> list[Any]:
    """Split `[..], f32, "cuda:0"`: the words of dtypes are not symbols here."""
    try:
        values = parse_literal(f"[{text}]")
    except LiteralError as error:
        raise LiteralError(str(error), error.offset - 1) from None
    return [str(v) if not isinstance(v, tuple | str | int) else v for v in values]


def _dtype(name: Any) -> DType:
    if name not in BY_NAME:
        raise ValueError(f"unknown dtype '{name}'; expected one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


_DEVICE = re.compile(r"[a-z_]+(:[0-9]{1,4})?")


def _device(fields: list[Any], place: int) -> str:
    found = fields[place] if len(fields) > place else CPU
    if not (isinstance(found, str) and _DEVICE.fullmatch(found)):
        raise ValueError(f"{print_literal(found)} is not a device, such as 'cpu' and 'cuda:0'")
    return found


_LARGEST = 2**63 - 1


def _dims(values: Any, what: str) -> tuple[Dim, ...]:
    if not isinstance(values, tuple):
        raise ValueError(f"expected {what} in square brackets")
    for value in values:
        if isinstance(value, float | str | bool) or value is None:
            raise ValueError(f"{what}: '{print_literal(value)}' is not an integer or an expression over symbols")
        if what == "sizes" and isinstance(value, int) and value < 0:
            raise ValueError(f"the size {value} is negative")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"{what}: a number of {len(str(abs(value)))} digits does not fit 64 bits")
    return tuple(dim(v) for v in values)


@irdl_attr_definition
class TensorType(_TextData, TypeAttribute):
    """A tensor value: `.shape` (tuple of Dim), `.dtype` (DType), `.device` (str). Made by `tensor_type`."""

    name: ClassVar[str] = "prim.tensor"

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.data[0]  # type: ignore[no-any-return]

    @property
    def dtype(self) -> DType:
        return self.data[1]  # type: ignore[no-any-return]

    @property
    def device(self) -> str:
        return self.data[2]  # type: ignore[no-any-return]

    @property
    def rank(self) -> int:
        return len(self.data[0])

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    @cached_property
    def text(self) -> str:
        return _tensor_text(*self.data)

    @classmethod
    def from_text(cls, text: str) -> Any:
        return tensor_fields(text)

    def with_(self, *, shape: Iterable[Dim] | None = None, dtype: DType | None = None) -> TensorType:
        """The same type with another shape or dtype."""
        return tensor_type(self.shape if shape is None else shape, dtype or self.dtype, self.device)


@lru_cache(maxsize=65536)
def is_gpu(device: str) -> bool:
    """Whether a device is a GPU: "cuda:0", which is also what torch calls AMD's."""
    return device.startswith("cuda")


def _tensor_text(shape: tuple[Dim, ...], dtype: DType, device: str) -> str:
    suffix = "" if device == CPU else f', "{device}"'
    return f"{print_literal(shape)}, {dtype.name}{suffix}"


@lru_cache(maxsize=65536)
def tensor_fields(text: str) -> tuple[tuple[Dim, ...], DType, str]:
    fields = _parse_fields(text)
    if len(fields) not in (2, 3):
        raise ValueError('expected !prim.tensor<[sizes], dtype> or !prim.tensor<[sizes], dtype, "device">')
    return _dims(fields[0], "sizes"), _dtype(fields[1]), _device(fields, 2)


@lru_cache(maxsize=65536)
def _tensor_type(shape: tuple[Dim, ...], dtype: DType, device: str) -> TensorType:
    return TensorType((shape, dtype, device))


def tensor_type(shape: Iterable[Dim], dtype: DType, device: str = CPU) -> TensorType:
    """The tensor type with these dimensions."""
    return _tensor_type(tuple(dim(d) for d in shape), dtype, device)


@irdl_attr_definition
class RefType(_TextData, TypeAttribute):
    """Memory: `.shape`, `.strides` (in elements), `.dtype`, `.device`. Address of element i: sum(i[k] * strides[k])."""

    name: ClassVar[str] = "buffer.ref"

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.data[0]  # type: ignore[no-any-return]

    @property
    def strides(self) -> tuple[Dim, ...]:
        return self.data[1]  # type: ignore[no-any-return]

    @property
    def dtype(self) -> DType:
        return self.data[2]  # type: ignore[no-any-return]

    @property
    def device(self) -> str:
        return self.data[3]  # type: ignore[no-any-return]

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    @cached_property
    def text(self) -> str:
        shape, strides, dtype, device = self.data
        suffix = "" if device == CPU else f', "{device}"'
        return f"{print_literal(shape)}, {print_literal(strides)}, {dtype.name}{suffix}"

    @classmethod
    def from_text(cls, text: str) -> Any:
        fields = _parse_fields(text)
        if len(fields) not in (3, 4):
            raise ValueError("expected !buffer.ref<[sizes], [strides], dtype>")
        shape, strides = _dims(fields[0], "sizes"), _dims(fields[1], "strides")
        if len(shape) != len(strides):
            raise ValueError(f"{len(shape)} sizes but {len(strides)} strides")
        return shape, strides, _dtype(fields[2]), _device(fields, 3)


def ref_type(shape: Iterable[Dim], strides: Iterable[Dim] | None, dtype: DType, device: str = CPU) -> RefType:
    """The memory type with these sizes and strides (None: contiguous)."""
    sizes = tuple(dim(d) for d in shape)
    steps = contiguous_strides(sizes) if strides is None else tuple(dim(s) for s in strides)
    return RefType((sizes, steps, dtype, device))


@irdl_attr_definition
class ScalarType(_TextData, TypeAttribute):
    """One element inside a loop body: `.dtype`."""

    name: ClassVar[str] = "loop.scalar"

    @property
    def dtype(self) -> DType:
        return self.data  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        return self.data.name  # type: ignore[no-any-return]

    @classmethod
    def from_text(cls, text: str) -> DType:
        return _dtype(text.strip())


@irdl_attr_definition
class IndexType(_TextData, TypeAttribute):
    """An integer argument of a function: a size symbol's value."""

    name: ClassVar[str] = "prim.size"

    @property
    def text(self) -> str:
        return "i64"

    @classmethod
    def from_text(cls, text: str) -> str:
        if text.strip() != "i64":
            raise ValueError("expected !prim.size<i64>")
        return "i64"

    @classmethod
    def get_type(cls) -> Self:
        return cls("i64")


def scalar_type(dtype: DType) -> ScalarType:
    """The type of one element of this dtype."""
    return _SCALARS[dtype.name]


_SCALARS = {row.name: ScalarType(row) for row in BY_NAME.values()}
