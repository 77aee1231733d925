"""The forms of loops: each is a choice of `choose-forms`, and a kernel without it computes the same with its own loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import intarsia
from intarsia.ir.dialects import loop
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.manager import registered

PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "blocked_scan": (lambda x: x.cumsum(1), "im::scan<"),
    "extreme": (lambda x: x.max(1), " = im::max(extreme"),
    "arg_rows": (lambda x: x.argmax(0), "im::arg_rows<"),
    "transpose": (lambda x: x.t().contiguous() * 2 + x.t().exp(), "im::transpose("),
    "near_angles": (lambda x: x.tanh().sin(), "sin_small("),
    "measured_angles": (lambda x: x.sin() + x.cos(), "im::is_far("),
}


@dataclass(frozen=True)
class OwnLoops(Pass):
    """Take the forms from all loops."""

    name: ClassVar[str] = "own-loops"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("choose-forms",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Change all loops in place."""
        for op in module.walk():
            if isinstance(op, loop.For):
                op.attributes.pop("form", None)


@pytest.mark.parametrize("form", PROGRAMS)
def test_own_loops(form: str) -> None:
    fn, text = PROGRAMS[form]
    torch.manual_seed(0)
    x = torch.randn(600, 1200)
    assert text in intarsia.lower(fn, x).source()
    torch.testing.assert_close(intarsia.compile(fn, fullgraph=True)(x), fn(x), rtol=1e-4, atol=1e-3)
    with registered(OwnLoops):
        assert text not in intarsia.lower(fn, x).source()
        torch.testing.assert_close(intarsia.compile(fn, fullgraph=True)(x), fn(x), rtol=1e-4, atol=1e-3)
