"""Several threads at once: no thread waits for another, and nothing is compiled twice or wrong."""

import threading
import warnings

import pytest
import torch
from torch import nn

import intarsia

SECONDS = 60.0


def together(work, count):
    """Run `work(k)` on so many threads at once; what they raise is raised."""
    start, errors = threading.Barrier(count), []

    def run(k):
        start.wait(SECONDS)
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(t.is_alive() for t in threads), "a deadlock"
    if errors:
        raise errors[0]


def test_gradients_on_eight_threads_are_compiled_once():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    fast = intarsia.compile(model, options={"on_error": "raise"})
    before = intarsia.counters()

    def work(k):
        for _ in range(4):
            found = torch.autograd.grad(fast(x + 0).sum(), list(model.parameters()))
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together(work, 8)
    after = intarsia.counters()
    assert after["graphs"] - before["graphs"] == 2  # forward and backward
    assert after["fallbacks"] == before["fallbacks"] and len(fast._runtime.entries) == 1


def test_different_functions_are_compiled_while_a_capture_waits_for_the_program():
    inside, lock = threading.Event(), threading.Lock()

    def slow(gm, inputs):
        inside.set()
        with lock:
            return gm.forward

    waits = intarsia.compile(lambda x: x + 1, backend=slow)
    other = intarsia.compile(lambda x: x + 2, backend="eager")
    x, results = torch.ones(3), {}

    def call(name, function):
        results[name] = function(x)

    first = threading.Thread(target=call, args=("waits", waits), daemon=True)
    with lock:
        first.start()
        assert inside.wait(SECONDS)
        for name, function in (("other", other), ("same", waits)):  # the same one runs in eager meanwhile
            thread = threading.Thread(target=call, args=(name, function), daemon=True)
            thread.start()
            thread.join(SECONDS)
            assert name in results, "a deadlock"
    first.join(SECONDS)
    assert torch.equal(results["waits"], x + 1) and torch.equal(results["same"], x + 1)
    assert torch.equal(results["other"], x + 2) and len(waits._intarsia_runtime.entries) == 1


def test_entries_run_under_no_lock():
    """A call that fits something compiled by another thread meanwhile, and waits for a third."""
    lock, called = threading.Lock(), threading.Event()

    @intarsia.disable
    def wait():
        called.set()
        with lock:
            pass

    @intarsia.compile(backend="eager")
    def f(x):
        y = x + 1
        wait()
        return y * 2

    g = intarsia.compile(lambda x: x * 3, backend="eager")
    x, results = torch.ones(3), []
    threads = [threading.Thread(target=lambda: results.append(f(x)), daemon=True) for _ in range(3)]
    with lock:
        for thread in threads:
            thread.start()
        assert called.wait(SECONDS)
        other = threading.Thread(target=lambda: results.append(g(x)), daemon=True)
        other.start()
        other.join(SECONDS)
        assert len(results) == 1, "a deadlock"
    for thread in threads:
        thread.join(SECONDS)
    assert len(results) == 4


def test_a_reset_while_another_thread_compiles_drops_what_it_makes():
    inside, go = threading.Event(), threading.Event()

    def slow(gm, inputs):
        inside.set()
        assert go.wait(SECONDS)
        return gm.forward

    f = intarsia.compile(lambda x: x + 1, backend=slow)
    results = []
    thread = threading.Thread(target=lambda: results.append(f(torch.ones(2))), daemon=True)
    thread.start()
    assert inside.wait(SECONDS)
    intarsia.reset()
    go.set()
    thread.join(SECONDS)
    assert torch.equal(results[0], torch.full((2,), 2.0)) and not f._intarsia_runtime.entries
    f(torch.ones(2))
    assert len(f._intarsia_runtime.entries) == 1


def test_tracing_a_graph_with_gradients_leaves_module_calls_alone():
    """torch.fx puts wrappers into nn.Module while it traces, which other threads' captures would see."""
    seen = set()
    call, get = nn.Module.__call__, nn.Module.__getattr__

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.add((nn.Module.__call__ is call, nn.Module.__getattr__ is get))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    @torch.compiler.allow_in_graph
    def look(x):
        return Look.apply(x)

    f = intarsia.compile(lambda x: look(x).sum())
    x = torch.ones(3, requires_grad=True)
    f(x).backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0)) and seen == {(True, True)}


def test_legitimate_exceptions_do_not_switch_compilation_off():
    @intarsia.compile(backend="eager")
    def f(x, n):
        if n < 0:
            raise ValueError(n)
        return x + n

    x = torch.ones(3)
    for n in range(-40, 0):
        with pytest.raises(ValueError, match=str(n)):
            f(x, n)
    runtime = f._intarsia_runtime
    assert not runtime.off and len(runtime.raising) <= 8
    f(x, 3)
    assert any(c is not None for c in runtime.captures)


def test_a_call_that_raised_is_captured_once_it_does_not():
    class Box:
        ready = False

    def f(x):
        if not box.ready:
            raise ValueError("not ready")
        return x + 1

    box = Box()
    fast, x = intarsia.compile(f, backend="eager"), torch.ones(3)
    for _ in range(3):
        with pytest.raises(ValueError, match="not ready"):
            fast(x)
    assert len(fast._intarsia_runtime.raising) == 1
    box.ready = True
    assert torch.equal(fast(x), x + 1)
    assert any(c is not None for c in fast._intarsia_runtime.captures)
