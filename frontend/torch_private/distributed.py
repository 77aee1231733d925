"""Data-parallel wrappers: which one runs at this moment, and how its gradients are put together. Tried with torch 2.11 and 2.13."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

_DEFAULT = 25 << 20  # bytes of gradients that go out together, where the wrapper does not say


def active_wrapper() -> DistributedDataParallel | None:
    """The wrapper whose forward runs at this moment."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None)


def bucket_bytes(wrapper: DistributedDataParallel) -> int:
    """How many bytes of gradients a wrapper sends at once."""
    return int(getattr(wrapper, "bucket_bytes_cap", _DEFAULT))
