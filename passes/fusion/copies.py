"""Reshapes of a value whose contiguous copy is stored anyway read that copy.

    %y = prim.reshape(%x), read by a library          %y = prim.reshape(%x)
    %z = prim.reshape(%x), read by kernels      =>    %z = prim.reshape(%y)

Where %x is a permutation of what kernels compute, %y has memory of its own; what %x is made of is then not stored for %z alone.
"""

from __future__ import annotations

from xdsl.ir import Block

from ...ir.dialects import prim
from ...ir.symbols import contiguous_strides
from ..analysis.strides import is_view, same_layout
from .graph import Graph, is_free


def read_from_copies(graph: Graph) -> bool:
    """Change the function; whether it was changed, and the graph has to be built again."""
    changed = False
    for op, strides in graph.materialised.items():
        if not isinstance(op, prim.Reshape) or not _is_computed(op):
            continue
        shape, block = prim.tensor(op.results[0]).shape, op.parent
        if block is None or not same_layout(shape, strides, contiguous_strides(shape)):
            continue
        others = [use.operation for use in op.operands[0].uses if use.operation.parent is block]
        for other in others:
            if not isinstance(other, prim.Reshape) or other is op or other in graph.materialised:
                continue
            if other.is_before_in_block(op):
                op.detach()
                block.insert_op_before(op, other)
            other.operands[0] = op.results[0]
            changed = True
    return changed


def _is_computed(op: prim.Reshape) -> bool:
    """Whether what an operation is a view of is computed by kernels."""
    at = op.operands[0].owner
    while is_view(at):
        at = at.operands[0].owner  # type: ignore[union-attr]
    return not isinstance(at, Block) and isinstance(at, prim.PrimOp) and not is_free(at)
