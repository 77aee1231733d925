"""The options of `DistributedDataParallel`, and stages of a pipeline: compiled beside eager, on both of two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Prepared

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")

WAYS = ["unused", "static", "hooked", "statistics", "stages"]


@pytest.fixture(scope="module")
def rows(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    place, program = tmp_path_factory.mktemp("wrapped") / "meet", Path(__file__).with_name("wrapped.py")
    folders = [tmp_path_factory.mktemp(f"wrapped{rank}") for rank in range(2)]
    said = prepared.run_together(program, folders, str(place), numbered=True, seconds=240)
    assert all(code == 0 for code, _, _ in said), said[0][2][-2000:] + said[1][2][-2000:]
    return [{row["way"]: row for row in map(json.loads, out.splitlines())} for _, out, _ in said]


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_parameters_are_those_of_eager(rows: list[dict[str, dict[str, Any]]], way: str) -> None:
    for row in (process[way] for process in rows):
        assert row["compiled"] == pytest.approx(row["eager"], rel=2e-3, abs=2e-3)
        assert row["graphs"] >= 2 and row["fallbacks"] == 0


def test_only_the_reducers_work_breaks_graphs(rows: list[dict[str, dict[str, Any]]]) -> None:
    for process in rows:
        assert {way: process[way]["breaks"] for way in ("static", "hooked", "stages")} == {
            "static": 3,
            "hooked": 0,
            "stages": 0,
        }
