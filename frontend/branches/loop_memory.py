"""Which of the tensors that a loop carries may be one in eager behind it, or one that was there before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

__all__ = ["Sharing", "sharing"]

_MOST = 64  # rounds that are followed
_Label = tuple[str, int, int]


class Sharing:
    """By what is carried: the memory from before that it may be behind one round or more, and what else of it may be the same."""

    def __init__(self, count: int) -> None:
        self.outside: list[set[int]] = [set() for _ in range(count)]
        self.pairs: set[tuple[int, int]] = set()


def sharing(
    starts: Sequence[int], ends: Sequence[Collection[int]], given: Mapping[int, int], there: Collection[int]
) -> Sharing:
    """Follow memory from round to round.

    Args:
        starts: the memory in front of the loop, of each that is carried.
        ends: what it may be at the end of a round.
        given: memory at the beginning of a round: which of the carried ones it is.
        there: memory from before the loop. All other is made in a round.
    """
    found, oldest = Sharing(len(starts)), len(starts) + 1
    now = [frozenset([("before", start, 0)]) for start in starts]
    seen = set[tuple[frozenset[_Label], ...]]()
    while tuple(now) not in seen and len(seen) < _MOST:
        seen.add(tuple(now))
        now = [
            frozenset(label for memory in end for label in _labels(memory, now, given, there, oldest)) for end in ends
        ]
        for j, labels in enumerate(now):
            found.outside[j] |= {memory for kind, memory, _ in labels if kind == "before"}
            found.pairs |= {(k, j) for k in range(j) if labels & now[k]}
    if len(seen) == _MOST:
        everything = {*starts, *(memory for end in ends for memory in end if memory in there)}
        found.outside = [everything for _ in starts]
    return found


def _labels(
    memory: int, now: Sequence[frozenset[_Label]], given: Mapping[int, int], there: Collection[int], oldest: int
) -> Collection[_Label]:
    """What a memory at the end of a round is: from before the loop, or made, with its age in rounds; very old ones are one."""
    if memory in given:
        return [(kind, of, min(age + (kind == "made"), oldest)) for kind, of, age in now[given[memory]]]
    return [("before" if memory in there else "made", memory, 0)]
