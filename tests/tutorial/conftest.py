"""The tutorial's tests forget what others compiled, and compile into a cache of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.targets.build.cache import shared_cache

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]


@pytest.fixture(scope="session", autouse=True)
def _vision():
    import torchvision_stub

    torchvision_stub.install()


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "intarsia-cache"))
    shared_cache.cache_clear()
    intarsia.reset()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    shared_cache.cache_clear()
