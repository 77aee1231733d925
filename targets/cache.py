"""Content-addressed cache on disk: a key (hash of all that goes into a build) leads to a folder of files.

Layout: `<root>/<key[:2]>/<key>/` with the files and `meta.json` (sha256 of each file, and what the writer wants to remember). Entries
are prepared in a folder beside and renamed into place, so that a reader sees a whole entry or none. No pickle. The root belongs to
the user alone (0700), because its libraries are loaded into the process. INTARSIA_CACHE_DIR overrides its place.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

MAX_BYTES = 2 << 30
FORMAT = 1
CLEAN_EVERY = 64  # puts between two looks at the size of the whole cache
STALE_SECONDS = (
    24 * 3600.0
)  # an unfinished entry or build of this age was left by a process that died, or by a failed compile

# The rooms whose code decides what is built from an IR text.
ROOMS = ("ir", "passes", "targets")


def default_folder() -> Path:
    """INTARSIA_CACHE_DIR, else `intarsia` in the user's cache folder."""
    named = os.environ.get("INTARSIA_CACHE_DIR")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("intarsia", appauthor=False))


def cache_key(
    *,
    ir_text: str,
    pass_sources: Mapping[str, str] | str = "",
    config: Mapping[str, Any] | str = "",
    versions: Mapping[str, str] | str = "",
    isa: str = "",
) -> str:
    """sha256 (hex) of everything that decides what is built. Mappings hold JSON values; their order does not matter."""
    parts = {
        "format": FORMAT,
        "ir": ir_text,
        "passes": pass_sources,
        "config": config,
        "versions": versions,
        "isa": isa,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@functools.cache
def package_fingerprint(rooms: tuple[str, ...] = ROOMS) -> str:
    """sha256 (hex) of the package's own .py and .h files in these rooms; read once per process."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for room in rooms:
        for folder, below, names in os.walk(root / room):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(names):
                if name.endswith((".py", ".h")):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        data = file.read()
                    digest.update(f"{os.path.relpath(path, root)}\0{len(data)}\0".encode())
                    digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """A complete entry: its folder, the paths of its files by name, and the writer's `meta`."""

    folder: Path
    files: dict[str, Path]
    meta: dict[str, Any]


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


@dataclass
class Cache:
    """See the module's text. Usable from several threads and processes at once. `warn` is told once about each kind of trouble."""

    folder: Path = field(default_factory=default_folder)
    max_bytes: int = MAX_BYTES
    warn: Callable[[str], None] = _warn
    _root: Path | None = None
    _private: bool = False
    _puts: int = 0
    _told: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """The folder in use: `folder`, or a private temporary one (removed at exit) when that cannot be used."""
        if self._root is None:
            try:
                self._root = own_folder(self.folder)
            except OSError as error:
                self._use_private(f"cannot use the cache folder {self.folder}: {error}")
        assert self._root is not None
        return self._root

    @property
    def private(self) -> bool:
        """True when the temporary folder is in use."""
        return self._private

    def get(self, key: str) -> Entry | None:
        """The entry under `key`, None when there is none. Damaged entries are removed, with one warning, and count as none."""
        folder = self._entry_folder(key)
        try:
            meta_text = (folder / "meta.json").read_bytes()
        except OSError:
            return None
        try:
            record = json.loads(meta_text)
            hashes: dict[str, str] = record["sha256"]
            files = {name: folder / name for name in hashes}
            for name, path in files.items():
                if os.path.basename(name) != name or hashlib.sha256(path.read_bytes()).hexdigest() != hashes[name]:
                    raise ValueError(f"{name} does not match its checksum")
            meta: dict[str, Any] = record["meta"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if (folder / "meta.json").exists():  # else another process has just cleaned up
                self._tell("damaged", f"dropped a damaged cache entry, it will be built again: {folder} ({error})")
                shutil.rmtree(folder, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / "meta.json")  # the clean-up removes the entries longest unused
        return Entry(folder, files, meta)

    def drop(self, entry: Entry, reason: object) -> None:
        """Removes an entry whose files are whole and of no use here, with one warning: libraries for another C library, say."""
        self._tell(
            "useless", f"dropped a cache entry that cannot be loaded, it will be built again: {entry.folder} ({reason})"
        )
        shutil.rmtree(entry.folder, ignore_errors=True)

    def put(self, key: str, files: Mapping[str, bytes | str | Path], meta: Mapping[str, Any] | None = None) -> Entry:
        """Stores `files` (name -> bytes, text, or a path to copy) with JSON-able `meta`; an entry that is there already wins.

        A folder that cannot be written or a full disk: stored in a private temporary folder, with one warning. Raises OSError when
        there is no room at all.
        """
        data = {name: _bytes_of(value) for name, value in files.items()}
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
        record = json.dumps({"format": FORMAT, "sha256": hashes, "meta": dict(meta or {})}, indent=1)
        root = self.root
        try:
            entry = self._write(root, key, data, record)
        except OSError as error:
            if self._private:
                raise
            self._use_private(f"cannot write to the cache folder {self.folder}: {error}")
            entry = self._write(self.root, key, data, record)
        self._puts += 1
        if self._puts % CLEAN_EVERY == 1:
            self.clean()
        return entry

    def clean(self) -> int:
        """Removes the entries longest unused until nine tenths of `max_bytes` are kept, if more is used; returns the bytes in use."""
        entries: list[tuple[float, int, Path]] = []
        try:
            for meta in self.root.glob("??/*/meta.json"):
                size = sum(path.stat().st_size for path in meta.parent.iterdir())
                entries.append((meta.stat().st_mtime, size, meta.parent))
            for left in [*self.root.glob("new-*"), *self.root.glob("build/*")]:
                if time.time() - left.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        except OSError:
            return 0  # another process is cleaning
        used = sum(size for _, size, _ in entries)
        if used > self.max_bytes:
            for _, size, folder in sorted(entries):
                if used <= self.max_bytes * 0.9:
                    break
                shutil.rmtree(folder, ignore_errors=True)
                used -= size
        return used

    def state(self) -> tuple[int, int]:
        """(entries, bytes in use)."""
        sizes = [path.stat().st_size for path in self.root.glob("??/*/*")]
        return sum(1 for _ in self.root.glob("??/*/meta.json")), sum(sizes)

    def _entry_folder(self, key: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a cache key is a hash, got {key!r}")
        return self.root / key[:2] / key

    def _write(self, root: Path, key: str, data: Mapping[str, bytes], record: str) -> Entry:
        folder = root / key[:2] / key
        staging = Path(tempfile.mkdtemp(prefix="new-", dir=root))
        try:
            for name, content in data.items():
                if os.path.basename(name) != name or name == "meta.json":
                    raise ValueError(f"not a name for a file of a cache entry: {name!r}")
                (staging / name).write_bytes(content)
            (staging / "meta.json").write_text(record, encoding="utf-8")
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                os.replace(staging, folder)
            except OSError:
                if not (folder / "meta.json").exists():
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return Entry(folder, {name: folder / name for name in data}, json.loads(record)["meta"])

    def _use_private(self, reason: str) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="intarsia-"))  # 0700
        self._private = True
        weakref.finalize(self, shutil.rmtree, self._root, True)
        self._tell(
            "private",
            f"{reason}. Compiled code goes to {self._root} and is lost at exit; set INTARSIA_CACHE_DIR to keep it.",
        )

    def _tell(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self.warn(message)


@functools.cache
def shared_cache(folder: Path | None = None) -> Cache:
    """One Cache per folder and process, so that a warning is given once; None: the default folder of the first call."""
    return Cache(folder or default_folder())


def own_folder(folder: Path) -> Path:
    """Makes `folder` if need be, sees that only this user can write there and that it can be written. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if hasattr(os, "getuid"):
        if facts.st_uid != os.getuid():
            raise PermissionError(f"it belongs to user id {facts.st_uid}")
        if stat.S_IMODE(facts.st_mode) & 0o077:
            folder.chmod(0o700)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError("no permission to write there")
    return folder


def _bytes_of(value: bytes | str | Path) -> bytes:
    if isinstance(value, Path):
        return value.read_bytes()
    return value.encode() if isinstance(value, str) else value
