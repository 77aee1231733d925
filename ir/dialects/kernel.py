"""`kernel`: what runs together.

    %2 = kernel.fused(%0, %1) ({ ^bb0(%a: ..., %b: ...): ... kernel.yield(%o) }) : !prim.tensor<...>
    %2 = kernel.contract(%x, %w) {choice = ...} ({ ... prim.contract(%a, %b) ... kernel.yield(%o) }) : !prim.tensor<...>
    %3 = kernel.extern<aten.addmm.default>(%b, %x, %w) {operands = ["self", "mat1", "mat2"], ...} : !prim.tensor<...>

At this level the function holds kernels, `prim` views between them that cost nothing (reshape, permute, slice, broadcast
of memory), and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from xdsl.ir import Block, OpTraits, SSAValue
from xdsl.traits import IsolatedFromAbove, IsTerminator
from xdsl.utils.exceptions import VerifyException

from ..binding import check_late
from ..literals import print_literal
from ..syntax import Op
from . import prim
from .aten import check_canonical

PREFIX = "epilogue."  # of the operands that the region of a library call reads
ATTENTION = "aten.scaled_dot_product_attention.default"
ATTENTION_ATTRIBUTES = {"empty_rows": ("nan", "none"), "backend": ("cudnn", "flash", "efficient", "any")}


class Fused(Op):
    """One kernel: a region of `prim` operations over the operands, each yielded value stored.

    `strides`: one entry a result, eager's strides in elements or none for contiguous.
    """

    name = "kernel.fused"
    has_body = True
    arity = None
    outputs = None
    traits = OpTraits(lambda: (IsolatedFromAbove(),))

    def check(self) -> None:
        block = self.block_body
        if [a.type for a in block.args] != [v.type for v in self.operands]:
            raise VerifyException(f"{self.name}: the block's arguments differ from the operands")
        last = block.last_op
        if not isinstance(last, Yield) or [v.type for v in last.operands] != [r.type for r in self.results]:
            raise VerifyException(f"{self.name}: the region must end in kernel.yield of the results")


class Contract(Fused):
    """A kernel around one `prim.contract`, with what its operands are computed by and what is computed from it.

    Before it stands the prologue, behind it the epilogue: operations on single elements; nothing else is reduced.
    `choice`: how the sums are carried out, once that is decided: "tile 128x128x64x8x3x1" by tiles of a GPU (rows x
    columns x inner size x warps x stages x chunks of the inner size, and x most programs); "registers 14x32" by a
    microkernel of a CPU, with that many rows and columns of sums in registers. `why`: the reason, for the reader.
    """

    name = "kernel.contract"

    def check(self) -> None:
        super().check()
        check_contraction(self)

    @property
    def product(self) -> prim.Contract:
        """The sums of products."""
        return product_of(self)

    @property
    def in_registers(self) -> bool:
        """Whether a microkernel of a CPU carries it out."""
        return bool(self.get("choice", "").startswith("registers"))


CHOICE = re.compile(r"tile \d+(x\d+){5,6}|registers \d+x\d+")


def check_contraction(op: Op) -> None:
    """The region of a contraction has one `prim.contract`, and its choice is known."""
    joins = [inner for inner in op.block_body.ops if isinstance(inner, (*prim.JOINS, prim.Scan))]
    if len(joins) != 1 or not isinstance(joins[0], prim.Contract):
        raise VerifyException(f"{op.name}: the region has one prim.contract, and nothing else is reduced in it")
    if "choice" in op.attributes and not (isinstance(op["choice"], str) and CHOICE.fullmatch(op["choice"])):
        raise VerifyException(f"{op.name}: the choice {print_literal(op['choice'])} is not known")


def product_of(op: Op) -> prim.Contract:
    """The sums of products of a contraction."""
    return next(inner for inner in op.block_body.ops if isinstance(inner, prim.Contract))


class Yield(Op):
    """Ends a kernel's region; its operands are the kernel's results."""

    name = "kernel.yield"
    outputs = 0
    is_pure = False
    traits = OpTraits(lambda: (IsTerminator(),))


class Extern(Op):
    """A library call: an operator of ATen (`target`), with the strides it is given and gives, as eager has them.

    Arguments are written as on `aten` operations; those that have a default may be left out, but for those of windows. `operand_strides` and `strides`: one entry an operand or result (none: contiguous).
    A region is what a kernel of our own computes from the operator's result, its first argument, and from the operands
    `epilogue.0`, ...
    That of an attention computes what the softmax takes, from the scores (batch, head, row, key), its first argument.
    `own`: the kernel of our own that carries out the call (passes/kernels/own_kernels.py); it reads any view and writes planned memory.
    `empty_rows`: attention that stands for two products with a softmax between them (match-attention) gives nan, not zeros,
    where a row has no score above -inf: "nan" where masks may shut such rows, "none" where they are known to leave
    something open.
    `choice`: a product on a GPU that was left to the library (passes/kernels/choose_products.py): "library". `why`: the
    reason, for the reader.
    `backend`: the library's kernel that carries out an attention on a GPU (passes/kernels/attention.py).
    """

    name = "kernel.extern"
    angle = "target"
    arity = None
    outputs = None
    may_have_body = True
    required = ("target", "operands")

    def check(self) -> None:
        if self.regions:
            check_region(self)
            if self["target"] == ATTENTION and not self.get("own"):
                raise VerifyException(f"{self.name}: only a kernel of our own carries out what happens to scores")
        if len(self["operands"]) != len(self.operands):
            raise VerifyException(f"{self.name} names {len(self['operands'])} operands but has {len(self.operands)}")
        check_canonical(self, self["target"], whole=False)
        check_late(self)
        if self.get("choice", "library") != "library" or not isinstance(self.get("why", ""), str):
            raise VerifyException(f"{self.name}: 'choice' is library, and 'why' a text")
        for name, values in ATTENTION_ATTRIBUTES.items():
            given = self.get(name)
            if given is not None and (self["target"] != ATTENTION or given not in values):
                raise VerifyException(f"{self.name}: '{name}' is one of {', '.join(values)}, of {ATTENTION} only")


def read_by_region(op: Op) -> list[int]:
    """Which operands of a library call its region reads."""
    return [k for k, name in enumerate(op["operands"]) if name.startswith(PREFIX)]


def computing(block: Block, values: Iterable[SSAValue], behind: Op | None = None) -> list[Op]:
    """The operations of a block that these values are computed by, in order; `behind`: from the results of this one on."""
    wanted = set(values)
    found: list[Op] = []
    for op in reversed(list(block.ops)):
        if op is not behind and any(result in wanted for result in op.results):
            wanted.update(op.operands)
            found.append(cast(Op, op))
    return found[::-1]


def check_region(op: Op) -> None:
    """The region of a library call goes on with its result, and reads the operands that are named for it."""
    read, last = len(read_by_region(op)), op.block_body.last_op
    if len(op.block_body.args) != 1 + read or not isinstance(last, Yield) or len(last.operands) != 1:
        raise VerifyException(f"{op.name}: the region takes the result and {read} operands, and gives one value")


OPS = (Fused, Contract, Yield, Extern)
