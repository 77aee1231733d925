"""Processes that belong to one: they end with it, one of several compiles, and what is full or gone is nobody's loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from intarsia.targets.build import locks
from intarsia.targets.build.locks import locked
from intarsia.targets.build.processes import GROUPS, ProcessGroup
from intarsia.targets.build.toolchain import CompilerError, Source, compile_sources, find_toolchain
from tests.processes import is_gone

pytestmark = [
    pytest.mark.usefixtures("product_compiler"),
    pytest.mark.skipif(not GROUPS, reason="there are no process groups on this system"),
]
HANGS = 'case "$*" in *.cpp*) sleep 100 & echo $! $$ >> "$PIDS"; wait;; esac'  # but says its version
SLEEPER = ["/bin/sh", "-c", "sleep 100 & echo $! $$; wait"]  # as a compiler's driver, with a process of its own


def pids_of(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def test_the_end_of_a_group_ends_what_its_processes_started() -> None:
    with ProcessGroup() as group:
        found = [pid for _ in range(2) for pid in pids_of(group.start(SLEEPER, stdout=subprocess.PIPE))]
    assert len(found) == 4 and all(map(is_gone, found))
    group.end()


# The modules alone: the package imports torch.
ALONE = f"""
import sys, types
root = {str(Path(locks.__file__).parents[2])!r}
places = (("intarsia", root), ("intarsia.targets", root + "/targets"), ("intarsia.targets.build", root + "/targets/build"))
for name, path in places:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path] if path else []
"""
HOLDER = (
    ALONE
    + """
import os, subprocess, sys, time
from intarsia.targets.build.processes import ProcessGroup
group = ProcessGroup()
child = group.start(["/bin/sh", "-c", "sleep 100 & echo $! $$; wait"], stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
if "fork" in sys.argv and os.fork() == 0:  # a worker of the program's own, which outlives it
    os.close(1)
    time.sleep(30)
time.sleep(100)
"""
)


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_processes_end_when_their_parent_is_killed(how: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", HOLDER, how], stdout=subprocess.PIPE)
    found = pids_of(parent)
    time.sleep(0.3 if how == "fork" else 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len(found) == 2 and all(map(is_gone, found))


def script(folder: Path, text: str) -> Path:
    path = folder / "fake-g++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_compiler_ends_when_its_program_is_killed(tmp_path: Path) -> None:
    compiler = script(tmp_path, HANGS)
    program = (
        "import sys; from pathlib import Path; from intarsia.targets.build.toolchain import *\n"
        "compile_sources([Source(n, '') for n in 'ab'], find_toolchain(), Path(sys.argv[1]), jobs=2)\n"
    )
    pids = tmp_path / "pids"
    environment = {**os.environ, "CXX": str(compiler), "PIDS": str(pids)}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out")], env=environment)
    end = time.monotonic() + 60
    while time.monotonic() < end and (not pids.exists() or len(pids.read_text().split()) < 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = pids.read_text().split()
    assert len(found) == 4 and all(is_gone(int(pid)) for pid in found)


def test_a_compiler_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path, HANGS)))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr("intarsia.targets.build.toolchain.COMPILE_SECONDS", 1.0)
    with pytest.raises(CompilerError, match=r"x\.cpp\n  it took longer than 1 seconds and was ended") as caught:
        compile_sources([Source("x", "")], find_toolchain(), tmp_path / "out")
    assert all(is_gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    assert len(str(caught.value).splitlines()) == 3 and not list((tmp_path / "out").glob(".*"))


# ---- locks ----

TAKER = (
    ALONE
    + """
import sys, time
from pathlib import Path
from intarsia.targets.build.locks import locked
with locked(Path(sys.argv[1])) as held:
    print(held, time.time(), flush=True)
    time.sleep(float(sys.argv[2]))
    print(time.time(), flush=True)
"""
)


def test_a_lock_that_its_holder_takes_into_death_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", TAKER, str(path), "100"], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline().startswith(b"True")
    with locked(path, longest=0.1) as held:
        assert not held
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(path, longest=5) as held:
        assert held
    assert not path.exists()


def test_threads_and_processes_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    others = [
        subprocess.Popen([sys.executable, "-c", TAKER, str(path), "0.1"], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    spans: list[tuple[float, float]] = []

    def work() -> None:
        for _ in range(5):
            with locked(path) as held:
                start = time.time()
                time.sleep(0.02)
                assert held
                spans.append((start, time.time()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        first, second = other.communicate()[0].splitlines()
        assert first.startswith("True")
        spans.append((float(first.split()[1]), float(second)))
    spans.sort()
    assert len(spans) == 18 and all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert not path.exists() and not locks._threads and not locks._users


def test_a_forked_child_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = """
import os, sys, time
from pathlib import Path
from intarsia.targets.build.locks import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        os.close(1)
        time.sleep(30)
        os._exit(0)
    print("forked", flush=True)
    time.sleep(100)
"""
    holder = subprocess.Popen([sys.executable, "-c", ALONE + program, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"forked\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(path, longest=5) as held:
        assert held


def test_work_goes_on_where_there_are_no_locks(tmp_path: Path) -> None:
    with locked(tmp_path / "no" / "folder") as held:
        assert not held


# ---- whole programs ----

TOGETHER = """
import json, os, sys, torch, intarsia
def f(x): return torch.softmax(x, -1) + torch.sin(x)
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            intarsia.compile(f)(torch.randn(4, 5))
        with open(f"{sys.argv[1]}/{number}.json", "w") as out:
            json.dump(intarsia.counters(), out)
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def test_of_three_processes_started_together_one_compiles(tmp_path: Path) -> None:
    log, real = tmp_path / "log", find_toolchain().compiler
    compiler = script(tmp_path, f'case "$*" in *.cpp*) echo run >> {log}; sleep 1;; esac; exec {real} "$@"')
    environment = {**os.environ, "CXX": str(compiler), "INTARSIA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    program = tmp_path / "program.py"
    program.write_text(TOGETHER)
    subprocess.run([sys.executable, str(program), str(tmp_path)], env=environment, check=True, timeout=300)
    counted = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(3)]
    assert sorted(c["compiler_calls"] for c in counted) == [0, 0, 1] and log.read_text().split() == ["run"]
    assert all(c["fallbacks"] == 0 and c["graphs"] == 1 for c in counted)
    assert not list((tmp_path / "intarsia-cache/locks").iterdir())
    assert not list((tmp_path / "intarsia-cache/build").iterdir())


FULL = """
import logging, sys, torch, intarsia
from pathlib import Path
disk = Path(sys.argv[1])
def fill(left):  # KiB that are free
    with open(disk / f"full{left}", "wb", buffering=0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError: pass
        file.truncate(file.tell() - left * 1024)
def f(x): return torch.softmax(x, -1) + torch.sin(x)
def g(x): return torch.softmax(x, -1) + torch.cos(x)
x = torch.randn(4, 5)
told, handler = [], logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("intarsia").addHandler(handler)
with torch.no_grad():
    for fn, folder, left in ((f, "a", 40), (g, "b", 0)):  # room for the source and not for the library; none at all
        (disk / folder).mkdir()
        fill(left)
        assert torch.allclose(intarsia.compile(fn, options={"cache_dir": str(disk / folder)})(x), fn(x), atol=1e-6)
        assert torch.allclose(intarsia.compile(fn, options={"cache_dir": str(disk / folder)})(x), fn(x), atol=1e-6)
counted = intarsia.counters()
assert counted["fallbacks"] == 0 and counted["compiler_calls"] == 2 and counted["cache_hits"] == 2, counted
texts = [text for text in told if "cache folder" in text]
assert len(texts) == 2 and all("No space left" in t and "Compiled code goes to" in t and len(t) < 300 for t in texts), texts
print("done")
"""


def in_a_small_disk(folder: Path, megabytes: float, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell command with a disk of its own at `folder`; skips the test where that is not allowed."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={int(megabytes * 1024)}k tmpfs {folder}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no disks can be mounted here")
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && {command}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.skipif(not Path("/usr/bin/unshare").exists(), reason="needs unshare")
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    program, disk = tmp_path / "program.py", tmp_path / "disk"
    program.write_text(FULL)
    done = in_a_small_disk(disk, 1, f"OMP_NUM_THREADS=1 {sys.executable} {program} {disk}")
    assert done.returncode == 0 and done.stdout == "done\n" and done.stderr == "", done.stderr
