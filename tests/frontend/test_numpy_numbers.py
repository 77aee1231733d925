"""NumPy's functions on numbers, as models use them (`x / np.sqrt(d)`), are no graph breaks; on arrays, symbols and odd values they are."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor, distributions

X = torch.linspace(0.5, 2, 12).reshape(4, 3)
SCALES = [2.0, 3.0]

ONE = {
    "attention": lambda x: torch.softmax(x @ x.T / np.sqrt(x.shape[-1]), -1),
    "several": lambda x: x * np.log(np.exp(1 - 1e-3) - 1) + float(np.sin(np.pi / 4)) - int(np.ceil(2.5)),
    "returned": lambda x: (np.sqrt(16), np.float32(0.1), np.int64(3), np.floor_divide(7, 2), x + 1),
    "decides": lambda x: x + 1 if np.sqrt(16.0) == 4 else x - 1,
    "sizes": lambda x: (x.reshape(np.prod(x.shape)), x[: np.floor_divide(7, 3)], x.sum(int(np.prod((1,))))),
    "of a list": lambda x: x * np.mean([1.0, 2.0]) + np.max((3, 4)),
    "kinds": lambda x: (
        x * np.float32(0.3),
        x + np.int64(2),
        x.long() + np.uint8(3),
        x * np.float16(0.3),
    ),
    "in front": lambda x: (np.float64(0.5) * x, x.clamp(-np.inf, np.log(2)), torch.full((2,), np.sqrt(2.0))),
    "arithmetic": lambda x: x * ((np.int64(7) // 2) % 2 + np.float64(1) / 3 - abs(np.float32(-0.5))),
    "a list of the caller's": lambda x: x * np.sum(SCALES),
    "kl": lambda x: distributions.kl_divergence(
        distributions.MultivariateNormal(x, torch.eye(3)), distributions.MultivariateNormal(-x, 2 * torch.eye(3))
    ),
}
OTHERS = {
    "warns": lambda x: x * np.log(0.0),
    "overflows": lambda x: x + float(np.exp(1000.0)),
    "an array": lambda x: x * float(np.sqrt(np.arange(3)).sum()),
    "makes an array": lambda x: x * float(np.add.outer(1.0, 2.0)),
    "draws": lambda x: x * np.random.rand(),
    "bools": lambda x: (x.long() * np.bool_(1), x + np.isnan(2.0)),
}


def outcome(function: Any, x: Tensor) -> Any:
    np.random.seed(0)
    with np.errstate(all="ignore"):
        result = function(x)
    return [(type(v), v.dtype, v.tolist()) for v in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", [*ONE, *OTHERS])
def test_as_eager(name):
    function = (ONE | OTHERS)[name]
    fast, log = compiled(function, number_backend)
    for x in (X, X + 1):
        assert outcome(fast, x) == outcome(function, x)
    assert log.fallbacks == [] and (log.breaks == []) == (name in ONE)


def test_a_list_that_changes():
    def function(x):
        return x * np.sum(SCALES)

    fast, _ = compiled(function, number_backend)
    for more in (1.0, 5.0):
        SCALES.append(more)
        assert outcome(fast, X) == outcome(function, X)
        SCALES[0] += 0.5
        assert outcome(fast, X) == outcome(function, X)
    SCALES[:] = [2.0, 3.0]


def test_errors_are_numpys():
    def function(x):
        return x * np.sqrt(2.0, 3.0)

    fast, _ = compiled(function, number_backend)
    with pytest.raises(TypeError) as expected:
        function(X)
    with pytest.raises(TypeError) as found:
        fast(X)
    assert str(found.value) == str(expected.value)


def test_functions_of_random_numbers():
    names = (
        "sqrt exp log sin tanh floor ceil rint square deg2rad hypot maximum minimum power add multiply negative".split()
    )
    draw = random.Random(0)
    for name in draw.sample(names, 8):
        made = getattr(np, name)
        kind = draw.choice([float, np.float32, np.float64, int, np.int64])
        args = [kind(draw.uniform(1, 9)) for _ in range(made.nin)]

        def function(x, made=made, args=args):
            y = made(*args)
            return x * y, y

        fast, log = compiled(function, number_backend)
        assert outcome(fast, X) == outcome(function, X) and log.breaks == log.fallbacks == [], (name, args)


def test_sizes_that_change():
    def function(x):
        return x / np.sqrt(x.shape[0]) * math.sqrt(2)

    fast, log = compiled(function, number_backend)
    for count in (3, 5, 7, 2):
        assert outcome(fast, X.new_ones(count, 2)) == outcome(function, X.new_ones(count, 2))
    assert log.fallbacks == []


@pytest.mark.parametrize(
    ("write", "dtype", "number"),
    [
        (lambda x, n: x.clamp(min=n), torch.float16, np.float64(1e6)),
        (lambda x, n: x.clamp(min=n), torch.float16, np.float32(6e4)),
        (lambda x, n: torch.where(x > 0, x, n), torch.bool, np.float64(1e300)),
        (lambda x, n: torch.where(x > 0, x, n), torch.bool, 1e300),
        (lambda x, n: torch.where(x > 0, n, 2.0), torch.int64, 1e300),
        (lambda x, n: x.clamp(max=n), torch.bool, -1e300),
        (lambda x, n: x.clamp(max=n), torch.bool, -1e30),
        (lambda x, n: x.clone().fill_(n), torch.int8, np.int64(300)),
        (lambda x, n: x.clone().fill_(n), torch.int8, np.int16(-128)),
        (lambda x, n: x.masked_fill(x > 0, n), torch.uint8, np.int8(-1)),
        (lambda x, n: x.clone().mul_(n), torch.bool, np.int32(2)),
        (lambda x, n: x.clone().add_(n), torch.int64, np.float64(1.0)),
    ],
)
def test_numbers_that_a_type_does_not_hold(write, dtype, number):
    def outcome(fn):
        try:
            return fn(torch.ones(3, dtype=dtype), number).tolist()
        except RuntimeError as error:
            return str(error).splitlines()[0]

    captured = []

    def backend(module, inputs):  # what was refused is in no graph: other backends would carry it out
        captured.append({str(node.target) for node in module.graph.nodes})
        return module.forward

    wanted = outcome(write)
    assert outcome(compiled(write, backend)[0]) == wanted
    named = write.__code__.co_names[-1]
    assert any(named in targets for targets in captured) == isinstance(wanted, list)
