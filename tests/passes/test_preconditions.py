"""The preconditions of kernels of our own are asked again after every pass: a call that was changed for the worse is an error."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia.ir.text import parse_module
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.preconditions import check
from intarsia.targets.build.toolchain import detect_isa


def last(fn: object, *args: torch.Tensor) -> str:
    """The text of the last level."""
    return list(intarsia.lower(fn, *args).stages.values())[-1]  # type: ignore[arg-type]


CALLS = {
    "convolution": (lambda: last(nn.Conv2d(16, 16, 3).eval(), torch.randn(1, 16, 20, 20)), [
        (r"padding = \[0, 0\]", "padding = [0]", "two numbers each"),
        (r"dilation = \[1, 1\]", "dilation = [2, 1]", "Winograd's products"),
    ]),
    "linear": (lambda: last(nn.Linear(64, 64).eval(), torch.randn(64, 64)), [
        (r"\[d1, d2\]", "[d0, d2]", "a product with a matrix"),
        (r"dims = \[1\]", "dims = [0]", "a number for each column"),
    ]),
    "attention": (lambda: last(F.scaled_dot_product_attention, *[torch.randn(1, 2, 20, 8)] * 3), [
        (r"dropout_p = 0.0", "dropout_p = 0.5", "no dropout"),
    ]),
}  # fmt: skip


@pytest.mark.skipif(detect_isa() != "avx512", reason="made for AVX-512")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_kernel_does_not_take(name: str) -> None:
    make, changes = CALLS[name]
    text = make()
    check(parse_module(text), Machine())
    for pattern, replacement, clause in changes:
        changed, count = re.subn(pattern, replacement, text, count=1)
        assert count, text
        with pytest.raises(ValueError, match=clause):
            check(parse_module(changed), Machine())
