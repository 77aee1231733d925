"""Random stacks of torch.func's transforms over small functions, in a graph against eager: results, strides, gradients, errors, breaks.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils import _pytree as pytree

import intarsia
from intarsia.frontend.runtime.callable import compile_callable
from intarsia.frontend.versions import minor

COUNT = int(os.environ.get("INTARSIA_FUZZ", "80")) // 4
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
PARTS = 2

_LAYER = nn.Linear(4, 4).double()
_WEIGHT = torch.randn(4, dtype=torch.float64, requires_grad=True)
_COUNTS = [0]


def _sum(value: Any) -> Tensor:
    return sum(leaf.sum() for leaf in pytree.tree_leaves(value) if leaf.is_floating_point())


# ---- functions of a tensor with 4 columns, or with sizes that a transform above leaves ----


def _layer(x: Tensor) -> Tensor:
    return _LAYER(x).tanh()


def _partly_fixed(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * x
    return x * y + x.sin()


def _asks(x: Tensor) -> Tensor:
    return x.sin() * (2 if x.requires_grad else 3) * (5 if torch.is_grad_enabled() else 7) * x.dim()


def _counts(x: Tensor) -> Tensor:
    _COUNTS[0] += 1
    return x * _COUNTS[0]


def _writes(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.cos()


def _writes_a_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = x[..., 1] * 2
    y.view(-1).add_(1)
    return y * x


def _drops(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5) + x


FUNCTIONS: list[Callable[[Tensor], Any]] = [
    lambda x: x.sin() * x,
    lambda x: (x * _WEIGHT).softmax(-1),
    lambda x: {"a": x.exp(), "b": [x.sum(-1), x.t() * 2 if x.dim() == 2 else x * 2]},
    lambda x: (x.relu(), x.cumsum(-1)),
    lambda x: x.sort(-1).values.norm() * x,
    lambda x: x.new_zeros(3) + x.flatten()[:3] ** 2,
    lambda x: nn.functional.layer_norm(x, x.shape[-1:]).sigmoid(),
    lambda x: torch.where(x > 0, x, x * x).transpose(0, -1),
    lambda x: x + torch.rand(4, dtype=x.dtype),
    lambda x: x * torch.randn_like(x),
    lambda x: x.long() + 1 if x.dim() else 3,
    _layer,
    _partly_fixed,
    _asks,
    _counts,
    _writes,
    _writes_a_copy,
    _drops,
]


# ---- transforms: from a function of one tensor to another; what is drawn is drawn before the program runs ----


def _vmap(rng: random.Random) -> Any:
    options = {
        "in_dims": rng.choice([0, 0, 0, 1, -1, (0,), (5,)]),
        "out_dims": rng.choice([0, 0, 0, 1, -1]),
        "randomness": rng.choice(["error", "same", "different", "different"]),
        "chunk_size": rng.choice([None, None, 1, 2, 3]),
    }
    if rng.random() < 0.9:
        return lambda f: vmap(f, **options)
    return lambda f: lambda x: vmap(lambda y, z: f(y * z), (None, 0), randomness=options["randomness"])(x, x[0])


def _jacrev(rng: random.Random) -> Any:
    chunk_size = rng.choice([None, 1, 3])
    return lambda f: jacrev(f, chunk_size=chunk_size)


def _jacfwd(rng: random.Random) -> Any:
    randomness = rng.choice(["error", "same", "different"])
    return lambda f: jacfwd(f, randomness=randomness)


def _functionalize(rng: random.Random) -> Any:
    remove = rng.choice(["mutations", "mutations_and_views"])
    return lambda f: functionalize(f, remove=remove)


def _pulled(f: Any) -> Any:
    def g(x: Tensor) -> Any:
        value, back = vjp(f, x)
        return value, back(pytree.tree_map(torch.ones_like, value))

    return g


def _pulled_often(f: Any) -> Any:
    def g(x: Tensor) -> Any:
        _, back = vjp(lambda x: _sum(f(x)), x)
        return vmap(back)(torch.arange(3.0, dtype=x.dtype))

    return g


def _along(f: Any) -> Any:
    def g(x: Tensor) -> Any:
        _, derivative = linearize(f, x)
        return derivative(x.cos()), derivative(x)

    return g


TRANSFORMS: list[Callable[[random.Random], Any]] = [
    _vmap,
    _vmap,
    lambda rng: lambda f: grad(lambda x: _sum(f(x))),
    lambda rng: lambda f: grad(f),
    lambda rng: lambda f: grad_and_value(lambda x: (_sum(f(x)), x * 2), has_aux=True),
    lambda rng: lambda f: lambda x: grad(lambda x, y: _sum(f(x * y)), argnums=(0, 1))(x, x.cos()),
    _jacrev,
    _jacfwd,
    lambda rng: lambda f: hessian(lambda x: _sum(f(x))),
    lambda rng: lambda f: lambda x: jvp(f, (x,), (x.cos(),)),
    lambda rng: _pulled,
    lambda rng: _pulled_often,
    lambda rng: _along,
    _functionalize,
]


def program(seed: int) -> Callable[[Tensor], Any]:
    """A stack of transforms, made anew by each call, or in front of all."""
    rng = random.Random(seed)
    chosen = rng.choice(FUNCTIONS)
    stack = [rng.choice(TRANSFORMS)(rng) for _ in range(rng.choice([1, 2, 2, 3]))]

    def build() -> Any:
        made = chosen
        for transform in stack:
            made = transform(made)
        return made

    before = build() if rng.random() < 0.3 else None

    def run(x: Tensor) -> Any:
        y = x * 2
        result = (build() if before is None else before)(y)
        return result, y

    return run


def outcome(call: Callable[[Tensor], Any], gradients: bool) -> Any:
    """What a call gives, and the gradients of that; or what it raises."""
    torch.manual_seed(0)
    _COUNTS[0] = 0
    x = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_(gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(x)
        except Exception as error:
            return type(error), str(error).splitlines()[0], _COUNTS[0]
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    facts = [(leaf.stride(), leaf.requires_grad) for leaf in leaves]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    asked = [t for t in (x, _WEIGHT, *_LAYER.parameters()) if t.requires_grad]
    found: Any = []
    if wanted:
        weights = [torch.cos(torch.arange(leaf.numel(), dtype=leaf.dtype)).view(leaf.shape) for leaf in wanted]
        found = torch.autograd.grad(wanted, asked, weights, allow_unused=True)
        found = [None if g is None else g.clone() for g in found]
    return pytree.tree_map_only(Tensor, torch.clone, result), facts, found, _COUNTS[0], torch.rand(())


def reads_unset_memory(call: Callable[[Tensor], Any], gradients: bool, want: Any) -> bool:
    """Whether eager's result is of memory that nothing wrote to, as that of linearize inside vmap is."""
    torch.use_deterministic_algorithms(True)  # fills such memory with NaN
    try:
        compare(outcome(call, gradients), want, 0)
    except AssertionError:
        return True
    finally:
        torch.use_deterministic_algorithms(False)
    return False


class Events:
    """What split a frame, or kept it in eager."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_break(self, event: Any) -> None:
        """A frame was split."""
        self.reasons.append(event.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager; one that raises does so on purpose."""
        if not reason.startswith("the program raises"):
            self.reasons.append(reason)


def graph_backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Runs the captured graph as it is."""
    return module.forward


graph_backend.takes_gradients = True  # type: ignore[attr-defined]

# What breaks, visibly.
KNOWN = (
    "a size that changes between calls meets a transform of torch.func",
    "a number that changes between calls is used inside a transform of torch.func",
    "a functorch transform",  # the function that vjp gave, behind one of the following breaks
    "the function that vjp or linearize gave is",
    "random numbers are drawn in a transform of torch.func inside of vmap",
    "torch.func.functionalize is called",
    "the result of a transform of torch.func has a gradient that is known to be zero",
    "torch.func.linearize is called",
    "a function inside a transform of torch.func writes to a tensor from around it",
)
if minor(torch.__version__) < (2, 13):  # a fault of torch's own: it breaks where capture meets it
    KNOWN = (*KNOWN, "capture sees RuntimeError: interpreter INTERNAL ASSERT FAILED")


def compare(got: Any, want: Any, seed: int) -> None:
    """Raise where two outcomes differ."""
    if isinstance(want[0], type) or isinstance(got[0], type):
        assert got == want, f"seed {seed}: {got}, in eager {want}"
    else:
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9, msg=lambda text: f"seed {seed}: {text}")


@pytest.mark.parametrize("part", range(PARTS))
def test_stacks_of_transforms(part: int, caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        function, gradients, events = program(seed), seed % 3 == 0, Events()
        want = outcome(function, gradients)
        if seed % 20:
            dynamic = True if seed % 7 == 1 else None
            fast = compile_callable(function, backend=graph_backend, observer=events, dynamic=dynamic)
        else:
            fast = intarsia.compile(function)
        with caplog.at_level(logging.ERROR, logger="intarsia"):
            for _ in range(2):
                compare(outcome(fast, gradients), want, seed)
        assert not caplog.messages, f"seed {seed}: {caplog.messages}"
        unknown = [reason for reason in events.reasons if not reason.startswith(KNOWN)]
        assert not unknown, f"seed {seed}: {unknown}"
