"""Random programs: modules of the `prim` level with valid inputs, and torch functions as source text.

A module is grown one operation at a time from values that are there already. What is known of each value (a bound on its
size, whether it is the same to the last bit at every level) decides which operations may follow, so that two correct
compilations never differ by more than rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from intarsia.ir.symbols import Dim, FloorDiv, contiguous_strides, dim, known_equal, product, substitute, symbol
from intarsia.ir.syntax import Op
from intarsia.ir.types import TensorType, tensor_type

LARGEST = 3000  # elements of a tensor
SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17]
FLOATS = (F32, F64)
HALVES = (F16, BF16)
INTEGERS = (I64, I32, I16, I8, U8)


@dataclass(frozen=True)
class Fact:
    """What is known of a value.

    |x| <= size (save for inf and nan, when `special`), and `exact` when it is the same to the last bit however it is computed.
    `rounded` are the types of floats that inexact steps before it were computed in: a wider type does not bring their bits back.
    """

    size: float
    exact: bool
    special: bool = False
    rounded: frozenset[DType] = frozenset()


@dataclass
class Argument:
    """How to make one input: integers come from low <= x < high (a dimension), floats from a normal distribution."""

    kind: TensorType
    strides: tuple[Dim, ...] | None
    low: int = -6
    high: Dim = 7
    special: bool = False  # a few elements are nan, inf, -inf or -0.0


@dataclass
class Program:
    """A module, the arguments it takes, and the symbol values to try."""

    module: ModuleOp
    arguments: list[Argument]
    bindings: list[dict[sympy.Symbol, int]]
    scales: list[float] = field(
        default_factory=list
    )  # a bound on |x| for each returned value, then for each that is written
    rounded: list[frozenset[DType]] = field(default_factory=list)  # the types that each of these was rounded to
    written: Sequence[int] = ()  # numbers of arguments that are written to

    def inputs(self, binding: dict[sympy.Symbol, int], seed: int) -> list[Tensor]:
        """Fresh inputs for these sizes."""
        generator = torch.Generator().manual_seed(seed)
        return [_input(a, binding, generator) for a in self.arguments]


def _input(argument: Argument, binding: dict[sympy.Symbol, int], generator: torch.Generator) -> Tensor:
    number: Callable[[Dim], int] = lambda d: int(substitute(d, binding))  # noqa: E731
    shape = [number(d) for d in argument.kind.shape]
    dtype = argument.kind.dtype
    if dtype.kind == "bool":
        value = torch.rand(shape, generator=generator) < 0.5
    elif dtype.is_float:
        value = torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3).to(dtype.torch)
        if argument.special:
            drawn = torch.rand(shape, generator=generator)
            for k, number_ in enumerate((math.nan, math.inf, -math.inf, -0.0)):
                value[(drawn > 0.05 * k) & (drawn < 0.05 * k + 0.05)] = number_
    else:
        low, high = (max(0, argument.low) if dtype.kind == "uint" else argument.low), number(argument.high)
        value = torch.randint(low, max(high, low + 1), shape, generator=generator).to(dtype.torch)
    if argument.strides is None:
        return value
    strides = [number(s) for s in argument.strides]
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    base = torch.zeros(reach, dtype=dtype.torch)
    result = base.as_strided(shape, strides)
    result[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)].copy_(
        value[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    )
    return result


class Grower:
    """Grows one random module; `large`: some of its tensors are larger than a block of a GPU's kernel; `gpu`: with what GPUs alone have."""

    def __init__(self, seed: int, operations: int = 12, large: bool = False, gpu: bool = False) -> None:
        self.rng, self.gpu = random.Random(seed), gpu
        self.sizes = [*SIZES, 33, 130, 700, 2100, 40000] if large else SIZES
        self.largest = LARGEST * 100 if large else LARGEST
        self.block = Block()
        self.arguments: list[Argument] = []
        self.facts: dict[SSAValue, Fact] = {}
        self.rows: list[tuple[Any, ...]] = []  # of the function's `symbols`
        self.least: dict[sympy.Symbol, int] = {}
        self.bindings = self._bindings()
        self.operations = operations

    # ---- symbols and sizes ----

    def _bindings(self) -> list[dict[sympy.Symbol, int]]:
        names = [symbol(f"s{i}") for i in range(self.rng.choice([0, 0, 1, 2]))]
        self.least = {s: self.rng.choice([0, 1, 1, 2, 2]) for s in names}
        return [
            {s: low + self.rng.choice([0, 1, 3, 6]) for s, low in self.least.items()} for _ in range(2 if names else 1)
        ]

    def low(self, size: Dim) -> int:
        """The least value of a size (sizes grow with their symbols)."""
        return int(substitute(size, self.least))

    def fits(self, shape: tuple[Dim, ...]) -> bool:
        return all(int(substitute(product(shape), b)) <= self.largest for b in self.bindings)

    def size(self) -> Dim:
        names = list(self.least)
        if names and self.rng.random() < 0.5:
            s: Any = self.rng.choice(names)
            return self.rng.choice([s, s, s, 2 * s, s + 1])
        return self.rng.choice(self.sizes)

    def shape(self, rank: int | None = None) -> tuple[Dim, ...]:
        rank = self.rng.choice([0, 1, 2, 2, 3, 3, 4]) if rank is None else rank
        while True:
            found = tuple(self.size() for _ in range(rank))
            if self.fits(found) and (0 not in found or self.rng.random() < 0.3):
                return found

    # ---- values ----

    def new_input(self, kind: TensorType, low: int = -6, high: Dim = 7) -> SSAValue:
        """A new argument of the function."""
        value = self.block.insert_arg(kind, len(self.block.args))
        special = kind.dtype.is_float and self.rng.random() < 0.1
        self.arguments.append(Argument(kind, self._input_strides(kind), low, high, special))
        for d, size in enumerate(kind.shape):
            if isinstance(size, sympy.Symbol) and all(str(size) != row[0] for row in self.rows):
                self.rows.append((str(size), len(self.arguments) - 1, d, self.least[size], None))
        bound = 3.0 if kind.dtype.is_float else max(abs(low), *(int(substitute(high, b)) for b in self.bindings), 1)
        self.facts[value] = Fact(float(bound), True, special)
        return value

    def _input_strides(self, kind: TensorType) -> tuple[Dim, ...] | None:
        draw = self.rng.random()
        if kind.rank == 0 or draw < 0.7:
            return None
        strides = self.permuted_strides(kind)
        if draw < 0.8:
            return strides
        if draw < 0.9:
            return tuple(dim(2 * s) for s in strides)
        lost = self.rng.randrange(kind.rank)
        return tuple(0 if d == lost else s for d, s in enumerate(strides))

    def permuted_strides(self, kind: TensorType) -> tuple[Dim, ...]:
        """Dense strides in a random order of the dimensions."""
        order = self.rng.sample(range(kind.rank), kind.rank)
        dense = contiguous_strides([kind.shape[d] for d in order])
        return tuple(dense[order.index(d)] for d in range(kind.rank))

    def add(self, op: Op, size: float, exact: bool) -> SSAValue:
        """Append an operation; sometimes it is to be stored in another layout."""
        result = op.results[0]
        kind = result.type
        assert isinstance(kind, TensorType)
        if self.rng.random() < 0.05 and kind.rank > 1:
            op["strides"] = (self.permuted_strides(kind),)
        self.block.add_op(op)
        special = any(self.facts[v].special for v in op.operands)
        before = frozenset().union(*(self.facts[v].rounded for v in op.operands)) | {kind.dtype}
        self.facts[result] = Fact(_wrapped(size, kind.dtype), exact, special, frozenset() if exact else before)
        return result

    def pick(self, want: Callable[[SSAValue], bool] = lambda v: True) -> SSAValue | None:
        """A value that fits, the newer ones more often."""
        found = [v for v in self.facts if want(v)]
        if not found:
            return None
        return found[-1 - min(int(self.rng.expovariate(0.35)), len(found) - 1)]

    def like(self, x: SSAValue, dtype: DType | None = None) -> SSAValue:
        """A value of x's shape (and of this dtype), to stand beside x in an elementwise operation."""
        kind = _type(x).with_(dtype=dtype)
        same = [v for v in self.facts if v.type == kind]
        draw = self.rng.random()
        if same and draw < 0.6:
            return self.rng.choice(same)
        if draw < 0.75:
            return self.constant(kind)
        kept = sorted(self.rng.sample(range(kind.rank), self.rng.randint(0, kind.rank)))
        shape = [1 if self.rng.random() < 0.2 else kind.shape[d] for d in kept]
        narrow = self.pick(lambda v: _type(v).dtype == kind.dtype and _type(v).shape == tuple(shape))
        narrow = narrow if narrow is not None and draw < 0.95 else self.new_input(kind.with_(shape=shape))
        if tuple(shape) == kind.shape:
            return narrow
        fact = self.facts[narrow]
        return self.add(prim.broadcast(narrow, kind.shape, tuple(kept)), fact.size, fact.exact)

    def constant(self, kind: TensorType, value: Any = None) -> SSAValue:
        if value is None and kind.dtype.is_float:
            value = self.rng.choice([0.0, 1.0, -1.0, 0.5, 2.0, 3.0, self.rng.uniform(-2, 2)])
        elif value is None:
            value = self.rng.random() < 0.5 if kind.dtype == BOOL else self.rng.choice([0, 1, 2, 3, 5])
        bound = 100.0 if isinstance(value, sympy.Expr) else float(abs(value))
        return self.add(prim.full(value, kind), bound, True)

    # ---- growing ----

    def grow(self) -> Program:
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            self.new_input(
                tensor_type(self.shape(), self.rng.choice([F32, F32, F32, F32, F64, I64, I32, BOOL, *HALVES]))
            )
        steps = [s for s in _STEPS if self.gpu or s is not scatter]
        often = (reduce, broadcast, scan) if self.largest > LARGEST else ()
        weights = [_STEPS[s] * (4 if s in often else 1) for s in steps]
        done = tries = 0
        while done < self.operations and tries < 40 * self.operations:
            tries += 1
            x = self.pick()
            assert x is not None
            if self.rng.choices(steps, weights)[0](self, x):
                done += 1
        return self.finish()

    def finish(self) -> Program:
        results = [v for v in self.facts if v not in self.block.args and not v.uses]
        if len(results) > 4:
            results = self.rng.sample(results, 4)
        others = [v for v in self.facts if v not in results]
        if not results or self.rng.random() < 0.3:
            results.append(self.rng.choice(others) if others else results[0])
        self.rng.shuffle(results)
        for s in self.least:  # every symbol is bound
            if all(str(s) != row[0] for row in self.rows):
                self.new_input(tensor_type([s], F32))
        strides = [self.permuted_strides(_type(v)) if self.rng.random() < 0.15 else None for v in results]
        written = self._written() if self.gpu else {}
        scales = [self.facts[v].size for v in (*results, *written.values())]
        rounded = [self.facts[v].rounded for v in (*results, *written.values())]
        mutations = [(argument, len(results) + k) for k, argument in enumerate(written)]
        received = len(results)
        results += written.values()
        strides += [None] * len(written)
        self.block.add_op(prim.Return.make(results))
        attrs = {
            "sym_name": "main",
            "arg_names": [f"x{i}" for i in range(len(self.arguments))],
            "arg_strides": [a.strides for a in self.arguments],
            "arg_static": [False] * len(self.arguments),
            "result_strides": strides,
            "symbols": self.rows,
            "results": [("value", k) for k in range(received)],
            "mutations": mutations,
        }
        module = ModuleOp([prim.Func.make([], [], attrs, [Region(self.block)])])
        return Program(module, self.arguments, self.bindings, scales, rounded, tuple(written))

    def _written(self) -> dict[int, SSAValue]:
        """Arguments that the program writes to, and what."""
        found = {}
        for i, argument in enumerate(self.arguments):
            alike = [v for v in self.facts if v.type == argument.kind and v not in self.block.args]
            whole = argument.strides is None or 0 not in argument.strides
            if alike and whole and self.rng.random() < 0.6:
                found[i] = self.rng.choice(alike)
        return found


def _type(value: SSAValue) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _power(size: float, count: int) -> float:
    """A bound on a product of `count` factors."""
    exponent = math.log(max(1.0, size)) * count
    return math.exp(exponent) if exponent < 700 else math.inf


def _wrapped(size: float, dtype: DType) -> float:
    if dtype.kind == "bool":
        return 1.0
    if dtype.kind in ("int", "uint") and not size <= torch.iinfo(dtype.torch).max:
        return float(2**63) if dtype.bytes == 8 else float(-torch.iinfo(dtype.torch).min or 255)
    return size


# ---- steps: each appends an operation on x and says whether it could -------------------------------------------------

_BOUNDED = {"sin": 1.0, "cos": 1.0, "tanh": 1.0, "sigmoid": 1.0, "erf": 1.0, "atan": 1.6}
_EXACT_UNARY = ("neg", "abs")
_JUMPS = ("sign", "floor", "ceil", "trunc", "round")  # only on exact values: rounding moves them by a whole step
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def unary(g: Grower, x: SSAValue) -> bool:
    dtype, fact = _type(x).dtype, g.facts[x]
    if dtype == BOOL:
        g.add(prim.elementwise("not", x), 1, True)
        return True
    if dtype.kind in ("int", "uint"):
        name = g.rng.choice(["neg", "abs", "not", "sign"] if dtype.kind == "int" else ["not"])
        g.add(prim.elementwise(name, x), fact.size + 1, True)
        return True
    if dtype not in FLOATS:
        return False
    draw = g.rng.random()
    if draw < 0.25:
        g.add(prim.elementwise(g.rng.choice(_EXACT_UNARY), x), fact.size, fact.exact)
    elif draw < 0.35 and fact.exact:
        g.add(prim.elementwise(g.rng.choice(_JUMPS), x), fact.size + 1, True)
    elif draw < 0.6 and fact.size < 50:
        name = g.rng.choice(list(_BOUNDED))
        g.add(prim.elementwise(name, x), _BOUNDED[name], False)
    elif draw < 0.75 and fact.size < 5:
        name = g.rng.choice(["exp", "expm1", "exp2"])
        g.add(prim.elementwise(name, x), math.exp(fact.size), False)
    else:
        magnitude = g.add(prim.elementwise("abs", x), fact.size, fact.exact)
        shifted = g.add(prim.elementwise("add", magnitude, g.constant(_type(x), 0.5)), fact.size + 0.5, fact.exact)
        name = g.rng.choice(["sqrt", "rsqrt", "log", "log1p", "log2"])
        g.add(prim.elementwise(name, shifted), max(1.5, math.log2(fact.size + 2)) + math.sqrt(fact.size), False)
    return True


def binary(g: Grower, x: SSAValue) -> bool:
    dtype = _type(x).dtype
    if dtype in HALVES:
        return False
    y = g.like(x)
    a, b = g.facts[x], g.facts[y]
    exact = a.exact and b.exact
    if dtype == BOOL:
        g.add(prim.elementwise(g.rng.choice(["and", "or", "xor", "eq", "ne", "max", "min"]), x, y), 1, True)
        return True
    if g.rng.random() < 0.3:
        x, y, a, b = y, x, b, a
    if dtype.kind in ("int", "uint"):
        return _integer_binary(g, x, y)
    sizes = {"add": a.size + b.size, "sub": a.size + b.size, "mul": a.size * b.size, "max": max(a.size, b.size)}
    name = g.rng.choice([*sizes, "add", "mul", "min", "div", "hypot", "fmod", "floordiv", "mod", "copysign", "atan2"])
    if name in ("div", "fmod", "floordiv", "mod"):
        if name != "div" and not exact:
            return False
        divisor = g.add(prim.elementwise("abs", y), b.size, b.exact)
        y = g.add(prim.elementwise("add", divisor, g.constant(_type(y), 0.75)), b.size + 1, b.exact)
        g.add(prim.elementwise(name, x, y), 2 * a.size + b.size + 2, exact and name != "div")
        return True
    if name in ("copysign", "atan2") and not exact:
        return False
    size = sizes.get(name, 4.0 + a.size + b.size)
    if size > 1e4:
        return False
    g.add(prim.elementwise(name, x, y), size, exact and name not in ("hypot", "atan2"))
    return True


def _integer_binary(g: Grower, x: SSAValue, y: SSAValue) -> bool:
    a, b = g.facts[x].size, g.facts[y].size
    name = g.rng.choice(
        ["add", "sub", "mul", "and", "or", "xor", "max", "min", "floordiv", "mod", "fmod", "shl", "shr"]
    )
    if name in ("floordiv", "mod", "fmod"):
        y = g.constant(_type(x), g.rng.choice([1, 2, 3, 7]))
    elif name in ("shl", "shr"):
        y = g.constant(_type(x), g.rng.choice([0, 1, 3]))
    size = {"mul": a * b, "shl": a * 8, "max": max(a, b), "min": max(a, b)}.get(name, 2 * (a + b) + 1)
    if _type(x).dtype == U8 and name == "sub":
        size = 255
    g.add(prim.elementwise(name, x, y), size, True)
    return True


def compare(g: Grower, x: SSAValue) -> bool:
    y = g.like(x)
    if not (g.facts[x].exact and g.facts[y].exact) or _type(x).dtype in HALVES:
        return False
    g.add(prim.elementwise(g.rng.choice(_COMPARISONS), x, y), 1, True)
    return True


def where(g: Grower, x: SSAValue) -> bool:
    if _type(x).dtype in HALVES:
        return False
    condition, y = g.like(x, BOOL), g.like(x)
    a, b = g.facts[x], g.facts[y]
    g.add(prim.elementwise("where", condition, x, y), max(a.size, b.size), a.exact and b.exact)
    return True


def cast(g: Grower, x: SSAValue) -> bool:
    fact, source = g.facts[x], _type(x).dtype
    target = g.rng.choice([F32, F32, F32, F64, BOOL, *INTEGERS, *HALVES])
    if target == source or (
        target.is_integer and source.is_float and (fact.special or not (fact.exact and fact.size < 100))
    ):
        return False
    if (target.is_float and source.is_integer and fact.size > 1e4) or (target in HALVES and not fact.exact):
        return False
    if target.kind == "uint" and source.is_float:  # a negative float has no meaning there
        return False
    op = prim.cast(x, target)
    if target in HALVES and source in FLOATS:
        op["rounds"] = True  # without it, a kernel that casts back may leave the rounding out
    g.add(op, fact.size, fact.exact)
    return True


def reshape(g: Grower, x: SSAValue) -> bool:
    shape = list(_type(x).shape)
    draw = g.rng.random()
    if draw < 0.35 and len(shape) > 1:  # merge two dimensions
        d = g.rng.randrange(len(shape) - 1)
        shape[d : d + 2] = [dim(shape[d] * shape[d + 1])]
    elif draw < 0.6 and any(isinstance(s, int) and s > 3 and s % 2 == 0 for s in shape):
        d = next(i for i, s in enumerate(shape) if isinstance(s, int) and s > 3 and s % 2 == 0)
        shape[d : d + 1] = [2, shape[d] // 2]  # type: ignore[operator]
    elif draw < 0.8:
        shape.insert(g.rng.randint(0, len(shape)), 1)
    elif all(isinstance(s, int) for s in shape):
        shape = [product(shape)]
    else:
        return False
    g.add(prim.reshape(x, tuple(shape)), g.facts[x].size, g.facts[x].exact)
    return True


def permute(g: Grower, x: SSAValue) -> bool:
    rank = _type(x).rank
    g.add(prim.permute(x, tuple(g.rng.sample(range(rank), rank))), g.facts[x].size, g.facts[x].exact)
    return rank > 1


def slice_(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    starts, steps, shape = [0] * kind.rank, [1] * kind.rank, list(kind.shape)
    d = g.rng.randrange(kind.rank)
    low = g.low(shape[d])
    if low == 0:
        return False
    starts[d], steps[d] = g.rng.randrange(min(low, 4)), g.rng.choice([1, 1, 2, 3])
    if g.rng.random() < 0.4:
        shape[d] = g.rng.randint(1, (low - starts[d] - 1) // steps[d] + 1)
    else:
        shape[d] = dim(FloorDiv(sympy.sympify(shape[d] - starts[d] + steps[d] - 1), sympy.Integer(steps[d])))
    op = prim.Slice.make([x], [kind.with_(shape=shape)], {"starts": starts, "steps": steps})
    g.add(op, g.facts[x].size, g.facts[x].exact)
    return True


def flip(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    dims = sorted(g.rng.sample(range(kind.rank), g.rng.randint(1, kind.rank)))
    g.add(prim.Flip.make([x], [kind], {"dims": dims}), g.facts[x].size, g.facts[x].exact)
    return True


def pad(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    low, high = [0] * kind.rank, [0] * kind.rank
    d = g.rng.randrange(kind.rank)
    room = g.low(kind.shape[d])
    low[d], high[d] = g.rng.choice([0, 1, 2]), g.rng.choice([0, 1, 3])
    if room > 1 and g.rng.random() < 0.3:
        low[d] = -1
    shape = [dim(s + a + b) for s, a, b in zip(kind.shape, low, high, strict=True)]
    if not g.fits(tuple(shape)):
        return False
    value: Any = g.rng.random() < 0.5 if kind.dtype == BOOL else g.rng.choice([0, 0, 1])
    value = float(value) if kind.dtype.is_float else value
    op = prim.Pad.make([x], [kind.with_(shape=shape)], {"low": low, "high": high, "value": value})
    g.add(op, max(1, g.facts[x].size), g.facts[x].exact)
    return True


def concat(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    d = g.rng.randrange(kind.rank)

    def suits(v: SSAValue) -> bool:
        t = _type(v)
        rest = [i for i in range(kind.rank) if i != d]
        return (
            t.dtype == kind.dtype and t.rank == kind.rank and all(known_equal(t.shape[i], kind.shape[i]) for i in rest)
        )

    parts = [x]
    for _ in range(g.rng.choice([1, 1, 2])):
        other = g.pick(suits)
        if other is None or g.rng.random() < 0.3:
            shape = list(kind.shape)
            shape[d] = g.rng.choice([0, 1, 2, kind.shape[d]])
            other = g.new_input(kind.with_(shape=shape))
        parts.insert(g.rng.randint(0, len(parts)), other)
    shape = list(kind.shape)
    shape[d] = dim(sum(_type(p).shape[d] for p in parts))
    if not g.fits(tuple(shape)):
        return False
    facts = [g.facts[p] for p in parts]
    op = prim.Concat.make(parts, [kind.with_(shape=shape)], {"dim": d})
    g.add(op, max(f.size for f in facts), all(f.exact for f in facts))
    return True


def _index(g: Grower, size: Dim, shape: tuple[Dim, ...]) -> SSAValue:
    """Valid indices: an input in range, or any integers brought into range by a remainder."""
    kind = tensor_type(shape, g.rng.choice([I64, I64, I32]))
    numbers = g.pick(lambda v: v.type == kind)
    if numbers is None or g.rng.random() < 0.5:
        return g.new_input(kind, 0, size)
    return g.add(prim.elementwise("mod", numbers, g.constant(kind, size)), 1000, True)


def take(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    d = g.rng.randrange(kind.rank)
    if g.low(kind.shape[d]) == 0:
        return False
    index = _index(g, kind.shape[d], g.shape(g.rng.choice([0, 1, 1, 2])))
    shape = (*kind.shape[:d], *_type(index).shape, *kind.shape[d + 1 :])
    if not g.fits(shape):
        return False
    attrs: dict[str, Any] = {"dim": d}
    if g.rng.random() < 0.3:
        attrs["wrap"] = True
        moved = prim.elementwise("sub", index, g.constant(_type(index), kind.shape[d]))
        index = g.add(moved, 1000, True) if g.rng.random() < 0.5 else index
    g.add(prim.Take.make([x, index], [kind.with_(shape=shape)], attrs), g.facts[x].size, g.facts[x].exact)
    return True


def gather(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    if kind.rank == 0:
        return False
    d = g.rng.randrange(kind.rank)
    if g.low(kind.shape[d]) == 0:
        return False
    shape = list(kind.shape)
    shape[d] = g.rng.choice([1, 2, 3])
    index = _index(g, kind.shape[d], tuple(shape))
    g.add(prim.Gather.make([x, index], [kind.with_(shape=shape)], {"dim": d}), g.facts[x].size, g.facts[x].exact)
    return True


def scatter(g: Grower, x: SSAValue) -> bool:
    """Sums to any places, or values to places that are all different: which of several would win is not said."""
    kind = _type(x)
    if kind.rank == 0 or kind.dtype not in (F32, F64, I64, I32) or 0 in kind.shape:
        return False
    d, adds = g.rng.randrange(kind.rank), g.rng.random() < 0.6
    low = g.low(kind.shape[d])
    if low == 0:
        return False
    shape = list(kind.shape)
    shape[d] = g.rng.choice([1, 2, 3]) if adds else g.rng.randint(1, low)
    if adds:
        index = _index(g, kind.shape[d], tuple(shape))
    else:
        start = g.rng.randint(0, low - int(shape[d]))
        iota = prim.Iota.make([], [tensor_type(shape, I64)], {"dim": d, "start": start, "step": 1})
        index = g.add(iota, 1e5, True)
    source = g.like(g.constant(kind.with_(shape=shape)))
    size = g.facts[x].size + (int(shape[d]) if adds else 1) * g.facts[source].size
    if kind.dtype.is_float and size > 1e4:
        return False
    exact = g.facts[x].exact and g.facts[source].exact and not (adds and kind.dtype.is_float)
    attrs = {"kind": "sum" if adds else "set", "dim": d}
    g.add(prim.Scatter.make([x, index, source], [kind], attrs), size, exact)
    return True


def reduce(g: Grower, x: SSAValue) -> bool:
    kind, fact = _type(x), g.facts[x]
    dims = sorted(g.rng.sample(range(kind.rank), g.rng.randint(0, kind.rank)))
    count = max(int(substitute(product([kind.shape[d] for d in dims]), b)) for b in g.bindings)
    empty = any(g.low(kind.shape[d]) == 0 for d in dims)
    names = {BOOL: ["any", "all"], I64: ["sum", "max", "min", "prod"], F32: ["sum", "sum", "max", "min", "prod"]}
    name = g.rng.choice(names.get(kind.dtype, ["max", "min"] if kind.dtype in INTEGERS else names[F32]))
    if kind.dtype in HALVES or (name in ("max", "min") and empty):
        return False
    if name in ("max", "min") and len(dims) == 1 and fact.exact and g.rng.random() < 0.5:
        g.add(prim.reduce("arg" + name, x, tuple(dims)), 100, True)
        return True
    exact = fact.exact and (name not in ("sum", "prod") or not kind.dtype.is_float)
    size = fact.size * max(1, count) if name == "sum" else fact.size
    if name == "prod":
        size = math.inf if kind.dtype.is_integer else _power(fact.size, count)
    if kind.dtype.is_float and size > 1e4:
        return False
    g.add(prim.reduce(name, x, tuple(dims)), size, exact)
    return True


def scan(g: Grower, x: SSAValue) -> bool:
    kind, fact = _type(x), g.facts[x]
    if kind.rank == 0 or kind.dtype not in (F32, F64, I64):
        return False
    d = g.rng.randrange(kind.rank)
    count = max(int(substitute(kind.shape[d], b)) for b in g.bindings)
    name = g.rng.choice(["sum", "sum", "max", "min", "prod"])
    size = {"sum": fact.size * max(count, 1), "prod": _power(fact.size, count)}.get(name, fact.size)
    if kind.dtype.is_float and size > 1e4:
        return False
    exact = fact.exact and (name not in ("sum", "prod") or not kind.dtype.is_float)
    g.add(prim.Scan.make([x], [kind], {"kind": name, "dim": d}), size, exact)
    return True


def broadcast(g: Grower, x: SSAValue) -> bool:
    kind = _type(x)
    shape, dims = list(kind.shape), list(range(kind.rank))
    at = g.rng.randint(0, kind.rank)
    shape.insert(at, g.size())
    dims = [d + (d >= at) for d in dims]
    for k, d in enumerate(dims):
        if kind.shape[k] == 1 and g.rng.random() < 0.5:
            shape[d] = g.size()
    if kind.rank > 4 or not g.fits(tuple(shape)):
        return False
    g.add(prim.broadcast(x, tuple(shape), tuple(dims)), g.facts[x].size, g.facts[x].exact)
    return True


def iota(g: Grower, x: SSAValue) -> bool:
    shape = g.shape(g.rng.choice([1, 2]))
    kind = tensor_type(shape, g.rng.choice([I64, I32, F32]))
    start, step = g.rng.choice([0, 1, -2]), g.rng.choice([1, 1, 2, -1])
    if kind.dtype.is_float and g.rng.random() < 0.5:
        start, step = start + 0.5, step * 0.25
    op = prim.Iota.make([], [kind], {"dim": g.rng.randrange(len(shape)), "start": start, "step": step})
    g.add(op, 300, True)
    return True


def extern(g: Grower, x: SSAValue) -> bool:
    """A library call: a matrix product with a transposed operand, or a view."""
    kind, fact = _type(x), g.facts[x]
    if kind.dtype != F32 or kind.rank != 2:
        return False
    rows, inner = kind.shape
    if g.rng.random() < 0.3:
        target = {"operands": ["self"], "target": "aten.t.default", "strides": [(1, inner)]}
        g.add(kernel.Extern.make([x], [kind.with_(shape=(inner, rows))], target), fact.size, fact.exact)
        return True
    columns = g.rng.choice([1, 3, 4])
    other = g.new_input(kind.with_(shape=(columns, inner)))
    turned = g.add(prim.permute(other, (1, 0)), 3.0, True)
    size = 3.0 * fact.size * max(1, *(int(substitute(inner, b)) for b in g.bindings))
    if size > 1e4:
        return False
    attrs = {"operands": ["self", "mat2"], "target": "aten.mm.default", "operand_strides": [None, (1, inner)]}
    g.add(kernel.Extern.make([x, turned], [kind.with_(shape=(rows, columns))], attrs), size, False)
    return True


_STEPS: dict[Callable[[Grower, SSAValue], bool], float] = {
    unary: 6,
    binary: 7,
    compare: 1,
    where: 1.5,
    cast: 2,
    reshape: 2,
    permute: 1.5,
    slice_: 1.5,
    flip: 0.7,
    pad: 1,
    concat: 1.2,
    take: 1,
    gather: 0.8,
    scatter: 2,
    reduce: 3.5,
    scan: 0.5,
    broadcast: 1.5,
    iota: 0.4,
    extern: 0.5,
}


def random_program(seed: int, operations: int | None = None, large: bool = False, gpu: bool = False) -> Program:
    """The random module of this seed."""
    count = operations if operations is not None else random.Random(seed).choice([3, 6, 10, 16, 24])
    return Grower(seed, count, large, gpu).grow()
