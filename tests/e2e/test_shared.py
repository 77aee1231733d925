"""DTensors in compiled functions: operators on local parts and collectives, or a break at the line, and eager's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Prepared

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")

WHOLE = [
    "transformer",
    "made_and_unmade",
    "arguments",
    "uneven",
    "modes",
    "prepared",
    "lengths",
    "half",
    "layouts",
    "gradients",
]
BREAKS = {"across_a_break": 1, "written": 2, "dropped": 1, "asked": 2, "in_parts": 2}


@pytest.fixture(scope="module")
def rows(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    place, program = tmp_path_factory.mktemp("shared") / "meet", Path(__file__).with_name("shared.py")
    folders = [tmp_path_factory.mktemp(f"sharer{rank}") for rank in range(2)]
    said = prepared.run_together(program, folders, str(place), numbered=True, seconds=240)
    assert all(code == 0 for code, _, _ in said), said[0][2][-2000:] + said[1][2][-2000:]
    return {row["name"]: row for row in map(json.loads, said[0][1].splitlines())}


@pytest.mark.parametrize("name", WHOLE)
def test_dtensors_are_part_of_the_graph(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["same"], row["wrong"]
    assert row["breaks"] == row["fallbacks"] == 0 and row["graphs"] >= 2


@pytest.mark.parametrize("name", BREAKS)
def test_what_graphs_do_not_know_of_dtensors_breaks_them(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["same"], row["wrong"]
    assert row["breaks"] == BREAKS[name] and row["fallbacks"] == 0


def test_a_tensor_that_meets_a_dtensor_is_eagers_error(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["mixed"]["same"]
