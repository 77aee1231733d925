"""`python -m intarsia`, in this process and in its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from intarsia.__main__ import main
from intarsia.targets.build.toolchain import HEADER_DIR
from intarsia.tools.doctor import CHECKS, Finding, _torch, doctor

pytestmark = pytest.mark.usefixtures("product_compiler")


def run_doctor() -> tuple[int, str]:
    text = io.StringIO()
    status = doctor(Console(file=text, width=200))
    return status, text.getvalue()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))


def test_usable_machine() -> None:
    status, text = run_doctor()
    assert status == 0, text
    for what in (
        "Python",
        "torch",
        "C++ compiler",
        "processor",
        "threads",
        "OpenMP",
        "cache",
        "Triton",
        "GPU",
        "right answer",
    ):
        assert what in text


def test_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    status, text = run_doctor()
    assert status == 1 and "Install g++" in text and "would run in eager" in text


def test_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho '[out of luck]' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    status, text = run_doctor()
    assert status == 1 and "[out of luck]" in text and "doctor.cpp" in text


def test_wrong_answers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "intarsia.tools.doctor.KERNEL", 'extern "C" void intarsia_doctor(const float*, float* y, long) { y[0] = 7; }'
    )
    status, text = run_doctor()
    assert status == 1 and "wrong answer" in text and HEADER_DIR.exists()


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["docter"], 2), (["doctor", "now"], 2), (["--help"], 0)])
def test_usage(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == status
    shown = capsys.readouterr()
    assert "usage: python -m intarsia COMMAND" in (shown.out if status == 0 else shown.err)


def test_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "intarsia"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "doctor" in done.stderr


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_a_check_that_fails_is_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise KeyError("out of luck")

    broken.__name__ = name
    quick = [lambda: Finding("fine", "yes")]
    monkeypatch.setattr("intarsia.tools.doctor.CHECKS", (*quick, broken, *quick))
    status, text = run_doctor()
    assert (
        status in (0, 1) and "KeyError: 'out of luck'" in text and text.count("fine") == 2 and "Traceback" not in text
    )


def test_a_torch_of_a_version_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "nightly")
    assert not _torch().ok and _torch().fatal
    monkeypatch.setattr(torch, "__version__", "2.15.1a0+gitabc")
    assert _torch().ok and "tried with 2.11 to 2.15" in _torch().found


def test_a_torch_newer_than_those_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert not _torch().ok and not _torch().fatal and "runs in eager" in _torch().advice


def test_a_package_that_does_not_load(tmp_path: Path) -> None:
    """torch is there and broken, or not there."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: not found')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "intarsia", "doctor"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1 and "libtorch.so: not found" in done.stderr and "Traceback" not in done.stderr
