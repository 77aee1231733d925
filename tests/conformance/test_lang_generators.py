"""Generators and iterators: consumed exactly as eager does it, also when they outlive a call.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import itertools

from behaviour import LOG, Suite, t
from things import counting

case = Suite()


@case(whole=True)
def generator_summed(x):
    return x * sum(i for i in counting(3))


@case()
def generator_for_else(x):
    for i in counting(2):
        x = x + i
    else:
        x = x * 2
    return x


@case()
def generator_send_values(x):
    g = counting(4)
    a = next(g)
    b = g.send(x)
    c = g.send("text")
    return a, b, c, x + 1


@case()
def generator_return_value(x):
    g = counting(1)
    next(g)
    try:
        next(g)
    except StopIteration as stop:
        return x + stop.value, stop.args


@case()
def generator_throw_inside(x):
    def guarded():
        try:
            yield 1
        except ValueError as error:
            LOG.append(str(error))
            yield 2
        yield 3

    g = guarded()
    return x, next(g), g.throw(ValueError("in")), next(g)


@case()
def generator_throw_not_caught(x):
    g = counting(3)
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        LOG.append(error.args)
    return x, list(g)


@case()
def generator_throw_before_start(x):
    g = counting(3)
    try:
        g.throw(ValueError)
    except ValueError as error:
        LOG.append(error.args)
    return x, list(g)


@case()
def generator_throw_type_and_value(x):
    g = counting(3)
    next(g)
    try:
        g.throw(ValueError("v"))
    except ValueError as error:
        return x + len(error.args), str(error)


@case()
def generator_close(x):
    g = counting(3)
    next(g)
    g.close()
    g.close()
    LOG.append("closed")
    return x, next(g, "nothing")


@case()
def generator_close_not_started(x):
    g = counting(3)
    g.close()
    return x, list(g)


@case()
def generator_ignores_exit(x):
    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    g = stubborn()
    next(g)
    try:
        g.close()
    except RuntimeError as error:
        return x, str(error)


@case()
def generator_close_returns_from_finally(x):
    def careful():
        try:
            yield 1
        finally:
            LOG.append("cleanup")
            return 5

    g = careful()
    next(g)
    LOG.append(g.close())
    return x


@case()
def yield_from_result(x):
    def inner():
        got = yield 1
        LOG.append(got)
        got = yield 2
        LOG.append(got)
        return "done"

    def outer():
        result = yield from inner()
        LOG.append(result)
        yield 3

    g = outer()
    return x, next(g), g.send("a"), g.send("b"), list(g)


@case()
def yield_from_list(x):
    def outer(values):
        r = yield from values
        LOG.append(r)
        yield from (v + 1 for v in values)
        yield from range(2)

    return list(outer([x, x * 2]))


@case()
def yield_from_throw(x):
    def inner():
        try:
            yield 1
        except ValueError:
            LOG.append("inner caught")
            yield 2

    def outer():
        yield from inner()
        yield 3

    g = outer()
    next(g)
    return x, g.throw(ValueError()), list(g)


@case()
def yield_from_throw_through(x):
    def inner():
        try:
            yield 1
        finally:
            LOG.append("inner finally")

    def outer():
        try:
            yield from inner()
        except ValueError as error:
            LOG.append(("outer caught", str(error)))
            yield "recovered"

    g = outer()
    next(g)
    return x, g.throw(ValueError("v")), next(g, "end")


@case()
def yield_from_close(x):
    def inner():
        try:
            yield 1
        finally:
            LOG.append("inner closed")

    def outer():
        try:
            yield from inner()
        finally:
            LOG.append("outer closed")

    g = outer()
    next(g)
    g.close()
    return x


@case()
def stop_iteration_inside_generator(x):
    def broken():
        yield 1
        raise StopIteration(3)

    g = broken()
    next(g)
    try:
        next(g)
    except RuntimeError as error:
        return x, str(error), type(error.__cause__).__name__, error.__cause__.args


@case()
def next_inside_generator_runs_out(x):
    def broken(values):
        it = iter(values)
        while True:
            yield next(it) + next(it)

    try:
        return list(broken([x, x, x]))
    except RuntimeError as error:
        return x, str(error)


@case()
def generator_exception_then_finished(x):
    def fails():
        yield 1
        raise ValueError("fails")

    g = fails()
    out = [next(g)]
    try:
        next(g)
    except ValueError as error:
        out.append(str(error))
    return x, out, list(g)


@case()
def generator_already_executing(x):
    def selfish():
        yield next(me[0])

    me = []
    me.append(selfish())
    try:
        next(me[0])
    except ValueError as error:
        return x, str(error)


@case()
def generator_first_send_not_none(x):
    g = counting(2)
    try:
        g.send(1)
    except TypeError as error:
        return x, str(error), list(g)


@case()
def generator_expression_scopes(x):
    i = 100
    values = [i for i in (j * 2 for j in range(3))]
    squares = (v * v for v in values)
    values.append(5)
    return x + i, list(squares)


@case()
def generator_expression_first_iterable_is_eager(x):
    try:
        g = (v for v in None)
    except TypeError as error:
        return x, str(error)
    return g


@case()
def generator_expression_late_binding(x):
    k = 2
    g = (v * k for v in range(3))
    k = 10
    return x, list(g)


@case()
def generator_returned_not_started(x):
    return counting(2), x + 1


@case()
def generator_returned_half_consumed(x):
    g = counting(4)
    next(g)
    return g, x + 1


@case()
def generator_expression_returned(x):
    return (x * i for i in range(3))


@case()
def generator_returned_while_handling(x):
    def odd():
        try:
            raise ValueError("v")
        except ValueError as error:
            yield str(error)
            yield 2

    g = odd()
    next(g)
    return g, x + 1


def _half():
    g = counting(4)
    next(g)
    return g


@case(lambda: (t(), counting(3)), lambda: (t(), counting(2)), graphs="breaks")
def generator_argument_consumed(x, g):
    return x * sum(g)


@case(lambda: (t(), counting(3)), lambda: (t(), _half()), graphs="breaks")
def generator_argument_half(x, g):
    a = next(g)
    return x + a


@case(lambda: (t(), counting(3)), lambda: (t(), _half()), graphs="breaks")
def generator_argument_loop_with_break(x, g):
    for i in g:
        x = x + i
        if i == 1:
            break
    return x


@case(lambda: (t(), counting(3)), lambda: (t(), _half()))
def generator_argument_untouched(x, g):
    return x + 1, g


@case(lambda: (t(), iter([1, 2, 3])), lambda: (t(), iter([4, 5])), graphs="breaks")
def list_iterator_argument(x, it):
    first = next(it)
    return x + first, list(it)


@case(lambda: (t(), iter([1, 2, 3])), graphs="breaks")
def iterator_argument_zipped_with_itself(x, it):
    return [x + a * b for a, b in zip(it, it)]


@case(lambda: (t(), iter([1, 2, 3, 4])), graphs="breaks")
def iterator_argument_in_test(x, it):
    found = 2 in it
    return x, found, list(it)


@case(lambda: (t(), iter({"a": 1, "b": 2}.items())), graphs="breaks")
def dict_items_iterator_argument(x, it):
    for k, v in it:
        LOG.append(k)
        x = x + v
    return x


@case(lambda: (t(), zip([1, 2], [3, 4])), graphs="breaks")
def zip_argument(x, pairs):
    out = []
    for a, b in pairs:
        out.append(x + a * b)
    return out


@case(lambda: (t(), map(lambda v: LOG.append(v) or v, [1, 2])), graphs="breaks")
def map_argument(x, values):
    a, b = values
    return x + a + b


@case(lambda: (t(), enumerate("ab")), graphs="breaks")
def unpack_iterator_argument(x, it):
    first, *rest = it
    return x, first, rest


@case(lambda: (t(), itertools.count(3)), graphs="breaks")
def count_argument(x, counter):
    return x + next(counter) + next(counter)


@case(lambda: (t(), {"g": counting(2)}), graphs="breaks")
def generator_in_argument_container(x, box):
    return x + next(box["g"])


_GENERATOR = None


@case(graphs="breaks", watch="_GENERATOR")
def generator_alive_across_calls(x):
    global _GENERATOR
    if _GENERATOR is None:
        _GENERATOR = counting(5)
    return x + next(_GENERATOR)


@case(watch="_GENERATOR")
def generator_stored_in_global(x):
    global _GENERATOR
    _GENERATOR = (x + i for i in range(3))
    next(_GENERATOR)
    return x


test_generators = case.tests()
test_generators_whole = case.whole()
