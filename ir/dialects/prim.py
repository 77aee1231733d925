"""`prim`: tensor algebra. A closed set: elementwise operations from the scalar table, movement, reductions, gathers.

Broadcasts are explicit, so all operands of an elementwise operation have the result's shape. Any operation may carry
`strides` (a list with one entry a result: eager's strides in elements, or none for contiguous): the layout to be kept if the value is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import sympy
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from ..dtypes import BOOL, I64
from ..literals import print_literal
from ..scalars import REDUCES, SCALARS, ScalarRow, follow
from ..symbols import Dim, Range, dim, free_symbols, is_nonnegative, known_equal, symbol
from ..syntax import Op
from ..types import TensorType
from .function import Func as Func
from .function import Return as Return


def tensor(value: SSAValue) -> TensorType:
    """The value's type, known to be a tensor.

    Raises:
        VerifyException: it is something else.
    """
    if not isinstance(value.type, TensorType):
        raise VerifyException(f"expected a tensor, found {value.type}")
    return value.type


def _same_shape(a: TensorType, b: TensorType) -> bool:
    return a.rank == b.rank and all(known_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))


class PrimOp(Op):
    """Base of the tensor algebra: one result, a tensor."""

    @property
    def type(self) -> TensorType:
        return tensor(self.results[0])

    def expect(self, fine: bool, message: str) -> None:
        """Raise the verifier's error unless `fine`."""
        if not fine:
            raise VerifyException(f"{self.name}: {message}")

    def expect_type(self, wanted: TensorType) -> None:
        """The result has this shape and dtype."""
        fine = _same_shape(wanted, self.type) and wanted.dtype == self.type.dtype
        self.expect(fine, f"the result is {self.type}, not {wanted}")

    def expect_dim(self, name: str, rank: int) -> None:
        """The attribute is the number of one of `rank` dimensions."""
        d = self[name]
        self.expect(isinstance(d, int) and 0 <= d < rank, f"dim {print_literal(d)} is none of the {rank} dimensions")


class Movement(PrimOp):
    """Base of operations that only move elements: the result has operand 0's dtype."""

    def check(self) -> None:
        for value in self.operands[: self.moved]:
            dtype = tensor(value).dtype
            self.expect(dtype == self.type.dtype, f"changes the dtype from {dtype.name} to {self.type.dtype.name}")
        self.check_movement()

    moved: ClassVar[int | None] = 1  # how many operands are moved; None: all

    def check_movement(self) -> None:
        """Verify where the elements go."""


class Elementwise(PrimOp):
    """One row of the scalar table, applied to every element."""

    row: ClassVar[ScalarRow]

    def check(self) -> None:
        types = [tensor(v) for v in self.operands]
        for t in types:
            self.expect(
                _same_shape(t, self.type),
                f"operand {t} has another shape than the result {self.type}; broadcasts are explicit (prim.broadcast)",
            )
        dtypes = [t.dtype for t in types]
        compared = dtypes[1:] if self.row.name == "where" else dtypes
        self.expect(len(set(compared)) == 1, f"operands differ in dtype: {', '.join(d.name for d in dtypes)}")
        if self.row.name == "where":
            self.expect(dtypes[0] == BOOL, f"the condition is {dtypes[0].name}, not bool")
        expected = self.row.result_dtype(dtypes)
        self.expect(self.type.dtype == expected, f"the result is {self.type.dtype.name}, not {expected.name}")


def _elementwise(row: ScalarRow) -> type[Elementwise]:
    body = {"name": f"prim.{row.name}", "row": row, "arity": row.arity, "__doc__": row.note or row.name}
    return type(f"Prim{row.name.title()}", (Elementwise,), body)


ELEMENTWISE: dict[str, type[Elementwise]] = {row.name: _elementwise(row) for row in SCALARS.values()}
follow(lambda row: ELEMENTWISE.update({row.name: _elementwise(row)}))


def elementwise(name: str, *operands: SSAValue) -> Elementwise:
    """Build `prim.<name>` with its result type inferred."""
    cls = ELEMENTWISE[name]
    types = [tensor(v) for v in operands]
    result = types[-1].with_(dtype=cls.row.result_dtype([t.dtype for t in types]))
    return cls.make(operands, [result])


class Cast(PrimOp):
    """Convert every element to the result's dtype, as `Tensor.to` does. `rounds = true`: to a half type because the program says so.

    Without it a kernel may skip the rounding between two operations that it joins.
    """

    name = "prim.cast"
    arity = 1

    def check(self) -> None:
        self.expect(_same_shape(tensor(self.operands[0]), self.type), "changes the shape")


class Full(PrimOp):
    """A tensor whose elements all have the value `value` (a number, or an expression over size symbols)."""

    name = "prim.full"
    arity = 0
    required = ("value",)


class Iota(PrimOp):
    """Element i along `dim` has the value start + step*i."""

    name = "prim.iota"
    arity = 0
    required = ("dim", "start", "step")

    def check(self) -> None:
        self.expect_dim("dim", self.type.rank)


class Broadcast(Movement):
    """Operand dimension k becomes result dimension `dims[k]`; it has that size, or size 1. Other dimensions repeat."""

    name = "prim.broadcast"
    arity = 1
    required = ("dims",)

    def check_movement(self) -> None:
        operand, dims = tensor(self.operands[0]), self["dims"]
        self.expect(
            len(dims) == operand.rank and list(dims) == sorted(set(dims)),
            f"dims {list(dims)} do not fit {operand}",
        )
        for size, d in zip(operand.shape, dims, strict=True):
            self.expect(
                d < self.type.rank and (size == 1 or known_equal(size, self.type.shape[d])),
                f"size {size} of {operand} does not become dimension {d} of {self.type}",
            )


class Reshape(Movement):
    """The same elements in row-major order under another shape."""

    name = "prim.reshape"
    arity = 1

    def check_movement(self) -> None:
        operand = tensor(self.operands[0])
        self.expect(
            known_equal(operand.numel, self.type.numel),
            f"{operand} has {operand.numel} elements, {self.type} has {self.type.numel}",
        )


class Permute(Movement):
    """Result dimension k is operand dimension `perm[k]`."""

    name = "prim.permute"
    arity = 1
    required = ("perm",)

    def check_movement(self) -> None:
        operand, perm = tensor(self.operands[0]), self["perm"]
        self.expect(sorted(perm) == list(range(operand.rank)), f"perm {list(perm)} does not fit {operand}")
        self.expect_type(operand.with_(shape=[operand.shape[p] for p in perm]))


class After(Movement):
    """The first operand, no sooner than the second is known: what backward computes again does not begin in forward.

    Without a second operand it is the first. Kernels stand in their order behind `fuse`, which leaves none of these.
    """

    name = "prim.after"
    arity = None

    def check_movement(self) -> None:
        self.expect(1 <= len(self.operands) <= 2, f"{len(self.operands)} operands, not one or two")
        self.expect_type(tensor(self.operands[0]))


class Slice(Movement):
    """Result element i along dimension k is operand element `starts[k]` + i * `steps[k]` (steps > 0)."""

    name = "prim.slice"
    arity = 1
    required = ("starts", "steps")

    def check_movement(self) -> None:
        rank = tensor(self.operands[0]).rank
        self.expect(all(not isinstance(s, int) or s > 0 for s in self["steps"]), "a step is not positive")
        self.expect(
            len(self["starts"]) == len(self["steps"]) == rank == self.type.rank,
            f"starts, steps and shapes disagree about the rank {rank}",
        )
        for size, start, step, count in zip(
            tensor(self.operands[0]).shape, self["starts"], self["steps"], self.type.shape, strict=True
        ):
            last = dim(start + (count - 1) * step)
            if isinstance(last, int) and isinstance(size, int) and count != 0:
                self.expect(start >= 0 and last < size, f"element {last} lies outside a dimension of size {size}")


class Flip(Movement):
    """Reverse the order along `dims`."""

    name = "prim.flip"
    arity = 1
    required = ("dims",)

    def check_movement(self) -> None:
        dims = self["dims"]
        self.expect(
            list(dims) == sorted(set(dims)) and all(0 <= d < self.type.rank for d in dims),
            f"dims {list(dims)} do not fit {self.type}",
        )
        self.expect(_same_shape(tensor(self.operands[0]), self.type), "changes the shape")


class Pad(Movement):
    """Add `low[k]` elements before and `high[k]` after dimension k, of value `value`; negative numbers take away."""

    name = "prim.pad"
    arity = 1
    required = ("low", "high", "value")

    def check_movement(self) -> None:
        operand = tensor(self.operands[0])
        self.expect(len(self["low"]) == len(self["high"]) == operand.rank, "low and high do not fit the rank")
        shape = [dim(s + a + b) for s, a, b in zip(operand.shape, self["low"], self["high"], strict=True)]
        self.expect_type(operand.with_(shape=shape))


class Concat(Movement):
    """The operands one after another along `dim`."""

    name = "prim.concat"
    arity = None
    moved = None
    required = ("dim",)

    def check_movement(self) -> None:
        types = [tensor(v) for v in self.operands]
        self.expect(bool(types), "needs an operand")
        self.expect_dim("dim", self.type.rank)
        self.expect(all(t.rank == self.type.rank for t in types), "operands differ in rank")
        total = dim(sum(t.shape[self["dim"]] for t in types))
        for t in types:
            shape = list(t.shape)
            shape[self["dim"]] = total
            expected = t.with_(shape=shape)
            self.expect(_same_shape(expected, self.type), f"operand {t} does not fit the result {self.type}")


class Take(Movement):
    """Rows by number: result shape is x.shape[:dim] + index.shape + x.shape[dim+1:] (embedding, index_select, index).

    An index outside the dimension is an IndexError at run time; `wrap = true` lets negative ones count from the end.
    `inside = true`: the index was computed so that none is outside, and nothing is checked.
    """

    name = "prim.take"
    arity = 2
    required = ("dim",)

    def check_movement(self) -> None:
        x, index, d = tensor(self.operands[0]), tensor(self.operands[1]), self["dim"]
        self.expect(index.dtype.kind in ("int", "uint"), f"the index is {index.dtype.name}, not an integer")
        self.expect_dim("dim", x.rank)
        self.expect_type(x.with_(shape=(*x.shape[:d], *index.shape, *x.shape[d + 1 :])))


class Gather(Movement):
    """`torch.gather`: result[i, j] = x[index[i, j], j] for dim 0. An index outside is an IndexError at run time.

    `inside = true`: the index was computed so that none is outside, and nothing is checked.
    """

    name = "prim.gather"
    arity = 2
    required = ("dim",)

    def check_movement(self) -> None:
        x, index = tensor(self.operands[0]), tensor(self.operands[1])
        self.expect(index.dtype.kind in ("int", "uint"), f"the index is {index.dtype.name}, not an integer")
        self.expect(x.rank == index.rank, f"{x} and {index} differ in rank")
        self.expect_dim("dim", x.rank)
        self.expect(_same_shape(index, self.type), f"the result has another shape than the index {index}")


class Scatter(PrimOp):
    """`torch.scatter`, to operand 0 from operand 2: result[index[i, j], j] = source[i, j] for dim 0; operand 1 is the index. For GPUs alone.

    Kinds: `set`, where any one of several elements for one place may win, and `sum`, which adds to what is there, in any order.
    An index outside is an IndexError at run time; `wrap = true` lets negative ones count from the end.
    """

    name = "prim.scatter"
    arity = 3
    angle = "kind"
    required = ("kind", "dim")

    def check(self) -> None:
        x, index, source = map(tensor, self.operands)
        self.expect(self["kind"] in ("set", "sum"), f"unknown kind '{self['kind']}'; known: set, sum")
        self.expect(index.dtype.kind in ("int", "uint"), f"the index is {index.dtype.name}, not an integer")
        self.expect_dim("dim", x.rank)
        self.expect(_same_shape(index, source), f"the source {source} has another shape than the index {index}")
        self.expect(x.rank == index.rank, f"{x} and {index} differ in rank")
        self.expect(
            x == self.type and source.dtype == x.dtype, f"the result {self.type} or the source {source} is not like {x}"
        )


class Reduce(PrimOp):
    """Join the elements along `dims`, which vanish. Kinds: see `scalars.REDUCES`. `argmax`/`argmin` give i64."""

    name = "prim.reduce"
    arity = 1
    angle = "kind"
    required = ("kind", "dims")

    def check(self) -> None:
        operand, dims = tensor(self.operands[0]), self["dims"]
        self.expect(self["kind"] in REDUCES, f"unknown kind '{self['kind']}'; known: {', '.join(REDUCES)}")
        self.expect(
            list(dims) == sorted(set(dims)) and all(0 <= d < operand.rank for d in dims),
            f"dims {list(dims)} do not fit {operand}",
        )
        if self["kind"] in ("any", "all"):
            self.expect(operand.dtype == BOOL, f"{self['kind']} joins bool, not {operand.dtype.name}")
        self.expect_type(reduce_type(self["kind"], operand, dims))


def reduce_type(kind: str, operand: TensorType, dims: tuple[int, ...]) -> TensorType:
    """The type of `prim.reduce<kind>`."""
    shape = [s for i, s in enumerate(operand.shape) if i not in dims]
    return operand.with_(shape=shape, dtype=I64 if kind.startswith("arg") else operand.dtype)


class Bag(PrimOp):
    """Join rows of a table: result row i is made of the rows index[k] of operand 0, for `count[i]` numbers k from `start[i]` on. For GPUs alone.

    Operands: table, index, start, count (vectors of integers, with 0 <= start and start + count <= size of the index), and a factor for each
    number of the index if there is a fifth. Kinds: `sum`, `max`; no row at all gives what a reduction starts with. `padding = n`: rows of
    that number are left out. Sums of half types are float32, as is the result. A number outside the table is an IndexError at run time.
    """

    name = "prim.bag"
    angle = "kind"
    arity = None
    required = ("kind",)

    def check(self) -> None:
        self.expect(len(self.operands) in (4, 5), "takes 4 or 5 operands")
        self.expect(self["kind"] in ("sum", "max"), f"unknown kind '{self['kind']}'; known: sum, max")
        table, *numbers = map(tensor, self.operands)
        self.expect(all(t.rank == 1 for t in numbers), "all operands but the table are vectors")
        self.expect(all(t.dtype.kind in ("int", "uint") for t in numbers[:3]), "index, start and count are integers")
        self.expect(_same_shape(numbers[1], numbers[2]), "start and count differ in size")
        self.expect_type(table.with_(shape=(*numbers[1].shape, *table.shape[1:]), dtype=table.dtype.compute))


class Contract(PrimOp):
    """Sums of products of two operands: a matrix product, a batch of them, a convolution.

    The result's dimensions are `d0`, `d1`, ..., then come those that are added up, whose sizes are `reduced`. `maps`
    gives for each operand the index of its element in these: `[[d0, d2], [d2, d1]]` is (m, k) by (k, n). `padded =
    true`: elements outside of an operand count as 0. Operands have one floating dtype, sums have the result's: float32
    for half types. `tf32 = true`: operands in float32 may be rounded to 10 bits of mantissa.
    """

    name = "prim.contract"
    arity = 2
    required = ("maps", "reduced")

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """Of the iteration space: the result's dimensions, and what is added up."""
        return (*self.type.shape, *self["reduced"])

    @property
    def bound_names(self) -> frozenset[str]:
        return frozenset(map(str, axes(len(self.sizes))))

    def check(self) -> None:
        a, b = (tensor(v) for v in self.operands)
        self.expect(a.dtype == b.dtype and a.dtype.is_float, f"operands are {a.dtype.name} and {b.dtype.name}")
        self.expect(self.type.dtype == a.dtype.compute, f"sums are {a.dtype.compute.name}, not {self.type.dtype.name}")
        self.expect(len(self["maps"]) == 2, "has an index map for each of the two operands")
        names = axes(len(self.sizes))
        ranges = {v: (0, dim(n - 1)) for v, n in zip(names, self.sizes, strict=True)}
        for operand, index in zip((a, b), self["maps"], strict=True):
            self.expect(len(index) == operand.rank, f"the map {print_literal(index)} is none of {operand}")
            for place, size in zip(index, operand.shape, strict=True):
                inside = self.get("padded") or _inside(place, size, ranges)
                self.expect(inside, f"{print_literal(place)} may lie outside of the size {size} of {operand}")
        unused = set(names) - free_symbols([place for index in self["maps"] for place in index])
        self.expect(not unused, f"no operand depends on {', '.join(sorted(map(str, unused)))}")


def _inside(place: Dim, size: Dim, ranges: Mapping[sympy.Symbol, Range]) -> bool:
    """Whether an index lies below a size wherever the iteration is; sizes that are known to be equal are one."""
    if place in ranges and known_equal(dim(ranges[place][1] + 1), size):
        return True
    return is_nonnegative(place, ranges) and is_nonnegative(dim(size - 1 - place), ranges)


def axes(count: int) -> tuple[sympy.Symbol, ...]:
    """The names of the first dimensions of a contraction: d0, d1, ..."""
    return tuple(symbol(f"d{k}") for k in range(count))


class Scan(PrimOp):
    """Running reduction along `dim`: element i joins elements 0..i. Kinds: sum, prod, max, min."""

    name = "prim.scan"
    arity = 1
    angle = "kind"
    required = ("kind", "dim")

    def check(self) -> None:
        operand = tensor(self.operands[0])
        self.expect(self["kind"] in ("sum", "prod", "max", "min"), f"unknown kind '{self['kind']}'")
        self.expect(
            _same_shape(operand, self.type) and operand.dtype == self.type.dtype, f"the result is not {operand}"
        )
        self.expect_dim("dim", operand.rank)


OPS = (
    Cast,
    Full,
    Iota,
    Broadcast,
    Reshape,
    Permute,
    After,
    Slice,
    Flip,
    Pad,
    Concat,
    Take,
    Gather,
    Scatter,
    Reduce,
    Bag,
    Contract,
    Scan,
    Func,
    Return,
) + tuple(ELEMENTWISE.values())

VIEWS = (Reshape, Permute, After, Slice, Flip, Broadcast)  # no arithmetic: they vanish into index expressions
SOURCES = (Full, Iota)
JOINS = (Reduce, Bag, Contract)  # many elements become one: kernels have loops for them


# Builders that infer the result type.


def full(value: object, like: TensorType) -> Full:
    """A constant of that type."""
    return Full.make([], [like], {"value": value})


def cast(x: SSAValue, dtype: object) -> Cast:
    """x in another dtype (a DType)."""
    return Cast.make([x], [tensor(x).with_(dtype=dtype)])  # type: ignore[arg-type]


def broadcast(x: SSAValue, shape: tuple[object, ...], dims: tuple[int, ...]) -> Broadcast:
    """x repeated to `shape`."""
    return Broadcast.make([x], [tensor(x).with_(shape=shape)], {"dims": dims})


def reshape(x: SSAValue, shape: tuple[object, ...]) -> Reshape:
    """x under another shape."""
    return Reshape.make([x], [tensor(x).with_(shape=shape)])


def permute(x: SSAValue, perm: tuple[int, ...]) -> Permute:
    """x with its dimensions in another order."""
    t = tensor(x)
    return Permute.make([x], [t.with_(shape=[t.shape[p] for p in perm])], {"perm": perm})


def reduce(kind: str, x: SSAValue, dims: tuple[int, ...]) -> Reduce:
    """x reduced over `dims` (sorted)."""
    return Reduce.make([x], [reduce_type(kind, tensor(x), dims)], {"kind": kind, "dims": dims})


def contract(
    a: SSAValue,
    b: SSAValue,
    maps: Sequence[Sequence[Dim]],
    shape: Sequence[Dim],
    reduced: Sequence[Dim],
    **attrs: object,
) -> Contract:
    """The sums of products with a result of this shape; `attrs`: `padded`, `tf32`."""
    kind = tensor(a)
    result = kind.with_(shape=shape, dtype=kind.dtype.compute)
    return Contract.make([a, b], [result], {"maps": maps, "reduced": reduced, **attrs})
