"""Every step from kernels to loops prints, parses back, runs, and gives the same program when the rest of the pipeline goes on from its text."""

from __future__ import annotations

import model_blocks
import pytest
import torch
from kernel_zoo import CASES
from test_schedule import arguments
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline

PROGRAMS = ("softmax", "add_layer_norm", "resnet_block", "bert")


def program(name: str) -> tuple[ModuleOp, list[torch.Tensor]]:
    """Softmax and layer norm as kernels of their own, a block of convolutions, and one of attention."""
    if name in CASES:
        return CASES[name].module(), arguments(CASES[name])
    module, args = model_blocks.bert(layers=1) if name == "bert" else getattr(model_blocks, name)()
    return module, args


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_step(name: str, gpu: bool) -> None:
    module, args = program(name)
    expected = run(module, args)
    if gpu:
        retarget(module, "cuda:0")
    passes = default_pipeline(gpu=gpu)
    first = next(k for k, item in enumerate(passes) if item.name == "lower")
    last = next(k for k, item in enumerate(passes) if item.name == "choose-forms")
    if name not in CASES:  # those are kernels already
        advance(module, [item for item in passes[:first] if item.level != "aten"])
    texts = []
    for item in passes[first : last + 1]:
        advance(module, [item])
        module.verify()
        texts.append(print_module(module))
    advance(module, passes[last + 1 :])
    final = print_module(module)
    for k, text in enumerate(texts):
        again = parse_module(text)
        assert print_module(again) == text
        for a, b in zip(expected, run(again, args), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        advance(again, passes[first + k + 1 :])
        assert print_module(again) == final, passes[first + k].name


def advance(module: ModuleOp, passes: list) -> None:
    """Run passes one after another."""
    for item in passes:
        item.apply(CompileContext(), module)
