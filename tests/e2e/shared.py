"""One of two processes that compute with DTensors in compiled functions, for test_shared.py: each function compiled, beside eager.

    python tests/e2e/shared.py RANK FILE

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
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import intarsia

Compile = Callable[[Any], Any]
Case = Callable[[Compile, DeviceMesh], list[Any]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = (nn.RMSNorm(16), *(nn.Linear(16, 16) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(z.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(12, 16), nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def transformer(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Between products the sequence is divided."""
    torch.manual_seed(0)
    model = Model()
    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        plan = {name: ColwiseParallel(input_layouts=Shard(1)) for name in "qkv"}
        parallelize_module(
            layer, mesh, {"norm": SequenceParallel(), **plan, "o": RowwiseParallel(output_layouts=Shard(1))}
        )
    forward, optimizer, losses = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1), []
    for k in range(4):
        x = (torch.arange(16).reshape(2, 8) + k) % 12
        loss = F.cross_entropy(forward(x).flatten(0, 1), x.flatten())
        loss.backward()
        if k % 2:  # gradients of two batches
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
    return [*losses, *(p for p in model.parameters())]


def shared(mesh: DeviceMesh, *shape: int, at: Any = None) -> DTensor:
    whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 7 + 0.1
    return distribute_tensor(whole, mesh, [at or Shard(0)])


def made_and_unmade(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    w = nn.Parameter(shared(mesh, 6, 8, at=Shard(1)))

    def f(x: Tensor) -> Tensor:
        d = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        y = torch.relu(d @ w) * 2
        if y.placements != (Replicate(),):
            y = y.redistribute(placements=[Replicate()], async_op=True)
        return y.to_local() + (d * 2).full_tensor().sum()

    run, found = compiled(f), list[Any]()
    for k in range(3):
        loss = run(torch.ones(4, 6) + k).square().mean()
        loss.backward()
        found += [loss, w.grad]
    return found


def arguments(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Given and given back, in several layouts; gradients flow through the result."""

    def f(x: DTensor, y: DTensor) -> tuple[Any, ...]:
        return x @ y, x.sum(0), x

    run, found = compiled(f), list[Any]()
    for at in (Shard(0), Replicate(), Shard(1), Shard(0)):
        x = shared(mesh, 4, 6, at=at).requires_grad_()
        results = run(x, shared(mesh, 6, 3, at=Replicate()))
        (results[0].sum() + results[1].square().sum()).backward()
        found += [*results, x.grad, results[2] is x, results[0].placements, results[1].placements]
    return found


def uneven(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    def f(x: DTensor) -> Any:
        return (x.sin() + 1).redistribute(placements=[Replicate()]).to_local()

    run = compiled(f)
    return [run(shared(mesh, 5, 3)), run(shared(mesh, 5, 3) * 2), run(shared(mesh, 1, 3))]


def across_a_break(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    def f(x: DTensor, n: Tensor) -> Any:
        y = x * 2 + 1
        dist.barrier()
        return y * n.sum().item() + x

    run = compiled(f)
    return [run(shared(mesh, 4, 3), torch.ones(2) + k) for k in range(3)]


def written(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    def f(x: DTensor) -> Any:
        y = x * 2
        y.add_(1)
        y += x
        return y.exp()

    run, x = compiled(f), shared(mesh, 4, 3)
    return [run(x), x]


def dropped(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    def f(x: DTensor, training: bool) -> Any:
        return F.dropout(x * 2, 0.5, training) + 1

    run = compiled(f)
    return [run(shared(mesh, 4, 3), False), run(shared(mesh, 4, 3), True).shape]


def gradients(compile: Compile, mesh: DeviceMesh) -> list[Any]:
    """`.grad` of a DTensor, read and assigned."""
    torch.manual_seed(0)
    w = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]))

    def halved(x: Tensor) -> Tensor:
        before = w.grad
        w.grad = None if before is None else before * 0.5
        return x * 2 if before is None else x + before.full_tensor()

    fast, found = compile(halved), []
    for k in range(4):
        found.append(fast(torch.full((4, 4), float(k))))
        if k == 1:
            (w * w).sum().backward()
        if w.grad is not None:
            found.append(w.grad.detach())
    return found


def asked(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """What a graph does not know of DTensors."""
    w = nn.Parameter(shared(mesh, 4, 3))
    (w * 2).sum().backward()

    def f(x: DTensor) -> Any:
        y = x * 2
        return y + w.grad, w.is_leaf, w.data * 3, y.requires_grad

    run = compiled(f)
    return [r for _ in range(2) for r in run(shared(mesh, 4, 3))]


def modes(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Gradients that are on inside only, and a parameter that is frozen between calls."""
    w = nn.Parameter(shared(mesh, 4, 3))

    def f(x: DTensor) -> Any:
        with torch.no_grad():
            a = w * 3
        with torch.enable_grad():
            b = w * x
        return a, b, b.requires_grad, a.requires_grad, w.requires_grad

    run, found = compiled(f), list[Any]()
    for grad, frozen in ((True, False), (False, False), (True, True)):
        w.requires_grad_(not frozen)
        with torch.set_grad_enabled(grad):
            results = run(shared(mesh, 4, 3))
        found += [*results, results[1].requires_grad]
    return found


def mixed(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Eager's error."""
    run = compiled(lambda x, y: x * y)
    try:
        run(shared(mesh, 4, 3), torch.ones(4, 3))
    except RuntimeError as error:
        return ["mixed" in str(error)]
    return [None]


def prepared(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
    parallelize_module(
        model,
        mesh,
        {
            "": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
            "0": ColwiseParallel(use_local_output=False),
            "2": RowwiseParallel(),
        },
    )
    run, x = compiled(model), torch.randn(4, 6, requires_grad=True)
    run(x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters()), run(x)]


def lengths(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Each size is a graph of its own."""
    torch.manual_seed(0)
    layer = parallelize_module(nn.Linear(6, 8), mesh, ColwiseParallel())
    run = compiled(lambda x: layer(x).relu())
    return [run(torch.ones(n, 6)) for n in (4, 5, 7, 4, 1)]


def in_parts(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """A loss over classes that are divided, whose rules for operators are set inside."""
    torch.manual_seed(0)
    head = parallelize_module(nn.Linear(6, 8), mesh, ColwiseParallel(use_local_output=False))

    def loss(x: Tensor) -> Tensor:
        with loss_parallel():
            return F.cross_entropy(head(x), torch.arange(4))

    run, found = compiled(loss), list[Any]()
    for k in range(2):
        value = run(torch.ones(4, 6) * torch.arange(4)[:, None] + k)
        with loss_parallel():
            value.backward()
        found += [value, head.weight.grad]
    return found


def half(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    run = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        result = run(torch.ones(4, 6))
    result.float().square().sum().backward()
    return [result.dtype, *((p.grad.full_tensor() * 10).round() for p in model.parameters())]


def layouts(compiled: Compile, mesh: DeviceMesh) -> list[Any]:
    """Layouts are asked, given and given back."""

    def f(x: DTensor, at: Any) -> Any:
        if x.placements[0].is_shard(0) and not at.is_partial():
            x = x.redistribute(placements=[at])
        return x * 2, x.placements, x.device_mesh

    run, found = compiled(f), list[Any]()
    for at, to in ((Shard(0), Replicate()), (Shard(1), Replicate()), (Shard(0), Shard(1)), (Shard(0), Shard(1))):
        y, placements, on = run(shared(mesh, 4, 6, at=at), to)
        found += [y, placements, y.placements, on == mesh]
    return found


CASES: tuple[Case, ...] = (
    *(
        transformer,
        made_and_unmade,
        arguments,
        uneven,
        across_a_break,
        written,
        dropped,
        asked,
        gradients,
        modes,
        mixed,
    ),
    *(prepared, lengths, in_parts, half, layouts),
)


def plain(value: Any) -> Any:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().clone() if isinstance(value, Tensor) else value


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)
    return type(a) is type(b) and bool(a == b)


def main() -> None:
    rank, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for case in CASES:
        if len(sys.argv) > 3 and case.__name__ not in sys.argv[3:]:
            continue
        wanted = case(lambda f: f, mesh)
        kinds = [isinstance(v, DTensor) for v in wanted]
        wanted = [plain(v) for v in wanted]
        intarsia.reset()
        found = case(intarsia.compile, mesh)
        counted = intarsia.counters()
        same = kinds == [isinstance(v, DTensor) for v in found]
        pairs = [(a, plain(b)) for a, b in zip(wanted, found, strict=True)]
        agreed = torch.tensor(float(same and all(equal(a, b) for a, b in pairs)))
        dist.all_reduce(agreed)
        if rank == 0:
            told = {key: counted.get(key) for key in ("breaks", "graphs", "fallbacks")}
            wrong = (
                [] if agreed.item() == 2 else [str(p)[:300] for p in pairs if not equal(*p)] + [str(kinds)] * (not same)
            )
            print(json.dumps({"name": case.__name__, "same": agreed.item() == 2, **told, "wrong": wrong}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
