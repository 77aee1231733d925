"""Embedding bags: the largest of some rows of a table is a gather and a reduction on a CPU, where bags have one length.

Sums and means stay with the library, whose kernel for them takes half the time of such a loop, and so do bags whose lengths are known in the call
alone. Its maxima take 3 to 9 times as long.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.dtypes import BOOL, I32, I64
from ...ir.scalars import identity
from ...ir.symbols import Dim, dim, known_equal
from ...ir.types import CPU
from .builder import Builder, NotCovered, Result, rule

MAX = 2


@rule("_embedding_bag_forward_only.default", "_embedding_bag.default")
def _embedding_bag(b: Builder) -> Result:
    """take, then the largest over the length of a bag: what `nn.EmbeddingBag` does for indices of two dimensions."""
    if any(r.uses for r in list(b.op.results)[1:]):
        raise NotCovered("what its gradient needs")
    if b.get("mode", 0) != MAX or b.type.device != CPU:
        raise NotCovered("what the library does as fast")
    weight, indices = b.tensor("weight"), b.tensor("indices")
    if b.dtype_of(indices) not in (I32, I64) or not b.type.dtype.is_float:
        raise NotCovered("a table of no floats, or an index that is not int32 or int64")
    bags, width = b.type.shape
    length = _length(b, b.tensor("offsets"), b.shape_of(indices)[0], bags)
    taken = prim.tensor(weight).with_(shape=(bags, length, width))
    index, wide = b.reshape(indices, (bags, length)), b.type.dtype.compute
    rows = b.cast(b.add(prim.Take.make([weight, index], [taken], {"dim": 0})), wide)
    padding = b.get("padding_idx", -1)
    if padding < 0:
        return [b.finish(b.reduce("max", rows, (1,))), None, None, None]
    kept = b.ew("ne", index, padding)
    each = b.to_shape(b.reshape(kept, (bags, length, 1)), taken.shape)
    most = b.reduce("max", b.ew("where", each, rows, b.full(identity("max", wide), taken.shape, wide)), (1,))
    some = b.reshape(b.reduce("any", b.cast(kept, BOOL), (1,)), (bags, 1))
    most = b.ew("where", b.to_shape(some, b.type.shape), most, b.full(0.0, None, wide))
    return [b.finish(most), None, None, None]


def _length(b: Builder, offsets: SSAValue, count: Dim, bags: Dim) -> int:
    """The length of each bag, where they begin at 0, n, 2n ...

    Raises:
        NotCovered: they are known in the call alone.
    """
    made = offsets.owner
    if b.get("include_last_offset") or not isinstance(made, prim.Iota) or made["start"] != 0:
        raise NotCovered("bags whose lengths are known in the call alone")
    length = made["step"]
    if not isinstance(length, int) or length < 1 or not known_equal(dim(bags * length), count):
        raise NotCovered("bags of unequal lengths")
    return length
