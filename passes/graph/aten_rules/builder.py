"""What decomposition rules are written with: operands and arguments by name, and prims inserted in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch
from xdsl.ir import Operation, SSAValue

from ....ir.dialects import prim
from ....ir.dialects.aten import AtenOp
from ....ir.dtypes import BOOL, I64, DType, dtype_of
from ....ir.symbols import Dim, dim, known_equal, product
from ....ir.types import TensorType, tensor_type
from ...analysis.machine import Machine

Result: TypeAlias = SSAValue | Sequence[SSAValue | None]
Rule: TypeAlias = Callable[["Builder"], Result]

RULES: dict[str, Rule] = {}
CPU_RULES: dict[str, Rule] = {}  # in the place of those of the same name, for results on a CPU
RANDOM: dict[str, Rule] = {}  # they take random bits from `Builder.stream`


class NotCovered(Exception):
    """The rule does not hold for these types or arguments; the operation stays a library call."""


def rule(*names: str, table: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register a rule for overloads: `rule("relu.default")`."""

    def register(fn: Rule) -> Rule:
        table.update(dict.fromkeys([f"aten.{name}" for name in names], fn))
        return fn

    return register


@dataclass
class Builder:
    """Builds the replacement of one `aten` operation. `ops` receives the prims in order.

    `note` is what the rule has decided, for a remark. `stream` gives the seed of a new stream of random bits, a number (i64); None where random numbers are the library's.
    """

    op: AtenOp
    machine: Machine
    ops: list[Operation] = field(default_factory=list)
    stream: Callable[[Builder], SSAValue] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        self.names = list(self.op["operands"])

    # -- what is given

    def has(self, name: str) -> bool:
        """Whether a tensor fills this argument."""
        return name in self.names

    def tensor(self, name: str) -> SSAValue:
        """The tensor operand of that name."""
        if name not in self.names:
            raise NotCovered(f"no tensor for '{name}'")
        return self.op.operands[self.names.index(name)]

    def maybe(self, name: str) -> SSAValue | None:
        """The tensor operand of that name, or None."""
        return self.op.operands[self.names.index(name)] if name in self.names else None

    def floating(self, name: str) -> SSAValue:
        """The tensor of that name, in the dtype in which the first result is computed; both are floats."""
        value = self.tensor(name)
        if not self.type.dtype.is_float or not self.dtype_of(value).is_float:
            raise NotCovered("not a float tensor")
        return self.cast(value, self.type.dtype.compute)

    def tensors(self, name: str) -> list[SSAValue]:
        """The operands that form a list."""
        return [v for n, v in zip(self.names, self.op.operands, strict=True) if n.partition(".")[0] == name]

    def get(self, name: str, default: Any = None) -> Any:
        """A plain argument. Calls are canonical: what is not written is None, or no argument of this overload."""
        return self.op.get(name, default)

    def either(self, name: str) -> Any:
        """The tensor, or the number, that fills this argument."""
        return self.tensor(name) if name in self.names else self.get(name)

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        return prim.tensor(self.op.results[0])

    @property
    def on_gpu(self) -> bool:
        """Whether the first result lies on a GPU."""
        return bool(self.op.results) and self.machine.at(self.type.device).is_grid

    def axes(self, value: Any, rank: int) -> tuple[int, ...]:
        """Sorted dimensions; none or empty: all."""
        if value is None or value == ():
            return tuple(range(rank))
        values = value if isinstance(value, tuple) else (value,)
        return tuple(sorted(set(values))) if rank else ()

    @staticmethod
    def rank_of(value: SSAValue) -> int:
        return prim.tensor(value).rank

    @staticmethod
    def shape_of(value: SSAValue) -> tuple[Dim, ...]:
        return prim.tensor(value).shape

    @staticmethod
    def dtype_of(value: SSAValue) -> DType:
        return prim.tensor(value).dtype

    # -- prims

    def add(self, op: Operation) -> SSAValue:
        """Insert an operation; its result."""
        op.location = self.op.location
        self.ops.append(op)
        return op.results[0]

    def ew(self, name: str, *values: Any) -> SSAValue:
        """An elementwise prim; operands are broadcast against each other, numbers become constants of the dtype."""
        tensors = [v for v in values if isinstance(v, SSAValue)]
        if not tensors:
            raise NotCovered("a call of numbers alone")
        shape = self.common_shape([self.shape_of(v) for v in tensors])
        kinds = [self.dtype_of(v) for v in (tensors[1:] if name == "where" and len(tensors) > 1 else tensors)]
        like = tensor_type(shape, kinds[-1], prim.tensor(tensors[0]).device)
        operands = [
            self.to_shape(v, shape) if isinstance(v, SSAValue) else self.add(prim.full(v, like)) for v in values
        ]
        return self.add(prim.elementwise(name, *operands))

    def joined(self, name: str, values: Iterable[SSAValue]) -> SSAValue:
        """An elementwise prim of two operands over all values, from the left; each is built when it is needed."""
        return functools.reduce(lambda a, b: self.ew(name, a, b), values)

    def full(self, value: Any, shape: Sequence[Dim] | None = None, dtype: DType | None = None) -> SSAValue:
        """A constant; default: the first result's shape and dtype."""
        t = self.type.with_(shape=self.type.shape if shape is None else shape, dtype=dtype)
        if t.dtype.kind == "bool" and not isinstance(value, sympy.Expr):
            value = bool(value)
        elif t.dtype.is_integer and isinstance(value, float):
            value = int(value)
        elif t.dtype.is_float and isinstance(value, int):
            value = float(value)
        return self.add(prim.full(value, t))

    def cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        """The value in another dtype."""
        return value if self.dtype_of(value) == dtype else self.add(prim.cast(value, dtype))

    def up(self, value: SSAValue) -> SSAValue:
        """Half types in f32, others as they are."""
        return self.cast(value, self.dtype_of(value).compute)

    def common_shape(self, shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
        """The shape that all broadcast to, by numpy's rules."""
        rank = max(map(len, shapes))
        result: list[Dim] = []
        for k in range(-rank, 0):
            sizes = [s[k] for s in shapes if len(s) >= -k]
            wide = [s for s in sizes if s != 1]
            if any(not known_equal(s, wide[0]) for s in wide):
                raise NotCovered(f"sizes {', '.join(map(str, wide))} are not known to be equal")
            result.append(wide[0] if wide else 1)
        return tuple(result)

    def to_shape(self, value: SSAValue, shape: Sequence[Dim]) -> SSAValue:
        """Broadcast by numpy's rules."""
        have = self.shape_of(value)
        if len(have) == len(shape) and all(known_equal(a, b) for a, b in zip(have, shape, strict=True)):
            return value
        offset = len(shape) - len(have)
        for i, (size, wanted) in enumerate(zip(have, shape[offset:], strict=True)):
            if wanted == 1 and size != 1:  # a symbolic size that is guarded to be 1
                value = self.slice(value, i, 0, 1)
        return self.add(prim.broadcast(value, tuple(shape), tuple(range(offset, len(shape)))))

    def reshape(self, value: SSAValue, shape: Sequence[Dim]) -> SSAValue:
        """The same elements under another shape."""
        shape = tuple(dim(s) for s in shape)
        if self.shape_of(value) == shape:
            return value
        if not known_equal(product(shape), prim.tensor(value).numel):
            raise NotCovered("the number of elements is not known to stay")
        return self.add(prim.reshape(value, shape))

    def permute(self, value: SSAValue, perm: Sequence[int]) -> SSAValue:
        """Dimensions in another order."""
        return value if list(perm) == list(range(len(perm))) else self.add(prim.permute(value, tuple(perm)))

    def slice(self, value: SSAValue, d: int, start: Dim, size: Dim, step: int = 1) -> SSAValue:
        """`size` elements along d from `start`."""
        t = prim.tensor(value)
        if start == 0 and step == 1 and known_equal(size, t.shape[d]):
            return value
        starts = [0] * t.rank
        steps = [1] * t.rank
        starts[d], steps[d] = start, step
        shape = [*t.shape[:d], size, *t.shape[d + 1 :]]
        return self.add(
            prim.Slice.make([value], [t.with_(shape=shape)], {"starts": tuple(starts), "steps": tuple(steps)})
        )

    def concat(self, values: Sequence[SSAValue], d: int) -> SSAValue:
        """The values one after another."""
        t = prim.tensor(values[0])
        total = dim(sum(self.shape_of(v)[d] for v in values))
        shape = [*t.shape[:d], total, *t.shape[d + 1 :]]
        return self.add(prim.Concat.make(values, [t.with_(shape=shape)], {"dim": d}))

    def iota(self, size: Dim, dtype: DType = I64, start: Any = 0, step: Any = 1) -> SSAValue:
        """start, start + step, ... (`size` elements)."""
        t = self.type.with_(shape=[size], dtype=dtype)
        return self.add(prim.Iota.make([], [t], {"dim": 0, "start": start, "step": step}))

    def reduce(self, kind: str, value: SSAValue, axes: Sequence[int], keepdim: bool = False) -> SSAValue:
        """A reduction; half types must be cast before."""
        if not axes and not kind.startswith("arg"):  # a sum begins with 0.0, which turns -0.0 into 0.0
            return self.ew("add", value, 0.0) if kind == "sum" and self.dtype_of(value).is_float else value
        result = self.add(prim.reduce(kind, value, tuple(sorted(axes))))
        return self.keep(result, self.shape_of(value), axes) if keepdim else result

    def keep(self, value: SSAValue, shape: Sequence[Dim], axes: Sequence[int]) -> SSAValue:
        """A reduced value with the reduced dimensions back as 1."""
        return self.reshape(value, [1 if i in axes else s for i, s in enumerate(shape)])

    def nonempty(self, value: SSAValue, axes: Sequence[int] | None = None) -> None:
        """Raise NotCovered for a reduction along a dimension of no elements (default: any)."""
        shape = self.shape_of(value)
        if 0 in (shape if axes is None else [shape[a] for a in axes]):
            raise NotCovered("a reduction over nothing")

    def spread(self, value: SSAValue, shape: Sequence[Dim], axes: Sequence[int]) -> SSAValue:
        """A reduced value repeated along the reduced dimensions."""
        dims = tuple(i for i in range(len(shape)) if i not in axes)
        return self.add(prim.broadcast(value, tuple(shape), dims))

    def count(self, shape: Sequence[Dim], axes: Sequence[int]) -> Dim:
        """The number of elements that a reduction joins."""
        return product(shape[a] for a in axes)

    def mean(self, value: SSAValue, axes: Sequence[int], correction: Any = 0) -> SSAValue:
        """Sum over (count - correction)."""
        n = self.count(self.shape_of(value), axes)
        total = self.reduce("sum", value, axes)
        divisor = n - correction
        if isinstance(divisor, int | float) and divisor <= 0:
            divisor = 0.0
        divisor = float(divisor) if isinstance(divisor, int) else divisor
        return self.ew("div", total, self.full(divisor, self.shape_of(total), self.dtype_of(total)))

    # -- dtypes

    def promoted(self, *values: Any) -> DType:
        """torch's result dtype of tensors and numbers together."""
        probes: list[Any] = []
        for v in values:
            if isinstance(v, SSAValue):
                t = prim.tensor(v)
                probes.append(torch.empty((1,) * t.rank, dtype=t.dtype.torch, device="meta"))
            elif isinstance(v, sympy.Expr):
                probes.append(1)
            elif v is not None:
                probes.append(v)
        result = probes[0]
        if len(probes) == 1:
            return dtype_of(result.dtype)
        for other in probes[1:]:
            kind = torch.result_type(result, other)
            rank = max(getattr(result, "ndim", 0), getattr(other, "ndim", 0))
            result = torch.empty((1,) * rank, dtype=kind, device="meta")
        return dtype_of(result.dtype)

    def operand(self, value: Any, dtype: DType) -> Any:
        """A tensor in this dtype, or a number that becomes one of it."""
        if isinstance(value, SSAValue):
            return self.cast(value, dtype)
        if isinstance(value, complex):
            raise NotCovered("complex numbers")
        if isinstance(value, sympy.Expr):
            return value
        if dtype == BOOL:
            return bool(value)
        return float(value) if dtype.is_float else int(value)

    def finish(self, value: SSAValue, index: int = 0) -> SSAValue:
        """The value with the result's dtype and shape."""
        t = prim.tensor(self.op.results[index])
        value = self.cast(value, t.dtype)
        return self.to_shape(value, t.shape)


def real(*kinds: DType) -> None:
    """Raise NotCovered for complex dtypes."""
    if any(k.kind == "complex" for k in kinds):
        raise NotCovered("complex numbers")
