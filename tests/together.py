"""One piece of work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(work: Callable[[int], None], count: int) -> list[BaseException]:
    """work(0), work(1), ... each in a thread of its own; what they raised, after all have ended."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
