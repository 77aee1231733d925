"""Calls of one compiled function from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch


@torch.no_grad()
def agree_in_threads(
    compiled: Callable[..., torch.Tensor],
    eager: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    calls: int,
    warm: bool,
) -> None:
    """One thread for each input, each with its calls; all results as eager's.

    Args:
        warm: compile before the threads begin; otherwise the first calls meet.
    """
    if warm:
        compiled(inputs[0])
    expected, wrong = [eager(x) for x in inputs], []

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(calls):
                if not torch.allclose(compiled(inputs[k]), expected[k], atol=1e-5):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
