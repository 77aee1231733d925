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
from ..host.steps import Step
from ..run.watch import PAGES, seconds_to_ask
from ..torch_private import onednn_linear, onednn_pack_linear
from .store import Measurements

CLEARLY = 0.87  # of the default's time: smaller gains are within the noise of a busy machine
LARGEST = 1024  # sizes above are measured at this one: what they win by is the same
MOST_ROWS = 256
SECONDS = 0.02  # for one bucket, about

PACKED, OPERATOR = "packed-product", "operator"


@dataclass
class Choices:
    """The choices on this machine's processor; `folder` is where they are kept, None: nowhere."""

    folder: Path | None
    table: Measurements = field(init=False)

    def __post_init__(self) -> None:
        self.table = Measurements(self.folder, "cpu")

    def product(self, step: Step, rows: int, inner: int, outer: int, dtype: torch.dtype) -> Step | None:
        """The step, or None where the operator's own call is clearly faster."""
        transposed, bias = bool(step.options["transposed"]), step.options["bias"] is not None
        shape = (
            min(power_of_two(rows), MOST_ROWS),
            min(power_of_two(inner), LARGEST),
            min(power_of_two(outer), LARGEST),
        )
        key = f"product {'x'.join(map(str, shape))} {str(dtype)[6:]} {torch.get_num_threads()} threads"
        key += "" if PAGES.works() else " read"
        key += f"{' transposed' if transposed else ''}{' bias' if bias else ''}"
        known = (PACKED, OPERATOR)
        found = self.table.get(key, lambda: _measure_product(*shape, dtype, transposed, bias), known.__contains__)
        return step if found == PACKED else None


def _measure_product(rows: int, inner: int, outer: int, dtype: torch.dtype, transposed: bool, bias: bool) -> str:
    """The name of the winner; the candidates take turns, so that a busy machine hurts both alike."""
    with torch.no_grad():
        x, weight = torch.zeros(rows, inner, dtype=dtype), torch.zeros(outer, inner, dtype=dtype)
        shift = torch.zeros(outer, dtype=dtype)
        given = shift if bias else None
        packed = onednn_pack_linear(weight, rows)
        turned = weight.t().contiguous()

        def plain() -> torch.Tensor:
            if not transposed:
                return torch.nn.functional.linear(x, weight, given)
            return torch.addmm(shift, x, turned) if bias else torch.mm(x, turned)

        calls: dict[str, Callable[[], object]] = {
            PACKED: lambda: onednn_linear(x, packed, given, "none", [], ""),
            OPERATOR: plain,
        }
        trials = [_trial(calls) for _ in range(3)]
    # The first trial prepares.
    check = seconds_to_ask(weight.nbytes)
    wins = all(best[OPERATOR] < CLEARLY * (best[PACKED] + check) for best in trials[1:])
    return OPERATOR if wins else PACKED


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
