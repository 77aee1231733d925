"""One of the processes that `torchrun` starts, for test_devices.py: data-parallel training and inference, compiled beside eager.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500 python tests/gpu/rank.py

Without RANK there is no process group. Without a GPU all runs on the CPU. The last line names the compiler's worker processes.
"""

from __future__ import annotations

import copy
import os

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS
from intarsia.targets.triton.worker import WORKERS

STEPS = 4


class Net(nn.Module):
    """Kernels and library calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(64, 64) for _ in range(2)), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.norm(F.gelu(layer(x))) + x
        return x.softmax(-1)


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The parameters after a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    """Compare; raises where something differs."""
    rank, gpus = int(os.environ.get("RANK", "-1")), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = Net().to(device)
    x = torch.randn(8, 64, device=device) + rank  # other data in each process
    if rank >= 0:
        torch.distributed.init_process_group("nccl" if gpus else "gloo", **({"device_id": device} if gpus else {}))
        ids = [device.index] if gpus else None
        wanted = trained(DistributedDataParallel(copy.deepcopy(net), ids), x)
        inside = trained(DistributedDataParallel(intarsia.compile(copy.deepcopy(net)), ids), x)
        outside = trained(intarsia.compile(DistributedDataParallel(copy.deepcopy(net), ids)), x)
        for found in (inside, outside):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    fast = intarsia.compile(net.eval())
    with torch.no_grad():
        for k in range(6):
            torch.testing.assert_close(fast(x + k), net(x + k), rtol=1e-3, atol=1e-3)
    assert intarsia.counters()["kernels"] and not intarsia.counters()["fallbacks"]
    assert STATISTICS.replays or not gpus
    if rank >= 0:
        torch.distributed.destroy_process_group()
    print("workers:", *(WORKERS.idle.get().pid for _ in range(WORKERS.idle.qsize())))


if __name__ == "__main__":
    main()
