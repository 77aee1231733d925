"""Random torch functions, as source text: what a user might write, for whole compilations against eager."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

UNARY = [
    "torch.sin({0})",
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "torch.relu({0})",
    "F.gelu({0})",
    "F.silu({0})",
    "{0}.abs() + 0.5",
    "{0}.neg()",
    "{0} * 0.5 - 1",
    "{0}.clamp(-1, 1)",
    "{0}.abs().add(0.1).sqrt()",
    "{0}.double().float()",
    "F.hardtanh({0})",
    "F.leaky_relu({0}, 0.2)",
    "{0}.clone()",
    "torch.where({0} > 0, {0}, 0.1)",
    "{0}.masked_fill({0} > 1, 0.25)",
    "{0} ** 2 / 4",
]
BINARY = [
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "torch.maximum({0}, {1})",
    "{0} / ({1}.abs() + 1)",
    "torch.where({0} > {1}, {0}, {1})",
    "torch.lerp({0}, {1}, 0.3)",
]
MATRIX = [  # on a value of two dimensions
    "{0}.t()",
    "{0}.softmax(-1)",
    "{0}.log_softmax(0)",
    "F.layer_norm({0}, {0}.shape[-1:])",
    "{0} - {0}.mean(-1, keepdim=True)",
    "{0} / ({0}.norm(dim=1, keepdim=True) + 1)",
    "{0}.cumsum(1) / 8",
    "{0}.flip(0)",
    "{0}[::2]",
    "{0}[:, 1:]",
    "{0}.roll(1, 0)",
    "torch.cat([{0}, {0}.sin()], 1)",
    "torch.stack([{0}, -{0}]).sum(0)",
    "{0}.reshape(-1).view({0}.shape)",
    "{0}.contiguous()",
    "F.pad({0}, (1, 0))",
    "{0}.index_select(0, torch.arange({0}.shape[0]).flip(0))",
    "{0} @ {0}.t() / 8",
    "torch.tril({0})",
    "{0}.expand(2, -1, -1)[1]",
    "{0}.repeat(1, 2)",
    "{0}.unsqueeze(1).squeeze(1)",
    "{0}.chunk(2, 1)[0]",
    "{0}.topk(1, 1)[0] + {0}",
]
REDUCTIONS = [
    "{0}.sum(-1)",
    "{0}.mean(0)",
    "{0}.amax(1)",
    "{0}.max(0)[0]",
    "{0}.std(1)",
    "{0}.logsumexp(1)",
    "{0}.sum()",
    "{0}.argmax(1)",
    "({0} > 0).any(1)",
    "{0}.var(0, unbiased=False)",
]
STATEMENTS = [  # that write to {0}, a fresh value of {1}'s shape
    "{0}.mul_(0.5)",
    "{0}[0] = 0.25",
    "{0}[:, 0].add_(1)",
    "{0}.copy_({1}.t().contiguous().t())",
    "{0}[:, 1:] = {1}[:, :-1]",
    "{0}.t()[0] = {1}[:, 0] * 2",
]


@dataclass(frozen=True)
class Function:
    """A random function: its source, itself, and inputs for it."""

    source: str
    call: Callable[..., Any]
    inputs: list[Tensor]


def random_function(seed: int, steps: int | None = None) -> Function:
    """The random function of this seed; each of its values has at most two dimensions."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 2, 3])
    shapes = [[rng.choice([2, 3, 5, 8]), rng.choice([2, 4, 7, 16])]] * count
    names = [f"x{k}" for k in range(count)]
    lines, results = [], []
    matrices = list(names)
    for k in range(steps if steps is not None else rng.choice([2, 4, 6, 9])):
        x = rng.choice(matrices[-3:])
        draw = rng.random()
        if draw < 0.08:
            lines.append(f"v{k} = {x} + 0; {rng.choice(STATEMENTS).format(f'v{k}', x)}")
        elif draw < 0.11 and x in names:
            lines.append(f"{x}.add_(1); v{k} = {x} * 2")
        elif draw < 0.4:
            lines.append(f"v{k} = {rng.choice(UNARY).format(x)}")
        elif draw < 0.6:
            y = rng.choice(matrices)
            lines.append(f"v{k} = {rng.choice(BINARY).format(x, f'{y}[:1, :1]' if y != x else x)}")
        elif draw < 0.87:
            lines.append(f"v{k} = {rng.choice(MATRIX).format(x)}")
        else:
            lines.append(f"r{k} = {rng.choice(REDUCTIONS).format(x)}")
            results.append(f"r{k}")
            continue
        matrices.append(f"v{k}")
    last = [m for m in matrices[-1:] if m not in names or not results]
    returned = ", ".join([*results[-2:], *last])
    body = "\n".join(f"    {line}" for line in lines)
    source = f"def f({', '.join(names)}):\n{body}\n    return ({returned},)\n"
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    if rng.random() < 0.2:
        inputs[0] = inputs[0].t().contiguous().t()
    return Function(source, compiled(source, seed), inputs)


def compiled(source: str, seed: int) -> Callable[..., Any]:
    """The function that the source defines, with its lines known to tracebacks."""
    filename = f"<random function {seed}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, filename, "exec"), scope)
    return scope["f"]  # type: ignore[no-any-return]


def runs_in_eager(function: Function) -> bool:
    """Whether eager runs it and gives finite results (a slice may be empty, a sum overflow)."""
    try:
        results = function.call(*[x.clone() for x in function.inputs])
    except (RuntimeError, IndexError):
        return False
    return all(bool(r.isfinite().all()) and r.numel() > 0 for r in results)
