"""What a library call has to do: the bytes that it reads and writes, and the operations of its products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ..ir.dialects import buffer
from ..ir.dtypes import DType
from ..ir.symbols import Dim, dim
from ..ir.types import RefType
from ..passes.analysis.aliases import makes_memory


@dataclass(frozen=True)
class CallFacts:
    """Facts of one `buffer.extern`, `buffer.contract` or `buffer.copy`; what depends on sizes that change is an expression in their symbols.

    Attributes:
        read, written: bytes of memory, each element counted once.
        products: multiplications and additions of products of matrices; 0 for calls that have none.
        dtype: the type that these are done in.
    """

    read: Dim
    written: Dim
    products: Dim = 0
    dtype: DType | None = None


def call_facts(op: buffer.Extern | buffer.Contract | buffer.Copy) -> CallFacts:
    """The facts of a call, by its operator and the sizes of its operands."""
    if isinstance(op, buffer.Copy):
        return CallFacts(_bytes(op.operands[0]), _bytes(op.operands[1]))
    if isinstance(op, buffer.Contract):
        *given, result = op.operands
        count = dim(2 * math.prod(op.product.sizes))
        return CallFacts(dim(sum(map(_bytes, given))), _bytes(result), count, _ref(result).dtype)
    if not makes_memory(op):  # a view
        return CallFacts(0, 0)
    operands = list(op.operands)
    count = len(op["operands"])
    operands, results = operands[:count], operands[count:] if op.get("out") else list(op.results)
    written = dim(sum(map(_bytes, results)))
    names = dict(zip(op["operands"], operands, strict=True))
    table = _TABLES.get(op["target"])
    read = sum(_bytes(v) for v in dict.fromkeys(v for name, v in names.items() if name != table))
    if table in names:  # as many rows as are asked for
        read += written
    formula = _PRODUCTS.get(op["target"])
    if formula is None or not results:
        return CallFacts(dim(read), written)
    products = formula(op, {name: _ref(v) for name, v in names.items()}, _ref(results[0]))
    return CallFacts(dim(read), written, products, _ref(operands[0]).dtype if products != 0 else None)


def _ref(value: SSAValue) -> RefType:
    assert isinstance(value.type, RefType)
    return value.type


def _bytes(value: SSAValue) -> Dim:
    ref = _ref(value)
    sizes = zip(ref.shape, ref.strides, strict=True)
    return dim(math.prod(size for size, stride in sizes if stride != 0) * ref.dtype.bytes)


# The operand of which a call reads only what its other operands ask for.
_TABLES = {
    "aten.embedding.default": "weight",
    "aten.index.Tensor": "self",
    "aten.index_select.default": "self",
    "aten.gather.default": "self",
    "aten._embedding_bag.default": "weight",
    "aten._embedding_bag_forward_only.default": "weight",
}

_Formula = Callable[[buffer.Extern, dict[str, RefType], RefType], Dim]


def _inner(name: str) -> _Formula:
    """A product of matrices: the last size of an operand is what is summed over."""
    return lambda op, given, result: dim(2 * math.prod(result.shape) * given[name].shape[-1])


def _convolution(op: buffer.Extern, given: dict[str, RefType], result: RefType) -> Dim:
    """Each output is a sum over a window of the input channels of its group; transposed, each input is spread over one."""
    weight = op.get("packed") or given["weight"].shape
    transposed = bool(op.get("transposed"))
    points = math.prod(given["input"].shape if transposed else result.shape)
    return dim(2 * points * math.prod(weight[1:]))


def _attention(op: buffer.Extern, given: dict[str, RefType], result: RefType) -> Dim:
    """Scores and their sum over the values; under the diagonal alone where it is causal."""
    query, key, value = (given[name].shape for name in ("query", "key", "value"))
    both = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return dim(both // 2 if op.get("is_causal") and isinstance(both, int) else both)


def _convolution_backward(op: buffer.Extern, given: dict[str, RefType], result: RefType) -> Dim:
    """As many products as the convolution itself has, for the input and for the weight."""
    wanted = sum(map(bool, op.get("output_mask", (True, True, False))[:2]))
    points = math.prod(given["input"].shape if op.get("transposed") else given["grad_output"].shape)
    return dim(2 * wanted * points * math.prod(given["weight"].shape[1:]))


_PRODUCTS: dict[str, _Formula] = {
    "aten.mm.default": _inner("self"),
    "aten.bmm.default": _inner("self"),
    "aten.mv.default": _inner("self"),
    "aten.dot.default": _inner("self"),
    "aten.addmm.default": _inner("mat1"),
    "aten._addmm_activation.default": _inner("mat1"),
    "aten.addmv.default": _inner("mat"),
    "aten.baddbmm.default": _inner("batch1"),
    "aten.linear.default": _inner("input"),
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._scaled_dot_product_flash_attention.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_efficient_attention.default": _attention,
    "aten._scaled_dot_product_cudnn_attention.default": _attention,
}
