"""Values: numbers, text, containers and their mutation, slices, patterns, formatting."""

import decimal
import fractions
import math
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

import torch
from behaviour import LOG, Suite, t

case = Suite()


# ---- numbers ----


@case(whole=True)
def integer_arithmetic(x):
    a, b = 17, -5
    return x * (a // b), a % b, divmod(a, b), a**3, a & 6, a | 8, a ^ 3, ~a, a << 3, b >> 1, -a // 3, int("ff", 16)


@case()
def big_integers(x):
    n = 2**200 + 1
    return x, n, n % 97, n >> 190, str(n)[:5], n.bit_length(), int(1e30), pow(3, 100, 7), math.factorial(20)


@case()
def float_arithmetic(x):
    a = 7.5
    return x * a, a // 2, a % 2, -a // 2, a**0.5, round(2.5), round(2.675, 2), int(-3.9), a.is_integer(), 0.1 + 0.2


@case()
def float_specials(x):
    inf, nan = float("inf"), float("nan")
    return x, inf - inf, nan == nan, nan != nan, max(nan, 1), inf > 10**400, math.isnan(nan), -0.0, 1 / inf


@case()
def complex_numbers(x):
    z = 3 + 4j
    return x, abs(z), z * 1j, z.imag, z**2, z == 3 + 4j, complex("1+2j")


@case()
def bools_are_integers(x):
    return (
        x + True,
        True + True,
        True * 3,
        sum([True, False]),
        isinstance(True, int),
        True is (1 == 1),
        {1: "a", True: "b"},  # noqa: F601
    )


@case()
def conversions(x):
    return (
        x,
        int("7"),
        float("1e3"),
        str(1.0),
        bool(""),
        list("ab"),
        tuple([1]),
        set("aa"),
        dict([("a", 1)]),
        bytes([1, 2]),
    )


@case()
def number_methods(x):
    return (
        x,
        (255).to_bytes(2, "big"),
        int.from_bytes(b"\x01\x00", "big"),
        (0.5).hex(),
        (0.5).as_integer_ratio(),
        hex(255),
        oct(8),
        bin(5),
    )


@case()
def math_functions(x):
    return (
        x * math.sqrt(2),
        math.floor(-1.5),
        math.ceil(1.2),
        math.log2(8),
        math.gcd(12, 18),
        math.prod([1, 2, 3]),
        math.hypot(3, 4),
    )


@case()
def decimals_and_fractions(x):
    d, f = decimal.Decimal("1.10"), fractions.Fraction(1, 3)
    return x + float(f), str(d + 1), f + 1, f * 3 == 1, str(d.quantize(decimal.Decimal("0.1")))


@case(lambda: (t(), 1), lambda: (t(), 2), lambda: (t(), 300))
def integer_identity_and_equality(x, n):
    return x, n == 1.0, n is n, n in (1, 2), n in {1.0}, {1: "one"}.get(n), [10, 20, 30][n % 3]


# ---- text ----


@case()
def string_operations(x):
    s = "Hello, World"
    return (
        x, s[::-1], s[1:-1:2], s.lower().split(", "), s.partition(","), s.find("o"), s.replace("l", "L", 2), "a" * 3,
        "-".join(["a", "b"]), "  x ".strip(), s.center(20, "*"), s.zfill(15), "abc" < "abd", "b" in "abc", len(s),
        s.startswith(("He", "x")), s.encode(), "%s" % s, s.swapcase(), "a\tb".expandtabs(4), "x".isdigit(), ord("a"), chr(98),
    )  # fmt: skip


@case()
def f_string_forms(x):
    n, f, s, d = 42, 3.14159, "text", {"k": [1]}
    width = 10
    return (
        x, f"{n}", f"{n:5}|{n:<5}|{n:^5}|{n:>5}|{n:05}", f"{n:x} {n:#o} {n:b} {n:e} {n:,} {n:+}", f"{f:.2f} {f:8.3} {f:%}",
        f"{s!r} {s!s} {s!a} {s:>{width}} {s:*^{width}.2}", f"{d['k'][0]} {n + 1} {n=} {s=!r} {f=:.1f}", f"{{}}{n}{{{n}}}",
        f"{None} {True} {[1, 'a']} {(1,)} {1j}", f"{'nested ' + f'{n}'}", "a" f"{n}" "b", f"{n!r:>5}", f"{x.shape} {x.dtype}",
    )  # fmt: skip


@case()
def percent_formatting(x):
    return (
        x,
        "%d %5.2f %s %r %x %%" % (3, 2.5, "s", "r", 255),
        "%(a)s-%(b)03d" % {"a": 1, "b": 2},
        "%-5s|%5s" % ("a", "b"),
        "%c" % 65,
    )


@case()
def format_method(x):
    return (
        x,
        f"{1} {2}",
        "{1} {0}".format("a", "b"),
        "{k!r:>5}".format(k="v"),
        f"{[1, 2][0]} {[1, 2][1]}",
        "{:>{w}}".format(3, w=4),
        f"{(3).real}",
    )


class Money:
    def __init__(self, v):
        self.v = v

    def __format__(self, spec):
        LOG.append(("format", spec))
        return f"${self.v:{spec}}"

    def __str__(self):
        LOG.append("str")
        return "money"

    def __repr__(self):
        LOG.append("repr")
        return f"Money({self.v})"


@case(graphs="breaks")
def formatting_of_objects(x):
    m = Money(5)
    return (
        x,
        f"{m} {m:.2f} {m!s} {m!r}",
        f"{m} {m!r}",
        "%s %r" % (m, m),
        str([m]),
        format(m, "03"),
        str(m),
        repr((m,)),
    )


@case(lambda: (t(), Money(2)), lambda: (t(), Money(3)), graphs="breaks")
def formatting_of_an_argument(x, m):
    return x, f"{m:.1f} {m!r}", f"{[m]}", f"{m}"


@case(graphs="breaks")
def formatting_of_tensors_in_containers(x):
    y = x + 1
    return y, str([y]), f"{(y, 1)}", repr({"y": y}), "%s" % [y], "{}".format([y])


@case(graphs="breaks")
def formatting_of_errors_that_hold_tensors(x):
    y = x + 1
    try:
        raise ValueError(y, "text")
    except ValueError as error:
        return y, str(error), repr(error), f"{[error]}", error.args[0] is y


@case(lambda: (t(), ValueError("a")), lambda: (t(), ValueError("b")), lambda: (t(), KeyError("c", 1)))
def text_of_an_error_argument(x, error):
    return x, str(error), repr(error), f"{error}", error.args


@case(lambda: (t(), [ValueError("a")]), lambda: (t(), [ValueError("b")]))
def text_of_errors_in_a_list_argument(x, errors):
    return x, str(errors), "%s" % errors, "{}".format(errors[0])


@case(lambda: (t(), "a"), lambda: (t(), "bc"))
def string_argument(x, s):
    return x + len(s), s + s, s[0], s * 2, s == "a", s in ("a", "b"), {s: 1}, f"{s:>4}"


@case()
def bytes_operations(x):
    b = b"hello"
    a = bytearray(b)
    a[0] = 72
    a.extend(b"!")
    return x, b[1], b[1:3], b.upper(), b.decode(), bytes(a), list(b"ab"), b"l" in b, a


@case()
def template_and_regular_expressions(x):
    import re
    import string

    m = re.match(r"(\w)(?P<rest>\w+)", "abc")
    return (
        x,
        m.group(1),
        m["rest"],
        re.sub("b", lambda m: m.group(0) * 2, "abab"),
        string.Template("$a!").substitute(a=1),
        re.findall(r"\d", "a1b2"),
    )


# ---- containers ----


@case(lambda: (t(), [3, 1, 2]), lambda: (t(), [5]))
def list_argument_methods(x, v):
    v.insert(0, "first")
    v.extend([7, 8])
    last = v.pop()
    v.remove(7)
    v.reverse()
    del v[0]
    where = v.index("first")
    v.append(x)
    return last, len(v), where, v.copy() is v


@case(lambda: (t(), [3, 1, 2]), lambda: (t(), [5, 4]))
def list_argument_sorted_and_sliced(x, v):
    w = v
    v.sort()
    v[1:1] = [9, 9]
    v[::2] = [0] * len(v[::2])
    del v[-1:]
    v += [x]
    v *= 2
    return w is v, sorted([3, 1]), v[:2]


@case()
def list_slice_assignment_errors(x):
    v = [1, 2, 3]
    for change in (
        lambda: v.__setitem__(slice(None, None, 2), [1]),
        lambda: v.__setitem__(7, 1),
        lambda: v.__delitem__(7),
    ):
        try:
            change()
        except (ValueError, IndexError) as error:
            LOG.append(str(error))
    return x, v


@case()
def sorting(x):
    v = [("b", 2), ("a", 2), ("c", 1)]
    v.sort(key=lambda p: p[1])
    return (
        x,
        v,
        sorted(v, reverse=True),
        sorted("banana", key=str.upper),
        min(v, key=lambda p: p[0]),
        max([], default="none"),
    )


@case()
def list_comparisons(x):
    return x, [1, 2] < [1, 3], [1] == [1.0], (1, 2) < (1, 2, 0), [[1], [2]] == [[1], [2]], [1, 2] > [1], () == []


@case()
def tuples(x):
    a = (1, 2) + (3,)
    return (
        a,
        a * 2,
        a[1:],
        a.index(2),
        a.count(1),
        (x, a)[1] is a,
        tuple(reversed(a)),
        3 in a,
        hash(a) == hash((1, 2, 3)),
    )


@case(lambda: (t(), {"a": 1, "b": 2}), lambda: (t(), {"b": 5, "c": 0}))
def dict_argument_methods(x, d):
    d["new"] = x
    d.update(b=9, z=1)
    d.setdefault("b", 0)
    d.setdefault("s", []).append(1)
    a = d.pop("z"), d.pop("none", None), d.get("q"), d.get("b", 3)
    last = d.popitem()
    keys, items = list(d), list(d.keys())
    return a, last, keys == items, "a" in d, len(d)


@case(lambda: (t(), {"a": 1, "b": 2}), lambda: (t(), {"a": 5, "c": 0}))
def dict_argument_order(x, d):
    v = d.pop("a")
    d["a"] = v + 1
    d |= {"k": 1}
    for k in list(d):
        if k == "b":
            del d[k]
    return x, list(d), d | {"m": 1}, {**d, "a": 0}


@case(lambda: (t(), {"a": 1}), lambda: (t(), {"b": 2}))
def dict_argument_views(x, d):
    keys, values, items = d.keys(), d.values(), d.items()
    d["later"] = 3
    return x, list(keys), list(values), list(items), "later" in keys, keys & {"a"}, ("later", 3) in items, len(values)


@case(lambda: (t(), {"a": 1}))
def dict_views_returned(x, d):
    return x, d.keys(), d.values(), d.items()


@case(lambda: (t(), {"a": 1, "b": 2}))
def dict_cleared(x, d):
    e = d
    d.clear()
    d["again"] = 1
    return x, e is d


@case(lambda: (t(), {i: i * i for i in range(60)}), lambda: (t(), {i: i for i in range(70)}))
def large_dict_argument_read(x, d):
    return x + d[5], d.get(1000), 3 in d, len(d), sum(d.values())


@case(lambda: (t(), {i: i * i for i in range(60)}), lambda: (t(), {i: i for i in range(70)}))
def large_dict_argument_written(x, d):
    d[5] = 0
    d["new"] = x
    del d[6]
    return x + d[5] + len(d)


@case(lambda: (t(), list(range(60))), lambda: (t(), list(range(70))))
def large_list_argument(x, v):
    v.append(1)
    v[3] = 0
    return x + v[5] + len(v)


@case()
def dict_keys_of_all_kinds(x):
    d = {
        1: "int",
        "s": "str",
        None: "none",
        (1, 2): "tuple",
        2.5: "float",
        True: "bool",  # noqa: F601
        frozenset([1]): "set",
        int: "class",
        b"b": 1,
    }
    return x, d, d[1], d[(1, 2)], d[frozenset([1])], d[int]


@case()
def dict_with_tensor_values_and_keys_as_tensors(x):
    d = {"a": x, "b": [x]}
    d["a"] = d["a"] + 1
    return d, d["b"][0] is x


@case()
def dict_errors(x):
    d = {"a": 1}
    for bad in (
        lambda: d["q"],
        lambda: d.pop("q"),
        lambda: {[]: 1},
        lambda: d.update(3),
        lambda: dict([(1, 2, 3)]),
        lambda: {}.fromkeys(3),
    ):
        try:
            bad()
        except (KeyError, TypeError, ValueError) as error:
            LOG.append((type(error).__name__, str(error)))
    return x


@case(lambda: (t(), {1, 2}), lambda: (t(), {3}))
def set_argument_methods(x, s):
    s.add(5)
    s.discard(99)
    s.update([6, 7])
    s -= {6}
    s |= {8}
    s ^= {8, 9}
    return x, sorted(s), s & {5}, s | {1}, s < {1, 2, 3, 5, 7, 9, 10}, 5 in s, s.isdisjoint({100}), frozenset(s) == s


@case()
def set_algebra(x):
    a, b = {1, 2, 3}, {3, 4}
    return x, a & b, a | b, a - b, a ^ b, a >= {1}, {*a, *b}, a.union([9], (8,)), a.intersection(b), frozenset(a) & b


@case(lambda: (t(), deque([1, 2, 3], maxlen=3)), lambda: (t(), deque([1])))
def deque_argument(x, q):
    q.append(4)
    q.appendleft(0)
    q.rotate(1)
    q.extend([7])
    return x, q.pop(), q.popleft(), list(q), len(q), q.maxlen


@case(lambda: (t(), OrderedDict(a=1, b=2, c=3)), lambda: (t(), OrderedDict(b=1, a=0)))
def ordered_dict_argument(x, d):
    d.move_to_end("a")
    d["new"] = 4
    first = d.popitem(last=False)
    d.move_to_end("new", last=False)
    return x, first, list(d), d == {"a": 1}, list(reversed(d))


@case(lambda: (t(), defaultdict(list, a=[1])), lambda: (t(), defaultdict(int)))
def defaultdict_argument(x, d):
    a = d["fresh"]
    d["more"]
    return x, a, "absent" in d, d.get("absent"), list(d), d.default_factory


@case()
def defaultdict_of_functions(x):
    d = defaultdict(lambda: LOG.append("made") or [x])
    d["a"].append(1)
    d["a"].append(2)
    e = defaultdict(lambda: defaultdict(int))
    e["p"]["q"] += 5
    return d["a"], e["p"]["q"], len(d), x + 1


@case(lambda: (t(), Counter("aab")), lambda: (t(), Counter()))
def counter_argument(x, c):
    c["a"] += 1
    c.update("bbb")
    c["gone"] = 0
    return (
        x,
        c["nothing"],
        c.most_common(1),
        sorted(c.elements()),
        +c,
        sum(c.values()),
        c - Counter("b"),
        c == Counter(c),
    )


@case(lambda: (t(), {"a": 1}, {"b": 2}))
def chain_maps(x, a, b):
    m = ChainMap(a, b)
    m["new"] = 3
    child = m.new_child({"a": 9})
    return x, m["b"], m["a"], child["a"], sorted(m), len(m), "b" in m, m.maps[0] is a, a


@case()
def nested_containers_changed(x):
    d = {"l": [1, {"k": (2, [3])}]}
    d["l"][1]["k"][1].append(x)
    alias = d["l"]
    alias[0] += 1
    d["l"] = d["l"] + [5]
    return d, alias


@case(lambda: (t(), {"l": [1, {"k": (2, [3])}]}), lambda: (t(), {"l": [4, {"k": (5, [6])}]}))
def nested_argument_changed(x, d):
    d["l"][1]["k"][1].append(x)
    alias = d["l"]
    alias[0] += 1
    d["copy"] = alias
    return x + alias[0], d["copy"] is d["l"]


@case(lambda: (lambda v: (t(), v, [v]))([1]), lambda: (lambda v: (t(), v, [v, v]))([2]))
def list_inside_a_list(x, v, w):
    w[0].append(5)
    v.append(w)
    return x + len(v), v[2] is w


@case()
def self_referring_list(x):
    v = [1]
    v.append(v)
    return x, v[1] is v, v


@case(lambda: (t(), [t(1.0), t(2.0)]), lambda: (t(), [t(3.0)]))
def list_of_tensors_changed(x, v):
    v[0] = v[0] + 1
    v.append(x)
    v[0] += 1
    v[-1] *= 2
    return v[0], sum(v[:1])


@case(lambda: (t(), [1, 2]))
def list_given_a_view_of_itself(x, v):
    v[:] = v[::-1]
    v.extend(v)
    return x, v, v == v[::-1]


@case()
def copies(x):
    import copy

    a = [1, [2, x]]
    b, c, d = a[:], copy.copy(a), copy.deepcopy([1, [2]])
    b[0] = 9
    c[1].append(3)
    return a, b[1] is a[1], c[1] is a[1], d, list(a) == a, a.copy()[1] is a[1]


@case()
def container_methods_as_values(x):
    v = []
    add = v.append
    add(1)
    add(x)
    get = {"a": 1}.get
    up = "abc".upper
    return v, get("a"), get("b", 2), up(), list(map(str.strip, [" a "])), list.__len__(v), dict.get({"k": 1}, "k")


@case()
def deletion(x):
    v, d, n = [1, 2, 3, 4], {"a": 1, "b": 2}, {"x": {"y": 1}}
    del v[0], v[-1:], d["a"], n["x"]["y"]
    return x, v, d, n


@case()
def slices_of_everything(x):
    v = list(range(10))
    s = slice(1, 7, 2)
    return (
        x[1:],
        v[s],
        "abcdefgh"[s],
        tuple(v)[::-1],
        range(10)[2:8:3],
        v[-3:],
        v[5:2],
        v[2:5:-1],
        s.step,
        v[slice(None)],
    )


@case()
def slice_with_index_objects(x):
    return x[True:], [1, 2, 3][True], [1, 2, 3][: torch.Size([2])[0]], "abc"[-True]


@case()
def ranges(x):
    r = range(10, 0, -3)
    return x, list(r), r[1], r[-1], len(r), 4 in r, r.index(4), r == range(10, 0, -3), list(reversed(r)), r.start, r


@case()
def zip_map_enumerate_values(x):
    return (
        x,
        dict(zip("ab", [1, 2])),
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(enumerate("ab", 1)),
        list(zip()),
        list(filter(None, [0, 1, ""])),
    )


@case()
def any_all_sum_min_max(x):
    return (
        x + sum([1, 2]),
        any([]),
        all([]),
        sum([[1], [2]], []),
        min(3, 1),
        max("abc"),
        min([2, 1], key=lambda v: -v),
        sum([0.1] * 3),
    )


@case()
def min_max_of_tensor_facts(x):
    return max(x.shape[0], 2), min(x.shape), sum(x.shape), max(x.shape, default=0), sorted([x.shape[0], 1])


test_data = case.tests()
test_data_whole = case.whole()
