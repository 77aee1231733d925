"""Data-parallel wrappers: which one runs at this moment, and how its gradients are put together. Tried with torch 2.11 and 2.13."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

# What a wrapper's forward calls: its work on the reducer in front of the module, the module, and work behind it.
RUN_MODULE: Any = DistributedDataParallel._run_ddp_forward
REDUCER_WORK: Any = (DistributedDataParallel._pre_forward, DistributedDataParallel._post_forward)

_DEFAULT = 25 << 20  # bytes of gradients that go out together, where the wrapper does not say


def active_wrapper() -> DistributedDataParallel | None:
    """The wrapper whose forward runs at this moment."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None)


def bucket_bytes(wrapper: DistributedDataParallel) -> int:
    """How many bytes of gradients a wrapper sends at once."""
    return int(getattr(wrapper, "bucket_bytes_cap", _DEFAULT))
