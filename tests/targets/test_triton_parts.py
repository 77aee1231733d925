"""The parts of the GPU target that need no GPU: recordings' refusals, aligned copies, launch text, worker processes, Triton's version."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.ir.dialects import loop
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module
from intarsia.targets.build.toolchain import find_toolchain
from intarsia.targets.errors import MISALIGNED, TOO_LARGE, Misaligned, UnplannedResult
from intarsia.targets.host.ir import Function, HostProgram, Statement
from intarsia.targets.host.render import aligned as copying
from intarsia.targets.host.render import render
from intarsia.targets.host.source import HostSource
from intarsia.targets.recordings.recordable import LEAST, refusal
from intarsia.targets.run.gpu import aligned, moved, not_launched, on_gpu
from intarsia.targets.run.load import made
from intarsia.targets.triton import device, program
from intarsia.targets.triton.compile import KernelSource
from intarsia.targets.triton.device import NoTriton, gpu_of, triton_version
from intarsia.targets.triton.emit import PRELUDE, emit_module
from intarsia.targets.triton.launch import kernel_source, launchers
from intarsia.targets.triton.worker import TritonError, Workers
from tests.ladder import schedule
from tests.processes import is_gone

POINTWISE = """
builtin.module {
  prim.func @main() {arg_names = ["x"], symbols = [["s0", 0, 0, 0, none]]} ({
  ^bb0(%x: !prim.tensor<[s0, SIZE], f32>):
    %y = kernel.fused(%x) ({
    ^bb0(%a: !prim.tensor<[s0, SIZE], f32>):
      %e = prim.exp(%a) : !prim.tensor<[s0, SIZE], f32>
      kernel.yield(%e)
    }) : !prim.tensor<[s0, SIZE], f32>
    prim.return(%y)
  })
}
"""


def kernel(size: int) -> loop.Kernel:
    """exp of a matrix with a symbolic number of rows."""
    module = parse_module(POINTWISE.replace("SIZE", str(size)))
    retarget(module, "cuda:0")
    schedule(module)
    (found,) = [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]
    return found


# ---- recordings ----


def test_a_program_is_recorded() -> None:
    assert refusal(LEAST, ["aten.mm.default", "aten.randint.low"]) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": LEAST - 1}, "fewer than"),
        ({"cpu": "an argument is on the CPU"}, "on the CPU"),
        ({"operators": ["aten.mm.default", "aten.multinomial.default"]}, "aten.multinomial.default looks at values"),
    ],
)
def test_a_program_is_not_recorded(change: dict[str, object], words: str) -> None:
    assert words in refusal(**({"steps": LEAST, "operators": []} | change))  # type: ignore[arg-type]


# ---- addresses ----


def test_an_aligned_tensor_is_read_where_it_is() -> None:
    copies: list[torch.Tensor] = []
    x = torch.randn(8)
    assert x.data_ptr() % 16 == 0 and aligned(x, copies) == x.data_ptr() and not copies


@pytest.mark.parametrize("view", ["part", "transposed", "strided", "expanded", "scalar"])
def test_another_is_copied_with_its_strides(view: str) -> None:
    base = torch.randn(200)[1:]
    x = {
        "part": base[:20],
        "transposed": base[:20].view(4, 5).t(),
        "strided": base[::3][:7],
        "expanded": base[:5].expand(3, 5),
        "scalar": base[0],
    }[view]
    assert x.data_ptr() % 16
    copies: list[torch.Tensor] = []
    address = aligned(x, copies)
    (copy,) = copies
    assert address % 16 == 0 and address == copy.data_ptr() != x.data_ptr()
    torch.testing.assert_close(copy.as_strided(x.shape, x.stride()), x, rtol=0, atol=0)


def test_a_tensor_without_elements_is_not_copied() -> None:
    copies: list[torch.Tensor] = []
    x = torch.randn(10)[1:1]
    assert aligned(x, copies) == x.data_ptr() and not copies


def _view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = x @ x
    return product.as_strided((3, 3), (3, 1), 1).exp(), product


def test_a_view_is_read_where_it_begins() -> None:
    """Its kernel is compiled for any address, and the launch asks for the others only."""
    lowered = intarsia.lower(_view, torch.randn(4, 4), target="triton:sm_90")
    assert "unaligned = [0]" in lowered.ir() and f"if ((out0) & 15) return {MISALIGNED};" in lowered.source()
    assert "unaligned" not in intarsia.lower(torch.exp, torch.randn(4, 4), target="triton:sm_90").ir()


def test_gaps_are_read() -> None:
    """A gap of less than 16 bytes behind a row is read with it, in one piece; what a longer one has is not."""
    x = torch.randn(64, 1008).bfloat16()

    def masks(size: int) -> list[str]:
        text = intarsia.lower(lambda x: F.pad(x[:, :size].exp(), (0, 1008 - size)), x, target="triton:sm_90").triton()
        return [line for line in text.splitlines() if "tl.load" in line and f"< {size}" in line]

    assert [bool(masks(size)) for size in (1001, 1000, 990)] == [False, True, True]


def test_the_last_block_of_a_long_row() -> None:
    """A mask that ends within what a thread loads at once stands in front of the last block alone."""

    def masked(size: int) -> list[bool]:
        x = torch.randn(64, 50264).bfloat16()
        text = intarsia.lower(lambda x: x[:, :size].float().logsumexp(1), x, target="triton:sm_90").triton()
        return ["mask=" in line for line in text.splitlines() if "tl.load" in line]

    assert masked(50257) == [False, True] * 2 and masked(50240) == [True] * 2 and masked(49152) == [False] * 2


def _written_early(x: torch.Tensor) -> torch.Tensor:
    parts = torch.block_diag(x - 1, x - 1)
    x.mul_(2)
    return parts.as_strided((1, 1), (1, 1), 1).view(torch.uint8) & 7


def test_nothing_begins_again_where_an_argument_was_written_to() -> None:
    """A library's result that is not aligned is moved, and a launch that refuses an address raises for good."""
    host = intarsia.lower(_written_early, torch.arange(7), target="triton:sm_90").host()
    moves = re.findall(r"if (t\d)\.data_ptr\(\) & 15: \1 = moved\(\1\)", host)
    assert len(moves) >= 1 and all(line.endswith(", True)") for line in host.splitlines() if "if code :=" in line)
    with pytest.raises(RuntimeError, match="may have been written to"):
        not_launched(MISALIGNED, "exp", True)
    x = torch.arange(9)[1:]
    assert torch.equal(moved(x), x) and moved(x).data_ptr() % 16 == 0 and moved(x[::3]).stride() == (3,)


def test_minus_one_is_the_last_to_index_fill_alone() -> None:
    """Eager's kernels on a GPU end the process for what they do not take, and so do ours."""
    index = torch.tensor([-1])
    text = intarsia.lower(lambda x: x.index_fill(0, index, 2.0), torch.randn(4, 3), target="triton:sm_90").triton()
    assert ", t0 + 4, t0)" in text
    text = intarsia.lower(lambda x: x.index_copy(0, index, x[:1]), torch.randn(4, 3), target="triton:sm_90").triton()
    assert "t0 + 4" not in text


def test_numbers_become_narrow_as_eagers_do() -> None:
    """Eager takes a wider integer between: -1.0 is 255 in uint8, and not 0."""
    dtypes = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)
    text = intarsia.lower(lambda x: [x.to(d) for d in dtypes], torch.randn(64), target="triton:sm_90").triton()
    found = re.findall(r"= t1((?:\.to\(tl\.\w+\))+)", text)
    wanted = ["int64).to(tl.uint8", "int32).to(tl.int8", "int32).to(tl.int16", "uint32).to(tl.uint16", "int32", "int64"]
    assert found == [f".to(tl.{way})" for way in wanted]


# ---- launches ----


def test_launch_text() -> None:
    made = kernel(5)
    name, text = made["sym_name"], launchers([made])
    assert f'extern "C" int {name}(uint64_t in0, uint64_t out0, int64_t s0, void* stream) {{' in text
    assert f"if ((in0 | out0) & 15) return {MISALIGNED};" in text
    assert "if (programs <= 0) return 0;" in text
    assert f"> INT32_MAX) return {TOO_LARGE};" in text
    assert "int32_t s0_ = s0;" in text


def test_many_elements_are_counted_in_64_bits() -> None:
    made = kernel(2**31)  # a row alone is more than 32 bits
    assert kernel_source(made).signature["s0"] in ("i32", "i64")
    static = POINTWISE.replace("s0, SIZE", "3, 2147483648").replace('[["s0", 0, 0, 0, none]]', "[]")
    module = parse_module(static)
    retarget(module, "cuda:0")
    schedule(module)
    (large,) = [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]
    assert "tl.program_id(0).to(tl.int64)" in emit_module([large])


def test_launch_text_compiles(tmp_path: Path) -> None:
    tools = find_toolchain()
    path, headers = tmp_path / "launches.cpp", Path(device.__file__).parents[1] / "cpp" / "include"
    path.write_text(launchers([kernel(5), kernel(16)]))
    command = [tools.compiler, "-std=c++17", "-fsyntax-only", "-Wall", f"-I{headers}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_last_block_has_a_text_of_its_own() -> None:
    """Its mask would end within what a thread loads at once; all others have none."""
    text = emit_module([kernel(5)])
    first, rest = text.split("if program * 1024 + 1024 <= 5 * s0:")[1].split("else:")
    assert "mask=" not in first and "tl.store(" in first and rest.count("mask=") == 2


ROWS = """
builtin.module {
  prim.func @main() {arg_names = ["x"], symbols = [["s0", 0, 1, 0, none]]} ({
  ^bb0(%x: !prim.tensor<[64, s0], f32>):
    %y = kernel.fused(%x) ({
    ^bb0(%a: !prim.tensor<[64, s0], f32>):
      %s = prim.reduce<sum>(%a) {dims = [1]} : !prim.tensor<[64], f32>
      kernel.yield(%s)
    }) : !prim.tensor<[64], f32>
    prim.return(%y)
  })
}
"""


def test_sizes_that_are_multiples_of_16_are_seen() -> None:
    module = parse_module(ROWS)
    retarget(module, "cuda:0")
    schedule(module)
    text = emit_module([op for op in module.body.block.ops if isinstance(op, loop.Kernel)])
    assert "if s0 % 16 == 0:" in text and "s0 // 16 * 16)" in text


def test_what_a_launch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "driver", lambda: SimpleNamespace(words=lambda code: f"words for {code}"))
    with pytest.raises(Misaligned):
        not_launched(MISALIGNED, "exp")
    with pytest.raises(UnplannedResult, match="the kernel exp is given more elements than 32 bits can count"):
        not_launched(TOO_LARGE, "exp")
    with pytest.raises(RuntimeError, match="does not launch the kernel exp: words for 700 .error 700"):
        not_launched(700, "exp")


LINES = (
    Statement("%(started)s.append(%(launch)s(%(a0.data_ptr())s))"),
    Statement("%(v0)s = %(a0)s[1:]", ("v0",)),
    Statement("%(started)s.append(%(launch)s(%(v0.data_ptr())s))"),
)
PROGRAM = HostProgram((), (Function("run", ("a0", "a1"), LINES, "(%(a0)s,)"),))


def on_a_gpu(started: list[int], takes: int) -> object:
    """The run of a program whose kernels take addresses that are multiples of so many bytes."""

    def launch(address: int) -> int:
        if address % takes:
            raise Misaligned("exp")
        return address

    names = {"started": started, "launch": launch, "aligned": aligned}

    def make(program: HostProgram, copied: bool) -> Callable[..., Any]:
        text = copying(program) if copied else render(program)
        return made(compile(text, "a test", "exec"), program, dict(names))

    return on_gpu(HostSource(PROGRAM, {}, gpu=0), PROGRAM, make, "a test")()


def test_views_that_are_not_aligned_are_copied() -> None:
    started: list[int] = []
    x = torch.randn(8)
    on_a_gpu(started, 16)(x, x)  # type: ignore[operator]
    assert started[:2] == [x.data_ptr(), x.data_ptr()] and len(started) == 3 and started[2] != x[1:].data_ptr()


def test_what_is_not_aligned_even_so_runs_in_eager() -> None:
    with pytest.raises(UnplannedResult, match="what the kernel exp reads is not a multiple of 16 bytes"):
        on_a_gpu([], 1 << 40)(torch.randn(8), torch.randn(8))  # type: ignore[operator]


# ---- workers ----


@pytest.fixture
def workers() -> Iterator[Workers]:
    pytest.importorskip("triton", reason="kernels for a GPU need Triton")
    made = Workers(1)
    yield made
    made.end()


def good(tmp_path: Path) -> tuple[Path, KernelSource]:
    made, path = kernel(5), tmp_path / "kernels.py"
    path.write_text(emit_module([made]))
    return path, kernel_source(made)


def test_a_kernel_that_does_not_compile_is_named(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(path.read_text().replace("tl.exp(", "tl.expo("))
    with pytest.raises(TritonError, match="expo") as raised:
        workers.compile(wrong, [source], "sm_90", tmp_path)
    assert raised.value.kernel == source.name
    assert len(str(raised.value).splitlines()) <= 15
    (binary,) = workers.compile(path, [source], "sm_90", tmp_path)  # by the same worker
    assert len(workers.alive) == 1 and binary.name == source.name and binary.code.startswith(b"\x7fELF")


def test_a_module_that_cannot_be_loaded(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    path.write_text(PRELUDE + "\nraise ValueError('spoiled')\n")
    with pytest.raises(TritonError, match="spoiled"):
        workers.compile(path, [source], "sm_90", tmp_path)


def test_a_dead_worker_is_replaced(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    workers.start(1)
    worker = workers.idle.get()
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait(30)
    workers.idle.put(worker)
    (binary,) = workers.compile(path, [source], "sm_90", tmp_path)
    assert binary.name == source.name and len(workers.alive) == 1


def test_a_worker_that_dies_over_a_kernel_is_an_error(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(TritonError, match="ended with -9"):
        workers.compile(wrong, [source], "sm_90", tmp_path)
    (binary,) = workers.compile(path, [source], "sm_90", tmp_path)
    assert binary.name == source.name and len(workers.alive) == 1


def test_a_kernel_that_takes_too_long_is_ended(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = good(tmp_path)
    wrong, pid = tmp_path / "wrong.py", tmp_path / "pid"
    wrong.write_text(
        "import pathlib, subprocess, time\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '60']).pid))\ntime.sleep(60)\n"
    )
    monkeypatch.setattr("intarsia.targets.triton.worker.KERNEL_SECONDS", 3.0)
    with pytest.raises(TritonError, match="longer than 3 seconds"):
        workers.compile(wrong, [source], "sm_90", tmp_path)
    assert is_gone(int(pid.read_text()))  # what it had started, too
    monkeypatch.undo()
    assert workers.compile(path, [source], "sm_90", tmp_path)


def test_what_a_kernel_prints_is_no_answer(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    path.write_text(path.read_text() + "\nimport os\nos.write(1, b'{\"symbol\": 3}\\n')\nprint('{}')\n")
    (binary,) = workers.compile(path, [source], "sm_90", tmp_path)
    assert binary.name == source.name


def test_a_forked_process_leaves_the_workers_alone(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    workers.start(1)
    child = os.fork()
    if child == 0:
        workers.forget()
        os._exit(0 if not workers.alive and workers.idle.empty() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert workers.compile(path, [source], "sm_90", tmp_path) and len(workers.alive) == 1


def test_a_worker_ends_with_its_input(workers: Workers) -> None:
    workers.start(1)
    worker = workers.idle.get()
    assert worker.process.stdin is not None and worker.process.poll() is None
    worker.process.stdin.close()
    assert worker.process.wait(60) == 0


def test_a_worker_imports_no_torch(workers: Workers, tmp_path: Path) -> None:
    path, source = good(tmp_path)
    path.write_text(path.read_text() + "\nimport sys\nassert 'torch' not in sys.modules\n")
    assert workers.compile(path, [source], "sm_90", tmp_path)


# ---- versions and devices ----


def version(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def read(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", read)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, r"need Triton 3.6 or later, which is not installed: pip install .*\[triton\]"),
        ("3.5.1", "need Triton 3.6 or later, found 3.5.1"),
    ],
)
def test_a_version_that_will_not_do(monkeypatch: pytest.MonkeyPatch, found: str | None, words: str) -> None:
    version(monkeypatch, found)
    with pytest.raises(NoTriton, match=words):
        triton_version.__wrapped__()


@pytest.mark.parametrize("found", ["3.6.0", "3.10.1", "4.0.0+git1234"])
def test_a_version_that_will_do(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    version(monkeypatch, found)
    assert triton_version.__wrapped__() == found


def test_the_gpu_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "triton_version", lambda: "3.6.0")
    module = parse_module(POINTWISE.replace("SIZE", "5"))
    assert gpu_of(module) is None
    retarget(module, "cuda:1")
    assert gpu_of(module) == 1


def test_a_launch_of_many_parts_compiles() -> None:
    """Triton does not simplify a chain of thirty branches, inside of a branch, before it gives up."""

    def many(small: list[torch.Tensor], large: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x.softmax(0) for x in small] + [x.log_softmax(0) for x in large]

    low = intarsia.lower(
        many, [torch.ones(8) for _ in range(30)], [torch.ones(9) for _ in range(30)], target="triton:sm_90"
    )
    (kernel,) = low.compile().binaries.values()
    assert "_60x_" in kernel.name and "elif" not in low.triton()
