"""What eager's kernels warn of and fake tensors do not: the call runs once more, on zeros, while it is captured.

So a warning comes with the call that is captured, as those do that fake tensors give.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..bytecode.frame import Whence
from ..errors import UserRaise
from ..torch_private.fake import real_tensors
from .eager_errors import Run, said_by_eager

__all__ = ["warn_as_eager", "warn_of_gradient", "warn_of_scalar"]


def warn_as_eager(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], run: Run) -> None:
    """Warn where eager's kernel does, of the line where `run` calls; raises the warning where the program's filters make it an error."""
    warns = _WARNS.get(name)
    if warns is not None and args and isinstance(args[0], Tensor) and warns(args, kwargs):
        error = said_by_eager(op, target, args, kwargs, run)
        if isinstance(error, Warning):
            raise UserRaise(error)


def warn_of_gradient(vm: Any, tensor: Tensor) -> None:
    """Warn where the program reads `.grad` of a tensor that is no leaf and does not keep it."""
    if not tensor.requires_grad or tensor.is_leaf or tensor.retains_grad:
        return
    _warned(vm, operator.attrgetter("grad"), lambda: torch.zeros((), requires_grad=True) + 0)


def warn_of_scalar(vm: Any, tensor: Tensor) -> None:
    """Warn where Python's float of a tensor that takes gradients is asked for."""
    if tensor.requires_grad:
        _warned(vm, float, lambda: torch.zeros((), requires_grad=True))


def _warned(vm: Any, reads: Callable[[Tensor], object], made: Callable[[], Tensor]) -> None:
    """Run what warns; raises the warning where the program's filters make it an error."""
    with real_tensors(), torch.enable_grad():
        try:
            Whence(vm).run(reads, (made(),), {})
        except Warning as error:
            raise UserRaise(error) from None


def _of_few(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the correction may leave a variance nothing to divide by. Sizes that are symbols are 2 at least."""
    given = kwargs.get("correction")
    most: float = given if isinstance(given, int | float) else 1
    sizes: list[Any] = list(args[0].shape)
    return not sizes or any(n <= most for n in sizes if type(n) is int or most > 1 and n.node.has_hint())


def _of_complex(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a complex number may lose its imaginary part."""
    given = [t for t in (*args[1:], *kwargs.values()) if isinstance(t, Tensor)]
    return bool(args[0].is_complex()) or any(t.is_complex() for t in given)


def _of_gaps(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return not all(t.is_contiguous() for t in (*args, *kwargs.values()) if isinstance(t, Tensor))


def _of_reduce(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return "reduce" in kwargs


_WARNS: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], bool]] = {
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _of_few),
    **dict.fromkeys(
        (*("to", "type", "type_as", "copy_", "float", "double", "half", "bfloat16"), *("int", "long", "short", "char")),
        _of_complex,
    ),
    **dict.fromkeys(("searchsorted", "bucketize"), _of_gaps),
    **dict.fromkeys(("scatter", "scatter_"), _of_reduce),
    "cholesky": lambda args, kwargs: True,
}
