"""What this process has built or used of the cache, as one piece of bytes for another machine or process."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass

from .cache import Cache

__all__ = ["CacheInfo", "pack", "unpack"]

_FORMAT = 1


@dataclass(frozen=True)
class CacheInfo:
    """What a bundle holds: how many entries of the cache, and the bytes of their files."""

    entries: int
    bytes: int


def pack(cache: Cache) -> tuple[bytes, CacheInfo] | None:
    """The entries that this process has read or written, or None where there are none."""
    found = [(key, entry) for key in sorted(cache.used) if (entry := cache.get(key)) is not None]
    if not found:
        return None
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("format", str(_FORMAT))
        for key, entry in found:
            bundle.writestr(f"{key}/meta", json.dumps(entry.meta))
            for name, data in entry.data.items():
                bundle.writestr(f"{key}/files/{name}", data)
    return out.getvalue(), CacheInfo(len(found), sum(len(d) for _, e in found for d in e.data.values()))


def unpack(cache: Cache, data: bytes) -> CacheInfo:
    """Put the entries of a bundle into the cache; those that are there already stay.

    Raises:
        ValueError: `data` is no bundle, or one of another format.
    """
    found: dict[str, dict[str, bytes]] = {}
    meta: dict[str, dict[str, object]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as bundle:
            if bundle.read("format") != str(_FORMAT).encode():
                raise ValueError("another format")
            for name in bundle.namelist():
                key, _, rest = name.partition("/")
                kind, _, file = rest.partition("/")
                if kind == "meta":
                    meta[key] = json.loads(bundle.read(name))
                elif kind == "files":
                    found.setdefault(key, {})[file] = bundle.read(name)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"this is nothing that save_cache_artifacts gave: {error}") from None
    for key, record in meta.items():
        _check_names([key, *found.get(key, {})])
        cache.put(key, found.get(key, {}), record)
    return CacheInfo(len(meta), sum(len(d) for files in found.values() for d in files.values()))


def _check_names(names: list[str]) -> None:
    """Entries lie in the cache's own folder, and nowhere else."""
    for name in names:
        if not name or name.startswith(".") or any(c in name for c in "/\\\0:"):
            raise ValueError(f"this is nothing that save_cache_artifacts gave: an entry is named {name!r:.80}")
