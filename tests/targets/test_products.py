"""Matrix products as kernels: their loops give what the library gives, and their code uses a GPU's matrix units."""

from __future__ import annotations

import pytest
import torch
from product_programs import CASES, products

from intarsia.ir.interpreter import run


@pytest.mark.parametrize("name", CASES)
def test_loops(name: str) -> None:
    """The loops, by the reference interpreter, on the CPU's tensors."""
    (program,) = products([name])
    module = program.on_gpu()
    for expected, found in zip(run(program.module, program.args), run(module, program.args), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
