"""The suites of cases by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernels import CALLS, KERNELS, MEMORY, bytes_moved
from models import ALL, DEMO, MORE, WIDE, Case, build

SUITES: dict[str, dict[str, Callable[[], Case]]] = {
    "calls": CALLS,
    "kernels": KERNELS,
    "memory": MEMORY,
    "models": {name: maker for name, maker in (DEMO | MORE).items() if name != "toy"},
    "demo": DEMO,
    "wide": WIDE,
}


def make(suite: str, name: str) -> Case:
    """A case with its inputs, the same in every process.

    Raises:
        KeyError: no such suite or case.
    """
    if name in ALL:
        return build(name)
    torch.manual_seed(0)
    case = SUITES[suite][name]()
    return case._replace(bytes_moved=bytes_moved(name, case.args, case.model(*case.args)))
