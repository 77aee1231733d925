"""Operators that are kernels of our own on a GPU give what eager gives there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.testing import check

sys.path.append(str(Path(__file__).parents[1] / "targets"))

from triton_operators import FAMILIES  # noqa: E402


@pytest.mark.parametrize("family", FAMILIES)
def test_operators(family: str) -> None:
    """The programs of a family as one, because compiling them side by side takes seconds rather than minutes."""
    torch.manual_seed(0)
    made = [make() for make in FAMILIES[family].values()]

    def all_of_them(args: list[list[Tensor]]) -> list[Any]:
        return [fn(*each) for (fn, _), each in zip(made, args, strict=True)]

    assert check(all_of_them, [[[a.cuda() for a in args] for _, args in made]]).raised is None
