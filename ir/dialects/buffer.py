"""`buffer`: where each value lives. The function's body is now the host program, one operation a step.

%a = buffer.alloc() {pool = "arena", offset = 0} : !buffer.ref<[s0, 768], [768, 1], f32>
buffer.launch @k0(%arg0, %a)
%v = buffer.view(%a) {offset = 0} : !buffer.ref<[768, s0], [1, 768], f32>
%r = buffer.extern<aten.mm.default>(%v, %w) {operands = ["self", "mat2"], ...} : !buffer.ref<...>
buffer.free(%r)
"""

from __future__ import annotations

from xdsl.utils.exceptions import VerifyException

from ..syntax import Op
from . import prim
from .kernel import Yield, check_contraction, product_of

POOLS = ("arena", "device", "output")


class Alloc(Op):
    """Memory for one value. `pool`: "output" (a new tensor that the user receives), "device" (a new tensor for as long as the
    value is needed: on a GPU, whose library keeps freed memory for the next one, and for large values of a training step on a CPU)
    or "arena" (a place at byte `offset` of the one block that a call works in). `in_place = true`: the place holds an input of the kernel that is launched next, which
    overwrites it element by element."""

    name = "buffer.alloc"
    arity = 0
    required = ("pool",)
    is_pure = False

    def check(self) -> None:
        if self["pool"] not in POOLS:
            raise VerifyException(f"buffer.alloc: unknown pool '{self['pool']}'; known: {', '.join(POOLS)}")


class View(Op):
    """The same memory under the result's sizes and strides, starting `offset` elements further."""

    name = "buffer.view"
    arity = 1
    required = ("offset",)


class Launch(Op):
    """Run a kernel on memory: its inputs, then its outputs."""

    name = "buffer.launch"
    at = "kernel"
    arity = None
    outputs = 0
    required = ("kernel",)
    is_pure = False


class Extern(Op):
    """A library call. Its results are memory that the library owns, or, with `out = true`, the operands behind the named ones are written.

    A result that may be memory of an operand, by the operator's schema, keeps it alive.
    `own`: the kernel of our own that carries it out, with `out = true`.
    A region is as on `kernel.extern`.
    """

    name = "buffer.extern"
    may_have_body = True
    angle = "target"
    arity = None
    outputs = None
    required = ("target", "operands")
    is_pure = False


class Contract(Op):
    """A contraction, as `kernel.contract` is one, that a microkernel carries out on memory: its operands, then the result."""

    name = "buffer.contract"
    has_body = True
    arity = None
    outputs = 0
    required = ("choice",)
    is_pure = False

    def check(self) -> None:
        last = self.block_body.last_op
        if (
            len(self.block_body.args) + 1 != len(self.operands)
            or not isinstance(last, Yield)
            or len(last.operands) != 1
        ):
            raise VerifyException("buffer.contract: the region takes the operands but the last, and gives one value")
        check_contraction(self)

    @property
    def product(self) -> prim.Contract:
        """The sums of products."""
        return product_of(self)


class Copy(Op):
    """Copy operand 0 into operand 1, element by element (a mutation of the user's tensor)."""

    name = "buffer.copy"
    arity = 2
    outputs = 0
    is_pure = False


class Free(Op):
    """The value is not needed any more: memory of a library, or of a GPU, is given back."""

    name = "buffer.free"
    arity = 1
    outputs = 0
    is_pure = False


OPS = (Alloc, View, Launch, Extern, Contract, Copy, Free)
