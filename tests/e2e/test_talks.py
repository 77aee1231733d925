"""Calls by which processes talk, inside of compiled functions: operators of the graph, in the program's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Prepared

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")

WHOLE = ["reductions", "groups", "later", "parts", "argument", "unread", "scalars", "step"]  # one graph each
PIECES = ["barrier", "other_sizes", "gaps", "with_gradients"]


@pytest.fixture(scope="module")
def rows(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    place, program = tmp_path_factory.mktemp("talks") / "meet", Path(__file__).with_name("talks.py")
    folders = [tmp_path_factory.mktemp(f"talker{rank}") for rank in range(2)]
    said = prepared.run_together(program, folders, str(place), numbered=True, seconds=120)
    assert all(code == 0 for code, _, _ in said), said[0][2][-2000:] + said[1][2][-2000:]
    return {row["name"]: row for row in map(json.loads, said[0][1].splitlines())}


@pytest.mark.parametrize("name", WHOLE)
def test_processes_talk_in_one_graph(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["same"] and row["breaks"] == 0 and row["fallbacks"] == 0
    assert row["graphs"] >= 1


@pytest.mark.parametrize("name", PIECES)
def test_what_is_no_operator_runs_between_graphs(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["same"] and row["breaks"] >= 1 and row["fallbacks"] == 0
