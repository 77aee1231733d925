"""warnings.catch_warnings in captured code: what its lists hold, what its filters raise, what is left of it."""

import unittest
import warnings

import pytest
import torch
from harness import compiled, number_backend, same

CASE = unittest.TestCase()


class Own(UserWarning):
    pass


def shown(log):
    return [(type(m.message), str(m.message), m.category, m.filename, m.lineno, m.source) for m in log]


def warn(text, category=UserWarning, level=1):
    warnings.warn(text, category, stacklevel=level)


def recorded(x):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        for k in range(2):
            warnings.warn(f"number {k}")
        warn("from below", Own, 2)
        warnings.warn(Own("made"))
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    return x * len(log), shown(log)


def as_errors(x):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in ("a", "b"):
            try:
                warnings.warn(text)
            except UserWarning as error:
                found.append(str(error))
        warnings.filterwarnings("ignore", "a+", UserWarning)
        warnings.warn("aaa")
        try:
            warnings.warn("b", Own)
        except Own as error:
            found.append(error.args)
    return x + 1, found


def once_a_line(x):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn("again")
        warnings.warn("again")
        warnings.resetwarnings()
        warnings.simplefilter("module")
        for _ in range(2):
            warnings.warn("again")
            warnings.warn("again")
    return x * 2, shown(log)


def nested(x):
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        warnings.warn("one")
        with warnings.catch_warnings(record=True) as inner:
            warnings.simplefilter("ignore", Own)
            warnings.warn("two")
            warnings.warn("three", Own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("four")
        with warnings.catch_warnings():
            warnings.warn("five")
        warnings.warn("six")
    return x + 1, shown(outer), shown(inner)


def left_by_an_error(x):
    try:
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            warnings.warn("before")
            raise KeyError(1)
    except KeyError:
        return x, shown(log)


def of_the_compiler(x):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        code = compile("\n1 is 1", "<text>", "eval")
        assert code
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyntaxWarning)
        try:
            compile("\n1 is 1", "<text>", "eval")
        except SyntaxError as error:
            found = str(error), error.filename, error.lineno
    return x, shown(log), found


class Indexed:
    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


class Whole(int):
    pass


def of_c_code(x):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        number = int(Indexed(Whole(3)))
    return x * number, [(type(m.message), str(m.message), m.filename, m.lineno) for m in log]


def asserted(x):
    with CASE.assertWarns(Own) as caught:
        warnings.warn("told", Own)
    with CASE.assertWarnsRegex(UserWarning, "t.ld"):
        warnings.warn("told")
    try:
        with CASE.assertWarns(Own):
            warnings.warn("other")
    except AssertionError as error:
        missing = str(error)
    return x, str(caught.warning), caught.filename, caught.lineno, missing


@pytest.mark.parametrize(
    "function",
    [recorded, as_errors, once_a_line, nested, left_by_an_error, of_the_compiler, of_c_code, asserted],
)
def test_one_graph(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    function(torch.ones(2))  # unittest looks at all modules, which imports what some put off: that may add filters
    for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
        before = list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl
        assert same(fast(x), function(x))
        assert before == (list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl)
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


def test_filters_from_around():
    def inherits(x):
        with warnings.catch_warnings(record=True) as log:
            warnings.warn("inherited", Own)
        return x, shown(log)

    fast, _ = compiled(inherits, number_backend)
    for action in ("always", "ignore", "always", "error", "ignore"):
        outcomes = []
        for function in (inherits, fast):
            with warnings.catch_warnings():
                warnings.simplefilter(action)
                try:
                    outcomes.append(function(torch.ones(2)))
                except Own as error:
                    outcomes.append(str(error))
        assert same(*outcomes), action


def test_shown_again_behind_a_block():
    def told():
        warnings.warn("told once", Own)

    def silent(x):
        with warnings.catch_warnings():
            y = x + 1
        return y

    counts = []
    for function in (silent, compiled(silent, number_backend)[0]):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("default")
            for _ in range(3):
                told()
                told()
                function(torch.ones(1))
        counts.append(len(log))
    assert counts == [3, 3]


def test_breaks_and_what_is_looked_at():
    def broken(x):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            warnings.warn("one")
            print(end="")
            y = x * 2
            warnings.warn("two")
        return y, shown(log)

    def filters_read(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Own)
            first = warnings.filters[0][:3]
        return x, first

    def given_back(x):
        manager = warnings.catch_warnings(record=True)
        log = manager.__enter__()
        warnings.simplefilter("always")
        warnings.warn("a")
        manager.__exit__(None, None, None)
        return x, manager._entered, log

    def shown_outside(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("to whoever listens", Own)
        return x

    def raises(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("not caught")

    for function in (broken, filters_read, given_back, shown_outside, raises):
        fast, _ = compiled(function, number_backend)
        for _ in range(3):
            outcomes = []
            for one in (function, fast):
                with warnings.catch_warnings(record=True) as log:
                    warnings.simplefilter("always")
                    try:
                        result = one(torch.ones(2))
                        result = (*result[:2], shown(result[2])) if one and function is given_back else result
                    except UserWarning as error:
                        result = str(error)
                outcomes.append((result, shown(log)))
            assert same(*outcomes), function
