"""math, copy, typing, text, dates, random numbers of Python, the environment, warnings, logging, context variables."""

import cmath
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import logging
import math
import os
import os.path
import pathlib
import random
import re
import string
import sys
import textwrap
import threading
import time
import types
import typing
import warnings
import weakref
from typing import Any, Optional, Protocol, TypedDict, Union, runtime_checkable

import pytest
import torch
from cases import case, t

from intarsia.frontend.runtime.callable import compile_callable

# ---- math ----


@case(lambda: (t(2), 4), lambda: (t(2), 9))
def test_math(x, n):
    return (
        x * math.sqrt(n) + math.pi,
        math.floor(2.5),
        math.ceil(2.1),
        math.log2(8),
        math.prod([2, 3]),
        math.gcd(n, 6),
        math.isclose(0.1 + 0.2, 0.3),
        math.isinf(math.inf),
        math.comb(4, 2),
        math.hypot(3, 4),
        math.fsum([0.1] * 10),
        math.frexp(8.0),
        math.copysign(1, -0.0),
        math.trunc(-1.5),
        math.dist([0, 0], [3, 4]),
        math.exp(0),
        divmod(n, 3),
        round(2.567, 1),
        pow(2, n, 5),
    )


@case(lambda: (t(2), -1.0))
def test_math_domain_error(x, v):
    return x * math.sqrt(v)


@case(lambda: (t(2), 2), lambda: (t(2), 0))
def test_zero_division(x, n):
    try:
        return x * (1 / n)
    except ZeroDivisionError as error:
        return x, str(error)


@case(lambda: (t(2),))
def test_cmath_and_complex(x):
    z = complex(1, 2) * 1j
    return x * z.real, cmath.phase(z), abs(z), z.conjugate(), cmath.exp(0j), z.imag


@case(lambda: (t(1).squeeze(), t(1)), expect="breaks")
def test_math_of_a_tensor(x, y):
    return math.exp(x), math.floor(x * 10), y


@case(lambda: (t(2),))
def test_fractions_and_decimals(x):
    f = fractions.Fraction(1, 3) + fractions.Fraction(1, 6)
    d = decimal.Decimal("1.10") + decimal.Decimal("2.20")
    return x * float(f), f.numerator, str(d)


@case(lambda: (t(2), 10))
def test_integer_methods(x, n):
    return (
        x * n.bit_length(),
        n.bit_count(),
        (255).to_bytes(2, "big"),
        int.from_bytes(b"\x01\x00", "big"),
        (0.5).as_integer_ratio(),
        float.fromhex("0x1p-1"),
        (2.0).is_integer(),
        int("ff", 16),
        bin(n),
        hex(n),
        oct(n),
        chr(65),
        ord("a"),
    )


# ---- copy ----


@case(lambda: ([t(2), {"a": [1, t(2)]}],))
def test_deepcopy_of_containers(xs):
    made = copy.deepcopy(xs)
    made[1]["a"].append(3)
    made[0].add_(1)
    return made, xs[0] is made[0], xs[1] is made[1]


@case(lambda: ([1, [2]], {"a": [1]}, t(2)))
def test_shallow_copies(xs, d, x):
    a, b = copy.copy(xs), copy.copy(d)
    a.append(1)
    b["a"].append(2)
    return x * len(a), a[1] is xs[1], b["a"] is d["a"], copy.copy((1, 2)), copy.copy({1, 2})


class Node:
    def __init__(self, value, children=()):
        self.value, self.children = value, list(children)


@case(lambda: (Node(t(2), [Node(t(2))]),))
def test_copies_of_objects(node):
    shallow, deep = copy.copy(node), copy.deepcopy(node)
    deep.children[0].value = deep.children[0].value * 2
    shallow.value = 0
    return deep.children[0].value, shallow.children is node.children, node.value, deep


@case(lambda: (Node(t(2)),))
def test_deepcopy_keeps_sharing(node):
    pair = [node, node]
    made = copy.deepcopy(pair)
    return made[0] is made[1], made[0] is node, made[0].value


@case(lambda: (t(2),), expect="breaks")
def test_copies_of_a_tensor(x):
    deep, shallow = copy.deepcopy(x), copy.copy(x)
    deep.add_(1)
    shallow.mul_(2)
    return deep, shallow, x


class Copied:
    def __init__(self, v):
        self.v, self.copies = v, 0

    def __copy__(self):
        made = Copied(self.v)
        made.copies = self.copies + 1
        return made

    def __deepcopy__(self, memo):
        made = Copied(copy.deepcopy(self.v, memo))
        made.copies = self.copies + 10
        return made


@case(lambda: (Copied(t(2)),))
def test_copy_protocol(c):
    return copy.copy(c).copies, copy.deepcopy(c).copies, copy.deepcopy(c).v


@dataclasses.dataclass
class Config:
    width: int
    scale: float = 1.0
    names: list = dataclasses.field(default_factory=list)
    w: Any = None

    def __post_init__(self):
        self.area = self.width * 2


@case(lambda: (t(2), Config(2)), lambda: (t(2), Config(3, 2.0)))
def test_dataclasses(x, cfg):
    other = dataclasses.replace(cfg, width=5)
    cfg.names.append("seen")
    return (
        x * other.area * cfg.scale,
        [f.name for f in dataclasses.fields(cfg)],
        dataclasses.asdict(cfg),
        dataclasses.astuple(other),
        cfg == other,
        dataclasses.is_dataclass(cfg),
    )


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "b"


@case(lambda: (t(2), Key(1)), lambda: (t(2), Key(2)))
def test_frozen_dataclass(x, k):
    try:
        k.a = 5
    except dataclasses.FrozenInstanceError as error:
        message = type(error).__name__
    return x * k.a, message, k < Key(2), {Key(1): "one"}.get(k)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2

    @property
    def factor(self):
        return self.value * 10


class Bits(enum.IntFlag):
    A = 1
    B = 2


@case(lambda: (t(2), Mode.FAST, Bits.A), lambda: (t(2), Mode.SLOW, Bits.A | Bits.B))
def test_enums(x, mode, bits):
    if mode is Mode.FAST:
        x = x + 1
    return (
        x * mode.factor,
        mode.name,
        Mode(2),
        Mode["FAST"],
        [m.name for m in Mode],
        bits & Bits.B,
        Bits.A | Bits.B,
        int(bits),
    )


# ---- typing ----


class HasArea(Protocol):
    def area(self) -> int: ...


@runtime_checkable
class HasSize(Protocol):
    def size_of(self) -> int: ...


class Square:
    def size_of(self):
        return 4


class Movie(TypedDict, total=False):
    name: str
    score: float


@case(lambda: (t(2), Square()), lambda: (t(2), Node(1)))
def test_typing_helpers(x, thing):
    movie: Movie = Movie(name="a", score=2.0)
    y = typing.cast(torch.Tensor, x)
    return (
        y * movie["score"],
        isinstance(thing, HasSize),
        isinstance(3, int | str),
        isinstance(None, Optional[int]),
        isinstance("a", Union[int, str]),
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
    )


def _hinted(a: int, b: "torch.Tensor") -> Optional[str]: ...


@case(lambda: (t(2),))
def test_get_type_hints(x):
    return x * len(typing.get_type_hints(_hinted)), list(typing.get_type_hints(_hinted)), _hinted.__annotations__["a"]


T_ = typing.TypeVar("T_")


class Holder(typing.Generic[T_]):
    def __init__(self, v: T_):
        self.v = v


@case(lambda: (t(2),))
def test_generic_classes(x):
    return Holder[torch.Tensor](x).v + 1, Holder(3).v, issubclass(Holder, typing.Generic)


# ---- text ----


@case(lambda: (t(2, 3), "Layer_1"), lambda: (t(2, 4), "layer_22"))
def test_string_methods(x, name):
    stem, _, index = name.lower().rpartition("_")
    return (
        x * int(index),
        stem.title(),
        name.startswith(("L", "M")),
        "a,b,,c".split(","),
        " x ".strip(),
        "-".join(["a", "b"]),
        "abc".replace("b", "x"),
        "abc".find("z"),
        "x".center(5, "*"),
        "7".zfill(3),
        "aXb".swapcase(),
        "a\tb".expandtabs(4),
        "abc".translate(str.maketrans("ab", "xy")),
        "ab" in name,
        "abc"[::-1],
        "é".encode(),
        b"abc".decode("ascii"),
        "abcabc".count("bc"),
        "a b c".split(maxsplit=1),
        "line\nline2".splitlines(),
        "prefix_x".removeprefix("prefix_"),
        "abc".isalpha(),
        "3".isdigit(),
        "abc" < "abd",
        "ab" * 2,
    )


@case(lambda: (t(2, 3), 3.14159, {"k": [1]}), lambda: (t(5, 3), 2.5, {"k": [2]}))
def test_formatting(x, v, d):
    return (
        f"{v:.2f} {v!r:>10} {x.shape} {x.dtype} {d} {x.shape[0]:03d}",
        "%s-%d-%.1f" % ("a", 3, v),
        "{0} {name!s:>5} {d[k]}".format(1, name="n", d=d),
        format(1234567, ","),
        f"{'nested':{10}}|",
        f"{v=:.1f}",
        str(x.shape),
        repr("a'b"),
        str([1, "a", None]),
        f"{Mode.FAST} {Config(1)!r:.6}",
        x + 1,
    )


@case(lambda: (t(2),), expect="breaks")
def test_str_of_objects(x):
    class Shown:
        def __repr__(self):
            return "Shown!"

        def __format__(self, spec):
            return f"<{spec}>"

    s = Shown()
    return x, str(s), repr([s]), f"{s:abc}", f"{s}", "%r" % s


@case(lambda: (t(2),), expect="breaks")
def test_tensor_in_text(x):
    y = x * 0
    text = f"{y}"
    return y + len(text), str(y), text


@case(lambda: (t(2), "block.12.weight"), lambda: (t(2), "head.bias"))
def test_re(x, name):
    match = re.match(r"block\.(\d+)\.(?P<what>\w+)", name)
    if match:
        x = x * int(match.group(1))
    return (
        x,
        match and match["what"],
        re.sub(r"\d+", lambda m: str(int(m.group()) + 1), name),
        re.findall("[a-z]+", name),
        re.split(r"\.", name),
        bool(re.compile("^h").search(name)),
        [m.start() for m in re.finditer("t", name)],
    )


@case(lambda: (t(2), {"a": [1, 2.5, None, True]}))
def test_json(x, d):
    text = json.dumps(d, sort_keys=True)
    back = json.loads(text)
    return x * back["a"][1], text, back


@case(lambda: (t(2),))
def test_string_module(x):
    return (
        x,
        string.ascii_letters[:3],
        string.Template("$a b").substitute(a=1),
        textwrap.dedent("  a"),
        string.capwords("a b"),
    )


@case(lambda: (t(2), "path/to/file.txt"))
def test_paths(x, p):
    q = pathlib.PurePosixPath(p)
    return (
        x,
        os.path.join("a", "b"),
        os.path.splitext(p),
        os.path.basename(p),
        os.path.dirname(p),
        q.suffix,
        q.parent / "z",
        str(q.with_name("n")),
        os.path.normpath("a/../b"),
    )


# ---- the world ----


@case(lambda: (t(2),), setup=lambda: os.environ.__setitem__("INTARSIA_TEST_SCALE", "3"))
def test_environment_is_read(x):
    return x * int(os.environ.get("INTARSIA_TEST_SCALE", "1")), os.getenv("INTARSIA_TEST_ABSENT"), "PATH" in os.environ


@case(lambda: (t(2),), expect="breaks")
def test_environment_is_written(x):
    os.environ["INTARSIA_TEST_MADE"] = "5"
    y = x * int(os.environ["INTARSIA_TEST_MADE"])
    del os.environ["INTARSIA_TEST_MADE"]
    return y, "INTARSIA_TEST_MADE" in os.environ


@case(lambda: (t(2),), expect="breaks")
def test_file_system_is_asked(x):
    return x + 1, os.path.exists("/no/such/file"), os.getcwd() == os.getcwd(), pathlib.Path("/no/such").exists()


@case(lambda: (t(2),), expect="breaks")
def test_clock(x):
    start = time.perf_counter()
    y = x * 2
    return y, time.perf_counter() >= start, time.time() > 1e9, time.monotonic() >= 0


_clock_reads = []


@case(lambda: (t(2),), expect="breaks", setup=_clock_reads.clear)
def test_clock_is_read_in_every_call(x):
    _clock_reads.append(time.perf_counter_ns())
    fresh = len(set(_clock_reads)) == len(_clock_reads)
    return x * 2, fresh


@case(lambda: (t(2),))
def test_dates(x):
    day = datetime.date(2024, 2, 28) + datetime.timedelta(days=2)
    return (
        x * day.day,
        day.isoformat(),
        datetime.datetime(2020, 1, 1).year,
        (day - datetime.date(2024, 1, 1)).days,
        f"{day:%Y/%m}",
    )


@case(lambda: (t(2),), expect="breaks")
def test_now_is_read_in_every_call(x):
    return x, datetime.datetime.now().year > 2000, isinstance(datetime.datetime.now(), datetime.datetime)


@case(lambda: (t(2),), expect="breaks")
def test_python_random(x):
    a = random.random()
    b = random.randint(1, 10)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x * a + b, items, random.choice("abc"), random.uniform(0, 1), random.gauss(0, 1), random.sample(range(9), 3)


@case(lambda: (t(2),), expect="breaks")
def test_python_random_branch(x):
    out = []
    for _ in range(4):
        if random.random() < 0.5:
            x = x + 1
        out.append(x)
    return out


@case(lambda: (t(2),), expect="breaks")
def test_random_seeded_inside(x):
    random.seed(3)
    return x * random.random(), random.Random(5).random()


@case(lambda: (t(2), random.Random(7)), expect="breaks")
def test_random_object(x, rng):
    return x * rng.random() + rng.randint(0, 5)


@case(lambda: (t(2),), warns=True, expect="breaks")
def test_warnings(x):
    y = x * 2
    warnings.warn("first", UserWarning)
    warnings.warn("second", DeprecationWarning, stacklevel=1)
    return y + 1


@case(lambda: (t(2),), warns=True, expect="breaks")
def test_warnings_silenced(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("unseen")
    return x + 1


_log = logging.getLogger("intarsia.tests.conformance")


@case(lambda: (t(2),))
def test_logging(x):
    _log.debug("value %s", 3)
    if _log.isEnabledFor(logging.CRITICAL):
        x = x + 1
    return x * 2, logging.getLevelName(20)


_unset = contextvars.ContextVar("_unset")


def _with_unset(value):
    """The variable without a value where `value` is None."""
    context = contextvars.Context()
    if value is not None:
        context.run(_unset.set, value)
    return context


@pytest.mark.parametrize("order", ["none first", "value first"])
def test_context_variable_without_a_value(order):
    def function(x):
        try:
            level = _unset.get()
        except LookupError:
            level = -1
        return x + level, _unset.get(None), _unset.get("default")

    values = [None, 1, 2, None, "a"]
    fast, x = compile_callable(function, backend=lambda module, inputs: module.forward, on_error="raise"), t()
    for value in values if order == "none first" else values[::-1]:
        if value == "a":
            continue
        want, got = (_with_unset(value).run(f, x) for f in (function, fast))
        assert torch.equal(want[0], got[0]) and want[1:] == got[1:]


@case(lambda: (t(2),))
def test_what_sys_has_one_of(x):
    """Structures of which no other can be made."""
    newer = sys.version_info >= (3, 11)
    return x + newer, sys.version_info.major, sys.version_info[:1], sys.float_info.max, sys.hash_info.width


_level = contextvars.ContextVar("_level", default=2)


@case(lambda: (t(2),))
def test_context_variable_read(x):
    return x * _level.get()


@case(lambda: (t(2),), expect="breaks")
def test_context_variable_set(x):
    token = _level.set(5)
    y = x * _level.get()
    _level.reset(token)
    return y, _level.get()


_lock = threading.Lock()
_local = threading.local()


@case(lambda: (t(2),), expect="breaks")
def test_locks(x):
    with _lock:
        y = x + 1
    with threading.RLock():
        y = y * 2
    return y, _lock.locked()


@case(lambda: (t(2),), setup=lambda: _local.__dict__.clear())
def test_thread_local(x):
    _local.n = getattr(_local, "n", 0) + 1
    return x * _local.n


@case(lambda: (t(2),), expect="breaks")
def test_threads(x):
    out = []
    worker = threading.Thread(target=lambda: out.append(x + 1))
    worker.start()
    worker.join()
    return out[0] * 2


@case(lambda: (t(2), Node(3)))
def test_weak_references(x, node):
    ref = weakref.ref(node)
    return x * ref().value, ref() is node


@case(lambda: (t(2), types.SimpleNamespace(a=2, b=t(2))))
def test_simple_namespace(x, ns):
    ns.c = ns.b * ns.a
    made = types.SimpleNamespace(z=x)
    return ns.c + made.z, vars(ns).keys() >= {"a"}, made


# ---- asking about types and attributes ----


class Animal:
    legs = 4

    def __init__(self, n=1):
        self.n = n


class Bird(Animal):
    legs = 2


@case(lambda: (t(2), Bird()), lambda: (t(2), Animal(5)))
def test_type_questions(x, a):
    if isinstance(a, Bird):
        x = x * 2
    return (
        x * a.legs,
        issubclass(type(a), Animal),
        type(a) is Bird,
        type(a).__name__,
        a.__class__.__mro__[0] is type(a),
        isinstance(x, (list, torch.Tensor)),
        isinstance(True, int),
        callable(a),
        callable(len),
        type(x) is torch.Tensor,
    )


@case(lambda: (t(2), Bird()), lambda: (t(2), Bird(3)))
def test_attribute_functions(x, a):
    setattr(a, "extra", x * 2)
    had = hasattr(a, "n"), hasattr(a, "zz")
    delattr(a, "n")
    return a.extra, had, getattr(a, "zz", None), getattr(a, "legs"), hasattr(a, "n"), vars(a).keys() == {"extra"}


@case(lambda: (t(2), Bird()))
def test_missing_attribute_raises(x, a):
    return x * a.wings


@case(lambda: (t(2), 3), lambda: (t(2), 4), expect="breaks")
def test_eval_of_text(x, n):
    return x * eval("n + 1")


@case(lambda: (t(2),), expect="breaks")
def test_identity_and_hash(x):
    a = object()
    y = x
    return y is x, a is a, hash("a") == hash("a"), hash((1, 2)) == hash((1, 2)), id(x) == id(y), len({a, a})


@case(lambda: (t(2), 5), lambda: (t(2), "s"))
def test_wrong_argument_type_raises(x, n):
    return x * len(range(n))


@case(lambda: (t(2),))
def test_bytes_and_memory(x):
    b = bytearray(b"abc")
    b[0] = 122
    return x * len(b), bytes(b), memoryview(b)[1], b"a" + b"b", b.hex()


@case(lambda: (t(2),))
def test_import_inside(x):
    import math as m
    from collections import deque as d

    import torch.nn.functional as F

    return F.relu(x) * m.pi, d([1])
