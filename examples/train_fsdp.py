"""Sharded training: each process holds a part of every layer's parameters and gathers them in front of the layer.

torchrun --nproc-per-node 2 examples/train_fsdp.py [--steps 50] [--systems eager,intarsia]
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training_table import table

WIDTH, BATCH = 256, 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def prepare(compiled: Callable[[Any], Any]) -> Callable[[int], Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(4)), nn.Linear(WIDTH, 10)).to(DEVICE)
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    fast = compiled(model)  # the hooks that gather and free run between the graphs of the layers
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
