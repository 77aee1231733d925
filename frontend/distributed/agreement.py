"""Whether processes compile the same: each says what calls its programs make to others, and reads what the others have said.

Nobody waits for an answer: what is not there yet is not compared, and a store that does not answer is left alone. Programs are
compared by the line of their first call, the calls by group, in order and without sizes. Where another process has compiled that line
as often, and never to the same calls, a warning names it and the first difference: they would wait for each other for ever.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

from ..torch_private.distributed import default_store, ranks_of_group, this_rank

__all__ = ["compare", "difference"]

Talk = tuple[str, str, str]  # group, words, line

log = logging.getLogger("intarsia")
_MOST = 64  # programs of a line that are told; sizes that change make more
_lock = threading.Lock()
_told: dict[str, list[list[list[str]]]] = {}  # by line: the calls of each program that this process has told of
_warned: set[tuple[str, int]] = set()


def compare(talks: Sequence[Talk]) -> None:
    """Tell other processes what a program says to them, and warn where theirs say something else."""
    store, here = default_store(), this_rank()
    if not talks or not talks[0][2] or store is None or here is None:
        return
    try:
        _compare(store, here, [list(talk) for talk in talks])
    except Exception as error:  # of the network, or a store of another kind: the program runs all the same
        log.debug("programs of other processes are not compared: %s", error)


def _compare(store: Any, here: int, mine: list[list[str]]) -> None:
    line = mine[0][2]
    with _lock:
        known = _told.setdefault(line, [])
        if mine in known or len(known) == _MOST:
            return
        known.append(mine)
        store.set(_key(line, here), json.dumps(known))
    members = {group: ranks_of_group(group) for group in dict.fromkeys(talk[0] for talk in mine)}
    for rank in sorted({r for ranks in members.values() for r in ranks} - {here}):
        if (line, rank) in _warned or not store.check([_key(line, rank)]):
            continue
        both = [group for group, ranks in members.items() if rank in ranks]
        found = [difference(mine, theirs, both) for theirs in json.loads(store.get(_key(line, rank)))]
        if len(found) >= len(known) and all(found):  # else it has not come to this program yet
            _warned.add((line, rank))
            log.warning(
                "intarsia: process %d compiles %s to other calls than this one, process %d: %s; processes that wait for "
                "different calls wait for ever. What to do: let all of them take the same way",
                *(rank, line, here, found[-1]),
            )


def _key(line: str, rank: int) -> str:
    return f"intarsia/talks/{line}/{rank}"


def difference(mine: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]], groups: Sequence[str]) -> str:
    """The first call that differs among those in some groups; "" where there is none."""
    ours, others = ([(g, words) for g, words, _ in talks if g in groups] for talks in (mine, theirs))
    for k in range(max(len(ours), len(others))):
        here, there = (talks[k] if k < len(talks) else ("", "missing") for talks in (ours, others))
        if here != there:
            return f"call {k + 1} is {there[1]} there, {here[1]} here"
    return ""
