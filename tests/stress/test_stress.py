"""The short form of `make stress`."""

from .threads import stress


def test_sixteen_threads_for_some_seconds():
    found = stress(12.0, 16)
    assert not found.errors, str(found)
    assert len(found.done) >= 7
