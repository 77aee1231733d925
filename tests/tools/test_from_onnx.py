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
    "rows written": (("ScatterND", "x", "i", "u"), {"reduction": "add"}, {"i": [[1, -1], [0, 0], [1, 2]], "u": torch.ones(3, 4)}, X.index_put((torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2])), torch.ones(3, 4), accumulate=True)),
    "elements written": (("ScatterElements", "x", "i", "u"), {"axis": 2, "reduction": "max"}, {"i": [[[-1, 0]]], "u": torch.ones(1, 1, 2)}, X.scatter_reduce(2, torch.tensor([[[3, 0]]]), torch.ones(1, 1, 2), "amax")),
    "twice as wide": (("Resize", "x", "", "s"), {"mode": "linear"}, {"s": torch.tensor([1.0, 1.0, 2.0])}, F.interpolate(X, scale_factor=2, mode="linear")),
    "corners": (("Resize", "x", "", "", "n"), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, {"n": [2, 3, 7]}, F.interpolate(X, 7, mode="linear", align_corners=True)),
    "pixels": (("Resize", "x", "", "", "n"), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {"n": [2, 3, 7]}, F.interpolate(X, 7)),
    "running": (("CumSum", "x", "k"), {}, {"k": 2}, X.cumsum(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, onnx: Any, tmp_path: Path) -> None:
    (kind, *inputs), attributes, weights, wanted = CASES[name]
    outputs = ["y", "z", "w"] if kind == "Split" else ["y"]
    node = onnx.helper.make_node(kind, inputs, outputs, **attributes)
    read = from_onnx(saved(onnx, tmp_path / "a.onnx", [node], [2, "n", 4], weights), sizes={"n": 3})
    torch.testing.assert_close(read(X), wanted)


def part(onnx: Any, name: str, nodes: list[Any], outputs: list[str], inputs: list[Any] = []) -> Any:  # noqa: B006
    values = [onnx.helper.make_tensor_value_info(n, 1, None) for n in outputs]
    return onnx.helper.make_graph(nodes, name, inputs, values)


def test_branches(onnx: Any, tmp_path: Path) -> None:
    node = onnx.helper.make_node
    sides = [part(onnx, kind, [node(kind, ["x"], [f"{kind}_y"])], [f"{kind}_y"]) for kind in ("Exp", "Neg")]
    both = {"then_branch": sides[0], "else_branch": sides[1]}
    sums = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"])]
    weights = {"zero": torch.tensor(0.0), "no": torch.tensor(False)}
    read = from_onnx(saved(onnx, tmp_path / "a.onnx", [*sums, node("If", ["c"], ["y"], **both)], [4], weights))
    fast = intarsia.compile(read, fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4), torch.arange(4.0)):
        wanted = x.exp() if x.sum() > 0 else -x
        torch.testing.assert_close(read(x), wanted)
        torch.testing.assert_close(fast(x), wanted)
    known = from_onnx(saved(onnx, tmp_path / "b.onnx", [node("If", ["no"], ["y"], **both)], [4], weights))
    assert known(torch.ones(4)).tolist() == [-1.0] * 4 and "cond" not in known.code
    other = part(onnx, "other", [node("Concat", ["x", "x"], ["o"], axis=0)], ["o"])
    uneven = node("If", ["c"], ["y"], then_branch=sides[0], else_branch=other)
    with pytest.raises(ExchangeError, match="its sides give other shapes or dtypes"):
        from_onnx(saved(onnx, tmp_path / "c.onnx", [*sums, uneven], [4], weights))


def test_loops_of_a_known_length(onnx: Any, tmp_path: Path) -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Add", ["a", "a"], ["b"]), node("Identity", ["c"], ["d"]), node("Neg", ["b"], ["e"])]
    body = part(onnx, "body", nodes, ["d", "b", "e"], [info("i", 7, []), info("c", 9, []), info("a", 1, None)])
    weights = {"n": torch.tensor(3), "yes": torch.tensor(True)}
    loop = [node("Loop", ["n", "yes", "x"], ["z", "y"], body=body)]
    read = from_onnx(saved(onnx, tmp_path / "a.onnx", loop, [2], weights))
    assert read(torch.ones(2)).tolist() == [[-2.0, -2.0], [-4.0, -4.0], [-8.0, -8.0]]
    assert intarsia.compile(read)(torch.ones(2)).tolist() == read(torch.ones(2)).tolist()
    sums = [node("ReduceSum", ["a"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["d"])]
    until = part(onnx, "until", [nodes[0], *sums, nodes[2]], ["d", "b", "e"], list(body.input))
    cases = {
        "a loop that a computed value ends": ["n", "yes", "x"],
        "whose number of rounds is computed": ["", "yes", "x"],
        "more than 10,000 rounds": ["many", "yes", "x"],
        "its body takes 3 values, not 4": ["n", "yes", "x", "x"],
    }
    weights |= {"many": torch.tensor(1 << 40), "zero": torch.tensor(0.0)}
    for said, given in cases.items():
        file = saved(onnx, tmp_path / "b.onnx", [node("Loop", given, ["z", "y"], body=until)], [2], weights)
        with pytest.raises(ExchangeError, match=said):
            from_onnx(file)


def test_graphs_in_graphs_in_graphs(onnx: Any, tmp_path: Path) -> None:
    graph = part(onnx, "last", [onnx.helper.make_node("Exp", ["x"], ["o0"])], ["o0"])
    for k in range(1, 45):
        inner = onnx.helper.make_node("If", ["yes"], [f"o{k}"], then_branch=graph, else_branch=graph)
        graph = part(onnx, f"g{k}", [inner], [f"o{k}"])
        if graph.ByteSize() > 1 << 20:
            break
    node = onnx.helper.make_node("If", ["yes"], ["y"], then_branch=graph, else_branch=graph)
    read = from_onnx(saved(onnx, tmp_path / "a.onnx", [node], [2], {"yes": torch.tensor(True)}))
    torch.testing.assert_close(read(torch.ones(2)), torch.ones(2).exp())


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
