"""What cannot be handed to another compiler, or taken from one."""

from __future__ import annotations


class ExchangeError(ValueError):
    """An operation, a type or a file that is not taken; the message names it and shows where it stands."""
