"""itertools, builtin iteration helpers, and iterators that outlive a call."""

import itertools
import operator

import torch
from cases import case, t


@case(lambda: ([t(2), t(2)], (t(2),)))
def test_chain(a, b):
    return [v + 1 for v in itertools.chain(a, b)], sum(itertools.chain.from_iterable([a, b]))


@case(lambda: (t(2), 3), lambda: (t(2), 4))
def test_count_and_islice(x, n):
    return [x * i for i in itertools.islice(itertools.count(1, 2), n)]


@case(lambda: (t(2), 5))
def test_cycle_and_repeat(x, n):
    out = []
    for i, f in zip(range(n), itertools.cycle([torch.sin, torch.cos])):
        out.append(f(x) * i)
    return out, list(itertools.repeat(x, 2)), list(map(operator.mul, [1, 2], itertools.repeat(3)))


@case(lambda: (t(3), [1, 2, 3, 4]))
def test_accumulate(x, ns):
    return (
        list(itertools.accumulate(ns)),
        list(itertools.accumulate([x, x, x])),
        list(itertools.accumulate([x, x], torch.mul, initial=torch.ones(3))),
        list(itertools.accumulate(ns, lambda a, b: a * b)),
    )


@case(lambda: (t(2, 2),))
def test_product(x):
    out = torch.zeros(())
    for i, j in itertools.product(range(2), repeat=2):
        out = out + x[i, j] * (i + 2 * j)
    return out, list(itertools.product("ab", [1, 2]))


@case(lambda: ([t(2), t(2), t(2)],), lambda: ([t(2), t(2)],))
def test_combinations(xs):
    total = sum((a * b).sum() for a, b in itertools.combinations(xs, 2))
    return total, list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations_with_replacement("ab", 2))


@case(lambda: ([t(2), t(2), t(2)],))
def test_pairwise(xs):
    return [b - a for a, b in itertools.pairwise(xs)]


@case(lambda: ([t(1), t(1), t(1)], [t(1)]))
def test_zip_longest(a, b):
    return [x if y is None else x + y for x, y in itertools.zip_longest(a, b)], list(
        itertools.zip_longest([1, 2], "a", fillvalue=0)
    )


@case(lambda: ([3, -1, 4, -1], t(2)))
def test_takewhile_dropwhile_filterfalse(ns, x):
    return (
        x * sum(itertools.takewhile(lambda n: n > 0, ns)),
        list(itertools.dropwhile(lambda n: n > 0, ns)),
        list(itertools.filterfalse(lambda n: n > 0, ns)),
        list(itertools.compress(ns, [1, 0, 1, 0])),
    )


@case(lambda: ([("a", t(2)), ("a", t(2)), ("b", t(2))],))
def test_groupby(pairs):
    return {k: [v * 2 for _, v in group] for k, group in itertools.groupby(pairs, key=lambda p: p[0])}


@case(lambda: ([(t(2), 2.0), (t(2), 3.0)],))
def test_starmap(pairs):
    return list(itertools.starmap(torch.mul, pairs)), list(itertools.starmap(lambda a, b: a - b, pairs))


@case(lambda: ([t(2), t(2), t(2)],))
def test_tee(xs):
    a, b = itertools.tee(iter(xs))
    next(b)
    return [x - y for x, y in zip(a, b)]


@case(lambda: ([t(2), t(2), t(2), t(2)],))
def test_islice_with_step(xs):
    return list(itertools.islice(xs, 1, None, 2)), [x for x in itertools.islice(iter(xs), 2)]


@case(lambda: ([t(2), t(2), t(2)],))
def test_iterator_shared_between_loops(xs):
    it = iter(xs)
    first = next(it)
    rest = [x + first for x in it]
    return first, rest, next(it, None)


@case(lambda: (t(3),))
def test_map_and_filter(x):
    made = map(lambda v: v * 2, [x, x + 1])
    kept = filter(lambda n: n % 2, range(6))
    return list(made), list(kept), list(filter(None, [0, 1, None, 2])), list(map(torch.add, [x], [x]))


@case(lambda: ([t(2), t(2)],))
def test_enumerate_zip_reversed(xs):
    out = []
    for i, (a, b) in enumerate(zip(xs, reversed(xs)), start=1):
        out.append(a * i - b)
    return out


@case(lambda: ([t(2), t(2)], [t(2)]))
def test_strict_zip_raises(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


@case(lambda: ([t(3), t(4)],))
def test_iterators_returned(xs):
    return iter(xs), zip(xs, [1, 2]), enumerate(xs)


@case(lambda: (iter([t(2), t(2), t(2)]),), expect="breaks")
def test_iterator_argument_is_consumed(it):
    return next(it) + next(it)


@case(lambda: ((x for x in [t(2), t(2)]),), expect="breaks")
def test_generator_argument_is_consumed(gen):
    return sum(gen)


@case(lambda: (t(2),))
def test_iter_with_sentinel(x):
    values = [1, 2, 0, 5]

    def read():
        return values.pop(0)

    return [x * n for n in iter(read, 0)], values


@case(lambda: ([t(1), t(1)],))
def test_sorted_min_max_any_all(xs):
    by = sorted([("b", 2), ("a", 3)], key=lambda p: p[1], reverse=True)
    return (
        by,
        max(by, key=lambda p: p[0]),
        min([3, 1, 2]),
        any(x.dim() > 1 for x in xs),
        all(isinstance(x, torch.Tensor) for x in xs),
        min([], default=7),
    )


@case(lambda: (t(4),))
def test_batched_by_hand(x):
    def batched(items, n):
        it = iter(items)
        while chunk := tuple(itertools.islice(it, n)):
            yield chunk

    return [sum(chunk) for chunk in batched(x, 2)], list(batched(range(5), 2))
