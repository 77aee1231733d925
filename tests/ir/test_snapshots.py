"""Members of weak collections that other threads add to."""

from __future__ import annotations

import sys
import threading
from weakref import WeakSet

from intarsia.ir.snapshots import members


class Member:
    pass


def test_another_thread_adds() -> None:
    held: WeakSet[Member] = WeakSet()
    kept = [Member() for _ in range(200)]
    held.update(kept)
    done = threading.Event()

    def add() -> None:
        while not done.is_set():
            held.add(Member())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=add)
    other.start()
    try:
        for _ in range(300):
            assert {*kept} <= {*members(held)}
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(interval)
    del kept
    assert len(members(held)) <= 1
