"""try, raise, with: what is caught where, in which order, with which context and lines.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import sys
import traceback
import unittest

import torch
from behaviour import LOG, Suite, t
from things import Failure, fails

case = Suite()


def _raised():
    try:
        fails(KeyError, 2)
    except KeyError as error:
        return error


CHECKS = unittest.TestCase()


@case()
def frames_of_an_exception_are_cleared(x):
    try:
        fails(ValueError, 1)
    except ValueError as error:
        traceback.clear_frames(error.__traceback__)
        LOG.append(str(error))
    traceback.clear_frames(None)
    return x + 1


@case(lambda: (t(), _raised()), graphs="breaks")
def frames_of_an_exception_from_before(x, error):
    traceback.clear_frames(error.__traceback__)
    return x + len(error.args)


@case()
def raises_is_asserted(x):
    with CHECKS.assertRaises(ValueError) as caught:
        fails(ValueError, 3)
    with CHECKS.assertRaisesRegex(Failure, "failure 4"):
        raise Failure(4)
    return x * caught.exception.args[0]


@case(graphs="breaks")
def methods_refuse_arguments(x):
    items = [3, 1]
    for call in (lambda: items.sort(1, 2, 3), lambda: items.append(), lambda: {}.get()):
        try:
            call()
        except TypeError as error:
            LOG.append(str(error))
    return x * items[0]


@case()
def raises_is_asserted_in_vain(x):
    with CHECKS.assertRaises(ValueError):
        x = x + 1
    return x


@case(whole=True)
def try_without_exception(x):
    try:
        x = x + 1
    except ValueError:
        x = x * 100
    else:
        x = x * 2
    finally:
        LOG.append("finally")
    return x


@case()
def try_caught_in_callee(x):
    try:
        fails(Failure, 3)
    except Failure as error:
        LOG.append((error.code, error.detail, str(error), error.args))
        x = x + error.code
    return x


@case()
def except_name_is_deleted(x):
    error = 1
    try:
        fails(ValueError)
    except ValueError:
        pass
    try:
        return x, error
    except UnboundLocalError as missing:
        return x, str(missing)


@case()
def except_tuple_and_order(x):
    out = []
    for kind in (KeyError, IndexError, ZeroDivisionError, OSError):
        try:
            fails(kind, "a")
        except (KeyError, IndexError):
            out.append("key or index")
        except LookupError:
            out.append("lookup")
        except ArithmeticError:
            out.append("arithmetic")
        except Exception:
            out.append("other")
    return x, out


@case()
def exception_in_else(x):
    try:
        try:
            LOG.append("body")
        except ValueError:
            LOG.append("no")
        else:
            fails(ValueError, "else")
        finally:
            LOG.append("finally")
    except ValueError as error:
        return x, str(error)


@case()
def exception_in_handler(x):
    try:
        try:
            fails(ValueError, "first")
        except ValueError:
            fails(KeyError, "second")
        finally:
            LOG.append("finally")
    except KeyError as error:
        return x, error.args, type(error.__context__).__name__, error.__cause__, error.__suppress_context__


@case()
def exception_in_finally(x):
    try:
        try:
            fails(ValueError, "first")
        finally:
            fails(KeyError, "second")
    except KeyError as error:
        return x, repr(error.__context__)


@case()
def implicit_exception_in_handler(x):
    try:
        try:
            {}["k"]
        except KeyError:
            [][1]
    except IndexError as error:
        return x, repr(error.__context__), str(error)


@case()
def return_in_finally_swallows(x):
    try:
        fails(ValueError)
    finally:
        return x + 1


@case()
def return_in_finally_overrides(x):
    try:
        return x
    finally:
        return x * 2


@case()
def return_value_before_finally(x):
    def f():
        v = [1]
        try:
            return v
        finally:
            v.append(2)
            v = None

    return x, f()


@case()
def break_in_finally(x):
    for i in range(3):
        try:
            fails(ValueError)
        finally:
            break
    return x + i


@case()
def continue_in_try_finally(x):
    out = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(i)
        finally:
            out.append(-i)
    return x, out


@case()
def nested_finally_order(x):
    try:
        try:
            try:
                fails(ValueError)
            finally:
                LOG.append(1)
        finally:
            LOG.append(2)
    except ValueError:
        LOG.append(3)
    return x


@case()
def reraise_same_object(x):
    seen = []
    try:
        try:
            fails(Failure, 1)
        except Failure as error:
            seen.append(error)
            error.detail = "seen"
            raise
    except Failure as error:
        return x, error is seen[0], error.detail


@case()
def raise_from_other(x):
    try:
        try:
            fails(ValueError, "low")
        except ValueError as low:
            raise Failure(7) from low
    except Failure as error:
        return x, repr(error.__cause__), error.__suppress_context__, error.__cause__ is error.__context__


@case()
def raise_from_none(x):
    try:
        try:
            fails(ValueError, "low")
        except ValueError:
            raise Failure(7) from None
    except Failure as error:
        return x, error.__cause__, error.__suppress_context__, repr(error.__context__)


@case()
def raise_from_class(x):
    try:
        raise Failure(1) from ValueError
    except Failure as error:
        return x, repr(error.__cause__)


@case()
def raise_from_not_an_exception(x):
    try:
        raise Failure(1) from 3
    except TypeError as error:
        return x, str(error)


@case()
def raise_not_an_exception(x):
    try:
        raise 3
    except TypeError as error:
        return x, str(error)


@case()
def raise_class_with_arguments_missing(x):
    try:
        raise Failure
    except TypeError as error:
        return x, str(error)


@case()
def raise_nothing_active(x):
    try:
        raise
    except RuntimeError as error:
        return x, str(error)


@case()
def context_chain_of_three(x):
    try:
        try:
            try:
                fails(ValueError, 1)
            except ValueError:
                fails(KeyError, 2)
        except KeyError:
            fails(IndexError, 3)
    except IndexError as error:
        chain = []
        while error is not None:
            chain.append(repr(error))
            error = error.__context__
        return x, chain


@case()
def context_is_cleared_after_handler(x):
    try:
        fails(ValueError)
    except ValueError:
        pass
    try:
        fails(KeyError)
    except KeyError as error:
        return x, error.__context__


@case()
def context_in_called_function(x):
    def helper():
        raise KeyError("inner")

    try:
        fails(ValueError, "outer")
    except ValueError:
        try:
            helper()
        except KeyError as error:
            return x, repr(error.__context__)


@case()
def exc_info_in_handler(x):
    before = sys.exc_info()
    try:
        fails(Failure, 2)
    except Failure:
        kind, value, trace = sys.exc_info()
        inside = kind.__name__, value.code, trace is not None
    return x, before, inside, sys.exc_info()


@case(graphs="breaks")
def traceback_of_caught(x):
    try:
        fails(ValueError, "v")
    except ValueError as error:
        names = [f.name for f in traceback.extract_tb(error.__traceback__)]
        return x, names[-1]


@case()
def error_kept_and_raised_later(x):
    kept = None
    try:
        fails(Failure, 5)
    except Failure as error:
        kept = error
    LOG.append("between")
    try:
        raise kept
    except Failure as again:
        return x, again is kept, again.code


@case()
def error_returned(x):
    try:
        fails(Failure, 5, "d")
    except Failure as error:
        return x, error


@case()
def add_note(x):
    try:
        try:
            fails(ValueError, "v")
        except ValueError as error:
            error.add_note("a note")
            raise
    except ValueError as error:
        return x, error.__notes__


@case(lambda: (t(), ValueError("mine")), lambda: (t(), Failure(3)))
def raise_argument(x, error):
    try:
        raise error
    except Exception as caught:
        return x, caught is error, caught.args


@case()
def assert_holds_and_fails(x):
    assert x.shape[0] > 0, "never"
    try:
        assert x.shape[0] > 99, f"too short: {x.shape[0]}"
    except AssertionError as error:
        return x, str(error)


@case()
def assert_without_message(x):
    try:
        assert not x.shape
    except AssertionError as error:
        return x, error.args


# ---- what leaves the function ----


@case(lines=True)
def raises_out(x):
    LOG.append("before")
    y = x + 1
    raise Failure(y.shape[0], "detail")


@case(lines=True)
def raises_out_of_callee(x):
    x = x + 1
    fails(ValueError, "deep")
    return x


@case(lambda: (t(), [1]), lambda: (t(), []), lines=True)
def raises_index_error(x, values):
    x = x * 2
    values.append(5)
    return x + values[1] + values[7]


@case(lambda: (t(), {"a": 1}), lambda: (t(), {}), lines=True)
def raises_key_error_after_writes(x, d):
    d["b"] = 2
    LOG.append("wrote")
    return x + d["a"]


@case(lambda: (t(), 0), lambda: (t(), 2), lines=True)
def raises_zero_division(x, n):
    y = x + 1
    k = 3 // n
    return y * k


@case(lines=True)
def raises_name_error(x):
    return x + not_defined_anywhere  # noqa: F821


@case(lines=True)
def raises_unbound_local(x):
    if x.shape[0] > 100:
        later = 1
    return x + later


@case(lines=True)
def raises_attribute_error(x):
    return x.no_such_attribute


@case(lines=True)
def raises_attribute_error_on_object(x):
    return Failure(1).no_such_thing


@case(lines=True)
def raises_type_error_in_operator(x):
    return "a" + 1


@case(lines=True)
def raises_wrong_shape(x):
    y = x + 1
    return y + torch.zeros(7)


@case(lines=True)
def raises_with_cause(x):
    try:
        fails(ValueError, "low")
    except ValueError as low:
        raise Failure(1) from low


@case(lines=True)
def raises_with_context(x):
    try:
        fails(ValueError, "low")
    finally:
        raise Failure(2)


@case(lines=True)
def raises_stop_iteration(x):
    return next(iter([]))


@case(graphs="breaks", lines=True)
def raises_system_exit(x):
    sys.exit(3)


@case(lines=True)
def raises_keyboard_interrupt(x):
    raise KeyboardInterrupt


@case(lambda: (t(), True), lambda: (t(), False))
def raises_or_not(x, bad):
    LOG.append("in")
    if bad:
        raise ValueError("bad")
    return x * 2


@case(graphs="breaks", lines=True)
def raises_after_a_break(x):
    y = x + 1
    print("first")
    LOG.append("second")
    raise Failure(9)


@case(graphs="breaks", lines=True)
def raises_in_broken_callee(x):
    def inner(v):
        print("inner")
        return v + {}["missing"]

    return inner(x * 2)


@case(lines=True)
def raises_from_pending_instruction(x):
    y = x + 1
    return y + int("no number") + float(y.sum().item())


test_exceptions = case.tests()
test_exceptions_whole = case.whole()
