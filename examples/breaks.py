"""Graph breaks: a branch on a tensor's value, a print and NumPy in one function; everything around them is compiled."""

import numpy
import torch

import intarsia


def normalize(x: torch.Tensor, history: list[float]) -> torch.Tensor:
    """Four places at which only Python can go on."""
    y = torch.tanh(x) * 2 + 1
    history.append(round(y.mean().item(), 3))
    if y.sum() < 0:
        print("a negative sum")
        y = -y
    order = numpy.argsort(y[0].numpy())
    return torch.softmax(y[:, torch.from_numpy(order)], dim=-1)


fast = intarsia.compile(normalize)
ramp = torch.linspace(0, 1, 32).reshape(4, 8)
with torch.no_grad():
    for x in (ramp, -3 * ramp, ramp):
        expected, seen = [], []
        close = torch.allclose(normalize(x, expected), fast(x, seen), atol=1e-6)
        print("close:", close, "- same side effects:", seen == expected)

counted = intarsia.counters()
print(
    "breaks:", counted["breaks"], "compiled graphs:", counted["graphs"], "whole calls in eager:", counted["fallbacks"]
)

try:
    intarsia.compile(normalize, fullgraph=True)(ramp, [])
except intarsia.GraphBreak as error:  # the error of the first break, with its line
    print(error)
