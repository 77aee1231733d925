"""What a package index shows, and what documentation says of the settings."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from intarsia.config import OTHER_VARIABLES, Config

ROOT = Path(__file__).parent.parent


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"packaging_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_page_lead_somewhere() -> None:
    page = load(ROOT / "setup.py").page
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"\]\((?!https?://)", readme)  # there are links to files
    assert not re.search(r"\]\((?!https?://)", page(readme))
    kept = page(readme, "https://example.org/us/")
    assert "](https://example.org/us/blob/main/docs/tutorial.md)" in kept and not re.search(r"\]\((?!https?://)", kept)
    assert page("see [the tour](docs/tour.md), [docs/ir.md](docs/ir.md) and [it](https://x.org)") == (
        "see the tour (`docs/tour.md`), docs/ir.md and [it](https://x.org)"
    )


def test_what_the_index_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"] and project["keywords"]
    assert set(project.get("urls", {})) <= {
        "Repository",
        "Documentation",
        "Issues",
    }  # the index's own page is no URL of ours
    named = {c for c in project["classifiers"] if c.startswith("Programming Language :: Python :: 3.")}
    assert named == {f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13)}


@pytest.mark.parametrize("place", ["docs", "examples", "tests", "benchmarks"])
def test_the_source_archive_has_everything(place: str) -> None:
    assert f"graft {place}\n" in (ROOT / "MANIFEST.in").read_text() and (ROOT / place).is_dir()


def test_the_page_of_reports_is_package_data() -> None:
    from intarsia.reports.page import SCRIPTS

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data["intarsia.reports"] == ["web/*"]
    assert "recursive-include intarsia/reports/web *\n" in (ROOT / "MANIFEST.in").read_text()
    there = {path.name for path in (ROOT / "intarsia" / "reports" / "web").iterdir()}
    assert there == {f"{name}.js" for name in SCRIPTS} | {"page.html", "page.css"}


def test_every_setting_is_in_the_table() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        assert text == load(ROOT / "docs" / "generate.py").settings(), "run `make docs`"
    finally:
        sys.path.remove(str(ROOT / "docs"))
    for name in [*(f"INTARSIA_{f.name.upper()}" for f in fields(Config)), *OTHER_VARIABLES]:
        assert re.search(rf"^{name}\s", text, re.MULTILINE), name
    assert max(map(len, text.splitlines())) <= 120
