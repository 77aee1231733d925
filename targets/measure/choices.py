"""Which library call carries out a product on this machine: measured once for each bucket of shapes, kept beside the compiled code.

The table of measurements (store.py) has the winner of each bucket. The default is the packed product; another candidate has to be clearly faster. `options={"libraries": "fixed"}` measures nothing and takes the
default everywhere, so that what runs does not depend on a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch

from ...ir.symbols import power_of_two
from ..host.library_product import LYING, PACKED, Product
from ..host.steps import Step
from ..run.watch import PAGES, seconds_to_ask
from ..torch_private import NO_ACTIVATION, onednn_linear, onednn_pack_linear
from .store import Measurements

CLEARLY = 0.87  # of the default's time: smaller gains are within the noise of a busy machine
LARGEST = 1024  # sizes above are measured at this one: what they win by is the same
MOST_ROWS = 256
SECONDS = 0.02  # for one bucket, about

OPERATOR = "operator"


@dataclass
class Choices:
    """The choices on this machine's processor; `folder` is where they are kept, None: nowhere."""

    folder: Path | None
    table: Measurements = field(init=False)

    def __post_init__(self) -> None:
        self.table = Measurements(self.folder, "cpu")

    def product(
        self, step: Step, rows: int, inner: int, outer: int, dtype: torch.dtype, turned: bool = False
    ) -> Step | None:
        """The step, or None where the operator's own call is clearly faster; `turned`: x lies column by column."""
        transposed, bias = bool(step.options["transposed"]), step.options["bias"] is not None
        shape = (
            min(power_of_two(rows), MOST_ROWS),
            min(power_of_two(inner), LARGEST),
            min(power_of_two(outer), LARGEST),
        )
        lying = step.builder == LYING
        key = f"product {'x'.join(map(str, shape))} {str(dtype)[6:]} {torch.get_num_threads()} threads"
        key += " lying" if lying else "" if PAGES.works() else " read"
        key += f"{' turned' if turned else ''}{' transposed' if transposed else ''}{' bias' if bias else ''}"
        known = (step.builder, OPERATOR)
        measure = _measure_lying if lying else _measure_product
        found = self.table.get(key, lambda: measure(*shape, dtype, transposed, bias, turned), known.__contains__)
        return step if found == step.builder else None


@dataclass
class _Product:
    """Factors of a product, and ATen's call on them."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    transposed: bool

    @classmethod
    def of(
        cls, rows: int, inner: int, outer: int, dtype: torch.dtype, transposed: bool, bias: bool, turned: bool
    ) -> _Product:
        x = torch.zeros(inner, rows, dtype=dtype).t() if turned else torch.zeros(rows, inner, dtype=dtype)
        weight = torch.zeros((inner, outer) if transposed else (outer, inner), dtype=dtype)
        return cls(x, weight, torch.zeros(outer, dtype=dtype) if bias else None, transposed)

    def __call__(self) -> torch.Tensor:
        if not self.transposed:
            return torch.nn.functional.linear(self.x, self.weight, self.bias)
        if self.bias is not None:
            return torch.addmm(self.bias, self.x, self.weight)
        return torch.mm(self.x, self.weight)


def _measure_product(
    rows: int, inner: int, outer: int, dtype: torch.dtype, transposed: bool, bias: bool, turned: bool = False
) -> str:
    """The name of the winner: a packed copy, or the operator's own call."""
    with torch.no_grad():
        plain = _Product.of(rows, inner, outer, dtype, transposed, bias, turned)
        x, given = plain.x, plain.bias
        packed = onednn_pack_linear((plain.weight.t() if transposed else plain.weight).contiguous(), rows)
        check = seconds_to_ask(plain.weight.nbytes)
        return _winner(PACKED, lambda: onednn_linear(x, packed, given, *NO_ACTIVATION), plain, check)


def _measure_lying(
    rows: int, inner: int, outer: int, dtype: torch.dtype, transposed: bool, bias: bool, turned: bool = False
) -> str:
    """As above, with the factors as they lie."""
    with torch.no_grad():
        plain = _Product.of(rows, inner, outer, dtype, transposed, bias, turned)
        call = Product(0, 1, 2 if bias else None, transposed, rows)
        operands = [t for t in (plain.x, plain.weight, plain.bias) if t is not None]
        return _winner(LYING, lambda: call(*operands), plain, 0.0)


def _winner(name: str, call: Callable[[], object], plain: Callable[[], object], more: float) -> str:
    """The candidates take turns, so that a busy machine hurts both alike; the first, which takes so many seconds more, is the default."""
    trials = [_trial({name: call, OPERATOR: plain}) for _ in range(3)]
    # The first trial prepares.
    return OPERATOR if all(best[OPERATOR] < CLEARLY * (best[name] + more) for best in trials[1:]) else name


def _trial(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least time of each call."""
    best = dict.fromkeys(calls, float("inf"))
    end, rounds = perf_counter() + SECONDS / 3, 0
    while rounds < 2 or (rounds < 20 and perf_counter() < end):
        rounds += 1
        for name, call in calls.items():
            start = perf_counter()
            call()
            best[name] = min(best[name], perf_counter() - start)
    return best
