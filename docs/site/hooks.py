"""What mkdocs asks of us while it builds the site (mkdocs.yml): pages made from the code, and links to files outside of docs/.

- Pictures are drawn by `pictures.py`.
- `PAGES OF DIALECTS`, `PAGES OF PASSES` and `PAGES OF NOTEBOOKS` in the navigation become pages, made by `pages.py`.
- A link that leaves docs/ (`../examples/softmax.ir`) leads to a copy of that file in the site, as text; a folder's to a list of its files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]*)\)")

sys.path.insert(0, str(HERE))
import messages  # noqa: E402
import pages  # noqa: E402
import pictures  # noqa: E402


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages made from the code into the navigation."""
    made = {
        "PAGES OF DIALECTS": pages.dialects(),
        "PAGES OF PASSES": pages.passes(),
        "PAGES OF NOTEBOOKS": pages.notebooks(),
    }
    config["made"] = {name: text for group in made.values() for name, text in group.items()}
    for section in config.nav or []:
        for title, entries in section.items():
            section[title] = [page for entry in entries for page in made.get(entry, [entry])]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add those pages, and a copy of each file or folder that a page links to outside of docs/."""
    for name, text in (config["made"] | pictures.pictures()).items():
        files.append(File.generated(config, name, content=text))
    for page in [file for file in files if file.is_documentation_page()]:
        for link in set(OUTSIDE.findall(page.content_string)):
            path = _target(page.src_uri, link)
            if path.exists() and files.get_file_from_path(_copy(path)) is None:
                text = _listing(path) if path.is_dir() else path.read_text(encoding="utf-8")
                files.append(File.generated(config, _copy(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in the messages that the page asks for (`messages.py`), and lead links that leave docs/ to the copies."""
    up = "../" * page.file.src_uri.count("/")

    def inside(found: re.Match[str]) -> str:
        path = _target(page.file.src_uri, found[1])
        return f"]({up}{_copy(path)})" if path.exists() else found[0]  # a file that is not there: mkdocs complains

    return OUTSIDE.sub(inside, messages.expanded(markdown))


def _target(page: str, link: str) -> Path:
    return (ROOT / "docs" / Path(page).parent / link).resolve()


def _copy(path: Path) -> str:
    return f"files/{path.relative_to(ROOT)}.txt"


def _listing(folder: Path) -> str:
    names = [f"{path.name}/" if path.is_dir() else path.name for path in sorted(folder.iterdir())]
    shown = [name for name in names if not name.startswith(("_", "."))]
    return f"{folder.relative_to(ROOT)}/ holds\n\n" + "".join(f"  {name}\n" for name in shown)
