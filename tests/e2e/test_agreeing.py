"""Processes that compile: each program once for all of them, found again when they start again; a warning where they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Prepared

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")

Said = list[dict[str, dict[str, Any]]]  # by process and case


@pytest.fixture(scope="module")
def runs(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> list[Said]:
    """What two processes say, and two that are started after them."""
    cache, program = tmp_path_factory.mktemp("cache"), Path(__file__).with_name("agreeing.py")
    found = []
    for run in range(2):
        folders = [tmp_path_factory.mktemp(f"agreeing{run}{rank}") for rank in range(2)]
        place = str(folders[0] / "meet")
        said = prepared.run_together(program, folders, place, numbered=True, seconds=120, INTARSIA_CACHE_DIR=str(cache))
        assert all(code == 0 for code, _, _ in said), said[0][2][-2000:] + said[1][2][-2000:]
        found.append([{row["case"]: row for row in map(json.loads, out.splitlines())} for _, out, _ in said])
    return found


def test_one_process_builds_what_both_run(runs: list[Said]) -> None:
    first = [process["built"] for process in runs[0]]
    assert sum(row["compiler_calls"] for row in first) == 2, first  # one size, then sizes that change
    # A process that comes late finds what the other has built, and misses nothing.
    assert all(row["compiler_calls"] <= row["cache_misses"] <= 2 for row in first), first


def test_processes_that_start_again_find_everything(runs: list[Said]) -> None:
    assert all(process["built"] == {"case": "built", "cache_misses": 0, "compiler_calls": 0} for process in runs[1])


def test_nothing_is_said_where_they_compile_the_same(runs: list[Said]) -> None:
    assert not any(process["same"]["said"] for run in runs for process in run)


def test_another_call_on_one_process_is_named(runs: list[Said]) -> None:
    for run in runs:
        said = [text for process in run for text in process["other"]["said"]]
        assert said
        assert "to other calls than this one" in said[0] and "call 1 is all_reduce(f32, " in said[0]


def test_a_process_that_is_gone_is_eagers_error(runs: list[Said]) -> None:
    kind, text = runs[0][0]["gone"]["said"]
    assert kind == "RuntimeError" and "intarsia" not in text.lower()
