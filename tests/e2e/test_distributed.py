"""Data-parallel, sharded and tensor-parallel training in two processes, compiled beside eager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Prepared

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")


@pytest.fixture(scope="module")
def rows(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    place, program = tmp_path_factory.mktemp("ranks") / "meet", Path(__file__).with_name("ranks.py")
    folders = [tmp_path_factory.mktemp(f"rank{rank}") for rank in range(2)]
    said = prepared.run_together(program, folders, str(place), numbered=True, seconds=240)
    assert all(code == 0 for code, _, _ in said), said[0][2][-2000:] + said[1][2][-2000:]
    return {row["way"]: row for row in map(json.loads, said[0][1].splitlines())}


@pytest.mark.parametrize(
    "way",
    [
        *("around", "inside", "autocast", "accumulate", "tensor_parallel", "collective"),
        *("sharded", "sharded_around", "sharded_inside", "sharded_step"),
    ],
)
def test_training_in_two_processes_is_that_of_eager(rows: dict[str, dict[str, Any]], way: str) -> None:
    row = rows[way]
    assert row["compiled"] == pytest.approx(row["eager"], rel=1e-3)
    assert row["parameters"]


def test_backward_is_cut_where_buckets_of_gradients_are_full(rows: dict[str, dict[str, Any]]) -> None:
    for way in ("around", "inside", "autocast"):
        assert rows[way]["graphs"] >= 6  # three parts and more, forward and backward
        assert rows[way]["fallbacks"] == 0


def test_the_layers_of_a_sharded_model_are_graphs(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["sharded"]["graphs"] >= 2
    assert rows["sharded"]["fallbacks"] == 0


@pytest.mark.parametrize("way", ["sharded_around", "sharded_inside"])
def test_layers_compiled_one_by_one_have_their_shards_gathered_in_eager(
    rows: dict[str, dict[str, Any]], way: str
) -> None:
    assert rows[way]["graphs"] >= 4 and rows[way]["breaks"] == rows[way]["fallbacks"] == 0


def test_an_optimizer_over_shards_runs_in_eager_alone(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["sharded_step"]["fallbacks"] == 0
    assert rows["sharded_step"]["graphs"] >= 4 and rows["sharded_step"]["breaks"] <= 12


def test_tensor_parallel_layers_are_one_graph_forward_and_one_backward(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["tensor_parallel"]
    assert row["graphs"] == 2 and row["breaks"] == row["fallbacks"] == 0
