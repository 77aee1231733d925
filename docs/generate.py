"""Writes what the documentation shows: the outputs of every `$ command` of some pages, run in examples/, and docs/settings.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

from intarsia.config import _CHOICES, OTHER_VARIABLES, Config

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
PAGES = ("passes-opt.md", "newcomer.md", "exchange.md")  # their commands are run


def output(command: str) -> str:
    """What the command prints, standard error last, and its exit code when that is not 0."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=EXAMPLES,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "RuntimeWarning" in done.stderr or not done.stdout + done.stderr:
        sys.exit(
            f"docs/generate.py: the pages stay as they are: {command!r} printed {done.stderr.strip()[:300] or 'nothing'}"
        )
    code = f"(exit code {done.returncode})\n" if done.returncode else ""
    return done.stdout + done.stderr + code


def refresh(text: str) -> str:
    """The page with every console block's output made new."""
    return re.sub(
        r"```console\n\$ (.*)\n(?:.*\n)*?```",
        lambda block: f"```console\n$ {block[1]}\n{output(block[1])}```",
        text,
    )


SETTINGS = """\
# Settings

Each setting is an option, `intarsia.compile(fn, options={"threads": 4})`, and an environment variable, which an option
overrides. The name of the option is that of the variable without `INTARSIA_`, in small letters. Yes and no may be
written 1, true, yes, on and 0, false, no, off. A value that makes no sense is an error, and so is an unknown option;
an environment variable that is called as these are and is none of them is a warning.

This page is written by `make docs` from `intarsia/config.py`.

```
"""


def settings() -> str:
    """The page of all settings, as one table."""
    about = {}
    for found in re.finditer(
        r"^        (\w+): ((?:.|\n(?!        \w+: |    \"\"\"))*)", Config.__doc__ or "", re.MULTILINE
    ):
        text = " ".join(found[2].split())
        about[found[1]] = re.sub(r" \(INTARSIA_\w+(?:, 0 or 1)?\)\.?$", "", text)
    rows = [("variable", "default", "meaning")]
    for field in fields(Config):
        default = {"": "-", True: "1", False: "0"}.get(field.default, str(field.default))  # type: ignore[call-overload]
        if field.type in ("int", int):
            default = str(field.default)
        words = about[field.name]
        if field.name in _CHOICES and not all(choice in words for choice in _CHOICES[field.name]):
            words += f" One of {', '.join(_CHOICES[field.name])}."
        rows.append((f"INTARSIA_{field.name.upper()}", default, words))
    rows += [(name, "-", text) for name, text in OTHER_VARIABLES.items()]
    lines = []
    for name, default, text in rows:
        parts = textwrap.wrap(text, 78)
        lines += [
            f"{n:<27} {d:<9} {part}".rstrip()
            for n, d, part in zip([name, *[""] * len(parts)], [default, *[""] * len(parts)], parts, strict=False)
        ]
    return SETTINGS + "\n".join(lines) + "\n```\n"


def main() -> None:
    for name in PAGES:
        page = DOCS / name
        page.write_text(refresh(page.read_text()))
    (DOCS / "settings.md").write_text(settings())


if __name__ == "__main__":
    main()
