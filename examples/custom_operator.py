"""Operators of a library of your own, written out in primitives: one that only computes, and one that changes an argument."""

from dataclasses import dataclass

import torch
from torch import Tensor

import intarsia
from intarsia.extend import Builder, Lowering, NotCovered


@torch.library.custom_op("example::softcap", mutates_args=())
def softcap(x: Tensor, cap: float) -> Tensor:
    """Values that come no further than the cap."""
    return cap * torch.tanh(x / cap)


@torch.library.custom_op("example::watch", mutates_args=("largest",))
def watch(x: Tensor, largest: Tensor) -> Tensor:
    """Twice x; the largest element so far is kept."""
    largest.copy_(torch.maximum(largest, x.amax()))
    return x * 2


softcap.register_fake(lambda x, cap: torch.empty_like(x))
watch.register_fake(lambda x, largest: torch.empty_like(x))


def lower_softcap(b: Builder):
    """cap * tanh(x / cap)"""
    if not b.type.dtype.is_float:
        raise NotCovered("integers")
    cap = b.get("cap")
    return b.finish(b.ew("mul", b.ew("tanh", b.ew("div", b.floating("x"), cap)), cap))


def lower_watch(b: Builder):
    """The result, and the new value of the argument that is changed."""
    x = b.tensor("x")
    largest = b.ew("max", b.tensor("largest"), b.reduce("max", x, range(b.rank_of(x))))
    return [b.ew("mul", x, 2.0), largest]


@dataclass(frozen=True)
class LowerExample(Lowering):
    """The operators of `example` in primitives."""

    name = "lower-example"
    operators = {"example::softcap": lower_softcap, "example::watch": lower_watch}


def program(x: Tensor, largest: Tensor) -> Tensor:
    return watch(softcap(x.exp(), 3.0), largest) + 1


with torch.no_grad():
    x = torch.randn(64, 32)
    for passes in ([], [LowerExample()]):
        intarsia.reset()
        ours, eagers = torch.zeros(()), torch.zeros(())
        compiled = intarsia.compile(program, passes=passes)
        close = torch.allclose(compiled(x, ours), program(x, eagers), atol=1e-5) and torch.allclose(ours, eagers)
        print("library calls:", intarsia.counters()["externs"], "close:", close)
