"""Content-addressed cache on disk: a key (hash of all that goes into a build) leads to a folder of files.

Layout: `<folder>/intarsia-cache/<key[:2]>/<key>/` with the files and `meta.json` (sha256 of each file, what the writer wants to remember, and
a checksum over both and the key). All that is there is ours: the folder that the user names is never changed, and its subfolder is taken only
where it is new or has our mark. Entries are prepared in a folder beside and renamed into place, so that a reader sees a whole
entry or none. No pickle. The subfolder belongs to the user alone (0700), because what is in it is loaded and run; entries that
another user wrote, or could have written, are not used. INTARSIA_CACHE_DIR overrides its place.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json import dumps, loads  # as they were at import: programs patch modules
from pathlib import Path
from typing import Any

import platformdirs

from .locks import locked

_log = logging.getLogger("intarsia")
_topic = logging.getLogger("intarsia.cache")  # of `intarsia.set_logs`

MAX_BYTES = 2 << 30
FORMAT = 2
CLEAN_EVERY = 64  # puts of a process between two looks at the size of the whole cache
CLEAN_SECONDS = 60.0  # between two looks of all processes: one at a full cache takes a second
# An unfinished entry or build of this age was left by a process that died, or by a failed compile.
STALE_SECONDS = 24 * 3600.0
FOLDER, MARK = "intarsia-cache", "CACHEDIR.TAG"
# The first line is what the convention for such files asks for (bford.info/cachedir); backups leave these folders out.
MARK_TEXT = """\
Signature: 8a477f597d28d172789f06886806bc55
# Compiled code of Intarsia. All that is in this folder may be removed at any time.
"""
PROBE = 1 << 20  # bytes; a disk that has no room for so much is full

# The rooms whose code decides what is built from an IR text.
ROOMS = ("ir", "passes", "targets")


class NoRoom(RuntimeError):
    """Neither the cache folder nor a temporary one has room for compiled code."""


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
    return hashlib.sha256(dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@functools.cache
def package_fingerprint(rooms: tuple[str, ...] = ROOMS) -> str:
    """sha256 (hex) of the package's own .py and .h files in these rooms; read once per process."""
    root = Path(__file__).parents[2]  # the package, in which the rooms are folders or links to them
    digest = hashlib.sha256()
    for room in rooms:
        for folder, below, names in os.walk(root / room, followlinks=True):
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
    """A complete entry: its folder, what its files hold by name, and the writer's `meta`."""

    folder: Path
    data: Mapping[str, bytes]
    meta: dict[str, Any]

    @property
    def files(self) -> dict[str, Path]:
        """The paths of its files by name."""
        return {name: self.folder / name for name in self.data}

    def text(self, name: str) -> str:
        """A file as text."""
        return self.data[name].decode()


def _warn(message: str) -> None:
    _log.warning("intarsia: %s", message)


@dataclass
class Cache:
    """See the module's text. Usable from several threads and processes at once. `warn` is given each kind of trouble once."""

    folder: Path = field(default_factory=default_folder)
    max_bytes: int = MAX_BYTES
    warn: Callable[[str], None] = _warn
    _root: Path | None = None
    _private: bool = False
    used: set[str] = field(default_factory=set)  # keys of entries that this process has read or written
    _puts: int = 0
    _warned: set[str] = field(default_factory=set)
    _opening: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(os.path.abspath(self.folder))  # the program may go to another folder

    @property
    def root(self) -> Path:
        """The folder in use: our own in `folder`, or a private temporary one (removed at exit) when that cannot be used. Raises NoRoom."""
        if self._root is None:
            with self._opening:
                if self._root is None:
                    self._open()
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
            entry = _read(folder, key)
            self.used.add(key)
            _topic.info("found %s", key[:12])
            _topic.debug("    in %s", folder)
            return entry
        except FileNotFoundError:
            _topic.info("not there: %s", key[:12])
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if (folder / "meta.json").exists():  # else another process has just cleaned up
                self._warn_once("damaged", f"dropped a damaged cache entry, it will be built again: {folder} ({error})")
                self._remove(folder)
            return None

    def drop(self, entry: Entry, reason: object) -> None:
        """Removes an entry whose files are whole and of no use here, with one warning: libraries for another C library, say."""
        self._warn_once(
            "useless", f"dropped a cache entry that cannot be loaded, it will be built again: {entry.folder} ({reason})"
        )
        _topic.info("dropped %s: %s", entry.folder.name[:12], reason)
        self._remove(entry.folder)

    def put(self, key: str, files: Mapping[str, bytes | str | Path], meta: Mapping[str, Any] | None = None) -> Entry:
        """Stores `files` (name -> bytes, text, or a path to copy) with JSON-able `meta`; a whole entry that is there already wins.

        A folder that cannot be written or a full disk: stored in a private temporary folder, with one warning. Raises NoRoom when
        there is no room at all.
        """
        data = {name: _bytes_of(value) for name, value in files.items()}
        record = _record(key, data, dict(meta or {}))
        try:
            try:
                entry = self._write(key, data, record)
            except FileNotFoundError:  # the cache was removed under our feet
                self._root = None
                entry = self._write(key, data, record)
        except OSError as error:
            self.leave(error)
            try:
                entry = self._write(key, data, record)
            except OSError as second:
                raise NoRoom(f"compiled code cannot be kept in {self.root}: {_short(second)}") from second
        self.used.add(key)
        _topic.info("kept %s: %d files, %d bytes", key[:12], len(data), sum(map(len, data.values())))
        _topic.debug("    in %s", entry.folder)
        self._puts += 1
        if self._puts % CLEAN_EVERY == 1 and self._cleaning_is_due():
            self.clean()
        return entry

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """While no other thread or process builds `key`: who comes second finds the entry. Ends with the process that is in it."""
        folder = self.root / "locks"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        with locked(folder / key):
            yield

    def workplace(self, key: str) -> Path:
        """A new folder to build `key` in, on the disk that the entry will be on."""
        return self.root / "build" / f"{key[:16]}-{os.getpid()}-{time.time_ns():x}"

    def leave(self, error: Exception) -> None:
        """Go on in a private temporary folder, because this one cannot be written. Raises NoRoom."""
        if self._private and self._root is not None and self._root.is_dir() and not _has_room(self._root):
            raise NoRoom(f"there is no room left for compiled code in {self._root}: {_short(error)}") from error
        self._use_private(f"cannot write to the cache folder {self.folder}: {_short(error)}")

    def clean(self) -> int:
        """Removes the entries longest unused until nine tenths of `max_bytes` are kept, if more is used; returns the bytes in use."""
        entries: list[tuple[float, int, Path]] = []
        for folder in self.root.glob("??/*"):
            with contextlib.suppress(OSError), os.scandir(folder) as files:  # another process is cleaning
                facts = {file.name: file.stat() for file in files}
                if "meta.json" in facts:
                    size = sum(fact.st_size for fact in facts.values())
                    entries.append((facts["meta.json"].st_mtime, size, folder))
                elif _is_stale(folder):
                    self._remove(folder)
        for left in [path for name in ("new-*", "build/*", "locks/*") for path in self.root.glob(name)]:
            with contextlib.suppress(OSError):
                if _is_stale(left):
                    _delete(left)
        used = sum(size for _, size, _ in entries)
        if used > self.max_bytes:
            for _, size, folder in sorted(entries):
                if used <= self.max_bytes * 0.9:
                    break
                self._remove(folder)
                used -= size
        return used

    def _cleaning_is_due(self) -> bool:
        """Whether no process has looked at the size of the cache in the last CLEAN_SECONDS; who is told so does it."""
        mark = self.root / "cleaned"
        with contextlib.suppress(OSError):
            if 0 <= time.time() - mark.stat().st_mtime < CLEAN_SECONDS:
                return False
        with contextlib.suppress(OSError):
            mark.touch()
        return True

    def state(self) -> tuple[int, int]:
        """(entries, bytes in use)."""
        count, size = 0, 0
        for path in self.root.glob("??/*/*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                count, size = count + (path.name == "meta.json"), size + path.stat().st_size
        return count, size

    def _open(self) -> None:
        try:
            self._root, warning = cache_folder(self.folder)
        except (OSError, ValueError) as error:
            self._use_private(f"cannot use the cache folder {self.folder}: {_short(error)}")
        else:
            if warning:
                self._warn_once("open to others", warning)

    def _entry_folder(self, key: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a cache key is a hash, got {key!r}")
        return self.root / key[:2] / key

    def _write(self, key: str, data: Mapping[str, bytes], record: bytes) -> Entry:
        root, folder = self.root, self._entry_folder(key)
        staging = Path(tempfile.mkdtemp(prefix="new-", dir=root))
        try:
            for name, content in [*data.items(), ("meta.json", record)]:
                if os.path.basename(name) != name or (name == "meta.json" and content is not record):
                    raise ValueError(f"not a name for a file of a cache entry: {name!r}")
                _write_file(staging / name, content)
            for _ in range(3):
                try:
                    folder.parent.mkdir(mode=0o700, exist_ok=True)
                    _check_owner(folder.parent, folder.parent.stat())
                    os.replace(staging, folder)
                    break
                except OSError:
                    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                        return _read(folder, key)  # another process was first
                    self._remove(folder if _is_trusted(folder.parent) else folder.parent)  # no entry, and in the way
            else:
                raise PermissionError(f"what is in the way of an entry cannot be removed: {folder}")
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return Entry(folder, data, loads(record)["meta"])

    def _remove(self, path: Path) -> None:
        """Takes a path away at once, so that no process sees half of an entry."""
        aside = self.root / f"new-{path.name[:16]}-{os.getpid()}-{time.time_ns():x}"
        with contextlib.suppress(OSError):
            os.rename(path, aside)
            path = aside
        _delete(path)

    def _use_private(self, reason: str) -> None:
        with self._opening:
            folder = _temporary_folder()
            if folder is None:
                raise NoRoom(f"{reason}; and there is no temporary folder with room for compiled code")
            self._root, self._private = folder, True
        weakref.finalize(self, _remove_private, folder, os.getpid())
        self._warn_once(
            "private",
            f"{reason}. Compiled code goes to {folder} and is lost at exit; set INTARSIA_CACHE_DIR to keep it.",
        )

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.warn(message)


@functools.cache
def shared_cache(folder: Path | None = None) -> Cache:
    """One Cache per folder and process, so that a warning is given once; None: the default folder of the first call."""
    return Cache(folder or default_folder())


def cache_folder(folder: Path) -> tuple[Path, str]:
    """(our own folder in `folder`, which is made if need be; a warning or ""). Raises OSError where there can be none.

    The subfolder has to be this user's, and either new or marked as ours.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = folder if _is_ours(folder) else folder / FOLDER
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    facts, warning = root.stat(), ""
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(f"{root} is in the way and is no folder")
    if hasattr(os, "getuid"):
        for owner in (facts.st_uid, root.lstat().st_uid):
            if owner != os.getuid():
                raise PermissionError(f"{root} belongs to user id {owner}")
        if not _is_ours(root) and any(not name.startswith(MARK) for name in os.listdir(root)) and not _is_ours(root):
            raise FileExistsError(f"{root} holds files that are not Intarsia's")
        warning = _close_to_others(folder, root, facts.st_mode)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write to {root}")
    if _forbids_code(root):
        raise PermissionError(f"{root} is on a disk that is mounted noexec: libraries there cannot be loaded")
    if not _is_ours(root):
        partial = root / f"{MARK}.{os.getpid()}-{time.time_ns():x}"
        _write_file(partial, MARK_TEXT.encode())
        os.replace(partial, root / MARK)
    return root, warning


def _is_ours(root: Path) -> bool:
    try:
        return (root / MARK).read_text() == MARK_TEXT
    except (OSError, UnicodeDecodeError):
        return False


def _close_to_others(folder: Path, root: Path, mode: int) -> str:
    """Takes our folder's permissions from other users; a warning where they could have written to it, or can take its place."""
    warning = ""
    if stat.S_IMODE(mode) & 0o077:
        root.chmod(0o700)
        if mode & 0o022:
            warning = (
                f"other users could write to the cache folder {root} (mode {stat.S_IMODE(mode):o}): it is closed to them now, and entries "
                "that they wrote, or could have written, are built again"
            )
    around = folder.stat().st_mode
    if not warning and root != folder and around & 0o002 and not around & stat.S_ISVTX:
        warning = (
            f"every user may write to {folder} (mode {stat.S_IMODE(around):o}) and could put another folder into the place of the cache; to "
            f"keep others out: chmod go-w {folder}, or set INTARSIA_CACHE_DIR to another folder"
        )
    return warning


def _forbids_code(folder: Path) -> bool:
    if not hasattr(os, "statvfs") or not hasattr(os, "ST_NOEXEC"):
        return False
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _temporary_folder() -> Path | None:
    """A new folder of this user's alone with room for compiled code, in memory if all disks are full."""
    for place in dict.fromkeys((*_temporary_places(), "/dev/shm")):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="intarsia-", dir=place))  # 0700
            if _has_room(folder) and not _forbids_code(folder):
                return folder
            folder.rmdir()
    return None


def _temporary_places() -> Iterator[str]:
    with contextlib.suppress(OSError):  # tempfile writes to each of its places, to see whether it can
        yield tempfile.gettempdir()


def _has_room(folder: Path) -> bool:
    """Whether a file of some size can be written there."""
    probe = folder / f".probe-{os.getpid()}-{threading.get_ident()}"
    try:
        _write_file(probe, bytes(PROBE))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def has_room(folder: Path) -> bool:
    """Whether the disk of this folder, which need not be there, has room for some more files."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return _has_room(folder)


def _record(key: str, data: Mapping[str, bytes], meta: dict[str, Any]) -> bytes:
    """The text of meta.json: a checksum in the first line, over all behind it."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    rest = dumps({"format": FORMAT, "key": key, "sha256": hashes, "meta": meta}, indent=1)[1:].encode()
    return b'{"checksum": "%s",\n' % hashlib.sha256(rest).hexdigest().encode() + rest


def _read(folder: Path, key: str) -> Entry:
    """The entry in a folder. Raises FileNotFoundError where there is none, ValueError and others where it is damaged or not to be trusted."""
    for place in (folder.parent, folder):
        _check_owner(place, place.stat())
    text = _read_file(folder / "meta.json")
    _, _, rest = text.partition(b"\n")
    record = loads(text)
    if record["checksum"] != hashlib.sha256(rest).hexdigest():
        raise ValueError("meta.json does not match its checksum")
    if record["format"] != FORMAT or record["key"] != key:
        raise ValueError("meta.json is that of another entry")
    hashes: dict[str, str] = record["sha256"]
    files: dict[str, bytes] = {}
    for name, wanted in hashes.items():
        if os.path.basename(name) != name:
            raise ValueError(f"{name} is not in the entry's folder")
        try:
            files[name] = _read_file(folder / name)
        except FileNotFoundError as error:
            raise ValueError(f"{name} is not there") from error
        if hashlib.sha256(files[name]).hexdigest() != wanted:
            raise ValueError(f"{name} does not match its checksum")
    with contextlib.suppress(OSError):
        os.utime(folder / "meta.json")  # the clean-up removes the entries longest unused
    return Entry(folder, files, record["meta"])


def _check_owner(path: Path, facts: os.stat_result) -> None:
    """Raise where another user wrote a file or folder, or could have."""
    if not hasattr(os, "getuid"):
        return
    if facts.st_uid != os.getuid():
        raise PermissionError(f"{path.name} belongs to user id {facts.st_uid}")
    if facts.st_mode & 0o022:
        raise PermissionError(f"{path.name} may be written by other users (mode {stat.S_IMODE(facts.st_mode):o})")


def _is_trusted(folder: Path) -> bool:
    try:
        _check_owner(folder, folder.stat())
    except OSError:
        return False
    return folder.is_dir()


def _read_file(path: Path) -> bytes:
    """What a file holds that nobody else could have written."""
    with open(path, "rb", buffering=0) as file:
        _check_owner(path, os.fstat(file.fileno()))
        return file.readall()


def _write_file(path: Path, data: bytes) -> None:
    """A new file that is this user's alone, whatever the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) or 0 :]


def _delete(path: Path) -> None:
    """Removes a file, link or folder as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_private(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked process leaves its parent's folder alone
        shutil.rmtree(folder, ignore_errors=True)


def _is_stale(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > STALE_SECONDS


def _short(error: Exception) -> str:
    """An error of the system's in its own words, without number and paths."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _bytes_of(value: bytes | str | Path) -> bytes:
    if isinstance(value, Path):
        return value.read_bytes()
    return value.encode() if isinstance(value, str) else value
