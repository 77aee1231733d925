"""Warnings of what is run again: the program was warned when it was captured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["unheard"]


@contextmanager
def unheard() -> Iterator[None]:
    """Nothing that is warned of is shown or raised, and no module forgets what it has shown once, as behind `catch_warnings`."""
    given = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.filters = given
