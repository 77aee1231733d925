"""A first pass: the root of a square is the absolute value."""

from dataclasses import dataclass

from intarsia.extend import Pass, apply_rules, prim, producer

Sqrt, Mul, Abs = prim.ELEMENTWISE["sqrt"], prim.ELEMENTWISE["mul"], prim.ELEMENTWISE["abs"]


def root_of_square(op):
    """sqrt(x * x) -> abs(x), which does not overflow"""
    square = producer(op.operands[0], Mul)
    if square is None or square.operands[0] is not square.operands[1]:
        return None
    return Abs.make([square.operands[0]], [op.results[0].type])


@dataclass(frozen=True)
class RootOfSquare(Pass):
    """Replace the root of a square by an absolute value."""

    name = "root-of-square"
    level = "prim"
    after = ("canonicalize",)
    before = ("fuse",)

    def apply(self, ctx, module):
        ctx.diagnostics.count(self.name, "roots", apply_rules(module, {Sqrt.name: (root_of_square,)}))
