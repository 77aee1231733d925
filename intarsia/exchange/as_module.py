"""A graph that is read from another form: where its nodes come from, and the graph as a module of our IR, at level `aten`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..frontend.errors import Unsupported
from ..frontend.functional.trace import functionalize
from ..ir.fx.importer import Imported, ImportFailure, import_fx
from .errors import ExchangeError


class LineTracer(fx.proxy.GraphAppendingTracer):
    """Names the line, in the form that is read, of each node that is appended."""

    trace = ""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["stack_trace"] = self.trace
        return node


def as_module(graph: fx.GraphModule) -> Imported:
    """The module, and the graph's own tensors, which are its last arguments.

    Raises:
        ExchangeError: something in it has no form in the IR.
    """
    given = [torch.empty(x.shape, dtype=x.dtype) for x in graph.meta["inputs"]]
    try:
        return import_fx(functionalize(graph, given))
    except (Unsupported, ImportFailure) as error:
        raise ExchangeError(str(error)) from None
