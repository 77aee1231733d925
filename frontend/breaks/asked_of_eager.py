"""What eager is asked about a call in front of the fake tensors, which take more than its kernels do and warn of less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .eager_errors import Run
from .kernel_warnings import warn_as_eager
from .refused_numbers import check_numbers
from .refused_types import check_types

__all__ = ["ask_eager"]


def ask_eager(
    op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Sequence[Tensor], run: Run
) -> None:
    """Raise eager's error where it refuses the call, warn where it warns; `given` are the tensors of the call, `run` calls at its line."""
    check_numbers(op, target, name, args, kwargs)
    if not check_types(op, target, name, args, kwargs, given, run):
        warn_as_eager(op, target, name, args, kwargs, run)
