"""What all tests share: the C++ compiler and what it made, what the collector looks at, and that no test leaves a file in the repository."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import compiler
from tests.processes import Prepared

ROOT = Path(__file__).parents[1]
OF_TOOLS = {".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "dist"}


def pytest_collection_finish() -> None:
    """The modules that were imported stay to the end: the collector need not look at their millions of objects at every turn."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All workers of one run share what they compile; the next run begins with nothing."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    with compiler.optimized(compiler.LIGHT), compiler.shared(folder):
        yield


@pytest.fixture(scope="module")
def product_compiler() -> Iterator[None]:
    """For a module that tests the compiler or the cache, or what the product's level decides."""
    with compiler.product():
        yield


@pytest.fixture(scope="session")
def prepared() -> Iterator[Prepared]:
    """Where programs run in processes of their own."""
    with Prepared() as process:
        yield process


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """A test writes into folders of its own: reproducers and temporary files too."""
    before = _files()
    yield
    more = sorted(_files() - before)
    assert not more, f"tests left {', '.join(more)} in {ROOT}"


def _files() -> set[str]:
    return {path.name for path in ROOT.iterdir()} - OF_TOOLS
