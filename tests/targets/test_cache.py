"""The cache on disk: hits, damage, places that cannot be written, full disks, races, size."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from intarsia.targets import cache as cache_module
from intarsia.targets.cache import Cache, cache_key, default_folder, package_fingerprint

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
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.folder.stat().st_mode) & 0o077 == 0
    assert cache.state()[0] == 1 and not told and not list((tmp_path / "c").glob("new-*"))


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o777)
    (tmp_path / "c").chmod(0o777)
    assert Cache(tmp_path / "c").root == tmp_path / "c"
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["file", "short", "gone", "meta", "escape"])
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
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path.stat().st_uid) + 1)
    told = Told()
    cache = Cache(tmp_path, warn=told)
    cache.put(KEY, {"k": b"1"})
    assert cache.private and "belongs to" in told[0] and not list(tmp_path.iterdir())


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    cache = Cache(tmp_path, warn=told)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for key in (KEY, OTHER):
        cache.put(key, {"k": b"1"})
        assert cache.get(key) is not None
    assert cache.private and len(told) == 1 and "No space left" in told[0]
    assert not list(tmp_path.glob("**/k")) and not list(tmp_path.glob("new-*"))


def test_default_warning_is_a_python_warning(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, {"k": b"1"}).files["k"].write_bytes(b"2")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.get(KEY) is None


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
    stale = tmp_path / "new-dead"
    stale.mkdir()
    os.utime(stale, (1, 1))
    assert cache.clean() <= 5000
    kept = [cache.get(key) is not None for key in keys]
    assert kept[0] and not kept[1] and not kept[2] and kept[4] and kept[5] and not stale.exists()


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
        start = time.perf_counter()
        text = package_fingerprint()
        best = min(best, time.perf_counter() - start)
    assert len(text) == 64 and best < 0.02
    assert Path(cache_module.__file__).parent.name in cache_module.ROOMS
