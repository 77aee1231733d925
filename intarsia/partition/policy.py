"""Partition policies of others: which values a training graph's forward half saves for backward."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from ..passes.core.base import JOINT, Pass, PassError
from ..passes.core.limit import TooLong, run_within
from ..passes.core.run import owner_of
from .costs import Kind, Value

__all__ = ["Kind", "PartitionPolicy", "Value", "saved_by"]

log = logging.getLogger("intarsia")


@dataclass(frozen=True)
class PartitionPolicy(Pass):
    """Chooses what forward saves; given as passes are, and run where a training graph is cut in two."""

    level: ClassVar[str] = JOINT

    def saves(self, values: Mapping[fx.Node, Value], read: Sequence[fx.Node], budget: float) -> Iterable[fx.Node]:
        """The nodes whose values are saved.

        Args:
            values: what is known of each value of forward that backward could take, in the graph's order (see `Value`).
            read: those that backward reads, or computes again what it reads.
            budget: the setting `memory_budget`.

        What backward then needs and nobody can compute again is saved in any case; what it does not need is not saved.
        """
        raise NotImplementedError


def saved_by(
    policy: PartitionPolicy, values: Mapping[fx.Node, Value], read: Sequence[fx.Node], budget: float, limit: float
) -> set[fx.Node] | None:
    """What is saved by a policy; None, with a warning that names it, where it fails."""
    try:
        chosen = set[fx.Node]()
        run_within(limit, f"policy '{policy.name}'", lambda: chosen.update(policy.saves(values, read, budget)))
        strange = [node for node in chosen if node not in values or values[node].save is None]
        if strange:
            raise PassError(f"{strange[0]} cannot be saved")
        return _needed(values, read, chosen)
    except (Exception, TooLong) as error:
        who = f"policy '{policy.name}' ({owner_of(policy)}, which is not Intarsia's own)"
        log.warning("%s failed: %s: %s\nthe graph is cut without it", who, type(error).__name__, error)
        return None


def _needed(values: Mapping[fx.Node, Value], read: Iterable[fx.Node], chosen: Collection[fx.Node]) -> set[fx.Node]:
    """Of what was chosen, what backward needs, and what it needs beside it that cannot be computed again."""
    saved, seen, waiting = set[fx.Node](), set[fx.Node](), list(read)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        value = values[node]
        if value.save is not None and (node in chosen or value.again is None):
            saved.add(node)
        elif value.again is not None:
            waiting += value.sources
    return saved
