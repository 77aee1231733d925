"""Operators share memory with their arguments only where `shares` says so: what memory plans rely on, over torch's own samples."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from intarsia.ir.dialects.aten import shares, target_name


class Watch(TorchDispatchMode):
    """Notes results that lie in memory of arguments of which the schema does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func._schema.is_mutable:
            self.seen.add(str(func))
            self.look(func, dict(zip((a.name for a in func._schema.arguments), args, strict=False)), out)
        return out

    def look(self, func: Any, given: dict[str, Any], out: Any) -> None:
        owners: dict[int, set[str]] = {}
        for name, value in given.items():
            for leaf in filter(_has_memory, pytree.tree_leaves(value)):
                owners.setdefault(leaf.untyped_storage().data_ptr(), set()).add(name)
        said = shares(target_name(func))
        for place, value in enumerate(out if isinstance(out, tuple | list) else (out,)):
            if _has_memory(value):
                names = owners.get(value.untyped_storage().data_ptr(), set())
                if names and not names & set(said[0 if len(said) == 1 else place]):
                    self.found.add(f"{func}: result {place} is memory of {sorted(names)}")


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.numel() > 0


def test_what_shares_memory_is_declared() -> None:
    from .database import op_db

    watch = Watch()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for op in op_db[:: 1 if "INTARSIA_FUZZ" in os.environ else 12]:  # all of it in the long runs
            if torch.float32 not in op.dtypes:
                continue
            for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 1):
                try:
                    with watch:
                        op.op(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, TypeError, NotImplementedError, AssertionError):
                    continue
    assert not watch.found
    assert len(watch.seen) > 30
