"""The long texts of a report, each once: the IR behind each pass, and generated code, with the user's line of each of their lines."""

from __future__ import annotations

import re
from typing import Any

from .places import Places

_LOCATION = re.compile(r' loc\("((?:[^"\\\n]|\\.)*)":(\d+):\d+\)$')
_ESCAPED = re.compile(r'\\(["\\nt]|[0-9A-Fa-f]{2})')
_NAMES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}


def file_name(text: str) -> str:
    """The file's name in a location of the IR, as it is called."""
    raw = bytearray()
    end = 0
    for found in _ESCAPED.finditer(text):
        raw += text[end : found.start()].encode()
        word = found[1]
        raw += _NAMES[word].encode() if word in _NAMES else bytes([int(word, 16)])
        end = found.end()
    return (raw + text[end:].encode()).decode(errors="replace")


class Texts:
    """Texts by number; equal ones are one."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._numbers: dict[str, int] = {}
        self.facts: list[dict[str, Any]] = []

    def plain(self, text: str) -> int:
        """A text as it is: code."""
        return self._add(text, lambda: {"text": text})

    def ir(self, text: str) -> int:
        """The IR of a module: locations are taken out of its lines, and stand beside them as numbers, -1 for a line without one."""
        return self._add(text, lambda: self._located(text))

    def _add(self, text: str, made: Any) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.facts)
            self.facts.append(made())
        return number

    def _located(self, text: str) -> dict[str, Any]:
        lines, places, last = [], [], 0
        for line in text.rstrip("\n").split("\n"):
            found = _LOCATION.search(line)
            place = -1 if found is None else self._places.at(file_name(found[1]), int(found[2]))
            lines.append(line if found is None else line[: found.start()])
            places.append(place - last)  # differences are short
            last = place
        return {"text": "\n".join(lines), "places": places}
