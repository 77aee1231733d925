"""A part of a graph that guards run again in front of it: few operators on integers and truths of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Computation"]


MOST = 4096  # numbers of one list


@dataclass(frozen=True)
class Computation:
    """A function of tensors and numbers that gives one number, or where it is `listed` the text of a list of them.

    Two of the same `text` are the same.
    """

    text: str
    run: Callable[..., Any] = field(compare=False, repr=False)
    listed: bool = False
    __name__ = "part_of_the_graph"

    def __call__(self, *given: Any) -> Any:
        """The number, or None where it cannot be computed, which is no number that a guard expects."""
        try:
            with torch.no_grad():
                found = self.run(*given)
            if self.listed:
                return repr(found.tolist()) if found.numel() <= MOST else None
            return found.item() if isinstance(found, Tensor) else found
        except Exception:
            return None
