"""Threads, nesting, errors inside the compiler: results stay right, and the user is told once."""

import re
import threading
from pathlib import Path

import pytest
import torch
from harness import compiled

from intarsia.frontend.errors import InternalError
from intarsia.frontend.runtime.callable import compile_callable
from intarsia.frontend.values import operators

X = torch.arange(4.0)


def test_threads_that_compile_and_call_at_once():
    def work(x, k):
        y = x * k
        if y.sum() > 10:
            y = y - 1
        return y.relu() + k

    fast, _ = compiled(work)
    other, _ = compiled(lambda x, k: fast(x, k) * 2)
    wrong, errors = [], []

    def run(seed):
        try:
            with torch.no_grad():
                for i in range(12):
                    x, k = torch.full((2 + (seed + i) % 3,), float(i)), (seed + i) % 4
                    for function, twin in ((fast, work), (other, lambda x, k: work(x, k) * 2)):
                        if not torch.equal(function(x, k), twin(x, k)):
                            wrong.append((seed, i))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads) and not errors and not wrong


def test_compiled_inside_compiled_with_a_break():
    inner, _ = compiled(lambda x: x + x.sum().item())
    fast, log = compiled(lambda x: inner(x * 2) + inner(x))
    assert torch.equal(fast(X), (X * 2 + 12) + (X + 6)) and log.fallbacks == []


def test_recursion_of_a_compiled_function():
    calls = []

    def countdown(x, n):
        if n == 0:
            return x
        print(n, end=" ")
        return fast(x + n, n - 1)

    fast, _ = compiled(countdown)
    assert torch.equal(fast(X, 4), X + 10) and calls == []


def test_an_internal_error_runs_in_eager_with_one_message_and_a_reproducer(monkeypatch, caplog, prepared, tmp_path):
    def broken(*args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(operators, "binary", broken)

    def f(x, k):
        return x + k

    fast, log = compiled(f)
    assert torch.equal(fast(X, 2), X + 2)
    assert torch.equal(fast(X, 2), X + 2)
    (said,) = caplog.messages
    assert "planted" in said and len(log.fallbacks) == 1
    path = Path(re.search(r"by (\S+reproducer\.py)", said).group(1))
    text = path.read_text()
    assert "def f(x, k):" in text and "planted" in text and "torch.empty_strided([4], [1]" in text
    code, _, err = prepared.run(path, tmp_path)
    assert code == 0, err  # without the planted fault the program runs
    with pytest.raises(InternalError, match="planted"):
        compile_callable(f, backend=lambda gm, inputs: gm.forward, on_error="raise")(X, 2)


def test_exceptions_of_the_program_pass_through():
    class Mine(Exception):
        pass

    def f(x, bad):
        y = x + 1
        if bad:
            raise Mine("as it is", 3)
        return y

    fast, _ = compiled(f)
    assert torch.equal(fast(X, False), X + 1)
    with pytest.raises(Mine) as caught:
        fast(X, True)
    assert caught.value.args == ("as it is", 3) and caught.traceback[-1].name == "f"
    assert torch.equal(fast(X, False), X + 1)


def test_truth_of_a_number_is_guarded():
    fast, _ = compiled(lambda x, k: x + 1 if k else x - 1)
    x = torch.zeros(2)
    for k in (3, 5, 0, 7, 0, -2, 1, True, False):
        assert torch.equal(fast(x, k), x + 1 if k else x - 1)
