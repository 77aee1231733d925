"""Random programs through the passes for a GPU, down to the host program's level: the interpreter gives the same before and after.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random. On a GPU tests/gpu/test_gpu_random_graphs.py runs such programs there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from check_passes import compare

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
from random_graphs import comparable, interpreted, random_one  # noqa: E402

COUNT = int(os.environ.get("INTARSIA_FUZZ", "80")) // 4
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_same_values(part: int) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        program = random_one(seed)
        for inputs in program.calls:
            found, wanted = (interpreted(program, m, inputs) for m in (program.module, program.reference))
            try:
                compare(comparable(program, found), comparable(program, wanted), program.scales)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
