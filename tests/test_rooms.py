"""Imports run one way through the rooms, and every package is named in pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {  # room -> rooms
    "ir": set(),
    "frontend": {"ir"},
    "passes": {"ir"},
    "targets": {"ir", "passes"},
    "intarsia": {"ir", "frontend", "passes", "targets"},
}
FILES = [(room, f) for room in MAY_IMPORT for f in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(room: str, path: Path) -> set[str]:
    """The rooms that a file imports from, wherever the statement stands."""
    package = ["intarsia"] if room == "intarsia" else ["intarsia", room]
    package += path.relative_to(ROOT / room).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            modules = [stem, *(f"{stem}.{name.name}" for name in node.names)]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "intarsia" and len(parts) > 1:
                found.add(parts[1] if parts[1] in MAY_IMPORT else "intarsia")
    return found


@pytest.mark.parametrize(("room", "path"), FILES, ids=lambda v: str(v.relative_to(ROOT)) if isinstance(v, Path) else v)
def test_imports_run_one_way(room: str, path: Path) -> None:
    back = imported_rooms(room, path) - MAY_IMPORT[room] - {room}
    assert not back, f"{path.relative_to(ROOT)} imports from {', '.join(sorted(back))}"


def test_imports_of_all_forms_are_seen() -> None:
    assert imported_rooms("passes", ROOT / "passes" / "manager.py") >= {"ir"}
    assert imported_rooms("intarsia", ROOT / "intarsia" / "lower.py") >= {"ir", "passes"}


def test_every_package_is_installed() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {f.parent.relative_to(ROOT) for _, f in FILES if "__pycache__" not in f.parts}
    names = {".".join(p.parts if p.parts[0] == "intarsia" else ("intarsia", *p.parts)) for p in folders}
    assert names == packages
