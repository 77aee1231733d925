"""Which of the tensors that a loop carries may be one in eager behind it, or one that was there before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["Atom", "Sharing", "may_be_one", "may_repeat", "sharing"]

# Memory in eager, and the ways that choices have to go so that it is this one: pairs of a choice and a way.
Atom = tuple[int, frozenset[tuple[int, int]]]

_MOST = 64  # rounds that are followed
# Whether it is from before the loop, the memory, its age in rounds, and the ways of the round in which it was made.
_Label = tuple[bool, int, int, frozenset[tuple[int, int]]]


class Sharing:
    """By what is carried: the memory from before that it may be, with the round, and what else of it may be the same.

    The round is None where it may be many.
    """

    def __init__(self, count: int) -> None:
        self.outside: list[set[tuple[int, int | None]]] = [set() for _ in range(count)]
        self.pairs: set[tuple[int, int]] = set()


def may_be_one(first: Collection[Atom], second: Collection[Atom]) -> bool:
    """Whether two tensors may have one memory in eager: with no choice that would have to go both ways."""
    return any(a == b and _fit(ways, others) for a, ways in first for b, others in second)


def may_repeat(
    items: Sequence[Collection[Atom]],
    ends: Sequence[Collection[Atom]],
    given: Mapping[int, int],
    there: Collection[int],
) -> bool:
    """Whether two items that rounds append to a list may be one in eager; `items` are those of one round.

    Not where each is made in its round, or is one that the round before has made and not appended. The rest is as for `sharing`.
    """
    if any(may_be_one(a, b) for k, a in enumerate(items) for b in items[:k]):
        return True
    found = {memory for atoms in items for memory, _ in atoms}
    old = {given[memory] for memory in found if memory in given}
    last = {memory for k in old for memory, _ in ends[k]}
    fresh = found - given.keys()
    return len(old) > 1 or not (fresh | last).isdisjoint(there) or not last.isdisjoint(found | given.keys())


def sharing(
    starts: Sequence[int], ends: Sequence[Collection[Atom]], given: Mapping[int, int], there: Collection[int]
) -> Sharing:
    """Follow memory from round to round, behind one round or more.

    Args:
        starts: the memory in front of the loop, of each that is carried.
        ends: what it may be at the end of a round.
        given: memory at the beginning of a round: which of the carried ones it is.
        there: memory from before the loop. All other is made in a round.
    """
    found, oldest = Sharing(len(starts)), len(starts) + 1
    now: list[frozenset[_Label]] = [frozenset([(True, start, 0, frozenset[tuple[int, int]]())]) for start in starts]
    seen = dict[tuple[frozenset[_Label], ...], int]()
    rounds = list[list[frozenset[_Label]]]()
    while tuple(now) not in seen and len(seen) < _MOST:
        seen[tuple(now)] = len(rounds)
        now = [frozenset(label for atom in end for label in _labels(atom, now, given, there, oldest)) for end in ends]
        rounds.append(now)
    again = seen.get(tuple(now), 0)  # rounds from here on stand for later ones, too
    for number, state in enumerate(rounds):
        for j, labels in enumerate(state):
            found.outside[j] |= {(memory, number if number < again else None) for old, memory, _, _ in labels if old}
            found.pairs |= {(k, j) for k in range(j) if _meet(labels, state[k])}
    if tuple(now) not in seen:
        everything = {(m, None) for m in (*starts, *(m for end in ends for m, _ in end if m in there))}
        found.outside = [set(everything) for _ in starts]
    return found


def _labels(
    atom: Atom, now: Sequence[frozenset[_Label]], given: Mapping[int, int], there: Collection[int], oldest: int
) -> Iterator[_Label]:
    """What a memory at the end of a round is; what is very old is of one age."""
    memory, ways = atom
    if memory in given:
        yield from ((old, m, min(age + (not old), oldest), made) for old, m, age, made in now[given[memory]])
    elif memory in there:
        yield True, memory, 0, frozenset()
    else:
        yield False, memory, 0, ways


def _meet(first: Collection[_Label], second: Collection[_Label]) -> bool:
    return any(a[:3] == b[:3] and _fit(a[3], b[3]) for a in first for b in second)


def _fit(ways: Collection[tuple[int, int]], others: Collection[tuple[int, int]]) -> bool:
    """Whether no choice goes one way in the first and another in the second."""
    taken = dict(ways)
    return all(taken.get(choice, way) == way for choice, way in others)
