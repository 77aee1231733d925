"""A function of single elements of your own: one row of the scalar table gives it to the IR, the interpreter, C++ and Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

import intarsia
from intarsia.extend import Builder, Lowering, ScalarRow, add_row


@torch.library.custom_op("example::softsign", mutates_args=())
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)"""
    return torch.nn.functional.softsign(x)


softsign.register_fake(lambda x: torch.empty_like(x))

add_row(
    ScalarRow(
        name="softsign",
        arity=1,
        torch=torch.nn.functional.softsign,  # what the interpreter runs
        cpp="{0} / (1 + im::abs({0}))",
        triton="{0} / (1 + tl.abs({0}))",
        domain="float",
        cost=6,  # simple instructions for an element: the fusion's cost model reads it
    )
)


def lower_softsign(b: Builder):
    """prim.softsign"""
    return b.finish(b.ew("softsign", b.floating("x")))


@dataclass(frozen=True)
class LowerSoftsign(Lowering):
    """softsign as one scalar operation."""

    name = "lower-softsign"
    operators = {"example::softsign": lower_softsign}


def program(x: Tensor) -> Tensor:
    return softsign(x * 3).sum(1)


with torch.no_grad():
    x = torch.randn(64, 33)
    low = intarsia.lower(program, x, passes=[LowerSoftsign()])
    print([line.strip() for line in low.ir("loop").splitlines() if "scalar.softsign" in line][0])
    print("interpreted:", torch.allclose(low.run("loop", x), program(x), atol=1e-5))
    print("compiled:   ", torch.allclose(low.compile()(x), program(x), atol=1e-5))
    print(
        "Triton:     ",
        "tl.abs(" in intarsia.lower(program, x, target="triton:sm_90", passes=[LowerSoftsign()]).triton(),
    )
