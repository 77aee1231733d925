"""Large products on a GPU whose rows would begin anywhere get longer rows before the graph is split.

What one half hands to the other is laid out where both are known: logits of 50257 columns that lie in rows of 50264 are written by
the library's fast kernels, and both halves read and write them 16 bytes at a time. Within a half `pad-products` does the same.

    y = mm(x, t(w))                    yp = mm(x, t(wp)), y = slice(yp, 1, 0, n)           wp = w with zeros behind its last row
    dx = mm(dy, w)              =>     dx = mm(pad(dy), wp)                                zeros add nothing
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..frontend.torch_private.joint import Joint, is_view
from ..passes.analysis.product_model import FEW, MULTIPLE, Shape, pays_longer_rows
from .costs import is_on_gpu

__all__ = ["pad_rows"]

aten = torch.ops.aten
_TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)
_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def pad_rows(joint: Joint) -> bool:
    """Change the joint graph in place; whether anything was changed, and the graph has to be read again."""
    changed = False
    for node in list(joint.graph.nodes):
        found = _found(joint, node)
        if found is not None and _pays(found):
            changed |= _grow(joint, found)
    return changed


@dataclass(frozen=True)
class _Product:
    """A product of forward: a (rows, inner) by b (inner, columns), plus a bias that may be None; b is `root`, `turned` or not."""

    node: fx.Node
    a: fx.Node
    bias: fx.Node | None
    root: fx.Node
    turned: bool
    rows: int
    inner: int
    columns: int

    @property
    def more(self) -> int:
        """The columns that are missing."""
        return -self.columns % MULTIPLE


def _found(joint: Joint, node: fx.Node) -> _Product | None:
    """The product that a node is, where it can have longer rows: none that the program sees, and no other layout than the plain one."""
    if node in joint.late or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    *bias, a, b = node.args
    value = node.meta["val"]
    sizes = [*value.shape, *(n for x in (a, b) for n in x.meta["val"].shape)]  # type: ignore[union-attr]
    if not is_on_gpu(node) or value.dtype not in _NAMES or not all(isinstance(n, int) for n in sizes):
        return None
    if node.kwargs or not value.is_contiguous() or any(x.meta["val"].dtype != value.dtype for x in (a, b, *bias)):  # type: ignore[union-attr]
        return None
    if bias and bias[0].meta["val"].dim() != 1:  # type: ignore[union-attr]
        return None
    if value.shape[1] % MULTIPLE == 0 or value.shape[0] <= FEW or not _is_inside(joint, node):
        return None
    root, turned = _root(b)  # type: ignore[arg-type]
    return _Product(node, a, bias[0] if bias else None, root, turned, value.shape[0], sizes[3], value.shape[1])  # type: ignore[arg-type]


def _is_inside(joint: Joint, node: fx.Node) -> bool:
    """Whether the program gets neither a value nor a view of it."""
    given = {x for x in (*joint.results, *joint.gradients) if isinstance(x, fx.Node)}
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if value in given:
            return False
        waiting += [user for user in value.users if user.op != "output" and is_view(user)]
    return True


def _root(node: fx.Node) -> tuple[fx.Node, bool]:
    """The matrix that one is, or is the transpose of."""
    turned = False
    while node.target in _TURNS:
        if node.target is aten.permute.default and [d % 2 for d in node.args[1]] == [0, 1]:  # type: ignore[union-attr,operator]
            pass
        elif node.target is not aten.transpose.int or len({d % 2 for d in node.args[1:]}) == 2:  # type: ignore[operator,union-attr]
            turned = not turned
        node = node.args[0]  # type: ignore[assignment]
    return node, turned


def _pays(found: _Product) -> bool:
    """Whether longer rows are expected to be faster, which each half reads once."""
    shape = Shape(1, found.rows, found.columns, found.inner, _NAMES[found.node.meta["val"].dtype])
    copied, read = (2 * n * found.columns * shape.size for n in (found.inner, found.rows))
    return pays_longer_rows(shape, copied, read)


def _grow(joint: Joint, found: _Product) -> bool:
    """Give the product longer rows; False, and nothing is changed, where a view does not take a slice of them."""
    graph, node, n, more = joint.graph, found.node, found.columns, found.more
    mode = node.meta["val"].fake_mode

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        with mode:
            made.meta = {**node.meta, "val": target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))}
        made.meta.pop("tensor_meta", None)
        return made

    with mode:
        whole = node.meta["val"].new_empty((found.rows, n + more))
        views = _views_of(node, whole[:, :n])
    if views is None:
        return False
    with graph.inserting_before(node):
        pad = [0, 0, 0, more] if found.turned else [0, more]
        weight = call(aten.constant_pad_nd.default, found.root, pad)
        factor = call(aten.t.default, weight) if found.turned else weight
        if found.bias is None:
            made = call(aten.mm.default, found.a, factor)
        else:
            made = call(aten.addmm.default, call(aten.constant_pad_nd.default, found.bias, [0, more]), found.a, factor)
        rows = call(aten.slice.Tensor, made, 1, 0, n)
    node.replace_all_uses_with(rows)
    for view, value in views.items():
        view.meta = {**view.meta, "val": value}
    graph.erase_node(node)
    for late in [x for x in graph.nodes if x in joint.late and x.target is aten.mm.default]:
        given, factor = late.args
        root, turned = _root(factor)
        # Here the columns of forward's product are summed over.
        if root is not found.root or turned is found.turned or given.meta["val"].shape[1] != n:
            continue
        with graph.inserting_before(late):
            longer = call(aten.constant_pad_nd.default, given, [0, more])
            late.args = (longer, call(aten.t.default, weight) if turned else weight)
    return True


def _views_of(node: fx.Node, value: torch.Tensor) -> dict[fx.Node, torch.Tensor] | None:
    """What the views of a node are where its memory lies as that of `value`; None where one cannot be made of it."""
    found: dict[fx.Node, torch.Tensor] = {}
    waiting = [(node, value)]
    while waiting:
        base, given = waiting.pop()
        for user in [user for user in base.users if user.op != "output" and is_view(user)]:
            target: Any = aten.view.default if user.target is aten._unsafe_view.default else user.target
            rest = [x.meta["val"] if isinstance(x, fx.Node) else x for x in user.args[1:]]
            try:
                made = target(given, *rest, **user.kwargs)
            except (RuntimeError, ValueError):  # these dimensions cannot be seen as one
                return None
            if not isinstance(made, torch.Tensor) or math.prod(made.shape) != math.prod(user.meta["val"].shape):
                return None
            found[user] = made
            waiting.append((user, made))
    return found
