"""A fusion policy of your own: a cost function that counts kernels, not bytes, and an order of its own. It stands in the place of `fuse`."""

from dataclasses import dataclass

import torch

import intarsia
from intarsia.extend import Access, Fuse, Group, Plan


@dataclass(frozen=True)
class FewOperations(Fuse):
    """Let operations share a kernel only up to a number of them, in the order of the program."""

    name = "few-operations"
    replaces = "fuse"
    most: int = 3

    def worth(self, plan: Plan, a: Group, b: Group) -> float:
        """More than 0: the groups become one kernel. Whether they can is decided before."""
        return self.most - len(a.nodes) - len(b.nodes) + 0.5

    def turn(self, access: Access) -> float:
        """Reads are looked at in this order."""
        return access.reader.index


def chain(x: torch.Tensor) -> torch.Tensor:
    """Six operations on single elements."""
    for _ in range(3):
        x = torch.cos(torch.sin(x))
    return x


with torch.no_grad():
    x = torch.randn(1000)
    for passes in ([], [FewOperations()], [FewOperations(most=2)]):
        low = intarsia.lower(chain, x, passes=passes)
        close = torch.allclose(low.compile()(x), chain(x), atol=1e-6)
        print("kernels:", low.ir("kernel").count("kernel.fused"), "close:", close)
