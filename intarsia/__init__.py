"""Intarsia: an optimizing compiler for PyTorch programs.

import intarsia

@intarsia.compile
def f(x, y): ...
"""

from __future__ import annotations

from .backend import default_backend
from .compile import compile, reset
from .config import Config
from .counters import counters
from .frontend.errors import Unsupported
from .lower import Lowered, lower

__version__ = "0.1.0"

__all__ = [
    "Config",
    "Lowered",
    "Unsupported",
    "compile",
    "counters",
    "default_backend",
    "lower",
    "reset",
]
