"""Transforms of torch.func, and gradients that arrive in batches: `torch.autograd.grad(is_grads_batched=True)` and vmap run backward once on wrapped tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

__all__ = ["is_batched", "one_by_one", "outside_transforms", "seen_from_inside"]

_FUNCTORCH = torch._C._functorch


def is_batched(value: Any) -> bool:
    """Whether a tensor stands for a batch of tensors, of which the program that is run sees one."""
    if not isinstance(value, Tensor):
        return False
    return bool(_FUNCTORCH.is_legacy_batchedtensor(value) or _FUNCTORCH.is_batchedtensor(value))


def one_by_one(function: Callable[[list[Any]], Sequence[Any]], given: Sequence[Any]) -> tuple[Any, ...]:
    """`function(given)` with batched tensors among `given`: called with the tensors of a batch in turn, the results are a batch."""
    first = next(value for value in given if is_batched(value))
    by_functorch = _FUNCTORCH.is_batchedtensor(first)
    remove, add, level = _functorch_calls(first) if by_functorch else _legacy_calls()
    whole = [remove(value, level) if is_batched(value) else None for value in given]
    found = []
    with temporarily_clear_interpreter_stack() if by_functorch else nullcontext():
        for part in zip(*(w for w in whole if w is not None), strict=True):
            arriving = iter(part)
            found.append(function([v if w is None else next(arriving) for v, w in zip(given, whole, strict=True)]))
    return tuple(
        add(torch.stack(list(results)), level) if isinstance(results[0], Tensor) else results[0]
        for results in zip(*found, strict=True)
    )


def outside_transforms() -> AbstractContextManager[Any]:
    """Inside, no transform of torch.func is active."""
    return temporarily_clear_interpreter_stack()


def seen_from_inside(tensor: Tensor) -> Tensor:
    """A tensor with the sizes, strides, dtype and device that this one, which a transform may wrap, has for the function inside."""
    with torch.no_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)


Calls = tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor], int]


def _functorch_calls(tensor: Tensor) -> Calls:
    """How a dimension is shown and hidden again, and the level of the loop."""
    level = _FUNCTORCH.maybe_get_level(tensor)

    def remove(value: Tensor, level: int) -> Tensor:
        return _FUNCTORCH._remove_batch_dim(value, level, 1, 0)  # type: ignore[no-any-return]

    def add(value: Tensor, level: int) -> Tensor:
        return _FUNCTORCH._add_batch_dim(value, 0, level)  # type: ignore[no-any-return]

    return remove, add, level


def _legacy_calls() -> Calls:
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return (
        lambda value, at: torch._remove_batch_dim(value, at, 1, 0),
        lambda v, at: torch._add_batch_dim(v, 0, at),
        level,
    )
