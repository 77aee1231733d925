"""with statements, context managers, and exceptions on their way through them.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import contextlib
import io
import sys
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress

import pytest
import torch
from behaviour import LOG, Suite, t
from things import Failure, Quiet, fails

from intarsia.frontend.runtime.callable import compile_callable

case = Suite()


# ---- with ----


class Scope:
    def __init__(self, name, swallow=False, value=None):
        self.name, self.swallow, self.value = name, swallow, value

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self.value if self.value is not None else self

    def __exit__(self, kind, error, trace):
        LOG.append(("exit", self.name, kind and kind.__name__, str(error), trace is not None))
        return self.swallow


@case(whole=True)
def with_plain(x):
    with Scope("a") as s:
        x = x + 1
        LOG.append(s.name)
    return x


@case()
def with_swallows(x):
    with Scope("a", swallow=True):
        fails(ValueError, "gone")
    return x


@case()
def with_does_not_swallow(x):
    try:
        with Scope("a"):
            fails(ValueError, "kept")
    except ValueError as error:
        return x, str(error)


@case()
def with_several(x):
    with Scope("a") as a, Scope("b", value=3) as b:
        x = x + b
    with (
        Scope("c") as c,
        Scope("d", swallow=True) as d,
    ):
        fails(KeyError, c.name, d.name)
    return x, a.name


@case(graphs="breaks")
def with_outer_swallows_inner_error_in_exit(x):
    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *args):
            raise RuntimeError("exit failed")

    return x


class BrokenExit:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        raise RuntimeError("exit failed")


class BrokenEnter:
    def __enter__(self):
        raise RuntimeError("enter failed")

    def __exit__(self, *args):
        LOG.append("never")


@case()
def with_exit_raises(x):
    try:
        with BrokenExit():
            fails(ValueError, "body")
    except RuntimeError as error:
        return x, str(error), repr(error.__context__)


@case()
def with_enter_raises(x):
    try:
        with Scope("outer"), BrokenEnter():
            LOG.append("never")
    except RuntimeError as error:
        return x, str(error)


@case()
def with_return_break_continue(x):
    def f():
        with Scope("r"):
            return 5

    out = [f()]
    for i in range(3):
        with Scope(i):
            if i == 0:
                continue
            break
    return x, out


@case()
def with_not_a_manager(x):
    try:
        with 3:
            pass
    except TypeError as error:
        return x, str(error)


@case()
def with_target_unpacked(x):
    with Scope("a", value=(1, [2, 3])) as (a, (b, c)):
        x = x + a * b * c
    return x


@contextmanager
def managed(name, swallow=()):
    LOG.append(("enter", name))
    try:
        yield name * 2
    except swallow as error:
        LOG.append(("swallowed", repr(error)))
    finally:
        LOG.append(("leave", name))


@case()
def contextmanager_plain(x):
    with managed("a") as a:
        LOG.append(a)
        x = x + 1
    return x


@case()
def contextmanager_swallows(x):
    with managed("a", ValueError):
        fails(ValueError, "v")
    LOG.append("on")
    return x


@case()
def contextmanager_lets_through(x):
    try:
        with managed("a", KeyError), managed("b", IndexError):
            fails(ValueError, "v")
    except ValueError as error:
        return x, str(error)


@case()
def contextmanager_as_decorator(x):
    @managed("deco")
    def f(v):
        LOG.append("in f")
        return v + 1

    return f(f(x))


@case()
def contextmanager_that_does_not_yield(x):
    @contextmanager
    def empty():
        return
        yield

    try:
        with empty():
            pass
    except RuntimeError as error:
        return x, str(error)


@case()
def contextmanager_that_yields_twice(x):
    @contextmanager
    def double():
        yield 1
        yield 2

    try:
        with double():
            LOG.append("body")
    except RuntimeError as error:
        return x, str(error)


@case()
def contextmanager_stop_iteration(x):
    try:
        with managed("a"):
            raise StopIteration("mine")
    except StopIteration as error:
        return x, error.args


@case()
def exit_stack(x):
    with ExitStack() as stack:
        a = stack.enter_context(managed("a"))
        stack.callback(LOG.append, "callback")
        stack.enter_context(Scope("s"))
        stack.push(lambda *info: LOG.append(("pushed", info[0])))
        x = x + len(a)
    return x


@case()
def exit_stack_with_error(x):
    with ExitStack() as stack:
        stack.enter_context(Scope("s", swallow=True))
        stack.enter_context(managed("m"))
        fails(ValueError, "v")
    return x


@case()
def exit_stack_pop_all(x):
    with ExitStack() as stack:
        stack.callback(LOG.append, "later")
        kept = stack.pop_all()
    LOG.append("after")
    kept.close()
    return x


@case()
def suppress_and_nullcontext(x):
    with suppress(KeyError, IndexError):
        {}["k"]
        LOG.append("never")
    with nullcontext(5) as n:
        x = x + n
    with suppress(ValueError):
        x = x + 1
    return x


@case()
def suppress_another(x):
    try:
        with suppress(KeyError):
            [][0]
    except IndexError as error:
        return x, str(error)


class Closable:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1
        LOG.append("close")


@case()
def closing_context(x):
    thing = Closable()
    with closing(thing) as c:
        LOG.append(c is thing)
    return x + thing.closed


@case(graphs="breaks")
def redirect_stdout_context(x):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("inside")
    print("outside")
    return x, out.getvalue()


@case(graphs="breaks")
def print_in_with_and_try(x):
    try:
        with Scope("a"):
            print("body")
            x = x + 1
            fails(ValueError, "v")
    except ValueError as error:
        print("caught", error)
        x = x * 2
    finally:
        print("finally")
    return x


@case(graphs="breaks")
def branch_on_data_in_try(x):
    try:
        if x.sum() > 100:
            return x
        y = x * 2
        raise Quiet("q")
    except Quiet:
        if y.sum() > 3:
            y = y + 1
        return y


@case()
def grad_modes(x):
    with torch.enable_grad():
        a = torch.is_grad_enabled()
        with torch.no_grad():
            b = torch.is_grad_enabled()
            try:
                with torch.enable_grad():
                    raise ValueError
            except ValueError:
                c = torch.is_grad_enabled()
    return x, a, b, c


@case()
def no_grad_decorator(x):
    @torch.no_grad()
    def f(v):
        return v + torch.is_grad_enabled()

    with torch.enable_grad():
        return f(x.detach())


@case(graphs="breaks")
def exception_group(x):
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError("k")])
    except* ValueError as group:
        LOG.append([repr(e) for e in group.exceptions])
    except* KeyError as group:
        LOG.append([repr(e) for e in group.exceptions])
    return x + 1


@case(graphs="breaks", lines=True)
def exception_group_not_handled(x):
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError("k")])
    except* ValueError:
        LOG.append("value")
    return x + 1


@case(graphs="breaks")
def getattr_default_hides_only_attribute_error(x):
    class_with_property = type("T", (), {})
    return x, getattr(class_with_property, "nothing", "default")


class Failing:
    @property
    def missing(self):
        raise AttributeError("from property")

    @property
    def broken(self):
        raise KeyError("from property")


@case()
def errors_in_properties(x):
    f = Failing()
    out = [getattr(f, "missing", "default"), hasattr(f, "missing")]
    try:
        hasattr(f, "broken")
    except KeyError as error:
        out.append(error.args)
    return x, out


@case()
def error_in_nested_calls_unwinds_all(x):
    def a(n):
        try:
            return b(n)
        finally:
            LOG.append(("a", n))

    def b(n):
        with Scope(n):
            if n == 0:
                raise Failure("bottom")
            return a(n - 1)

    try:
        a(2)
    except Failure as error:
        return x, error.code


@case()
def while_true_try_until_it_works(x):
    tries = 0
    while True:
        try:
            tries += 1
            if tries < 3:
                raise ValueError(tries)
            break
        except ValueError as error:
            LOG.append(error.args)
            continue
        finally:
            LOG.append("f")
    return x + tries


@case(graphs="breaks")
def custom_exception_str_and_hierarchy(x):
    class Base(Failure):
        def __str__(self):
            return f"<{self.code}>"

    return x


class Coded(Failure):
    def __str__(self):
        return f"<{self.code}>"

    def __eq__(self, other):
        return type(other) is type(self) and other.code == self.code

    __hash__ = Failure.__hash__


@case()
def custom_exception_methods(x):
    try:
        raise Coded(4)
    except Failure as error:
        return x, str(error), f"{error}", error == Coded(4), error != Coded(5), repr(error)


@case()
def except_with_computed_class(x):
    kinds = {"v": ValueError, "k": KeyError}
    try:
        fails(KeyError, 1)
    except tuple(kinds.values()) as error:
        return x, type(error).__name__


@case()
def except_with_something_else(x):
    try:
        try:
            fails(ValueError)
        except 3:
            pass
    except TypeError as error:
        return x, str(error)


@case()
def exception_class_attributes(x):
    e = ValueError("a", 1)
    return x, e.args, repr(e), str(e), str(KeyError("k")), repr(OSError(2, "no")), OSError(2, "no").errno


test_contexts = case.tests()
test_contexts_whole = case.whole()


def _raises_again(x):
    x = x + 1
    raise


def _reads_what_is_handled(x):
    return x + 1, type(sys.exc_info()[1]).__name__


def _reads_context(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        return x, type(error.__context__).__name__


def _reads_context_of_c_code(x):
    try:
        {}["k"]
    except KeyError as error:
        return x, type(error.__context__).__name__


def _raises(x):
    raise ValueError("inner")


@pytest.mark.parametrize(
    "function", [_raises_again, _reads_what_is_handled, _reads_context, _reads_context_of_c_code, _raises]
)
def test_called_while_the_caller_handles_an_exception(function):
    def outcome(target):
        try:
            return target(t())[1]
        except Exception as error:
            return repr(error), repr(error.__context__)

    def handling(target):
        try:
            raise OSError("outer")
        except OSError:
            return outcome(target)

    fast = compile_callable(function, backend=lambda module, inputs: module.forward)
    for _ in range(2):
        assert handling(fast) == handling(function)
        assert outcome(fast) == outcome(function)
