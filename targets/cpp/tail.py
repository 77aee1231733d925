"""The region of a call as structs of C++: what happens to a sum on its way to memory, for the `Tail` of targets/cpp/include/intarsia_tail.h, and the elements of a factor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
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


def tail_of(op: Op, bias: str, columns: int) -> Tail:
    """The bias, which is the operand of that name, and the region of a `buffer.extern`.

    Args:
        columns: of the result, which is the last operand.
    """
    names, refs = list(op["operands"]), [v.type for v in op.operands if isinstance(v.type, RefType)]
    read, steps = _read(op, 0) if op.regions else ({}, [])
    extras = [*[name for name in names if name == bias], *read]
    kinds = [refs[names.index(name)].dtype.cpp for name in extras]
    words, lines, value = ["tail"], [], "sum"
    if bias in extras:
        words.append("bias")
        lines.append(f"const float v = sum + float(static_cast<const {kinds[0]}*>(in[0])[column]);")
        value = "v"
    if op.regions:
        region = Region()
        region.known[op.block_body.args[0]] = value
        for k, (name, argument) in enumerate(read.items()):
            t = prim.tensor(argument)
            place = "0" if t.rank == 0 else "at" if t.shape == refs[-1].shape else "column"
            text = f"static_cast<const {refs[names.index(name)].dtype.cpp}*>(in[{k + (bias in extras)}])[{place}]"
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
    places = ", ".join(f"in{names.index(extra)}" for extra in extras)
    statement = f"  const im::Tail<{word}> tail{{&im::finish<{name}, {word}>, out0, {columns}, {{{places}}}}};"
    return Tail(f"struct {name} {{\n{body}\n}};\n", statement)


def factor_of(op: Op, name: str, sizes: tuple[int, int]) -> Tail:
    """A factor that the region computes, as a matrix of these sizes: its struct, and an object of it."""
    names, refs = list(op["operands"]), [v.type for v in op.operands if isinstance(v.type, RefType)]
    number = 1 + op["computed"].index(name)
    read, _ = _read(op, number)
    value = cast(kernel.Yield, op.block_body.last_op).operands[number]
    ranges = {symbol(word): (0, size - 1) for word, size in zip(("row", "i"), sizes, strict=True)}
    region = Region({argument: Place(f"in{k}") for k, argument in enumerate(read.values())}, ranges)
    result = region.element(value, reshape_index((*ranges,), sizes, prim.tensor(value).shape, ranges))
    word = prim.tensor(value).dtype
    members = [f"  const {refs[names.index(extra)].dtype.cpp}* in{k};" for k, extra in enumerate(read)]
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
    places = ", ".join(f"in{names.index(extra)}" for extra in read)
    return Tail(f"struct {title} {{\n{body}\n}};\n", f"{title}{{{places}}}")


def _read(op: Op, number: int) -> tuple[dict[str, SSAValue], list[Op]]:
    """What one of the region's values is computed from, by name, and the operations that compute it.

    A tail has all tensors of the region that no factor alone reads.
    """
    last = cast(kernel.Yield, op.block_body.last_op)
    steps = {k: kernel.computing(op.block_body, [value]) for k, value in enumerate(last.operands)}
    used = {k: {last.operands[k], *(v for step in found for v in step.operands)} for k, found in steps.items()}
    arguments = zip(kernel.read_by_region(op), op.block_body.args[1:], strict=True)
    return {op["operands"][k]: argument for k, argument in arguments if argument in used[number]}, steps[number]


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
