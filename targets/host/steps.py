"""What a library call other than the operator itself is described by, and packed copies of weights that are never stale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import prim
from ..run.watch import Contents, Fingerprint
from .kernels import viewed
from .packed import COPIES


class Step(NamedTuple):
    """A library call other than the operator itself: which builder in `BUILDERS`, with which options (plain data)."""

    builder: str
    options: dict[str, Any]


WEIGHTS_SOURCE = """\
#include <stdint.h>

// Two sums in each of 16 lanes, of the words and of the sums so far: every change of one word shows, and so does every move.
static uint64_t checksum(const char* data, int64_t bytes) {
  enum { LANES = 16 };
  uint64_t sums[LANES] = {0}, moments[LANES] = {0}, words[LANES];
  int64_t at = 0;
  for (; at + LANES * 8 <= bytes; at += LANES * 8) {
    __builtin_memcpy(words, data + at, LANES * 8);
    for (int lane = 0; lane < LANES; ++lane) {
      sums[lane] += words[lane];
      moments[lane] += sums[lane];
    }
  }
  for (int lane = 0; at < bytes; at += 8, ++lane) {
    uint64_t word = 0;
    __builtin_memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
    sums[lane] += word + 1;
    moments[lane] += sums[lane];
  }
  uint64_t all = (uint64_t)bytes;
  for (int lane = 0; lane < LANES; ++lane) all = (all * 0x9E3779B97F4A7C15u + sums[lane]) * 0xD1B54A32D192ED03u + moments[lane];
  return all;
}

// A table of (address, bytes): one number for what is there. Pieces of 1 MiB are read side by side.
extern "C" uint64_t intarsia_fingerprint(const void* data, int64_t bytes) {
  const int64_t* table = (const int64_t*)data;
  const int64_t piece = 1 << 20;
  uint64_t all = 0;
  for (int64_t i = 0; i < bytes / 8; i += 2) {
    const char* start = (const char*)table[i];
    const int64_t size = table[i + 1], pieces = (size + piece - 1) / piece;
    uint64_t sum = 0;
    #pragma omp parallel for reduction(+ : sum) if (pieces > 2)
    for (int64_t k = 0; k < pieces; ++k)
      sum += checksum(start + k * piece, k + 1 < pieces ? piece : size - k * piece) * (2 * (uint64_t)k + 1);
    all = all * 0x9E3779B97F4A7C15u + sum;
  }
  return all;
}
"""


@dataclass(frozen=True)
class _Packed:
    """A copy, and what it is a copy of: address and version of the weight, what it held, and what keeps its memory from other data."""

    address: int
    version: int
    contents: Contents
    packed: torch.Tensor | None
    owner: Any


class PackedWeight:
    """A packed copy of one weight at a time, made again when the weight is another tensor or was changed.

    A change through the tensor raises its version; writes that torch does not count (through `.data`, NumPy, a pointer) are seen by
    `Contents`. Programs that want the same copy share one (targets/host/packed.py). Where copies may take no more memory there is none.

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
        self.known: _Packed | None = None

    def __call__(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The packed copy of the weight as it is now; None where that would take too much memory."""
        known = self.known
        again = known is not None and known.address == weight.data_ptr() and known.version == weight._version
        if again and known.contents.asked and known.contents.same():  # type: ignore[union-attr]
            return known.packed  # type: ignore[union-attr]
        address, version = weight.data_ptr(), weight._version
        # A weight that changes in every step is not worth watching.
        contents = Contents([weight], self.fingerprint, watched=again)
        if again and contents.whole == known.contents.whole:  # type: ignore[union-attr]
            self.known = replace(known, contents=contents)  # type: ignore[type-var]
            return known.packed  # type: ignore[union-attr]
        key = (self.kind, address, version, contents.whole, weight.shape, weight.stride(), weight.dtype)
        copy = COPIES.get(key, weight, self.pack, self.limit)
        packed = None if copy is None else copy.packed
        self.known = _Packed(address, version, contents, packed, weight.untyped_storage() if copy is None else copy)
        return packed


class Folded:
    """What is made of several tensors (a weight and bias that batch norm was folded into, hoisted constants), made again when any
    of them is another or was changed. As `PackedWeight`.
    """

    def __init__(self, fold: Callable[..., Any], fingerprint: Fingerprint) -> None:
        self.fold, self.fingerprint = fold, fingerprint
        # addresses and versions, contents, results, storages
        self.known: tuple[list[int], Contents, Any, Any] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What `fold` gives for the tensors as they are now."""
        known = self.known
        try:
            key = [n for t in tensors for n in (t.data_ptr(), t._version)]
        except RuntimeError:  # a tensor of inference mode has no version: what is made of it could be stale
            return self.fold(*tensors)
        again = known is not None and known[0] == key
        if again and known[1].asked and known[1].same():  # type: ignore[index]
            return known[2]  # type: ignore[index]
        contents = Contents(tensors, self.fingerprint, watched=again)
        if again and contents.whole == known[1].whole:  # type: ignore[index]
            self.known = (key, contents, *known[2:])  # type: ignore[index]
            return known[2]  # type: ignore[index]
        made = self.fold(*(t.detach() for t in tensors))
        self.known = (key, contents, made, [t.untyped_storage() for t in tensors])
        return made


def is_static(value: SSAValue, func: prim.Func) -> bool:
    """Whether the value is a parameter or buffer that this call does not overwrite, or a view of one."""
    static, value = func.get("arg_static"), viewed(value)
    if not isinstance(value, BlockArgument) or not static or not static[value.index]:
        return False
    return all(argument != value.index for argument, _ in func.get("mutations", ()))
