"""What can go wrong on a GPU: memory, devices, sizes, drivers, threads; errors are eager's, and the next call is right."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.testing import check
from tests.together import together

GPU = "cuda:0"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def steps(x: Tensor) -> Tensor:
    """Several kernels and results that are live at once."""
    a, b = x.softmax(0), x.cumsum(1)
    return (a + b).softmax(1).cumsum(0) + a


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A process that may use one GiB of the GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1024 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("large", [400 * MIB, 600 * MIB])
def test_out_of_memory(large: int) -> None:
    fn = intarsia.compile(steps)
    small = torch.randn(64, 1024, device=GPU)
    for _ in range(4):  # it is played back by then
        torch.testing.assert_close(fn(small), steps(small))
    before = intarsia.counters()
    x = torch.ones(large // 4096, 1024, device=GPU)
    for call in (steps, fn, fn):
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            call(x)
    del x
    torch.testing.assert_close(fn(small), steps(small))
    after = intarsia.counters()
    assert after["fallbacks"] == before["fallbacks"]
    intarsia.reset()
    again = intarsia.compile(steps)
    torch.testing.assert_close(again(small), steps(small))
    assert intarsia.counters()["cache_hits"] == 1  # what was compiled is there as before


def test_out_of_memory_in_a_first_call() -> None:
    fn = intarsia.compile(steps)
    x = torch.ones(4, 8, device=GPU)
    with pytest.raises(torch.OutOfMemoryError):
        fn(x[:, :1].expand(4, 1 << 38))
    torch.testing.assert_close(fn(x), steps(x))


@pytest.mark.parametrize("fn", [torch.add, torch.matmul, lambda x, y: torch.cat([x, y]), lambda x, y: x.softmax(0) * y])
def test_tensors_on_two_devices(fn) -> None:
    x, y = torch.randn(5, 5, device=GPU), torch.randn(5, 5)
    for args in ((x, y), (y, x)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert check(fn, args, compiled=intarsia.compile(fn)).raised is RuntimeError


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus() -> None:
    x, y = torch.randn(70, 90, device="cuda:0"), torch.randn(70, 90, device="cuda:1")
    fn = intarsia.compile(steps)
    for _ in range(5):
        for z in (x, y):
            found = fn(z)
            assert found.device == z.device
            torch.testing.assert_close(found, steps(z))
    fn = intarsia.compile(lambda x, y: (steps(x), steps(y), steps(x).to(y.device) + y))
    for _ in range(5):
        found = fn(x, y)
        for a, b in zip(found, (steps(x), steps(y), steps(x).to(y.device) + y), strict=True):
            torch.testing.assert_close(a, b)


def test_five_billion_elements() -> None:
    """More elements than 32 bits count, in a graph for these sizes and in one for any."""
    count = 5_000_000_003
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB")

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, (x == 7).sum()

    for dynamic in (False, True):
        compiled = intarsia.compile(fn, dynamic=dynamic)
        if dynamic:
            compiled(torch.zeros(50, dtype=torch.int8, device=GPU))
        x = torch.zeros(count, dtype=torch.int8, device=GPU)
        x[-1] = x[2**32 + 5] = 7
        found, sevens = compiled(x)
        assert sevens.item() == 2 and found[-1].item() == 8 and found[2**32 + 5].item() == 8
        assert int((found != 1).sum()) == 2
        del x, found


def test_binaries_that_the_driver_does_not_load(monkeypatch, caplog) -> None:
    """As with a driver that is older than what Triton compiles for."""
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    monkeypatch.setattr("intarsia.graph_compiler.capability", lambda gpu: "sm_80")
    x = torch.randn(9, 9, device=GPU)
    fn = intarsia.compile(lambda x: x.softmax(0) + 1, options={"cache": False})
    torch.testing.assert_close(fn(x), x.softmax(0) + 1)
    assert "the CUDA driver does not load the kernel" in caplog.text and "doctor" in caplog.text


def test_functions_that_are_compiled_by_torch_at_run_time() -> None:
    """torch.cuda.jiterator launches a kernel whatever it is given: it must not be given what has no memory."""
    from torch.cuda.jiterator import _create_jit_fn

    square = _create_jit_fn("template <typename T> T square(T x) { return x * x; }")

    def fn(x: Tensor) -> Tensor:
        return square(x + 1) * 2

    x = torch.randn(33, device=GPU)
    torch.testing.assert_close(intarsia.compile(fn)(x), fn(x))


@pytest.mark.parametrize("recorded", [False, True])
def test_streams_and_threads(recorded: bool) -> None:
    """Four threads, each with a stream and sizes of its own, compile and call one function."""
    fn = intarsia.compile(steps, options={"cuda_graphs": recorded})

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for k in range(12):
                x = torch.randn(8 + number % 2, 64 + k % 2, device=GPU)
                torch.testing.assert_close(fn(x), steps(x))

    raised = together(work, 4)
    assert not raised, raised


def test_results_of_another_stream_are_waited_for_as_in_eager() -> None:
    fn = intarsia.compile(lambda x: F.gelu(x).cumsum(0))
    x = torch.randn(4096, 4096, device=GPU)
    fn(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = fn(x * 2)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(found, F.gelu(x * 2).cumsum(0), rtol=1e-3, atol=1e-3)


def test_memory_that_is_no_tensors_own() -> None:
    """Views in the middle of a tensor, of other dtypes, and overlapping ones."""
    base = torch.randn(4096, device=GPU)
    views = [
        base[3:].as_strided((20, 30), (7, 1)),  # rows overlap
        base.view(torch.int32)[5:605].view(20, 30),
        base.view(torch.bfloat16)[1:1201].view(40, 30),
        base[2:602].view(20, 30).t(),
    ]
    for view in views:
        check(lambda x: (x * 2 + 1, x.sum(0), x.amax(1)), [view], calls=4)
