"""Data-parallel training: each process has a part of the batch, gradients are averaged while backward still runs.

torchrun --nproc-per-node 2 examples/train_ddp.py [--steps 50] [--systems eager,intarsia]
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training_table import table

WIDTH, BATCH = 384, 64


def prepare(compiled: Callable[[Any], Any]) -> Callable[[int], Tensor]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(DEVICE)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)  # compiled in parts of one bucket each
    fast = compiled(ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    rule = torch.randn(WIDTH, 10, generator=torch.Generator().manual_seed(7))

    def step(n: int) -> Tensor:
        x = torch.randn(BATCH, WIDTH, generator=data)
        loss = F.cross_entropy(fast(x.to(DEVICE)), (x @ rule).argmax(-1).to(DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if cuda else "gloo")
    table(prepare, __doc__, show=dist.get_rank() == 0)
    dist.destroy_process_group()
