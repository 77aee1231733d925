"""The compile context: one object, passed as an argument, that a compilation may read. There is no global compile state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp


@dataclass(frozen=True)
class Target:
    """The machine that code is made for.

    Attributes:
        name: "cpp" or "triton".
        isa: "avx512", "avx2", "neon" or "plain".
        vector_bytes: width of a SIMD register.
        threads: how many threads a kernel may use.
        l1_bytes, l2_bytes: cache sizes of one core.
        onednn: whether torch's build offers oneDNN's calls on packed weights.
        bfloat16: whether oneDNN multiplies in bfloat16 on this processor.
        tf32: whether convolutions in float32 on a GPU may round their operands to TF32, as torch's setting says.
        tf32_products: whether products of matrices may.
        shared_bytes: memory of a GPU's multiprocessor that one block may use.
        multiprocessors: how many the GPU has; programs that wait for each other must all be running.
        tensor_maps: whether a GPU's programs copy whole tiles by one instruction (Hopper's TMA).
        dots_bfloat16: whether AVX-512's dot product of bfloat16 is the fastest way to multiply: it is there, and tiles (AMX) are not.
    """

    name: str = "cpp"
    isa: str = "avx512"
    vector_bytes: int = 64
    threads: int = 2
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    onednn: bool = True
    bfloat16: bool = True
    dots_bfloat16: bool = True
    tf32: bool = True
    tf32_products: bool = False
    shared_bytes: int = 227 * 1024
    multiprocessors: int = 132
    tensor_maps: bool = True


@dataclass(frozen=True)
class Remark:
    """Something that a pass wants known: what was done or refused, where, and why."""

    pass_name: str
    kind: str  # "fused", "refused", "extern", ...
    message: str
    location: str = ""  # "file:line" of the user's code

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}[{self.pass_name}] {self.kind}: {self.message}"


@dataclass
class Diagnostics:
    """Collects remarks and statistics. `want_remarks` is off by default, because the text of a reason costs time."""

    want_remarks: bool = False
    remarks: list[Remark] = field(default_factory=list)
    statistics: dict[str, dict[str, int]] = field(default_factory=dict)

    def remark(self, pass_name: str, kind: str, message: Callable[[], str], location: str = "") -> None:
        """Record a remark; the message is only built when remarks are wanted."""
        if self.want_remarks:
            self.remarks.append(Remark(pass_name, kind, message(), location))

    def count(self, pass_name: str, what: str, number: int = 1) -> None:
        """Add to a statistic: `--statistics` prints them."""
        table = self.statistics.setdefault(pass_name, {})
        table[what] = table.get(what, 0) + number

    def print(self) -> None:
        """Write all remarks to standard error."""
        for remark in self.remarks:
            print(remark, file=sys.stderr)


class Tuner(Protocol):
    """Chooses between kernels by measuring them, where a GPU is at hand."""

    def pick(self, key: str, module: Callable[[], ModuleOp], tiles: Sequence[str]) -> str:
        """The fastest of the tiles for the kernels of `module`, or "" for the library; remembered by `key`."""


@dataclass(frozen=True)
class CompileContext:
    """What a pass may know beyond the module. `tuner`: measures instead of estimating, in mode max-autotune."""

    target: Target = field(default_factory=Target)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    tuner: Tuner | None = None
