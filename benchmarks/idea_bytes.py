"""What a fusion policy and a partition policy can change, in bytes: `python -m benchmarks.idea_bytes [ROUNDS]` prints two tables.

The first compares the bytes that kernels move with the least that any fusion could: what comes from outside is read once, what goes outside is
written once. The second compares what forward saves for backward. Written against docs/extend.md and docs/ir.md alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

import intarsia
from benchmarks.ideas import MODELS, GreedyByProducer, milliseconds
from intarsia.extend import CompileContext, Fuse, Group, Kind, ModuleOp, PartitionPolicy, Plan, Value, prim

JOINING = ("prim.reduce", "prim.scan")
FREE = ("prim.reshape", "prim.permute", "prim.broadcast", "prim.slice")
GATHERS = ("prim.take", "prim.gather")
MADE = ("prim.full", "prim.iota")


@dataclass(frozen=True)
class OneReduction(Fuse):
    """A kernel holds one reduction at most, with what it reads and what reads it: the rule of TVM (Chen et al., 2018)."""

    name = "one-reduction"
    replaces = "fuse"

    def worth(self, plan: Plan, a: Group, b: Group) -> float:
        joining = sum(node.op.name in JOINING for node in (*a.nodes, *b.nodes))
        return super().worth(plan, a, b) if joining <= 1 else 0.0


@dataclass(frozen=True)
class CountLeast(Fuse):
    """The default policy, and a count of the fewest bytes that any could move (products are libraries' calls, and stay apart)."""

    name = "count-least"
    replaces = "fuse"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        main = next(op for op in module.body.block.ops if isinstance(op, prim.Func) and op["sym_name"] == "main")
        inside = {op for op in main.block_body.ops if op.name.startswith("prim.") and op.name != "prim.return"}
        moved: dict[Any, int] = {}
        for op in main.block_body.ops:
            for value in op.operands if op.name not in FREE else ():
                root, least = value, value.type.numel * value.type.dtype.bytes
                while getattr(root.owner, "name", "") in FREE:
                    root = root.owner.operands[0]
                    least = min(least, root.type.numel * root.type.dtype.bytes)
                if op.name in GATHERS:
                    least = min(least, op.results[0].type.numel * value.type.dtype.bytes)
                crosses = (root.owner in inside) != (op in inside) and getattr(root.owner, "name", "") not in MADE
                if crosses:
                    moved[root] = max(moved.get(root, 0), least)
        ctx.diagnostics.count(self.name, "bytes", sum(moved.values()))
        super().apply(ctx, module)


@dataclass(frozen=True)
class EveryNth(PartitionPolicy):
    """Save every n-th product, and compute all between two of them again (checkpoints, Chen et al., 2016)."""

    name = "every-nth"
    n: int = 4

    def saves(self, values: Mapping[fx.Node, Value], read: Sequence[fx.Node], budget: float) -> Iterable[fx.Node]:
        costly = [node for node, value in values.items() if value.kind is Kind.COSTLY and value.save is not None]
        return costly[:: self.n]


def fusion() -> None:
    print(f"{'model':12} {'policy':15} {'kernels':>7} {'bytes':>12} {'over least':>10}")
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model, x = make().eval(), torch.randn(shape)
        with torch.no_grad():
            default = intarsia.lower(model, x, passes=[CountLeast()]).counts
            least, rows = default["count-least"]["bytes"], {"default": default["fuse"]}
            for policy in (OneReduction(), GreedyByProducer()):
                rows[policy.name] = intarsia.lower(model, x, passes=[policy]).counts["fuse"]
        for policy_name, found in rows.items():
            moved = found["bytes"]
            print(f"{name:12} {policy_name:15} {found['kernels']:7} {moved:12,} {moved / least:10.2f}")


def step(model: nn.Module, compiled: Callable[..., Any], x: torch.Tensor) -> None:
    for p in model.parameters():
        p.grad = None
    compiled(x).square().mean().backward()


def memory(rounds: int) -> None:
    print(f"{'model':12} {'policy':12} {'saved bytes':>12} {'beside':>6} {'ms':>8} {'beside':>6} {'error':>8}")
    policies: dict[str, list[Any]] = {"default": [], "every 2nd": [EveryNth(2)], "every 4th": [EveryNth(4)]}
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model, x, rows, calls = make(), torch.randn(shape), [], []
        step(model, model, x)
        expected = [p.grad.clone() for p in model.parameters()]
        for policy, passes in policies.items():
            intarsia.reset()
            compiled = intarsia.compile(model, passes=passes, options={"on_error": "raise"})
            step(model, compiled, x)
            errors = [
                (p.grad - e).abs().max() / e.abs().max() for p, e in zip(model.parameters(), expected, strict=True)
            ]
            saved = next(g.partition.bytes for g in intarsia.explain(compiled)(x).graphs if g.partition)
            rows.append((policy, saved, float(max(errors))))
            calls.append(partial(step, model, compiled, x))
        taken = milliseconds(calls, rounds)
        for (policy, saved, error), ms in zip(rows, taken, strict=True):
            beside = saved / rows[0][1], ms / taken[0]
            print(f"{name:12} {policy:12} {saved:12,} {beside[0]:6.2f} {ms:8.3f} {beside[1]:6.2f} {error:8.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    fusion()
    memory(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
