"""What eager refuses because of what a tensor holds is refused whether anyone reads the result, a part of it, or nothing."""

import pytest
import torch
import torch.nn.functional as F

import intarsia

X, INDEX = torch.arange(12.0).reshape(3, 4) / 8, torch.tensor([0, 7])

OPERATORS = {
    "embedding": lambda x, i: F.embedding(i, x),
    "index": lambda x, i: x[i],
    "index of two": lambda x, i: x[i, i],
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(0, i[None]),
    "take": lambda x, i: torch.take(x, i * 10),
    "put": lambda x, i: x.put(i * 10, x[0, :2]),
    "scatter": lambda x, i: x.scatter(0, i[None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[None], x, "amax"),
    "index_put": lambda x, i: torch.index_put(x, (i,), x[:2]),
    "index_put in place": lambda x, i: x.clone().index_put_((i,), x[:2]),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "masked_scatter": lambda x, i: x.masked_scatter(x == x, x[:1]),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "nll_loss": lambda x, i: F.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i, label_smoothing=0.1),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x * 10, x),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x[:2], i),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "one_hot of negative": lambda x, i: F.one_hot(i - 1, 9),
    "histc": lambda x, i: torch.histc(x / 0),
    "division": lambda x, i: i // (i * 0),
    "remainder": lambda x, i: i % 0,
    "div": lambda x, i: torch.div(i, i * 0, rounding_mode="trunc"),
    "cholesky": lambda x, i: torch.linalg.cholesky(-x[:, :3]),
    "inverse": lambda x, i: torch.linalg.inv(x[:, :3] * 0),
    "svd": lambda x, i: torch.linalg.svd(x / 0),
    "max_unpool": lambda x, i: F.max_unpool1d(x[:2, :2], i.expand(2, 2) * 99, 2),
    "lu_unpack": lambda x, i: torch.lu_unpack(x[:, :3], torch.full((3,), 9, dtype=torch.int32)),
    "assertion": lambda x, i: torch._assert_async(x[0, 0] > 0),
}


def said(f, *args):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        f(*args)
    return type(raised.value), str(raised.value).splitlines()[0]


@pytest.mark.parametrize("name", OPERATORS)
def test_what_nobody_reads_raises(name):
    operator = OPERATORS[name]

    def f(x, i):
        operator(x, i)

    assert said(intarsia.compile(f), X, INDEX) == said(f, X, INDEX)


def test_where_gradients_are_traced():
    def f(x, *tests):
        F.embedding(tests[0], x)
        x.clone().index_put_((tests[1],), x[:2])
        F.cross_entropy(x[:2], tests[2])
        F.one_hot(tests[3], 3)
        tests[4] // tests[4]
        torch.linalg.cholesky(x[:, :3] * 0 + tests[5])
        torch._assert_async(tests[6][0] > 0)
        return x * 2

    compiled, good = intarsia.compile(f), torch.tensor([1, 2])
    x = X.clone().requires_grad_()
    right = [good] * 5 + [torch.eye(3), good]
    compiled(x, *right).sum().backward()
    assert x.grad.eq(2).all()
    for k, wrong in enumerate([torch.tensor([1, 7])] * 4 + [good * 0, -torch.eye(3), -good]):
        given = [*right[:k], wrong, *right[k + 1 :]]
        assert said(compiled, x, *given) == said(f, x, *given)


PIECES = {
    "nothing to read": lambda x, i: x[:0].floor()[i * 0],
    "slice": lambda x, i: F.embedding(i, x)[:1] * 2,
    "column": lambda x, i: x[:, i][:, 0],
    "part of a sum": lambda x, i: torch.cat([x, x[i]]).sum(1)[:2],
    "quotient": lambda x, i: (i // i.flip(0))[1:],
    "gather of it": lambda x, i: F.embedding(i, x).gather(0, i[None] * 0),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_is_read_in_part_raises(name):
    f = PIECES[name]
    assert said(intarsia.compile(f), X, INDEX) == said(f, X, INDEX)


def test_only_what_is_read_in_part_is_a_library_call():
    explained = intarsia.explain(lambda x, i: F.embedding(i, x).mul(2).sum(1))(X, torch.tensor([0, 1]))
    assert explained.graphs[0].library == {}
