"""The FileCheck tests inside pytest: every .ir file's RUN lines, in this process, because starting torch takes seconds.

Understood are lines of the form `[not] passes-opt ARGUMENTS [2>&1 [>/dev/null]] | filecheck ARGUMENTS`; `lit tests` runs the same files.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from intarsia.tools.opt.main import main

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.ir"))


def run_lines(text: str) -> list[str]:
    """The commands of a file, with continued lines joined."""
    found, joined = re.findall(r"^\s*(?://|#)\s*RUN:\s*(.*)$", text, flags=re.M), ""
    commands = []
    for line in found:
        joined += line.removesuffix("\\").rstrip() + " "
        if not line.endswith("\\"):
            commands.append(joined.strip())
            joined = ""
    return commands


def passes_opt(command: list[str]) -> tuple[int, str]:
    """Run passes-opt with the redirections of the command; the exit code and what goes into the pipe."""
    out, err = io.StringIO(), io.StringIO()
    both = "2>&1" in command
    arguments = [a for a in command if a not in ("2>&1", ">/dev/null")]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out if both else err):
        if ">/dev/null" in command:
            with contextlib.redirect_stdout(io.StringIO()):
                code = _exit_code(arguments)
        else:
            code = _exit_code(arguments)
    sys.stderr.write(err.getvalue())
    return code, out.getvalue()


def _exit_code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as error:
        return int(error.code or 0)


def run_command(command: str, path: Path, scratch: Path) -> str | None:
    """Run one RUN line; a message when it fails."""
    command = command.replace("%s", shlex.quote(str(path))).replace("%t", shlex.quote(str(scratch / "t")))
    text = ""
    for stage in command.split(" | "):
        words = shlex.split(stage)
        inverted = words[0] == "not"
        name, *arguments = words[1:] if inverted else words
        if name == "passes-opt":
            code, text = passes_opt(arguments)
        elif name == "filecheck":
            options = parse_argv_options(["filecheck", *arguments])
            code = Matcher(options, FInput("<stdin>", text), Parser.from_opts(options)).run()
        else:
            return f"unknown command '{name}' in a RUN line"
        if (code != 0) != inverted:
            return f"{stage}\nexit code {code}\n{text}"
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(TESTS)))
def test_filecheck(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a pass that fails leaves its reproducer
    text = path.read_text()
    commands = run_lines(text)
    assert commands, "the file has no RUN line"
    assert len(text.splitlines()) <= 60, "a FileCheck test shows one behaviour in at most 60 lines"
    for command in commands:
        message = run_command(command, path, tmp_path)
        assert message is None, message


def test_a_wrong_check_line_fails(tmp_path: Path) -> None:
    path = tmp_path / "wrong.ir"
    path.write_text("// RUN: passes-opt %s | filecheck %s\n// CHECK: no such line\n")
    assert run_command(run_lines(path.read_text())[0], path, tmp_path) is not None
