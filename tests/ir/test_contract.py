"""Sums of products with index maps: interpreter and loops give what torch gives; maps that lead astray are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.utils.exceptions import VerifyException

from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline
from tests.ladder import schedule

CONV = "[[d0, d4, 2*d2 + d5 - 1, 2*d3 + d6 - 1], [d1, d4, d5, d6]]"


def contraction(a: Tensor, b: Tensor, attributes: str, shape: tuple[int, ...], choice: str = "") -> str:
    """A program of one kernel around one contraction."""
    x, w = (f"!prim.tensor<{list(t.shape)}, f32>" for t in (a, b))
    y = f"!prim.tensor<{list(shape)}, f32>"
    return f"""builtin.module {{
  prim.func @main() {{arg_names = ["x", "w"]}} ({{
  ^bb0(%x: {x}, %w: {w}):
    %y = kernel.contract(%x, %w) {choice} ({{
    ^bb0(%a: {x}, %b: {w}):
      %0 = prim.contract(%a, %b) {{{attributes}}} : {y}
      kernel.yield(%0)
    }}) : {y}
    prim.return(%y)
  }})
}}"""


x, w = torch.randn(2, 3, 8, 7), torch.randn(5, 3, 3, 3)
a, b = torch.randn(2, 4, 6), torch.randn(2, 5, 6)
CASES = {
    "batched": (a, b, "maps = [[d0, d1, d3], [d0, d2, d3]], reduced = [6]", a @ b.mT),
    "convolution": (x, w, f"maps = {CONV}, reduced = [3, 3, 3], padded = true", F.conv2d(x, w, stride=2, padding=1)),
    "depthwise": (
        x,
        w[:3, 0],
        "maps = [[d0, d1, d2 + d4, d3 + d5], [d1, d4, d5]], reduced = [3, 3]",
        F.conv2d(x, w[:3, :1], groups=3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    left, right, attributes, expected = CASES[name]
    module = parse_module(contraction(left, right, attributes, tuple(expected.shape)))
    module.verify()
    args = [left.contiguous(), right.contiguous()]
    torch.testing.assert_close(run(module, args)[0], expected, rtol=1e-5, atol=1e-5)
    schedule(module)
    module.verify()
    torch.testing.assert_close(run(module, args)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gpu", [False, True])
def test_all_levels(gpu: bool) -> None:
    """From tensor algebra to loops, on both roads: with a prologue, an epilogue, and a reduction that stays behind."""
    module = parse_module((Path(__file__).parents[1] / "passes" / "fuse" / "contraction.ir").read_text())
    args = [torch.randn(s) for s in ((20, 24), (12, 24), (24,), (12, 5))]
    t = torch.tanh((args[0] * args[2]) @ args[1].T)
    if gpu:
        retarget(module, "cuda:0")
    for item in [None, *default_pipeline(gpu=gpu)]:
        if item is not None and item.level != "aten":
            item.apply(CompileContext(), module)
            module.verify()
        for found, expected in zip(run(module, args), (t, t.amax(1), t @ args[3]), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "choice", "reason"),
    [
        (f"maps = {CONV}, reduced = [3, 3, 3]", "", "may lie outside"),
        ("maps = [[d0, d4, d2, d3], [d1, d4]], reduced = [3, 3, 3], padded = true", "", "is none of"),
        ("maps = [[0, 0, 0, 0], [0, 0, 0, 0]], reduced = [3]", "", "no operand depends on"),
        (f"maps = {CONV}, reduced = [3, 3, 3], padded = true", '{choice = "fast"}', "choice"),
        (f"maps = {CONV.replace('d6', 's9')}, reduced = [3, 3], padded = true", "", "s9"),
    ],
)
def test_refused(attributes: str, choice: str, reason: str) -> None:
    with pytest.raises(VerifyException, match=reason):
        parse_module(contraction(x, w, attributes, (2, 5, 4, 4), choice)).verify()


def test_the_choice_of_a_call() -> None:
    """What a product was left to the library by is one of the choices there are, and changes no result."""
    kind = "!prim.tensor<[2, 2], f32>"
    text = f"prim.func @main() {{symbols = []}} ({{\n^bb0(%x: {kind}):\n %y = kernel.extern<aten.mm.default>(%x, %x) "
    text += f'{{operands = ["self", "mat2"], choice = "library", why = "a batch"}} : {kind}\n prim.return(%y)\n}})\n'
    module, a = parse_module(text), torch.randn(2, 2)
    module.verify()
    torch.testing.assert_close(run(module, [a])[0], a @ a)
    with pytest.raises(VerifyException, match="'choice' is library"):
        parse_module(text.replace('"library"', '"fast"')).verify()
