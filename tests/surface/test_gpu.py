"""What a user sees of the GPU target, on machines without a GPU: `lower` for GPUs, reports, and what is said when something is missing."""

import importlib.metadata
import importlib.util
import io
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch._subclasses.fake_tensor import FakeTensorMode

import intarsia
from intarsia import graph_compiler
from intarsia.config import Config
from intarsia.explaining.explanation import _code, _kernels, _recording
from intarsia.explaining.kernel_facts import kernel_facts
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.retarget import retarget
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline, is_for_gpu
from intarsia.targets.build.program import Program, generate
from intarsia.targets.errors import MISALIGNED, TOO_LARGE, Misaligned
from intarsia.targets.host.kernels import SeveralGPUs
from intarsia.targets.host.library import Library
from intarsia.targets.recordings.graphs import STATISTICS, Recorded
from intarsia.targets.recordings.pieces import Divided
from intarsia.targets.run.gpu import not_launched
from intarsia.targets.run.load import load_program
from intarsia.targets.triton import device
from intarsia.targets.triton.device import NoTriton, triton_version
from intarsia.targets.triton.launch import DriverError
from intarsia.targets.triton.worker import TritonError
from intarsia.tools.doctor import _gpu_kernel, doctor

X = torch.randn(64, 96)
TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


def norm(x):
    y = F.gelu(x)
    return F.layer_norm(y, (96,))


NORM = norm.__code__.co_firstlineno


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where reproducers go
    triton_version.cache_clear()
    intarsia.reset()
    with torch.no_grad():
        yield
    triton_version.cache_clear()


# ---- lower ----


@TRITON
@pytest.mark.parametrize(("gpu", "magic"), [("sm_80", b"\x7fELF"), ("sm_90", b"\x7fELF"), ("gfx942", b"\x7fELF")])
def test_lower_compiles_for_a_gpu_that_is_not_there(gpu, magic):
    low = intarsia.lower(norm, X, target=f"triton:{gpu}")
    assert low.target == f"triton:{gpu}" and '"cuda:0"' in low.ir("aten")
    made = low.compile()
    assert len(made.binaries) == 1 and made.target == gpu
    for name, binary in made.binaries.items():
        assert binary.code.startswith(magic) and binary.warps > 0 and f"def {name}(" in low.triton()
        assert f"{name}: {len(binary.code)} bytes of code" in made.report


def test_lower_shows_the_triton_text():
    low = intarsia.lower(norm, X, target="triton:sm_90")
    text = low.as_text("triton")
    assert "@triton.jit" in text and "tl.load(" in text and f"# from {__file__}:{NORM + 1}" in text
    assert "empty_strided_gpu" in low.as_text("host") and "gelu" in low.as_text("fx")
    assert low.as_text("kernel") == low.ir("kernel") and "intarsia_gpu" in low.as_text("cpp")
    with pytest.raises(ValueError, match="unknown stage 'tritn'; did you mean 'triton'"):
        low.as_text("tritn")
    assert intarsia.lower(norm, X).triton() == ""


@TRITON
def test_lower_takes_graphs_without_kernels():
    low = intarsia.lower(lambda x: x @ x.T, X, target="triton:sm_90")
    assert low.triton() == "" and low.compile().binaries == {}


def test_calls_that_only_cpus_have():
    lstm = torch.nn.LSTM(8, 16, batch_first=True)
    with pytest.raises(ValueError, match="mkldnn_rnn_layer.* exists on CPUs only"):
        intarsia.lower(lstm, torch.randn(2, 5, 8), target="triton:sm_90")


@TRITON
@NO_GPU
def test_what_is_compiled_for_another_gpu_does_not_run():
    made = intarsia.lower(norm, X, target="triton:sm_90").compile()
    with pytest.raises(RuntimeError, match="compiled for sm_90, and this machine has no GPU"):
        made(X)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("triton:sm90", "did you mean 'triton:sm_90'"),
        ("sm_90", "did you mean 'triton:sm_90'"),
        ("tritn", "did you mean 'triton'"),
        ("vulkan", "unknown target 'vulkan'; known: cpp, triton, triton:sm_"),
    ],
)
def test_unknown_targets(target, message):
    with pytest.raises(ValueError, match=message):
        intarsia.lower(norm, X, target=target)


@NO_GPU
def test_the_gpu_of_this_machine_is_missing():
    with pytest.raises(ValueError, match="GPU of this machine, which has none"):
        intarsia.lower(norm, X, target="triton")


def test_a_target_that_is_no_string_is_the_functions():
    def loss(x, target):
        return F.cross_entropy(x, target)

    assert intarsia.lower(loss, X, target=torch.arange(64)).target == "cpp"


# ---- what is missing or fails ----


def as_if_on_a_gpu(monkeypatch):
    """Graphs are captured with tensors on the CPU, and compiled as those of a GPU."""

    def imported(functional):
        found = import_fx(functional)
        retarget(found.module, "cuda:0")
        return found

    monkeypatch.setattr(graph_compiler, "import_fx", imported)
    monkeypatch.setattr(graph_compiler, "capability", lambda gpu: "sm_90")


def runs_in_eager(caplog):
    """Compiles `norm`, which runs in eager, and gives the one warning."""
    with caplog.at_level(logging.WARNING, "intarsia"):
        fast = intarsia.compile(norm)
        for _ in range(2):
            torch.testing.assert_close(fast(X), norm(X))
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "intarsia"]
    assert "this graph runs in eager: " in warning and warning.count(__file__) >= 1 and len(warning.splitlines()) <= 15
    assert intarsia.counters()["fallbacks"] == 1
    assert any("Triton" in f.reason or "driver" in f.reason for f in intarsia.explain(fast)(X).fallbacks)
    return warning


def installed(monkeypatch, versions):
    """As if these distributions were installed."""

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(device.importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, "need Triton 3.6 or later, which is not installed: pip install 'intarsia[triton]'"),
        ({"triton": "3.5.1"}, "need Triton 3.6 or later, found 3.5.1: pip install -U triton"),
        ({"pytorch-triton": "2.2.0+gitabc"}, "found 2.2.0+gitabc"),
    ],
)
def test_triton_missing_or_too_old(monkeypatch, caplog, versions, message):
    as_if_on_a_gpu(monkeypatch)
    installed(monkeypatch, versions)
    assert message in runs_in_eager(caplog)
    with pytest.raises(NoTriton):
        intarsia.lower(norm, X, target="triton:sm_90").compile()


@pytest.mark.parametrize("version", ["3.6.0", "3.10.0", "4.0", "3.6.0+git5"])
def test_versions_that_will_do(monkeypatch, version):
    installed(monkeypatch, {"triton-rocm": version})
    assert triton_version() == version


@TRITON
def test_a_kernel_that_does_not_compile(monkeypatch, caplog, tmp_path):
    as_if_on_a_gpu(monkeypatch)
    real = graph_compiler.generate

    def spoiled(module, library):
        made = real(module, library)
        return replace(made, gpu=replace(made.gpu, text=made.gpu.text.replace("tl.load(", "tl.lode(")))

    monkeypatch.setattr(graph_compiler, "generate", spoiled)
    warning = runs_in_eager(caplog)
    first, *rest = warning.splitlines()
    (name,) = re.findall(r"^def (\w+)", intarsia.lower(norm, X, target="triton:sm_90").triton(), re.MULTILINE)
    assert f"{__file__}:{NORM + 1}, {__file__}:{NORM + 2}: Triton does not compile the kernel {name} for sm_90" in first
    assert any("has no attribute 'lode'" in line for line in rest)
    module = Path(rest[-2].partition(": ")[2])
    assert module.parent.parent == tmp_path and "tl.lode(" in module.read_text()
    program = rest[-1].partition("python ")[2]
    path = Path(intarsia.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(path)}
    )
    assert done.returncode and "lode" in done.stderr
    with pytest.raises(TritonError, match="does not compile the kernel"):
        intarsia.compile(norm, options={"on_error": "raise"})(X + 1)


@TRITON
def test_a_driver_that_does_not_load(monkeypatch, caplog):
    as_if_on_a_gpu(monkeypatch)

    def refuse(entry, launches, gpu):
        raise DriverError("the CUDA driver does not load the kernel k: device kernel image is invalid (error 200)")

    monkeypatch.setattr("intarsia.targets.build.program.load_binaries", refuse)
    warning = runs_in_eager(caplog)
    assert "device kernel image is invalid" in warning and "report it" not in warning


@TRITON
@pytest.mark.parametrize("error", [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")])
@pytest.mark.parametrize("gradients", [False, True])
def test_out_of_memory_is_the_programs_own(monkeypatch, error, gradients):
    as_if_on_a_gpu(monkeypatch)

    def refuse(entry, launches, gpu):
        raise error

    monkeypatch.setattr("intarsia.targets.build.program.load_binaries", refuse)
    fast = intarsia.compile(norm)
    x = X.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        for _ in range(2):  # and nothing stays broken
            with pytest.raises(type(error), match=str(error)):
                fast(x)
        monkeypatch.undo()
        intarsia.reset()
        torch.testing.assert_close(fast(x), norm(x))


def test_sizes_that_a_kernel_cannot_count(caplog):
    """A launch that is given more than 32 bits can count sends its graph to eager, also where no library is called."""
    found = report(norm, X).program
    assert not found.generated.host.operators

    def run(x):
        not_launched(TOO_LARGE, "k")

    graph = torch.fx.symbolic_trace(norm)
    call = graph_compiler._checked(run, found, graph, Config())
    with caplog.at_level(logging.WARNING, "intarsia"):
        for _ in range(2):
            torch.testing.assert_close(call(X)[0], norm(X))
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "intarsia"]
    assert "the kernel k is given more elements than 32 bits can count" in warning


def test_a_launch_that_the_driver_refuses(monkeypatch):
    class Words:
        def words(self, code):
            return {700: "an illegal memory access was encountered"}[code]

    monkeypatch.setattr("intarsia.targets.triton.program.driver", Words)
    with pytest.raises(
        RuntimeError, match=r"does not launch the kernel k: an illegal memory access was .*\(error 700\)"
    ):
        not_launched(700, "k")
    with pytest.raises(Misaligned):
        not_launched(MISALIGNED, "k")


def test_constants_are_made_on_the_programs_gpu(monkeypatch):
    """Memory is made on the current GPU: what computes the constants of a program makes the program's GPU the current one."""
    monkeypatch.setenv("INTARSIA_RANDOM", "eager")  # a library's dropout, whose probability is a constant
    low = intarsia.lower(lambda x: F.dropout(x + 1, 0.5), X, target="triton:sm_90")
    host = low._generated.host
    assert "def make_constants" in host.text and host.make_constants is not None
    seen = []

    def on_gpu(source, program, make, *_):
        seen.append((source.gpu, program.name))
        return make(program, False)

    monkeypatch.setattr("intarsia.targets.run.load.on_gpu", on_gpu)
    kernels = dict.fromkeys(host.kernels, lambda *args: 0)
    load_program(host, kernels, replace(Library(-1), fingerprint=lambda *args: 0), "test")
    assert seen == [(0, "make"), (0, "make_constants")]


# ---- several devices in one graph ----


def compiled(fn, *specs):
    """The text of a graph whose arguments have these shapes and devices."""
    with FakeTensorMode():
        args = [torch.empty(shape, device=where) for shape, where in specs]
    graph = torch.fx.Graph()  # of one node: what the function does is seen when it is traced
    made = graph.call_function(fn, tuple(graph.placeholder(f"x{i}") for i in range(len(args))))
    made.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    fn()'
    graph.output([made])
    module = import_fx(functionalize(torch.fx.GraphModule(torch.nn.Module(), graph), args)).module
    run_pipeline(CompileContext(Machine()), module, default_pipeline(gpu=is_for_gpu(module)))
    return generate(module, Library(-1))


def test_scalars_on_the_cpu_beside_tensors_on_a_gpu():
    """No kernel of a GPU is given memory of the CPU: what mixes devices is torch's own call."""
    made = compiled(lambda x, s: torch.exp(x * (s + 1).exp()) + 1, ((8,), "cuda:0"), ((), "cpu"))
    assert "aten_mul_Tensor(a0, " in made.host.text and made.host.not_recorded
    (name,) = re.findall(r"^def (\w+)", made.gpu.text, re.MULTILINE)
    assert name in made.host.kernels and any("kernels0" in unit.name for unit in made.units)
    facts = kernel_facts(made.ir) if made.ir else {}
    assert all(f.device == "cuda:0" for n, f in facts.items() if n == name)
    text = compiled(lambda x, s: x * s, ((8,), "cuda:0"), ((), "cpu")).host.text
    assert "aten_mul_Tensor(a0, a1)" in text


def test_copies_between_devices():
    made = compiled(lambda x, y: (x.exp() + 1).cpu() + y, ((8,), "cuda:0"), ((8,), "cpu"))
    assert "aten__to_copy(" in made.host.text and made.host.gpu == 0
    assert made.host.not_recorded in ("an argument is on the CPU", "fewer than 4 kernels")


def test_numbers_that_the_program_writes_are_made_on_the_gpu():
    def fn(x):
        y = x.clone()
        y.select(0, 1).fill_(torch.tensor(3.0))
        y = torch.where(y > 0, y, torch.tensor(-1.0)).masked_fill(x > 1, torch.tensor(5.0))
        return y * torch.ops.aten._to_copy.default(torch.full((), 2.0), device=x.device)

    made = compiled(fn, ((8,), "cuda:0"))
    assert made.host.not_recorded == "fewer than 4 kernels"
    assert not made.host.operators and "cpu" not in made.host.text


def test_a_program_that_is_not_recorded_says_where_it_needs_the_cpu():
    made = compiled(
        lambda x, s: [x.exp().sum(0).exp().sum(0) * (s + k).exp() for k in range(4)], ((8, 8), "cuda:0"), ((), "cpu")
    )
    assert re.fullmatch(r"add_exp_\w+ has a value on the CPU \(model.py:7\)", made.host.not_recorded)


def test_several_gpus():
    for fn in (lambda x, y: (x + 1, y + 1), lambda x, y: (x.exp() + 1).to("cuda:1") + y):
        with pytest.raises(SeveralGPUs, match="on the GPUs 0, 1 is not compiled"):
            compiled(fn, ((8,), "cuda:0"), ((8,), "cuda:1"))
    second = compiled(lambda x: x.exp() + 1, ((8,), "cuda:1"))
    assert second.host.gpu == 1 and "current_stream(1)" in second.host.text


# ---- reports ----


def report(fn, *args, recorded=()):
    low = intarsia.lower(fn, *args, target="triton:sm_90")
    generated = replace(low._generated, ir=low.ir())
    return graph_compiler.Report(Program(lambda *a: (), generated, recorded=list(recorded)))


def test_facts_of_kernels():
    (kernel,) = _kernels(report(norm, X), {})
    assert [line.rpartition(":")[2] for line in kernel.lines] == [str(NORM + 1), str(NORM + 2)]
    facts = kernel.facts
    assert (facts.device, facts.grid) == ("cuda:0", 64) and facts.warps >= 1
    assert (facts.read, facts.written) == (X.nbytes, X.nbytes)


CASES = {
    "rows of a table": (
        lambda t, i: t[i] + 1,
        (torch.randn(1000, 64), torch.arange(32)),
        32 * 64 * 4 + 32 * 8,
        32 * 64 * 4,
    ),
    "expanded": (lambda x, b: x + b, (X, torch.randn(96)), X.nbytes + 96 * 4, X.nbytes),
    "a sum in chunks": (lambda x: x.sum(), (torch.randn(2048, 1024),), 2048 * 1024 * 4, 4),
    "neighbours": (lambda x: x[:, :-1] + x[:, 1:], (X,), X.nbytes, 64 * 95 * 4),
    "half of it": (lambda x: x[:, :48] * 2, (X,), X.nbytes // 2, X.nbytes // 2),
}


@pytest.mark.parametrize("target", ["cpp", "triton:sm_90"])
@pytest.mark.parametrize("case", CASES)
def test_bytes_to_move(case, target):
    fn, args, read, written = CASES[case]
    found = list(kernel_facts(intarsia.lower(fn, *args, target=target).ir()).values())
    assert found[0].read == read and found[-1].written == written
    assert all((f.grid is None) == (target == "cpp") for f in found)


def test_bytes_that_depend_on_sizes():
    x = torch.randn(64, 96)
    intarsia.mark_dynamic(x, 0)
    (facts,) = kernel_facts(intarsia.lower(norm, x, target="triton:sm_90").ir()).values()
    (rows,) = facts.read.free_symbols
    assert facts.read == facts.written == 96 * 4 * rows and facts.grid.free_symbols == {rows}


def test_explain_on_the_cpu_tells_bytes_too():
    explanation = intarsia.explain(norm)(X)
    assert "24 KiB read, 24 KiB written" in str(explanation) and "CUDA graph" not in str(explanation)
    assert {"host.py", "kernels0.cpp"} <= explanation.graphs[0].code.keys()


def test_why_a_program_is_not_recorded():
    assert _recording(report(norm, X)) == "not recorded: fewer than 4 kernels"

    def many(x):
        for _ in range(3):
            x = (x + 1) @ x.T @ x
        return x + 1

    assert _recording(report(many, X)) == "not recorded: cuda_graphs is off"
    part = Recorded(lambda *a: (), ["tensor"], [], 0)
    assert _recording(report(many, X, recorded=[part])) == "will be recorded after 2 calls"
    part.made, part.replays = {1: None, 2: None}, 5
    assert _recording(report(many, X, recorded=[part])) == "2 recordings, 5 replays"
    part.pieces = SimpleNamespace(recorded=3)
    assert _recording(report(many, X, recorded=[part])) == (
        "2 recordings, 5 replays; 3 parts recorded that are the same for all sizes"
    )
    part.pieces, part.divided, part.endings = None, Divided(lambda: (), 1, [0]), 1
    assert _recording(report(many, X, recorded=[part])) == (
        "2 recordings, 5 replays; large results are not copied: 1 step of the program runs after the recording"
    )
    part._refuse("65 MiB of arguments and results would be copied in each call")
    assert "65 MiB of arguments" in _recording(report(many, X, recorded=[part]))
    code = _code(report(many, X))
    assert "@triton.jit" in code["kernels.py"] and "def make" in code["host.py"]


def test_counters_of_recordings():
    found = intarsia.counters()
    assert found["recordings"] == found["replays"] == found["recorded_bytes"] == 0
    STATISTICS.recordings, STATISTICS.replays = 2, 7
    assert (intarsia.counters()["recordings"], intarsia.counters()["replays"]) == (2, 7)
    intarsia.reset()
    assert intarsia.counters()["replays"] == 0


@TRITON
def test_debug_folder_and_log_of_code(monkeypatch, tmp_path, caplog):
    as_if_on_a_gpu(monkeypatch)
    intarsia.set_logs("code")
    try:
        with caplog.at_level(logging.INFO, "intarsia.code"):
            intarsia.compile(norm, options={"debug": str(tmp_path / "debug")})(X)
    finally:
        intarsia.set_logs()
    (text,) = [path.read_text() for path in (tmp_path / "debug").glob("run*/*/kernels.py")]
    assert "@triton.jit" in text
    told = [r.getMessage() for r in caplog.records if r.name == "intarsia.code"]
    assert any("@triton.jit" in t for t in told) and any("not recorded as a CUDA graph: fewer" in t for t in told)


def doctors():
    text = io.StringIO()
    return doctor(Console(file=text, width=200)), text.getvalue()


@TRITON
@NO_GPU
def test_doctor(monkeypatch):
    status, text = doctors()
    assert status == 0 and "compiled for sm_90" in text and "3." in text.partition("Triton")[2].splitlines()[0]
    installed(monkeypatch, {})
    triton_version.cache_clear()
    status, text = doctors()
    assert status == 0 and "(only needed for GPUs)" in text and "skipped: no Triton" in text


@TRITON
@NO_GPU
def test_doctor_where_driver_and_toolkit_do_not_fit(monkeypatch):
    def refused():
        raise DriverError(
            "the CUDA driver does not load the kernel f: no kernel image (error 209); 'python -m intarsia doctor' shows"
        )

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("intarsia.tools.doctor.capability", lambda gpu: "sm_90")
    monkeypatch.setattr(
        "intarsia.tools.doctor.lower", lambda *args, **kwargs: intarsia.lower(*args, target="triton:sm_90")
    )
    monkeypatch.setattr("intarsia.tools.doctor._error_on_gpu", refused)
    found = _gpu_kernel()
    assert not found.ok and found.found.endswith("no kernel image (error 209)") and "newer driver" in found.advice


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(monkeypatch, mode):
    seen = []
    monkeypatch.setattr(sys.modules["intarsia.compile"], "backend_for", lambda config, passes: seen.append(config))
    intarsia.compile(norm, mode=mode)
    assert [config.cuda_graphs for config in seen] == [mode != "max-autotune-no-cudagraphs"]


@NO_GPU
@pytest.mark.parametrize("fn", [lambda x: (x.to("cuda") + 1).exp(), lambda x: x + torch.ones(3, device="cuda:0")])
def test_a_gpu_that_is_not_there_gives_eagers_error(fn):
    x = torch.ones(3)
    with pytest.raises(Exception) as expected:  # noqa: B017  # which one depends on how torch was built
        fn(x)
    with pytest.raises(type(expected.value)) as found:
        intarsia.compile(fn)(x)
    assert str(found.value) == str(expected.value)


def test_quotients_that_become_whole_numbers_are_eagers() -> None:
    """A quotient that is off by two units in the last place is another integer where a tensor is quantized."""

    def quantized(x, y):
        return (x / y + 3).round().clamp(-127, 127).to(torch.int8)

    x = torch.randn(8, 64)
    assert "tl.div_rn" in intarsia.lower(quantized, x, x, target="triton:sm_90").as_text("triton")
    by_row = intarsia.lower(lambda x: quantized(x, x.abs().amax(1, True)), x, target="triton:sm_90")
    assert " quotient(" in by_row.as_text("triton")
    by_number = intarsia.lower(lambda x: (x / 127).round(), x, target="triton:sm_90").as_text("triton")
    assert f"* {torch.tensor(127.0).reciprocal().item()!r}" in by_number  # what CUDA's eager does
    assert "div_rn" not in intarsia.lower(lambda x, y: (x / y).sin(), x, x, target="triton:sm_90").as_text("triton")
