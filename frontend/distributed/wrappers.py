"""DDP and FSDP2 around a module: their own work on processes and shards runs in eager, the module's forward is captured.

`DistributedDataParallel.forward` is interpreted up to its reducer's preparations, which break the graph, before the module
and behind it. The hooks of `fully_shard` gather a module's parameters before its forward and free them after it; they run
as one call in front of the graph and one behind it (`call_sharded`), so that the layers' loop is captured once for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..calls.registry import Rows, Then
from ..state import Interpreter
from ..torch_private.distributed import REDUCER_WORK, RUN_MODULE, bucket_bytes, is_fully_sharded
from ..torch_private.guards import global_module_hooks
from ..values import object as objects

__all__ = ["BUCKET", "ROWS", "call_sharded", "is_sharded"]

ROWS = Rows()
BUCKET = "bucket_bytes"  # in a graph's `meta`: bytes of gradients that its data-parallel wrapper sends at once
REDUCER = "processes of data-parallel training are synchronized"
SHARDS = "the shards of a module's parameters are gathered or freed"


@ROWS.rule(RUN_MODULE)
def _run_module(vm: Interpreter, wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    """The wrapped module; that a wrapper is active is told to torch's own compiler alone, and ours by the graph."""
    vm.out.meta[BUCKET] = bucket_bytes(wrapper)
    return Then(objects.load_attr(vm, wrapper, "module"), args, kwargs)


ROWS.describe(*REDUCER_WORK, refused=REDUCER)


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` manages the module's parameters, and its hooks are all that `call_sharded` leaves out."""
    if not is_fully_sharded(module):
        return False
    backward = torch.is_grad_enabled() and (module._backward_hooks or module._backward_pre_hooks)
    return not (backward or module._forward_hooks_always_called or any(global_module_hooks()))


def call_sharded(module: Any, *args: Any, **kwargs: Any) -> Any:
    """What `nn.Module.__call__` does where forward hooks are all that is registered."""
    args, kwargs = before_forward(module, args, kwargs)
    return after_forward(module, args, kwargs, module.forward(*args, **kwargs))


def before_forward(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments behind all of the module's hooks in front of forward."""
    for name, hook in list(module._forward_pre_hooks.items()):
        if name in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs


def after_forward(module: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The result behind all of the module's hooks behind forward."""
    for name, hook in list(module._forward_hooks.items()):
        with_kwargs = name in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        result = result if changed is None else changed
    return result


ROWS.describe(before_forward, after_forward, refused=SHARDS)
