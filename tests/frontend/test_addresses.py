"""Text that shows where objects lie is that of the objects that each call makes, or is given."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor

X = torch.ones(2)


class Plain:
    pass


def listed(x: Tensor) -> Any:
    made = [Plain(), Plain()]
    return x + 1, made, f"{made}", lambda made: f"{made}"


def closure(x: Tensor) -> Any:
    def inner() -> None:
        pass

    return x + 1, inner, str(inner), str


def a_generator(x: Tensor) -> Any:
    made = (i for i in [1])
    return x + 1, made, repr(made), repr


def an_iterator(x: Tensor) -> Any:
    made = iter([1])
    return x + 1, made, "%s" % (made,), repr


def of_a_class_made_here(x: Tensor) -> Any:
    class Here:
        pass

    made = Here()
    return x + 1, made, f"{made!r:>80}", lambda made: f"{made!r:>80}"


def mapped(x: Tensor) -> Any:
    made = [Plain(), Plain()]
    return x + 1, made, [*map(repr, made)], lambda made: [*map(repr, made)]


def in_a_message(x: Tensor) -> Any:
    made, table = Plain(), dict[Any, int]()
    try:
        table[made]
    except KeyError as error:
        said = str(error)
    return x + 1, made, said, repr


def a_stream(x: Tensor) -> Any:
    made, stream = Plain(), io.StringIO()
    stream.write(f"<{made}>")
    return x + 1, made, stream, lambda made: f"<{made}>"


def beside_a_tensor(x: Tensor) -> Any:
    made = Plain()
    return x + 1, made, f"{made} {x}", lambda made: f"{made} {X}"


@pytest.mark.parametrize(
    "function",
    [
        listed,
        closure,
        a_generator,
        an_iterator,
        of_a_class_made_here,
        mapped,
        in_a_message,
        a_stream,
        beside_a_tensor,
    ],
)
def test_text_of_what_a_call_makes(function: Callable[..., Any]) -> None:
    fast, log = compiled(function)
    for _ in range(2):
        _, made, text, expected = fast(X)
        text = text.getvalue() if isinstance(text, io.StringIO) else text
        assert text == expected(made)
    assert log.breaks == []


def test_across_a_break(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: Tensor) -> Any:
        made = Plain()
        table = {str(made): made}
        print(str(made))
        return x + 1, table

    fast, _ = compiled(function)
    for _ in range(2):
        ((text, made),) = fast(X)[1].items()
        assert text == str(made) == capsys.readouterr().out.strip()


def test_log_messages_and_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Any:
        made = Plain()
        logging.getLogger("addresses").warning("at %s", made)
        return x + 1, made

    def raising(x: Tensor) -> Any:
        made = Plain()
        raise ValueError(str(made), made)

    fast, _ = compiled(function)
    for _ in range(2):
        assert f"at {fast(X)[1]}" == caplog.records[-1].getMessage()
    fast, _ = compiled(raising)
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            fast(X)
        text, made = caught.value.args
        assert text == str(made)


HOLDER = [Plain()]
LARGE = {str(i): 0.0 for i in range(100)}
SMALL = dict[str, float]()
SEEN = [""]


def test_text_of_the_callers_objects_that_nothing_looks_at() -> None:
    def function(x: Tensor, holder: Any) -> Any:
        return x + 1, repr(holder)

    fast, log = compiled(function)
    for holder in (Plain(), Plain()):
        assert fast(X, holder)[1] == repr(holder)
    assert log.breaks == [] and len(log.captures) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, holder: x * LARGE.get(repr(holder), 7.0),
        lambda x, holder: x * LARGE[repr(holder)] if repr(holder) in LARGE else x,
        lambda x, holder: x * SMALL.get(f"{holder}", 7.0),
        lambda x, holder: x * 3 if f"{holder}" == SEEN[0] else x,
        lambda x, holder: x * 3 if f"({holder})".find(SEEN[0]) == 1 else x,
        lambda x, holder: x * 3 if str(holder) in {SEEN[0]} else x,
    ],
)
def test_text_of_the_callers_objects_that_is_looked_at(function: Callable[..., Any]) -> None:
    first, second = Plain(), Plain()
    LARGE[repr(first)] = SMALL[repr(first)] = 5.0
    SEEN[0] = repr(first)
    fast, _ = compiled(function)
    for holder in (first, second, first):
        assert torch.equal(fast(X, holder), function(X, holder))


def test_methods_of_the_callers_lists() -> None:
    items = [1]

    def function(x: Tensor, items: Any) -> Any:
        bound = items.append
        return x + 1, repr(bound), bound.__self__ is items

    fast, _ = compiled(function)
    for given in (items, [1]):
        assert fast(X, given)[1:] == (repr(given.append), True)
