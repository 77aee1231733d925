"""Where Python's own machinery calls the program back, and other corners of the data model.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import bisect
import functools
import heapq
import itertools

from behaviour import LOG, Suite
from things import Base, Both, Left, Right, note

case = Suite()


class Loud:
    """Notes every special method that is called."""

    def __init__(self, v):
        self.v = v

    def __lt__(self, other):
        LOG.append(("lt", self.v, other.v))
        return self.v < other.v

    def __eq__(self, other):
        return self.v == getattr(other, "v", other)

    def __hash__(self):
        return hash(self.v)

    def __bool__(self):
        LOG.append(("bool", self.v))
        return self.v != 0

    def __len__(self):
        return self.v

    def __index__(self):
        LOG.append(("index", self.v))
        return self.v

    def __repr__(self):
        LOG.append(("repr", self.v))
        return f"L{self.v}"

    def __float__(self):
        LOG.append(("float", self.v))
        return float(self.v)

    def __add__(self, other):
        LOG.append(("add", self.v))
        return self.v + getattr(other, "v", other)

    __radd__ = __add__

    def __iter__(self):
        LOG.append(("iter", self.v))
        return iter(range(self.v))

    def __contains__(self, item):
        LOG.append(("contains", item))
        return item == self.v

    def __call__(self, *args):
        LOG.append(("call", args))
        return self.v


@case()
def sorting_calls_back(x):
    v = [Loud(3), Loud(1), Loud(2)]
    v.sort()
    return x, [p.v for p in v], [p.v for p in sorted(v, reverse=True)], min(v).v, max(v).v


@case(graphs="breaks")
def searching_calls_back(x):
    v = [Loud(3), Loud(1)]
    out = [Loud(1) in v, v.index(Loud(1)), v.count(Loud(3)), 3 in v, v == [3, 1], (Loud(1),) == (1,)]
    v.remove(Loud(3))
    return x, out, len(v)


@case(graphs="breaks")
def hashing_calls_back(x):
    d = {Loud(1): "one", Loud(2): "two"}
    s = {Loud(1), Loud(1)}
    return x, d[Loud(1)], d.get(Loud(5)), Loud(2) in d, len(s), d.pop(Loud(1)), {**d}[Loud(2)], 1 in s


@case()
def truth_calls_back(x):
    a, b = Loud(0), Loud(2)
    return (
        x,
        bool(a),
        not b,
        a or 5,
        b and 6,
        any([a, b]),
        all([b, a]),
        [v.v for v in (a, b) if v],
        list(filter(None, [a, b]))[0].v,
    )


@case(graphs="breaks")
def numbers_call_back(x):
    a = Loud(2)
    return (
        x,
        [10, 20, 30][a],
        "abcdef"[a],
        (1, 2, 3)[:a],
        list(range(a)),
        "ab" * a,
        [0] * a,
        float(a),
        a + 1,
        1 + a,
        sum([a, a]),
        len(a),
        bytes([a]),
        round(float(a)),
    )


@case(graphs="breaks")
def text_calls_back(x):
    a = Loud(2)
    return (
        x,
        str(a),
        f"{a}",
        f"{a!r:>5}",
        "%s" % a,
        "%r" % (a,),
        "{}".format(a),
        repr([a]),
        str({"k": a}),
        f"{[a]}",
        ", ".join(map(str, [a])),
    )


@case(graphs="breaks")
def iteration_calls_back(x):
    a = Loud(3)
    first, *rest = a
    return (
        x,
        list(a),
        tuple(a),
        [i for i in a],
        sum(a),
        max(a),
        dict.fromkeys(a),
        first,
        rest,
        2 in a,
        list(zip(a, a)),
        [*a, *a],
        set(a),
        sorted(a),
        list(enumerate(a)),
    )


@case()
def map_filter_reduce_call_back(x):
    a = list(map(note, [1, 2]))
    b = list(filter(lambda v: note(v) > 1, [1, 2, 3]))
    c = functools.reduce(lambda p, q: note(p) + note(q), [1, 2, 3], 10)
    d = sorted([3, 1, 2], key=note)
    e = max([1, 3, 2], key=lambda v: -note(v))
    return x, a, b, c, d, e


@case()
def callbacks_that_raise(x):
    def bad(v):
        LOG.append(v)
        if v == 2:
            raise ValueError(f"bad {v}")
        return v

    out = []
    for run in (
        lambda: list(map(bad, [1, 2, 3])),
        lambda: sorted([3, 2, 1], key=bad),
        lambda: max([1, 2], key=bad),
        lambda: functools.reduce(lambda a, b: bad(b), [1, 2, 3]),
        lambda: [bad(v) for v in (1, 2)],
        lambda: {bad(v): 1 for v in (1, 2)},
        lambda: sum(bad(v) for v in (1, 2, 3)),
        lambda: any(bad(v) > 5 for v in (1, 2, 3)),
        lambda: dict((bad(v), v) for v in (1, 2)),
        lambda: "".join(str(bad(v)) for v in (1, 2)),
        lambda: next(filter(bad, [2])),
        lambda: list(itertools.takewhile(bad, [1, 2, 3])),
        lambda: list(zip([1, 2], (bad(v) for v in (1, 2)))),
    ):
        try:
            out.append(run())
        except ValueError as error:
            out.append((str(error), type(error.__context__), error.__cause__, error.__suppress_context__))
    return x, out


@case()
def callback_raises_stop_iteration(x):
    def stop(v):
        if v == 2:
            raise StopIteration("early")
        return v

    a = list(map(stop, [1, 2, 3]))
    try:
        b = [stop(v) for v in (1, 2)]
    except StopIteration as error:
        b = error.value
    return x, a, b


@case()
def partially_consumed_by_an_error(x):
    it = iter([1, 2, 3, 4])
    try:
        for v in it:
            if v == 2:
                raise KeyError(v)
    except KeyError as error:
        LOG.append(error.args)
    return x, list(it)


@case()
def zip_consumption_order(x):
    def source(name, n):
        for i in range(n):
            LOG.append((name, i))
            yield i

    a, b = source("a", 3), source("b", 2)
    return x, list(zip(a, b)), list(a), list(b)


@case()
def chain_and_tee(x):
    a = itertools.chain([1], (note(v) for v in (2, 3)))
    b, c = itertools.tee(a)
    next(b)
    return x, list(b), list(c), list(itertools.accumulate([1, 2, 3], lambda p, q: note(p * q)))


@case()
def group_by_and_starmap(x):
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], key=note)]
    return (
        x,
        groups,
        list(itertools.starmap(lambda a, b: a + b, [(1, 2)])),
        list(itertools.product("ab", [1, 2])),
        list(itertools.combinations([1, 2, 3], 2)),
    )


@case()
def heaps_and_bisection(x):
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    v = [1, 3, 5]
    bisect.insort(v, 4)
    return x, heapq.heappop(h), h, heapq.nsmallest(2, h), v, bisect.bisect_left(v, 3)


@case()
def cooperative_inheritance(x):
    b = Both.make(1)
    return (
        x,
        b.hello(),
        b.value,
        b.helper(1),
        Both.helper(2),
        isinstance(b, Right),
        [c.__name__ for c in type(b).__mro__],
    )


@case()
def super_with_missing_attributes(x):
    b = Both(1, k=2)
    try:
        super(Base, b).hello()
    except AttributeError as error:
        LOG.append(str(error))
    s = super(Left, b)
    return x, s.hello(), s.__thisclass__.__name__, s.__self__ is b, hasattr(s, "value"), s.value


test_protocols = case.tests()
