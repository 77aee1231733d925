"""`python -m intarsia`, in this process and in its own."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from intarsia.__main__ import main
from intarsia.doctor import doctor
from intarsia.targets.build import HEADER_DIR


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
        "intarsia.doctor.KERNEL", 'extern "C" void intarsia_doctor(const float*, float* y, long) { y[0] = 7; }'
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
