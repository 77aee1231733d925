"""Random programs about what crosses the boundary of a graph, against eager: results, gradients, views, memory, what is printed.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import boundary
import pytest

import intarsia
from intarsia import graph_compiler, training

COUNT = max(int(os.environ.get("INTARSIA_FUZZ", "80")) // 4, 4)
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
FOUND = (26, 29, 67, 79, 96, 120, 130, 208, 268, 304)  # seeds of failures


def agrees(seed: int, variants: tuple[int, ...], backend: Any) -> None:
    """Calls of one program, one after the other: the later ones meet entries of the earlier ones."""
    program = boundary.Program(seed, breaks=seed % 3 != 0)
    intarsia.reset()
    fast: Callable[..., Any] = intarsia.compile(program.call, backend=backend)
    modules = boundary.Small(), boundary.Small()
    for variant in variants:
        backwards = 1 + (seed + variant) % 2
        wanted = boundary.observe(program.call, modules[0], variant, backwards)
        found = boundary.observe(fast, modules[1], variant, backwards)
        different = boundary.difference(wanted, found)
        assert not different, f"seed {seed}, variant {variant}\n{program.source}\n{different}"


@pytest.mark.filterwarnings("ignore")
def test_graphs_as_they_are() -> None:
    for seed in (*FOUND, *range(FIRST, FIRST + COUNT)):
        agrees(seed, (0, 0, 2, 1, 3, 4, 0), "eager")


@pytest.mark.filterwarnings("ignore")
def test_halves_of_graphs_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "compile_graph", boundary.halves_as_they_are)
    monkeypatch.setattr(graph_compiler, "compile_graph", boundary.halves_as_they_are)
    for seed in (*FOUND, *range(FIRST, FIRST + COUNT // 2)):
        agrees(seed, (0, 2, 1, 3, 4), "auto")


@pytest.mark.filterwarnings("ignore")
def test_the_whole_compiler() -> None:
    for seed in range(FIRST, FIRST + max(COUNT // 20, 2)):
        agrees(seed, (0, 2, 3, 4), "auto")
