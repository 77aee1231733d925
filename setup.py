"""The text of the project's page on a package index: README.md, whose links to files of the repository would lead nowhere there.

With `Repository` in [project.urls] of pyproject.toml they lead to that; without it they are the names of the files.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[([^][]*)\]\((?!https?://|mailto:)([^)\s]+)\)")


def page(text: str, repository: str = "") -> str:
    """The README with links that work anywhere."""

    def link(found: re.Match[str]) -> str:
        words, place = found.groups()
        if place.startswith("#"):
            return words
        if repository:
            return f"[{words}]({repository.rstrip('/')}/blob/main/{place})"
        return words if words == place or place in words else f"{words} (`{place}`)"

    return LINK.sub(link, text)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=page(
            (HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository", "")
        ),
        long_description_content_type="text/markdown",
    )
