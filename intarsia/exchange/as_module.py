"""A graph that was read from another form as a module of our IR, at level `aten`."""

from __future__ import annotations

import torch
from torch import fx

from ..frontend.errors import Unsupported
from ..frontend.functional.trace import functionalize
from ..ir.fx.importer import Imported, ImportFailure, import_fx
from .errors import ExchangeError


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
