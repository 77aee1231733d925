"""`flex_attention`: one graph, what torch's own form gives; functions that do not work score by score break the graph."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import intarsia


def leaves(value):
    return [t for t in torch.utils._pytree.tree_leaves(value) if t is not None]


B, H, L, S, E = 2, 4, 6, 10, 8
DRAW = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=DRAW)


BIAS, SLOPES, DOCS, ONE = drawn(H, L, S), drawn(H), torch.randint(0, 3, (S,), generator=DRAW), torch.tensor(2)
Q, K, V = drawn(B, H, L, E), drawn(B, H, S, E), drawn(B, H, S, E)


MASKS = {
    "late": lambda b, h, i, j: i + 4 >= j,
    "same document": lambda b, h, i, j: (DOCS[i] == DOCS[j]) & (i >= j),
    "shut rows": lambda b, h, i, j: (i >= j) & (i > 2),
}


@functools.cache
def block(name):
    return flex.create_block_mask(MASKS[name], None, None, L, S, device="cpu")


SCORES = {
    "relative": lambda s, b, h, i, j: s + (i - j),
    "bias": lambda s, b, h, i, j: s + BIAS[h, i, j],
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "capped": lambda s, b, h, i, j: torch.tanh(s / 20) * 20,
    "without_the_score": lambda s, b, h, i, j: (i - j) * 0.1,
    "by_batch": lambda s, b, h, i, j: torch.where(b == 1, s, s * ONE),
    "of_integers": lambda s, b, h, i, j: i // 2 - j % 3,
}


def check(f, *args, tolerance=1e-5):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = f(*args)
    found = intarsia.compile(f, fullgraph=True)(*args)
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
    assert [t.stride() for t in leaves(found)] == [t.stride() for t in leaves(wanted)]
    report = intarsia.explain(f)(*args)
    assert len(report.graphs) == 1 and not report.breaks and "runs in eager" not in str(report)


@pytest.mark.parametrize("name", SCORES)
def test_functions_of_scores(name) -> None:
    check(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=SCORES[name]), Q, K, V)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask) -> None:
    """Rows in which nothing takes part are zeros."""
    check(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=block(mask)), Q, K, V)


def test_masks_and_scores_and_their_sum() -> None:
    def f(q, k, v):
        both = flex.flex_attention(q, k, v, score_mod=SCORES["alibi"], block_mask=block("shut rows"), return_lse=True)
        return both, flex.flex_attention(q, k, v, scale=0.3, return_aux=flex.AuxRequest(lse=True))

    check(f, Q, K, V)


def test_grouped_heads_and_layouts() -> None:
    turned = Q.transpose(1, 2).contiguous().transpose(1, 2)
    check(
        lambda q, k, v: flex.flex_attention(q, k, v, enable_gqa=True, block_mask=block("late")),
        turned,
        K[:, :2],
        V[:, :2],
    )
    check(
        lambda q, k, v: flex.flex_attention(q, k, v, enable_gqa=True, score_mod=SCORES["bias"]),
        turned,
        K[:, :2],
        V[:, :2, :, :4],
    )


def test_half_precision() -> None:
    given = (t.bfloat16() for t in (Q, K, V))
    check(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=SCORES["relative"]), *given, tolerance=2e-2)


def test_another_value_of_a_captured_tensor() -> None:
    bias = drawn(H)

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * bias[h])

    compiled = intarsia.compile(f)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = f(Q, K, V)
        torch.testing.assert_close(compiled(Q, K, V), wanted, atol=1e-5, rtol=1e-5)
        bias += 1


@pytest.mark.parametrize(
    ("score_mod", "words"),
    [
        (lambda s, b, h, i, j: s + BIAS[h].sum(), "aten.index.Tensor is not elementwise there"),
        (lambda s, b, h, i, j: s + SLOPES.double().sum(), "aten.add.Tensor is not elementwise there"),
        (lambda s, b, h, i, j: s.sum(), "aten.sum.default is not elementwise"),
        (lambda s, b, h, i, j: s + SLOPES[:1], "aten.add.Tensor is not elementwise there"),
        (lambda s, b, h, i, j: (s, s), "its result is not one number"),
        (lambda s, b, h, i, j: s + torch.rand_like(s), "is not elementwise there"),
        (lambda s, b, h, i, j: s + s.dim(), "it asks for the shape of a score"),
        (lambda s, b, h, i, j: s * (2 if s.shape == () else 3), "it asks for the shape of a score"),
        (lambda s, b, h, i, j: s + BIAS[h, i, j] * (2 if s.shape == () else 3), "it asks for the shape of a score"),
        (lambda s, b, h, i, j: s + SLOPES[h] * (1 if i.dim() else 2), "it asks for the shape of a score"),
        (lambda s, b, h, i, j: s.sin() if h.numel() == 1 else s, "it asks for the shape of a score"),
        (lambda s, b, h, i, j: s.add_(1), "writes to a tensor that it did not make"),
    ],
)
def test_what_does_not_work_score_by_score(score_mod, words) -> None:
    with pytest.raises(intarsia.GraphBreak, match=words):
        intarsia.compile(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score_mod), fullgraph=True)(Q, K, V)


def test_calls_that_eager_refuses() -> None:
    f = intarsia.compile(lambda q, k, v, **options: flex.flex_attention(q, k, v, **options))
    with pytest.raises(ValueError, match="same number of heads"):
        f(Q, K[:, :2], V[:, :2])
    with pytest.raises(ValueError, match="block_mask was created for"):
        f(Q[:, :, :3], K, V, block_mask=block("late"))
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="backward on CPU"):
        f(Q.clone().requires_grad_(), K, V)
