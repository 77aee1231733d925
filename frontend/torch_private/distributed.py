"""Data-parallel wrappers: which one runs at this moment, and how its gradients are put together. Tried with torch 2.11 and 2.13."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# What a wrapper's forward calls: its work on the reducer in front of the module, the module, and work behind it.
RUN_MODULE: Any = DistributedDataParallel._run_ddp_forward
REDUCER_WORK: Any = (DistributedDataParallel._pre_forward, DistributedDataParallel._post_forward)

# The question for the group of all processes, as an attribute of `dist.group`; and how functional collectives find the group that they are given.
RESOLVE_GROUP: tuple[Any, ...] = ()
WORLD: tuple[Any, ...] = ()
if dist.is_available():
    from torch.distributed import _functional_collectives as functional
    from torch.distributed import distributed_c10d

    RESOLVE_GROUP = tuple(
        filter(None, (getattr(functional, n, None) for n in ("_resolve_group", "_resolve_group_name")))
    )
    WORLD = (type(dist.group).__dict__["WORLD"].fget,)

_DEFAULT = 25 << 20  # bytes of gradients that go out together, where the wrapper does not say


def active_wrapper() -> DistributedDataParallel | None:
    """The wrapper whose forward runs at this moment."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None)


def bucket_bytes(wrapper: DistributedDataParallel) -> int:
    """How many bytes of gradients a wrapper sends at once."""
    return int(getattr(wrapper, "bucket_bytes_cap", _DEFAULT))


def is_fully_sharded(module: Any) -> bool:
    """Whether `fully_shard` manages the module's parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def stand_for_sharded(wrapper: nn.Module, module: nn.Module) -> None:
    """Let `fully_shard` find in a wrapper what it knows of the module inside: others gather its parameters when they gather theirs."""
    from torch.distributed import _composable_state as states
    from torch.distributed.fsdp import FSDPModule

    cls = type(wrapper)
    wrapper.__class__ = _SHARDED.setdefault(cls, type(f"FSDP{cls.__name__}", (FSDPModule, cls), {}))
    state = states._get_module_state(module)
    if state is not None:
        states._insert_module_state(wrapper, state)


_SHARDED: dict[type, type] = {}


def default_group() -> Any:
    """The group of all processes."""
    return distributed_c10d._get_default_group()


def group_facts(group: Any) -> tuple[str, int, int] | None:
    """Name of a group of processes (None: of all), how many they are, the place of this one in it; None where it is no part of it."""
    found = distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, distributed_c10d.ProcessGroup) or distributed_c10d._rank_not_in_group(found):
        return None
    return str(found.group_name), int(found.size()), int(found.rank())


def group_rank(group: Any, rank: int | None, place: int | None) -> int:
    """The place in a group of a process that is named by its rank among all, or by its place."""
    found = distributed_c10d._get_default_group() if group is None else group
    return int(distributed_c10d._canonicalize_group_rank(found, rank, place))


def default_store() -> Any:
    """Where processes leave words for each other; None where there is no group of processes."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return distributed_c10d._get_default_store()


def this_rank() -> int | None:
    """The number of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def ranks_of_group(name: str) -> list[int]:
    """The processes of a group that this one is part of."""
    return list(dist.get_process_group_ranks(distributed_c10d._resolve_process_group(name)))  # type: ignore[arg-type]
