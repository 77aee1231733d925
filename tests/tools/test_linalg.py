"""`--emit linalg`: what other tools of MLIR verify, and what is refused by name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.exchange.spelled import spelled
from intarsia.ir.dialects import kernel, prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module
from intarsia.tools.opt.errors import InputError
from intarsia.tools.opt.linalg import linalg
from intarsia.tools.opt.main import main

X = torch.linspace(-3, 3, 256).reshape(8, 32)
IMAGES = torch.linspace(-1, 1, 2 * 3 * 16).reshape(2, 3, 4, 4)
PROGRAMS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "softmax": (lambda x: torch.softmax(x, -1), X),
    "log_softmax": (lambda x: torch.log_softmax(x, -1).mean(), X),
    "gelu": (F.gelu, X),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "layer_norm": (lambda x: F.layer_norm(x, (32,)), X),
    "rms_norm": (lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), X),
    "silu": (F.silu, X),
    "where": (lambda x: torch.where(x > 0, x, x * 0.1), X),
    "sum": (lambda x: x.sum(), X),
    "max": (lambda x: x.amax(0), X),
    "min of integers": (lambda x: x.int().amin(1), X),
    "transpose": (lambda x: x.t() + 1, X),
    "reshape": (lambda x: x.reshape(4, 64) * 2, X),
    "slice": (lambda x: x[2:6, ::2] + 1, X),
    "flip": (lambda x: x.flip(1) + 1, X),
    "bfloat16": (lambda x: (x * 2).exp(), X.bfloat16()),
    "between half types": (lambda x: x.half() + 1, X.bfloat16()),
    "integers": (lambda x: (x.to(torch.int32) + 1) & 7, X),
    "iota": (lambda x: x + torch.arange(32), X),
    "variance": (lambda x: x.var(0), X),
    "clamp": (lambda x: x.clamp(-1, 1), X),
    "any": (lambda x: ((x > 0) & ~(x < 1)).any(1), X),
    "batch statistics": (lambda i: (i - i.mean((0, 2, 3), keepdim=True)) / i.std((0, 2, 3), keepdim=True), IMAGES),
    "infinities": (lambda x: torch.where(x > 0, x, float("-inf")).isnan(), X.double()),
}
W, INDEX = torch.linspace(-1, 1, 32 * 16).reshape(16, 32), torch.tensor([[3, 0], [7, -8]])
# With library calls, places that are computed, and what is put together: at the level prim, on one or two arguments.
MORE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "linear": (lambda x: F.linear(x, W, W[:, 0]).relu(), (X,)),
    "product": (lambda x, y: (x @ y.t()).softmax(-1), (X, X)),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        (X.reshape(1, 2, 4, 32), X.reshape(1, 2, 4, 32).flip(3)),
    ),
    "embedding": (lambda x, i: F.embedding(i & 7, x), (X, INDEX)),
    "index": (lambda x, i: x[:, i] + 1, (X, INDEX)),
    "gather": (lambda x, i: x.gather(1, i.abs()), (X, INDEX)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=7.0), (X,)),
    "crop": (lambda x: F.pad(x, (-1, 2, -2, -1)), (X,)),
    "cat": (lambda x, y: torch.cat([x, y[:3], x * 2]) + 1, (X, X.flip(0))),
    "stack": (lambda x, y: torch.stack([x, y], 1).roll(3, 2), (X, X.flip(0))),
    "roll": (lambda x: x.roll((3, -5), (0, 1)) * 2, (X,)),
}
ROWS = torch.tensor([[3.0, -1.0, 3.0, float("nan")], [-0.0, 0.0, float("inf"), -2.0], [1.0, 1.0, 1.0, 0.5]])
IMAGE, WEIGHT = (
    torch.linspace(-2, 2, 2 * 4 * 7 * 6).reshape(2, 4, 7, 6).sin(),
    torch.linspace(-1, 1, 144).reshape(6, 4, 3, 2),
)
PLACES = torch.tensor(
    [[3, 0, 7, 5], [1, 4, 0, 6], [2, 2, 1, 7], [0, 1, 2, 3], [7, 6, 5, 4], [4, 7, 3, 2], [5, 3, 6, 1], [6, 5, 4, 0]]
)
# What is written out as sums, comparisons and gathers; the reference interpreter runs what stands in their place.
OUT: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "sort": (lambda x: torch.sort(x, 0), (ROWS,)),
    "sort down": (lambda x: torch.sort(x, dim=1, descending=True, stable=True), (ROWS,)),
    "sort of booleans": (lambda x: torch.sort(x > 0, dim=1, stable=True), (ROWS,)),
    "sort of integers": (lambda x: torch.sort(x.to(torch.int32), stable=True), (X * 2,)),
    "largest": (lambda x: torch.topk(x, 3), (X,)),
    "smallest": (lambda x: torch.topk(x, 3, 0, largest=False), (X.sin(),)),
    "running sum": (lambda x: x.cumsum(1) * 2, (X,)),
    "running product": (lambda x: x.cumprod(0), (ROWS,)),
    "running maximum": (lambda x: x.cummax(1)[0], (ROWS,)),
    "running sum of integers": (lambda x: x.long().cumsum(0), (X,)),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b), (IMAGE, WEIGHT, X[0, :6])),
    "with steps": (lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 2), dilation=(2, 1)).relu(), (IMAGE, WEIGHT)),
    "with groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), (IMAGE, WEIGHT[:, :2])),
    "of lines": (lambda x, w: F.conv1d(x, w, stride=3), (IMAGE[..., 0], WEIGHT[..., 0])),
    "of bodies": (lambda x, w: F.conv3d(x, w, padding=1), (IMAGE[:, :, None, :2], WEIGHT[:, :, :, :, None])),
    "in bfloat16": (lambda x, w: F.conv2d(x, w), (IMAGE.bfloat16(), WEIGHT.bfloat16())),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
        (IMAGE, WEIGHT[:4]),
    ),
    "transposed with groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=2, dilation=2, groups=2),
        (IMAGE, WEIGHT[:4]),
    ),
    "scatter": (lambda x, i: x.scatter(0, i, x * 2), (X[:, :4], PLACES)),
    "scatter of few": (lambda x, i: x.exp().scatter(1, i[:3], x[:3, :4]), (X[:, :9], PLACES)),
    "scatter of truths": (lambda x, i: (x > 0).scatter(0, i, x > 1), (X[:, :4], PLACES)),
    "scatter of one number": (lambda x, i: x.scatter(0, i, 3.0), (X[:, :4], PLACES)),
    "scatter that adds": (lambda x, i: x.exp().scatter_add(1, i & 3, x), (X[:, :4], PLACES)),
    "adds to zeros with a sign": (lambda x, i: (x * -0.0).scatter_add(0, i[:2], x * -0.0), (X[:, :4], PLACES)),
    "scatter that adds integers": (lambda i: i.scatter_add(0, i, i * 7), (PLACES,)),
    "index_add": (lambda x, i: x.exp().index_add(1, i[0] & 3, x), (X[:, :4], PLACES)),
    "index_put": (lambda x, i: x.exp().index_put((i[:, 0],), x * 3), (X, PLACES)),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), (ROWS,)),
    "argmax of truths and integers": (lambda x: ((x > 1).long().argmax(1), x.int().argmin(1)), (X,)),
    "maximum and its place": (lambda x: x.max(1), (ROWS,)),
    "booleans in order": (lambda x: ((x > 0) < (x < 1), torch.maximum(x > 0, x > 1), (x > 0).amax(1)), (X,)),
}
CONTRACT = """prim.func @product() ({
^bb0(%x: !prim.tensor<[8, 32], KIND>, %w: !prim.tensor<[32, 16], KIND>):
  %r = prim.contract(%x, %w) {maps = [[d0, d2], [d2, d1]], reduced = [32]} : !prim.tensor<[8, 16], f32>
  prim.return(%r)
})"""


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The text of each program at both levels, and of two products."""
    found = {f"product of {kind}": linalg(parse_module(CONTRACT.replace("KIND", kind))) for kind in ("f32", "bf16")}
    with torch.no_grad():
        for name, (program, x) in PROGRAMS.items():
            low = intarsia.lower(program, x)
            for level in ("prim", "kernel"):
                found[f"{name}, {level}"] = linalg(parse_module(low.ir(level)))
        for name, (program, args) in [*MORE.items(), *OUT.items()]:
            found[name] = linalg(parse_module(intarsia.lower(program, *args).ir("aten")))
        for name, (program, args) in [(n, (f, (x,))) for n, (f, x) in PROGRAMS.items()] + list(MORE.items()):
            if name not in NO_SYMBOLS:
                found[f"{name}, any number of rows"] = linalg(parse_module(with_symbols(program, args)))
    return found


NO_SYMBOLS = {
    "reshape",
    "slice",
    "embedding",
    "attention",
    "batch statistics",
    "stack",
    "roll",
}  # which take these numbers of rows alone


def with_symbols(program: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> str:
    """The program with a symbol for the number of rows of what is no index."""
    args = tuple(x.clone() for x in args)
    for x in args:
        if x.is_floating_point():
            intarsia.mark_dynamic(x, 0, min=4)
    text = intarsia.lower(program, *args).ir("aten")
    assert re.search(r"tensor<\[s\d+, ", text)
    return text


@pytest.mark.parametrize("tool", ["xdsl-opt", "mlir-opt", "mlir-opt-16", "mlir-opt-19"])
def test_other_tools_verify_it(tool: str, written: dict[str, str]) -> None:
    path = shutil.which(tool, path=str(Path(sys.executable).parent)) or shutil.which(tool)
    if path is None:
        pytest.skip(f"no {tool} here")
    for name, text in written.items():
        assert text.count("func.func") >= 1 and text.count("linalg.generic") >= 1, name
    text = "\n// -----\n".join(written.values())
    done = subprocess.run([path, "--split-input-file"], input=text, text=True, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout.count("func.func") == text.count("func.func") >= 80


@pytest.mark.parametrize("name", OUT)
def test_what_is_written_out_is_the_operator(name: str) -> None:
    program, args = OUT[name]
    with torch.no_grad():
        module, expected = parse_module(intarsia.lower(program, *args).ir("aten")), program(*args)
    made = spelled(module, out=True)
    assert not [op for op in made.walk() if isinstance(op, kernel.Extern | prim.Scan | prim.Scatter)]
    bits = {torch.bfloat16: 2e-2}
    for got, want in zip(run(made, args), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(
            got,
            want,
            rtol=bits.get(want.dtype, 1e-5),
            atol=bits.get(want.dtype, 1e-5),
            equal_nan=True,
            check_stride=False,
        )


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        linalg(parse_module(text))
    return str(error.value)


def test_what_is_not_written_is_refused_by_name() -> None:
    one = "prim.func @main() ({{\n^bb0(%x: !prim.tensor<[{0}], {1}>):\n  %r = {2}\n  prim.return(%r)\n}})"
    assert "prim.sinh" in refused(one.format(4, "f32", "prim.sinh(%x) : !prim.tensor<[4], f32>"))
    assert "prim.mod" in refused(one.format(4, "i64", "prim.mod(%x, %x) : !prim.tensor<[4], i64>"))
    assert "c64" in refused(one.format(4, "c64", "prim.add(%x, %x) : !prim.tensor<[4], c64>"))
    assert "prim.sinh of f32 from model.py:7 is not" in refused(
        one.format(4, "f32", 'prim.sinh(%x) : !prim.tensor<[4], f32> loc("model.py":7:0)')
    )
    symbolic = one.format("s0", "f32", "prim.exp(%x) : !prim.tensor<[s0], f32>")
    symbolic = symbolic.replace("@main()", '@main() {symbols = [["s0", 0, 0, 2, none]]}')
    assert "tensor.dim %v0" in linalg(parse_module(symbolic)) and "tensor<?xf32>" in linalg(parse_module(symbolic))
    assert "the size s0 is the size of no argument" in refused(
        symbolic.replace("%x: !prim.tensor<[s0]", "%x: !prim.tensor<[2*s0]").replace(
            "prim.exp(%x) : !prim.tensor<[s0]", "prim.exp(%x) : !prim.tensor<[2*s0]"
        )
    )


def test_names_of_functions_are_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.ir"
    file.write_text(CONTRACT.replace("KIND", "f32"))
    assert main(["--emit", "linalg", str(file)]) == 0
    assert "func.func @product(" in capsys.readouterr().out
    assert main(["--emit", "linalg", "-p", "fuse,layout,lower", str(file)]) == 1
    assert "it has to be at 'aten', 'prim' or 'kernel'" in capsys.readouterr().err
