"""Lines of the user's code, numbered: whatever a report shows refers to them by number, and the page finds what belongs together."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

from ..explaining.text import short
from ..ir.syntax import comment_of

_AROUND = 6  # lines that are shown before and after one that matters
_WHOLE = 160  # lines of a file that is shown from its first to its last


class Places:
    """The lines that a report refers to, in the order in which they come up."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def at(self, file: str, line: int) -> int:
        """The number of a line; a file may be called as it is, or as the IR calls it."""
        place = self._files.setdefault(_as_it_is(file), len(self._files)), line
        return self._numbers.setdefault(place, len(self._numbers))

    def of(self, text: str) -> int | None:
        """The number of "file:line"; None for a text that is no such thing."""
        file, _, line = text.rpartition(":")
        return self.at(file, int(line)) if file and line.isdecimal() else None

    def all_of(self, texts: Sequence[str]) -> list[int]:
        """The numbers of several, each once."""
        found = [self.of(text) for text in texts]
        return list(dict.fromkeys(number for number in found if number is not None))

    def stack(self, lines: Sequence[tuple[str, int]]) -> int:
        """The number of a chain of calls, outermost first."""
        chain = tuple(self.at(*line) for line in lines)
        return self._stacks.setdefault(chain, len(self._stacks))

    def facts(self) -> dict[str, Any]:
        """Files with the parts of their text around these lines, `[file, line]` of each, and the chains."""
        wanted: dict[int, set[int]] = {number: set() for number in self._files.values()}
        for file, line in self._numbers:
            wanted[file].add(line)
        return {
            "files": [
                {"name": short(name), "path": name, "parts": _parts(name, wanted[k])} for name, k in self._files.items()
            ],
            "places": [list(place) for place in self._numbers],
            "stacks": [list(chain) for chain in self._stacks],
        }


def _as_it_is(name: str) -> str:
    """The name of a file, of which the IR may have escaped what cannot be printed."""
    if "\\" not in name or not name.isascii():
        return name
    try:
        raw = name.encode("ascii").decode("unicode_escape")
    except UnicodeDecodeError:
        return name
    return raw if comment_of(raw) == name else name


def _parts(name: str, wanted: set[int]) -> list[list[Any]]:
    """Pieces of a file, `[first line, [text, ...]]`; none where it cannot be read."""
    lines = linecache.getlines(name)
    if not lines:
        return []
    shown: set[int] = set()
    if len(lines) <= _WHOLE:
        shown.update(range(1, len(lines) + 1))
    for line in wanted:
        shown.update(range(max(1, line - _AROUND), min(len(lines), line + _AROUND) + 1))
    found: list[list[Any]] = []
    for line in sorted(shown):
        if not found or found[-1][0] + len(found[-1][1]) != line:
            found.append([line, []])
        found[-1][1].append(lines[line - 1].rstrip("\r\n"))
    return found
