"""Depthwise convolutions on a GPU are loops of our own, which give what the library gives. The interpreter runs the modules here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import intarsia
from intarsia.frontend.entry.capture import capture
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import loop
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline


def _lowered(layer: torch.nn.Conv2d, x: Tensor) -> tuple[ModuleOp, Tensor]:
    made: list[ModuleOp] = []
    results: list[Tensor] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        module = import_fx(functionalize(graph, inputs)).module
        retarget(module, "cuda:0")
        run_pipeline(CompileContext(), module, default_pipeline(gpu=True))
        made.append(module)
        results.extend(run_user(module, inputs))
        return graph.forward

    with torch.no_grad():
        intarsia.compile(lambda x: torch.relu(layer(x.neg())), backend=backend, fullgraph=True)(x)
    return made[0], results[0]


CASES = {
    "7x7": (32, 7, 1, 3, (9, 11)),
    "7x7, several strips": (32, 7, 1, 3, (29, 9)),
    "5x5, steps of 2": (40, 5, 2, 2, (11, 14)),
    "3x3, rows that are no multiple of a strip": (16, 3, 1, 1, (15, 8)),
    "3x3, steps of 2, no padding": (33, 3, 2, 0, (8, 17)),
    "even window": (32, 2, 1, 1, (5, 5)),
    "one row": (32, 3, 1, 1, (1, 4)),
    "more padding than image": (32, 7, 1, 3, (2, 2)),
    "steps of 2 and 64 channels": (64, 3, 2, 1, (33, 10)),
    "oblong": (32, (3, 5), (2, 1), (0, 2), (9, 10)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_as_the_library(case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    channels, window, step, padding, size = CASES[case]
    layer = torch.nn.Conv2d(channels, channels, window, step, padding, groups=channels).to(dtype)
    x = torch.randn(2, channels, *size).to(dtype)
    module, found = _lowered(layer, x)
    names = [op["sym_name"] for op in module.body.block.ops if isinstance(op, loop.Kernel)]
    assert any(name.startswith("depthwise_convolution") for name in names), names
    expected = torch.relu(layer.float()(x.neg().float()))
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.float(), expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("case", ["7x7", "5x5, steps of 2", "oblong"])
def test_images_of_any_size(case: str) -> None:
    """One program is right for images of fewer rows than a strip, and of more."""
    torch.manual_seed(0)
    channels, window, step, padding, _ = CASES[case]
    layer = torch.nn.Conv2d(channels, channels, window, step, padding, groups=channels)
    with torch.no_grad():
        captured = capture(lambda x: layer(x.neg()).relu(), (torch.randn(2, channels, 20, 20),), dynamic=True)
        module = import_fx(functionalize(captured.graph_module, captured.example_inputs)).module
        retarget(module, "cuda:0")
        run_pipeline(CompileContext(), module, default_pipeline(gpu=True))
        assert "depthwise_convolution" in str(module)
        for size in ((2, 5, 9), (3, 14, 4), (2, 23, 11)):
            x = torch.randn(size[0], channels, *size[1:])
            of_rank = {1: layer.bias, 4: layer.weight}
            inputs = [x if v.ndim == 4 and v.shape[1] == channels else of_rank[v.ndim] for v in captured.example_inputs]
            found = run_user(module, inputs)[0]
            torch.testing.assert_close(found, layer(x.neg()).relu(), atol=1e-5, rtol=1e-5)


def test_equal_layers_share_a_kernel() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Conv2d(32, 32, 3, padding=1, groups=32) for _ in range(3)))
    module, found = _lowered(layers, torch.randn(2, 32, 8, 8))  # type: ignore[arg-type]
    launches = [op for op in module.walk() if op.name == "buffer.launch" and "depthwise" in op["kernel"]]  # type: ignore[index]
    assert len(launches) == 3 and len({op["kernel"] for op in launches}) == 1  # type: ignore[index]


def test_what_stays_with_the_library() -> None:
    """Several filters a channel, windows apart, large windows, a CPU's tensors."""
    x = torch.randn(2, 32, 20, 20)
    for layer in (
        torch.nn.Conv2d(32, 64, 3, groups=32),
        torch.nn.Conv2d(32, 32, 3, groups=32, dilation=2),
        torch.nn.Conv2d(32, 32, 9, groups=32),
        torch.nn.Conv2d(32, 32, 3, groups=16),
    ):
        module, found = _lowered(layer, x)
        assert "depthwise_convolution" not in str(module)
        torch.testing.assert_close(found, F.relu(layer(x.neg())), atol=1e-4, rtol=1e-4)


def test_an_image_that_is_a_view() -> None:
    layer = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32)

    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return layer(F.layer_norm(x, (32,)).permute(0, 3, 1, 2))  # type: ignore[no-any-return]

    x = torch.randn(2, 9, 8, 32)
    module, found = _lowered(Block(), x)  # type: ignore[arg-type]
    assert "depthwise_convolution" in str(module)
    torch.testing.assert_close(found, F.relu(Block()(x.neg())), atol=1e-4, rtol=1e-4)
