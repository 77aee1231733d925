"""Programs that are recorded as CUDA graphs behave as if they were not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS
from tests.together import together

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

    def work(number: int) -> None:
        with torch.no_grad():
            for k in range(50):
                given = torch.full((8, 32), number + k / 50, device=GPU) * x
                same(fast(given), net(given))

    assert not together(work, 2)


@pytest.mark.usefixtures("alone")
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


def _add_to_state(x: Tensor, state: Tensor) -> Tensor:
    for _ in range(5):
        x = (x @ state).softmax(-1) + x
    state.add_(1)
    return x


def _row_of_state(x: Tensor, state: Tensor) -> Tensor:
    state.index_copy_(0, torch.full((1,), 3, device=GPU), x[:1])
    for _ in range(5):
        x = (x @ state).softmax(-1) + x
    return x


@pytest.mark.parametrize("step", [_add_to_state, _row_of_state])
@pytest.mark.parametrize("moving", [False, True])
def test_an_argument_that_is_written_to(step: Callable[[Tensor, Tensor], Tensor], moving: bool) -> None:
    fast, before = intarsia.compile(step), STATISTICS.replays
    ours, eager, held = torch.zeros(32, 32, device=GPU), torch.zeros(32, 32, device=GPU), []
    for _ in range(2 * CALLS):
        if moving:
            held.append(ours)
            ours = ours.clone()
        x = torch.randn(8, 32, device=GPU)
        same(fast(x, ours), step(x, eager))
        assert torch.equal(ours, eager)
    assert STATISTICS.replays >= before + CALLS


def test_batch_statistics_are_updated_once_a_call() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.BatchNorm1d(32)).to(GPU)

    net, ours = make(), make()
    fast, before = intarsia.compile(ours), STATISTICS.replays
    for _ in range(2 * CALLS):
        x = torch.randn(16, 32, device=GPU)
        same(fast(x), net(x))
    for a, b in zip(ours.state_dict().values(), net.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert STATISTICS.replays > before


def test_results_that_share_memory() -> None:
    def run(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x
        for _ in range(4):
            y = F.gelu(y @ w) + x
        return y, y, y[1:], y.t(), x, w[0], y.sum(0)

    fast, before, w = intarsia.compile(run), STATISTICS.replays, torch.randn(32, 32, device=GPU) * 0.1
    kept = []
    for _ in range(CALLS):
        x = torch.randn(8, 32, device=GPU)
        found, wanted = fast(x, w), run(x, w)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
            assert a.stride() == b.stride()
        assert found[0] is found[1] and found[4] is x
        assert found[2].data_ptr() == found[0][1:].data_ptr() and found[5].data_ptr() == w.data_ptr()
        kept.append((found, [t.clone() for t in wanted]))
    for found, wanted in kept:
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    assert STATISTICS.replays > before


def test_numbers_from_the_cpu() -> None:
    net = Net().to(GPU).eval()
    fast, before = intarsia.compile(lambda x, s: net(x) * s), STATISTICS.replays
    for value in [0.5, 2.0, 0.5, 2.0] * 4:
        x, s = torch.randn(8, 32, device=GPU), torch.tensor(value)
        same(fast(x, s), net(x) * s)
    assert STATISTICS.replays > before


def test_sizes_that_grow_are_not_recorded() -> None:
    net, fast = pair()
    before = STATISTICS.recordings
    for n in range(2, 40):
        x = torch.randn(n, 32, device=GPU)
        same(fast(x), net(x))
    assert STATISTICS.recordings == before


def _decode(token: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x = token
    for _ in range(3):
        x = F.scaled_dot_product_attention(x[None], cache[None], cache[None])[0]
        for _ in range(3):
            x = F.gelu(x @ w).softmax(-1) + x
    return x, torch.cat([cache, x])


def test_parts_of_a_program_that_grows_are_recorded() -> None:
    """As a decoder does whose cache grows by a row in each call."""
    fast, replays = intarsia.compile(_decode), STATISTICS.replays
    w, kept = torch.randn(64, 64, device=GPU) * 0.1, []
    ours = eager = torch.randn(5, 64, device=GPU)
    for k in range(40):
        token = torch.randn(1, 64, device=GPU)
        (a, ours), (b, eager) = fast(token, ours, w), _decode(token, eager, w)
        same(a, b)
        same(ours, eager)
        kept.append((a, b))
        if k == 20:
            recordings = STATISTICS.recordings
    for a, b in kept:
        same(a, b)
    assert STATISTICS.replays >= replays + 20 and STATISTICS.recordings == recordings


def test_a_thread_that_is_new_to_the_driver() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    wanted, found = net(x), []
    torch.cuda.synchronize()

    def work() -> None:
        with torch.no_grad():
            found.append(fast(x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    same(found[0], wanted)


def test_random_numbers_of_other_threads_while_a_program_is_recorded() -> None:
    wrong: list[BaseException] = []
    ready = threading.Event()

    def draw() -> None:
        try:
            while not ready.is_set():
                torch.randn(100, device=GPU)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(4):
            recorded(intarsia.compile(Net().to(GPU).eval()), torch.zeros(8, 32, device=GPU))
    finally:
        ready.set()
        thread.join()
    assert not wrong


def _deep() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(256, 10)).to(GPU)


def test_training_steps_are_recorded_and_copy_nothing() -> None:
    """Saved values and gradients are handed out; what is still held is not overwritten."""
    eager, ours = _deep(), _deep()
    fast = intarsia.compile(ours)
    kept, replays = [], STATISTICS.replays
    with torch.enable_grad():
        optimizers = [torch.optim.SGD(net.parameters(), 0.05) for net in (eager, ours)]
        for k in range(20):
            x, target = torch.randn(512, 256, device=GPU), torch.randint(0, 10, (512,), device=GPU)
            losses = []
            for net, optimizer in zip((eager, fast), optimizers, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), target)
                if k % 5 == 4:  # another forward before backward: its values are in use
                    loss = loss + F.cross_entropy(net(x * 2), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            kept.append(losses)
            for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=2e-2, atol=2e-3)
    for a, b in kept:
        torch.testing.assert_close(b, a, rtol=1e-2, atol=1e-3)
    assert STATISTICS.replays >= replays + 20


def test_gradients_that_are_kept() -> None:
    """Gradients of earlier steps in a list, and sums of gradients over steps, as eager has them."""
    eager, ours = _deep(), _deep()
    fast, kept = intarsia.compile(ours), []
    with torch.enable_grad():
        for k in range(14):
            x = torch.randn(64, 256, device=GPU)
            for net, model in ((eager, eager), (fast, ours)):
                if k % 4 == 0:
                    model.zero_grad()
                net(x).square().mean().backward()
            kept.append(
                [(a.grad, b.grad, b.grad.clone()) for a, b in zip(ours.parameters(), eager.parameters(), strict=True)]
            )
            for a, b, _ in kept[-1]:
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)
    for k in (3, 7, 11):  # the last of each sum: later steps have not changed it
        for a, _, b in kept[k]:
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


def test_two_programs_on_two_streams() -> None:
    """Recordings share memory with those of their own stream only."""
    nets = [Net().to(GPU).eval() for _ in range(2)]
    fast, streams = [intarsia.compile(n) for n in nets], [torch.cuda.Stream(), torch.cuda.Stream()]
    x = torch.randn(256, 32, device=GPU)
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for k in range(40):
        for i in range(2):
            with torch.cuda.stream(streams[i]):
                found[i].append(fast[i](x + k))
    torch.cuda.synchronize()
    for i in range(2):
        for k, result in enumerate(found[i]):
            same(result, nets[i](x + k))


def test_memory_is_shared_and_counted() -> None:
    intarsia.reset()  # what other tests recorded goes now, and not in between
    gc.collect()
    first = Net().to(GPU).eval()
    x = torch.randn(4096, 32, device=GPU)
    recorded(intarsia.compile(first), x)
    one = intarsia.counters()["recorded_bytes"]
    for _ in range(3):
        recorded(intarsia.compile(Net().to(GPU).eval()), x)
    assert 0 < intarsia.counters()["recorded_bytes"] <= one


def test_large_results_of_few_steps_are_not_recorded() -> None:
    fast = intarsia.compile(lambda x: ((x @ x.t()).exp() @ x @ x.t()).exp())
    x, before = torch.randn(5000, 16, device=GPU) * 0.01, STATISTICS.recordings
    for _ in range(CALLS):
        fast(x)
    assert STATISTICS.recordings == before
    assert any("would be copied" in reason for reason in STATISTICS.refused)


class Head(nn.Module):
    """As a language model: a large result of the last product, which may not be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = Net(), nn.Linear(32, 20000, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.net(x)
        logits = self.head(hidden) * scale
        return logits, hidden, logits[-1]


def _tail(rows: int = 1024, **options: object) -> tuple[Head, Head, Callable[[], tuple[Tensor, Tensor]]]:
    net = Head().to(GPU).eval()
    return net, intarsia.compile(net, **options), lambda: (torch.randn(rows, 32, device=GPU), torch.rand(1, device=GPU))


def _has_tail(fast: Head, args: tuple[Tensor, Tensor]) -> None:
    """Call until calls are played back."""
    before, refused = (STATISTICS.recordings, STATISTICS.replays), len(STATISTICS.refused)
    for _ in range(CALLS):
        fast(*args)
    assert STATISTICS.recordings == before[0] + 1 and STATISTICS.replays > before[1]
    assert len(STATISTICS.refused) == refused


def test_large_results_are_written_where_the_caller_has_them() -> None:
    """Results of many calls are held, some are written to by their owners; each is right in the end."""
    net, fast, given = _tail()
    _has_tail(fast, given())
    replays, kept = STATISTICS.replays, []
    for k in range(CALLS):
        args = given()
        found, wanted = fast(*args), net(*args)
        assert found[2].data_ptr() == found[0][-1].data_ptr()
        if k % 2:
            found[0].mul_(2)
            wanted[0].mul_(2)
        kept.append((found, wanted))
    assert STATISTICS.replays == replays + CALLS
    assert len({found[0].data_ptr() for found, _ in kept}) == CALLS
    for found, wanted in kept:
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
            assert a.stride() == b.stride()


def test_large_results_are_there_once() -> None:
    net, fast, given = _tail(rows=4096)
    args, recorded_before = given(), intarsia.counters()["recorded_bytes"]
    _has_tail(fast, args)
    peaks = []
    for call in (net, fast):
        call(*args)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            result = call(*args)
            del result
        peaks.append(torch.cuda.max_memory_allocated() - before)
    eager, ours = peaks
    assert ours <= eager + (2 << 20), f"ours {ours >> 20} MiB, eager {eager >> 20}"
    assert intarsia.counters()["recorded_bytes"] - recorded_before < 4096 * 20000 * 4


def test_large_results_on_another_stream_and_of_two_threads() -> None:
    net, fast, given = _tail()
    _has_tail(fast, given())
    args = [given() for _ in range(CALLS)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = [fast(*a)[0] for a in args]
    torch.cuda.current_stream().wait_stream(side)
    for a, result in zip(args, found, strict=True):
        same(result, net(*a)[0])

    def work(number: int) -> None:
        with torch.no_grad():
            kept = [(fast(*a)[0], a) for a in args]
            for result, a in kept:
                same(result, net(*a)[0])

    assert not together(work, 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_large_results_of_other_sizes_and_arguments_that_are_not_aligned(dynamic: bool) -> None:
    net, fast, _ = _tail(dynamic=dynamic)
    base = torch.rand(9, device=GPU)
    for rows in [1024] * CALLS + [3] * CALLS + [2048] * CALLS:
        x = torch.randn(rows, 32, device=GPU)
        for scale in (base[:1], base[3:4]):
            for a, b in zip(fast(x, scale), net(x, scale), strict=True):
                same(a, b)


def test_reset_and_again() -> None:
    net, fast = pair()
    x = torch.randn(8, 32, device=GPU)
    recorded(fast, x)
    intarsia.reset()
    fast = intarsia.compile(net)
    recorded(fast, x)
    same(fast(x), net(x))
