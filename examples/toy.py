"""A function: compiled on its first call, one kernel, checked against eager."""

import torch

import intarsia
from intarsia.testing import check


@intarsia.compile
def blend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Five operators that become one loop."""
    return torch.tanh(x) * torch.sigmoid(y) + x.square() - y


with torch.no_grad():
    x, y = torch.randn(1000, 64), torch.randn(1000, 64)
    print("result:", tuple(blend(x, y).shape))
    counted = intarsia.counters()
    print("graphs:", counted["graphs"], "kernels:", counted["kernels"])

    report = check(lambda x, y: torch.softmax(x + y, dim=-1), (x, y))
    print(f"softmax is right, off by at most {report.worst:.1g}")
