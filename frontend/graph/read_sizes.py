"""Sizes that only the running program knows: those of `nonzero`, of a boolean mask, of `unique`. They are symbols without a hint.

A graph that runs such an operator goes on. What Python decides by such a size breaks it, unless it follows from what is known of the symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from torch import Tensor, fx

from ..errors import GraphBreak
from ..torch_private.fake import needs_dynamic_sizes
from ..torch_private.symbols import no_longer_pending, unknown_symbol

__all__ = ["ReadSizes"]


class ReadSizes:
    """Those of one capture: which node's result shows which symbol.

    `allow` lets the fake mode make such sizes, and says whether the backend takes them.
    """

    def __init__(self) -> None:
        self.allow: Callable[[], bool] = bool
        self._shown: dict[sympy.Symbol, tuple[fx.Node, int, Any]] = {}

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """`function(*args, **kwargs)`; a capture without symbols gets them with the first size that values decide."""
        try:
            return function(*args, **kwargs)
        except needs_dynamic_sizes():
            if not self.allow():
                raise
        return function(*args, **kwargs)

    def bind_sizes(self, tensor: Tensor, node: fx.Node) -> None:
        """The node's result shows what its sizes are."""
        for dim, size in enumerate(tensor.shape):
            symbol = unknown_symbol(size)
            if symbol is not None:
                self._shown.setdefault(symbol, (node, dim, size))
                no_longer_pending(size)

    def shown(self, symbol: sympy.Symbol) -> tuple[Tensor, str]:
        """The tensor that shows a symbol, and what of it, as Python text."""
        node, dim, _ = self._show(symbol)
        return node.meta["example_value"], f".shape[{dim}]"

    def _show(self, symbol: sympy.Symbol) -> tuple[fx.Node, int, Any]:
        if symbol not in self._shown:
            raise GraphBreak("a size that depends on a tensor's values")
        return self._shown[symbol]

    def node_of(self, symbol: sympy.Symbol, emit: Callable[..., fx.Node]) -> fx.Node:
        """A node for a symbol, which `emit` makes."""
        node, dim, size = self._show(symbol)
        return emit("call_method", "size", (node, dim), {}, size)
