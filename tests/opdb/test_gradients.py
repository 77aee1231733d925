"""Gradients of torch's operator database: none is wrong, and at least 90% of the operators run compiled, forward and backward.

Eight slices in the usual run. INTARSIA_OPDB=1 (`make opdb`) takes all operators; INTARSIA_OPDB=k/n one part.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from .test_opdb import CHOSEN, SHARE, parts, strict  # noqa: F401  (a fixture for every test)


@pytest.mark.parametrize(
    "part", parts() if CHOSEN else [(k, 120) for k in (0, 17, 30, 47, 60, 77, 90, 107)], ids=lambda p: f"{p[0]}of{p[1]}"
)
def test_gradients(part):
    from .gradients import outcomes

    with torch.enable_grad():
        found = outcomes(part=part, samples=3 if CHOSEN else 2)
    kinds = Counter(r.kind for r in found)
    lines = [f"{r.kind} {r.name}: {r.detail}" for r in found if r.kind not in ("pass", "skip")]
    print(*lines, kinds, sep="\n")
    assert not [line for line in lines if not line.startswith("fallback")]
    assert not [r for r in found if "SILENTLY" in r.detail or "error inside intarsia" in r.detail]
    assert kinds["pass"] >= SHARE * (len(found) - kinds["skip"]), lines
