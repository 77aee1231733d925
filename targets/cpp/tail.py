"""What happens to a sum on its way to memory, as C++: a struct for the `Tail` of targets/cpp/include/intarsia_tail.h."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import DType
from ...ir.epilogue import PREFIX
from ...ir.syntax import Op
from ...ir.types import RefType
from .text import cpp_cast, cpp_constant, scalar_text

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
    extras = [name for name in names if name == bias or name.startswith(PREFIX)]
    kinds = [refs[names.index(name)].dtype.cpp for name in extras]
    words, lines, value = ["tail"], [], "sum"
    if bias in extras:
        words.append("bias")
        lines.append(f"const float v = sum + float(static_cast<const {kinds[0]}*>(in[0])[column]);")
        value = "v"
    if op.regions:
        region = _Region(op.block_body, value, kinds[bias in extras :], bias in extras, refs[-1].shape)
        lines, value = lines + region.lines, region.result
        words += region.words[:MOST_WORDS]
    head = "  IM_FN_MEMBER static float of(float sum, const void* const* in, int64_t at, int64_t column) {"
    void = "    (void)in, (void)at, (void)column;"
    body = "\n".join([head, void, *(f"    {line}" for line in lines), f"    return {value};", "  }"])
    name = "_".join([*words, hashlib.sha256(body.encode()).hexdigest()[:6]])
    word = refs[-1].dtype.cpp
    places = ", ".join(f"in{names.index(extra)}" for extra in extras)
    statement = f"  const im::Tail<{word}> tail{{&im::finish<{name}, {word}>, out0, {columns}, {{{places}}}}};"
    return Tail(f"struct {name} {{\n{body}\n}};\n", statement)


class _Region:
    """The statements of a region of operations on single elements. Half types are float until they are stored."""

    def __init__(self, block: Block, value: str, kinds: Sequence[str], first: int, shape: Sequence[object]) -> None:
        self.lines: list[str] = []
        self.words: list[str] = []
        self.names: dict[SSAValue, str] = {block.args[0]: value}
        for k, (argument, kind) in enumerate(zip(block.args[1:], kinds, strict=True)):
            t = prim.tensor(argument)
            place = "0" if t.rank == 0 else "at" if t.shape == tuple(shape) else "column"
            text = f"static_cast<const {kind}*>(in[{first + k}])[{place}]"
            self._bind(argument, f"float({text})" if _held(t.dtype) != t.dtype else text)
        for op in block.ops:
            assert isinstance(op, Op)
            if isinstance(op, kernel.Yield):
                self.result = self.names[op.operands[0]]
            elif isinstance(op, prim.Full):
                self.names[op.results[0]] = cpp_constant(op["value"], _held(op.type.dtype))
            elif isinstance(op, prim.Broadcast):
                self.names[op.results[0]] = self.names[op.operands[0]]
            elif isinstance(op, prim.Cast):
                self._cast(op)
            else:
                assert isinstance(op, prim.Elementwise)
                self.words.append(op.row.name)
                bound = op.operands[-1].owner  # nan stays nan: the comparison is false
                known = isinstance(bound, prim.Full) and op.type.dtype.is_float and bound["value"] == bound["value"]
                text = _BOUNDS[op.row.name] if known and op.row.name in _BOUNDS else scalar_text(op.row, op.type.dtype)
                self._bind(op.results[0], text.format(*(self.names[v] for v in op.operands)))

    def _cast(self, op: prim.Cast) -> None:
        (value,), dtype = op.operands, op.type.dtype
        source = prim.tensor(value).dtype
        text = cpp_cast(self.names[value], _held(source), _held(dtype))
        if op.get("rounds") and dtype != _held(dtype):
            text = f"float({cpp_cast(text, _held(dtype), dtype)})"
        self._bind(op.results[0], text)

    def _bind(self, value: SSAValue, text: str) -> None:
        if text.isidentifier():
            self.names[value] = text
            return
        self.names[value] = f"t{len(self.names)}"
        self.lines.append(f"const {_held(prim.tensor(value).dtype).cpp} {self.names[value]} = {text};")


def _held(dtype: DType) -> DType:
    """The type in which a register holds numbers of a type."""
    return dtype.compute
