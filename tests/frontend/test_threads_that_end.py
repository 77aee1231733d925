"""Captures on threads that end one after the other."""

import threading

import torch

import intarsia


def test_captures_after_the_thread_of_the_first_one_has_ended():
    """With a build of torch for GPUs on a machine without one, torch's own bookkeeping died with the first thread."""
    results = []

    def capture(k: int) -> None:
        results.append(intarsia.compile(lambda x: x * 2 + k, backend="eager")(torch.ones(3)))

    for k in range(3):
        worker = threading.Thread(target=capture, args=(k,))
        worker.start()
        worker.join()
    assert [float(r[0]) for r in results] == [2.0, 3.0, 4.0]
