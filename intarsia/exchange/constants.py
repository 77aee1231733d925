"""`dense<...>`: the numbers of a constant."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from .mlir_text import Dense, Reader
from .stablehlo_text import ELEMENTS, NAMES, dtype_named

_NUMBER = re.compile(r"-?0x[0-9A-Fa-f]{1,16}|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|true|false|[\[\],\s]")
MOST_BYTES = 1 << 32
MOST_DIGITS = 300
_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_NO_ARITHMETIC = ("ui16", "ui32", "ui64")


def dtype_of_element(r: Reader, element: str, position: int) -> torch.dtype:
    """The dtype of a type's elements."""
    if element not in NAMES or element in _NO_ARITHMETIC:
        known = ", ".join(e for e in ELEMENTS.values() if e not in _NO_ARITHMETIC)
        r.fail(f"elements of type {element} are not taken; taken are {known}", position)
    return dtype_named(element).torch


def number_of(r: Reader, word: str, dtype: torch.dtype, position: int) -> Any:
    """One number; hexadecimal ones are the bits of a float."""
    if len(word) > MOST_DIGITS:
        r.fail(f"a number of {len(word):,} characters", position)
    if word in ("true", "false"):
        return word == "true"
    if "x" in word:
        bits, width = int(word, 16), 8 * dtype.itemsize
        if not dtype.is_floating_point:
            return bits
        if bits >> width:
            r.fail(f"{word} has more bits than {dtype}", position)
        signed = bits - (1 << width) if width > 8 and bits >> (width - 1) else bits
        return float(torch.tensor(signed, dtype=_WORDS[width]).view(dtype))
    return float(word) if dtype.is_floating_point else int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def constant(r: Reader, value: Dense) -> tuple[Tensor, Any]:
    """The tensor, and its number where all elements are one."""
    shape, position = value.type.shape, value.position
    if any(n is None for n in shape):
        r.fail(f"a constant of type {value.type}, whose sizes are not known", position)
    sizes = [n or 0 for n in shape]
    dtype = dtype_of_element(r, value.type.element, position)
    count = math.prod(sizes)
    body = value.text.strip()
    if body.startswith('"'):
        return _from_bytes(r, body, sizes, dtype, position), None
    words = [w for w in _NUMBER.findall(body) if w not in "[]," and not w.isspace()]
    if re.sub(_NUMBER, "", body):
        r.fail(f"dense<{body[:40]}> cannot be read", position)
    try:
        numbers = [number_of(r, w, dtype, position) for w in words]
        if len(numbers) == 1 and (count != 1 or not sizes or "[" not in body):
            if count * dtype.itemsize > MOST_BYTES:
                r.fail("the constant is too large", position)
            return torch.full(sizes, numbers[0], dtype=dtype), numbers[0]
        if len(numbers) != count:
            r.fail(f"{len(numbers)} numbers for {value.type}", position)
        return torch.tensor(numbers, dtype=dtype).reshape(sizes), numbers[0] if count == 1 else None
    except (OverflowError, RuntimeError, ValueError) as error:
        r.fail(f"dense<{body[:40]}> is no {value.type}: {str(error).splitlines()[0]}", position)


def _from_bytes(r: Reader, body: str, sizes: list[int], dtype: torch.dtype, position: int) -> Tensor:
    if not re.fullmatch(r'"0x(?:[0-9A-Fa-f]{2})+"', body):
        r.fail('a constant in bytes is written as dense<"0x...">', position)
    data = bytearray.fromhex(body[3:-1])
    count = math.prod(sizes)
    if dtype == torch.bool:
        r.fail("booleans in bytes are not taken", position)
    if len(data) == dtype.itemsize:
        return torch.frombuffer(data, dtype=dtype).expand(sizes).clone()
    if len(data) != count * dtype.itemsize:
        r.fail(f"{len(data)} bytes for {count} elements of {dtype.itemsize} bytes", position)
    return torch.frombuffer(data, dtype=dtype).reshape(sizes).clone()
