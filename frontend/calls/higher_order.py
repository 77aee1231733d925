"""Torch operators that take Python functions, written out as ordinary operators of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import Unsupported
from ..state import Interpreter
from ..values.kinds import isinstance

__all__ = ["associative_scan"]


def associative_scan(
    vm: Interpreter, combine: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """All prefixes of `xs` along `dim` under the associative `combine`, in a logarithmic number of steps.

    The odd prefixes are the prefixes of neighbouring pairs; each even one is its predecessor combined with one
    element (as in Blelloch, "Prefix sums and their applications", 1990).
    """
    leaves, spec = pytree.tree_flatten(xs)
    if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves) or not isinstance(leaves[0].shape[dim], int):
        raise Unsupported("associative_scan over something else than tensors of fixed length")
    dim %= leaves[0].dim()
    if any(leaf.dim() <= dim or leaf.shape[dim] == 0 for leaf in leaves):
        raise Unsupported("associative_scan over nothing")
    every = vm.call(torch.vmap, (combine,), {})  # as in eager, `combine` sees one element, without the dimension

    def both(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        made = vm.call(every, (pytree.tree_unflatten(left, spec), pytree.tree_unflatten(right, spec)), {})
        return pytree.tree_leaves(made)

    def flipped(items: list[Tensor]) -> list[Tensor]:
        return [vm.call(torch.flip, (item, [0]), {}) for item in items] if reverse else items

    leaves = flipped([vm.call(torch.movedim, (leaf, dim, 0), {}) for leaf in leaves])
    done = flipped(_prefixes(vm, leaves, both))
    return pytree.tree_unflatten([vm.call(torch.movedim, (leaf, 0, dim), {}) for leaf in done], spec)


def _prefixes(
    vm: Interpreter, leaves: list[Tensor], both: Callable[[list[Tensor], list[Tensor]], list[Tensor]]
) -> list[Tensor]:
    """The prefixes along the first dimension."""
    n = leaves[0].shape[0]
    if n < 2:
        return leaves

    def part(items: list[Tensor], *bounds: int | None) -> list[Tensor]:
        return [vm.call(operator.getitem, (item, slice(*bounds)), {}) for item in items]

    def joined(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
        return [vm.call(torch.cat, ([x, y],), {}) for x, y in zip(a, b, strict=True)]

    odd = _prefixes(vm, both(part(leaves, 0, n - n % 2, 2), part(leaves, 1, None, 2)), both)
    first = part(leaves, 0, 1)
    if n == 2:
        return joined(first, odd)
    before = odd if n % 2 else part(odd, 0, -1)
    rest = both(before, part(leaves, 2, None, 2))
    even = joined(first, rest)
    pairs = part(even, 0, n // 2)
    woven = [_weave(vm, a, b) for a, b in zip(pairs, odd, strict=True)]
    return woven if n % 2 == 0 else joined(woven, part(even, -1, None))


def _weave(vm: Interpreter, even: Tensor, odd: Tensor) -> Tensor:
    stacked = vm.call(torch.stack, ([even, odd], 1), {})
    return vm.call(torch.flatten, (stacked, 0, 1), {})  # type: ignore[no-any-return]
