"""Programs on GPUs that are not the current one, on several GPUs, in several threads and processes. Most need two GPUs."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS
from tests.together import together

CALLS = 6
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


class Net(nn.Module):
    """Kernels and library calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.norm(F.gelu(layer(x))) + x
        return x.softmax(-1)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield
    torch.cuda.set_device(0)


def same(found: Tensor, wanted: Tensor) -> None:
    assert found.device == wanted.device
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@two
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("current", [0, 1])
def test_a_gpu_that_is_not_the_current_one(current: int, graphs: bool) -> None:
    torch.cuda.set_device(current)
    net = Net().to("cuda:1").eval()
    fast = intarsia.compile(net, options={"cuda_graphs": graphs})
    for _ in range(CALLS):
        x = torch.randn(8, 64, device="cuda:1")
        same(fast(x), net(x))
        assert torch.cuda.current_device() == current


@two
def test_one_model_on_two_gpus() -> None:
    """Another device is another program; each keeps its own recordings."""
    nets = [Net().to("cuda:0").eval()]
    nets.append(copy.deepcopy(nets[0]).to("cuda:1"))
    fast = [intarsia.compile(n) for n in nets]
    before = STATISTICS.recordings, STATISTICS.replays
    for _ in range(CALLS):
        x = torch.randn(8, 64, device="cuda:0")
        for k in range(2):
            there = x.to(f"cuda:{k}")
            same(fast[k](there), nets[k](there))
    assert STATISTICS.recordings >= before[0] + 2
    assert STATISTICS.replays >= before[1] + 2 * (CALLS - 3)


@two
def test_cuda_is_the_current_gpu() -> None:
    """Also where no argument says so, and in compiled code that is there already."""

    def made(n: int) -> Tensor:
        return torch.arange(64, device="cuda").float() * n + 1

    def brought(x: Tensor) -> Tensor:
        return (x.cuda() + 1).softmax(-1)

    def asked(x: Tensor) -> Tensor:
        return x * (torch.cuda.current_device() + 2)

    x = torch.randn(8, 64)
    for fn, arg in ((made, 3), (brought, x), (asked, x)):
        fast = intarsia.compile(fn)
        for k in (0, 1, 0, 1, 1):
            with torch.cuda.device(k):
                same(fast(arg), fn(arg))
                assert torch.cuda.current_device() == k
        torch.cuda.set_device(1)
        same(fast(arg), fn(arg))
        torch.cuda.set_device(0)


@two
@torch.enable_grad()
def test_training_on_a_gpu_that_is_not_the_current_one() -> None:
    net = Net().to("cuda:1")
    fast = intarsia.compile(net)
    for _ in range(4):
        x = torch.randn(8, 64, device="cuda:1")
        grads = []
        for call in (net, fast):
            net.zero_grad()
            call(x).square().sum().backward()
            grads.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
        for wanted, found in zip(*grads, strict=True):
            same(found, wanted)
        assert torch.cuda.current_device() == 0


@two
def test_one_function_for_tensors_of_either_gpu() -> None:
    def run(x: Tensor) -> Tensor:
        for _ in range(5):
            x = (x @ x).softmax(-1) + x
        return x

    fast = intarsia.compile(run)
    for _ in range(CALLS):
        for k in range(2):
            x = torch.randn(32, 32, device=f"cuda:{k}")
            same(fast(x), run(x))


@two
def test_a_thread_for_each_gpu() -> None:
    """As DataParallel does: replicas on their own GPUs, each in a thread of its own."""
    first = Net().to("cuda:0").eval()
    nets = [first, copy.deepcopy(first).to("cuda:1")]
    fast = [intarsia.compile(n) for n in nets]

    def work(k: int) -> None:
        with torch.no_grad(), torch.cuda.device(k):
            for _ in range(30):
                x = torch.randn(8, 64, device=f"cuda:{k}")
                same(fast[k](x), nets[k](x))

    assert not together(work, 2)


@two
def test_tensors_of_two_gpus_in_one_program() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = (x.exp() + 1).softmax(-1)
        b = a.to("cuda:1") * y + 1
        return a, b

    fast = intarsia.compile(run)
    for _ in range(3):
        x, y = torch.randn(8, 64, device="cuda:0"), torch.randn(8, 64, device="cuda:1")
        for found, wanted in zip(fast(x, y), run(x, y), strict=True):
            same(found, wanted)


@two
def test_a_model_whose_halves_are_on_two_gpus() -> None:
    first, second = Net().to("cuda:0").eval(), Net().to("cuda:1").eval()

    def run(x: Tensor) -> Tensor:
        return second(first(x).to("cuda:1"))

    fast = intarsia.compile(run)
    for _ in range(CALLS):
        x = torch.randn(8, 64, device="cuda:0")
        same(fast(x), run(x))


@two
def test_a_process_for_each_gpu(tmp_path: Path) -> None:
    """As torchrun starts them: data-parallel over NCCL, the GPU by LOCAL_RANK; and one that sees its GPU alone. They share a cache."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0"}
    common["INTARSIA_CACHE_DIR"] = str(tmp_path)
    own = [{"RANK": str(k), "LOCAL_RANK": str(k)} for k in range(2)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    own.append({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": visible[1]})
    command = [sys.executable, str(Path(__file__).with_name("rank.py"))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen(command, env=common | each, **pipes) for each in own]
    try:
        said = [p.communicate(timeout=90)[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0, 0, 0], "\n".join(text[-1500:] for text in said)
    workers = [int(pid) for text in said for pid in text.rpartition("workers:")[2].split()]
    end = monotonic() + 5
    while left := [pid for pid in workers if _runs(pid)]:
        assert monotonic() < end, f"processes that compile outlive what started them: {left}"
        sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stream_for_each_thread() -> None:
    net = Net().to("cuda:0").eval()
    fast = intarsia.compile(net)

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for k in range(40):
                x = torch.full((8, 64), number + k / 40, device="cuda:0").sin()
                found, wanted = fast(x), net(x)
                stream.synchronize()
                same(found, wanted)

    assert not together(work, 3)
