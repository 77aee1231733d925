"""match statements, and tensors as plain values of the program."""

import collections
import dataclasses
import math
from collections import Counter, OrderedDict, deque

import torch
from behaviour import LOG, Suite, t

case = Suite()


# ---- patterns ----


@dataclasses.dataclass
class Node:
    kind: str
    children: list = dataclasses.field(default_factory=list)


class Plain:
    def __init__(self, a):
        self.a = a


class Sub(Plain):
    __match_args__ = ("a",)


def describe(v):
    match v:
        case None:
            return "none"
        case True | False:
            return "bool"
        case 0:
            return "zero"
        case int(n) if n < 0:
            return f"negative {n}"
        case int() | float() as n:
            return f"number {n}"
        case "a" | "b" as s:
            return f"letter {s}"
        case str(s):
            return f"text {s}"
        case []:
            return "empty"
        case [one]:
            return f"one {one}"
        case [1, second, *rest]:
            return f"one, {second}, {rest}"
        case (first, *_, last):
            return f"{first}..{last}"
        case {"k": k, "n": {"m": m}, **more}:
            return f"k {k} m {m} {more}"
        case {"k": k}:
            return f"only k {k}"
        case {}:
            return "mapping"
        case Node("leaf"):
            return "leaf"
        case Node(kind, [Node(inner), *_]):
            return f"{kind} with {inner}"
        case Node(kind=kind, children=c):
            return f"node {kind} {len(c)}"
        case Sub(a=[p, q]):
            return f"sub {p} {q}"
        case Sub(a):
            return f"sub {a}"
        case Plain(a=a):
            return f"plain {a}"
        case math.pi:
            return "never"
        case _:
            return "other"


@case()
def match_all_kinds(x):
    values = [
        None, True, 0, -3, 5, 2.5, "a", "zz", [], [7], [1, 2], [1, 2, 3, 4], (5, 6, 7), {}, {"k": 1}, {"k": 1, "n": {"m": 2}, "z": 3},
        {"q": 1}, Node("leaf"), Node("root", [Node("c")]), Node("n", []), Sub([1, 2]), Sub(3), Plain(4), b"ab", {1, 2}, 3j, range(3),
        deque([1]), OrderedDict(k=5), range(1), object, "", (), Counter("k"),
    ]  # fmt: skip
    return x, [describe(v) for v in values]


@case(
    lambda: (t(), [1, 2, 3]), lambda: (t(), {"k": 1}), lambda: (t(), Node("leaf")), lambda: (t(), Sub([3, 4])), lambda: (t(), (9, 8)),
    lambda: (t(), "a"), lambda: (t(), -4), lambda: (t(), {"k": 1, "n": {"m": 2}}),
)  # fmt: skip
def match_arguments(x, v):
    return x, describe(v)


@case()
def match_errors(x):
    def too_many(v):
        match v:
            case Plain(1):
                return "never"

    def duplicate(v):
        match v:
            case Sub(a, a=b):
                return "never"

    def builtin(v):
        match v:
            case int(a, b):
                return "never"

    for f, v in ((too_many, Plain(1)), (duplicate, Sub(1)), (builtin, 3)):
        try:
            LOG.append(f(v))
        except TypeError as error:
            LOG.append(str(error))
    return x


@case()
def match_no_case(x):
    match x.shape[0]:
        case 99:
            x = x * 0
    return x


@case()
def match_binds_before_guard(x):
    match [1, 2]:
        case [a, b] if a > b:
            out = "first"
        case [c, 2]:
            out = "second"
    return x, a, b, c, out


@case(whole=True)
def match_on_tensor_shape(x):
    match x.shape, x.dim():
        case (n,), 1:
            return x * n
        case _:
            return x


class Proxy:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, key):
        LOG.append(key)
        return self.items[key]

    def keys(self):
        return list(self.items)

    def __len__(self):
        return len(self.items)


@collections.abc.Mapping.register
class Mapped(Proxy):
    def get(self, key, default=None):
        LOG.append(("get", key))
        return self.items.get(key, default)


@collections.abc.Sequence.register
class Sequenced(Proxy):
    pass


@case()
def match_registered_classes(x):
    out = []
    for v in (Proxy({"a": 1}), Mapped({"a": 1}), Sequenced([1, 2])):
        match v:
            case {"a": a}:
                out.append(("mapping", a))
            case [p, q]:
                out.append(("sequence", p, q))
            case _:
                out.append("other")
    return x, out


@case()
def double_star_of_a_mapping_object(x):
    def f(**kwargs):
        return kwargs

    m = Proxy({"a": 1, "b": 2})
    return x, f(**m), {**m, "c": 3}, dict(m)


# ---- tensors as values ----


@case()
def sizes_dtypes_devices(x):
    return (
        x.shape,
        x.dtype,
        x.device,
        x.size(0),
        x.shape == (3,),
        tuple(x.shape),
        x.dtype is torch.float32,
        str(x.dtype),
        x.shape[0] * 2,
    )


@case()
def tensor_indexing(x):
    y = x.reshape(1, -1)
    return (
        y[0],
        y[:, 1:],
        y[..., 0],
        y[None],
        y[[0]],
        x[-1],
        x[torch.tensor([0, 1])],
    )


@case()
def tensor_assignment(x):
    y = torch.zeros(2, 3)
    y[0] = 1
    y[1, 1:] = torch.tensor([5.0, 6.0])
    y[y > 4] = -1
    y[:, 0] += 2
    return y, x


@case()
def tensors_compared_by_identity(x):
    y = x + 0
    return x is x, x is y, [x, y].index(x), x is not None, (x == y).all()


@case()
def tensor_attributes_of_the_users(x):
    y = x + 1
    y.note = "mine"
    y.extra = [x]
    return y, y.note, hasattr(x, "note")


@case(lambda: (t(),), lambda: (t(5.0),))
def tensor_argument_attribute(x):
    x.note = getattr(x, "note", 0) + 1
    return x * x.note


@case()
def tensor_in_conditions(x):
    return (
        x if x is not None else 0,
        (x if len(x) > 1 else -x),
        bool(x.shape),
        isinstance(x, torch.Tensor) and x.dim() == 1,
    )


test_patterns = case.tests()
test_patterns_whole = case.whole()
