"""What it costs to save a value of a joint graph for backward, and to compute it there again.

Costs are bytes that could be moved in the same time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from ..frontend.graph.recompute import RECOMPUTE
from ..frontend.torch_private.joint import Joint, hint, is_size, is_view, may_repeat
from ..passes.analysis.cost import (
    FLOPS_A_BYTE,
    GPU_FLOPS_A_BYTE,
    GPU_PER_OPERATION,
    HINT,
    PER_OPERATION,
)
from .norms import sources_of

__all__ = ["Kind", "Value", "is_on_gpu", "name_of", "read_values", "size_of"]


class Kind(Enum):
    """How a value is computed."""

    GIVEN = "given"  # an input or a constant of the graph: it is there anyway
    NUMBER = "number"  # a symbolic size
    VIEW = "view"
    FUSED = "fused"  # part of the kernel that reads it
    REDUCED = "reduced"  # a kernel that reads its operands whole: sums, norms, softmax
    COSTLY = "costly"  # products, convolutions, attention, and all that is a library's
    ONCE = "once"  # random numbers, effects, operators that nobody knows: never again


@dataclass
class Value:
    """What is known of one node.

    Attributes:
        kind: how it is computed.
        bytes: that saving it takes; 0 for what is there anyway.
        save: the time that saving takes: written in forward, where it is not anyway, and read in backward. None: it is not
            saved, because it is a view of another value, or no tensor.
        again: the time that computing it in backward takes. None: it is not computed again.
        marked: the program wants it computed again (torch.utils.checkpoint), where it can be.
        read: the bytes that a kernel reads which has the value: of elements that it computes itself, what they are made of.
        sources: what it is computed of again.
        formula: whether that is not what forward computes it of (`norms`).
    """

    node: fx.Node
    kind: Kind
    bytes: int
    save: float | None
    again: float | None
    marked: bool = False
    read: int = 0
    sources: Sequence[fx.Node] = ()
    formula: bool = False


def size_of(node: fx.Node) -> int:
    """Bytes of a node's elements."""
    return sum(_elements(v) * v.dtype.itemsize for v in _tensors(node.meta.get("val")))


def is_on_gpu(node: fx.Node) -> bool:
    """Whether a node's value does not lie in the host's memory."""
    return any(t.device.type != "cpu" for t in _tensors(node.meta.get("val")))


def read_values(joint: Joint, needed: set[fx.Node]) -> dict[fx.Node, Value]:
    """What is known of each node of `needed`, all of which forward can compute."""
    return _Reader(joint, needed).found


class _Reader:
    """Goes through a joint graph once, in its order."""

    def __init__(self, joint: Joint, needed: set[fx.Node]) -> None:
        self.late, self.results = joint.late, set(joint.results)
        self.needed, self.given = needed, set(joint.inputs)
        self.forward = joint.needed([*joint.results, *joint.kept])
        self.kinds = {n: _kind(n) for n in joint.graph.nodes if n.op == "call_function"}
        self.roots: dict[fx.Node, fx.Node] = {}
        self.found: dict[fx.Node, Value] = {}
        self.formulas: dict[fx.Node, tuple[fx.Node, ...]] = {}
        for node in joint.graph.nodes:
            if node in needed:
                made_of = sources_of(node)
                if made_of and all(n in self.found for n in made_of):
                    self.formulas[node], self.kinds[node] = made_of, Kind.FUSED
                value = self.found[node] = self.value(node)
                value.sources, value.formula = self.sources(node), node in self.formulas
                value.read = self.read(node, value.kind)
                value.marked = RECOMPUTE in node.meta and value.again is not None
        for node, root in self.roots.items():  # a view that may be saved is so by its memory
            if root in self.found and not self.found[node].marked:
                self.found[root].marked = False

    def value(self, node: fx.Node) -> Value:
        size = size_of(node)
        if node in self.given or node.op == "get_attr":  # both halves have a constant
            kept = node in self.given
            return Value(node, Kind.GIVEN, 0, float(size) if kept else None, None if kept else 0.0)
        kind = self.kinds[node]
        if kind is Kind.NUMBER:
            return Value(node, kind, 0, 8.0, 0.0 if may_repeat(node) else None)
        if kind is Kind.VIEW:
            base = _base(node)
            root = self.roots[node] = self.roots.get(base, base)
            whole = self.found[root]
            piece = whole.kind is not Kind.GIVEN and size < size_of(root) and isinstance(node.meta["val"], torch.Tensor)
            return Value(node, kind, size, 2.0 * size if piece else None, 0.0)
        moved = _moved(node)
        if moved == "away":  # the program keeps it in the host's memory
            return Value(node, kind, 0, float(size), None)
        if moved == "back":
            return Value(node, kind, size, None, float(size))
        again = self.again(node, kind, size)
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return Value(node, kind, 0, None, again)
        own = 0.0 if node in self.forward or again is None else again  # forward would compute it for backward alone
        return Value(node, kind, size, own + (size if self.is_stored(node, kind) else 2 * size), again)

    def sources(self, node: fx.Node) -> Sequence[fx.Node]:
        """What a node is computed of again."""
        return self.formulas.get(node) or node.all_input_nodes

    def is_stored(self, node: fx.Node, kind: Kind) -> bool:
        """Whether forward writes a value to memory anyway."""
        if kind is not Kind.FUSED or node in self.results:
            return node in self.forward
        readers = [n for n in self.readers(node) if n in self.forward]
        kinds = {self.kinds[n] for n in readers}
        return bool(kinds & {Kind.COSTLY, Kind.ONCE}) or (len(readers) > 1 and Kind.REDUCED in kinds)

    def again(self, node: fx.Node, kind: Kind, size: int) -> float | None:
        """The time of computing a node in backward; what it reads counts for itself."""
        if kind is Kind.ONCE:
            return None
        if node.target is operator.getitem and node not in self.formulas:
            return 0.0
        gpu = is_on_gpu(node)
        read = sum(self.found[n].read if kind is Kind.FUSED else size_of(n) for n in self.sources(node))
        if kind is Kind.COSTLY:
            return size + read + _flops(node) / (GPU_FLOPS_A_BYTE if gpu else FLOPS_A_BYTE)
        operations = _OPERATIONS.get(name_of(node), 1) * sum(map(_elements, _tensors(node.meta.get("val"))))
        time = operations * (GPU_PER_OPERATION if gpu else PER_OPERATION)
        if kind is Kind.REDUCED:  # the statistics of a batch need all of it before the first result: it is read twice
            return time + size + read * (2 if "batch_norm" in name_of(node) else 1)
        readers = [n for n in self.readers(node) if n in self.late or n in self.needed]
        if self.is_written(readers):
            return time + size + self.made_of(node)
        # Each kernel that computes it for itself reads what it is made of instead.
        return time + max(0, read - size) * max(0, len(readers) - 1)

    def is_written(self, readers: Iterable[fx.Node]) -> bool:
        """Whether backward has a value that these read in memory: a library reads it."""
        return any(
            n in self.late and self.kinds[n] in (Kind.COSTLY, Kind.ONCE) and not _is_fused_late(n) for n in readers
        )

    def made_of(self, node: fx.Node) -> int:
        """The bytes that a kernel reads which writes a value: inputs, of which nothing else is made, count for themselves."""
        found, waiting = set[fx.Node](), [*self.sources(node)]
        while waiting:
            source = waiting.pop()
            kind = self.found[source].kind
            if kind is Kind.VIEW or (kind is Kind.FUSED and not self.is_written(self.readers(source))):
                waiting += [n for n in self.sources(source) if n not in found]
            elif kind is not Kind.GIVEN:
                found.add(source)
        return sum(map(size_of, found))

    def read(self, node: fx.Node, kind: Kind) -> int:
        """What a kernel reads for the sake of a value: a wide copy of a narrow one is no more than that."""
        size = size_of(node)
        if kind not in (Kind.FUSED, Kind.VIEW):
            return size
        return min(size, sum(self.found[n].read for n in self.sources(node)))

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """What reads a value, or a view of it."""
        waiting, found = [node], dict[fx.Node, None]()
        while waiting:
            for user in waiting.pop().users:
                if user.op == "call_function" and user not in found:
                    if self.kinds[user] is Kind.VIEW or user.target is operator.getitem:
                        waiting.append(user)
                    elif self.kinds[user] is not Kind.NUMBER:
                        found[user] = None
        return list(found)


def _moved(node: fx.Node) -> str:
    """Where a copy brings a value: "away" from a GPU to the host, "back" what was brought away, or "" for all else."""
    if name_of(node) != "_to_copy" or not isinstance(node.args[0], fx.Node):
        return ""
    source = node.args[0]
    if is_on_gpu(source):
        return "" if is_on_gpu(node) else "away"
    while is_view(source):
        source = _base(source)
    return "back" if is_on_gpu(node) and _moved(source) == "away" else ""


def _kind(node: fx.Node) -> Kind:
    if is_size(node):
        return Kind.NUMBER
    if is_view(node):
        return Kind.VIEW
    if node.target is operator.getitem:
        return _kind(node.args[0])  # type: ignore[arg-type]
    if not may_repeat(node):
        return Kind.ONCE
    if not isinstance(node.target, OpOverload):
        return Kind.NUMBER
    if torch.Tag.pointwise in node.target.tags or name_of(node) in _FUSED:
        return Kind.FUSED
    return Kind.REDUCED if name_of(node) in _REDUCED else Kind.COSTLY


def _is_fused_late(node: fx.Node) -> bool:
    """Whether an operator that is one call to torch is taken apart by the passes, so that what it reads may be fused."""
    return name_of(node) in _TAKEN_APART


def name_of(node: fx.Node) -> str:
    """The operator of torch's that computes a node, "" where there is none."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node.target._schema.name.removeprefix("aten::") if isinstance(node.target, OpOverload) else ""


def _flops(node: fx.Node) -> float:
    """Multiplications and additions of a product, a convolution or attention; of others as many as sorting takes."""
    shapes = [n.meta["val"].shape for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    elements = sum(map(_elements, list(_tensors(node.meta.get("val")))[:1]))
    name = name_of(node)
    if name == "convolution" and len(shapes) > 1:
        return 2.0 * elements * math.prod(hint(n, HINT) for n in shapes[1][1:])
    if "attention" in name and len(shapes) > 1 and len(shapes[1]) > 1:
        return 4.0 * elements * hint(shapes[1][-2], HINT)
    if name in ("mm", "bmm", "addmm", "baddbmm", "mv", "linear", "addmv", "addbmm", "dot"):
        factor = shapes[1] if name.startswith("add") or name == "baddbmm" else shapes[0]
        return 2.0 * elements * hint(factor[-1], HINT) if factor else elements
    return 64.0 * elements


def _base(node: fx.Node) -> fx.Node:
    return node.args[0]  # type: ignore[return-value]


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _elements(value: torch.Tensor) -> int:
    return math.prod(hint(n, HINT) for n in value.shape)


_FUSED = frozenset(
    (
        *("_to_copy", "cat", "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "new_zeros", "new_ones"),
        *(
            "new_full",
            "arange",
            "eye",
            "scalar_tensor",
            "fill",
            "copy",
            "constant_pad_nd",
            "triu",
            "tril",
            "flip",
            "roll",
        ),
        *(
            "stack",
            "repeat",
            "hardswish_backward",
            "slice_backward",
            "select_backward",
            "slice_scatter",
            "select_scatter",
        ),
        *("lift_fresh_copy", "view_copy", "native_dropout_backward", "embedding", "index_select", "gather", "index"),
        *("clone", "contiguous", "empty_like", "empty", "empty_strided", "new_empty", "linspace"),
    )
)
_REDUCED = frozenset(
    (
        *(
            "sum",
            "mean",
            "amax",
            "amin",
            "max",
            "min",
            "var",
            "var_mean",
            "std",
            "std_mean",
            "logsumexp",
            "prod",
            "norm",
        ),
        *("argmax", "argmin", "any", "all", "linalg_vector_norm", "_softmax", "_log_softmax", "native_layer_norm"),
        *("native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm", "cudnn_batch_norm"),
        *(
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
            "_batch_norm_with_update_functional",
        ),
        *("cumsum", "avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d", "nll_loss_forward", "mse_loss"),
    )
)
# Backward's own, which the passes write out in primitives.
_TAKEN_APART = frozenset(
    (
        *("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward", "nll_loss_backward"),
        *(
            "native_group_norm_backward",
            "native_batch_norm_backward",
            "_fused_rms_norm_backward",
            "embedding_dense_backward",
        ),
        *(
            "max_pool2d_with_indices_backward",
            "avg_pool2d_backward",
            "_adaptive_avg_pool2d_backward",
            "mse_loss_backward",
        ),
        *("native_dropout",),
    )
)
# Instructions an element, where it is not about one; not measured.
_OPERATIONS = dict.fromkeys(
    ("gelu", "erf", "erfc", "exp", "log", "tanh", "sigmoid", "silu", "sin", "cos", "pow", "mish", "softplus", "log1p", "expm1"), 16
)  # fmt: skip
