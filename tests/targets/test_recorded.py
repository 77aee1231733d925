"""Recordings without a GPU: one that is "played back" runs its program again on the memory that it was recorded with."""

from __future__ import annotations

import ctypes
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.targets.recordings import graphs
from intarsia.targets.recordings import recording_memory as playback
from intarsia.targets.recordings.capture import INVALID_CONTEXT, QUIET, drawing_threads, in_context
from intarsia.targets.recordings.graphs import LIMIT, WARM, WORTH, Recorded
from intarsia.targets.recordings.pieces import Divided, Pieces
from intarsia.targets.recordings.recording import Layout
from intarsia.targets.recordings.recording_memory import Pool, extent
from intarsia.targets.recordings.seeds import draw_seed
from intarsia.targets.torch_private import empty_strided_cpu
from tests.together import together


class Fake:
    """The CPU as a GPU. Results of a recording lie at fixed places; between playbacks these are overwritten, as shared memory is."""

    def __init__(self) -> None:
        self.index, self.now, self.busy, self.moved, self.is_only = 0, 0, False, 0, True
        self.released = 0
        self.reserved: list[int] = []
        self.kept: list[Tensor] = []
        self.away: list[Tensor] = []  # what is on the CPU

    def holds(self, tensor: Tensor) -> bool:
        return not any(t is tensor for t in self.away)

    def stream(self) -> int:
        return self.now

    def capturing(self) -> bool:
        return self.busy

    def memory(self) -> list[Any]:
        return []  # what the recordings in it give

    def pool(self) -> Pool:
        return Pool(None, None)

    def empty(self, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        return empty_strided_cpu(shape, strides, dtype)  # as particular about tuples as that of GPUs

    def record(self, work: Callable[[], list[Any]], pool: Pool) -> tuple[Callable[[int], None], list[Any]]:
        saved = [(t, t.clone()) for t in self.kept]
        there = [] if pool.memory is None else pool.memory
        early = _unowned(there)
        first, second = work(), work()
        for t, before in saved:  # recording runs nothing
            t.copy_(before)
        # storage of a result -> where it is in the list, and memory that stays
        fixed: dict[int, tuple[int, Any, Tensor]] = {}
        owners: list[Any] = []  # of that memory, as long as a tensor does
        made: list[Any] = []
        for k, (r, again) in enumerate(zip(first, second, strict=True)):
            if not isinstance(r, Tensor) or r.untyped_storage().data_ptr() == again.untyped_storage().data_ptr():
                made.append(r)  # no tensor, or an argument's
                continue
            storage = r.untyped_storage()
            if storage._cdata not in fixed:
                memory = ctypes.create_string_buffer(max(1, storage.nbytes()))
                owner = (ctypes.c_char * len(memory)).from_buffer(memory)
                owners.append(weakref.ref(owner))
                fixed[storage._cdata] = (k, memory, torch.frombuffer(owner, dtype=torch.uint8))
                del owner
            same = next((made[j] for j in range(k) if first[j] is r), None)
            base = fixed[storage._cdata][2]
            whole = base[: base.numel() // r.element_size() * r.element_size()].view(r.dtype)
            part = whole.as_strided(r.shape, r.stride(), r.storage_offset())
            made.append(part if same is None else same)
            del base, whole, part, same
        places = [(k, memory) for k, memory, _ in fixed.values()]
        fixed.clear()
        late = _unowned(there)
        there.append((places, owners))
        later = len(there)

        def replay(stream: int) -> None:
            for cell in work.__closure__ or ():  # a recording knows addresses: it keeps no argument alive
                if isinstance(cell.cell_contents, list):
                    cell.cell_contents[:] = map(self.at_its_address, cell.cell_contents)
            for memory in early:
                ctypes.memset(memory, 0x55, len(memory))
            results = work()
            others = [memory for each, _ in there[later:] for _, memory in each]  # this one has other values there
            for memory in (*late, *others):
                ctypes.memset(memory, 0x55, len(memory))
            for k, memory in places:
                storage = results[k].untyped_storage()
                ctypes.memmove(memory, storage.data_ptr(), storage.nbytes())

        return replay, made

    def shown(self, tensor: Tensor, memory: list[Any]) -> Tensor:
        storage = tensor.untyped_storage()
        return torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)

    def at_its_address(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.numel() or not self.holds(value):
            return value
        return Layout.of(value).over(self.shown(value, []))

    def move(self, target: int, source: int, size: int, stream: int) -> None:
        self.moved += 1
        ctypes.memmove(target, source, size)

    def write(self, target: int, data: bytes, stream: int) -> None:
        ctypes.memmove(target, data, len(data))

    def number(self, value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    def seed(self) -> Tensor:
        return draw_seed("cpu")

    def release(self, least: int = 0) -> None:
        self.released += least == 0

    def reserve(self, pool: Pool, size: int) -> None:
        self.reserved.append(size)

    def is_current(self) -> bool:
        return True


def _unowned(there: list[Any]) -> list[Any]:
    """What no tensor owns any more, so that it may be memory of a further recording, too."""
    return [memory for each, owned in there for (_, memory), one in zip(each, owned, strict=True) if one() is None]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "POOLS", playback.Pools())


class Program:
    """A run that counts its calls; `kept` are tensors that a recording must leave as they are."""

    def __init__(
        self, run: Callable[..., Any], kinds: list[str], sizes: list[str] | None = None, keep: Any = ()
    ) -> None:
        self.calls, self.gpu, self.function = 0, Fake(), run
        self.gpu.kept = list(keep)
        self.recorded = Recorded(self.run, kinds, sizes or [], self.gpu)  # type: ignore[arg-type]

    def run(self, *args: Any) -> list[Any]:
        self.calls += 1
        return list(self.function(*args))

    def __call__(self, *args: Any) -> Any:
        return self.recorded(*args)


def test_calls_are_recorded_and_played_back() -> None:
    program = Program(lambda x, w: [x @ w, None, 3], ["tensor", "static"])
    w = torch.randn(4, 4)
    results = []
    for number in range(2 * WARM + 3):
        x = torch.randn(2, 4)
        found = program(x, w)
        results.append((found[0], x @ w))
        assert found[1:] == [None, 3]
        assert program.recorded.replays == max(0, number - WARM)
    assert program.recorded.recorded == 1
    for found, wanted in results:  # all of them, after all calls
        assert torch.equal(found, wanted)


def test_a_weight_at_another_place_is_another_recording() -> None:
    program = Program(lambda x, w: [x @ w], ["tensor", "static"])
    for w in (torch.randn(4, 4), torch.randn(4, 4)):
        for _ in range(5):
            x = torch.randn(2, 4)
            assert torch.equal(program(x, w)[0], x @ w)
    assert program.recorded.recorded == 2


def _step(x: Tensor, state: Tensor) -> list[Any]:
    out = x * state
    state.add_(x)
    return [out]


@pytest.mark.parametrize("moving", [False, True])
def test_an_argument_that_is_written_to(moving: bool) -> None:
    ours, eager = torch.randn(6), torch.empty(6)
    eager.copy_(ours)
    program = Program(_step, ["tensor", "written"], keep=[ours])
    held = []
    for _ in range(12):
        if moving:
            held.append(ours)
            ours = ours.clone()
            program.gpu.kept = [ours]
        x = torch.randn(6)
        assert torch.equal(program(x, ours)[0], _step(x, eager)[0])
        assert torch.equal(ours, eager)
    assert program.recorded.replays == 12 - WARM - 1
    assert program.recorded.placed == ([] if moving else [1])


def test_only_the_elements_of_an_argument_are_written_to() -> None:
    """What lies between them is another tensor's."""
    program = Program(_step, ["tensor", "written"])
    base = torch.zeros(6, 2)
    eager = torch.ones(6)
    for k in range(8):
        both = base.clone()
        both[:, 0], both[:, 1] = eager, k
        before = both[:, 1].clone()
        x = torch.randn(6)
        assert torch.equal(program(x, both[:, 0])[0], _step(x, eager)[0])
        assert torch.equal(both[:, 0], eager) and torch.equal(both[:, 1], before)
    assert program.recorded.replays


def test_arguments_that_move_are_copied_in_the_end() -> None:
    program = Program(_step, ["tensor", "written"])
    eager, ours = torch.zeros(6), torch.zeros(6)
    held = [ours]
    for k in range(40):
        if k >= 5 and k % 5 == 0:  # stays for a few calls, then moves
            ours = ours.clone()
            held.append(ours)
        program.gpu.kept = [ours]
        x = torch.randn(6)
        program(x, ours)
        _step(x, eager)
        assert torch.equal(ours, eager)
    assert program.recorded.placed == [] and program.recorded.recorded <= 4
    before = program.recorded.replays
    program(torch.randn(6), ours.clone())
    assert program.recorded.replays == before + 1


def test_places_that_pay_are_recorded_again_and_again() -> None:
    """A cache for each sequence: a recording for each of them is worth it."""
    program = Program(_step, ["tensor", "written"])
    held = []
    for _ in range(LIMIT + 3):
        ours, eager = torch.zeros(6), torch.zeros(6)
        held.append(ours)
        program.gpu.kept = [ours]
        for _ in range(WARM + 1 + WORTH):
            x = torch.randn(6)
            program(x, ours)
            _step(x, eager)
        assert torch.equal(ours, eager)
    assert program.recorded.placed == [1] and program.recorded.recorded == LIMIT + 3
    assert len(program.recorded.made) == LIMIT


def test_sizes_that_do_not_come_again_are_not_recorded() -> None:
    program = Program(lambda x: [x.cumsum(0)], ["tensor"], ["a0.shape[0]"])
    for n in range(1, 80):
        x = torch.randn(n)
        assert torch.equal(program(x)[0], x.cumsum(0))
    assert program.recorded.recorded == 0
    for n in [5, 9, 5, 9, 5, 9, 5, 9]:
        x = torch.randn(n)
        assert torch.equal(program(x)[0], x.cumsum(0))
    assert program.recorded.recorded == 2


def test_more_recordings_than_the_limit_must_be_worth_it() -> None:
    program = Program(lambda x: [x * 2], ["tensor"], ["a0.shape[0]"])
    for n in range(1, LIMIT + 5):
        for _ in range(WARM + 2):
            program(torch.randn(n))
    assert program.recorded.recorded == LIMIT == len(program.recorded.made)
    for _ in range(LIMIT * WORTH):
        program(torch.randn(3))
    for _ in range(WARM + 2):
        program(torch.randn(LIMIT + 5))
    assert program.recorded.recorded == LIMIT + 1 and len(program.recorded.made) == LIMIT


def test_numbers_and_scalars_are_part_of_what_is_recorded() -> None:
    program = Program(lambda x, n, s: [x * n + s], ["tensor", "number", "scalar"])
    for n, s in [(2, 0.0), (2, -0.0), (3, 1.5)] * 5:
        x, scalar = torch.zeros(3), torch.tensor(s, dtype=torch.float64)
        found, wanted = program(x - 1, n, scalar)[0], (x - 1) * n + scalar
        assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())
    assert program.recorded.recorded == 3


VIEWS = {
    "an argument": lambda x, w: [x, w, x + w],
    "a view of an argument": lambda x, w: [x.t(), w[1:], x[:, 1] + 1],
    "a result twice": lambda x, w: (lambda y: [y, y])(x * 2),
    "a view of a result": lambda x, w: (lambda y: [y, y[1:], y.t(), y[:, 1:2]])(x * 2 + w),
    "a view before its base": lambda x, w: (lambda y: [y[2:, 1], y])(x * 2 + w),
    "two parts": lambda x, w: (lambda y: [y[2:], y[:2]])(x * 2),
    "another dtype": lambda x, w: (lambda y: [y, y.view(torch.int32)[1], y.view(torch.uint8)[:, 3:]])(x * 2),
    "part of a large one": lambda x, w: [torch.cat([x] * 9)[:, 0]],
    "expanded": lambda x, w: [(x + 1)[:1].expand(7, 4), (x + 1).sum()],
    "nothing of a result": lambda x, w: (lambda y: [y[4:], y[1:3], y[:0], y])(x * 2),
    "nothing of nothing": lambda x, w: (lambda y: [y[2:, :0], y[:, 2:2]])(x * 2),
    "nothing": lambda x, w: [x[:0] * 2, (x * 2)[4:]],
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_that_share_memory(name: str) -> None:
    run = VIEWS[name]
    program = Program(run, ["tensor", "static"])
    w, before = torch.randn(4, 4), []
    for _ in range(6):
        x = torch.randn(4, 4)
        found, wanted = program(x, w), run(x, w)
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype
        before.append((found, [b.clone() for b in wanted]))
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert (a is x, a is w) == (b is x, b is w)
            for c, d in list(zip(found, wanted, strict=True))[:i]:
                assert (a is c) == (b is d)
                shares = a.untyped_storage().data_ptr() == c.untyped_storage().data_ptr()
                assert shares == (b.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()) or not a.numel()
                shares = shares and a.numel() and c.numel()
                assert not shares or a.data_ptr() - c.data_ptr() == b.data_ptr() - d.data_ptr()
    assert program.recorded.replays == 6 - WARM - 1
    for found, copies in before:
        assert all(torch.equal(a, b) for a, b in zip(found, copies, strict=True))


@pytest.mark.parametrize("kind", ["part", "expanded", "transposed", "strided", "sparse"])
def test_layouts_of_arguments(kind: str) -> None:
    program = Program(lambda x: [x * 2, x.sum()], ["tensor"])
    for _ in range(6):
        base = torch.randn(64 * 64)
        x = {
            "part": base[1:33].view(4, 8),
            "expanded": base[:8].expand(4, 8),
            "transposed": base[:32].view(8, 4).t(),
            "strided": base[:128].view(8, 16)[::2, ::2],
            "sparse": base.view(64, 64)[:, :1],
        }[kind]
        found = program(x)
        assert torch.equal(found[0], x * 2) and torch.equal(found[1], x.sum())
    assert program.recorded.replays


def test_each_stream_has_its_own() -> None:
    program = Program(lambda x: [x * 2], ["tensor"])
    for _ in range(6):
        for stream in (0, 7):
            program.gpu.now = stream
            x = torch.randn(3)
            assert torch.equal(program(x)[0], x * 2)
    assert program.recorded.recorded == 2 and len(graphs.POOLS.pools) == 2


def test_the_users_own_capture_runs_the_program() -> None:
    program = Program(lambda x: [x * 2], ["tensor"])
    for _ in range(5):
        program(torch.randn(3))
    calls, replays = program.calls, program.recorded.replays
    program.gpu.busy = True
    program(torch.randn(3))
    assert (program.calls, program.recorded.replays) == (calls + 1, replays)


def test_what_cannot_be_recorded_runs_on() -> None:
    program = Program(lambda x: [x * 2], ["tensor"])

    def record(work: Any, pool: Pool) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    program.gpu.record = record  # type: ignore[method-assign]
    for _ in range(5):
        x = torch.randn(3)
        assert torch.equal(program(x)[0], x * 2)
    assert program.recorded.reason == "operation not permitted when stream is capturing" and program.calls == 5
    assert all(not p.lock.locked() for p in graphs.POOLS.pools.values())


def test_threads() -> None:
    program = Program(lambda x: [x * 2 + 1], ["tensor"])

    def work(number: int) -> None:
        for k in range(200):
            x = torch.full((50,), number + k / 200)
            assert torch.equal(program(x)[0], x * 2 + 1)

    assert not together(work, 3) and program.recorded.replays


@pytest.mark.parametrize("sizes", [[], ["a0.shape[0]"]])
def test_large_results_are_not_copied(sizes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_COPIED", 1000)
    program = Program(lambda x: [x * 2, x, x[:5]], ["tensor"], sizes)
    for n in (200, 100):
        for _ in range(5):
            x = torch.randn(n)
            assert torch.equal(program(x)[0], x * 2)
    reason = "0 MiB of arguments and results would be copied in each call"
    assert (program.recorded.reason or program.recorded.note) == reason
    assert program.recorded.recorded == len(sizes)  # the smaller one, where sizes are told apart


def _sum(*args: Tensor) -> list[Tensor]:
    return [sum(args), *(a + 1 for a in args)]


@pytest.mark.parametrize("moving", [False, True])
def test_more_copies_than_kernels_are_not_worth_it(moving: bool) -> None:
    """Small arguments that stay where they are need none, when there are many."""
    program = Program(_sum, ["tensor"] * 6)
    program.recorded.steps, held = 4, []
    args = [torch.randn(3) for _ in range(6)]
    for _ in range(6):
        if moving:
            held.append(args)
            args = [a.clone() for a in args]
        for a, b in zip(program(*args), _sum(*args), strict=True):
            assert torch.equal(a, b)
    if moving:
        assert program.recorded.reason == "13 arguments and results would be copied for 4 kernels"
    else:
        assert program.recorded.placed == [0, 1, 2, 3, 4, 5] and program.recorded.replays == 6 - WARM - 1


def test_extent() -> None:
    base = torch.empty(4, 6)
    assert [extent(t) for t in (base, base[:, 1:3], base[:1].expand(9, 6), base[:0], base.t())] == [96, 80, 24, 0, 96]


def _half(x: Tensor, w: Tensor) -> list[Any]:
    hidden = (x @ w).exp()
    return [hidden.sum(), x, hidden, hidden.t(), hidden + 1, w]


def test_results_that_are_handed_out() -> None:
    """As forward's values for backward: no copies, the same places, and never written again while somebody holds them."""
    program = Program(_half, ["tensor", "static"])
    program.recorded.hand_out(range(1, 99), half=True)
    w = torch.randn(4, 4)
    places = set()
    for k in range(8):
        x = torch.randn(2, 4)
        moved = program.gpu.moved
        found = program(x, w)
        assert program.gpu.moved - moved == (2 if k >= WARM else 0)  # the argument, and the sum
        if k >= WARM:
            places.add((found[2].data_ptr(), found[4].data_ptr()))
        for a, b in zip(found, _half(x, w), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert found[1] is x and found[5] is w and found[3].data_ptr() == found[2].data_ptr()
        del found, a
    assert len(places) == 1
    for position in (2, 3, 4):
        x = torch.randn(2, 4)
        held = program(x, w)[position][1:]  # a view is enough
        wanted = _half(x, w)[position][1:]
        for _ in range(3):
            x = torch.randn(2, 4)
            for a, b in zip(program(x, w), _half(x, w), strict=True):
                assert torch.equal(a, b)
            del a
            assert torch.equal(held, wanted)
        assert program.recorded.recorded == 2  # results of another lie elsewhere
        del held
    replays = program.recorded.replays
    program(torch.randn(2, 4), w)
    assert program.recorded.replays == replays + 1


def test_gradients_that_are_added_up() -> None:
    """The first of each step stay in use while those of the others are added to them: these are played back elsewhere."""
    program = Program(lambda x, w: [(x @ w).sum(), x.t() @ x, w * x.sum()], ["tensor", "static"])
    program.recorded.hand_out(frozenset([1, 2]))
    w = torch.randn(4, 4)
    for step in range(6):
        total: list[Tensor] = []
        wanted = torch.zeros(2, 4, 4)
        before = program.recorded.replays
        for _ in range(4):
            x = torch.randn(3, 4)
            loss, *gradients = program(x, w)
            assert torch.equal(loss, (x @ w).sum())
            total = total or gradients
            if total is not gradients:
                torch._foreach_add_(total, gradients)
            wanted += torch.stack([x.t() @ x, w * x.sum()])
            del gradients
        torch.testing.assert_close(torch.stack(total), wanted)
        del total
        if step > 2:
            assert program.recorded.replays - before == 4
    assert program.recorded.recorded == 2 and program.recorded.replays >= 4 * 4


def test_what_lies_in_the_memory_of_another_recording_is_kept() -> None:
    """A spare's results may lie where the first recording has other values: it is not played back while one is in use."""
    program = Program(lambda x: [x * 2], ["tensor"])
    program.recorded.hand_out(range(1))
    held: list[tuple[Tensor, Tensor]] = []
    for number in range(40):
        x = torch.randn(3)
        held.append((program(x)[0], x * 2))
        assert all(torch.equal(a, b) for a, b in held)
        held = held[-(1 + number % 4) :] if number % 7 else []
    (made,) = program.recorded.made.values()
    assert program.recorded.recorded == 2 and program.recorded.replays > 10 and made.spare is not None
    held.clear()
    assert made.is_free()
    kept = made.spare.makers[0]((), [], 0)
    assert not made.is_free()
    del kept
    assert made.is_free()


def test_recordings_of_a_program_share_memory() -> None:
    """Of several sizes, with spares, dropped ones: whatever is held in whatever order is never written to."""
    rng = random.Random(3)
    program = Program(lambda x, w: [x * 2 + w, x.sum(), x - w], ["tensor", "static"], ["a0.shape[0]"])
    program.recorded.hand_out(frozenset([0, 2]))
    weights, held, memories = [torch.randn(()) for _ in range(3)], [], set()
    for number in range(600):
        x, w = torch.randn(rng.choice((2, 2, 2, 3, 3, 5))), weights[rng.randrange(1 + number // 200)]
        a, total, b = program(x, w)
        held += [(a, x * 2 + w), (b, x - w)]
        assert torch.equal(total, x.sum()) and all(torch.equal(*pair) for pair in held)
        del a, b
        memories |= {id(made.place.pool.memory) for made in program.recorded.made.values()}
        kept = rng.choice((0, 0, 0, 1, 2, 5))
        held = rng.sample(held, k=min(kept, len(held)))
    made = list(program.recorded.made.values())
    assert len(memories) == 1 and len(made) > 4 and any(m.spare for m in made)
    assert 150 < program.recorded.replays < 590


def test_results_of_a_recording_that_is_dropped_are_kept() -> None:
    program = Program(lambda x: [x * 2], ["tensor"], ["a0.shape[0]"])
    program.recorded.hand_out(range(1))
    for size in (2, 2, 2, 3, 3, 3):
        program(torch.ones(size))
    first, second = program.recorded.made
    held = program(torch.ones(3))[0]
    program.recorded._drop(second)
    replays = program.recorded.replays
    program(torch.ones(2))
    assert torch.equal(held, torch.full((3,), 2.0)) and program.recorded.replays == replays
    del held
    program(torch.ones(2))
    assert program.recorded.replays == replays + 1 and list(program.recorded.made) == [first]


def test_an_update_waits_for_backward() -> None:
    """Its gradients lie where backward's recording puts them from its sixth call on, and elsewhere in each call before: none is copied."""
    update = Program(lambda p, g: [p.sub_(g)][:0], ["written", "tensor"], keep=[p := torch.zeros(1 << 19)])
    update.recorded.take_handed()
    place, wanted = torch.empty(1 << 19), p.clone()
    for step in range(14):
        g = (place if step > 4 else torch.empty(1 << 19)).normal_()
        update(p, g)
        assert torch.equal(p, wanted.sub_(g))
    assert update.recorded.placed == [0, 1] and update.gpu.moved == 0
    assert update.recorded.replays == 14 - WARM - 6 - 1 and not update.recorded.reason


@pytest.mark.parametrize("handed", [False, True])
def test_sums_of_gradients_lie_at_several_places(handed: bool) -> None:
    """Where the recording of the first part puts them, and where earlier calls of it did: each is a place to add to, none is copied."""
    totals = [torch.zeros(4) for _ in range(3)]
    program = Program(lambda total, x: [total.add_(x)][:0], ["written", "tensor"], keep=totals)
    if handed:
        program.recorded.take_handed()
    wanted = [torch.zeros(4) for _ in totals]
    for k in (*[0] * 9, *[1] * 9, *[2] * 9, *[0, 1, 2] * 3):
        x = torch.randn(4)
        program(totals[k], x)
        wanted[k] += x
        assert torch.equal(totals[k], wanted[k])
    assert program.recorded.placed == ([0] if handed else [])
    assert len(program.recorded.made) == (3 if handed else 1)


def test_memory_that_torch_keeps_is_given_back_for_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    program, failures = Program(lambda x: [x * 2], ["tensor"]), [torch.OutOfMemoryError("no memory")]
    record = program.gpu.record

    def scarce(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return record(*args)

    monkeypatch.setattr(program.gpu, "record", scarce)
    for _ in range(5):
        x = torch.randn(3)
        assert torch.equal(program(x)[0], x * 2)
    assert program.gpu.released == 1 and program.recorded.recorded == 1 and not program.recorded.reason


def test_a_half_that_waits_for_the_other() -> None:
    """Its arguments lie at one place from the fourth call on only."""
    program = Program(lambda x: [x * 2], ["tensor"])
    program.recorded.hand_out(range(99), half=True, after_others=True)
    fixed, held = torch.empty(5), []
    for k in range(12):
        x = fixed if k > WARM else torch.empty(5)
        held.append(x.normal_())
        assert torch.equal(program(x)[0], x * 2)
    assert program.recorded.placed == [0] and program.recorded.replays == 12 - WARM - 3


# ---- parts of programs whose sizes are new in each call ----


def _sliding(piece: Callable[[Any], Any]) -> Callable[..., Any]:
    """Two parts, with steps between them whose sizes change; the second one is given a view that lies elsewhere in each call."""

    @piece
    def part0(w: Tensor, t: Tensor) -> Any:
        a = t @ w
        return a, a + 1, torch.arange(100.0) * a.sum()

    @piece
    def part1(a: Tensor, b: Tensor, c: Tensor, u: Tensor, w: Tensor) -> Any:
        return a * b + u + c, w

    def run(x: Tensor, w: Tensor) -> Any:
        a, b, c = part0(w, x.sum(0, keepdim=True))
        u = x.cumsum(0)
        y, same = part1(a, b, c[x.shape[0] : x.shape[0] + 4], u[-1:], w)
        return y, u, x, same, a, a[0]

    return run


def sliding() -> tuple[Program, list[Any]]:
    """A program whose parts are recorded, and its parts."""
    program = Program(_sliding(lambda part: part), ["tensor", "static"], ["a0.shape[0]"])
    made: list[Any] = []

    def make(piece: Any) -> Any:
        def remember(function: Any) -> Any:
            made.append(piece(function))
            return made[-1]

        return _sliding(remember)

    program.recorded.pieces = Pieces(make, program.gpu)  # type: ignore[arg-type]
    return program, made


def test_parts_of_growing_programs_are_recorded() -> None:
    program, parts = sliding()
    w, kept = torch.randn(4, 4), []
    for n in range(1, 40):
        if n == 25:
            w = torch.randn(4, 4)  # another parameter: the parts are recorded anew
        x = torch.randn(n, 4)
        found, wanted = program(x, w), _sliding(lambda part: part)(x, w)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert found[2] is x and found[3] is w
        assert found[5].untyped_storage().data_ptr() == found[4].untyped_storage().data_ptr()
        kept.append((found, [t.clone() for t in wanted]))
    for found, wanted in kept:
        torch.testing.assert_close(list(found), wanted, rtol=0, atol=0)
    assert program.calls == graphs.NEWS - 1 and len(parts) == 4
    assert program.recorded.pieces.recorded == 4 and program.recorded.recorded == 0  # type: ignore[union-attr]


def test_parts_are_not_recorded_where_parameters_move_all_the_time() -> None:
    program, parts = sliding()
    held = []
    for n in range(1, 40):
        held.append(torch.randn(4, 4))
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x, held[-1]), list(_sliding(lambda part: part)(x, held[-1])))
    assert len(parts) == 8 and program.calls > 20


def test_a_part_that_cannot_be_recorded_runs_on() -> None:
    program, parts = sliding()
    record = program.gpu.record

    def only_the_first(work: Any, pool: Pool) -> Any:
        if len(program.recorded.pieces.fixed) > 1:  # type: ignore[union-attr]
            raise RuntimeError("operation not permitted when stream is capturing")
        return record(work, pool)

    program.gpu.record = only_the_first  # type: ignore[method-assign]
    w = torch.randn(4, 4)
    for n in range(1, 30):
        x = torch.randn(n, 4)
        torch.testing.assert_close(list(program(x, w)), list(_sliding(lambda part: part)(x, w)))
    assert [p.is_plain for p in parts] == [False, True]


def test_a_thread_that_is_new_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver refuses for want of a context is asked for once more, and nothing else is."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("context"))

    def call(*args: int) -> int:
        told.append(f"call {args}")
        return 0

    assert in_context(700, call, 1) == 700 and not told
    assert in_context(INVALID_CONTEXT, call, 1, 2) == 0 and told == ["context", "call (1, 2)"]


# ---- programs with large results: a recording, and a tail that runs after it ----


def _head(x: Tensor, w: Tensor) -> list[Any]:
    hidden = (x @ w).exp()
    large = hidden @ w.new_ones(4, 100)
    return [large, hidden, x, large[1:], hidden[0], large.sum(), large, w]


def _first(x: Tensor, w: Tensor) -> list[Any]:
    return [(x @ w).exp()]


def _last(values: Any, x: Tensor, w: Tensor) -> list[Any]:
    (hidden,) = values
    large = hidden @ w.new_ones(4, 100)
    return [large, hidden, x, large[1:], hidden[0], large.sum(), large, w]


def _with_tail(run: Any, first: Any, last: Any, kinds: list[str], results: list[int], **options: Any) -> Program:
    program = Program(run, kinds, **options)
    program.recorded.divided = Divided(lambda: (first, last), 1, results)
    return program


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "SPARED", 500)
    monkeypatch.setattr(graphs, "MOST_COPIED", 500)


@pytest.mark.usefixtures("small_is_large")
def test_large_results_are_written_where_the_caller_has_them() -> None:
    """All calls' results stay right, also when their owners write to them."""
    program = _with_tail(_head, _first, _last, ["tensor", "static"], [0, 3, 5, 6])
    w, kept = torch.randn(4, 4), []
    for k in range(WARM + 6):
        x = torch.randn(3, 4)
        moved = program.gpu.moved
        found, wanted = program(x, w), _head(x, w)
        assert program.gpu.moved - moved == (2 if k > WARM else 0)  # the argument, and one result with its view
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert found[2] is x and found[7] is w and found[0] is found[6]
        assert found[3].data_ptr() == found[0][1:].data_ptr() and found[4].data_ptr() == found[1].data_ptr()
        kept.append((found, wanted))
        if k % 2:
            for a, b in zip((found[0], found[1]), (wanted[0], wanted[1]), strict=True):
                a.mul_(2)
                b.mul_(2)
    assert program.recorded.replays == 5 and program.recorded.recorded == program.recorded.endings == 1
    assert program.calls == WARM + 1 and not program.recorded.reason
    for found, wanted in kept:
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    for number in (0, 1):
        assert len({found[number].data_ptr() for found, _ in kept}) == len(kept)


@pytest.mark.usefixtures("small_is_large")
def test_a_tail_sees_what_a_recording_wrote_to_an_argument() -> None:
    def run(x: Tensor, state: Tensor) -> list[Any]:
        state.add_(x)
        return [state.repeat(100), state[1:]]

    def first(x: Tensor, state: Tensor) -> list[Any]:
        state.add_(x)
        return []

    program = _with_tail(
        run, first, lambda values, x, state: [state.repeat(100), state[1:]], ["tensor", "written"], [0]
    )
    eager, held = torch.zeros(6), []
    ours = torch.zeros(6)
    for _ in range(10):
        held.append(ours)
        ours = ours.clone()  # so it is copied in, and back before the tail
        program.gpu.kept = [ours]
        x = torch.randn(6)
        found = program(x, ours)
        assert torch.equal(found[0], run(x, eager)[0]) and torch.equal(ours, eager)
        assert found[1].data_ptr() == ours[1:].data_ptr()
    assert program.recorded.endings == 1 and program.recorded.placed == []


@pytest.mark.usefixtures("small_is_large")
def test_where_a_tail_is_not_worth_it_the_whole_program_is_recorded() -> None:
    program = _with_tail(_head, _first, _last, ["tensor", "static"], [0, 3, 5, 6], sizes=["a0.shape[0]"])
    w = torch.randn(4, 4)
    for rows, endings in ((1, 0), (3, 1)):
        for _ in range(WARM + 3):
            x = torch.randn(rows, 4)
            for a, b in zip(program(x, w), _head(x, w), strict=True):
                assert torch.equal(a, b)
        assert program.recorded.endings == endings
    assert program.recorded.recorded == 2 and program.recorded.replays == 4 and not program.recorded.note


@pytest.mark.usefixtures("small_is_large")
def test_what_shares_memory_with_an_argument_is_not_given_to_a_tail() -> None:
    """It would see the recording's copy of the argument where the user is to see the argument."""
    run, w = (lambda x, w: [x[1:], (x @ w).repeat(1, 50)]), torch.randn(4, 4)
    program = _with_tail(
        run,
        lambda x, w: [x[1:], x @ w],
        lambda values, x, w: [values[0], values[1].repeat(1, 50)],
        ["tensor", "static"],
        [1],
    )
    for _ in range(8):
        x = torch.randn(4, 4)
        found = program(x, w)
        assert all(torch.equal(a, b) for a, b in zip(found, run(x, w), strict=True))
        assert found[0].data_ptr() == x[1:].data_ptr()
    assert program.recorded.divided is None and program.recorded.recorded == 0
    assert "would be copied" in program.recorded.reason


@pytest.mark.usefixtures("small_is_large")
def test_threads_and_tails() -> None:
    program = _with_tail(_head, _first, _last, ["tensor", "static"], [0, 3, 5, 6])
    w = torch.randn(4, 4)

    def work(number: int) -> None:
        kept = []
        for k in range(100):
            x = torch.full((3, 4), number / 8 + k / 2000)
            kept.append((program(x, w), _head(x, w)))
        for found, wanted in kept:
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))

    assert not together(work, 3) and program.recorded.endings == 1


@pytest.mark.usefixtures("small_is_large")
def test_a_tail_that_fails_leaves_no_lock() -> None:
    failing = [False]

    def last(values: Any, x: Tensor, w: Tensor) -> list[Any]:
        if failing[0]:
            raise torch.OutOfMemoryError("no memory for the result")
        return _last(values, x, w)

    program, w = _with_tail(_head, _first, last, ["tensor", "static"], [0, 3, 5, 6]), torch.randn(4, 4)
    for _ in range(WARM + 2):
        program(torch.randn(3, 4), w)
    failing[0] = True
    with pytest.raises(torch.OutOfMemoryError):
        program(torch.randn(3, 4), w)
    failing[0] = False
    replays, x = program.recorded.replays, torch.randn(3, 4)
    assert torch.equal(program(x, w)[0], _head(x, w)[0]) and program.recorded.replays == replays + 1


def test_halves_of_training_have_no_tail() -> None:
    program = _with_tail(_half, _first, _last, ["tensor", "static"], [0])
    program.recorded.hand_out(range(1, 99), half=True)
    w = torch.randn(4, 4)
    for _ in range(6):
        x = torch.randn(2, 4)
        assert torch.equal(program(x, w)[0], _half(x, w)[0])
    assert program.recorded.recorded == 1 and program.recorded.endings == 0


def test_gradients_whose_storage_was_asked_for_are_played_again() -> None:
    """Guards of a compiled optimizer ask for the storages of gradients: who does so is no user of the memory once the gradient is gone."""
    program = _with_tail(_half, _first, _last, ["tensor", "static"], [0])
    program.recorded.hand_out(range(99), half=True)
    w, kept = torch.randn(4, 4), None
    for number in range(12):
        x = torch.randn(2, 4)
        results = program(x, w)
        assert all(torch.equal(a, b) for a, b in zip(results, _half(x, w), strict=True))
        storages = [r.untyped_storage() for r in results]
        if number == 8:
            kept = storages, [r.clone() for r in results]
        del results, storages
    assert kept is not None
    for storage, before in zip(*kept, strict=True):
        assert torch.equal(before.new_empty(0).set_(storage, 0, before.shape, before.stride()), before)
    assert program.recorded.recorded == 2 and program.recorded.replays >= 5


def test_numbers_on_the_cpu_among_arguments_and_results() -> None:
    """Library calls of attention save the state of the random generator there, for backward."""
    program = Program(lambda x, seed: [x + seed, seed + 1], ["tensor", "tensor"])
    holds = program.gpu.holds
    program.gpu.holds = lambda t: t.dim() > 0 and holds(t)  # type: ignore[method-assign]
    seeds = [torch.tensor(float(n)) for n in (1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2)]
    for seed in seeds:
        x = torch.randn(3)
        result, number = program(x, seed)
        assert torch.equal(result, x + seed) and torch.equal(number, seed + 1)
    assert program.recorded.recorded == 2 and program.recorded.replays > 0


def test_an_argument_that_is_not_on_the_gpu() -> None:
    program = Program(lambda x, y: [x + y], ["tensor", "tensor"])
    y = torch.ones(3)
    program.gpu.away = [y]
    for _ in range(2 * WARM + 3):
        assert torch.equal(program(torch.ones(3), y)[0], torch.full((3,), 2.0))
    assert program.recorded.reason == "an argument is on the CPU"


def _waiting(module: str, done: threading.Event, kind: type[threading.Thread] = threading.Thread) -> threading.Thread:
    """A thread that waits, by a function (or of a class) of that module."""

    def wait() -> None:
        done.wait()

    wait.__module__ = module if kind is threading.Thread else __name__
    return kind(target=wait, name=f"of {module}", daemon=True)


@pytest.mark.parametrize("module", [*QUIET, *(f"{m}.part" for m in QUIET), "tqdmx", "torch.utils.data", "__main__"])
@pytest.mark.parametrize("derived", [False, True])
def test_threads_that_may_draw_while_a_program_is_recorded(module: str, derived: bool) -> None:
    """A program that draws random numbers is not recorded beside them; helpers of libraries, and a thread that has ended, do not count."""
    before, done = drawing_threads(), threading.Event()
    kind = type("Kind", (threading.Thread,), {"__module__": module}) if derived else threading.Thread
    thread = _waiting(module, done, kind)
    thread.start()
    found = [name for name in drawing_threads() if name not in before]
    done.set()
    thread.join()
    assert found == ([] if module.removesuffix(".part") in QUIET else [f"of {module}"])
    assert f"of {module}" not in drawing_threads()
