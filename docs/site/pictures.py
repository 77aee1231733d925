"""Pictures of the site, drawn from the code: a function's operations at a level as a graph in layers, and the order of the passes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import networkx as nx
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation

import intarsia
from intarsia.ir.dialects.prim import Func
from intarsia.ir.text import parse_module
from intarsia.passes.pipeline import CPU, default_pipeline
from intarsia.tools.opt.emit import order_svg

WIDTH, HEIGHT, GAP = 150, 34, 26  # of a box, and between two of them


def attention_weights(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The function of docs/road.md."""
    scores = scores / 8.0
    return torch.softmax(scores + mask, dim=-1)


def pictures() -> dict[str, str]:
    """The name and text of each picture."""
    low = intarsia.lower(attention_weights, torch.zeros(4, 128), torch.zeros(128))
    levels = {level: graph_svg(parse_module(low.ir(level))) for level in ("aten", "prim", "kernel")}
    made = {f"pictures/road-{level}.svg": text for level, text in levels.items()}
    return made | {"pictures/passes-cpu.svg": order_svg(default_pipeline(gpu=False), CPU)}


def graph_svg(module: ModuleOp) -> str:
    """The operations of @main from top to bottom, each below all that it reads; a kernel is a frame around what it computes."""
    func = next(op for op in module.body.block.ops if isinstance(op, Func))
    graph, frames = nx.DiGraph(), {}
    names = [str(name) for name in func.get("arg_names") or ()]
    for number, argument in enumerate(func.block_body.args):
        graph.add_node(argument, label=names[number] if number < len(names) else f"argument {number}", given=True)
    for op in _inside(func.block_body, frames):
        graph.add_node(op, label=_label(op), given=False, line="" if op.location is None else str(op.location))
        for operand in op.operands:
            for source in _sources(operand, frames):
                graph.add_edge(source, op)
    rows = [[node for node in graph if graph.nodes[node]["given"]]]
    rows += nx.topological_generations(graph.subgraph(node for node in graph if not graph.nodes[node]["given"]))
    widest = max(map(len, rows))
    place = {
        node: (
            GAP + (WIDTH + GAP) * (number + (widest - len(row)) / 2),
            GAP + (HEIGHT + GAP) * level,
        )
        for level, row in enumerate(rows)
        for number, node in enumerate(row)
    }
    width, height = 2 * GAP + 60 + widest * (WIDTH + GAP), GAP + len(rows) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" rx="6" fill="white"/>',
    ]
    for kernel in dict.fromkeys(frames.values()):
        if isinstance(kernel, Operation) and (
            boxes := [place[op] for op, k in frames.items() if k is kernel and op in place]
        ):
            left, top = min(x for x, _ in boxes) - 10, min(y for _, y in boxes) - 10
            right, low = max(x for x, _ in boxes) + WIDTH + 10, max(y for _, y in boxes) + HEIGHT + 10
            parts.append(
                f'<rect x="{left}" y="{top}" width="{right - left}" height="{low - top}" rx="8" fill="#e5f4ef" stroke="#2f9e77"/>'
                f'<text x="{right + 6}" y="{top + 14}" fill="#2f9e77">{escape(kernel.name)}</text>'
            )
    for source, target in graph.edges:
        (x, y), (u, v) = place[source], place[target]
        parts.append(
            f'<path d="M{x + WIDTH / 2} {y + HEIGHT} L{u + WIDTH / 2} {v - 4}" stroke="#888" fill="none"/>'
            f'<path d="M{u + WIDTH / 2 - 4} {v - 6} l8 0 l-4 6 z" fill="#888"/>'
        )
    for node, (x, y) in place.items():
        given = graph.nodes[node]["given"]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{17 if given else 4}" '
            f'fill="{"#f3f3f3" if given else "#fff"}" stroke="#555"/>'
            f'<text x="{x + WIDTH / 2}" y="{y + 21}" text-anchor="middle">{escape(graph.nodes[node]["label"])}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _inside(block: Block, frames: dict[object, object]) -> Iterator[Operation]:
    """The operations of a block, a kernel's own in its place; `frames` gets what they are framed by, and what arguments stand for."""
    for op in block.ops:
        if not op.regions:
            yield op
            continue
        inner = op.regions[0].block
        frames.update(zip(inner.args, op.operands, strict=False))
        for inside in _inside(inner, frames):
            if inside is inner.last_op:
                frames.update(zip(op.results, inside.operands, strict=True))
            else:
                frames.setdefault(inside, op)
                yield inside


def _sources(value: object, frames: dict[object, object]) -> list[object]:
    """The operation or argument that makes a value, through the borders of kernels."""
    while value in frames:
        value = frames[value]
    owner = getattr(value, "owner", None)
    return [owner if isinstance(owner, Operation) else value]


def _label(op: Operation) -> str:
    dialect, _, name = op.name.partition(".")
    kind = op.get("kind") if hasattr(op, "get") else None
    return {"prim": name, "aten": name.partition(".")[0]}.get(dialect, op.name) + (f" {kind}" if kind else "")
