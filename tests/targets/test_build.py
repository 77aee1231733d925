"""Compiling: results, diagnoses, missing and failing compilers, Ctrl-C."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from intarsia.targets.build import toolchain as build
from intarsia.targets.build.load import Library
from intarsia.targets.build.program import MOST_ARGUMENTS, bind_kernels, calls_source
from intarsia.targets.build.toolchain import (
    CompilerError,
    CompilerNotFound,
    Source,
    Toolchain,
    compile_sources,
    compiler_kind,
    cpu_identity,
    cpu_quota,
    find_toolchain,
    isa_flags,
    loaded_openmp,
    openmp_flags,
)
from intarsia.targets.torch_private import empty_strided_cpu

pytestmark = pytest.mark.usefixtures("product_compiler")

ADD_ONE = 'extern "C" void add_one(float* x, long n) {{ for (long i = 0; i < n; i++) x[i] += {0}; }}\n'
SUM = """\
#include "intarsia_math.h"
extern "C" void add(const int64_t* a, int64_t n, int64_t* out) {
  int64_t total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int64_t i = 0; i < n; i++) total += a[i];
  *out = total;
}
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "fake-g++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_several_files_in_order_with_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    sources = [Source(f"k{i}", ADD_ONE.format(i + 1)) for i in range(3)]
    paths = compile_sources(sources, find_toolchain(), tmp_path, jobs=2, progress=lambda *facts: seen.append(facts))
    assert [path.name for path in paths] == ["k0.so", "k1.so", "k2.so"]
    assert [facts[:2] for facts in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sorted(name for *_, name in seen) == ["", "k0", "k1", "k2"]
    x = torch.zeros(4)
    for path in paths:
        Library(path).function("add_one", 2, release_gil=False)(x.data_ptr(), 4)
    assert x.tolist() == [6.0] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k0.cpp", "k0.so", "k1.cpp", "k1.so", "k2.cpp", "k2.so"]


def test_kernels_use_the_openmp_runtime_of_torch(tmp_path: Path) -> None:
    [path] = compile_sources([Source("sum", SUM)], find_toolchain(), tmp_path)
    before = _openmp_runtimes()  # another package may have brought its own
    a, out = torch.arange(-5, 1000), torch.zeros(1, dtype=torch.int64)
    Library(path).function("add", 3)(a.data_ptr(), a.numel(), out.data_ptr())
    assert out.item() == a.sum().item()
    assert _openmp_runtimes() == before
    if before:
        assert str(loaded_openmp()) in before


def _openmp_runtimes() -> set[str]:
    maps = Path("/proc/self/maps")
    return set(re.findall(r"/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*", maps.read_text())) if maps.exists() else set()


def test_openmp_flags() -> None:
    assert openmp_flags("gcc", None) == (("-fopenmp",), ())
    assert openmp_flags("gcc", "/x/libgomp.so.1") == (("-fopenmp",), ())
    assert openmp_flags("gcc", "/x/libgomp-1a2b.so.1")[1][-1] == "/x/libgomp-1a2b.so.1"
    assert openmp_flags("clang", "/x/libgomp.so.1") == ((), ())
    assert openmp_flags("clang", "/x/libiomp5.so")[0] == ("-fopenmp",)
    assert openmp_flags("clang", "/x/libomp.dylib") == (("-Xclang", "-fopenmp"), ("/x/libomp.dylib", "-Wl,-rpath,/x"))
    assert loaded_openmp() is None or Path(str(loaded_openmp())).exists()
    assert isa_flags("gcc", "avx512")[-1] == "-mprefer-vector-width=512"


def test_diagnosis_keeps_the_source_file(tmp_path: Path) -> None:
    broken = 'extern "C" void f() {\n' + "  nonsense;\n" * 30 + "}\n"
    with pytest.raises(CompilerError) as caught:
        compile_sources([Source("good", ADD_ONE.format(1)), Source("bad", broken)], find_toolchain(), tmp_path, jobs=1)
    text = str(caught.value)
    assert caught.value.source == tmp_path / "bad.cpp" and str(tmp_path / "bad.cpp") in text.splitlines()[0]
    assert "nonsense" in text and len(text.splitlines()) <= 15
    assert caught.value.source.read_text() == broken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.cpp", "bad.sh", "good.cpp", "good.so"]
    again = subprocess.run(["sh", str(tmp_path / "bad.sh")], capture_output=True, text=True, check=False)
    assert again.returncode != 0 and "nonsense" in again.stderr


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerNotFound, match="no-such-compiler"):
        find_toolchain()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFound, match=r"g\+\+, clang\+\+, c\+\+"):
        find_toolchain()


def test_compiler_with_a_launcher_or_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = script(tmp_path, 'exec "$@"')
    monkeypatch.setenv("CXX", f"{launcher} {find_toolchain().compiler} -DVALUE=4")
    toolchain = find_toolchain()
    [path] = compile_sources([Source("k", ADD_ONE.format("VALUE"))], toolchain, tmp_path)
    x = torch.zeros(1)
    Library(path).function("add_one", 2)(x.data_ptr(), 1)
    assert x.item() == 4.0 and toolchain.version() != "unknown"


@pytest.mark.parametrize("body", ["echo oh no >&2; exit 3", "kill -9 $$", "exit 0"])
def test_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path, body)))
    with pytest.raises(CompilerError, match="x.cpp"):
        compile_sources([Source("x", ADD_ONE.format(1))], find_toolchain(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".sh"] == ["x.cpp"]


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(CompilerError, match=r"x\.cpp(.|\n)*cannot write"):
        compile_sources([Source("x", "")], find_toolchain(), tmp_path / "out")


def test_compiler_that_vanishes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = script(tmp_path, "exit 0")
    monkeypatch.setenv("CXX", str(compiler))
    toolchain = find_toolchain()
    compiler.unlink()
    with pytest.raises(CompilerError):
        compile_sources([Source("x", ADD_ONE.format(1))], toolchain, tmp_path / "out")


def test_ctrl_c_ends_the_compilers_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = script(
        tmp_path,
        '[ "$1" = --version ] && exit; [ "$1" = -print-prog-name=cc1plus ] && exit; echo $$ >> "$PIDS"; while [ "$1" != -o ]; do shift; done; echo half > "$2"; sleep 60',
    )
    program = (
        "import signal, sys; from pathlib import Path; from intarsia.targets.build.toolchain import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "try: compile_sources([Source(n, '') for n in 'abc'], find_toolchain(), Path(sys.argv[1]), jobs=2)\n"
        "except KeyboardInterrupt: sys.exit(42)\n"
    )
    pids = tmp_path / "pids"
    environment = {**os.environ, "CXX": str(compiler), "PIDS": str(pids)}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out")], env=environment)
    deadline = time.time() + 60
    while time.time() < deadline and len(list((tmp_path / "out").glob(".*.so"))) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 42
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.cpp", "b.cpp", "c.cpp"]
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_identity_follows_the_compiler_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = script(tmp_path, "exit 0")
    monkeypatch.setenv("CXX", str(compiler))
    toolchain = find_toolchain()
    before = toolchain.identity
    assert before == find_toolchain().identity
    compiler.write_text("#!/bin/sh\nexit 1\n")
    assert toolchain.identity != before
    assert cpu_identity() == cpu_identity()


def test_missing_function_names_the_library(tmp_path: Path) -> None:
    [path] = compile_sources([Source("k", ADD_ONE.format(1))], find_toolchain(), tmp_path)
    with pytest.raises(AttributeError, match=r"k\.so has no function 'nothing'"):
        Library(path).function("nothing", 1)


def test_arguments_are_whole_words(tmp_path: Path) -> None:
    """Through ctypes, and as functions of Python's own; those refuse what is no number, and another number of arguments."""
    arguments = ", ".join(f"long a{k}" for k in range(MOST_ARGUMENTS + 1))
    text = 'extern "C" int put(long* out, long a, long b) { out[0] = a; out[1] = b; return a == 7 ? 3 : 0; }\n'
    text += f'extern "C" int many({arguments}) {{ *(long*)a0 = a{MOST_ARGUMENTS}; return 0; }}\n'
    arities = {"put": 3, "many": MOST_ARGUMENTS + 1}
    text += calls_source(arities, ()) + calls_source(arities, ("put",))
    [path] = compile_sources([Source("k", text)], find_toolchain(), tmp_path)
    library = Library(path)
    quick, slow = bind_kernels(arities, [library], ["put"]), bind_kernels(arities, [library])
    out = torch.zeros(2, dtype=torch.int64)
    for put in (library.function("put", 3), quick["put"], slow["put"]):
        put(out.zero_().data_ptr(), -5, 2**62)
        assert out.tolist() == [-5, 2**62]
    for put in (quick["put"], slow["put"]):
        assert type(put) is types.BuiltinFunctionType
        assert put(out.data_ptr(), 7, 0) == 3 and put(out.data_ptr(), 0, 7) == 0
        for wrong in ((out.data_ptr(), 1), (out.data_ptr(), 1, 2, 3), (out.data_ptr(), 1.0, 2), (out, 1, 2)):
            with pytest.raises(TypeError):
                put(*wrong)
        with pytest.raises(OverflowError):
            put(out.data_ptr(), 2**64, 0)
    assert out.tolist() == [0, 7]
    slow["many"](out.data_ptr(), *range(MOST_ARGUMENTS))
    assert out.tolist() == [MOST_ARGUMENTS - 1, 7]


def test_allocation() -> None:
    x = empty_strided_cpu((2, 3), (1, 2), torch.bfloat16)
    assert x.shape == (2, 3) and x.stride() == (1, 2) and x.dtype is torch.bfloat16


OTHER: dict[str, object] = {
    "openmp": False,
    "flags": ("-O0",),
    "link_flags": ("-lm",),
    "words": ("-m32",),
    "compiler": Path("/bin/sh"),
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Toolchain)])
def test_identity_has_every_field(name: str) -> None:
    toolchain = find_toolchain()
    other = OTHER.get(name, (("CPATH", "/x"),) if name == "environment" else "other")
    assert dataclasses.replace(toolchain, **{name: other}).identity != toolchain.identity  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variable",
    [
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "COMPILER_PATH",
        "GCC_EXEC_PREFIX",
        "SDKROOT",
        "CCACHE_COMPILER",
    ],
)
def test_identity_has_the_variables_that_compilers_read(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    before = find_toolchain().identity
    monkeypatch.setenv(variable, "/x")
    assert find_toolchain().identity != before
    monkeypatch.setenv(variable, "/y")
    assert find_toolchain().identity != before
    monkeypatch.delenv(variable)
    assert find_toolchain().identity == before


@pytest.mark.parametrize("launcher", ["env {compiler}", "launcher {compiler}", "{masquerade}"])
def test_identity_has_the_compiler_behind_a_launcher(
    launcher: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`env g++`, `ccache g++`, and ccache installed under the name g++."""
    inner = tmp_path / "inner"
    inner.mkdir()
    compiler = script(inner, 'case "$1" in --version) echo g++ 12;; esac')
    wrapper = tmp_path / "launcher"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    masquerade = tmp_path / "g++"
    masquerade.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    for path in (wrapper, masquerade):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", launcher.format(compiler=compiler, masquerade=masquerade))
    before = find_toolchain()
    build._toolchain.cache_clear()
    assert find_toolchain().identity == before.identity and before.kind == "gcc"
    compiler.write_text('#!/bin/sh\ncase "$1" in --version) echo clang version 13;; esac\n')
    build._toolchain.cache_clear()
    after = find_toolchain()
    assert after.identity != before.identity and after.kind == "clang"
    part = tmp_path / "cc1plus"
    part.write_text("one")
    compiler.write_text(f'#!/bin/sh\ncase "$1" in --version) echo g++ 12;; *) echo {part};; esac\n')
    build._toolchain.cache_clear()
    first = find_toolchain().identity
    part.write_text("another of the same version")
    build._toolchain.cache_clear()
    assert find_toolchain().identity != first
    build._toolchain.cache_clear()


def test_the_kind_of_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apple = script(tmp_path, 'echo "Apple clang version 15.0.0 (clang-1500.3.9.4)"')
    assert compiler_kind(apple)[0] == "clang"
    program = tmp_path / "g++-12"
    program.write_bytes(b"\x7fELF")
    asked: list[str] = []
    monkeypatch.setattr(build, "_ask", lambda command, question: asked.append(question) or "Apple clang version 15")
    assert compiler_kind(program) == ("gcc", "") and not asked  # no process for a plain compiler
    monkeypatch.setattr(sys, "platform", "darwin")
    assert compiler_kind(program)[0] == "clang" and asked  # macOS installs clang under this name


def test_a_compiler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "ASK_SECONDS", 0.2)
    start = time.monotonic()
    assert compiler_kind(script(tmp_path, "sleep 60 & sleep 60")) == ("gcc", repr(("", None)))
    assert time.monotonic() - start < 20


def test_words_that_are_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(CompilerNotFound, match="CXX is no command"):
        find_toolchain()


def test_cores_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, system = tmp_path / "cgroup", tmp_path / "sys"
    (system / "a" / "b").mkdir(parents=True)
    process.write_text("0::/a/b\n")
    assert cpu_quota(system, process) == float("inf")
    cpu_quota.cache_clear()
    (system / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (system / "a" / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(system, process) == 1.5
    cpu_quota.cache_clear()
    (system / "cpu").mkdir()
    (system / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    (system / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    process.write_text("5:cpu,cpuacct:/docker/x\n1:name=systemd:/\n")
    assert cpu_quota(system, process) == 4.0
    cpu_quota.cache_clear()
    (system / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(system, process) == float("inf")
    cpu_quota.cache_clear()
    assert cpu_quota(system, tmp_path / "nothing") == float("inf")
    cpu_quota.cache_clear()
    for quota, expected in ((float("inf"), 64), (1.5, 2), (0.1, 1), (100.0, 64)):
        monkeypatch.setattr(build, "cpu_quota", lambda quota=quota: quota)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
        assert build.cores() == expected


def test_kernels_on_one_thread_are_told(tmp_path: Path, monkeypatch, caplog) -> None:
    compiler = script(tmp_path, 'echo "clang version 13"')
    monkeypatch.setattr(build, "loaded_openmp", lambda: "/x/libgomp.so.1")
    monkeypatch.setattr(logging.getLogger("intarsia"), "propagate", True)
    with caplog.at_level("WARNING", logger="intarsia"):
        assert not build._toolchain(str(compiler), "", True).openmp
    assert "kernels run on one thread" in caplog.text
    caplog.clear()
    monkeypatch.setattr(build, "loaded_openmp", lambda: "/x/libomp.so")
    build._toolchain.cache_clear()
    assert build._toolchain(str(compiler), "", True).openmp and not caplog.text
    build._toolchain.cache_clear()


FUSED = """\
#include "intarsia_matmul.h"
extern "C" void fused(float* a) { im::store(a, im::multiply_add(im::load(a), im::load(a), im::Floats{} - 1.0f)); }
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_products_and_sums_are_rounded_once(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every compiler, also one without a function for it, where the processor has the instruction."""
    if shutil.which(compiler) is None or build.detect_isa() == "plain":
        pytest.skip("no such compiler, or a processor without the instruction")
    monkeypatch.setenv("CXX", compiler)
    (path,) = compile_sources([Source("fused", FUSED)], find_toolchain(), tmp_path)
    a = torch.full((16,), 1 + 2**-12)
    Library(path).function("fused", 1)(a.data_ptr())
    assert a[0].item() == 2**-11 + 2**-24  # rounded twice it is 2^-11


def test_headers_can_be_read_by_gcc_9() -> None:
    """Its preprocessor has no `__has_builtin`, and no line with a call of it can be read, whatever stands in front."""
    for header in build.HEADER_DIR.glob("*.h"):
        lines = header.read_text().splitlines()
        for before, line in zip(lines, lines[1:], strict=False):
            asked = line.startswith("#if __has_builtin(") and before.startswith(
                ("#ifdef", "#if defined(__has_builtin)")
            )
            assert "__has_builtin(" not in line.replace("defined(__has_builtin)", "") or asked, f"{header.name}: {line}"
