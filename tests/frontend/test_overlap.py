"""Writes to memory that is read in another order, or that elements share: eager's own loops decide, or refuse."""

from __future__ import annotations

import random

import pytest
import torch

import intarsia
from intarsia.frontend.functional import overlap
from tests.soak.judge import staged


def _view(rng: random.Random) -> torch.Tensor:
    whole = torch.empty(4096)
    dims = rng.randint(0, 3)
    sizes = [rng.choice((1, 2, 3, 5)) for _ in range(dims)]
    strides = [rng.choice((0, 1, 1, 2, 3, 4, 6, 15, 16, 30)) for _ in range(dims)]
    return whole.as_strided(sizes, strides, rng.randint(0, 40))


def _places(tensor: torch.Tensor) -> list[int]:
    return torch.arange(4096).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()


def test_random_views_overlap_as_their_elements_do() -> None:
    rng = random.Random(0)
    seen = set()
    for _ in range(4000):
        a, b = _view(rng), _view(rng)
        places = _places(a), _places(b)
        folded, met = len(set(places[0])) < len(places[0]), bool(set(places[0]) & set(places[1]))
        assert overlap.is_folded(a) == folded, (a.shape, a.stride())
        assert overlap._meet(a, b) == met, [(t.shape, t.stride(), t.storage_offset()) for t in (a, b)]
        seen.add((folded, met))
    assert len(seen) == 4


def _rows(x):
    x[1:] = x[:-1]
    return x.sum()


def _row(x):
    x += x[:1]
    return x * 2


def _adds(x):
    x.index_add_(0, torch.tensor([0, 0]), x[:2])
    return x * 2


def _fills(x):
    x[0].zero_()
    return x.sum() + 1


def _puts(x):
    x.index_put_((torch.tensor([0]),), torch.ones(()))
    return x.sum() + 1


def _halves(x):
    x[:, :2] = -x[:, 2:4]
    return x * 2


def _itself(x):
    x.mul_(x).add_(x)
    torch.add(x, x, out=x)
    return x * 2


def _twice(x):
    torch._foreach_add_([x[:2], x[1:3]], 1.0)
    return x * 2


def _outcome(function, x):
    try:
        return function(x)
    except RuntimeError as error:
        return str(error)


PLACES = {
    "rows": lambda: torch.arange(20.0).view(5, 4),
    "columns": lambda: torch.arange(20.0).view(4, 5).t(),
    "expanded": lambda: torch.arange(4.0).expand(5, 4),
    "windows": lambda: torch.arange(20.0).as_strided((5, 4), (2, 1)),
}


@pytest.mark.parametrize("program", [_rows, _row, _adds, _fills, _puts, _halves, _itself, _twice])
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_overlapping_memory_are_eagers(program, dynamic) -> None:
    with staged("interpreter") as compile_:
        compiled = compile_(program, dynamic=dynamic)
        for name, make in PLACES.items():
            want, have = make(), make()
            expected, got = _outcome(program, want), _outcome(compiled, have)
            assert type(expected) is type(got), (name, expected, got)
            assert expected == got if isinstance(expected, str) else torch.equal(expected, got), name
            assert torch.equal(want, have), name


@pytest.mark.parametrize("program", [_halves, _itself])
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_that_are_in_step_stay_in_the_graph(program, dynamic) -> None:
    x = torch.arange(20.0).view(5, 4)
    want = program(x.clone())
    assert torch.equal(intarsia.compile(program, fullgraph=True, dynamic=dynamic, backend="eager")(x), want)


def _one_row_of_two_strides(x):
    x[::2] -= x[:1]
    return x


def test_the_same_row_by_other_strides_is_refused_as_in_eager() -> None:
    fast = intarsia.compile(_one_row_of_two_strides)
    for rows in (2, 2, 3):
        errors, given = [], [torch.ones(rows, 3), torch.ones(rows, 3)]
        for program, x in zip((fast, _one_row_of_two_strides), given, strict=True):
            try:
                program(x)
                errors.append("")
            except RuntimeError as error:
                errors.append(str(error).partition(" Please")[0])
        assert errors[0] == errors[1]
        assert torch.equal(*given)
