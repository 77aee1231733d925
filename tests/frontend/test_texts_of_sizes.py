"""Text of symbolic sizes: left to messages that are never shown; else it is text of this call's numbers, which are guarded.

PYTEST_DONT_REWRITE: asserts of the programs are Python's own.
"""

import inspect

import pytest
import torch
from harness import compiled, number_backend, same
from torch import nn


def _checked(condition, message):
    if not condition:
        raise ValueError(message)


NET = nn.Module()
for _k in range(12):
    setattr(NET, f"w{_k}", float(_k))
TABLE = {f"{k}": k for k in range(20)}


def formatted(x):
    _checked(x.dim() == 2, f"shape {x.shape} and {x.shape[0]:>4} and {x.shape[0] * 2 + 1} and {x.shape[0] / 2}")
    return x * 2


def with_percent(x):
    _checked(x.dim() == 2, "n %d of %s" % (x.shape[0], x.shape))
    return x * 2


def with_format(x):
    _checked(x.dim() == 2, "{} {n}".format(x.shape, n=x.shape[0]))
    return x * 2


def joined(x):
    _checked(x.dim() == 2, ",".join([str(n) for n in x.shape]) + repr([x.shape[0], x]))
    return x * 2


def asserted(x):
    assert x.shape[1] == 3, f"{x.shape}"
    return x + 1


def key(x):
    return x * TABLE[f"{x.shape[0]}"]


def attribute(x):
    return x * getattr(NET, f"w{x.shape[0]}")


def compared(x):
    return x * (2 if str(x.shape[0]) == "4" else 3), f"{x.shape[0]}" in {"3", "5"}


def both_late(x):
    a, b = f"{x.shape[0]}", f"{x.shape[0]}"
    return x * (2 if a == b else 3)


def returned(x):
    return x * 2, "a" + str(x.shape[0]) + "b", f"{x.shape}".startswith("torch")


def with_an_object(x):
    _checked(x.dim() == 2, "{} {}".format(x.shape[0], nn.Linear))
    return x * len("{}".format(x.shape[0]) * 3)


def raised(x):
    _checked(x.shape[0] != 7, f"size {x.shape[0]}")
    return x * 2


def caught(x):
    try:
        _checked(x.shape[1] == 5, f"size {x.shape[0]}")
    except ValueError as error:
        return x * len(str(error)), str(error)
    return x


def kept(x):
    NET.note = f"{x.shape[0]}"
    return x + 1


def on_a_side(x):
    return x * len(f"{x.shape[0]}") if x.sum() > 0 else x - 1


def looked_at_behind_a_tensor(x):
    text = f"{x.shape[0]}"
    _checked(x.dim() == 2, f"{x}")
    return x * int(text)


HIDDEN = (formatted, with_percent, with_format, joined, asserted, raised)
SHOWN = (
    key,
    attribute,
    compared,
    both_late,
    returned,
    with_an_object,
    caught,
    kept,
    on_a_side,
    looked_at_behind_a_tensor,
)


def _account(function, x):
    NET.__dict__.pop("note", None)
    try:
        found = function(x.clone())
    except ValueError as error:
        found = repr(error)
    return found, NET.__dict__.get("note")


@pytest.mark.parametrize("program", HIDDEN + SHOWN, ids=lambda f: f.__name__)
def test_text_is_eagers(program) -> None:
    fast, log = compiled(program)
    for rows in (3, 4, 7, 5, 4):
        x = torch.randn(rows, 3)
        found, expected = _account(fast, x), _account(program, x)
        if not same(found, expected):
            raise AssertionError((found, expected))
    if log.breaks or log.fallbacks or program in HIDDEN and len(log.captures) != 2:
        raise AssertionError((log.breaks, log.fallbacks, len(log.captures)))


def sides_give_dicts(x):
    if x.sum() > 0:
        bases = len([base for base in inspect.getmro(nn.Linear)])
        return {"loss": {"value": x.sum(1) * bases, "kind": "row"}, 2: (x,)}
    return {"loss": {"value": x.sum(1), "kind": "row"}, 2: (x + 1,)}


def sides_give_other_keys(x):
    return {"a": x, "b": x + 1} if x.sum() > 0 else {"b": x, "a": x + 1}


@pytest.mark.parametrize("program", (sides_give_dicts, sides_give_other_keys), ids=lambda f: f.__name__)
def test_dicts_of_sides(program) -> None:
    fast, log = compiled(program)
    for by in (1, -1, 1):
        x = torch.randn(3, 4) + 9 * by
        found, expected = fast(x), program(x)
        if not same(found, expected) or [*found] != [*expected]:
            raise AssertionError((found, expected))
    if bool(log.breaks) != (program is sides_give_other_keys):
        raise AssertionError(log.breaks)


def test_rows_and_columns_that_values_decide_are_written_to() -> None:
    def program(x, mask):
        rows, columns = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        made = x[rows][:, columns] * 2
        made[made > 0] = -9.0
        return made.sum(0), made

    fast, log = compiled(program, number_backend)
    for seed in range(4):
        torch.manual_seed(seed)
        mask = torch.rand(6) > 0.5
        mask[0], mask[1] = True, False
        results = []
        for function in (fast, program):
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            found = function(x, mask)
            found[0].sum().backward()
            results.append((found, x.grad))
        if not same(*results):
            raise AssertionError(results)
    if log.breaks or log.fallbacks or len(log.captures) != 1:
        raise AssertionError((log.breaks, log.fallbacks))
