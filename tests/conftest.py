"""What one test leaves in the thread's dispatcher does not reach the next: guards compare it with what was there at capture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def dispatcher_as_before() -> Iterator[None]:
    """The dispatch keys that the thread includes and excludes are those from before the test."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    yield
    now = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    if now != (included, excluded):
        guard = torch._C._ForceDispatchKeyGuard(included, excluded)
        guard.__enter__()  # for good: what was there before it is what the test left
        _KEPT.append(guard)


_KEPT: list[object] = []
