"""The region of a call as structs of C++: what happens to a sum on its way to memory, for the `Tail` of targets/cpp/include/intarsia_tail.h, and the elements of a factor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from xdsl.ir import SSAValue

from ...ir.dialects import buffer, kernel, prim
from ...ir.dtypes import DType
from ...ir.symbols import Dim, dim, simplify_index, symbol
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.views import Ranges, operand_index, reshape_index, row_major
from .text import cpp_cast, cpp_constant, cpp_index, scalar_text

_BOUNDS = {"max": "{0} < {1} ? {1} : {0}", "min": "{0} > {1} ? {1} : {0}"}  # for a bound that is a number
MOST_WORDS = 4  # operations in the name of a struct


@dataclass(frozen=True)
class Tail:
    """A struct of C++, and the statement that makes a tail of it."""

    text: str
    statement: str


def tail_of(op: Op, columns: int, bias: int | None = None) -> Tail:
    """What the region of a contraction, or of a library call, makes of its sums.

    Args:
        columns: of the result, which is the last operand.
        bias: the operand that is added before, a number for each column.
    """
    kinds = [v.type for v in op.operands]
    refs = [kind for kind in kinds if isinstance(kind, RefType)]
    sums, arguments = _sums(op)
    steps = kernel.computing(op.block_body, op.block_body.last_op.operands, sums.owner) if sums is not None else []  # type: ignore[union-attr,arg-type]
    used = {v for step in steps for v in step.operands}
    read = {argument: k for argument, k in arguments.items() if argument in used}
    words, lines, value = ["tail"], [], "sum"
    if bias is not None:
        words.append("bias")
        lines.append(f"const float v = sum + float(static_cast<const {refs[bias].dtype.cpp}*>(in[0])[column]);")
        value = "v"
    if sums is not None:
        region = Region()
        region.known[sums] = value
        for k, (argument, number) in enumerate(read.items()):
            t = prim.tensor(argument)
            place = "0" if t.rank == 0 else "at" if t.shape == refs[-1].shape else "column"
            text = f"static_cast<const {refs[number].dtype.cpp}*>(in[{k + (bias is not None)}])[{place}]"
            region.load(argument, None, text)
        for step in steps:
            region.element(step.results[0], None)
        last = cast(kernel.Yield, op.block_body.last_op).operands[0]
        lines, value = lines + region.lines, region.element(last, None)
        words += region.words[:MOST_WORDS]
    head = "  IM_FN_MEMBER static float of(float sum, const void* const* in, int64_t at, int64_t column) {"
    void = "    (void)in, (void)at, (void)column;"
    body = "\n".join([head, void, *(f"    {line}" for line in lines), f"    return {value};", "  }"])
    name = "_".join([*words, hashlib.sha256(body.encode()).hexdigest()[:6]])
    word = refs[-1].dtype.cpp
    places = ", ".join(f"in{number}" for number in [*([] if bias is None else [bias]), *read.values()])
    statement = f"  const im::Tail<{word}> tail{{&im::finish<{name}, {word}>, out0, {columns}, {{{places}}}}};"
    return Tail(f"struct {name} {{\n{body}\n}};\n", statement)


def _sums(op: Op) -> tuple[SSAValue | None, dict[SSAValue, int]]:
    """The sums in a region, and the number of the operand that each argument is; a library call may have no region."""
    if isinstance(op, buffer.Contract):
        return op.product.results[0], {argument: k for k, argument in enumerate(op.block_body.args)}
    if not op.regions:
        return None, {}
    sums, *arguments = op.block_body.args
    return sums, dict(zip(arguments, kernel.read_by_region(op), strict=True))


def factor_of(op: buffer.Contract, value: SSAValue, sizes: tuple[int, int], turned: bool = False) -> Tail:
    """A factor that the region computes, as a matrix of these sizes: its struct, and an object of it.

    Args:
        turned: the value is the matrix with rows and columns exchanged.
    """
    steps = kernel.computing(op.block_body, [value])
    used = {v for step in steps for v in step.operands}
    read = {argument: k for k, argument in enumerate(op.block_body.args) if argument in used}
    ranges = {symbol(word): (0, size - 1) for word, size in zip(("row", "i"), sizes, strict=True)}
    region = Region({argument: Place(f"in{k}") for k, argument in enumerate(read)}, ranges)
    index = (*ranges,)[:: -1 if turned else 1]
    shape = prim.tensor(value).shape
    result = region.element(value, index if turned else reshape_index(index, sizes, shape, ranges))
    word = prim.tensor(value).dtype
    members = [
        f"  const {cast(RefType, op.operands[number].type).dtype.cpp}* in{k};" for k, number in enumerate(read.values())
    ]
    head = f"  IM_FN_MEMBER {_held(word).cpp} at(int64_t row, int64_t i) const {{"
    body = "\n".join(
        [
            *members,
            head,
            "    (void)row, (void)i;",
            *(f"    {line}" for line in region.lines),
            f"    return {result};",
            "  }",
        ]
    )
    title = "_".join(["factor", *region.words[:MOST_WORDS], hashlib.sha256(body.encode()).hexdigest()[:6]])
    places = ", ".join(f"in{number}" for number in read.values())
    return Tail(f"struct {title} {{\n{body}\n}};\n", f"{title}{{{places}}}")


Index: TypeAlias = tuple[Dim, ...] | None


@dataclass(frozen=True)
class Place:
    """A pointer in C++, and the strides of what lies there (None: no gaps)."""

    pointer: str
    strides: tuple[Dim, ...] | None = None

    def at(self, index: tuple[Dim, ...], shape: tuple[Dim, ...], ranges: Ranges) -> str:
        """An element."""
        steps = self.strides
        found = row_major(index, shape) if steps is None else dim(sum(i * s for i, s in zip(index, steps, strict=True)))
        return f"{self.pointer}[{cpp_index(simplify_index(found, ranges))}]"


class Region:
    """The statements of operations on single elements, each at an index: none where all are at one place. Half types are float until they are stored."""

    def __init__(self, memory: Mapping[SSAValue, Place] | None = None, ranges: Ranges | None = None) -> None:
        self.lines: list[str] = []
        self.known: dict[SSAValue, str] = {}  # what has a name already, at whatever index
        self.words: list[str] = []
        self.memory, self.ranges = memory or {}, ranges or {}
        self.names: dict[tuple[SSAValue, Index], str] = {}

    def load(self, argument: SSAValue, index: Index, text: str) -> str:
        dtype = prim.tensor(argument).dtype
        return self._bind(argument, index, f"float({text})" if _held(dtype) != dtype else text)

    def element(self, value: SSAValue, index: Index) -> str:
        """The name of a value's element."""
        if value in self.known:
            return self.known[value]
        if (value, index) in self.names:
            return self.names[value, index]
        op = value.owner
        if not isinstance(op, prim.PrimOp):
            assert index is not None
            return self.load(value, index, self.memory[value].at(index, prim.tensor(value).shape, self.ranges))
        if isinstance(op, prim.Full):
            text = cpp_constant(op["value"], _held(op.type.dtype))
        elif isinstance(op, prim.Iota):
            assert index is not None
            place = simplify_index(dim(op["start"] + op["step"] * index[op["dim"]]), self.ranges)
            return self._bind(value, index, f"static_cast<{_held(op.type.dtype).cpp}>({cpp_index(place)})")
        elif type(op) in prim.VIEWS:
            text = self.element(op.operands[0], None if index is None else operand_index(op, index, self.ranges))
        elif isinstance(op, prim.Cast):
            return self._bind(value, index, self._cast(op, self.element(op.operands[0], index)))
        else:
            assert isinstance(op, prim.Elementwise)
            given = [self.element(v, index) for v in op.operands]
            self.words.append(op.row.name)
            bound = op.operands[-1].owner  # nan stays nan: the comparison is false
            known = isinstance(bound, prim.Full) and op.type.dtype.is_float and bound["value"] == bound["value"]
            form = _BOUNDS[op.row.name] if known and op.row.name in _BOUNDS else scalar_text(op.row, op.type.dtype)
            return self._bind(value, index, form.format(*given))
        self.names[value, index] = text
        return text

    @staticmethod
    def _cast(op: prim.Cast, value: str) -> str:
        dtype, source = op.type.dtype, prim.tensor(op.operands[0]).dtype
        text = cpp_cast(value, _held(source), _held(dtype))
        if op.get("rounds") and dtype != _held(dtype):
            text = f"float({cpp_cast(text, _held(dtype), dtype)})"
        return text

    def _bind(self, value: SSAValue, index: Index, text: str) -> str:
        name = text
        if not text.isidentifier():
            name = f"t{len(self.names)}"
            self.lines.append(f"const {_held(prim.tensor(value).dtype).cpp} {name} = {text};")
        self.names[value, index] = name
        return name


def _held(dtype: DType) -> DType:
    """The type in which a register holds numbers of a type."""
    return dtype.compute
