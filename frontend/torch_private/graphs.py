"""Graph modules: when their Python code is written, and the trees of their arguments."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen  # noqa: F401  (used from here)
from torch.fx.graph import _PyTreeInfo as PyTreeInfo  # noqa: F401


def lazy_graph_module(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A graph module whose Python code is written when it is first asked for."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def plain_graph_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph in an ordinary graph module: torch.jit.script of torch 2.11 cannot read a lazy one."""
    made = fx.GraphModule(module, module.graph)
    made.meta.update(module.meta)
    return made


def write_code(module: fx.GraphModule) -> None:
    """Write the Python code of a graph module now: torch.jit cannot look at one that waits."""
    if hasattr(module, "real_recompile"):
        module.real_recompile()  # type: ignore[operator]
