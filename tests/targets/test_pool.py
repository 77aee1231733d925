"""Memory of large results is used again only when nobody else can reach it."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.targets.host import pool
from intarsia.targets.host.pool import MOST, Results, kept_bytes
from intarsia.targets.torch_private import counts_uses

pytestmark = pytest.mark.skipif(not counts_uses, reason="this torch does not tell how often a storage is used")

ROWS, WIDTH = 2048, 1024
SIZE = ROWS * WIDTH * 4


@pytest.fixture(scope="module")
def frozen():
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def empty_pool(frozen):
    """No memory is kept; collections look at what the test makes only, not at the millions of objects from before."""
    intarsia.reset()
    gc.collect()
    gc.freeze()
    yield
    intarsia.reset()


def double(x):
    return x * 2.0 + 1.0


def compiled(fn=double, **options):
    return intarsia.compile(fn, options={"on_error": "raise"} | options)


def slot(limit=1 << 40):
    return Results(limit).slot(0, (ROWS, WIDTH), (WIDTH, 1), torch.float32)


def test_dropped_memory_is_used_again():
    fast, x = compiled(), torch.randn(ROWS, WIDTH)
    first = fast(x).data_ptr()
    for _ in range(5):
        assert fast(x).data_ptr() == first
    assert intarsia.counters()["result_bytes"] == SIZE
    torch.testing.assert_close(fast(x), double(x))


def test_a_loop_that_holds_the_last_result_takes_turns():
    fast, y = compiled(lambda x: x + 1.0), torch.zeros(ROWS, WIDTH)
    places = set()
    for _ in range(8):
        y = fast(y)
        places.add(y.data_ptr())
    assert bool((y == 8).all()) and len(places) == 2


def test_small_results_are_not_looked_at():
    before = set(pool.SLOTS)
    fast = compiled()
    fast(torch.randn(64, 64))
    assert kept_bytes() == 0 and set(pool.SLOTS) <= before


def by_view(t):
    return t[5:9]


def by_numpy(t):
    return t.numpy()


def by_numpy_view(t):
    return t.numpy()[3:, ::2]


def by_numpy_and_back(t):
    return torch.from_numpy(t.numpy())


def by_memoryview(t):
    return memoryview(t.numpy())


def by_dlpack(t):
    return torch.utils.dlpack.to_dlpack(t)


def by_numpy_dlpack(t):
    return np.from_dlpack(t)


def by_dlpack_and_back(t):
    return torch.from_dlpack(t)


def by_storage(t):
    return t.untyped_storage()


def by_typed_storage(t):
    return t.storage()


def by_set(t):
    return torch.empty(0).set_(t)


def by_data(t):
    return t.data


def by_detach(t):
    return t.detach()


def by_shallow_copy(t):
    return copy.copy(t)


def by_parameter(t):
    return nn.Parameter(t)


def by_other_dtype(t):
    return t.view(torch.int32)


def by_sparse(t):
    return torch.sparse_coo_tensor(torch.zeros(1, ROWS, dtype=torch.int64), t, (1, WIDTH))


def by_graph(t):
    weight = torch.ones(ROWS, WIDTH, requires_grad=True)
    return (t * weight).sum()  # backward needs t


def by_view_with_history(t):
    return t.requires_grad_().view(-1)[3:].grad_fn, t.grad_fn, t.view(WIDTH, ROWS)


HOLDERS = [
    by_view,
    by_numpy,
    by_numpy_view,
    by_numpy_and_back,
    by_memoryview,
    by_dlpack,
    by_numpy_dlpack,
    by_dlpack_and_back,
    by_storage,
    by_typed_storage,
    by_set,
    by_data,
    by_detach,
    by_shallow_copy,
    by_parameter,
    by_other_dtype,
    by_sparse,
    by_graph,
    by_view_with_history,
]


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda h: h.__name__)
def test_memory_that_is_held_in_any_way_is_left_alone(hold):
    make = slot()
    make()
    first = make()
    place = first.data_ptr()
    with torch.enable_grad():
        held = hold(first)
    del first
    gc.collect()
    others = [make() for _ in range(3)]
    assert place not in [t.data_ptr() for t in others]
    assert held is not None


def test_what_backward_needs_stays():
    fast = compiled()
    x, weight = torch.randn(ROWS, WIDTH), torch.ones(ROWS, WIDTH, requires_grad=True)
    with torch.no_grad():
        expected = double(x)
        held = fast(x)
    loss = (held * weight).sum()
    del held
    with torch.no_grad():
        for _ in range(4):
            fast(-x)
    loss.backward()
    torch.testing.assert_close(weight.grad, expected)


def test_training():
    fast = compiled(lambda x, w: torch.sigmoid(torch.sin(x) * w))
    x = torch.randn(ROWS, WIDTH)
    for step in range(3):
        w = torch.full((ROWS, WIDTH), 1.0 + step, requires_grad=True)
        other = w.detach().clone().requires_grad_()
        fast(x, w).sum().backward()
        torch.sigmoid(torch.sin(x) * other).sum().backward()
        torch.testing.assert_close(w.grad, other.grad)


def test_two_results_lie_apart():
    fast, x = compiled(lambda x: (x + 1.0, x - 1.0)), torch.randn(ROWS, WIDTH)
    for _ in range(4):
        a, b = fast(x)
        torch.testing.assert_close(a, x + 1.0)
        torch.testing.assert_close(b, x - 1.0)


def test_a_result_may_be_resized_and_set():
    fast, x = compiled(), torch.randn(ROWS, WIDTH)
    for _ in range(3):
        grown = fast(x)
        kept = grown[0].clone()
        grown.resize_(2 * ROWS, WIDTH)
        assert torch.equal(grown[0], kept)
        other = fast(x)
        assert other.shape == (ROWS, WIDTH) and torch.equal(other[0], kept)
        other.untyped_storage().resize_(0)
        third = fast(x)
        assert torch.equal(third[0], kept) and third.untyped_storage().nbytes() == SIZE
        third.set_(torch.zeros(3))
        assert torch.equal(fast(x)[0], kept)


def test_memory_that_was_made_shared_belongs_to_other_processes():
    make = slot()
    first = make().fill_(3.0)
    place = first.data_ptr()
    first.share_memory_()
    with open(f"/proc/{os.getpid()}/maps") as maps:
        assert maps.read()
    pickle.dumps(first.shape)
    moved = first.data_ptr()
    assert moved != place
    del first
    assert moved not in [make().data_ptr() for _ in range(3)]


def test_a_lazy_clone_keeps_its_values():
    make = slot()
    first = make().fill_(3.0)
    clone = torch._lazy_clone(first)
    del first
    for _ in range(3):
        make().fill_(5.0)
    assert bool((clone == 3.0).all())


def test_weak_references_to_storages_do_not_bring_memory_back():
    import weakref

    make = slot()
    first = make()
    weak = weakref.ref(first.untyped_storage())
    place = first.data_ptr()
    del first
    later = make()
    assert weak() is None or later.data_ptr() != place


def test_a_result_is_a_new_tensor_each_time():
    fast, x = compiled(), torch.randn(ROWS, WIDTH)
    fast(x).add_(1).requires_grad_()
    again = fast(x)
    assert again._version == 0 and not again.requires_grad and not again._is_view() and again._base is None
    assert again.is_leaf and again.is_contiguous() and again.storage_offset() == 0


def test_inference_mode():
    make = slot()
    plain = make()
    assert not plain.is_inference()
    del plain
    for _ in range(3):
        with torch.inference_mode():
            inside = make()
        assert inside.is_inference()
        outside = make()
        assert not outside.is_inference()
        outside.add_(1)  # an inference tensor would refuse that here
        del inside, outside


def test_every_value_is_written():
    """What an earlier result left behind is not seen: also rows that a kernel skips, or a part that is padding."""

    def f(x):
        return (
            torch.nn.functional.pad(torch.tril(x), (0, 64)),
            torch.cat([x, x * 0], 1),
            torch.zeros_like(x).index_add(0, torch.tensor([1, 5]), x[:2]),
        )

    fast, x = compiled(f), torch.randn(ROWS, WIDTH)
    for result in fast(x):
        result.fill_(float("nan"))
    for found, expected in zip(fast(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_threads():
    fast, wrong = compiled(), []
    fast(torch.zeros(ROWS, WIDTH))

    def work(number):
        x = torch.full((ROWS, WIDTH), float(number))
        held = []
        for k in range(12):
            held.append(fast(x))
            held = held[-(1 + (number + k) % 3) :]
            time.sleep(0)
            if not all(bool((h == number * 2.0 + 1.0).all()) for h in held):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_fork_has_memory_of_its_own():
    """With one thread: OpenMP's others are not in the child, which would wait for them for ever, in eager, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fast, x = compiled(), torch.ones(ROWS, WIDTH)
        held = fast(x)
        fast(x)
        child = os.fork()
        if child == 0:
            fine = bool((make_three(fast, x) == 3.0).all()) and bool((held == 3.0).all())
            held.fill_(7.0)
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((held == 3.0).all())
    finally:
        torch.set_num_threads(before)


def make_three(fast, x):
    return [fast(x) for _ in range(3)][-1]


def test_at_most_what_the_last_calls_used_is_kept():
    make = slot()
    held = [make() for _ in range(20)]
    assert kept_bytes() == MOST * SIZE
    del held
    for _ in range(pool.RECENT + 1):
        make()
    assert kept_bytes() == SIZE


def test_limit():
    fast, x = compiled(result_memory=20), torch.randn(ROWS, WIDTH)  # room for two
    held = [fast(x) for _ in range(4)]
    assert kept_bytes() == 2 * SIZE
    del held
    torch.testing.assert_close(fast(x), double(x))
    assert kept_bytes() <= 20 << 20


def test_another_function_gets_room():
    one, two, x = compiled(result_memory=12), compiled(lambda x: x - 1.0, result_memory=12), torch.randn(ROWS, WIDTH)
    one(x)
    two(x)
    assert kept_bytes() == SIZE
    place = two(x).data_ptr()
    assert two(x).data_ptr() == place


def test_switched_off():
    fast, x = compiled(result_memory=False), torch.randn(ROWS, WIDTH)
    torch.testing.assert_close(fast(x), double(x))
    assert kept_bytes() == 0


def test_memory_goes_with_the_function_and_with_reset():
    fast, x = compiled(), torch.randn(ROWS, WIDTH)
    fast(x)
    assert kept_bytes() == SIZE
    intarsia.reset()
    assert kept_bytes() == 0
    again = compiled()
    again(x)
    assert kept_bytes() == SIZE
    del again
    gc.collect()
    gc.collect()  # the first one ends what is known about the graph
    assert kept_bytes() == 0


def test_idle_memory_is_given_back_before_there_is_none(monkeypatch):
    other, make = slot(), slot()
    other()
    asked = []

    def scarce(shape, strides, dtype):
        asked.append(kept_bytes())
        if asked[-1]:
            raise RuntimeError("can't allocate memory")
        return torch.empty_strided(shape, strides, dtype=dtype)

    monkeypatch.setattr(pool, "empty_strided_cpu", scarce)
    held = make()
    assert asked == [SIZE, 0] and held.shape == (ROWS, WIDTH)
    with pytest.raises(RuntimeError, match="allocate"):  # none is idle
        slot()()


def test_sizes_known_at_the_call():
    fast = compiled(lambda x: torch.cat([x * 2.0, x]))
    for rows in (16, 1030, 1500, 1500, 1200, 1500, 17):
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(fast(x), torch.cat([x * 2.0, x]))
    x = torch.ones(1500, WIDTH)
    place = fast(x).data_ptr()
    assert fast(x).data_ptr() == place
    assert kept_bytes() <= 2 * 3000 * WIDTH * 4


def test_explain_says_it():
    explained = intarsia.explain(double)(torch.randn(ROWS, WIDTH))
    assert explained.graphs[0].result_memory == SIZE
    assert "8 MiB of large results used again once dropped" in str(explained)


def test_memory_whose_storage_was_asked_for_is_used_again():
    """torch keeps the Python object of a storage for as long as the storage lives: it is no user of it, but a reference to it is."""
    make = slot()
    first = make()
    place = first.data_ptr()
    storage = first.untyped_storage()
    del first
    other = make()
    assert other.data_ptr() != place
    del storage, other
    both = make(), make()
    places = {found.data_ptr() for found in both}
    assert place in places
    del both
    for _ in range(6):
        found = make()
        assert found.data_ptr() in places
        found.untyped_storage().data_ptr()
        del found


CHURN = """
import resource, torch, intarsia
torch.set_num_threads(1)
def step(x, weights):
    values = [x @ w for w in weights]
    for value in reversed(values):
        x = x @ value
    return x[0, 0].clone()
x, weights = torch.randn(384, 384), [torch.randn(384, 384) / 20 for _ in range(24)]
step = intarsia.compile(step)
for _ in range(4): step(x, weights)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4): step(x, weights)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4)
"""


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="glibc"
)
def test_what_libraries_give_and_take_back_stays_in_the_heap():
    """Without it a call takes as many fresh pages as its values have: 3,000."""
    done = subprocess.run([sys.executable, "-c", CHURN], capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) < 200, done
