"""One of two processes that compile, for test_agreeing.py: what is said where they do not compile the same.

    python tests/e2e/agreeing.py RANK FILE

FILE is a new file by which the processes find each other. Each line of standard output is what one case logged, as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

import intarsia


def mean(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


def extreme(x: Tensor, largest: bool) -> Tensor:
    y = x * 2
    dist.all_reduce(y, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN)
    return y


def main() -> None:
    rank, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    timeout = timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2, timeout=timeout)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("intarsia").addHandler(handler)

    def told(case: str) -> None:
        print(json.dumps({"case": case, "said": [s for s in said if "process " in s]}), flush=True)
        said.clear()
        intarsia.reset()
        dist.barrier()

    fast = intarsia.compile(mean)
    for k in range(4):  # other sizes, at one time on one process before the other
        fast(torch.ones(4 + k))
    counted = intarsia.counters()
    print(
        json.dumps({"case": "built", **{key: counted[key] for key in ("cache_misses", "compiler_calls")}}), flush=True
    )
    told("same")

    intarsia.compile(extreme)(torch.ones(6, 6), rank == 1)  # gloo does not look at what the other does
    told("other")
    try:
        if rank == 0:  # the other process is gone: eager's error, in eager's time
            intarsia.compile(mean)(torch.ones(3))
    except RuntimeError as error:
        print(json.dumps({"case": "gone", "said": [type(error).__name__, str(error)[:200]]}), flush=True)


if __name__ == "__main__":
    main()
