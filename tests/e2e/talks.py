"""One of two processes that talk inside of compiled functions, for test_talks.py: each function compiled, beside eager.

    python tests/e2e/talks.py RANK FILE

FILE is a new file by which the processes find each other. Each line of rank 0 is one function as JSON: {"name", "same" (on both ranks),
"breaks", "graphs", "fallbacks"}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import intarsia

Function = Callable[[Tensor], Any]


def functions(mesh: DeviceMesh) -> dict[str, Function]:
    both = dist.new_group([0, 1])

    def reductions(x: Tensor) -> list[Tensor]:
        found = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            y = x * 2
            dist.all_reduce(y, op=op)
            found.append(y + 1)
        return found

    def groups(x: Tensor) -> Tensor:
        a, b, c = x + 1, x + 2, x + 3
        dist.all_reduce(a, group=both)
        dist.all_reduce(b, group=mesh.get_group())
        dist.all_reduce(c, group=dist.group.WORLD)
        return a * b + c + functional.all_reduce(x, "sum", both)

    def later(x: Tensor) -> Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        z = x.sin() @ x.T
        work.wait()
        return y.sum() + z

    def parts(x: Tensor) -> list[Tensor]:
        y, place = x * 2, dist.get_rank()
        rows, first = torch.empty(2 * len(y), y.shape[1]), x + place
        dist.all_gather_into_tensor(rows, y)
        listed = [torch.empty_like(y) for _ in range(2)]
        dist.all_gather(listed, y)
        half = torch.empty(len(y) // 2, y.shape[1])
        dist.reduce_scatter_tensor(half, y)
        of_list = torch.empty_like(half)
        dist.reduce_scatter(of_list, list(y.chunk(2)))
        exchanged = torch.empty_like(y)
        dist.all_to_all_single(exchanged, y)
        dist.broadcast(first, 1)
        return [rows + 1, torch.cat(listed), half, of_list, exchanged, first]

    def argument(x: Tensor) -> Tensor:
        """The caller's tensor holds the sum afterwards."""
        dist.all_reduce(x)
        return x + 1

    def unread(x: Tensor) -> Tensor:
        """Nobody reads the sums, which the other process sends all the same; equal calls stay two."""
        for _ in range(2):
            dist.all_reduce(x.clone())
        return x + 1

    def scalars(x: Tensor) -> Tensor:
        mean, each = x.mean(), torch.empty(2)
        dist.all_reduce(mean)
        dist.all_gather_into_tensor(each, x.sum().reshape(1))
        return mean / 2 + each.max()

    def barrier(x: Tensor) -> Tensor:
        y = x * 2
        dist.barrier()
        return y + 1

    def other_sizes(x: Tensor) -> Tensor:
        """What cannot be an operator of the graph is eager's, its error among it."""
        try:
            dist.all_gather_into_tensor(torch.empty(3), x)
        except (RuntimeError, ValueError):
            return x + 1
        return x

    def gaps(x: Tensor) -> Tensor:
        try:
            dist.all_gather([torch.empty(3, 2).T, torch.empty(3, 2).T], x[:2, :3])
        except (RuntimeError, ValueError):
            return x + 1
        return x

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        """A whole step whose gradients the program averages itself."""
        loss = net(x).square().mean()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def with_gradients(x: Tensor) -> Tensor:
        y = net(x)
        loss = (differentiable.all_reduce(y) * functional.all_reduce(y.detach(), "sum", mesh)).mean()
        loss.backward()
        found = torch.cat([p.grad.flatten() for p in net.parameters()])
        optimizer.zero_grad()
        return found

    return {
        f.__name__: f
        for f in (
            *(reductions, groups, later, parts, argument, unread, scalars, barrier, other_sizes, gaps),
            *(step, with_gradients),
        )
    }


def outcomes(function: Function, rank: int) -> list[Tensor]:
    found: list[Tensor] = []
    for k in range(3):
        x = torch.arange(24.0).reshape(4, 6) / 7 + rank + k
        result = function(x)
        found += [x, *(result if isinstance(result, list) else [result])]
    return [t.detach().clone() for t in found]


def main() -> None:
    rank, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    plain, compiled = functions(mesh), functions(mesh)
    for name, function in plain.items():
        wanted = outcomes(function, rank)
        intarsia.reset()
        found = outcomes(intarsia.compile(compiled[name]), rank)
        counted = intarsia.counters()
        same = torch.tensor(
            float(all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(wanted, found, strict=True)))
        )
        dist.all_reduce(same)
        if rank == 0:
            told = {key: counted.get(key) for key in ("breaks", "graphs", "fallbacks")}
            print(json.dumps({"name": name, "same": same.item() == 2, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
