"""The one place where private torch interfaces are used; tried with torch 2.11 and 2.13."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeTensor", "FakeTensorMode", "OpOverload", "TorchDispatchMode"]


# ---- functionalisation ----------------------------------------------------------------------------------------------


def below_autograd() -> AbstractContextManager[Any]:
    """Skip the autograd keys, so that dispatch modes see composite operators (linear, matmul, ...) whole."""
    return torch._C._AutoDispatchBelowAutograd()


def is_fake(tensor: Any) -> bool:
    """Whether ``tensor`` has metadata only."""
    return isinstance(tensor, FakeTensor)


def fake_mode_of(inputs: Any) -> FakeTensorMode | None:
    """The FakeTensorMode that the fake tensors (and SymInts) among ``inputs`` belong to, None if there is none."""
    return next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None)


@lru_cache(maxsize=None)
def is_composite(func: OpOverload) -> bool:
    """Whether eager runs ``func`` as a composition of other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def decompose_composite(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run eager's own composition of ``func`` (torch's Python replacements of some lose eager's aliasing)."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def python_dispatcher() -> AbstractContextManager[Any]:
    """Prefer torch's Python kernels, which keep sizes symbolic where the C++ ones would guard."""
    return enable_python_dispatcher()


def storage_key(tensor: Tensor) -> int:
    """The identity of a tensor's memory, as long as the tensor lives."""
    return tensor.untyped_storage()._cdata


def sym_sqrt(value: Any) -> Any:
    """The square root of a symbolic number."""
    return torch._sym_sqrt(value)
