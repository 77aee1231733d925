"""End-to-end tests work on a cache of their own and forget what others compiled."""

from __future__ import annotations

import pytest
import torch

import intarsia
from intarsia.targets.build.cache import shared_cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "1")  # a mistake of ours is an error here, not a fallback
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "intarsia-cache"))
    shared_cache.cache_clear()
    intarsia.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
    shared_cache.cache_clear()
