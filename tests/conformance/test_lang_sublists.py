"""Objects of the caller's that derive from list, as libraries use them for chains of callables."""

import collections
import itertools
import operator

import torch
from behaviour import Suite, t

case = Suite()


class Chain(list):
    """Callables, one after the other."""

    def __call__(self, x):
        for part in self:
            x = part(x)
        return x


class Long(Chain):
    def __len__(self):
        return 7


class Named(list):
    def __init__(self, *items):
        super().__init__(items)
        self.tag = 2


def numbers(*items):
    return lambda: (t(1.0, 2.0), Chain(items))


def parts(*items):
    return lambda: (t(1.0, 2.0), Chain(items))


def tensors(count):
    return lambda: (t(1.0, 2.0), Chain(t(float(i), 1.0) for i in range(count)))


NUMBERS = (numbers(2, 1), numbers(1, 2), numbers(), numbers(0))


@case(parts(torch.relu, torch.sin), parts(torch.cos), parts())
def called(x, chain):
    return chain(x), len(chain), bool(chain), 1 in chain


@case(parts(torch.relu, torch.sin), parts(torch.cos), lambda: (t(1.0, 2.0), Long([torch.cos])))
def indexed(x, chain):
    return chain[0](x), chain[-1](x), chain[:1][0](x), len(chain)


@case(lambda: (t(1.0, 2.0), Named(1, 2)), lambda: (t(1.0, 2.0), Named(2)))
def with_attributes(x, items):
    return x * items.tag + len(items), items


@case(*NUMBERS)
def collected(x, items):
    out = []
    out.extend(items)
    chained = list(itertools.chain(items, items)), list(itertools.islice(items, 1)), list(enumerate(items))
    sets = {*items}, dict.fromkeys(items), set(items), collections.deque(items), tuple(items)
    return x + len(out), out, [*items], chained, sets, list(map(abs, items)), list(filter(None, items))


@case(*NUMBERS)
def summed_up(x, items):
    joined = ",".join(map(str, items)), items * 2, 2 * items, items + [3], [3] + items
    return x + sum(items), any(items), all(items), sorted(items), list(reversed(items)), joined


@case(*NUMBERS, graphs="breaks")
def written_as_text(x, items):
    return x + len(repr(items)), str(items), f"{items}", "%s" % items, "{}".format(items)  # noqa: UP031, UP032


@case(*NUMBERS, graphs="breaks")
def compared(x, items):
    return x + 1, items == [2, 1], items != [1, 2], items <= items, items < [1, 2]


@case(*NUMBERS, graphs="breaks")
def asked(x, items):
    return x + items.count(1), items.copy(), operator.length_hint(items), operator.contains(items, 1)


@case(*NUMBERS)
def matched(x, items):
    match items:
        case [a]:
            return x + a
        case [a, b]:
            return x + a * 10 + b
        case _:
            return x - 1


@case(*NUMBERS)
def unpacked(x, items):
    first, *rest = items
    return x + first, rest


@case(*(numbers(a, b) for a, b in ((2, 1), (1, 2), (2, -1))))
def as_sizes(x, sizes):
    return x.reshape(sizes), x.view(*sizes)


@case(numbers(2, 3), numbers(3, 2), numbers(4))
def as_new_sizes(x, sizes):
    return torch.zeros(sizes), torch.ones(*sizes), x.sum().expand(sizes), torch.tensor(sizes)


@case(numbers(0, 1), numbers(1, 0), numbers(1), graphs="breaks")
def in_an_index(x, items):
    return x[[*items]], x[[items]]


@case(tensors(1), tensors(2), tensors(3))
def of_tensors(x, items):
    return torch.cat(items) + x[0], torch.stack(list(items)).sum(0) + x


@case(tensors(1), tensors(2), tensors(0), graphs="breaks")
def changed(x, items):
    items.append(x * 2)
    y = x + len(items)
    items[0] = y
    items += [x]
    items.extend([y, x])
    del items[0]
    return y, items, len(items)


@case(tensors(1), tensors(2), tensors(0), graphs="breaks")
def changed_while_iterated(x, items):
    for item in items:
        x = x + item
        if len(items) < 4:
            items.append(x)
    return x


@case(tensors(2), tensors(3), graphs="breaks")
def iterator_over_a_break(x, items):
    it = iter(items)
    first = next(it)
    print(end="")
    items.append(x)
    return first + next(it), list(it)


@case(*NUMBERS)
def kept(x, items):
    held = {"a": items}
    return x * 2, held, [items], held["a"] is items


test_case = case.tests()
