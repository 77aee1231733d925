"""A pass of your own: one equation, put in its place by `after` and `before`, and checked against eager."""

from dataclasses import dataclass
from typing import Any

import torch

import intarsia
from intarsia.extend import CompileContext, ModuleOp, Pass, Rewrite, apply_rules, prim, producer

Exp, Log = prim.ELEMENTWISE["exp"], prim.ELEMENTWISE["log"]


def log_of_exp(op: Any) -> Rewrite:
    """log(exp(x)) -> x: not what eager's bits are, so it is no rule of the compiler's own."""
    inner = producer(op.operands[0], Exp)
    return None if inner is None else inner.operands[0]


@dataclass(frozen=True)
class LogExp(Pass):
    """Take logarithms of exponentials away."""

    name = "log-exp"
    after = ("decompose",)
    before = ("fuse",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        ctx.diagnostics.count(self.name, "rewrites", apply_rules(module, {Log.name: (log_of_exp,)}))


def energy(x: torch.Tensor) -> torch.Tensor:
    """Overflows in eager where x is large."""
    return torch.log(torch.exp(x)) + 1


with torch.no_grad():
    x = torch.tensor([1.0, 10.0, 100.0])
    print("eager:         ", energy(x).tolist())
    print("plain:         ", intarsia.compile(energy)(x).tolist())
    print("with the pass: ", intarsia.compile(energy, passes=[LogExp()])(x).tolist())
