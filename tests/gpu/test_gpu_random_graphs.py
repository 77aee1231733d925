"""Random fused graphs agree with the interpreter. INTARSIA_FUZZ: how many; INTARSIA_FUZZ_SEED: the first seed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

COUNT = int(os.environ.get("INTARSIA_FUZZ", "60"))
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
GROUP = 20  # programs that are compiled together


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, GROUP))
def test_random_graphs(start: int) -> None:
    from random_graphs import check, random_one

    failures = check([random_one(seed) for seed in range(start, min(start + GROUP, FIRST + COUNT))])
    assert not failures, "\n".join(failures)
