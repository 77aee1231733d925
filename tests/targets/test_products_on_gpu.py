"""Matrix products as kernels: their loops give what the library gives, and their code uses a GPU's matrix units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from product_programs import CASES, PROLOGUES, captured, half, products, ptx_of
from torch import Tensor
from triton_programs import kernels_of
from xdsl.dialects.builtin import ModuleOp

from intarsia.config import Config
from intarsia.graph_compiler import pipeline_of
from intarsia.ir.dialects import buffer, kernel, loop, prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.analysis.product_model import Shape, Tile, candidates, choose
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.host.library import Library
from intarsia.targets.measure.autotune import LIBRARY, candidate
from intarsia.targets.measure.store import Measurements
from intarsia.targets.triton.worker import WORKERS


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Sums of half types are near their bounds: a run is as the one before."""
    torch.manual_seed(0)


@pytest.mark.parametrize("name", CASES)
def test_loops(name: str) -> None:
    """The loops, by the reference interpreter, on the CPU's tensors."""
    (program,) = products([name])
    module = program.on_gpu()
    for expected, found in zip(run(program.module, program.args), run(module, program.args), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize("name", PROLOGUES)
def test_prologues(name: str) -> None:
    """What factors are computed by is part of the product's kernel: one launch, nothing of the library's."""
    (program,) = products([name])
    module = program.on_gpu()
    assert not [op for op in module.walk() if isinstance(op, kernel.Extern)]
    (launch,) = [op for op in module.walk() if isinstance(op, loop.Launch)]
    assert len(kernels_of(module)) == 1 and len(launch.operands) == len(program.args)
    assert any(isinstance(op, loop.Accumulate) and op["kind"] == "dot" for op in module.walk())


def test_prologues_that_stay() -> None:
    """A factor of many blocks of columns is computed once, in front of the call; so is one that is read elsewhere."""
    for fn, args in (
        (lambda x, w: F.linear(torch.erf(x), w), [half(2048, 512), half(2048, 512)]),
        (lambda x, w: ((y := x.sin()), F.linear(y, w)), [half(64, 64), half(64, 64)]),
    ):
        module = captured("stays", fn, args).on_gpu()
        assert [op["target"] for op in module.walk() if isinstance(op, kernel.Extern)] == ["aten.linear.default"]


@dataclass
class Remembering:
    """A tuner that takes the last tile, and keeps what it was asked to measure."""

    asked: dict[str, ModuleOp] = field(default_factory=dict)
    candidates: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def pick(self, key: str, module: Callable[[], ModuleOp], tiles: Sequence[str]) -> str:
        self.asked[key] = module()
        self.candidates.append((print_module(self.asked[key]), tiles))
        return tiles[-1]


def test_what_is_measured() -> None:
    """The module that a tuner is given computes what the program does; its answer is the kernel's tile."""
    (program,) = products(["residual"])
    module, tuner = parse_module(print_module(program.module)), Remembering()
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="choose-products"):
        item.apply(CompileContext(tuner=tuner), module)
    ((key, measured),) = tuner.asked.items()
    assert key.startswith("matmul 1x64x96x64 bf16 linear bias ")
    measured.verify()
    func = next(op for op in measured.body.block.ops if isinstance(op, prim.Func))
    given = {a.numel(): a for a in program.args}
    args = [given[prim.tensor(a).numel].reshape(prim.tensor(a).shape) for a in func.block_body.args]
    (expected,), (found,) = run(program.module, program.args), run(measured, args)
    torch.testing.assert_close(found, expected)
    (made,) = [op for op in module.walk() if isinstance(op, kernel.Contract)]
    assert Tile.parse(made["choice"].removeprefix("tile ")) in candidates(Shape(1, 46, 96, 64, "bf16", True))


def test_what_is_measured_with_a_prologue() -> None:
    """What is in front of a product is part of what is measured, and has a key of its own."""
    (program,) = products(["dequantized"])
    module, tuner = parse_module(print_module(program.module)), Remembering()
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="choose-products"):
        item.apply(CompileContext(tuner=tuner), module)
    ((key, measured),) = tuner.asked.items()
    assert key.startswith("matmul 1x64x96x256 f16 linear after ")
    measured.verify()
    func = next(op for op in measured.body.block.ops if isinstance(op, prim.Func))
    given = {tuple(a.shape): a for a in program.args}
    args = [given[prim.tensor(a).shape] for a in func.block_body.args]
    torch.testing.assert_close(run(measured, args)[0], run(program.module, program.args)[0])
    assert len([op for op in module.walk() if isinstance(op, kernel.Contract)]) == 1
    assert not [op for op in module.walk() if isinstance(op, kernel.Extern)]


@pytest.mark.parametrize("numerics", ["float32", "eager"])
def test_products_of_numerics(numerics: str) -> None:
    """Where values are rounded as eager rounds them, a product and what follows are not one kernel."""
    (program,) = products(["linear_gelu"])
    module = parse_module(print_module(program.module))
    retarget(module, "cuda:0")
    for item in pipeline_of(Config(numerics=numerics), gpu=True):
        item.apply(CompileContext(), module)
    calls = [op["why"] for op in module.walk() if isinstance(op, buffer.Extern)]
    assert calls == (["tiles do not round as eager does"] if numerics == "eager" else [])
    assert len(kernels_of(module)) == 1


MEASURED: dict[str, tuple[Callable[..., object], list[Tensor]]] = {
    "large": (lambda x, w, r: torch.relu(x @ w) + r, [half(512, 256), half(256, 384), half(512, 384)]),
    "few_rows": (lambda x, w, b: F.silu(F.linear(x, w, b)), [half(64, 2048), half(192, 2048), half(192)]),
    "uneven": (F.linear, [half(1024, 1024), half(4099, 1024)]),
    **{name: CASES[name][1:] for name in ("linear_gelu", "prologue_and_epilogue", "batched_sum", "one_row", "tf32")},
}
COMPILED = ("large", "one_row", "tf32")  # by Triton, half a second each


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_measured_can_be_built(name: str, tmp_path: Path) -> None:
    """Each candidate that max-autotune measures becomes a program, by the library or by a tile, which compiles for Hopper."""
    pytest.importorskip("triton")
    machine, tuner = Machine(tf32_products=True), Remembering()
    module = parse_module(print_module(captured(name, *MEASURED[name]).module))
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="choose-products"):
        item.apply(CompileContext(machine, tuner=tuner), module)
    ((measured, tiles),) = tuner.candidates
    assert tiles
    for number, tile in enumerate((LIBRARY, *tiles)):
        made = candidate(measured, tile, machine, Library(record=False))
        assert ("aten" in made.host.text or bool(made.host.steps)) == (tile == LIBRARY), tile
        if made.gpu is not None and name in COMPILED:
            path = tmp_path / f"kernels{number}.py"
            path.write_text(made.gpu.text)
            binaries = WORKERS.compile(path, made.gpu.kernels, "sm_90", tmp_path)
            assert all(binary.code.startswith(b"\x7fELF") for binary in binaries)


def test_the_table(tmp_path: Path) -> None:
    """What was measured is kept on disk, and a name that nobody knows any more is measured again."""
    asked: list[str] = []

    def measure() -> str:
        asked.append("x")
        return "b"

    for known, count in (("ab", 1), ("ab", 1), ("a", 2)):
        assert (
            Measurements(tmp_path, "cpu").get("key", measure, tuple(known).__contains__) == "b" and len(asked) == count
        )


@pytest.mark.parametrize("tile", ["128x128x64x4x3", "64x32x128x4x4", "128x256x64x8x3"])
def test_matrix_units(tile: str) -> None:
    """For Hopper the products are wgmma, what they read is on its way ahead, and nothing spills."""
    pytest.importorskip("triton")
    a, b = half(256, 256), half(384, 256)
    program = replace(captured("linear", lambda x, w: F.gelu(F.linear(x, w)), [a, b]), tile=tile)
    (kernel,) = kernels_of(program.on_gpu())
    ptx = ptx_of(kernel)
    assert "wgmma.mma_async" in ptx and "cp.async.cg" in ptx and ".local" not in ptx


def written(x: Tensor) -> Tensor:
    """As GPT-2 has it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize(
    ("fn", "library"),
    [
        (written, True),
        (lambda x: F.gelu(x, approximate="tanh"), True),
        (lambda x: x * torch.sigmoid(2 * 0.7978845608 * (x + 0.044715 * x * x * x)), True),
        (F.gelu, False),
        (lambda x: x * torch.sigmoid(1.702 * x), False),
        (lambda x: written(x) + 1e-3, False),
    ],
)
def test_tanh_gelu(fn: Callable[[Tensor], Tensor], library: bool) -> None:
    """The library's call with gelu takes the place of a product and any way of writing that gelu."""
    args = [half(512, 64), half(64, 128), half(128)]
    program = captured("gelu", lambda x, w, b: fn(torch.addmm(b, x, w)), args)
    module = parse_module(print_module(program.module))
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="layout"):
        item.apply(CompileContext(), module)
    calls = [op["target"] for op in module.walk() if isinstance(op, kernel.Extern)]
    assert ("aten._addmm_activation.default" in calls) == library
    if library:
        torch.testing.assert_close(
            run(module, program.args)[0], fn(torch.addmm(args[2], *args[:2])), rtol=2e-2, atol=2e-2
        )


@pytest.mark.parametrize("transposed", [True, False])
def test_chunks_that_a_norm_adds_up(transposed: bool) -> None:
    """A product of few rows and a large inner size is computed in chunks; the norm that reads it adds them up, and its other reader has it, too."""

    def layer(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w, b) if transposed else torch.addmm(b, x, w)
        return F.layer_norm(y.view(2, 12, 64) + r, (64,)), y.relu()

    args = [half(24, 3072), half(64, 3072) if transposed else half(3072, 64), half(64), half(2, 12, 64)]
    program = captured("norm", layer, args)
    module = parse_module(print_module(program.module))
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="choose-forms"):
        item.apply(CompileContext(), module)
    (dot,) = [op for op in module.walk() if isinstance(op, loop.Accumulate) and op["kind"] == "dot"]
    (launch, *_) = [op for op in module.walk() if isinstance(op, loop.Launch)]
    assert prim.tensor(launch.results[0]).shape == (4, 24, 64) and dot["dtype"] == "bf16"
    for expected, found in zip(run(program.module, program.args), run(module, program.args), strict=True):
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("sizes", "ours"),
    [
        ((128, 768, 768), True),
        ((128, 3072, 768), True),
        ((100352, 384, 96), True),
        ((100352, 96, 384), True),
        ((16384, 768, 768), True),
        ((1568, 768, 3072), False),
        ((8192, 4096, 4096), True),
        ((8192, 11008, 4096), True),
        ((2048, 5632, 2048), False),
        ((4, 2048, 2048), False),
    ],
)
def test_cost_model(sizes: tuple[int, int, int], ours: bool) -> None:
    """What was measured on an H200: rows, columns, inner size, and whether our kernel was faster than cuBLAS with a kernel behind it."""
    assert (choose(Shape(1, *sizes, "bf16", epilogue=True, tensors=1)).tile is not None) == ours
    assert (choose(Shape(1, *sizes, "bf16")).tile is None) == (sizes[2] > 128)
