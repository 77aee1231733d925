"""Keys of `cmp_to_key`, text of tracebacks, constants and old pickles, hooks of `sys` that are set for a while."""

import functools
import pickle
import sys
import traceback

from behaviour import LOG, Suite, t

case = Suite()


@case(lambda: (t(), 3), lambda: (t(), 1))
def keys_that_compare(x, n):
    key = functools.cmp_to_key(lambda a, b: LOG.append((a, b)) or a - b)
    one, two = key(2), key(obj=n)
    try:
        LOG.append(one < 3)
    except TypeError as error:
        LOG.append(str(error))
    return x + two.obj, one < two, one <= two, one == two, one > two, one >= two, sorted([3, n, 2], key=key)


@case(lambda: (t(), "a"), lambda: (t(), "b"))
def text_of_a_traceback(x, value):
    try:
        raise ValueError(value)
    except ValueError:
        lines = traceback.format_exc().splitlines()
    return x + len(lines), lines[-2:]


@case(lambda: (t(),), lambda: (t(2.0),))
def constants_refuse_attributes(x):
    held = range(3)
    for change in (
        lambda: setattr(held, "start", 3),
        lambda: held.__setattr__("other", 1),
        lambda: delattr(held, "stop"),
        lambda: setattr(3, "real", 2),
        lambda: delattr("a", "other"),
    ):
        try:
            change()
        except (AttributeError, TypeError) as error:
            LOG.append(str(error))
    return x + held.stop


@case(lambda: (t(), 1), lambda: (t(), 2))
def hooks_that_are_set_for_a_while(x, n):
    before = sys.excepthook
    sys.excepthook = lambda *error: None
    try:
        changed = sys.excepthook is not before
    finally:
        sys.excepthook = before
    return x + n, changed, sys.excepthook is before


@case(lambda: (t(), b"c__builtin__\nint\n(S'1'\ntR."), lambda: (t(), b"c__builtin__\nlen\n(]tR."))
def old_pickles(x, text):
    return x + pickle.loads(text)


test_case = case.tests()
