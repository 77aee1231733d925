"""Tests on a GPU: `pytest tests/gpu`. Without one, all are skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.targets.build.cache import shared_cache
from intarsia.targets.recordings.capture import drawing_threads


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of their own, nothing compiled before, products in full float32."""
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "1")  # a mistake of ours is an error here, not a fallback
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "intarsia-cache"))
    shared_cache.cache_clear()
    intarsia.reset()
    torch.manual_seed(0)
    yield
    shared_cache.cache_clear()


@pytest.fixture
def alone() -> None:
    """No other thread may draw random numbers, which keeps programs that do from being recorded; one of an earlier test's has time to end."""
    end = time.monotonic() + 20
    while (others := drawing_threads()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not others, f"threads that earlier tests, or pytest's plug-ins, left: {', '.join(others)}"
