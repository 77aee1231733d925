"""What a program does to the scores of an attention, element by element, as the region of one call.

    softmax(f(q k^T)) v    with f of a score, its batch entry, head, row and key, and of other tensors

An operation on scores is in the region; what else it reads is memory, but for numbers, positions, views, and masks that
are cheaper to compute for each score than to read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from xdsl.ir import Region, SSAValue

from ....ir.dialects import kernel, prim
from ....ir.syntax import Op, single_block
from .find import Products

CHEAP = 8  # simple instructions for a number that is computed for each score: about what reading it from the last cache costs


@dataclass
class ScoreRegion:
    """The operations on the scores in front of a softmax, with what they read."""

    found: Products
    inside: dict[Op, None] = field(default_factory=dict)  # in order
    memory: dict[SSAValue, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = set(self.found.steps)
        for op in self.found.steps:
            for value in op.operands:
                if value.owner not in (*steps, self.found.first):
                    self._read(value)
            self.inside[op] = None

    def _read(self, value: SSAValue) -> None:
        """Take in what makes a value, as far as that costs little, and read the rest."""
        ops: dict[Op, None] = {}
        memory: dict[SSAValue, None] = {}
        rows, keys = self.found.shape[2:]

        def walk(value: SSAValue) -> float:
            op = value.owner
            whole = prim.tensor(value).shape[-2:] == (rows, keys)
            cost = 0.0
            if isinstance(op, prim.Elementwise) and whole:
                cost = op.row.cost
            elif not isinstance(op, prim.Broadcast | prim.Permute | prim.Cast | prim.Reshape | prim.Full | prim.Iota):
                memory[value] = None
                return 0.0
            if op not in ops:
                cost += sum(map(walk, op.operands))
                ops[cast(Op, op)] = None
            return cost

        if walk(value) <= CHEAP:
            self.inside |= ops
            self.memory |= memory
        else:
            self.memory[value] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operands that the region reads."""
        return tuple(f"{kernel.PREFIX}{k}" for k in range(len(self.memory)))

    def region(self) -> Region:
        """From the scores (batch, head, row, key) to what the softmax takes, in that shape."""
        product, shape = self.found.first.results[0], self.found.shape
        scores = prim.tensor(product).with_(shape=shape)
        made = single_block(arg_types=[scores, *(v.type for v in self.memory)])
        block = made.block
        inner: dict[SSAValue, SSAValue] = dict(zip(self.memory, block.args[1:], strict=True))
        for op in self.inside:
            if isinstance(op, prim.Reshape) and op.operands[0] is product and op.type.shape == shape:
                inner[op.results[0]] = block.args[0]
                continue
            if product in op.operands and product not in inner:
                inner[product] = block.args[0]
                if prim.tensor(product).shape != shape:
                    block.add_op(view := prim.reshape(block.args[0], prim.tensor(product).shape))
                    inner[product] = view.results[0]
            copy = op.clone(inner)
            copy.attributes.pop("strides", None)
            block.add_op(copy)
            inner |= dict(zip(op.results, copy.results, strict=True))
        last = inner[self.found.steps[-1].results[0]]
        if prim.tensor(last).shape != shape:
            block.add_op(back := prim.reshape(last, shape))
            last = back.results[0]
        block.add_op(kernel.Yield.make([last]))
        return made
