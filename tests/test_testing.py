"""The checks are checked: each plants a known wrong result and sees it caught."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from intarsia.testing import Undecided, check, same


def caught(fn, wrong, args, *, match, **options):
    """`wrong` in place of the compiled `fn` is found out, with a short message that says what differs."""
    check(fn, args, compiled=fn)
    with pytest.raises(AssertionError, match=match) as error:
        check(fn, args, compiled=wrong, **options)
    assert len(str(error.value).splitlines()) <= 15
    return str(error.value)


X = torch.linspace(-3, 3, 24).reshape(4, 6)


def test_wrong_element():
    def wrong(x):
        y = x.exp()
        y[2, 3] += 0.01
        return y

    message = caught(torch.exp, wrong, (X,), match="1 of 24 elements differ")
    assert "worst element [2, 3]" in message and "in float64" in message and "ratio" in message


def test_one_wrong_element_of_many_without_float64():
    def fn(x):
        if x.dtype == torch.float64:
            raise ValueError
        return x + 1

    def wrong(x):
        y = x + 1
        y[7] += 5
        return y

    caught(fn, wrong, (torch.randn(100_000),), match="float64 could not run")


def test_float64_that_says_nothing_of_eager():
    ref, res = torch.ones(10), torch.ones(10).index_fill(0, torch.tensor([1]), 3.0)
    assert "float64 is too far from eager" in same([ref], [res], [2 * ref.double()]).message


def test_as_accurate_as_eager_passes():
    x = torch.randn(64, 64) * 1e3

    def other_order(x):
        return x.flip(0).sum(0)

    report = check(lambda x: x.sum(0), (x,), compiled=other_order)
    assert report.gold


def test_wrong_integer():
    caught(lambda x: x.argmax(1), lambda x: x.argmax(1) - 1, (X,), match="must be equal")


def test_strides():
    caught(lambda x: x.t() + 1, lambda x: (x.t() + 1).contiguous(), (X,), match="strides")


def test_dtype():
    caught(lambda x: x * 2, lambda x: x.double() * 2, (X,), match="dtype")


def test_shape():
    caught(lambda x: x.sum(), lambda x: x.sum().reshape(1), (X,), match="shape")


def test_requires_grad():
    caught(lambda x: x * 2, lambda x: (x * 2).requires_grad_(), (X,), match="requires_grad")


def test_nan():
    def wrong(x):
        return x.log().nan_to_num(0)

    caught(torch.log, wrong, (X,), match="NaN or infinity")


def test_extra_alias_of_an_input():
    caught(lambda x: x.clone(), lambda x: x.view_as(x), (X,), match="(?s)output and args.*aliasing")


def test_missing_alias_of_an_input():
    caught(lambda x: x.view(-1), lambda x: x.clone().view(-1), (X,), match="aliasing")


def test_alias_between_outputs():
    def wrong(x):
        y = x + 1
        return y, y.view_as(y)

    caught(lambda x: (x + 1, x + 1), wrong, (X,), match="aliasing")


def test_same_tensor_returned_twice():
    def fn(x):
        y = x + 1
        return y, y

    caught(fn, lambda x: (x + 1, x + 1), (X,), match="the same tensor")


def test_disjoint_views_of_one_base_share_nothing():
    check(lambda x: list((x + 1).unbind(0)), (X,), compiled=lambda x: [row + 1 for row in x.unbind(0)])


def test_missed_mutation():
    def fn(x):
        x.add_(1)
        return x * 2

    caught(fn, lambda x: (x + 1) * 2, (X.clone(),), match=r"args\[0\]")


def test_extra_mutation():
    caught(lambda x: x + 1, lambda x: x.add_(1).clone(), (X.clone(),), match=r"args\[0\]")


def test_arguments_that_share_memory():
    base = X.clone()

    def fn(x, y):
        x.mul_(2)
        return y + 1

    caught(fn, lambda x, y: (x.clone().mul_(2), y + 1)[1], (base[0], base[:2]), match="elements differ")


def test_missed_list_mutation():
    def fn(items, x):
        items.append(x + 1)

    caught(fn, lambda items, x: None, ([], X), match=r"args\[0\]")


def test_missed_buffer_update():
    norm = nn.BatchNorm1d(6)
    frozen = copy.deepcopy(norm)

    def wrong(x):
        return nn.functional.batch_norm(x, None, None, frozen.weight, frozen.bias, True)

    with pytest.raises(AssertionError, match="running_mean|num_batches_tracked"):
        check(norm, (X,), compiled=wrong)


def test_module_attribute():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 1

    check(module := Counting(), (X,), compiled=module)
    with pytest.raises(AssertionError, match="calls"):
        check(Counting(), (X,), compiled=lambda x: x + 1)


def test_wrong_in_the_second_call_only():
    seen = []

    def wrong(x):
        seen.append(1)
        return x + len(seen)

    with pytest.raises(AssertionError, match="call 2"):
        check(lambda x: x + 1, (X,), compiled=wrong)


def test_none():
    caught(lambda x: (x + 1, None), lambda x: (x + 1, x), (X,), match=r"output\[1\]: expected None")


def test_container_types():
    Pair = namedtuple("Pair", "a b")
    caught(lambda x: Pair(x + 1, x + 2), lambda x: (x + 1, x + 2), (X,), match="expected Pair")
    caught(lambda x: {"a": x + 1}, lambda x: {"b": x + 1}, (X,), match="keys a")
    caught(lambda x: [x + 1], lambda x: [x + 1, x], (X,), match="1 items")


def test_dataclass():
    @dataclass
    class Output:
        loss: torch.Tensor
        extra: int = 0

    caught(lambda x: Output(x.sum()), lambda x: Output(x.sum() + 1), (X,), match=r"output\.loss")
    caught(lambda x: Output(x.sum()), lambda x: Output(x.sum(), 1), (X,), match=r"output\.extra")


def test_dataclass_with_slots():
    @dataclass(slots=True)
    class Output:
        loss: torch.Tensor
        extra: int = 0

    caught(lambda x: Output(x.sum()), lambda x: Output(x.sum() + 1), (X,), match=r"output\.loss")
    caught(lambda x: Output(x.sum()), lambda x: Output(x.sum(), 1), (X,), match=r"output\.extra")


def test_exceptions():
    def fails(x):
        raise IndexError("no")

    def other(x):
        raise KeyError("other")

    assert check(fails, (X,), compiled=fails).raised is IndexError
    caught(fails, other, (X,), match="exceptions")
    caught(fails, torch.exp, (X,), match="got: a result")
    caught(torch.exp, other, (X,), match="expected: a result")


def test_random_numbers_start_from_one_seed():
    drop = nn.Dropout(0.5)
    check(drop, (X,), compiled=drop)
    caught(lambda x: x + torch.rand(6), lambda x: x + torch.rand(6) * 0.5, (X,), match="elements differ")


def test_eager_that_changes_its_mind():
    seen = []

    def moody(x):
        seen.append(1)
        return x + len(seen)

    with pytest.raises(Undecided):
        check(moody, (X,), compiled=moody)


def test_complex():
    z = torch.complex(X, X.flip(0))
    caught(torch.exp, lambda z: torch.exp(z).conj().resolve_conj(), (z,), match="elements differ")


def test_half_is_measured_against_float64():
    x = torch.randn(64, 128, dtype=torch.bfloat16)

    def better(x):
        return torch.softmax(x.float() * 3, -1).to(x.dtype)

    check(lambda x: torch.softmax(x * 3, -1), (x,), compiled=better)
    caught(lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x.float() * 1.2, -1).to(x.dtype), (x,), match="rmse")


def test_python_numbers():
    caught(lambda x: (x.shape[0], 1.5), lambda x: (x.shape[0], 1.6), (X,), match=r"output\[1\]")
    caught(lambda x: x.shape[0], lambda x: float(x.shape[0]), (X,), match="expected 4, got 4.0")


def test_same_says_how_far():
    ref, res = torch.zeros(3), torch.tensor([0.0, 1.0, 0.0])
    verdict = same(ref, res)
    assert not verdict and "[1]" in verdict.message
    assert same({"a": [ref]}, {"a": [ref.clone()]}) and same(ref, ref).ratio == 0


def test_compiles_by_default():
    report = check(lambda x, y: torch.sin(x) + torch.cos(y), (X, X))
    assert report.calls == 2 and report.raised is None
