"""One of two processes that train together, for test_distributed.py: each way to train compiled, beside eager.

    python tests/e2e/ranks.py RANK FILE

FILE is a new file by which the processes find each other. With two GPUs they talk by NCCL, else by gloo on the CPU. Each line
of rank 0 is one way as JSON: {"way", "eager", "compiled": losses, "parameters": equal or not, "breaks", "graphs", "parts"}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import intarsia

STEPS = 3
SMALL = 0.004  # MiB: a bucket for each layer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


Compile = Callable[[Any], Any]


def plainly(model: nn.Module, forward: Any, x: Tensor) -> list[float]:
    """Losses of a few steps."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        loss = forward(x + step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def around(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    wrapper = DistributedDataParallel(net, bucket_cap_mb=SMALL)
    return plainly(wrapper, compiled(wrapper), x)


def inside(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    wrapper = DistributedDataParallel(compiled(net), bucket_cap_mb=SMALL)
    return plainly(wrapper, wrapper, x)


def autocast(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """Autocast begins inside of the graph that is cut."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16):
                return self.net(x).float()

    wrapper = DistributedDataParallel(Cast(), bucket_cap_mb=SMALL)
    return plainly(wrapper, compiled(wrapper), x)


def accumulate(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """Gradients of two batches, of which the first is not sent."""
    wrapper = DistributedDataParallel(net, bucket_cap_mb=SMALL)
    forward, losses = compiled(wrapper), []
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    for step in range(STEPS):
        with wrapper.no_sync():
            forward(x - step).square().mean().backward()
        loss = forward(x + step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return plainly(net, compiled(net), x)


def sharded_around(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """Layers are compiled, then sharded."""
    for k, block in enumerate(net.blocks):
        net.blocks[k] = compiled(block)
        fully_shard(net.blocks[k], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return plainly(net, net, x)


def sharded_inside(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """Layers are sharded, then compiled."""
    for k, block in enumerate(net.blocks):
        fully_shard(block, mesh=mesh)
        net.blocks[k] = compiled(block)
    fully_shard(net, mesh=mesh)
    return plainly(net, net, x)


def sharded_step(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """The whole step in one function."""
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = compiled(step)
    return [run(x + k).item() for k in range(STEPS)]


def tensor_parallel(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    dist.broadcast(x, 0)
    return plainly(net, compiled(net), x)


def collective(net: Net, compiled: Compile, mesh: DeviceMesh, x: Tensor) -> list[float]:
    """A collective of the program's own, without gradients."""

    def mean(x: Tensor) -> Tensor:
        return all_reduce(net(x) * 2, "sum", mesh) / 2

    with torch.no_grad():
        run = compiled(mean)
        return [run(x + step).square().mean().item() for step in range(STEPS)]


WAYS = (
    *(around, inside, autocast, accumulate, sharded, sharded_around, sharded_inside, sharded_step),
    *(tensor_parallel, collective),
)


def whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach().clone()


def run(way: Any, compiled: Compile, mesh: DeviceMesh, rank: int) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(0)
    net = Net().to(mesh.device_type)
    torch.manual_seed(rank + 1)
    losses = way(net, compiled, mesh, torch.randn(16, 32, device=mesh.device_type))
    return losses, [whole(p) for p in net.parameters()]


def main() -> None:
    rank, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    cuda = torch.cuda.device_count() > 1
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    mesh = init_device_mesh("cuda" if cuda else "cpu", (2,))
    for way in WAYS:
        wanted, reference = run(way, lambda fn: fn, mesh, rank)
        intarsia.reset()
        found, parameters = run(way, intarsia.compile, mesh, rank)
        counted = intarsia.counters()
        equal = all(torch.allclose(a, b, rtol=1e-2, atol=1e-3) for a, b in zip(parameters, reference, strict=True))
        told = {name: counted.get(name) for name in ("breaks", "graphs", "fallbacks")}
        if rank == 0:
            print(json.dumps({"way": way.__name__, "eager": wanted, "compiled": found, "parameters": equal, **told}))
            sys.stdout.flush()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
