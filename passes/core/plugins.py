"""Passes of installed packages (entry points). One that cannot be used is left out and named once; nothing else changes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from .base import Pass

ENTRY_POINT_GROUP = "intarsia.passes"
log = logging.getLogger("intarsia")
_told: set[str] = set()


@dataclass(frozen=True)
class Plugin:
    """A pass of an installed package; `where` is the entry point, as a reader finds it in the package's pyproject.toml."""

    kind: type[Pass]
    where: str


def has_installed() -> bool:
    """Whether an installed package declares a pass."""
    return bool(_declared())


def _declared() -> tuple[EntryPoint, ...]:
    """The entry points of the group. The files of all packages are read again when one was installed or removed, or `sys.path` changed."""
    return _read(
        entry_points, tuple((str(place), _changed(place)) for place in sys.path), tuple(map(id, sys.meta_path))
    )


@lru_cache(maxsize=1)
def _read(
    read: Callable[..., Iterable[EntryPoint]], places: tuple[tuple[str, int], ...], finders: tuple[int, ...]
) -> tuple[EntryPoint, ...]:
    return tuple(read(group=ENTRY_POINT_GROUP))


def _changed(place: str) -> int:
    """When a folder (or an archive) got or lost a file last; 0 where there is none."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except (OSError, ValueError):
        return 0


def installed() -> list[Plugin]:
    """The passes that installed packages declare. What cannot be imported, or is no pass, is left out."""
    found = []
    for point in _declared():
        where = where_of(point)
        try:
            kind = point.load()
        except (Exception, SystemExit) as error:
            said = traceback.format_exception_only(error)[-1].strip()
            left_out(where, f"it cannot be imported: {said}{line_of_import(error)}")
            continue
        if isinstance(kind, type) and issubclass(kind, Pass):
            found.append(Plugin(kind, where))
        else:
            left_out(where, f"it is no class that derives from Pass, but {kind!r:.80}")
    return found


def left_out(where: str, why: str) -> None:
    """Say, once, that a pass is not used."""
    text = f"{where} is left out: {why}"
    if text not in _told:
        _told.add(text)
        log.warning("%s", text)


def forget_warnings() -> None:
    """Say again what was said before."""
    _told.clear()


def where_of(point: EntryPoint, what: str = "pass") -> str:
    """An entry point as a reader finds it: its name, its package, and what it names there."""
    distribution = getattr(point, "dist", None)
    package = "" if distribution is None else f"{distribution.name} {distribution.version}, "
    return f"the installed {what} '{point.name}' ({package}{point.value})"


def line_of_import(error: BaseException) -> str:
    """The last line of a package's own where an import failed."""
    places = [p for p in traceback.extract_tb(error.__traceback__) if "importlib" not in p.filename]
    return f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
