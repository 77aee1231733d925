"""What torch keeps for cuBLAS is given back around a recording, unless somebody else may use it."""

from __future__ import annotations

import pytest

from intarsia.targets.recordings import recording_memory
from intarsia.targets.recordings.capture import Graphs, Workspaces
from intarsia.targets.recordings.recording_memory import Pool


class Graph:
    """In place of torch's."""


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("can", [False, True])
def test_when_it_is_given_back(others: bool, threads: bool, can: bool) -> None:
    done: list[str] = []
    spaces = Workspaces(
        (lambda: done.append("clear")) if can else None, lambda: others, lambda: ["worker"] if threads else []
    )
    for _ in range(2):
        with spaces.given_back():
            done.append("record")
    free = can and not (others or threads)
    assert done == (["clear", "record", "clear"] if free else ["record"]) * 2


def test_never_again_after_a_recording_that_kept_it() -> None:
    done: list[str] = []
    running = ["worker"]
    spaces = Workspaces(lambda: done.append("clear"), lambda: False, lambda: running)
    with spaces.given_back():
        done.append("record")
    running.clear()
    with spaces.given_back():
        done.append("record")
    assert done == ["record", "record"]


def test_a_capture_that_fails() -> None:
    done: list[str] = []
    spaces = Workspaces(lambda: done.append("clear"), lambda: False, list)
    with pytest.raises(RuntimeError), spaces.given_back():
        raise RuntimeError
    assert done == ["clear", "clear"]


def test_whose_graphs_there_are() -> None:
    graphs = Graphs(Graph)
    assert not graphs.are_others() and not graphs.are_others()
    ours = Graph()
    graphs.ours.add(ours)
    assert not graphs.are_others()
    theirs = [Graph()]
    assert graphs.are_others() and graphs.are_others()
    theirs.clear()
    assert not graphs.are_others()
    del ours
    assert not graphs.are_others()
    later = Graph()
    assert graphs.are_others()
    del later


def test_a_stream_stays_when_pools_are_dropped() -> None:
    """A library's memory for a stream of its own would stay behind with each."""
    made: list[Pool] = []

    class Gpu:
        index = 0

        def pool(self) -> Pool:
            made.append(Pool(object(), object()))
            return made[-1]

    pools = recording_memory.Pools()
    first = pools.of(Gpu(), 7)  # type: ignore[arg-type]
    pools.drop()
    second, other = pools.of(Gpu(), 7), pools.of(Gpu(), 8)  # type: ignore[arg-type]
    assert first.side is second.side is not other.side and first.memory is not second.memory
    assert second is pools.of(Gpu(), 7) and len(made) == 3  # type: ignore[arg-type]
