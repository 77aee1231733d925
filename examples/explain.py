"""What became of a function: `explain` makes one call and tells of graphs, breaks, checks and kernels; `export` gives the one graph there is."""

import torch

import intarsia

clipped: list[torch.Tensor] = []


def clip_norm(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Decides in Python, by a tensor's value, and keeps what it clipped."""
    norm = x.square().sum().sqrt()
    if norm > limit:
        clipped.append(norm)
        x = x * (limit / norm)
    return x + 1


def clip_norm_whole(x: torch.Tensor, limit: float) -> torch.Tensor:
    """The same without a decision: one graph."""
    norm = x.square().sum().sqrt()
    return x * (limit / norm).clamp(max=1) + 1


x = torch.randn(64, 64)
with torch.no_grad():
    explanation = intarsia.explain(clip_norm)(x, 1.0)
    print(explanation)
    for broken in explanation.breaks:
        print("line", broken.line, "-", broken.remedy)

    print("graph breaks afterwards:", intarsia.explain(clip_norm_whole)(x, 1.0).graph_break_count)
    exported = intarsia.export(clip_norm_whole)(x, 1.0)
    print("exported:", torch.allclose(exported.graph_module(x, 1.0), clip_norm(x, 1.0), atol=1e-6))
