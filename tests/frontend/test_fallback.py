"""What is not captured: the whole call runs in eager with one warning, or raises with fullgraph=True."""

import enum
import functools
import logging
import os
import random
import threading
import time
import warnings

import pytest
import torch
from harness import compiled, only_capture_raises

import intarsia
from intarsia.frontend.entry.capture import capture
from intarsia.frontend.errors import GraphBreak, Unsupported

X = torch.randn(4, 8)


def reads_item(x):
    n = x.sum().item()
    return x + n


def branches(x):
    if x.sum() > 0:
        return x
    return -x


def widens(x):
    if x.sum() > 0:
        return x
    return x.double()


def prints(x):
    print("hello")
    return x


def to_numpy(x):
    return torch.from_numpy(x.numpy() + 1)


def makes_class(x):
    class Inner(enum.Enum):
        ONE = 1

    return x, Inner


def by_index(x):
    return [1, 2, 3][torch.tensor([1]).sum() + x.long().sum()]


CASES = [
    (reads_item, GraphBreak, "n = x.sum().item()", ".item()"),
    (branches, GraphBreak, "if x.sum() > 0:", "control flow depends on a tensor's value"),
    (prints, GraphBreak, 'print("hello")', "print is called"),
    (to_numpy, GraphBreak, "x.numpy()", "NumPy"),
    (makes_class, Unsupported, "class Inner(enum.Enum):", "class"),
    (by_index, GraphBreak, "[1, 2, 3]", "index"),
]


@pytest.mark.parametrize(("function", "kind", "line", "reason"), CASES, ids=lambda v: getattr(v, "__name__", None))
def test_errors_name_the_line(function, kind, line, reason):
    with torch.no_grad(), pytest.raises((Unsupported, GraphBreak)) as caught:
        capture(function, (X,), {})
    error = caught.value
    assert error.filename == __file__ and line in error.line and reason in error.reason
    text = str(error)
    assert line in text.splitlines()[0] and len(text.splitlines()) <= 15 and "what to do" in text


@pytest.mark.parametrize("function", [reads_item, widens], ids=lambda f: f.__name__)
def test_a_break_splits_the_call_with_one_log_line(function, caplog):
    fast, log = compiled(function)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "intarsia"):
        for _ in range(3):
            torch.testing.assert_close(fast(X), function(X))
    assert len(caplog.records) == 1 and "graph break at" in caplog.text and __file__ in caplog.text
    assert len(log.breaks) == 1 and log.fallbacks == []
    with torch.no_grad(), pytest.raises(GraphBreak):
        compiled(function, fullgraph=True)[0](X)


def test_failed_capture_changes_nothing():
    seen = []
    state = torch.nn.BatchNorm1d(8)

    def f(x):
        seen.append(1)
        y = state(x) + torch.rand(())
        return y.sum().item()

    rng = torch.get_rng_state()
    with torch.no_grad(), pytest.raises(GraphBreak):
        capture(f, (X,), {})
    assert seen == [] and state.num_batches_tracked == 0 and torch.equal(rng, torch.get_rng_state())
    assert torch.is_grad_enabled()


def test_grad_mode_is_guarded():
    net = torch.nn.Linear(8, 8)
    fast, log = compiled(net)
    fast(X).sum().backward()
    expected = torch.autograd.grad(net(X).sum(), net.weight)[0]
    torch.testing.assert_close(net.weight.grad, expected)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X))
    assert len(log.captures) == 2 and log.fallbacks == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (X.to_mkldnn(), "layout"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.nested.nested_tensor([X[0], X[1]]), "nested|layout"),
        (torch.randn(3, dtype=torch.complex64).conj(), "conjugate"),
    ],
)
def test_unsupported_tensors(value, reason):
    with torch.no_grad(), pytest.raises(Unsupported, match=reason):
        capture(lambda x: x + x, (value,), {})
    fast, _ = compiled(lambda x, y: (x.detach(), y + y))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(value, X)
        dense, y = fast(X, X)
    torch.testing.assert_close(y, X + X)


def test_module_on_the_meta_device():
    with torch.device("meta"):
        net = torch.nn.Linear(8, 8)
    with torch.no_grad(), pytest.raises(Unsupported, match="self.weight is on the meta device"):
        capture(net, (X,), {})


def test_the_programs_own_errors_are_its_own():
    def f(x):
        raise ValueError("mine")

    fast, _ = compiled(f, fullgraph=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            fast(X)
    fast2, _ = compiled(lambda x: x @ x, fullgraph=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fast2(X)
    with pytest.raises(TypeError):
        fast2(X, 1, 2)


def test_an_error_that_only_capture_sees(caplog):
    def f(x):
        only_capture_raises()
        return x + 1

    fast, log = compiled(f)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), X + 1)
    assert "capture sees ValueError: not while compiling" in caplog.text
    assert "only_capture_raises()" in log.fallbacks[0][2]
    with torch.no_grad(), pytest.raises(Unsupported, match="eager does not"):
        compiled(f, fullgraph=True)[0](X)


def test_maximum_of_tensors_is_a_break():
    with torch.no_grad(), pytest.raises(GraphBreak):
        capture(lambda x: max(x.sum(), x.mean().double()), (X,), {})


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_grad_enabled(False).__enter__(),
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: random.random(),
        lambda: os.mkdir("/nonexistent/frontend-test"),
        lambda: time.time(),
        lambda: open("/dev/null"),
    ],
)
def test_effects_on_the_outside_are_refused(change):
    before = torch.get_rng_state(), torch.get_default_dtype(), torch.backends.cuda.flash_sdp_enabled()
    with torch.no_grad(), pytest.raises((Unsupported, GraphBreak)):
        capture(lambda x: (change(), x + 1)[1], (X,), {})
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_default_dtype(), torch.backends.cuda.flash_sdp_enabled())
    assert not torch.are_deterministic_algorithms_enabled()


def test_environment_variables_are_guarded(monkeypatch):
    monkeypatch.setenv("FRONTEND_TEST", "1")
    fast, log = compiled(
        lambda x: x + int(os.environ.get("FRONTEND_TEST", "0")) + int(os.getenv("NO_SUCH", "5")), fullgraph=True
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(X), X + 6)
        monkeypatch.setenv("FRONTEND_TEST", "2")
        torch.testing.assert_close(fast(X), X + 7)
        monkeypatch.setenv("NO_SUCH", "7")
        torch.testing.assert_close(fast(X), X + 9)
    assert len(log.captures) == 3


def test_logging_and_warnings_are_replayed(caplog):
    logger = logging.getLogger("frontend.test")

    def f(x):
        logger.warning("seen %d", 3)
        warnings.warn("careful", stacklevel=1)
        return x + 1

    fast, _ = compiled(f, fullgraph=True)
    for n in (1, 2):
        with torch.no_grad(), pytest.warns(UserWarning, match="careful"):
            fast(X)
        assert caplog.messages == ["seen 3"] * n


def test_transforms_are_refused_and_right():
    fast, _ = compiled(lambda x: x.sin())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.vmap(fast)(X), X.sin())
        torch.testing.assert_close(torch.func.grad(lambda v: fast(v).sum())(X), X.cos())


def test_interrupt_leaves_no_broken_state():
    calls = []

    def backend(module, inputs):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return module.forward

    from intarsia.frontend.runtime.callable import compile_callable

    fast = compile_callable(lambda x: x + 1, backend=backend)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        fast(X)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), X + 1)


def test_two_threads_capture_at_once():
    results, errors = {}, []

    def work(n):
        def f(x):
            for _ in range(30):
                x = torch.sin(x) + n
            return x

        try:
            with torch.no_grad():
                fast, log = compiled(f, fullgraph=True)
                results[n] = torch.equal(fast(X), f(X)) and len(log.captures) == 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and results == dict.fromkeys(range(4), True)


def test_deep_recursion_is_refused():
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    fast, log = compiled(down)
    with torch.no_grad():
        torch.testing.assert_close(fast(X, 300), X + 300)
    assert "deeper" in log.breaks[0].reason


def writes_one(x, y):
    y.add_(1)
    return x * 2


def test_explain_names_the_argument_whose_memory_is_shared_and_what_to_do():
    base = torch.zeros(8)
    explained = intarsia.explain(writes_one)(base[:4], base[2:6])
    (found,) = explained.fallbacks
    assert found.reason == "y is written to, and x shares its memory"
    assert "clone()" in found.remedy and found.remedy in " ".join(str(explained).split())


def test_a_wrong_call_raises_in_the_words_of_eager():
    class Called:
        def method(self, x, y=1, *, k=2):
            return x

        def __call__(self, x, y):
            return x

    class Layer(torch.nn.Module):
        def forward(self, x, y):
            return x

    def outcome(function, args, kwargs):
        try:
            return function(*args, **kwargs) is X
        except TypeError as error:
            return str(error)

    calls = [((X,) * n, given) for n in range(5) for given in ({}, {"k": 1}, {"y": 1}, {"z": 1})]
    last = functools.partial(lambda x, y, z: x, X)
    functions = [lambda x, y: x, lambda x, y, /, *, k: x, lambda x, y, *rest, k=1: x, lambda x, *, k, **more: x]
    for function in [*functions, Called().method, Called(), Layer(), last]:
        fast, _ = compiled(function)
        for _ in range(2):
            for args, kwargs in calls:
                found = outcome(fast, args, kwargs)
                if function is not last or "multiple values" not in str(found):
                    assert found == outcome(function, args, kwargs), (function, len(args), kwargs)


class Tagged(torch.Tensor):
    """A tensor that optimizers leave to eager."""


def test_a_container_whose_items_cannot_all_be_taken_breaks_the_graph_there():
    groups = [{"params": [torch.ones(8), torch.ones(8, dtype=torch.complex64).conj().imag], "lr": 0.5}]

    def steps(x):
        y = x * 2
        for group in groups:
            for p in group["params"]:
                y = y + group["lr"] * p
        return y

    intarsia.reset()
    fast = intarsia.compile(steps)
    for k in range(3):
        torch.testing.assert_close(fast(X + k), steps(X + k))
    assert intarsia.counters()["breaks"] and not intarsia.counters()["fallbacks"]


def test_an_optimizer_of_other_tensors_than_torchs_runs_in_eager():
    def trained(wrap):
        p = torch.nn.Parameter(torch.ones(8).as_subclass(Tagged))
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)

        def step(x):
            p.grad = None
            (p * x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return x + 1

        run = wrap(step)
        for k in range(3):
            run(X[0] + k)
        return p.detach()

    torch.testing.assert_close(trained(intarsia.compile), trained(lambda f: f))


def test_parts_of_sparse_tensors():
    def program(s):
        return s.values() * 2, s.crow_indices() + 1, (s @ torch.ones(5, 2)).relu()

    function, log = compiled(program)
    for seed in range(2):
        torch.manual_seed(seed)
        given = torch.randn(4, 5).relu().to_sparse_csr()
        torch.testing.assert_close(function(given), program(given))
    assert not log.breaks and not log.fallbacks
