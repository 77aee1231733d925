"""A sample of the small programs of benchmarks/sweep.py; INTARSIA_SWEEP=1 checks all of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def _sweep() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("sweep", FOLDER / "sweep.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


sweep = _sweep()
EVERY = 1 if os.environ.get("INTARSIA_SWEEP") else 11


@pytest.mark.parametrize("name", list(sweep.PROGRAMS)[::EVERY])
def test_right(name: str) -> None:
    assert sweep.verdict(name).startswith("ok")
