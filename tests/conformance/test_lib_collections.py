"""collections: every container, read, changed and returned; made inside and given by the caller."""

from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from typing import NamedTuple

import torch
from cases import case, t

Pair = namedtuple("Pair", ["left", "right"])
Wide = namedtuple("Wide", "a b c", defaults=[3])


class Box(NamedTuple):
    value: torch.Tensor
    scale: float = 2.0

    def scaled(self):
        return self.value * self.scale

    @property
    def doubled(self):
        return self.value * 2


@case(lambda: (Pair(t(2), 3),), lambda: (Pair(t(2), 4),))
def test_namedtuple_argument(p):
    left, right = p
    return p.left * p.right, p[0] + right, p._fields, len(p)


@case(lambda: (Pair(t(2), 3), t(2)))
def test_namedtuple_replace_asdict_make(p, x):
    q = p._replace(right=x)
    return (
        q,
        p._asdict(),
        Pair._make([x, x]),
        Pair(left=x, right=1),
        isinstance(q, Pair),
        Wide(1, 2),
        Wide._field_defaults,
    )


@case(lambda: (t(2),), lambda: (t(3),))
def test_typed_namedtuple(x):
    box = Box(x)
    return box, box.scaled(), box.doubled, Box(x, scale=3.0).scaled(), box == box, box[1:]


@case(lambda: (Box(t(2)),), lambda: (Box(t(2), 4.0),))
def test_typed_namedtuple_argument(box):
    return box.scaled() + box.doubled, box._replace(scale=1.0)


@case(lambda: (t(2),))
def test_namedtuple_wrong_arguments_raise(x):
    return Pair(x)


@case(lambda: (deque([t(2), t(2), t(2)]),))
def test_deque_argument(d):
    d.rotate(1)
    first = d.popleft()
    d.append(first * 2)
    d.appendleft(first + 1)
    return d[0] + d[-1], len(d)


@case(lambda: (t(2),))
def test_deque_made_inside(x):
    d = deque(maxlen=2)
    for i in range(4):
        d.append(x * i)
    d.extend([x])
    e = deque([1, 2, 3])
    e.rotate(-1)
    e.extendleft([9, 8])
    e.remove(9)
    e.reverse()
    return list(d), d.maxlen, e, e.count(1), d.pop() is x, e.index(3), e.copy()


@case(lambda: (deque([1, 2], maxlen=2), t(2)))
def test_deque_with_limit_changed(d, x):
    d.append(3)
    return x * d[0], d


@case(lambda: (Counter("abca"), t(2)))
def test_counter_argument(c, x):
    c["a"] += 1
    c.update("bb")
    return x * c["a"] + c["zz"], c.most_common(1), c.total(), "zz" in c


@case(lambda: (t(2),))
def test_counter_arithmetic(x):
    a, b = Counter(a=3, b=1), Counter(a=1, c=2)
    return x * (a + b)["a"], a - b, a & b, a | b, +a, sorted(a.elements()), a == Counter("aaab"), list(a.items())


@case(lambda: (t(2),))
def test_counter_subtract_and_delete(x):
    c = Counter([1, 1, 2])
    c.subtract([1])
    del c[2]
    return x * c[1], dict(c), c


@case(lambda: (defaultdict(list, {"a": [t(2)]}), t(2)))
def test_defaultdict_argument(d, x):
    d["a"].append(x)
    d["b"].append(x + 1)
    return sum(d["a"]), list(d), d["c"]


@case(lambda: (t(2),))
def test_defaultdict_made_inside(x):
    d = defaultdict(int)
    for c in "abca":
        d[c] += 1
    e = defaultdict(lambda: x + 1)
    return x * d["a"], d, e["k"], list(e), d.get("zz"), "zz" in d


@case(lambda: (OrderedDict(a=t(2), b=t(2)), t(2)))
def test_ordered_dict(d, x):
    d.move_to_end("a")
    d["c"] = x
    key, value = d.popitem(last=False)
    return value + x, key, list(d), d == OrderedDict(d), list(reversed(d))


@case(lambda: (t(2),))
def test_ordered_dict_made_inside(x):
    d = OrderedDict([("b", x), ("a", x + 1)])
    d.move_to_end("b")
    return d, d.pop("a"), d.setdefault("z", 3), [k for k in d]


@case(lambda: (ChainMap({"a": t(2)}, {"a": t(2), "b": t(2)}),))
def test_chain_map_argument(m):
    return m["a"] + m["b"], sorted(m), "zz" in m, m.get("zz", 1)


@case(lambda: ({"a": t(2)}, {"b": t(2)}))
def test_chain_map_made_inside(a, b):
    m = ChainMap(a, b)
    child = m.new_child({"a": b["b"]})
    m["new"] = 1
    return child["a"], m["a"] + m["b"], len(child), m.parents["b"], a.get("new")


class Settings(UserDict):
    def __missing__(self, key):
        return 7


@case(lambda: (Settings(a=2), t(2)), lambda: (Settings(a=3), t(2)))
def test_user_dict(s, x):
    s["b"] = s["a"] + s["zz"]
    return x * s["b"], len(s), "b" in s, s.data, sorted(s)


@case(lambda: (t(2),))
def test_user_list(x):
    xs = UserList([x])
    xs.append(x * 2)
    xs += [x]
    return sum(xs), len(xs), xs[1], list(xs[:1])


class Registry(dict):
    def __missing__(self, key):
        return len(key)

    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@case(lambda: (t(2),))
def test_dict_subclass(x):
    r = Registry()
    r["ABC"] = x
    return r["abc"] + r["four"], list(r), r.get("zz")


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    def __getitem__(self, i):
        return super().__getitem__(-1 - i)


@case(lambda: (t(2),))
def test_list_subclass(x):
    s = Stack()
    s.push(x).push(x + 1)
    return s[0], len(s), isinstance(s, list), s


@case(lambda: (Stack([t(2), t(2)]),), expect="breaks")
def test_list_subclass_argument(s):
    s.push(s[0] * 2)
    return s[0] + 1


class Bounded(tuple):
    def total(self):
        return sum(self)


@case(lambda: (Bounded([t(2), t(2)]),))
def test_tuple_subclass(b):
    return b.total(), len(b), Bounded(b[:1])


@case(lambda: ({1, 2}, frozenset([2, 3]), t(2)), lambda: ({5}, frozenset([2]), t(2)))
def test_sets(a, b, x):
    a.add(9)
    a.discard(1)
    return (
        x * len(a | b),
        sorted(a & b),
        sorted(a ^ b),
        a - b,
        a.isdisjoint(b),
        a <= {2, 9, 5},
        a.symmetric_difference([9]),
    )


@case(lambda: ({t(2), 1} and {3}, t(2)))
def test_set_changed_in_place(a, x):
    a |= {4}
    a.update([5, 6])
    a.remove(3)
    a -= {6}
    return x + sum(a)


@case(lambda: ({"a": t(2), "b": t(2)},))
def test_dict_methods(d):
    d.update(c=d["a"] + 1)
    d.setdefault("d", []).append(d["b"])
    popped = d.pop("a")
    merged = d | {"e": 1}
    d |= {"f": 2}
    return popped, merged, list(d.items())[-1], d.popitem(), dict.fromkeys("xy", 0), d.keys() & {"b", "q"}


@case(lambda: ({"a": t(2)},))
def test_dict_views(d):
    return list(d.keys()), [v + 1 for v in d.values()], dict(zip(d, d.values())), {v: k for k, v in {"a": 1}.items()}


@case(lambda: ([t(2), t(2), t(2)],))
def test_list_methods(xs):
    xs.insert(1, xs[0] * 2)
    last = xs.pop()
    xs.extend([last, 3])
    xs[1:2] = [last, last]
    del xs[0]
    xs.reverse()
    copy = xs.copy()
    xs.sort(key=lambda v: 0 if isinstance(v, int) else 1)
    copy.clear()
    return xs[0], xs[1] + 1, copy, len(xs), [1, 2] * 2, [3] + [4], [1, 2].index(2)


@case(lambda: ([1, 2, 3], t(2)))
def test_list_aliasing(xs, x):
    ys = xs
    ys += [4]
    zs = xs + [5]
    return ys is xs, zs is xs, x * sum(zs), xs[::-1], xs[-2:]


@case(lambda: ({"cfg": {"deep": [1, {"w": t(2)}]}},))
def test_nested_mutation(d):
    d["cfg"]["deep"][1]["w"] = d["cfg"]["deep"][1]["w"] * 2
    d["cfg"]["new"] = d["cfg"]["deep"][0]
    return d["cfg"]["deep"][1]["w"]
