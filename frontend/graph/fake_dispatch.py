"""One operator on fake tensors, remembered: equal operators on equally shaped operands have results of equal shape.

torch's own cache of fake results spends most of its time on its key. Where all sizes are numbers the facts that decide are few, so a key
of our own is built in a few microseconds, and views go straight to their meta kernel. Everything else goes torch's way. What is remembered
are numbers, so all captures of the process share it: a program that is captured again, or traced once more, finds its operators there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..functional.overlap import check_write, is_mutable
from ..functional.rules import written_arguments
from ..torch_private.dispatch import draws_numbers, storage_key
from ..torch_private.fake import FakeTensor, FakeTensorMode, fake_from_meta, on_meta, plain_fake_mode, state_of_results
from ..torch_private.functions import OpOverload
from ..torch_private.wrapped import ragged_sizes
from ..values.kinds import tensors_in
from .fake_rules import dispatch

__all__ = ["FakeResults", "new_fake_mode"]

aten = torch.ops.aten

# Views of their first argument; the other arguments are numbers and lists of numbers.
_VIEWS = frozenset(
    (
        *(aten.view.default, aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default),
        *(aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.squeeze.dim, aten.detach.default),
        aten._unsafe_view.default,
    )
)
_DEVICE = torch.ops.prim.device.default
_UNKEYED = object()
_PLAIN = {int, float, bool, str, type(None), complex, torch.dtype, torch.device, torch.layout, torch.memory_format}
_RUNS_EACH_TIME = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view}
_MOST = 16384  # remembered operators


@dataclass(frozen=True, slots=True)
class _Shape:
    """A new tensor without gaps."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Remembered(dict[Any, Any]):
    """Results by operator, operands and state of the process; begun anew when there are too many.

    None: an operator that has to be run each time.
    """

    def put(self, key: Any, recipe: tuple[_Shape | None, ...] | _Shape | None) -> None:
        """Remember one; several threads may."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = recipe


_remembered = _Remembered()


def new_fake_mode(shape_env: Any) -> FakeTensorMode:
    """The fake tensor mode of one capture, with eager's rules for what results look like."""
    mode = plain_fake_mode(shape_env)
    # Not a subclass: torch's higher-order operators look for their rule by the type itself.
    ragged_sizes(mode)
    mode.cache_enabled = shape_env is not None  # torch's own: while all sizes are numbers, it only costs
    mode.dispatch = FakeResults(mode, partial(dispatch, mode))  # type: ignore[method-assign]
    return mode


class FakeResults:
    """The results of one fake mode's operators. `plain` runs an operator torch's way."""

    def __init__(self, mode: FakeTensorMode, plain: Callable[..., Any]) -> None:
        self.mode, self.plain = mode, plain
        self.draws = False  # whether one has drawn random numbers since somebody set it
        self.heard = False  # whether somebody hears what operators warn of: each is run
        self.folded: set[int] = set()  # storages of inputs with elements in the same place
        self.tracked = False  # whether what a graph is given requires gradients
        self.written: set[int] | None = None  # storages that operators write to, where somebody wants to know

    def __call__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What `FakeTensorMode.dispatch` gives."""
        if func is _DEVICE and type(args[0]) is FakeTensor:  # asked by every call of an operator
            return args[0].fake_device
        if not self.draws and draws_numbers(func, args, kwargs or {}):
            self.draws = True
        if type(func) is OpOverload and is_mutable(func):
            check_write(func, args, kwargs or {}, self.folded, self.tracked and torch.is_grad_enabled())
            if self.written is not None:
                self.written.update(map(storage_key, tensors_in(written_arguments(func, args, kwargs or {}))))
        if self.mode.shape_env is not None or type(func) is not OpOverload:
            return self.plain(func, types, args, kwargs)
        if func in _VIEWS and not kwargs:
            base = args[0]
            if self._is_ours(base) and all(_is_static(a) for a in args[1:]):
                with on_meta(self.mode):
                    made = func(*args)
                return base if made is base else fake_from_meta(self.mode, made, base.fake_device)
        elif _is_functional(func):
            return self._remembered(func, types, args, kwargs)
        return self.plain(func, types, args, kwargs)

    def _remembered(self, func: OpOverload, types: Any, args: Any, kwargs: Any) -> Any:
        facts = self._key(args), self._key(tuple(kwargs.items()) if kwargs else ())
        if _UNKEYED in facts or self.heard:
            return self.plain(func, types, args, kwargs)
        key = (func, facts, state_of_results())
        known = _remembered.get(key)
        if known is not None:
            if isinstance(known, tuple):
                return tuple(None if shape is None else self._made(shape) for shape in known)
            return self._made(known)
        result = self.plain(func, types, args, kwargs)
        if result is NotImplemented:  # a tensor subclass runs it on what it holds
            return result
        operands = [storage_key(t) for t in tensors_in([*args, *(kwargs or {}).values()])]
        _remembered.put(key, self._recipe(result, operands))
        return result

    def _is_ours(self, tensor: Any) -> bool:
        """A fake tensor of this mode that stands for nothing but its shape."""
        return (
            type(tensor) is FakeTensor
            and tensor.fake_mode is self.mode
            and tensor.constant is None
            and tensor.layout is torch.strided
            and not (tensor.is_complex() and tensor.is_conj())
            and not tensor.is_neg()
        )

    def _key(self, value: Any) -> Any:
        """What a result's shape depends on, `_UNKEYED` where that is not known."""
        kind = type(value)
        if kind is FakeTensor:
            if not self._is_ours(value):
                return _UNKEYED
            return value.shape, value.stride(), value.dtype, value.fake_device
        if kind in _PLAIN:
            return kind, value
        if kind is tuple or kind is list:
            items = tuple(map(self._key, value))
            return _UNKEYED if _UNKEYED in items else items
        return _UNKEYED

    def _recipe(self, result: Any, operands: list[int]) -> tuple[_Shape | None, ...] | _Shape | None:
        """The result as something to make again; None where it is more than new tensors of some shapes."""
        if any(r.layout is not torch.strided for r in tensors_in([result])):
            return None
        if type(result) is not tuple:
            return self._shape(result, operands)
        items = tuple(None if r is None else self._shape(r, operands) for r in result)
        own = {storage_key(r) for r in result if isinstance(r, Tensor)}
        made = sum(item is not None for item in items)
        return items if made == len(own) == sum(r is not None for r in result) else None

    def _shape(self, result: Any, operands: list[int]) -> _Shape | None:
        if not self._is_ours(result) or result.requires_grad or result.storage_offset() or result._is_view():
            return None
        if storage_key(result) in operands:
            return None
        shape = _Shape(tuple(result.shape), tuple(result.stride()), result.dtype, result.fake_device)
        needed = (
            0 if 0 in shape.sizes else 1 + sum((n - 1) * s for n, s in zip(shape.sizes, shape.strides, strict=True))
        )
        return shape if result.untyped_storage().nbytes() == needed * shape.dtype.itemsize else None

    def _made(self, shape: _Shape) -> Tensor:
        meta = torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device="meta")
        return fake_from_meta(self.mode, meta, shape.device)


@cache
def _is_functional(func: OpOverload) -> bool:
    """Whether an operator of torch's own makes new tensors from its operands and does nothing else."""
    schema = func._schema
    aliases = any(x.alias_info is not None for x in (*schema.arguments, *schema.returns))
    return func.namespace == "aten" and not aliases and bool(schema.returns) and not _RUNS_EACH_TIME & set(func.tags)


def _is_static(value: Any) -> bool:
    return type(value) is int or value is None or (isinstance(value, list | tuple) and all(map(_is_static, value)))
