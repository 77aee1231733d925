"""Imports run one way through the rooms, and every folder is part of the package."""

from __future__ import annotations

import ast
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
    assert imported_rooms("passes", ROOT / "passes" / "core" / "manager.py") >= {"ir"}
    assert imported_rooms("intarsia", ROOT / "intarsia" / "explain" / "lower.py") >= {"ir", "passes"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_every_folder_is_part_of_the_package(room: str) -> None:
    assert all((path.parent / "__init__.py").exists() for r, path in FILES if r == room)
    assert room == "intarsia" or (ROOT / "intarsia" / room).readlink() == Path("..") / room
