"""Why a program on a GPU cannot go on as it is."""

from __future__ import annotations

__all__ = ["MISALIGNED", "TOO_LARGE", "UNALIGNED_WRITE", "Misaligned", "NoContext", "Unassumed", "UnplannedResult"]

MISALIGNED, TOO_LARGE, UNALIGNED_WRITE = -1, -2, -3  # what a launch gives instead of the driver's error number


class UnplannedResult(RuntimeError):
    """A library call gave another dtype or size than its fake twin promised; the graph has to run in eager."""


class Unassumed(UnplannedResult):
    """A size that values decide is not what the program relies on; this call has to run in eager, where it may well be an error."""


class Misaligned(RuntimeError):
    """An argument's address is not a multiple of 16 bytes, which kernels on a GPU are compiled for."""


class NoContext(RuntimeError):
    """The thread has no context of the driver yet: all that it asked torch for came out of the allocator's cache."""
