"""Sizes that only the running program knows: those of `nonzero`, of a boolean mask, of `unique`. They are symbols without a hint.

A graph that runs such an operator goes on. What Python decides by such a size breaks it, unless it follows from what is known of the symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..errors import GraphBreak
from ..torch_private.fake import needs_dynamic_sizes
from ..torch_private.symbols import is_unknown, no_longer_pending, scalar_outputs, unknown_symbol

__all__ = ["READS", "ReadSizes"]

READS = "reads"  # in a graph's `meta`: it has such sizes or numbers


class ReadSizes:
    """Those of one capture: which node's result shows which symbol.

    `allow` lets the fake mode make such sizes, and says whether the backend takes them.
    """

    def __init__(self) -> None:
        self.allow: Callable[[], bool] = bool
        self._first: GraphBreak | None = None  # where a number was read first
        self._numbers: dict[tuple[int, int], Any] = {}  # by the tensor, which the graph keeps, and its version
        self._shown: dict[sympy.Symbol, tuple[fx.Node, int | None, Any]] = {}

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
        if dim is None:
            return node.args[0].meta["example_value"], ".item()"  # type: ignore[union-attr]
        return node.meta["example_value"], f".shape[{dim}]"

    def any(self) -> bool:
        """Whether the graph has one."""
        return bool(self._shown)

    def check_gradients(self, info: Any) -> None:
        """Break where a number was read, if the graph takes gradients: checks of numbers are lost where torch traces these."""
        if self._first is not None and info.requires_grad and torch.is_grad_enabled():
            raise self._first

    def known(self, tensor: Tensor, written: bool) -> Any:
        """The number that was read of a tensor which nobody has written to since; else None."""
        return None if written else self._numbers.get((id(tensor), tensor._version))

    def number(self, out: Any, of: Tensor, tensor: Tensor, refused: GraphBreak) -> Any:
        """The number in a tensor, a copy `of` another one that nobody else writes to; `refused` is the break here."""
        self._first = self._first or refused
        for info in out.used:
            self.check_gradients(info)
        with scalar_outputs(out.shape_env):
            value = tensor.item()
        symbol = unknown_symbol(value)
        if symbol is None:
            raise GraphBreak("a number that depends on a tensor's values")
        self._numbers[id(of), of._version] = value
        node = out.record_number("item", (out.node(tensor),), value)
        self._shown.setdefault(symbol, (node, None, value))
        no_longer_pending(value)
        return value

    def no_float(self, value: Any) -> Any:
        """The value, which is no float that is made of such a number: operators take none."""
        if type(value) is torch.SymFloat and not self._shown.keys().isdisjoint(value.node.expr.free_symbols):
            raise GraphBreak("a number that depends on a tensor's values becomes a float")
        return value

    @staticmethod
    def is_read(value: Any) -> bool:
        """Whether a symbolic number follows from what only the running program knows."""
        return any(map(is_unknown, value.node.expr.free_symbols))

    def _show(self, symbol: sympy.Symbol) -> tuple[fx.Node, int | None, Any]:
        if symbol not in self._shown:
            raise GraphBreak("a size that depends on a tensor's values")
        return self._shown[symbol]

    def node_of(self, symbol: sympy.Symbol, emit: Callable[..., fx.Node]) -> fx.Node:
        """A node for a symbol, which `emit` makes."""
        node, dim, size = self._show(symbol)
        return node if dim is None else emit("call_method", "size", (node, dim), {}, size)
