"""sys.stdout and sys.stderr replaced by captured code: what is written goes where eager's does, and what was there comes back."""

import contextlib
import io
import logging
import sys
import traceback
import warnings

import pytest
import torch
from harness import compiled, number_backend, same


class Collected:
    """A stream of the program's."""

    def __init__(self):
        self.parts = []

    def write(self, text):
        self.parts.append(text)

    def flush(self):
        pass


def replaced(x):
    before, sys.stderr = sys.stderr, io.StringIO()
    try:
        sys.stderr.write("one")
        print_to = sys.stderr.write
        print_to("two")
        text = sys.stderr.getvalue()
    finally:
        sys.stderr = before
    return x * 2, text, sys.stderr is before


def redirected(x):
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(Collected()) as out:
        sys.stdout.write("a")
        sys.stderr.write("b")
        with contextlib.redirect_stdout(io.StringIO()) as inner:
            sys.stdout.write("c")
        sys.stdout.write("d")
    return x + 1, errors.getvalue(), out.parts, inner.getvalue()


@pytest.mark.parametrize("function", [replaced, redirected])
def test_one_graph(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    for x in (torch.ones(2), torch.zeros(2)):
        streams = sys.stdout, sys.stderr
        assert same(fast(x), function(x))
        assert (sys.stdout, sys.stderr) == streams
        with contextlib.redirect_stderr(io.StringIO()) as other:  # another one around the call
            assert same(fast(x), function(x))
            assert sys.stderr is other
        assert other.getvalue() == ""
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


def printed(x):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print("shown")
        y = x * 2
        print("again", end="")
    return y, out.getvalue()


def warned(x):
    with contextlib.redirect_stderr(io.StringIO()) as out:
        warnings.warn("to the stream", stacklevel=1)
        y = x + 1
    return y, "to the stream" in out.getvalue()


def logged(x):
    with contextlib.redirect_stderr(io.StringIO()) as out:
        logging.getLogger("streams").error("message")
    return x + 1, out.getvalue()


def traced(x):
    with contextlib.redirect_stderr(io.StringIO()) as out:
        try:
            raise KeyError(3)
        except KeyError:
            traceback.print_exc()
    return x * 2, out.getvalue().splitlines()[-1]


def left(x):
    sys.stderr = io.StringIO()
    sys.stderr.write("kept")
    return x * 2


def raised(x):
    with contextlib.redirect_stderr(io.StringIO()):
        sys.stderr.write("lost")
        raise ValueError(4)


@pytest.mark.parametrize("function", [printed, warned, logged, traced, left, raised])
def test_as_eager(function):
    fast, _ = compiled(function, number_backend)
    for x in (torch.ones(2), torch.zeros(2)):
        outcomes = []
        for one in (function, fast):
            before = sys.stdout, sys.stderr
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                try:
                    result = one(x)
                except ValueError as error:
                    result = str(error)
            kept = sys.stderr.getvalue() if function is left else ""
            sys.stdout, sys.stderr = before
            outcomes.append((result, kept))
        assert same(*outcomes)


def printed(x, *values, into_stdout, **how):
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream) if into_stdout else contextlib.nullcontext():
        print("values", *values, **how, **({} if into_stdout else {"file": stream}))
    return x + 1, stream.getvalue()


def printed_plainly(x, n, sep, end):
    stream = io.StringIO()
    print("n", n, "of", sep, file=stream)
    print(n, n, sep=sep, end=end, file=stream, flush=n)
    return x + 1, stream.getvalue()


@pytest.mark.parametrize("into_stdout", [True, False])
def test_arguments_that_nothing_else_looks_at_are_printed(into_stdout):
    fast, _ = compiled(printed, number_backend, on_error="raise")
    plain, _ = compiled(printed_plainly, number_backend, on_error="raise")
    x = torch.ones(2)
    for values, how in (((1, "a"), {}), ((2, None), {"sep": "-"}), ((3, [4]), {"end": "!", "flush": True}), ((), {})):
        given = {"into_stdout": into_stdout, **how}
        assert same(fast(x, *values, **given), printed(x, *values, **given))
        args = (x, len(values), how.get("sep", "+"), how.get("end"))
        assert same(plain(*args), printed_plainly(*args))
