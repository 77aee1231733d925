"""What differs between the minor releases of torch that are supported: it behaves the same for the user."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia


class Steps(torch.autograd.Function):
    """A backward that is not the derivative of the forward."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x) * 3

    @staticmethod
    def backward(ctx, grad):
        return 7 * grad


class Doubled(Steps):
    """One whose `apply` is a class method of Python's."""

    @classmethod
    def apply(cls, x):
        return super().apply(x) * 2


def test_the_backward_of_an_autograd_function_is_the_users() -> None:
    """`Function.apply` is a class method of Python's until torch 2.13 and one of C's from 2.14 on."""

    def program(x):
        return Steps.apply(x * 2) + Doubled.apply(x)

    compiled = intarsia.compile(program)
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    y.data.copy_(x.data)
    want, have = program(x), compiled(y)
    want.sum().backward()
    have.sum().backward()
    assert torch.equal(want, have) and torch.equal(x.grad, torch.full((4,), 28.0)) and torch.equal(x.grad, y.grad)
    with torch.no_grad():
        assert torch.equal(compiled(x), program(x))


def test_class_methods_of_c_are_interpreted() -> None:
    seen: list[int] = []

    def items():
        for i in range(3):
            seen.append(i)
            yield [i, i + 1]

    def program(x):
        return x * sum(itertools.chain.from_iterable(items())) + sum(itertools.chain.from_iterable([[1], (2, 3)]))

    x = torch.ones(2)
    compiled = intarsia.compile(program)
    assert [compiled(x).tolist() for _ in range(2)] == [[15.0, 15.0]] * 2 and seen == [0, 1, 2] * 2


def test_transforms_are_one_graph() -> None:
    """From torch 2.14 on, batched fake tensors are asked for their device through the dispatcher."""
    compiled = intarsia.compile(lambda x: torch.vmap(lambda a: a.sum() * 2)(x), fullgraph=True)
    x = torch.randn(3, 4)
    assert torch.allclose(compiled(x), x.sum(1) * 2, atol=1e-6)


NEWER = """
import sys, warnings, torch
torch.__version__ = "2.99.0"
{moved}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import intarsia
    import intarsia.eager_only
    compiled = intarsia.compile(lambda x: x + 1)
    print(compiled(torch.zeros(2)).tolist(), intarsia.disable(len)([1]), intarsia.compile()(abs)(-1))
    print([str(w.message) for w in seen if "tried with" in str(w.message)])
"""


@pytest.mark.parametrize("moved", ["", "del torch._C._AutoDispatchBelowAutograd; sys.modules['torch._ops'] = None"])
def test_a_newer_torch_is_one_warning(moved: str, tmp_path: Path) -> None:
    """Also where something has moved that the import of the package needs: then all runs in eager."""
    done = subprocess.run(
        [sys.executable, "-c", NEWER.format(moved=moved)],
        env={**os.environ, "INTARSIA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values, warned = done.stdout.splitlines()
    assert values == "[1.0, 1.0] 1 1" and len(eval(warned)) == 1 and "not with 2.99.0" in warned
    assert ("it does not fit (" in warned) == bool(moved)
