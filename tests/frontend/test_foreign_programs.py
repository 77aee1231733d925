"""Random programs over tensors of foreign kinds: eager's values, types, sizes, strides, gradients, effects and errors."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor, nn

F = nn.functional


class Tagged(Tensor):
    """Sees calls, and hands them on; notes how many it has seen."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, cls):
            made.seen = 1 + max((getattr(a, "seen", 0) for a in args if isinstance(a, cls)), default=0)
        return made


def t(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def thin(rows: int, columns: int, seed: int) -> Tensor:
    """Most of it zeros."""
    made = t(rows, columns, seed=seed)
    made = made * (made > 0.2)
    made[0, 0] = 1.5
    return made


def jagged(lengths: list[int], seed: int) -> Tensor:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(t(sum(lengths), 4, seed=seed), offsets)


def given(kind: str, k: int, wanted: list[bool]) -> tuple[Any, ...]:
    """`p` and `q` of the kind, `x` plain: a call's arguments."""
    n = 4 + 2 * (k // 2)
    x = t(n, 4, seed=9 + k)
    make: Any = {
        "csr": lambda s: thin(n, 4, s).to_sparse_csr(),
        "coo": lambda s: thin(n, 4, s).to_sparse(),
        "bsr": lambda s: thin(n, 4, s).to_sparse_bsr((2, 2)),
        "quantized": lambda s: torch.quantize_per_tensor(t(n, 4, seed=s), 0.1 + s % 2 * 0.05, 3, torch.qint8),
        "tagged": lambda s: t(n, 4, seed=s).as_subclass(Tagged),
    }.get(kind)
    if kind == "jagged":
        p = jagged([2, n - 3, 1], k)
        q = torch.nested.nested_tensor_from_jagged(t(n, 4, seed=k + 5), p.offsets())
    else:
        p, q = make(k), make(k + 5)
    grads = [wanted[0] and kind != "quantized", wanted[1] and kind != "quantized", wanted[2]]
    return tuple(v.detach().requires_grad_(w) if w else v for v, w in zip((p, q, x), grads, strict=True))


ALL = [
    "x = x * {n} + 1",
    "r.append(x.sum(0))",
    "r.append(p.shape[0] * {n})",
    "r.append((p.dtype, p.layout, p.dim(), p.requires_grad))",
    "r.append(p.device)",
    "p, q = q, p",
    "q = p.clone()",
    "r.append(p.detach())",
    "r.append(isinstance(p, torch.Tensor))",
    "with torch.no_grad(): q = p.clone()",
]
SPARSE = [
    "r.append(p @ x.t())",
    "p = p * {n}",
    "p = -p",
    "q = p + q",
    "r.append(p.to_dense() * x)",
    "r.append(p.sum())",
    "p = p.to(torch.float64)",
    "p = p.relu()",
    "r.append(p.values() * {n})",
    "p = torch.sin(p)",
    "r.append(torch.addmm(torch.ones(p.shape[0], p.shape[0]), p, x.t()))",
    "p.mul_({n})",
    "p.zero_()",
    "p.copy_(q)",
    "p = x.to_sparse() * 1",
    "r.append(p._nnz())",
    "r.append(p.t() @ x)",
    "r.append(p.abs().to_dense().max(1))",
    "x = x + p.to_dense()",
    "r.append(p[0])",
    "p = p.coalesce()",
    "r.append(p.numel() + {n})",
    "p = p / {n}",
]
STEPS: dict[str, list[str]] = {
    "csr": SPARSE,
    "bsr": SPARSE,
    "coo": [
        *SPARSE,
        "r.append(p.indices() + 1)",
        "r.append(p.is_coalesced())",
        "p = torch.cat([p, q])",
        "r.append(torch.sparse.sum(p, 0))",
        "p.add_(q)",
        "p = torch.sparse.softmax(p, 1)",
    ],
    "quantized": [
        "r.append(p.dequantize() + x)",
        "r.append(p.int_repr() + {n})",
        "r.append(p.q_scale() * {n})",
        "p = F.relu(p)",
        "p = p[1:]",
        "p = torch.quantize_per_tensor(x, 0.1, {n}, torch.qint8)",
        "p = torch.quantize_per_tensor(x, 0.1 * {n}, 0, torch.quint8)",
        "x = x + p.dequantize()",
        "p = p.reshape(-1, 2)",
        "p.zero_()",
        "p.copy_(x)",
        "p = torch.ops.quantized.add(p, q, 0.2, {n})",
        "r.append(p.max())",
        "r.append(torch.equal(p, q))",
        "p = p.t()",
        "r.append(p == q)",
        "p = torch.cat([p, q])",
        "p.fill_({n})",
    ],
    "tagged": [
        "p = p * {n}",
        "p = torch.sin(p + q)",
        "r.append(p.seen)",
        "r.append(type(p).__name__)",
        "p = p + x",
        "r.append(x @ p.t())",
        "p.note = {n}",
        "r.append(p.as_subclass(torch.Tensor))",
        "q = q[1:3]",
        "p.mul_({n})",
        "r.append(p.sum())",
        "p = torch.cat([p, x])[: x.shape[0]]",
        "r.append(len(p))",
        "r.append(getattr(p, 'note', None))",
        "p = p.view(-1).view(x.shape)",
        "x = torch.where(p > 0, p, x)",
        "r.append(p.max(1))",
        "r.append(p.seen if hasattr(p, 'seen') else 0)",
    ],
    "jagged": [
        "p = p * {n}",
        "p = torch.sin(p + q)",
        "r.append(p.values() + {n})",
        "r.append(p.offsets())",
        "r.append(p.sum(1))",
        "p = p @ torch.ones(4, 4)",
        "p = F.layer_norm(p, (4,))",
        "r.append(p.to_padded_tensor(0.0))",
        "r.extend(p.unbind())",
        "r.append(p[0])",
        "r.append(p.mean(-1))",
        "p = F.softmax(p, -1)",
        "p = p.unsqueeze(-1).squeeze(-1)",
        "r.append(p.shape[0])",
        "p.mul_({n})",
        "p = torch.cat([p, q], -1)[:, :, :4]",
        "p = F.linear(p, torch.ones(4, 4))",
        "r.append(p.sum())",
        "p = p.to(torch.float64)",
        "r.append(p.transpose(1, 2))",
        "p = torch.where(p > 0, p, q)",
        "r.append((p.shape == q.shape, p.is_nested))",
    ],
}


def drawn(seed: int) -> tuple[str, str, list[bool]]:
    """The text of a program, the kind of its tensors, and which of its arguments require gradients."""
    draw = random.Random(seed)
    kind = list(STEPS)[seed % len(STEPS)]
    steps = [draw.choice(STEPS[kind] if draw.random() < 0.75 else ALL) for _ in range(draw.randint(3, 8))]
    lines = "".join(f"    {step.replace('{n}', str(draw.randint(1, 4)))}\n" for step in steps)
    text = f"def program(p, q, x):\n    r = []\n{lines}    return r, p, q\n"
    return text, kind, [draw.random() < 0.3 for _ in range(3)]


def facts(value: Any) -> Any:
    """What a program can see of a value, to be compared."""
    if isinstance(value, list | tuple):
        return [type(value), *map(facts, value)]
    if not isinstance(value, Tensor):
        return value
    seen: list[Any] = [type(value), value.dtype, value.layout, value.requires_grad, value.is_leaf, value.dim()]
    plain = value.detach()
    if value.is_nested:
        return [*seen, plain.values().clone(), plain.offsets(), value.values().stride()]
    seen.append(tuple(value.shape))
    if value.is_quantized:
        return [*seen, value.qscheme(), value.q_scale(), value.q_zero_point(), value.stride(), plain.int_repr()]
    if value.layout is torch.sparse_coo:
        return [*seen, value.is_coalesced(), plain._indices().clone(), plain._values().clone()]
    if value.layout is not torch.strided:
        return [*seen, plain.crow_indices().clone(), plain.col_indices().clone(), plain.values().clone()]
    return [*seen, value.stride(), plain.as_subclass(Tensor).clone(), dict(vars(value))]


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Results, gradients, what the arguments are then; or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*arguments)
            found = [facts(result)]
        except Exception as error:
            return [type(error), str(error).splitlines()[0], facts(arguments)]
        ends = [v for part in result for v in (part if type(part) in (list, tuple) else [part])]
        ends = [v for v in ends if isinstance(v, Tensor) and v.requires_grad and not v.is_leaf]
        try:
            for end in ends:
                end = end.values() if end.is_nested else end.to_dense() if end.layout is not torch.strided else end
                end.sum().backward(retain_graph=True)
        except Exception as error:
            found.append([type(error), str(error).splitlines()[0]])
        return [*found, facts([v.grad for v in arguments]), facts(arguments)]


def same(one: Any, other: Any) -> bool:
    if isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and one.shape == other.shape
            and torch.allclose(one, other, 1e-4, 1e-5, equal_nan=True)
        )
    if isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[k], v) for k, v in other.items())
    return type(one) is type(other) and (one == other or one != one and other != other)


def agrees(seed: int) -> tuple[Any, str]:
    text, kind, wanted = drawn(seed)
    namespace: dict[str, Any] = dict(globals())
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    fast, log = compiled(namespace["program"], number_backend)
    for k in (0, 1, 2, 0):
        found, expected = outcome(fast, given(kind, k, wanted)), outcome(namespace["program"], given(kind, k, wanted))
        assert same(found, expected), (k, text, found, expected)
    return log, text


@pytest.mark.parametrize("seed", (0, 2, 3, 4))
def test_random_programs(seed: int) -> None:
    agrees(seed)


def added(p: Tensor, q: Tensor, x: Tensor) -> Any:
    return [((p + q).to_dense() * x).sum()], p.shape[0]


def given_on(p: Tensor, q: Tensor, x: Tensor) -> Any:
    made = p * 2
    return [made.to_dense().sum()], made, x


@pytest.mark.parametrize(("function", "kind"), [(added, "csr"), (given_on, "csr"), (given_on, "coo")])
def test_places_of_gradients(function: Any, kind: str) -> None:
    """A sum has places that one operand does not have, and so has its gradient; behind the graph a gradient may be dense."""

    def used(function: Any, arguments: Any) -> Any:
        (loss,), *made = function(*arguments)
        ends = [(v @ t(4, 2)).sum() for v in made[:1] if isinstance(v, Tensor)]
        sum(ends, loss).backward()
        return facts([v.grad for v in arguments])

    fast = compiled(function, number_backend)[0]
    for k in (0, 1, 2):
        assert same(*(used(f, given(kind, k, [True, False, False])) for f in (fast, function)))
