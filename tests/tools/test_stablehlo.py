"""`--emit stablehlo`: XLA verifies the text, runs it, and gives what the interpreter gives; what is refused is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from xla_runner import run_in_xla

import intarsia
from intarsia.exchange.errors import ExchangeError
from intarsia.exchange.to_stablehlo import stablehlo
from intarsia.ir.interpreter.run import run
from intarsia.ir.syntax import location
from intarsia.ir.text import parse_module, print_module
from intarsia.tools.opt.main import main

X = torch.linspace(-3, 3, 32).reshape(4, 8)
NAN = X.clone().index_put_((torch.tensor([1, 1, 2]), torch.tensor([3, 5, 0])), torch.tensor(float("nan")))
IMAGES = torch.linspace(-1, 1, 2 * 4 * 64).reshape(2, 4, 8, 8).sin()
W, V = torch.linspace(-1, 1, 72).reshape(4, 2, 3, 3).cos(), torch.linspace(-1, 1, 108).reshape(4, 3, 3, 3).cos()
HEADS = torch.linspace(-2, 2, 64).reshape(1, 2, 4, 8).sin()


def attention(q: Any) -> Any:
    shut = F.scaled_dot_product_attention(q, q, q, attn_mask=q[..., :4] > 0)  # rows with nothing open among them
    return F.scaled_dot_product_attention(q, q, q, is_causal=True), shut


PROGRAMS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "norms": (lambda x: (F.layer_norm(x, (8,)), torch.softmax(x, -1), x.var(0), x.to(torch.bfloat16) * 3), X),
    "scalars": (
        lambda x: (
            x % 0.7,
            x // 0.3,
            x.fmod(0.4),
            x.sign(),
            x.trunc(),
            x.copysign(-x),
            x.exp2(),
            x.abs().log2(),
            x.isinf(),
        ),
        NAN,
    ),
    "functions": (lambda x: (x.erf(), x.sinh(), x.atan(), x.lgamma(), x.erfc(), F.gelu(x), torch.tan(x)), X),
    "integers": (
        lambda x: (
            x % 3,
            x.sign(),
            torch.bitwise_left_shift(x, 2),
            torch.bitwise_right_shift(x, 1),
            torch.bitwise_right_shift(x, 40),
            x.abs(),
            ~x,
            x.sum(),
        ),
        X.int(),
    ),
    "views": (lambda x: (x[:, 1:1], x[1:, ::3].t(), x.flip(0), F.pad(x, (-1, 2), value=3.0), torch.cat([x, x])), X),
    "places": (
        lambda x: (x[torch.tensor([0, -1])], x.gather(1, (x > 0).long()[:3]), x[:, torch.tensor([[1, 2], [3, -2]])]),
        X,
    ),
    "writes": (lambda x: (x.scatter(1, (x > 0).long()[:, :1], x), x.index_add(0, torch.tensor([2, 0]), x[:2])), X),
    "extremes": (lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.amax(1), (x > 0).any(1)), NAN),
    "running": (lambda x: (x.cumsum(1), x.cumprod(0), x.cummax(1)[0]), NAN),
    "sorts": (lambda x: (*x.sort(1), *x.sort(0, descending=True), x.topk(2)[0]), NAN),
    "products": (lambda x: (x @ x.t(), F.linear(x, x, x[:, 0]), torch.addmm(x[:, :4], x, x.t(), beta=2, alpha=0.5)), X),
    "windows": (lambda i: (F.max_pool2d(i, 2), F.avg_pool2d(i, 3, 2, 1), F.interpolate(i, scale_factor=1.5)), IMAGES),
    "convolutions": (lambda i: (F.conv2d(i, W, groups=2, dilation=2), F.conv2d(i, i[:, :, :3, :2], stride=2)), IMAGES),
    "transposed": (lambda i: F.conv_transpose2d(i, V, V[0, 0, 0].repeat(2), 2, 1, 1, groups=2, dilation=2), IMAGES),
    "attention": (attention, HEADS),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_xla_gives_what_the_interpreter_gives(name: str) -> None:
    program, x = PROGRAMS[name]
    with torch.no_grad():
        low = intarsia.lower(program, x)
    for level in ("aten", "prim", "kernel") if name in ("norms", "products") else ("aten",):
        module = parse_module(low.ir(level))
        args = [*low.inputs(x), *low.constants]
        text = stablehlo(module)
        wanted = run(module, args)
        found = run_in_xla(text, args)
        for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
            torch.testing.assert_close(
                a, b, equal_nan=True, rtol=1e-4, atol=1e-5, msg=lambda m, k=k, level=level: f"{level} {k}: {m}"
            )


ONE = "prim.func @main() ({{\n^bb0(%x: !prim.tensor<[{0}], {1}>):\n  %r = {2}\n  prim.return(%r)\n}})"


def test_quotients_of_integers_are_rounded_down() -> None:
    x = torch.arange(-9, 9, dtype=torch.int16)
    divisor = "%y = prim.full() {value = -4} : !prim.tensor<[18], i16>\n  %r = "
    text = ONE.format(18, "i16", "prim.floordiv(%x, %y) : !prim.tensor<[18], i16>").replace("%r = ", divisor, 1)
    assert torch.equal(run_in_xla(stablehlo(parse_module(text)), [x])[0], x // -4)


def refused(text: str) -> str:
    with pytest.raises(ExchangeError) as error:
        stablehlo(parse_module(text))
    return str(error.value)


def test_what_is_not_written_is_refused_by_name() -> None:
    hypot = "prim.hypot(%x, %x) : !prim.tensor<[4], f32>"
    assert "prim.hypot: this of f32 is not written" in refused(ONE.format(4, "f32", hypot))
    random = 'kernel.extern<aten.rand_like.default>(%x) {operands = ["self"], effect = true} : !prim.tensor<[4], f32>'
    assert "<aten.rand_like.default>: this library call is not written" in refused(ONE.format(4, "f32", random))
    symbolic = ONE.format("s0", "f32", 'prim.exp(%x) : !prim.tensor<[s0], f32> loc("model.py":7:0)')
    symbolic = symbolic.replace("@main()", '@main() {symbols = [["s0", 0, 0, 2, none]]}')
    assert "s0 is a symbol" in refused(symbolic)


HOSTILE = 'a"\\\n$(touch x)\u202e*/'


def test_the_tool_writes_it_and_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = parse_module(ONE.format(4, "f32", "prim.exp(%x) : !prim.tensor<[4], f32>"))
    (op,) = [op for op in module.walk() if op.name == "prim.exp"]
    op.location = location(HOSTILE, 7)
    file = tmp_path / "a.ir"
    file.write_text(print_module(module))
    assert main(["--emit", "stablehlo", str(file)]) == 0
    text = capsys.readouterr().out
    assert "stablehlo.exponential %arg0 : tensor<4xf32> loc(" in text
    assert len([line for line in text.splitlines() if "touch" in line]) == 1 and "\u202e" not in text
    torch.testing.assert_close(run_in_xla(text, [X[0, :4].contiguous()])[0], X[0, :4].exp())
    assert main(["--emit", "stablehlo", "--no-loc", str(file)]) == 0
    assert "loc(" not in capsys.readouterr().out
