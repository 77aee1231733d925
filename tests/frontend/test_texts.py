"""Text with tensors in it: one graph where nobody looks at it, eager's text where it is shown.

PYTEST_DONT_REWRITE: asserts of the programs are Python's own.
"""

import logging
import warnings

import pytest
import torch
from harness import compiled, number_backend, same

import intarsia

HELD: dict[str, object] = {}
_log = logging.getLogger("texts")


def checked(condition, message):
    """As libraries check: the message is there before anybody needs it."""
    if not condition:
        raise ValueError(message)


def never_shown(x):
    checked(True, f"{x} and {x.sum():.2f}")
    return x + 1


def shown(x):
    return f"{x.sum():.3f} {x} {x.shape} {x.sum()!r:>30} {x.mean():{8}.2f}", x + 1


def written_behind(x):
    """The text shows what was there."""
    text = f"{x}"
    x.add_(1)
    return text, str(x)


def joined(x):
    parts = [f"{row.sum():.2f}" for row in x]
    text = ", ".join(f"{part}!" for part in parts) + " end"
    text += "."
    return text.upper(), text.replace("E", "e"), x * 2


def with_percent(x):
    return "%s %.3f %d %%" % (x.sum(), x.mean(), (x > 0).sum()), "%s" % x, x + 1


def with_format(x):
    return "{} {:.2f} {a!r}".format(x.sum(), x.mean(), a=x > 0), x + 1


def in_containers(x):
    return str([x.sum(), (x.max(), "a")]), repr({"a": x}), x + 1


def of_numbers(x):
    return f"{x.sum().item():.3f} {(x > 0).sum().item():03d}", x + 1


def of_kinds(x):
    return f"{x.to(torch.complex64)} {x.to(torch.bfloat16)} {x.bool()} {x.long()} {x[:0]}", x + 1


def kept(x):
    HELD["text"] = f"{x.sum():.2f}"
    return x + 1


def of_errors(x):
    try:
        raise ValueError(f"bad {x.sum():.2f}")
    except ValueError as error:
        return str(error), x + 1


def asked_for_its_kind(x):
    text = f"{x}"
    return isinstance(text, str), type(text), text.__class__, text is None, hasattr(text, "shape"), x + 1


def logged(x):
    _log.error("%s and %s", x, f"{x.sum():.2f}")
    x.add_(1)
    return x


def asserted(x):
    torch._assert((x < 100).all(), f"bad {x}")
    return x + 1


def all_checked(x):
    torch._check_tensor_all(x < 100, lambda: f"bad {x}")
    return x + 1


def kinds_of_checks(x):
    n = (x > 0).sum().item()
    torch._check_value(n < 100, lambda: f"many {n}")
    torch._check_index(x.shape[0] == 4, lambda: "rows")
    return x.new_zeros(n)


ONE = (never_shown, shown, written_behind, joined, with_percent, with_format, in_containers, of_numbers, of_kinds)
ONE += (kept, of_errors, asked_for_its_kind, asserted, all_checked, kinds_of_checks)


def compared(x):
    if f"{x.sum():.0f}" == "3":
        return x
    return x + 1


def a_key(x):
    return {f"{x.sum():.1f}": 1}, x + 1


def a_name(x):
    return getattr(x, f"s{x.sum() * 0:.0f}", None), x + 1


def measured(x):
    return len(f"{x}"), bool(f"{x}"), f"{x}".split()[0], "7" in f"{x}", x + 1


def caught(x):
    """C code that takes text alone must not see what stands for it."""
    try:
        return int(f"{x.sum() * 0 + 5:.0f}"), x + 1
    except TypeError:
        return "no"


def printed(x):
    print(f"{x.sum():.2f}")
    return x + 1


def no_format(x):
    return f"{x.sum():d}", f"{x:.2f}"


def no_whole_number(x):
    """NaN has none."""
    return "%d" % (x.sum() / 0 * 0), x + 1


OTHERS = (compared, a_key, a_name, measured, caught, printed, no_format, no_whole_number)


def outcome(function, x, capsys, caplog):
    caplog.clear(), HELD.clear()
    x = x.clone()
    try:
        result = function(x)
    except Exception as error:
        result = type(error), error.args
    return result, dict(HELD), x, capsys.readouterr().out, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("function", [*ONE, *OTHERS], ids=lambda f: f.__name__)
def test_as_eager(function, capsys, caplog):
    fast, log = compiled(function, number_backend)
    for x in (torch.arange(12.0).reshape(4, 3), torch.full((4, 3), -0.25), torch.full((4, 3), 1e4)):
        expected = outcome(function, x, capsys, caplog)
        caplog.set_level(logging.CRITICAL, "intarsia")
        assert same(outcome(fast, x, capsys, caplog), expected)
    assert log.fallbacks == []
    assert (log.breaks == [] and len(log.captures) == 1) is (function in ONE)


def test_text_that_nobody_asks_for_is_no_result():
    fast, log = compiled(never_shown, number_backend)
    fast(torch.ones(3))
    (capture,) = log.captures
    assert capture.entry.outputs == 1
    assert not any("clone" in str(n.target) for n in capture.graph_module.graph.nodes)


@pytest.mark.parametrize("parameter", [False, True])
def test_what_shows_a_gradients_function_breaks_where_it_is_shown(parameter):
    def unseen(x, w):
        checked(True, f"{x * w} {w}")
        return x * w

    def seen(x, w):
        return f"{w.detach()} {(x * w).sum():.3f}", f"{w}", x * w

    w = torch.ones(3, requires_grad=True)
    w = torch.nn.Parameter(w.detach()) if parameter else w
    for function in (unseen, seen):
        fast, log = compiled(function, number_backend)
        made, expected = fast(torch.arange(3.0), w), function(torch.arange(3.0), w)
        assert str(made) == str(expected) or function is unseen
        assert len(log.breaks) == (function is seen) and not log.fallbacks


def test_a_program_that_raises_where_it_is_told_that_it_is_compiled():
    def f(x, least):
        if torch.compiler.is_compiling():
            if least > 1:
                raise RuntimeError("cannot be traced")
            return x * 2
        if least > 2:
            raise ValueError("too large")
        return x * 3

    fast, log = compiled(f, number_backend)
    assert same([fast(torch.ones(2), least) for least in (0, 2)], [torch.full((2,), 2.0), torch.full((2,), 3.0)])
    with pytest.raises(ValueError, match="too large"):
        fast(torch.ones(2), 3)
    assert len(log.captures) == 2 and log.breaks == [] and log.fallbacks == []


class Seen(logging.Handler):
    """Writes messages as they come."""

    def emit(self, record):
        HELD.setdefault("messages", []).append(record.getMessage())


@pytest.mark.parametrize("function", [logged, written_behind], ids=lambda f: f.__name__)
def test_compiled_in_whole(function):
    fast, handler = intarsia.compile(function, fullgraph=True), Seen()
    _log.addHandler(handler)
    try:
        for x in (torch.ones(2, 3), torch.zeros(2, 3)):
            HELD.clear()
            expected = function(x.clone()), HELD.pop("messages", None)
            assert same((fast(x.clone()), HELD.pop("messages", None)), expected)
    finally:
        _log.removeHandler(handler)


def test_warnings():
    def f(x):
        warnings.warn(f"sum {x.sum():.2f}")
        return x + 1

    fast = intarsia.compile(f, fullgraph=True)
    for x in (torch.ones(3), torch.zeros(3)):
        with warnings.catch_warnings(record=True) as given:
            warnings.resetwarnings()
            warnings.simplefilter("always")
            fast(x)
        assert [str(w.message) for w in given] == [f"sum {x.sum():.2f}"]
        assert given[0].lineno == f.__code__.co_firstlineno + 1
