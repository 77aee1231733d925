"""From facts to one HTML file that loads nothing: text, styles and script of `web/`, and the facts, packed.

No string of the program's is part of the page's text: facts are JSON, compressed, in base64, and the script puts them into the page as
text of elements, never as markup.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

SCRIPTS = ("dom", "data", "code", "fusion", "ir", "memory", "speed", "time", "checks", "training", "graphs", "main")


def page(facts: dict[str, Any]) -> str:
    """The file's text."""
    first = {name: value for name, value in facts.items() if name != "texts"}
    text = _template()
    for name, value in (("FACTS", first), ("TEXTS", facts["texts"])):
        text = text.replace(f"/*{name}*/", packed(value))
    return text


def packed(value: Any) -> str:
    """A value as base64 of compressed JSON."""
    raw = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
    return base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode("ascii")


def unpacked(text: str, name: str) -> Any:
    """What a page holds: "facts" or "texts"."""
    start = text.index(f'<script id="{name}"')
    start = text.index(">", start) + 1
    return json.loads(gzip.decompress(base64.b64decode(text[start : text.index("</script>", start)])))


@cache
def _template() -> str:
    """The page without its facts."""
    folder = files(__package__) / "web"
    text = (folder / "page.html").read_text(encoding="utf-8")
    script = "\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    style = (folder / "page.css").read_text(encoding="utf-8")
    return text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", f'"use strict";\n(() => {{\n{script}\n}})();')


def file_of(path: str | Path) -> Path:
    """The file that a page is written to.

    Raises:
        IsADirectoryError: it is a folder.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        raise IsADirectoryError(
            f"a report is one file, and {target} is a folder; name a file in it: {target / 'report.html'}"
        )
    return target


def write(facts: dict[str, Any], path: str | Path) -> Path:
    """Write the page.

    Raises:
        OSError: it cannot be written.
    """
    target = file_of(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(facts), encoding="utf-8")
    return target
