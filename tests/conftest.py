"""What all tests share: the C++ compiler and what it made, what the collector looks at, and that no test leaves a file in the repository."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import shares
from tests.processes import Prepared

# Threads of OpenMP that wait do not spin: two workers share the cores with their compilers. Read when torch loads the runtime.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).parents[1]
OF_TOOLS = {".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "dist"}


def pytest_configure(config: pytest.Config) -> None:
    """Which share of the slow tests is run; and torch does not write down what nobody reads.

    The process that only hands tests to workers does without torch: they start after it is ready. What is made until all
    tests are collected stays, so that the collector need not look for what went.

    torch describes each graph and each guard for its trace log as soon as the log has a handler, and pytest gives one to every logger that
    does not propagate. Without an accelerator each `manual_seed` keeps the text of its stack until there is one.
    """
    shares.decide(config)
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    gc.disable()
    import torch

    trace = logging.getLogger("torch.__trace")
    trace.handlers.clear()
    trace.propagate = True
    if not torch.accelerator.is_available():
        for device in (torch.cuda, torch.xpu, torch.mtia):
            device.traceback = SimpleNamespace(format_stack=list)  # type: ignore[attr-defined]


def pytest_addoption(parser: pytest.Parser) -> None:
    shares.add_option(parser)


@pytest.hookimpl(tryfirst=True)  # -m sees the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.leave_out(config, items)
    _few_constants()


def _few_constants() -> None:
    """Hypothesis draws constants out of every module that it takes for the project's own: here of `ir`, which it tests, alone."""
    seen = getattr(sys.modules.get("hypothesis.internal.conjecture.providers"), "_seen_modules", None)
    if isinstance(seen, set):
        ours = ("intarsia.ir", "tests.ir")
        seen.update(id(module) for name, module in list(sys.modules.items()) if not name.startswith(ours))


def pytest_report_header(config: pytest.Config) -> str | None:
    return shares.said(config.option.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (line := shares.said(config.option.slow)) is not None:
        terminalreporter.write_line(line)


def pytest_collection_finish() -> None:
    """The modules that were imported stay to the end: the collector need not look at their millions of objects at every turn.

    It looks at all others at the end of each module of tests, and seldom in between.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 100)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All workers of one run share what they compile, and none looks into the user's cache; the next run begins with nothing."""
    from intarsia.targets.build.cache import shared_cache
    from tests import compiler

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch, compiler.optimized(compiler.LIGHT), compiler.shared(base / "compiled"):
        patch.setenv("INTARSIA_CACHE_DIR", str(base / "cache"))
        shared_cache.cache_clear()
        yield


@pytest.fixture(scope="module", autouse=True)
def _not_looked_at_again() -> Iterator[None]:
    """What a module leaves behind (caches of torch and sympy, its own parameters) is no matter of the collections of later tests."""
    import intarsia

    yield
    intarsia.reset()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def product_compiler() -> Iterator[None]:
    """For a module that tests the compiler or the cache, or what the product's level decides."""
    from tests import compiler

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
