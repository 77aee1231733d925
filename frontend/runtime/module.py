"""A compiled module: the original with a compiled call, accepted wherever torch.compile's `OptimizedModule` is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..torch_private.distributed import is_fully_sharded, stand_for_sharded
from ..torch_private.dynamo import optimized_module
from ..torch_private.functions import MODULE_CALL
from ..torch_private.guards import global_module_hooks
from .entries import Family, Options
from .hidden_frames import unseen

__all__ = ["CompiledModule", "compiled_module"]

_OWN = ("_orig_mod", "_runtime", "_compiled", "_exact_call", "forward")  # attributes that are not the original's
_GLOBAL = global_module_hooks()
_CALL = MODULE_CALL


class CompiledModule(optimized_module()):  # type: ignore[misc]
    """A module whose call is compiled; everything else is the original's, reachable as `_orig_mod`.

    It has no state of its own: parameters, buffers, submodules, hooks and mode are the original's under the original's
    names, so that a state dict fits both. A pickle of it is a pickle of the original. Only `forward` is its own: it is the
    compiled call, and what is assigned to it runs in its place (as frameworks do to wrap it).

    Frameworks ask whether a module is torch.compile's `OptimizedModule`, and then use `_orig_mod` and `dynamo_ctx`.
    """

    def __init__(self, module: nn.Module, options: Options) -> None:
        # nn.Module's own constructor would make a second, empty state.
        own_call = type(module).__call__ is not _CALL  # with parameters other than `forward`'s, perhaps
        made: Any = Family(options).compile(_caller(module) if own_call else module)
        self.__dict__.update(_orig_mod=module, _runtime=made._intarsia_runtime, _compiled=made, forward=made)
        if own_call:
            self.__dict__["_exact_call"] = made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # This frame and that of the compiled function stand for `_wrapped_call_impl` and `_call_impl`, which warnings count.
        module = self._orig_mod
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return self._with_hooks(*args, **kwargs)
        if _GLOBAL[0] or _GLOBAL[1] or _GLOBAL[2] or _GLOBAL[3]:
            return self._with_hooks(*args, **kwargs)
        if type(module).__call__ is not _CALL:  # at any time: a program may put one on the class, or on all modules
            return self._with_hooks(*args, **kwargs)
        return self.forward(*args, **kwargs)

    @unseen
    def _with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call of all of `__call__`. It tells positional arguments, keywords and defaults apart: hooks are shown them."""
        if self.forward is not self._compiled or is_fully_sharded(
            self
        ):  # the program's own; hooks that gather parameters
            return nn.Module.__call__(self, *args, **kwargs)
        made = self.__dict__.get("_exact_call")
        if made is None:
            made = Family(self._runtime.options).compile(_caller(self._orig_mod))
            made = self.__dict__.setdefault("_exact_call", made)
        return made(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call. Each object has its own, with the signature of the original's."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":  # not there yet: a copy in the making
            raise AttributeError(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            self.__dict__["forward"] = value
        elif name == "_orig_mod":
            # accelerate puts back what it took out, as it is or wrapped; never a part of the original itself.
            if value is not self._orig_mod:
                self.__dict__.pop("_exact_call", None)
                CompiledModule.__init__(self, value, self._runtime.options)
        elif name == "__class__" and issubclass(
            value, type(self)
        ):  # `fully_shard` derives a class from that of a module
            object.__setattr__(self, name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":  # the compiled one again
            self.__dict__["forward"] = self._compiled
        else:
            delattr(self._orig_mod, name)

    def __len__(self) -> int:
        raise TypeError(f"object of type {type(self._orig_mod).__name__!r} has no len()")

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), *_OWN, "dynamo_ctx"})

    @property
    def dynamo_ctx(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Compiles another function with the same settings: Lightning calls it with the steps of its modules."""
        options = self._runtime.options
        return lambda function: Family(options).compile(function)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """On the original."""
        self._orig_mod.add_module(*args, **kwargs)

    def extra_repr(self) -> str:
        """The original's."""
        return str(self._orig_mod.extra_repr())

    def __copy__(self) -> CompiledModule:
        return compiled_module(copy.copy(self._orig_mod), self._runtime.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return compiled_module(copy.deepcopy(self._orig_mod, memo), self._runtime.options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickled, (self._orig_mod,)


def compiled_module(module: nn.Module, options: Options) -> CompiledModule:
    """A `CompiledModule` with the special methods that the module's class defines: Python looks for them in classes only."""
    made = _class_for(type(module))(module, options)
    if is_fully_sharded(module):
        stand_for_sharded(made, module)
    return made


def _class_for(kind: type[nn.Module]) -> type[CompiledModule]:
    known = _classes.get(kind)
    if known is None:
        known = _classes.setdefault(kind, _made(kind))
    return known


def _made(kind: type[nn.Module]) -> type[CompiledModule]:
    names: dict[str, Any] = {}
    for cls in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, found in vars(cls).items():
            special = name.startswith("__") and name.endswith("__") and name not in _KEPT and name not in names
            if special and (callable(found) or found is None):
                names[name] = None if found is None else _forwarding(name)
    body = {**names, "__module__": CompiledModule.__module__, "__qualname__": CompiledModule.__qualname__}
    return type(CompiledModule.__name__, (CompiledModule,), body) if names else CompiledModule


def _forwarding(name: str) -> Callable[..., Any]:
    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._orig_mod, name)(*args, **kwargs)
        return self if result is self._orig_mod else result

    method.__name__ = method.__qualname__ = name
    return method


# Special methods of modules that are not simply the original's.
_KEPT = frozenset(
    f"__{name}__"
    for name in """
    init new call getattr getattribute setattr delattr dir bool class class_getitem init_subclass subclasshook copy deepcopy reduce
    reduce_ex getstate setstate getnewargs getnewargs_ex del sizeof weakref dict
    """.split()  # noqa: SIM905
)
_classes: WeakKeyDictionary[type[nn.Module], type[CompiledModule]] = WeakKeyDictionary()


@unseen
def _caller(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.__module__, call.__qualname__ = type(module).__module__, type(module).__qualname__
    return call


def _unpickled(module: nn.Module) -> nn.Module:
    return module
