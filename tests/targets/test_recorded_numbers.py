"""Learning rates and seeds are arguments of a recording, without a GPU: `Fake` is the CPU as one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia import graph_compiler
from intarsia.ir.interpreter.loops import main_function
from intarsia.targets.recordings import graphs
from intarsia.targets.recordings import recording_memory as playback
from intarsia.targets.recordings.graphs import WARM, Recorded
from intarsia.targets.recordings.recordable import refusal
from intarsia.targets.recordings.seeds import FixedSeed, draw_seed
from intarsia.targets.run.numbers import APART, MOST_STREAMS, Numbers
from tests.targets.test_recorded import Fake

BOTH = (torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(graphs, "POOLS", playback.Pools())
    yield


def test_a_schedule_is_one_recording() -> None:
    gpu = Fake()
    runs: list[int] = []

    def step(p: Tensor, g: Tensor, lr: Tensor) -> list[Any]:
        runs.append(1)
        p.sub_(g * lr)
        return []

    gpu.kept = [p] if (p := torch.ones(3)) is not None else []
    recorded = Recorded(step, ["static", "tensor", "static"], [], gpu)  # type: ignore[arg-type]
    numbers = Numbers([2], [torch.float32], gpu)  # type: ignore[arg-type]
    wanted = p.clone()
    for k in range(20):
        g, lr = torch.rand(3), 0.1 / (k + 1)
        numbers(recorded, [p, g, lr])
        wanted.sub_(g * torch.tensor(lr))
        assert torch.equal(p, wanted)
    assert recorded.recorded == 1 and recorded.replays == 20 - WARM - 1


def test_each_number_lies_at_a_multiple_of_16_bytes() -> None:
    gpu = Fake()
    numbers = Numbers([0, 2], BOTH, gpu)  # type: ignore[arg-type]
    seen: list[tuple[Any, ...]] = []
    for stream, values in ((0, (0.1, 0.2)), (7, (1e300, -1e300)), (0, (3.0, 4.0))):
        gpu.now = stream
        numbers(lambda *args: seen.append((*args, args[0].item(), args[2].item())) or [], [values[0], "x", values[1]])
    for a, x, b, *_ in seen:
        assert (a.dtype, b.dtype) == BOTH and x == "x" and b.data_ptr() - a.data_ptr() == APART and a.shape == ()
    assert [s[3:] for s in seen] == [(torch.tensor(0.1).item(), 0.2), (float("inf"), -1e300), (3.0, 4.0)]
    assert seen[0][0] is seen[2][0] and seen[0][0] is not seen[1][0]
    for gpu.now in range(3 * MOST_STREAMS):
        numbers(lambda *args: [], [1.0, "x", 2.0])
    assert len(numbers.memories) <= MOST_STREAMS


@pytest.mark.parametrize("why", ["another thread", "the user records"])
def test_memory_of_its_own(why: str) -> None:
    """Numbers of a call are not another one's that is under way, nor of the next playback of a graph of the user's."""
    gpu = Fake()
    numbers = Numbers([0], [torch.float32], gpu)  # type: ignore[arg-type]
    gpu.busy = why == "the user records"
    seen: list[Tensor] = []

    def other(x: Tensor) -> list[Any]:
        if not seen and why == "another thread":
            thread = threading.Thread(target=lambda: numbers(other_thread, [2.0]))
            thread.start()
            thread.join()
        seen.append(x)
        return []

    def other_thread(x: Tensor) -> list[Any]:
        seen.append(x)
        return []

    numbers(other, [1.0])
    numbers(other, [3.0])
    assert [x.item() for x in seen] == ([2.0, 3.0, 3.0] if why == "another thread" else [1.0, 3.0])


def test_seeds_of_playbacks_are_those_of_calls() -> None:
    """The generator stands after playbacks where it stands after calls; recording draws nothing."""
    gpu = Fake()

    def noise(x: Tensor) -> list[Any]:
        return [x + draw_seed("cpu")]

    recorded = Recorded(noise, ["tensor"], [], gpu)  # type: ignore[arg-type]
    torch.manual_seed(5)
    found = [recorded(torch.zeros(2, dtype=torch.int64))[0] for _ in range(8)]
    after = torch.rand(1)
    torch.manual_seed(5)
    assert all(torch.equal(x, noise(torch.zeros(2, dtype=torch.int64))[0]) for x in found)
    assert torch.equal(after, torch.rand(1)) and recorded.replays == 8 - WARM - 1
    assert len({int(x[0]) for x in found}) == 8


def test_a_program_that_begins_again_reads_the_same_seed() -> None:
    memory = torch.zeros((), dtype=torch.int64)
    seed = FixedSeed(memory)
    assert not seed.asked
    assert all(found is memory for found in seed.run(lambda: [draw_seed("cpu"), draw_seed("cpu")], ()))
    assert seed.asked and draw_seed("cpu") is not memory  # it is over
    assert refusal(9, [], seeds=1) == "" and "seed" in refusal(9, [], seeds=2)


def test_numbers_are_of_the_dtype_of_all_who_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that kernels read them where they are; of two dtypes the longer one is right for both."""
    found: list[Any] = []

    def kept(*args: Any) -> Any:
        found.append(real(*args))
        return found[-1]

    real = graph_compiler.import_fx
    monkeypatch.setattr(graph_compiler, "import_fx", kept)
    x, y = torch.rand(3), torch.rand(3, dtype=torch.float64)
    fast = intarsia.compile(lambda a, b, r, s: (a * r, b * s, a + s))
    with torch.no_grad():
        for rates in ((0.1, 0.2), (0.3, 0.4), (1e300, 0.5)):
            for got, want in zip(fast(x, y, *rates), (x * rates[0], y * rates[1], x + rates[1]), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0)
    func = main_function(found[-1].module)
    numbers = [func.block_body.args[k].type for k in func["numbers"]]
    assert [(n.shape, n.dtype.torch) for n in numbers] == [((), torch.float32), ((), torch.float64)]  # type: ignore[union-attr]
