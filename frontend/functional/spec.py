"""A functional graph as data, and what its trace knows of each piece of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, fx

from ..torch_private.functions import OpOverload

__all__ = ["FunctionalGraph", "Mutation", "OutputSpec", "Storage", "Value", "View"]


@dataclass(frozen=True)
class OutputSpec:
    """How one user output is made after the call.

    ``kind`` is one of:

    - ``"value"``: a fresh tensor, graph output ``index``; it must own its memory, with the given size and stride.
    - ``"input"``: the very object that was passed as input ``index``.
    - ``"alias"``: a view of input ``index``'s storage.  ``storage_offset`` counts from the input's own offset.
    - ``"alias_output"``: a view of the storage of graph output ``index`` (often one that no user output shows).
    - ``"output"``: the very object that is user output ``index``.
    - ``"constant"``: ``value`` itself (None, a number, a string, or a tensor attribute of the graph).
    - ``"symint"``: a number that depends on sizes, ``value`` as a sympy expression; also graph output ``index``.

    Sizes, strides and offsets (in elements) are ints or sympy expressions over the symbols of the placeholders.
    """

    kind: str
    index: int = -1
    size: tuple[Any, ...] = ()
    stride: tuple[Any, ...] = ()
    storage_offset: Any = 0
    value: Any = None


@dataclass(frozen=True)
class Mutation:
    """After the call, input ``input_index`` is to be overwritten (``copy_``) with graph output ``output_index``."""

    input_index: int
    output_index: int


@dataclass(frozen=True)
class FunctionalGraph:
    """A functional ATen graph and what the caller must do around it.

    ``graph_module`` returns one flat tuple: values of user outputs, bases of aliased outputs, new values of mutated inputs.
    ``outputs`` follow the leaves of ``output_tree`` (the nesting of the torch-level graph's result).
    ``unused_inputs`` are placeholders without a user, ``effects`` the nodes that must run even if nothing reads them.
    """

    graph_module: fx.GraphModule
    outputs: tuple[OutputSpec, ...]
    mutations: tuple[Mutation, ...]
    output_tree: pytree.TreeSpec
    unused_inputs: tuple[int, ...] = ()
    effects: tuple[str, ...] = ()


@dataclass
class Storage:
    """One piece of memory: the value of its base tensor, counted in versions."""

    base: Value
    version: int = 0
    input_index: int | None = None
    origin: fx.Node | None = None  # the placeholder, for an input
    constant: str | None = None
    # `as_strided` shows memory, or counts from a place, that a new value of the base has not
    shown_beyond: bool = False


@dataclass
class Value:
    """What the graph knows of one fake tensor: the node of its current contents, and how to make them again.

    ``parent`` and ``view`` (operator, arguments after the parent, result index) say how a view is derived;
    a view whose operator is None has its parent's contents (``detach``).  ``val`` shows the geometry.
    """

    val: Tensor
    node: fx.Node
    storage: Storage = field(default=None)  # type: ignore[assignment]
    version: int = 0
    parent: Value | None = None
    view: View | None = None


@dataclass(frozen=True)
class View:
    """The operator that made a view, with its arguments after the parent; of one of several views, which, and all of them."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int | None = None
    pieces: tuple[Any, ...] = ()
