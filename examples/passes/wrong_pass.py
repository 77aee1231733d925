"""A pass with a mistake, for docs/passes-opt.md: `passes-opt --check-each` names it."""

from dataclasses import dataclass

from intarsia.extend import Pass


@dataclass(frozen=True)
class Wrong(Pass):
    """Turn subtractions around."""

    name = "wrong"
    level = "prim"
    after = ("dce",)
    before = ("fuse",)

    def apply(self, ctx, module):
        for op in module.walk():
            if op.name == "prim.sub":
                op.operands = op.operands[::-1]
