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
    if not all(isinstance(leaf, Tensor) for leaf in leaves) or not isinstance(leaves[0].shape[dim], int):
        raise Unsupported("associative_scan over something else than tensors of fixed length")
    dim %= leaves[0].dim()

    def both(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        made = vm.call(combine, (pytree.tree_unflatten(left, spec), pytree.tree_unflatten(right, spec)), {})
        return pytree.tree_leaves(made)

    if reverse:
        leaves = [vm.call(torch.flip, (leaf, [dim]), {}) for leaf in leaves]
    done = _prefixes(vm, leaves, dim, both)
    if reverse:
        done = [vm.call(torch.flip, (leaf, [dim]), {}) for leaf in done]
    return pytree.tree_unflatten(done, spec)


def _prefixes(
    vm: Interpreter, leaves: list[Tensor], dim: int, both: Callable[[list[Tensor], list[Tensor]], list[Tensor]]
) -> list[Tensor]:
    n = leaves[0].shape[dim]
    if n < 2:
        return leaves

    def part(items: list[Tensor], *bounds: int | None) -> list[Tensor]:
        index = (slice(None),) * dim + (slice(*bounds),)
        return [vm.call(operator.getitem, (item, index), {}) for item in items]

    odd = _prefixes(vm, both(part(leaves, 0, n - n % 2, 2), part(leaves, 1, None, 2)), dim, both)
    first = part(leaves, 0, 1)
    if n == 2:
        return [vm.call(torch.cat, ([a, b], dim), {}) for a, b in zip(first, odd, strict=True)]
    before = odd if n % 2 else part(odd, 0, -1)
    rest = both(before, part(leaves, 2, None, 2))
    even = [vm.call(torch.cat, ([a, b], dim), {}) for a, b in zip(first, rest, strict=True)]
    pairs = part(even, 0, n // 2)
    woven = [_weave(vm, a, b, dim) for a, b in zip(pairs, odd, strict=True)]
    if n % 2 == 0:
        return woven
    return [vm.call(torch.cat, ([w, e], dim), {}) for w, e in zip(woven, part(even, -1, None), strict=True)]


def _weave(vm: Interpreter, even: Tensor, odd: Tensor, dim: int) -> Tensor:
    stacked = vm.call(torch.stack, ([even, odd], dim + 1), {})
    return vm.call(torch.flatten, (stacked, dim, dim + 1), {})  # type: ignore[no-any-return]
