"""Programs that are recorded as CUDA graphs behave as if they were not."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.triton.graphs import STATISTICS

GPU = "cuda:0"
CALLS = 6  # the first ones run as they are, the next is recorded, the others are played back


class Net(nn.Module):
    """Enough kernels and library calls for a recording."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm, self.dropout = nn.LayerNorm(32), dropout

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.norm(F.gelu(layer(x))) + x
            if self.dropout:
                x = F.dropout(x, self.dropout)
        return x.softmax(-1)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def pair() -> tuple[Net, Net]:
    """A module, and the same compiled."""
    net = Net().to(GPU).eval()
    return net, intarsia.compile(net)


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def recorded(fast: Net, x: Tensor) -> None:
    """Call until calls are played back."""
    before = STATISTICS.replays
    for _ in range(CALLS):
        fast(x)
    assert STATISTICS.replays > before, "the program is not recorded"


def test_a_program_is_recorded_and_results_are_right() -> None:
    net, fast = pair()
    recorded(fast, torch.randn(8, 32, device=GPU))
    for _ in range(CALLS):
        x = torch.randn(8, 32, device=GPU)
        same(fast(x), net(x))


def test_results_are_never_overwritten() -> None:
    net, fast = pair()
    inputs = [torch.randn(8, 32, device=GPU) for _ in range(3 * CALLS)]
    results = [fast(x) for x in inputs]
    copies = [r.clone() for r in results]
    for _ in range(CALLS):
        fast(torch.randn(8, 32, device=GPU))
    assert len({r.data_ptr() for r in results}) == len(results)
    for x, result, copy in zip(inputs, results, copies, strict=True):
        assert torch.equal(result, copy)
        same(result, net(x))


def test_a_result_that_is_written_to_changes_no_later_one() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    fast(x).fill_(7.0)
    same(fast(x), net(x))


def test_arguments_are_not_written_to() -> None:
    _, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    copy = x.clone()
    recorded(fast, x)
    assert torch.equal(x, copy)


def test_weights_changed_in_place() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    before = fast(x)
    net.layers[0].weight.mul_(-2)
    net.norm.bias.add_(1)
    same(fast(x), net(x))
    assert not torch.allclose(fast(x), before)


def test_weights_replaced_by_data() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    for _ in range(CALLS):
        net.layers[1].weight.data = torch.randn(32, 32, device=GPU)
        same(fast(x), net(x))


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(assign: bool) -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    net.load_state_dict(Net().to(GPU).state_dict(), assign=assign)
    for _ in range(CALLS):
        same(fast(x), net(x))


def test_other_sizes_between() -> None:
    net, fast = pair()
    for rows in [8, 8, 8, 8, 3, 3, 3, 3, 8, 5, 3, 8, 1, 64, 8]:
        x = torch.randn(rows, 32, device=GPU)
        same(fast(x), net(x))


@pytest.mark.parametrize("kind", ["misaligned", "expanded", "transposed", "strided"])
def test_layouts(kind: str) -> None:
    net, fast = pair()
    for _ in range(2 * CALLS):
        base = torch.randn(64 * 32 + 1, device=GPU)
        x = {
            "misaligned": base[1 : 1 + 8 * 32].view(8, 32),
            "expanded": base[:32].expand(8, 32),
            "transposed": base[: 8 * 32].view(32, 8).t(),
            "strided": base[: 16 * 64].view(16, 64)[:, ::2],
        }[kind]
        same(fast(x), net(x))


def test_another_stream() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = [fast(x + k) for k in range(CALLS)]
    torch.cuda.current_stream().wait_stream(side)
    for k, result in enumerate(found):
        same(result, net(x + k))


def test_two_threads() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with torch.no_grad():
                for k in range(50):
                    given = torch.full((8, 32), number + k / 50, device=GPU) * x
                    same(fast(given), net(given))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("random", ["philox", "eager"])
def test_random_numbers_go_on_from_one_playback_to_the_next(random: str) -> None:
    net = Net(0.5).to(GPU)
    fast, x, before = (
        intarsia.compile(net, options={"random": random}),
        torch.randn(8, 32, device=GPU),
        STATISTICS.replays,
    )
    results = [fast(x) for _ in range(CALLS)]
    torch.manual_seed(7)
    again = [fast(x) for _ in range(3)]
    torch.manual_seed(7)
    once_more = [fast(x) for _ in range(3)]
    assert STATISTICS.replays >= before + 6
    assert all(torch.equal(a, b) for a, b in zip(again, once_more, strict=True))
    different = [*results, *again]
    assert not any(torch.equal(a, b) for k, a in enumerate(different) for b in different[:k])


def test_the_users_own_capture() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fast(x)
    x.copy_(torch.randn(8, 32, device=GPU))
    graph.replay()
    same(found, net(x))


def test_an_argument_that_is_written_to() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        for _ in range(5):
            x = (x @ state).softmax(-1) + x
        state.add_(1)
        return x

    fast = intarsia.compile(step)
    ours, eager = torch.zeros(32, 32, device=GPU), torch.zeros(32, 32, device=GPU)
    for _ in range(CALLS):
        x = torch.randn(8, 32, device=GPU)
        same(fast(x, ours), step(x, eager))
    assert torch.equal(ours, eager)


def test_reset_and_again() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    intarsia.reset()
    fast = intarsia.compile(net)
    recorded(fast, x)
    same(fast(x), net(x))
