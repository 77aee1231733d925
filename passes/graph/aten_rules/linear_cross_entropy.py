"""A linear layer and the cross entropy of its results, chunk by chunk of rows: a library's products, and one kernel of ours between them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....ir.dialects import kernel, prim
from ....ir.dtypes import DType
from ....ir.linear_cross_entropy import NAME, pieces
from ....ir.symbols import Dim, FloorDiv, contiguous_strides, dim
from .builder import Builder, NotCovered, Result, rule


@rule(NAME.removeprefix("aten."))
def _linear_cross_entropy(b: Builder) -> Result:
    """Nothing of a chunk but its losses, its gradient and what it adds to sums is read by another one: its logits live no longer than it."""
    x, weight, target = b.tensor("input"), b.tensor("weight"), b.tensor("target")
    bias, scale = b.maybe("bias"), b.maybe("scale")
    if not b.dtype_of(x).is_float or b.dtype_of(x) != b.dtype_of(weight):
        raise NotCovered("factors of different types")
    rows, kinds = b.shape_of(x)[0], [b.dtype_of(v) for v in (x, weight, bias) if v is not None]
    if any(kind != kinds[0] for kind in kinds) or b.shape_of(weight)[0] == 0 or rows == 0:
        raise NotCovered("a bias of another type, or nothing at all")
    wanted = [result.first_use is not None for result in b.op.results]
    chunk = _Chunk(b, x, weight, bias, target, scale, wanted)
    cut = pieces(rows, b.get("chunks")) if isinstance(rows, int) else _symbolic(rows, b.get("chunks"))
    for start, size in cut:
        chunk.add(start, size)
    b.note = f"logits of {rows} rows are computed in {len(cut)} chunks, of {cut[0][1]} rows"
    return chunk.results()


def _symbolic(rows: Dim, chunks: int) -> list[tuple[Dim, Dim]]:
    """What is left over is a chunk of its own. Each begins at a multiple of 16 bytes."""
    size = dim(4 * FloorDiv(rows, 4 * chunks))
    return [*((dim(k * size), size) for k in range(chunks)), (dim(chunks * size), dim(rows - chunks * size))]


class _Chunk:
    """Adds chunk after chunk to lists of what is put together in the end, and to sums."""

    def __init__(
        self,
        b: Builder,
        x: SSAValue,
        weight: SSAValue,
        bias: SSAValue | None,
        target: SSAValue,
        scale: SSAValue | None,
        wanted: Sequence[bool],
    ) -> None:
        self.b, self.x, self.weight, self.bias, self.target, self.scale = b, x, weight, bias, target, scale
        self.wanted = [
            wanted[0],
            *(w and scale is not None for w in wanted[1:3]),
            wanted[3] and None not in (scale, bias),
        ]
        self.numbers = b.iota(b.shape_of(weight)[0])
        self.losses: list[SSAValue] = []
        self.inputs: list[SSAValue] = []
        self.weights: SSAValue | None = None
        self.biases: SSAValue | None = None

    def add(self, start: Dim, size: Dim) -> None:
        """The chunk of `size` rows from `start` on."""
        b = self.b
        column = b.add(
            prim.broadcast(self.numbers, (size, b.shape_of(self.weight)[0]), (1,))
        )  # first: the same in all kernels
        x, target = b.slice(self.x, 0, start, size), self.cut(self.target, start, size)
        narrow = self.logits(x)
        logits = b.up(narrow)
        shape, kind = b.shape_of(logits), b.dtype_of(logits)
        top = b.reduce("max", logits, (1,))
        shifted = b.ew("sub", logits, b.spread(top, shape, (1,)))
        total = b.ew("log", b.reduce("sum", b.ew("exp", shifted), (1,)))
        shares = b.ew("sub", shifted, b.spread(total, shape, (1,)))
        if self.wanted[0]:  # of logits, which are in memory, not of what is computed from them
            place = prim.tensor(logits).with_(shape=(size, 1))
            picked = b.add(prim.Gather.make([logits, b.reshape(target, (size, 1))], [place], {"dim": 1}))
            self.losses.append(b.ew("sub", total, b.ew("sub", b.reshape(picked, (size,)), top)))
        if self.scale is None or not any(self.wanted[1:]):
            return
        scale = b.spread(b.cast(self.cut(self.scale, start, size), kind), shape, (1,))
        here = b.ew("eq", column, b.add(prim.broadcast(target, shape, (0,))))
        spread = b.ew("mul", b.ew("exp", shares), scale)
        gradient = b.ew("where", here, b.ew("sub", spread, scale), spread)
        narrow = b.cast(gradient, b.dtype_of(narrow))
        if self.wanted[1]:
            self.inputs.append(self.product(narrow, self.weight, None, self.strides("weight")))
        if self.wanted[2]:
            turned = contiguous_strides(shape)[::-1]
            made = self.product(b.permute(narrow, (1, 0)), x, turned, self.strides("input"))
            self.weights = self.sum(self.weights, made, kind)
        if self.wanted[3]:
            self.biases = self.sum(self.biases, b.reduce("sum", b.up(narrow), (0,)), kind)

    def cut(self, value: SSAValue, start: Dim, size: Dim) -> SSAValue:
        """Some rows, as memory: kernels that read them at other places in the whole would not be the same for all chunks."""
        attrs = {
            "target": "aten.slice.Tensor",
            "operands": ("self",),
            "dim": 0,
            "start": start,
            "end": dim(start + size),
        }
        kind = prim.tensor(value).with_(shape=(size,))
        return self.b.add(kernel.Extern.make([value], [kind], attrs | {"step": 1}))

    def results(self) -> list[SSAValue | None]:
        b, found = self.b, list[SSAValue | None]()
        parts: list[list[SSAValue] | list[SSAValue | None]] = [self.losses, self.inputs, [self.weights], [self.biases]]
        for k, (made, wanted) in enumerate(zip(parts, self.wanted, strict=True)):
            values = [v for v in made if v is not None]
            if b.op.results[k].first_use is None:
                found.append(None)
            elif not wanted:  # it has no elements
                t = prim.tensor(b.op.results[k])
                found.append(b.full(0.0, t.shape, t.dtype))
            else:
                join = self.together if k == 0 else lambda given: b.concat(given, 0)
                found.append(b.finish(values[0] if len(values) == 1 else join(values), k))
        return found

    def together(self, losses: list[SSAValue]) -> SSAValue:
        """By the library, so that all chunks have one kernel: what follows would take part of the last one's."""
        kind = prim.tensor(losses[0]).with_(shape=self.b.shape_of(self.target))
        attrs = {"target": "aten.cat.default", "operands": tuple(f"tensors.{k}" for k in range(len(losses))), "dim": 0}
        return self.b.add(kernel.Extern.make(losses, [kind], attrs))

    def logits(self, x: SSAValue) -> SSAValue:
        weight, turned = self.b.permute(self.weight, (1, 0)), self.strides("weight")[::-1]
        bias = () if self.bias is None else (self.bias,)
        return self.product(x, weight, self.strides("input"), turned, *bias)

    def product(
        self, x: SSAValue, y: SSAValue, of_x: Sequence[Dim] | None, of_y: Sequence[Dim] | None, *bias: SSAValue
    ) -> SSAValue:
        """A call of the library, with the strides of its factors (None: contiguous)."""
        kind = prim.tensor(x).with_(shape=(self.b.shape_of(x)[0], self.b.shape_of(y)[1]))
        names = ("self", "mat1", "mat2") if bias else ("self", "mat2")
        attrs: dict[str, object] = {"target": f"aten.{'addmm' if bias else 'mm'}.default", "operands": names}
        attrs |= {"beta": 1, "alpha": 1} if bias else {}
        attrs["operand_strides"] = (*(None for _ in bias), *(None if s is None else tuple(s) for s in (of_x, of_y)))
        return self.b.add(kernel.Extern.make([*bias, x, y], [kind], attrs))

    def strides(self, name: str) -> Sequence[Dim]:
        """Those of an operand."""
        given = self.b.op.get("operand_strides")
        found = given[self.b.names.index(name)] if given else None
        return contiguous_strides(self.b.shape_of(self.b.tensor(name))) if found is None else found

    def sum(self, known: SSAValue | None, more: SSAValue, dtype: DType) -> SSAValue:
        """By the library, so that no kernel waits for the products of all chunks: `plan-buffers` lets it write where the sum is."""
        if known is None:
            return self.b.cast(more, dtype)
        attrs = {"target": "aten.add.Tensor", "operands": ("self", "other"), "alpha": 1}
        return self.b.add(kernel.Extern.make([known, more], [prim.tensor(known)], attrs))
