"""The lines of a function in StableHLO: constants, types, and the operations that all rules need."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from xdsl.ir import Operation, SSAValue

from ..ir.dialects import kernel
from ..ir.dialects.prim import tensor
from ..ir.dtypes import BY_NAME, DType
from ..ir.syntax import line_of, place_of
from ..ir.types import TensorType
from .errors import ExchangeError
from .spelled import integers

ELEMENTS = {
    "f64": "f64",
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "f8e4m3": "f8E4M3FN",
    "f8e5m2": "f8E5M2",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u64": "ui64",
    "u32": "ui32",
    "u16": "ui16",
    "u8": "ui8",
    "bool": "i1",
    "c64": "complex<f32>",
    "c128": "complex<f64>",
}
NAMES = {element: name for name, element in ELEMENTS.items()}


class Value(NamedTuple):
    """A value of the text."""

    name: str
    shape: tuple[int, ...]
    element: str

    @property
    def type(self) -> str:
        return tensor_text(self.shape, self.element)

    @property
    def kind(self) -> str:
        """ "float", "bool", "uint", "int" or "complex"."""
        return element_kind(self.element)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"


def element_kind(element: str) -> str:
    """ "float", "bool", "uint", "int" or "complex"."""
    if element == "i1":
        return "bool"
    return next(k for k, start in _KINDS if element.startswith(start))


_KINDS = (("complex", "complex"), ("uint", "ui"), ("int", "i"), ("float", ("f", "bf")))


def tensor_text(shape: Sequence[int], element: str) -> str:
    """The type of a tensor."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def dtype_named(element: str) -> DType:
    """Our dtype of an element type."""
    return BY_NAME[NAMES[element]]


def bits_of(element: str) -> int:
    """Of a number."""
    return 8 if element.startswith("f8") else int(re.sub("^[a-z]+", "", element))


def literal(value: Any, element: str) -> str:
    """A number as StableHLO writes it; floats that are not finite by their bits, integers wrapped."""
    kind = element_kind(element)
    if kind == "bool":
        return "true" if value else "false"
    bits = bits_of(element)
    if kind == "float":
        number = float(value)
        if math.isfinite(number):
            return f"{number:.17e}" if bits == 64 else f"{number:.9e}"
        made = torch.tensor(number, dtype=dtype_named(element).torch)
        pattern = int(made.view(_WORDS[bits]).item()) & ((1 << bits) - 1)
        return f"0x{pattern:0{bits // 4}X}"
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if kind == "int" and number >> (bits - 1) else number)


_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Writer:
    """The lines of one function. `at` is the operation that is being written: errors and places name its line."""

    def __init__(self, locations: bool) -> None:
        self.known: dict[SSAValue, Value] = {}
        self.lines: list[str] = []
        self.count = 0
        self.at: Operation | None = None
        self.locations = locations

    def kind(self, value: SSAValue) -> tuple[tuple[int, ...], str]:
        """Shape and element of a value of ours."""
        if not isinstance(value.type, TensorType):
            raise self.refused(f"a value of type {value.type}")
        return self.numbers(tensor(value).shape), ELEMENTS[tensor(value).dtype.name]

    def numbers(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Numbers that are known."""
        return integers(values, f"--emit stablehlo: {self._where()}")

    def operands(self, op: Operation) -> list[Value]:
        """What an operation of ours takes."""
        return [self.known[v] for v in op.operands]

    def _where(self) -> str:
        if self.at is None:
            return "an argument"
        target = f"<{self.at['target']}>" if isinstance(self.at, kernel.Extern) else ""
        line = line_of(self.at)
        return f"{self.at.name}{target}{f' from {line}' if line else ''}"

    def refused(self, why: str) -> ExchangeError:
        return ExchangeError(f"--emit stablehlo: {self._where()}: {why} is not written")

    def line(self, text: str, shape: Sequence[int], element: str) -> Value:
        """`%name = text`, with the place in the user's code."""
        return self.with_region(text, [], "", [(shape, element)])[0]

    def names(self, count: int) -> list[str]:
        """Names of values that nobody has."""
        self.count += count
        return [f"%{k}" for k in range(self.count - count, self.count)]

    def several(self, text: str, kinds: Sequence[tuple[Sequence[int], str]]) -> list[Value]:
        """`%name:2 = text`, an operation of as many results as there are kinds."""
        return self.with_region(text, [], "", kinds)

    def with_region(
        self, first: str, body: Sequence[str], last: str, kinds: Sequence[tuple[Sequence[int], str]]
    ) -> list[Value]:
        """An operation over several lines."""
        (name,) = self.names(1)
        count = f":{len(kinds)}" if len(kinds) > 1 else ""
        place = place_of(self.at) if self.locations and self.at is not None else ""
        lines = [f"{name}{count} = {first}", *body, *([last] if last else [])]
        lines[-1] += place
        self.lines += lines
        return [Value(f"{name}#{k}" if count else name, tuple(s), e) for k, (s, e) in enumerate(kinds)]

    def same(self, name: str, *operands: Value) -> Value:
        """An operation whose operands and result are of one type."""
        x = operands[0]
        return self.line(f"stablehlo.{name} {', '.join(v.name for v in operands)} : {x.type}", x.shape, x.element)

    def other(self, name: str, operands: Sequence[Value], shape: Sequence[int], element: str, more: str = "") -> Value:
        """An operation that says what it takes and gives."""
        types = ", ".join(v.type for v in operands)
        names = ", ".join(v.name for v in operands)
        return self.line(f"{name} {names}{more} : ({types}) -> {tensor_text(shape, element)}", shape, element)

    def full(self, value: Any, shape: Sequence[int], element: str) -> Value:
        if element.startswith("complex"):
            raise self.refused("a complex number")
        text = f"stablehlo.constant dense<{literal(value, element)}> : {tensor_text(shape, element)}"
        return self.line(text, shape, element)

    def like(self, value: Any, x: Value) -> Value:
        return self.full(value, x.shape, x.element)

    def compare(self, how: str, a: Value, b: Value) -> Value:
        signed = {"float": "FLOAT", "int": "SIGNED"}.get(a.kind, "UNSIGNED")
        text = f"stablehlo.compare {how}, {a.name}, {b.name}, {signed} : ({a.type}, {b.type}) -> "
        return self.line(text + tensor_text(a.shape, "i1"), a.shape, "i1")

    def select(self, which: Value, a: Value, b: Value) -> Value:
        text = f"stablehlo.select {which.name}, {a.name}, {b.name} : {which.type}, {a.type}"
        return self.line(text, a.shape, a.element)

    def convert(self, x: Value, element: str) -> Value:
        return x if x.element == element else self.other("stablehlo.convert", [x], x.shape, element)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if x.shape == tuple(shape) else self.other("stablehlo.reshape", [x], shape, x.element)

    def spread(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        return self.other("stablehlo.broadcast_in_dim", [x], shape, x.element, f", dims = {list(dims)}")

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(len(perm))):
            return x
        shape = [x.shape[p] for p in perm]
        return self.other("stablehlo.transpose", [x], shape, x.element, f", dims = {list(perm)}")

    def slice(self, x: Value, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Value:
        shape = [max(0, -(-(b - a) // s)) for a, b, s in zip(starts, stops, steps, strict=True)]
        rows = zip(starts, stops, steps, strict=True)
        parts = ", ".join(f"{a}:{b}" + (f":{s}" if s != 1 else "") for a, b, s in rows)
        return self.line(
            f"stablehlo.slice {x.name} [{parts}] : ({x.type}) -> {tensor_text(shape, x.element)}", shape, x.element
        )

    def iota(self, shape: Sequence[int], dim: int, element: str) -> Value:
        return self.line(f"stablehlo.iota dim = {dim} : {tensor_text(shape, element)}", shape, element)


Rule = Callable[[Writer, Any], Value | list[Value]]
