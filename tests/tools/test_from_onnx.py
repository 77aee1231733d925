"""ONNX as a front end: models give what torch gives, what is not taken names operator, node and opset, broken files are short errors."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia.exchange.errors import ExchangeError
from intarsia.exchange.models.from_onnx import from_onnx
from intarsia.ir.syntax import visible
from intarsia.tools.opt.main import main


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExchangeError, match="pip install onnx"):
        from_onnx(tmp_path / "a.onnx")


@pytest.fixture
def onnx() -> Any:
    return pytest.importorskip("onnx", reason="needs pip install onnx")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, groups=4, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        return F.log_softmax(self.last(F.avg_pool2d(F.hardswish(self.second(x)), 2).mean((2, 3))), 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.mix, self.out = (
            nn.Embedding(20, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        parts = self.mix(self.norm(x)).split(8, -1)
        q, k, v = (p.reshape(p.shape[0], p.shape[1], 2, 4).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(-1, -2) / 2
        shut = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        made = torch.softmax(scores.masked_fill(shut, float("-inf")), -1) @ v
        x = x + self.out(made.transpose(1, 2).reshape(x.shape))
        return F.gelu(x) @ self.table.weight.t()


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("kind", [Convolutions, Attention])
def test_models_that_torch_exports(kind: type[nn.Module], opset: int, onnx: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    x = torch.randn(2, 3, 16, 16) if kind is Convolutions else torch.randint(0, 20, (2, 5))
    file = tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(model, (x,), str(file), opset_version=opset, dynamo=False)
        read = from_onnx(file)
        for call in (read, intarsia.compile(read)):
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
    assert main(["--from", "onnx", str(file), "-p", "default", "--run", "-o", str(tmp_path / "out")]) == 0


def saved(
    onnx: Any, path: Path, nodes: list[Any], shape: list[Any], weights: dict[str, Any] | None = None, opset: int = 18
) -> Path:
    helper = onnx.helper
    given, made = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", shape), ("y", None)))
    held = [onnx.numpy_helper.from_array(torch.as_tensor(v).numpy(), n) for n, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", [given], [made], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(path))
    return path


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any], Any]] = {
    "slice back": (("Slice", "x", "a", "b", "c", "d"), {}, {"a": [3, 0], "b": [-99, 2], "c": [2, 1], "d": [-2, 1]}, X.flip(2)[:, :2, ::2]),
    "split": (("Split", "x"), {"axis": 2, "num_outputs": 3}, {}, X[:, :, :2]),
    "gather": (("Gather", "x", "i"), {"axis": 1}, {"i": [-1, 0]}, X[:, [2, 0]]),
    "reshape": (("Reshape", "x", "s"), {}, {"s": [0, -1]}, X.reshape(2, 12)),
    "means": (("ReduceMean", "x", "a"), {"keepdims": 0}, {"a": [-1]}, X.mean(-1)),
    "mod": (("Mod", "x", "m"), {"fmod": 1}, {"m": torch.tensor(0.7)}, X.fmod(0.7)),
    "gemm": (("MatMul", "x", "w"), {}, {"w": torch.eye(4) * 2}, X * 2),
    "clip": (("Clip", "x", "", "h"), {}, {"h": torch.tensor(0.5)}, X.clamp(max=0.5)),
    "pad": (("Pad", "x", "p", "v", "a"), {}, {"p": [1, 2], "v": torch.tensor(7.0), "a": [-1]}, F.pad(X, (1, 2), value=7.0)),
    "average": (("AveragePool", "x"), {"kernel_shape": [3], "pads": [1, 1]}, {}, F.avg_pool1d(X, 3, 1, 1, count_include_pad=False)),
    "same": (("MaxPool", "x"), {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}, {}, F.max_pool1d(F.pad(X, (0, 1), value=-9.0), 2, 1)),
    "trilu": (("Trilu", "x", "k"), {"upper": 0}, {"k": 1}, X.tril(1)),
    "places": (("ArgMax", "x"), {"axis": -1, "keepdims": 0}, {}, X.argmax(-1)),
    "running": (("CumSum", "x", "k"), {}, {"k": 2}, X.cumsum(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, onnx: Any, tmp_path: Path) -> None:
    (kind, *inputs), attributes, weights, wanted = CASES[name]
    outputs = ["y", "z", "w"] if kind == "Split" else ["y"]
    node = onnx.helper.make_node(kind, inputs, outputs, **attributes)
    read = from_onnx(saved(onnx, tmp_path / "a.onnx", [node], [2, "n", 4], weights), sizes={"n": 3})
    torch.testing.assert_close(read(X), wanted)


HOSTILE = 'a"\n$(touch x)\u202e*/<script>'


def test_what_is_not_taken_is_named(onnx: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = onnx.helper.make_node("NonZero", ["x"], ["y"], name=HOSTILE)
    file = saved(onnx, tmp_path / "a.onnx", [node], [4])
    with pytest.raises(ExchangeError) as error:
        from_onnx(file)
    said = str(error.value)
    assert "NonZero, opset 18" in said and "the operator is not taken" in said and "\u202e" not in said
    assert main(["--from", "onnx", str(file)]) == 1
    err = capsys.readouterr().err
    assert visible(err) == err and "Traceback" not in err
    other = saved(onnx, tmp_path / "b.onnx", [onnx.helper.make_node("Relu", ["x"], ["y"])], ["batch"], opset=9)
    with pytest.raises(ExchangeError, match="opset 9; 13 to 20 are taken"):
        from_onnx(other)
    named = saved(onnx, tmp_path / "c.onnx", [onnx.helper.make_node("Relu", ["x"], ["y"])], ["batch"])
    with pytest.raises(ExchangeError, match="'batch': 4"):
        from_onnx(named)
    hidden = saved(onnx, tmp_path / "d.onnx", [onnx.helper.make_node("Relu", ["nowhere"], ["y"])], [4])
    with pytest.raises(ExchangeError, match="'nowhere' is computed by no node before it"):
        from_onnx(hidden)
    large = onnx.helper.make_node("ConstantOfShape", ["s"], ["y"])
    with pytest.raises(ExchangeError, match="too large"):
        from_onnx(saved(onnx, tmp_path / "e.onnx", [large], [4], {"s": [1 << 20, 1 << 20]}))


def test_broken_files_are_short_errors(onnx: Any, tmp_path: Path) -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    good = saved(onnx, tmp_path / "good.onnx", [node], [4, 4], {"w": torch.eye(4)}).read_bytes()
    chosen = random.Random(0)
    texts = [b"", b"\0" * 5000, chosen.randbytes(5000), good[: len(good) // 2], good[:-1], b"\x3a\xff\xff\xff\xff\x07"]
    for _ in range(60):
        changed = bytearray(good)
        for _ in range(chosen.randrange(1, 4)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        texts.append(bytes(changed))
    file = tmp_path / "a.onnx"
    for text in texts:
        file.write_bytes(text)
        try:
            from_onnx(file)
        except ExchangeError as error:
            assert len(str(error)) < 1000 and visible(str(error)) == str(error)
    with pytest.raises(ExchangeError, match="cannot read"):
        from_onnx(tmp_path / "none.onnx")
