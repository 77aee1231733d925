"""Which CPython runs, and what differs between its versions: no other file asks."""

from __future__ import annotations

import sys

__all__ = [
    "CHAINS_DESCRIPTORS",
    "CLOSE_RETURNS",
    "CLOSE_RUNS",
    "KEEPS_LOCALS",
    "METHOD_SLOT_FIRST",
    "THROW_WARNS",
    "V312",
    "V313",
]

V312 = sys.version_info >= (3, 12)
V313 = sys.version_info >= (3, 13)
METHOD_SLOT_FIRST = not V313  # the empty slot of a call lies below the callable
THROW_WARNS = V312  # of throw() with more than one argument
CLOSE_RUNS = not V312  # a generator that never began is run to be closed, which profilers see
CLOSE_RETURNS = V313  # `generator.close()` gives what the generator returns
KEEPS_LOCALS = sys.version_info < (
    3,
    13,
)  # what `exec` stores beside a function's variables is there for the next `exec`
CHAINS_DESCRIPTORS = not V313  # a class method around a descriptor asks that
