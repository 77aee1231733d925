"""One of two processes that train with the options of `DistributedDataParallel`, or as stages of a pipeline, for test_wrapped.py.

    python tests/e2e/wrapped.py RANK FILE

FILE is a new file by which the processes find each other. Each line is one way as JSON: {"way", "eager", "compiled": losses and sums of
parameters, "breaks", "graphs", "fallbacks"}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import SMALL, STEPS, Net, plainly
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import intarsia

Compile = Callable[[Any], Any]


def unused(net: Net, compiled: Compile, x: Tensor) -> list[float]:
    """Each step uses another part of the model."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.parts = net, nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor, k: int) -> Tensor:
            return self.parts[k % 2](self.net(x))

    wrapper = DistributedDataParallel(Either(), bucket_cap_mb=SMALL, find_unused_parameters=True)
    forward, optimizer, losses = compiled(wrapper), torch.optim.SGD(wrapper.parameters(), lr=0.1), []
    for k in range(STEPS + 1):
        loss = forward(x, k).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item(), *(p.sum().item() for p in wrapper.parameters())]
    return losses


def static(net: Net, compiled: Compile, x: Tensor) -> list[float]:
    wrapper = DistributedDataParallel(net, bucket_cap_mb=SMALL, static_graph=True, gradient_as_bucket_view=True)
    return plainly(wrapper, compiled(wrapper), x)


def hooked(net: Net, compiled: Compile, x: Tensor) -> list[float]:
    """Gradients are sent in half the bytes."""
    wrapper = DistributedDataParallel(compiled(net), bucket_cap_mb=SMALL)

    def send(state, bucket):  # type: ignore[no-untyped-def]  (torch looks at annotations, which are texts here)
        half = bucket.buffer().to(torch.bfloat16)
        return dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0].float() / 2)

    wrapper.register_comm_hook(None, send)
    return plainly(wrapper, wrapper, x)


def statistics(net: Net, compiled: Compile, x: Tensor) -> list[float]:
    """Buffers are those of process 0."""
    norm = nn.BatchNorm1d(8)
    wrapper = DistributedDataParallel(nn.Sequential(net, norm, nn.Linear(8, 8)), bucket_cap_mb=SMALL)
    losses = plainly(wrapper, compiled(wrapper), x)
    return [*losses, norm.running_mean.sum().item(), norm.running_var.sum().item()]  # type: ignore[union-attr]


def stages(net: Net, compiled: Compile, x: Tensor) -> list[float]:
    """A pipeline of two, each compiled by itself."""
    rank = dist.get_rank()
    part = net.blocks[0] if rank == 0 else nn.Sequential(net.blocks[1], net.head)
    stage = PipelineStage(compiled(part), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer, found = torch.optim.SGD(part.parameters(), lr=0.1), list[float]()
    dist.broadcast(x, 0)
    for k in range(STEPS):
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x + k)
        else:
            schedule.step(target=torch.zeros(16, 8), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        found += [*(loss.item() for loss in losses), *(p.sum().item() for p in part.parameters())]
    return found


def main() -> None:
    rank, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    for way in (unused, static, hooked, statistics, stages):
        found = {}
        for name, compiled in (("eager", lambda fn: fn), ("compiled", intarsia.compile)):
            intarsia.reset()
            torch.manual_seed(0)
            net = Net()
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(rank + 1))
            found[name] = way(net, compiled, x)
        counted = intarsia.counters()
        told = {name: counted.get(name) for name in ("breaks", "graphs", "fallbacks")}
        print(json.dumps({"way": way.__name__, **found, **told}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
