"""torch's operators that take functions, as nodes of graphs hold them (tried with torch 2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator

__all__ = ["COND", "HigherOrderOperator"]

COND: Any = torch.ops.higher_order.cond
