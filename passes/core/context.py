"""The compile context: one object, passed as an argument, that a compilation may read. There is no global compile state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp

from ..analysis.machine import Machine


@dataclass(frozen=True)
class Remark:
    """Something that a pass wants known: what was done or refused, where, and why."""

    pass_name: str
    kind: str  # "fused", "refused", "extern", ...
    message: str
    location: str = ""  # "file:line" of the user's code
    numbers: Mapping[str, float] = field(default_factory=dict)  # what a cost model weighed, by name
    lines: tuple[str, ...] = ()  # all lines of the user's code that it concerns, where these are more

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}[{self.pass_name}] {self.kind}: {self.message}"


@dataclass
class Diagnostics:
    """Collects remarks and statistics. `want_remarks` is off by default, because the text of a reason costs time."""

    want_remarks: bool = False
    remarks: list[Remark] = field(default_factory=list)
    statistics: dict[str, dict[str, int]] = field(default_factory=dict)

    def remark(
        self,
        pass_name: str,
        kind: str,
        message: Callable[[], str],
        location: str = "",
        numbers: Mapping[str, float] | None = None,
        lines: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Record a remark; the message and the lines are only found when remarks are wanted."""
        if self.want_remarks:
            self.remarks.append(Remark(pass_name, kind, message(), location, numbers or {}, tuple(lines())))

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

    machine: Machine = field(default_factory=Machine)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    tuner: Tuner | None = None
