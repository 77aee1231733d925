"""The cache on disk: hits, damage, places that cannot be written, full disks, races, size."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intarsia.targets.build import cache as cache_module
from intarsia.targets.build.cache import FOLDER, Cache, Entry, NoRoom, cache_key, default_folder, package_fingerprint

pytestmark = pytest.mark.usefixtures("product_compiler")

KEY = cache_key(ir_text="one")
OTHER = cache_key(ir_text="two")


class Told(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


def test_round_trip_and_privacy(tmp_path: Path) -> None:
    told = Told()
    cache = Cache(tmp_path / "c", warn=told)
    (tmp_path / "k.so").write_bytes(b"\x7fELF")
    assert cache.get(KEY) is None
    cache.put(KEY, {"k.so": tmp_path / "k.so", "k.cpp": "int x;", "raw": b"\0"}, {"arity": 3})
    entry = Cache(tmp_path / "c", warn=told).get(KEY)
    assert entry is not None and entry.meta == {"arity": 3}
    assert {name: path.read_bytes() for name, path in entry.files.items()} == {
        "k.so": b"\x7fELF",
        "k.cpp": b"int x;",
        "raw": b"\0",
    }
    for path in (cache.root, entry.folder.parent, entry.folder, *entry.folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert cache.state()[0] == 1 and not told and not list(cache.root.glob("new-*"))
    assert (cache.root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files and folders below, with mode and contents."""
    found = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, b"" if path.is_dir() else path.read_bytes())
        for path in found
    }


def test_what_else_is_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder of a program's own, with names as ours and old files."""
    for name in (
        "build/result/a.o",
        "new-year/plan.txt",
        "locks/door",
        "ab/abc/meta.json",
        "notes.txt",
        "choices-1.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        for old in (path, path.parent):
            os.utime(old, (1000, 1000))
    tmp_path.chmod(0o755)
    before = everything(tmp_path)
    cache = Cache(tmp_path, max_bytes=10)
    cache.put(KEY, {"k": b"x" * 100})
    cache.put(OTHER, {"k": b"x" * 100})
    cache.clean()
    assert cache.root == tmp_path / FOLDER
    after = everything(tmp_path)
    assert {name: facts for name, facts in after.items() if not name.startswith(FOLDER)} == before


@pytest.mark.parametrize("kind", ["files", "a file", "a link to nowhere"])
def test_a_folder_of_our_name_that_is_not_ours(tmp_path: Path, kind: str) -> None:
    place, told = tmp_path / FOLDER, Told()
    if kind == "files":
        (place / "build" / "x").mkdir(parents=True)
        os.utime(place / "build" / "x", (1, 1))
    elif kind == "a file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "nowhere")
    cache = Cache(tmp_path, warn=told)
    cache.put(KEY, {"k": b"1"})
    cache.clean()
    assert cache.private and cache.get(KEY) is not None and len(told) == 1 and str(tmp_path) in told[0]
    assert kind != "files" or (place / "build" / "x").is_dir()


def test_our_own_folder_named_by_its_own_path(tmp_path: Path) -> None:
    first = Cache(tmp_path)
    first.put(KEY, {"k": b"1"})
    assert Cache(first.root).root == first.root and Cache(first.root).get(KEY) is not None


def test_a_cache_that_others_could_write_to(tmp_path: Path) -> None:
    """What they could have written is not used; the rest is."""
    cache = Cache(tmp_path)
    keys = [cache_key(ir_text=str(i)) for i in range(4)]
    entries = [cache.put(key, {"k": b"1"}) for key in keys]
    entries[1].files["k"].chmod(0o666)
    entries[2].folder.chmod(0o777)
    (entries[3].folder / "meta.json").chmod(0o646)
    cache.root.chmod(0o777)
    told = Told()
    again = Cache(tmp_path, warn=told)
    assert again.root == cache.root and stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert [again.get(key) is not None for key in keys] == [True, False, False, False]
    assert len(told) == 2 and "mode 777" in told[0] and "may be written by other users" in told[1]
    again.put(keys[1], {"k": b"2"})
    assert again.get(keys[1]) is not None


def test_a_folder_in_which_others_could_replace_the_cache(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    told = Told()
    assert Cache(tmp_path / "c", warn=told).root == tmp_path / "c" / FOLDER
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o777
    assert len(told) == 1 and "mode 777" in told[0] and "chmod go-w" in told[0]
    (tmp_path / "c").chmod(0o1777)  # as /tmp
    told = Told()
    assert Cache(tmp_path / "c", warn=told).root == tmp_path / "c" / FOLDER and not told


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["file", "meta", "entry", "above", "root"])
def test_an_entry_of_another_user(tmp_path: Path, what: str) -> None:
    told = Told()
    entry = Cache(tmp_path).put(KEY, {"k": b"1"})
    places = {"file": entry.files["k"], "meta": entry.folder / "meta.json", "entry": entry.folder}
    places |= {"above": entry.folder.parent, "root": entry.folder.parent.parent}
    os.chown(places[what], 12345, 12345)
    cache = Cache(tmp_path, warn=told)
    assert cache.get(KEY) is None and len(told) == 1 and "belongs to user id 12345" in told[0]
    cache.put(KEY, {"k": b"2"})
    assert cache.get(KEY).files["k"].read_bytes() == b"2"  # type: ignore[union-attr]


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("c"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache.put(KEY, {"k": b"1"})
    assert cache.get(KEY) is not None and cache.root == tmp_path / "c" / FOLDER


def test_a_cache_that_is_removed_while_it_is_used(tmp_path: Path) -> None:
    told = Told()
    cache = Cache(tmp_path / "c", warn=told)
    cache.put(KEY, {"k": b"1"})
    shutil.rmtree(tmp_path / "c")
    assert cache.get(KEY) is None
    cache.put(KEY, {"k": b"1"})
    assert cache.get(KEY) is not None and not cache.private and not told


def _meta(entry: Entry, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes what meta.json says; the checksum in it stays."""
    path = entry.folder / "meta.json"
    first, _, rest = path.read_text().partition("\n")
    record = json.loads("{" + rest)
    change(record)
    path.write_text(first + "\n" + json.dumps(record)[1:])


META: dict[str, Callable[[dict[str, Any]], None]] = {
    "meta": lambda record: record["meta"].update(host="import os"),
    "hash": lambda record: record["sha256"].update({"k.so": hashlib.sha256(b"abd").hexdigest()}),
    "escape": lambda record: record["sha256"].update({"../k.so": ""}),
    "key": lambda record: record.update(key=OTHER),
    "format": lambda record: record.update(format=1),
}
POISON = {
    "an empty folder": lambda place: place.mkdir(parents=True),
    "files without meta.json": lambda place: (place.mkdir(parents=True), (place / "k.so").write_bytes(b"?")),
    "a folder meta.json": lambda place: (place / "meta.json").mkdir(parents=True),
    "a file": lambda place: (place.parent.mkdir(), place.write_text("?")),
    "a link": lambda place: (place.parent.mkdir(), place.symlink_to(place.parent)),
    "a file above": lambda place: place.parent.write_text("?"),
    "a link above": lambda place: place.parent.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", POISON)
def test_what_is_no_entry_is_in_nobodys_way(tmp_path: Path, kind: str) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    POISON[kind](cache.root / KEY[:2] / KEY)
    assert cache.get(KEY) is None
    cache.put(KEY, {"k.so": b"abc"})
    entry = cache.get(KEY)
    assert entry is not None and entry.files["k.so"].read_bytes() == b"abc" and not cache.private
    assert Cache(tmp_path).get(KEY) is not None and len(told) <= (kind == "a folder meta.json")


@pytest.mark.parametrize("kind", META)
def test_everything_in_an_entry_has_a_checksum(tmp_path: Path, kind: str) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    entry = cache.put(KEY, {"k.so": b"abc"}, {"host": "pass"})
    _meta(entry, lambda record: None)
    text = (entry.folder / "meta.json").read_text()
    _meta(entry, META[kind])
    if kind == "hash":
        entry.files["k.so"].write_bytes(b"abd")
    assert (entry.folder / "meta.json").read_text() != text
    assert cache.get(KEY) is None and not entry.folder.exists() and len(told) == 1


def test_an_entry_under_another_key_is_none(tmp_path: Path) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    entry = cache.put(KEY, {"k": b"1"})
    place = cache.root / OTHER[:2] / OTHER
    place.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(entry.folder, place)
    assert cache.get(OTHER) is None and cache.get(KEY) is not None and "another entry" in told[0]


def test_the_entry_that_was_first_is_given(tmp_path: Path) -> None:
    """Another process made other files of the same text, as one with more cores does."""
    cache = Cache(tmp_path)
    cache.put(KEY, {"a": b"1"}, {"units": ["a"]})
    entry = cache.put(KEY, {"b": b"1"}, {"units": ["b"]})
    assert entry.meta == {"units": ["a"]} and list(entry.files) == ["a"]


@pytest.mark.parametrize("damage", ["file", "short", "gone", "meta", "words", "escape"])
def test_damaged_entries_are_dropped_with_one_warning(tmp_path: Path, damage: str) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    for key in (KEY, OTHER):
        entry = cache.put(key, {"k.so": b"abc"})
        if damage == "file":
            entry.files["k.so"].write_bytes(b"abd")
        elif damage == "short":
            entry.files["k.so"].write_bytes(b"")
        elif damage == "gone":
            entry.files["k.so"].unlink()
        elif damage == "meta":
            (entry.folder / "meta.json").write_text('["not", "ours"]')
        elif damage == "words":
            (entry.folder / "meta.json").write_bytes(b"\xff\x00")
        else:
            (entry.folder / "meta.json").write_text('{"sha256": {"../k.so": ""}, "meta": {}}')
        assert cache.get(key) is None and not entry.folder.exists()
    assert len(told) == 1 and "damaged" in told[0]
    cache.put(KEY, {"k.so": b"abc"})
    assert cache.get(KEY) is not None


def test_unusable_place_gives_a_private_folder(tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "c", warn=told)
    cache.put(KEY, {"k": b"1"})
    assert cache.get(KEY) is not None and cache.private
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert len(told) == 1 and str(tmp_path / "file") in told[0] and "INTARSIA_CACHE_DIR" in told[0]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o500)
    told = Told()
    assert Cache(tmp_path / "c" / "d", warn=told).private and len(told) == 1


def test_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FOLDER).mkdir()
    real = Path.stat

    def foreign(path: Path, **how: Any) -> os.stat_result:
        found = real(path, **how)
        if path != tmp_path / FOLDER:
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(Path, "stat", foreign)
    told = Told()
    cache = Cache(tmp_path, warn=told)
    cache.put(KEY, {"k": b"1"})
    assert cache.private and "belongs to" in told[0] and not list((tmp_path / FOLDER).iterdir())


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    assert cache.root == tmp_path / FOLDER
    fill(monkeypatch, tmp_path)
    for key in (KEY, OTHER):
        cache.put(key, {"k": b"1"})
        assert cache.get(key) is not None
    assert cache.private and len(told) == 1 and "No space left" in told[0] and len(told[0]) < 400
    assert not list(tmp_path.glob("**/k")) and not list(tmp_path.glob("**/new-*"))


def fill(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Files below these folders cannot be written any more."""
    write = cache_module._write_file

    def full(path: Path, data: bytes) -> None:
        if any(path.is_relative_to(folder) for folder in folders):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(cache_module, "_write_file", full)


def test_all_disks_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, place = Told(), tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    cache = Cache(tmp_path / "c", warn=told)
    assert cache.root
    fill(monkeypatch, tmp_path)
    cache.put(KEY, {"k": b"1"})
    assert cache.get(KEY) is not None and cache.root.is_relative_to("/dev/shm") and not list(place.iterdir())
    fill(monkeypatch, Path("/"))
    with pytest.raises(NoRoom, match="no room"):
        cache.put(OTHER, {"k": b"1"})
    full = Cache(tmp_path / "d", warn=told)
    with pytest.raises(NoRoom, match="no temporary folder with room"):
        full.put(OTHER, {"k": b"1"})


def test_a_forked_process_leaves_the_private_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file", warn=Told())
    cache.put(KEY, {"k": b"1"})
    child = os.fork()
    if child == 0:
        cache_module._remove_private(cache.root, os.getppid())
        os._exit(0)
    os.waitpid(child, 0)
    assert cache.get(KEY) is not None


def test_what_is_damaged_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, {"k": b"1"}).files["k"].write_bytes(b"2")
    assert cache.get(KEY) is None
    assert "damaged" in caplog.text


def test_two_writers_of_one_key(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(value: bytes) -> None:
        try:
            mine = Cache(tmp_path, warn=lambda message: errors.append(AssertionError(message)))
            for i in range(30):
                key = cache_key(ir_text=str(i))
                mine.put(key, {"k": b"same"}, {"by": value.decode()})
                entry = mine.get(key)
                assert entry is not None and entry.files["k"].read_bytes() == b"same"
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and Cache(tmp_path).state()[0] == 30


def test_cleaning_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=5000)
    keys = [cache_key(ir_text=str(i)) for i in range(6)]
    for age, key in enumerate(keys):
        entry = cache.put(key, {"k": b"x" * 1000})
        os.utime(entry.folder / "meta.json", (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # now the youngest
    stale = [cache.root / name for name in ("new-dead", "build/dead", "ab/dead", "locks/dead")]
    young = [cache.root / name for name in ("new-young", "build/young", "ab/young", "locks/young")]
    for path in (*stale, *young):
        path.mkdir(parents=True)
    for path in stale:
        os.utime(path, (1, 1))
    assert cache.clean() <= 5000
    kept = [cache.get(key) is not None for key in keys]
    assert kept[0] and not kept[1] and not kept[2] and kept[4] and kept[5]
    assert not any(path.exists() for path in stale) and all(path.exists() for path in young)


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    base = cache_key(ir_text="x", config={"a": 1, "b": 2}, versions={"torch": "2"}, isa="avx2")
    assert base == cache_key(ir_text="x", config={"b": 2, "a": 1}, versions={"torch": "2"}, isa="avx2")
    changed = [
        cache_key(ir_text="y", config={"a": 1, "b": 2}, versions={"torch": "2"}, isa="avx2"),
        cache_key(ir_text="x", config={"a": 1, "b": 3}, versions={"torch": "2"}, isa="avx2"),
        cache_key(ir_text="x", config={"a": 1, "b": 2}, versions={"torch": "3"}, isa="avx2"),
        cache_key(ir_text="x", config={"a": 1, "b": 2}, versions={"torch": "2"}, isa="avx512"),
        cache_key(ir_text="x", config={"a": 1, "b": 2}, versions={"torch": "2"}, isa="avx2", pass_sources="p"),
    ]
    assert len({base, *changed}) == 6 and len(base) == 64
    with pytest.raises(ValueError, match="hash"):
        Cache().get("../up")


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "here"))
    assert default_folder() == tmp_path / "here"
    monkeypatch.delenv("INTARSIA_CACHE_DIR")
    assert default_folder().name == "intarsia"


def test_fingerprint_covers_the_rooms_and_is_quick() -> None:
    best = 1.0
    for _ in range(3):
        package_fingerprint.cache_clear()
        start = time.process_time()
        text = package_fingerprint()
        best = min(best, time.process_time() - start)
    assert len(text) == 64 and best < 0.05
    assert Path(cache_module.__file__).parents[1].name in cache_module.ROOMS
