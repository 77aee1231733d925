"""What a library call other than the operator itself is described by, and packed copies of weights that are never stale."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.ir import BlockArgument, SSAValue

from ..ir.dialects import buffer, prim
from .packed import COPIES


@dataclass(frozen=True)
class Step:
    """A library call other than the operator itself: which builder in `BUILDERS`, with which options (plain data)."""

    builder: str
    options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the cache."""
        return {"builder": self.builder, "options": self.options}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Step:
        """The inverse of `as_json`."""
        return Step(data["builder"], data["options"])


# address, bytes, rows -> a number that changes with the contents.
# With rows = -1 the address is that of a table of (address, bytes, rows), which is `bytes` long.
Fingerprint = Callable[[int, int, int], int]

WEIGHTS_SOURCE = """\
#include <stdint.h>

// Small weights: all words. Others: one word of each row, at a column that moves with the row, so that any row or column counts.
static uint64_t fingerprint(const char* data, int64_t bytes, int64_t rows) {
  uint64_t sum = 0, factor = 0x9E3779B97F4A7C15u;
  if (rows <= 0 || bytes / rows < 4 || bytes <= 1 << 16) {
    for (int64_t i = 0; i + 4 <= bytes; i += 4, factor += 2) {
      uint32_t word;
      __builtin_memcpy(&word, data + i, 4);
      sum += word * factor;
    }
    return sum;
  }
  const int64_t pitch = bytes / rows, width = pitch / 4 * 4, steps = rows > width / 4 ? rows : width / 4;
  int64_t row = 0, column = 0;  // counted along: a division a word would take longer than reading it
  for (int64_t i = 0; i < steps; ++i, factor += 2) {
    uint32_t word;
    __builtin_memcpy(&word, data + row * pitch + column, 4);
    sum += word * factor;
    row = row + 1 == rows ? 0 : row + 1;
    column = column + 4 == width ? 0 : column + 4;
  }
  return sum;
}

// With rows = -1, data is a table of (address, bytes, rows): one number for all of them.
extern "C" uint64_t intarsia_fingerprint(const void* data, int64_t bytes, int64_t rows) {
  if (rows != -1) return fingerprint((const char*)data, bytes, rows);
  const int64_t* table = (const int64_t*)data;
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes / 8; i += 3)
    sum = sum * 0x9E3779B97F4A7C15u + fingerprint((const char*)table[i], table[i + 1], table[i + 2]);
  return sum;
}
"""


class PackedWeight:
    """A packed copy of one weight at a time, made again when the weight is another tensor or was changed.

    A change through the tensor raises its version. A write through `.data` or NumPy does not: a fingerprint over all of a
    small weight (64 KiB), or over one word of every row, at another column in each, notices those that touch a row, a column or many elements.
    A write of single elements into a large weight by such a way is not noticed; the setting `packing` is for programs that do that.
    Programs that want the same copy share one (targets/packed.py). Where copies may take no more memory there is none.

    Args:
        pack: makes the copy.
        kind: what `pack` makes, equal for all that make the same of a weight.
        limit: the most bytes that the copies of this process may take; -1: as many as they want.
    """

    def __init__(
        self,
        pack: Callable[[torch.Tensor], torch.Tensor],
        fingerprint: Fingerprint,
        kind: Hashable = None,
        limit: int = -1,
    ) -> None:
        self.pack, self.fingerprint, self.limit = pack, fingerprint, limit
        self.kind = object() if kind is None else kind
        self.known: tuple[int, int, int, torch.Tensor | None, Any] | None = (
            None  # address, version, fingerprint, copy, owner
        )

    def __call__(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The packed copy of the weight as it is now; None where that would take too much memory."""
        known, address = self.known, weight.data_ptr()
        mark = self.fingerprint(address, weight.nbytes, weight.size(0))
        if known is not None and known[0] == address and known[1] == weight._version and known[2] == mark:
            return known[3]
        version = weight._version
        key = (self.kind, address, version, mark, weight.shape, weight.stride(), weight.dtype)
        copy = COPIES.get(key, weight, self.pack, self.limit)
        packed = None if copy is None else copy.packed
        self.known = (address, version, mark, packed, weight.untyped_storage() if copy is None else copy)
        return packed


class Folded:
    """A weight and bias that batch norm was folded into, packed; made again when any of the tensors is another or was changed.

    As `PackedWeight`, for several tensors whose fingerprint one call takes.
    """

    def __init__(self, fold: Callable[..., Any], fingerprint: Fingerprint) -> None:
        self.fold, self.fingerprint = fold, fingerprint
        # addresses and versions, table, fingerprint, results, storages
        self.known: tuple[list[int], Any, int, tuple[torch.Tensor, torch.Tensor], Any] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The packed weight and the bias for the tensors as they are now."""
        known = self.known
        try:
            key = [n for t in tensors for n in (t.data_ptr(), t._version)]
        except RuntimeError:  # a tensor of inference mode has no version: what is made of it could be stale
            return self.fold(*tensors)
        if known is not None and known[0] == key:
            table = known[1]
            if known[2] == self.fingerprint(ctypes.addressof(table), ctypes.sizeof(table), -1):
                return known[3]
        rows = [n for t in tensors for n in (t.data_ptr(), t.nbytes, t.size(0) if t.dim() else 1)]
        table = (ctypes.c_int64 * len(rows))(*rows)
        mark = self.fingerprint(ctypes.addressof(table), ctypes.sizeof(table), -1)
        made = self.fold(*(t.detach() for t in tensors))
        self.known = (key, table, mark, made, [t.untyped_storage() for t in tensors])
        return made


# oneDNN's name of an activation, its numbers and its algorithm, from an epilogue's step. All of them keep nan.
ACTIVATIONS: dict[str, Callable[..., tuple[str, list[float], str]]] = {
    "gelu": lambda approximate: ("gelu", [], approximate),
    "leaky_relu": lambda slope: ("leaky_relu", [slope], ""),
    "silu": lambda: ("swish", [], ""),
    "hardswish": lambda: ("hardswish", [], ""),
    "sigmoid": lambda: ("sigmoid", [], ""),
    "tanh": lambda: ("tanh", [], ""),
}


def split_epilogue(epilogue: Sequence[Sequence[Any]]) -> tuple[Any, tuple[str, list[float], str], list[Any]]:
    """The batch norm to fold or None, the activation for oneDNN, and the steps left for torch."""
    steps = list(epilogue)
    norm = steps.pop(0) if steps and steps[0][0] == "batch_norm" else None
    activation: tuple[str, list[float], str] = ("none", [], "")
    if steps and steps[0][0] in ACTIVATIONS:
        name, *arguments = steps.pop(0)
        activation = ACTIVATIONS[name](*arguments)
    return norm, activation, steps


def is_static(value: SSAValue, func: prim.Func) -> bool:
    """Whether the value is a parameter or buffer, or a view of one."""
    while isinstance(value.owner, buffer.View):
        value = value.owner.operands[0]
    static = func.get("arg_static")
    return isinstance(value, BlockArgument) and bool(static and static[value.index])
