"""Every stage between a function and its machine code, as text."""

import torch

import intarsia


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Three reductions and a division, in one kernel."""
    return torch.softmax(x * 0.125, dim=-1)


lowered = intarsia.lower(softmax, torch.randn(16, 768))
print(lowered.fx.code)
for level in ("aten", "prim", "kernel", "loop", "buffer"):
    print(f"---- {level}")
    print(lowered.ir(level))
print("---- C++")
print(lowered.source())
print("---- host program")
print(lowered.host())
for remark in lowered.remarks:
    print("remark:", remark)
