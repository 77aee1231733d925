"""Iterators of the program, lazy builtins, generators at breaks.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import itertools

import torch
from behaviour import LOG, Suite, t
from things import counting

case = Suite()


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        LOG.append("iter")
        return self

    def __next__(self):
        LOG.append(self.n)
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Pages:
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, index):
        LOG.append(index)
        return self.items[index]

    def __len__(self):
        return len(self.items)


class Rewound:
    def __init__(self, *items):
        self.items = items

    def __iter__(self):
        LOG.append("again")
        yield from self.items


@case(whole=True)
def iterator_class(x):
    for i in Countdown(3):
        x = x + i
    return x, list(Countdown(2)), max(Countdown(3))


@case(lambda: (t(), Countdown(3)), lambda: (t(), Countdown(2)))
def iterator_class_argument(x, it):
    for i in it:
        x = x + i
        if i == 1:
            break
    return x, it.n


@case(lambda: (t(), Countdown(3)))
def iterator_class_argument_next(x, it):
    return x + next(it), next(it), next(it), next(it, "over")


@case()
def old_sequence_protocol(x):
    p = Pages(1, 2, 3)
    return x + sum(p), list(p), 2 in p, list(reversed(p)), tuple(zip(p, p))


@case(lambda: (t(), Rewound(1, 2)), lambda: (t(), Rewound(3)))
def iterable_class(x, values):
    a = [x + v for v in values]
    b = dict.fromkeys(values, 0)
    c, *d = values
    return a, b, c, d, sorted(values), set(values)


@case()
def iter_with_sentinel(x):
    values = [1, 2, 0, 3]
    return x, list(iter(lambda: values.pop(0), 0)), values


@case()
def iterator_exhausted_stays_so(x):
    it = iter([1, 2])
    a = list(it)
    return x, a, list(it), next(it, None)


@case()
def one_iterator_in_two_loops(x):
    it = iter(range(5))
    for i in it:
        x = x + i
        if i == 1:
            break
    rest = list(it)
    return x, rest


@case()
def grouped_with_the_same_iterator(x):
    it = iter([1, 2, 3, 4, 5])
    return x, list(zip(it, it)), list(it)


@case()
def list_changed_while_iterated(x):
    values = [1, 2, 3]
    for v in values:
        if v < 3:
            values.append(v + 10)
    return x, values


@case()
def dict_changed_while_iterated(x):
    d = {"a": 1}
    try:
        for k in d:
            d[k + "x"] = 1
    except RuntimeError as error:
        return x, str(error), d


@case()
def lazy_map_and_filter(x):
    m = map(lambda v: LOG.append(("map", v)) or v + 1, [1, 2, 3])
    LOG.append("made")
    a = next(m)
    f = filter(lambda v: LOG.append(("filter", v)) or v > 3, m)
    return x + a, list(f)


@case()
def any_all_stop_early(x):
    a = any(LOG.append(v) or v > 1 for v in [1, 2, 3])
    b = all(LOG.append(v) or v < 2 for v in [1, 2, 3])
    return x, a, b


@case()
def enumerate_and_zip_lazily(x):
    out = []
    for i, (a, b) in enumerate(zip(counting(5), [x, x * 2]), start=1):
        out.append(b + a * i)
    return out


@case()
def zip_strict_mismatch(x):
    try:
        list(zip([1, 2], [3], strict=True))
    except ValueError as error:
        return x, str(error)


@case()
def generator_with_try_in_loop(x):
    def risky():
        for i in range(4):
            try:
                if i % 2:
                    raise ValueError(i)
                yield i
            except ValueError as error:
                yield -error.args[0]
            finally:
                LOG.append(("done", i))

    return x, list(risky())


@case()
def generator_pipeline(x):
    def scale(values, k):
        for v in values:
            yield v * k

    def shift(values, d):
        for v in values:
            yield v + d

    return list(shift(scale((x + i for i in range(3)), 2), 1))


@case()
def recursive_generator(x):
    def walk(tree):
        if isinstance(tree, list):
            for part in tree:
                yield from walk(part)
        else:
            yield tree

    return [x + v for v in walk([1, [2, [3, 4]], 5])]


@case()
def generator_nonlocal_state(x):
    total = 0

    def adding():
        nonlocal total
        while True:
            total += yield total

    g = adding()
    next(g)
    g.send(2)
    g.send(3)
    return x + total


@case()
def generator_in_dropped_local(x):
    g = counting(3)
    next(g)
    g = None
    LOG.append("after")
    return x


@case()
def generator_dropped_by_break(x):
    for i in counting(5):
        if i == 1:
            break
    LOG.append("after loop")
    return x + i


@case()
def generator_handled_exception_is_its_own(x):
    import sys

    def inside():
        LOG.append(type(sys.exc_info()[1]).__name__)
        try:
            raise KeyError("k")
        except KeyError:
            yield 1
            LOG.append(type(sys.exc_info()[1]).__name__)
            yield 2

    g = inside()
    try:
        raise ValueError("v")
    except ValueError:
        next(g)
        LOG.append(type(sys.exc_info()[1]).__name__)
        next(g)
    LOG.append(type(sys.exc_info()[1]).__name__)
    return x


@case()
def bare_raise_in_generator_context(x):
    def inside():
        try:
            raise KeyError("k")
        except KeyError:
            yield 1
            try:
                raise
            except KeyError as error:
                yield error.args

    g = inside()
    next(g)
    try:
        raise ValueError("other")
    except ValueError:
        return x, next(g)


@case()
def generator_as_context_manager(x):
    import contextlib

    @contextlib.contextmanager
    def opened(name):
        LOG.append(("open", name))
        try:
            yield name.upper()
        except ValueError as error:
            LOG.append(("failed", str(error)))
        finally:
            LOG.append(("close", name))

    with opened("a") as a:
        x = x + len(a)
    with opened("b"):
        raise ValueError("swallowed")
    return x


@case()
def generator_attributes(x):
    g = counting(2)
    before = g.gi_running, g.gi_yieldfrom, g.__name__, g.__qualname__
    next(g)
    return x, before


@case()
def star_arguments_from_generator(x):
    def f(a, b, c=0, *rest):
        return a + b * c, rest

    return f(*(x + i for i in range(4)))


@case()
def unpack_too_many_consumes_one_more(x):
    g = counting(5)
    try:
        a, b = g
    except ValueError as error:
        return x, str(error), next(g)


@case()
def unpack_too_few(x):
    g = counting(1)
    try:
        a, b = g
    except ValueError as error:
        return x, str(error)


@case(graphs="breaks")
def data_dependent_generator(x):
    def chosen():
        for v in x:
            if v > 0:
                yield v

    return [v * 2 for v in chosen()]


@case(graphs="breaks")
def generator_prints(x):
    def talk():
        print("one")
        yield 1
        print("two")
        yield 2

    return x + sum(talk())


@case(graphs="breaks")
def generator_half_consumed_at_break(x):
    g = counting(4)
    a = next(g)
    print("middle", a)
    b = next(g)
    return x + b, list(g)


@case(graphs="breaks")
def generator_delegating_at_break(x):
    def outer():
        r = yield from counting(3)
        yield r

    g = outer()
    a = next(g)
    print("middle", a)
    return x + next(g), list(g)


@case(graphs="breaks")
def item_in_generator_expression(x):
    return [x * k for k in (v.item() for v in x) if k > 0]


@case()
def async_functions_as_values(x):
    async def later():
        return x

    async def items():
        yield 1

    return later, items, later.__name__


@case()
def itertools_over_generators(x):
    a = list(itertools.islice(counting(10), 2, 4))
    b = list(itertools.takewhile(lambda v: v < 2, counting(9)))
    c, d = itertools.tee(i for i in range(3))
    next(c)
    return x, a, b, list(c), list(d)


@case()
def tensor_iteration(x):
    rows = list(x.reshape(1, -1))
    first, *rest = x
    return rows, first, rest, [v + 1 for v in torch.stack([x, x])]


test_iterators = case.tests()
test_iterators_whole = case.whole()
