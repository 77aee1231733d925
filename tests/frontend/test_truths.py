"""Truths that only the running program knows: `bool(t)`, `t.item() < e`, `torch.allclose` in conditions, kept, and combined."""

import math

import pytest
import torch
from harness import compiled, number_backend, same
from test_value_loops import XS, check
from torch.utils import _pytree as pytree

NAN = torch.full((4, 3), float("nan"))


def item_below(x):
    while x.abs().max().item() > 0.3:
        x = x * 0.5
    return x + 1


def as_float(x):
    n = 0
    while 0.3 < float(x.abs().max()) and n < 9:
        x, n = x * 0.5, n + 1
    return x + 1, n


def until_it_is_close(x):
    y = x * 0.5
    while not torch.allclose(x, y, atol=1e-2):
        x, y = y, y * 0.5
    return x, y


def until_it_is_equal(x):
    y = x * 0.5
    while not torch.equal(x, y):
        x, y = y, (y * 0.5).round()
    return y


def best_so_far(x):
    previous, n = float("inf"), 0
    while True:
        now = x.abs().sum().item()
        if abs(previous - now) < 0.5:
            break
        previous, x, n = now, x * 0.5, n + 1
    return x + 1, previous, n


def flag(x):
    converged, n = False, 0
    while not converged and n < 8:
        new = x * 0.6
        converged = torch.allclose(new, x, atol=0.1)
        x, n = new, n + 1
    return x, n, converged


def with_bits(x):
    n = 0
    while (x.max() > 0.3) & (n < 4):
        x, n = x * 0.5, n + 1
    return x + 1, n


def counted(x):
    n = 0
    while (x > 0.3).sum().item() > 2 and not bool((x > 90).any()):
        x, n = x * 0.7, n + 1
    return x + 1, n


def finite(x):
    n = 0
    while math.isfinite(x.sum().item()) and n < 12:
        x, n = x * x, n + 1
    return x + 0, n


def kept(x):
    ok = bool(x.max() > 1)
    low = x.sum().item() < 0
    return ok, not ok, [ok & low], {"low": low}, x + 1


def compared(x):
    number, other = x.sum().item(), x.mean().item()
    return number > 3, 3 >= number, number == number, number != other, number < other


def read_before_a_write(x):
    ok = bool(x.max() > 1)
    x.mul_(0)
    return ok, x.max().item() > 1


def found(x):
    y = x.round()
    if 1 in y and 77 not in y:
        x = x + 1
    return x * 2, 2.0 in y, x[0, 0] in x, y[0] not in x, True in (y > 1)


def until_found(x):
    n = 0
    while n < 5 and 0.5 not in x.abs().round():
        x, n = x * 0.5, n + 1
    return x + 1, n


def with_constants(x):
    n = 0
    while x.abs().sum() > math.log(6) and n < 9:
        x, n = x * 0.5 - math.log(1.1), n + 1
    return x + 1, n


def branches(x):
    if x.max().item() > 1 and torch.allclose(x, x * 1.0001):
        x = x + 1
    return x * 2


def either(x):
    n = 0
    while x.max() > 3 or n < 2:
        x, n = x * 0.5, n + 1
    return x + 1, n


def either_in_both(x):
    n = 0
    while (x > 0.3).any() and (n < 3 or x.min() < -0.2):
        x, n = x * 0.7, n + 1
    return x + 0, n


def one_of_a_list(x):
    n = 0
    while any([x.max() > 3, x.sum() > 5]) and not all((x.max() < 1, True)):
        x, n = x * 0.5, n + 1
    return x + 1, n


def of_three(x):
    if x.max() > 1 and (x.min() < 0 or x.sum() > 3) and not x.mean() > 10:
        return x * 2
    return x - 1


def bisected(x):
    low, high, middle = 0.0, 64.0, x.abs().mean()
    while high - low > 1e-2:
        half = (low + high) / 2
        if middle > half:
            low = half
        else:
            high = half
    return low, high


def bisected_in_tensors(x):
    low, high, middle = torch.tensor(0.0), torch.tensor(64.0), x.abs().mean()
    while (high - low).item() > 1e-2:
        half = (low + high) / 2
        if (half < middle).item():
            low = half
        else:
            high = half
    return low, high


def patience(x):
    best, wait = float("inf"), 0
    for i in range(10):
        loss = x.abs().sum().item()
        if loss < best - 0.5:
            best, wait = loss, 0
        else:
            wait += 1
        if wait >= 2 or loss < 0.1:
            break
        x = x * 0.7
    return x + 1, best, wait, i


def numbers_of_branches(x):
    n, scale, large = 0, 1.0, False
    if x.sum() > 0:
        n += 1
    if x.max() > 5:
        n, scale, large = n + 2, scale * 0.1, True
    return x * scale + n, n, scale, large


def how_many_there_are(x):
    return x * 2 if len((x > 1).nonzero()) > 2 else x + 1


def the_first_of_none(x):
    """A part that fails where Python does not come to it is no part of the condition."""
    found = (x > 1).nonzero()
    return x * 2 if len(found) > 0 and found[0, 0] > 1 else x - 1


ONE_GRAPH = [item_below, as_float, until_it_is_close, until_it_is_equal, best_so_far, flag, with_bits, counted, finite]
ONE_GRAPH += [
    either,
    either_in_both,
    one_of_a_list,
    of_three,
    bisected,
    bisected_in_tensors,
    patience,
    numbers_of_branches,
]
ONE_GRAPH += [
    how_many_there_are,
    the_first_of_none,
    kept,
    compared,
    read_before_a_write,
    branches,
    found,
    until_found,
    with_constants,
]
ENDLESS_WITH_NAN = [until_it_is_close, until_it_is_equal, best_so_far]


@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, XS, fast)
    for given in XS if f in ENDLESS_WITH_NAN else [NAN]:
        wanted, found = (pytree.tree_leaves(run(given.clone())) for run in (f, fast))
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert [type(v) for v in found] == [type(v) for v in wanted]
    assert len(log.captures) == 1 and not log.breaks and not log.fallbacks


def asked_for_identity(x):
    return bool(x.max() > 1) is True, x


def in_arithmetic(x):
    ok = bool(x.max() > 1)
    return ok + 1, ok * 2, int(ok)


def as_text_and_key(x):
    ok = x.max().item() > 1
    return f"{ok}", {ok: 1}, (1, 2)[ok], [3, 4][:ok]


def equal_to_itself(x):
    return torch.equal(x, x), torch.equal(x.view(12), x.view(12))


def of_two_dtypes(x):
    return torch.equal(x.int(), x.long()), x


def too_exact(x):
    return x.sum().item() < 2**70 + 1, x.sum().item() == None  # noqa: E711


@pytest.mark.parametrize(
    "f", [asked_for_identity, in_arithmetic, as_text_and_key, equal_to_itself, of_two_dtypes, too_exact]
)
def test_what_asks_for_more_breaks(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    for x in [*XS, NAN]:
        assert same(fast(x), f(x))
    assert log.breaks and all("depends on a tensor's value" in b.reason or ".item()" in b.reason for b in log.breaks)


def test_errors_are_those_of_eager() -> None:
    for f in (lambda x: bool(x), lambda x: torch.allclose(x, x.double()), lambda x: torch.is_nonzero(x)):
        errors = []
        for run in (f, compiled(f, number_backend)[0]):
            with pytest.raises(RuntimeError) as error:
                run(XS[0])
            errors.append(str(error.value))
        assert errors[0] == errors[1]


# ---- which tensors are one ----


def a_choice_is_carried(x):
    y, z = x * 2, x * 3
    while x.max() > 0.3:
        x = x * 0.5
        if x.min() < 0:
            y = z
    return y, z


def a_choice_is_written_behind(x):
    y, z = x * 2, x * 3
    while x.max() > 0.3:
        x = x * 0.5
        if x.min() < 0:
            y = z
    y.add_(1)
    return y * 1, z * 1


def a_choice_is_written_in_a_round(x):
    z, n = x * 3, 0
    while x.max() > 0.3:
        x = x * 0.5
        y = z if x.min() < 0 else x
        y.mul_(2)
        n = n + 1
    return x, z, n


def the_first_one_comes_out(x):
    y = x * 0.5
    z = y
    while (x - y).abs().max() > 1e-2:
        x, y = y, y * 0.5
    return x, z


def two_names(x):
    a, b = x * 1, x * 2
    while a.max() > 0.5:
        a = a * 0.5
        b = a
    return a, b


def exchanged(x):
    a, b, n = x * 1, x * 2, 0
    while a.max() + n < 5:
        a, b, n = b, a, n + 2
    return a, b, n


def memory_of(values):
    return [t.untyped_storage().data_ptr() for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


ONE_OF_TWO = [
    *(a_choice_is_carried, a_choice_is_written_behind, a_choice_is_written_in_a_round),
    *(the_first_one_comes_out, two_names, exchanged),
]


@pytest.mark.parametrize("f", [*ONE_OF_TWO, until_it_is_close])
def test_results_are_one_where_they_are_in_eager(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    for x in XS:
        wanted, found = f(x.clone()), fast(x.clone())
        torch.testing.assert_close(found, wanted)
        firsts, ours = memory_of(wanted), memory_of(found)
        assert [firsts.index(m) for m in firsts] == [ours.index(m) for m in ours]
    assert bool(log.breaks) is (f in ONE_OF_TWO)
    assert all("one of two" in b.reason or "a size decides" in b.reason for b in log.breaks)


def beyond(x):
    total, n = x[0], 0
    while n < 9 and total.abs().sum() < 50:
        total = total + x[n]
        n += 1
    return total, n


def unread(x):
    """The index is taken for nothing but its error."""
    total, n = x[0], 0
    while n < 9 and total.abs().sum() < 50:
        x[n]
        total = total * 1.5
        n += 1
    return total, n


@pytest.mark.parametrize("program", [beyond, unread])
def test_an_index_does_not_decide_how_long_a_loop_is(program):
    run, log = compiled(program, number_backend, on_error="raise")
    for scale in (100.0, 9.0, 4.0):
        x = torch.full((8, 3), scale)
        for found, expected in zip(run(x), program(x), strict=True):
            torch.testing.assert_close(found, expected)
    for _ in range(2):
        with pytest.raises(IndexError, match="index 8 is out of bounds for dimension 0 with size 8"):
            run(torch.full((8, 3), 1e-3))
    assert not log.breaks and len(log.captures) == 1
