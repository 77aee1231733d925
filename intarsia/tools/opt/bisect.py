"""Leaving passes out: which of a pipeline run where only the first few are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.core.base import Pass


def kept_passes(passes: Sequence[Pass], limit: int) -> tuple[list[Pass], list[str]]:
    """The first passes up to the limit (all where it is -1), and behind it those that move the module to its next level or that one kept requires.

    Returns:
        The passes, and a line for each pass of the pipeline that says what becomes of it.
    """
    kept: list[Pass] = []
    said: list[str] = []
    needed: set[str] = set()
    for number, item in reversed(list(enumerate(passes, 1))):
        is_needed = item.gives not in (None, item.level) or item.name in needed
        runs = number <= limit or limit < 0 or is_needed
        why = " (needed)" if runs and number > limit >= 0 else ""
        said.append(f"BISECT: {'running' if runs else 'NOT running'} pass ({number}) {item.name}{why}\n")
        if runs:
            kept.append(item)
            needed |= set(item.requires)
    return kept[::-1], said[::-1]
