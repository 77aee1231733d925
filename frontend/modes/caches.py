"""Caches of functions (`functools.lru_cache`): those that the program makes, and those that were there before."""

from __future__ import annotations

import functools
import operator
import types
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..breaks.breaks import restart_point
from ..calls.library import plain_data
from ..calls.registry import Rows
from ..calls.visibility import check_keys
from ..errors import GraphBreak, Unsupported
from ..graph.sym_nodes import concrete
from ..guards.source import Const, Fetch
from ..state import Interpreter
from ..torch_private.fake import real_tensors
from ..values import object as objects
from ..values.constant import is_constant
from ..values.identity import Identity
from ..values.kinds import isinstance

__all__ = ["LRU", "call_cached", "check_empty"]

ROWS = Rows()

LRU: Any = type(functools.lru_cache(lambda: None))


def call_cached(vm: Interpreter, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of `functools.cache` and its like.

    A cache that the program made during capture is kept here. One that was there before is asked for real: by the
    capture once, then by the guards, so that its entries are eager's, objects and all.
    """
    if cached.__name__.endswith("_once"):
        vm.effects.calls.append((cached, args, kwargs))
        return None
    function = cached.__wrapped__
    if not vm.is_created(cached) and any(isinstance(a, torch.SymInt) for a in pytree.tree_leaves((args, kwargs))):
        result = vm.call(function, args, kwargs) if _sees_arguments_alone(vm, function) else None
        if result is None or not plain_data(result, symbols=True):
            raise GraphBreak(f"{cached.__name__}, which keeps its results, is asked for an object of symbolic size")
        return result
    made = vm.is_created(cached)
    if made:
        args, kwargs = concrete(args), concrete(kwargs)  # keys are numbers: each is guarded
    if made:
        for value in (*args, *kwargs.values()):
            if not _is_told_by_c(vm, value):
                raise GraphBreak("a cache that was made inside the captured code is called with more than constants")
        return _made(vm, cached).call(vm, args, kwargs)
    plain = all(map(is_constant, args)) and all(map(is_constant, kwargs.values()))
    library = vm.is_library(getattr(function, "__module__", None))
    if not plain and library:
        return vm.call(function, args, kwargs)
    if not plain and not all(_is_held(vm, a) for a in (*args, *kwargs.values())):
        raise GraphBreak(f"{cached.__name__}, which keeps its results, is called with more than constants")
    if library:
        with real_tensors():
            result = vm.native(cached, *args, **kwargs)
        return vm.call(function, args, kwargs) if isinstance(result, Tensor | nn.Module | list | dict) else result
    # A package that is installed does not look at what this program is just changing.
    changed = vm.effects or any(shadow.changed() for shadow in vm.user.shadows)
    if changed and "site-packages" not in function.__code__.co_filename:
        raise GraphBreak(f"{cached.__name__}, which keeps its results, is called after a change that it may see")
    ask = _Asked(cached.__name__, args, kwargs)
    with real_tensors():
        result = vm.native(ask, cached)
    return vm.user.wrap(result, Fetch(ask, Const(cached, cached.__name__)))


def _sees_arguments_alone(vm: Interpreter, function: Any) -> bool:
    """Whether it does not matter how often a function runs: the program's reads nothing but its arguments and what is torch's or Python's."""
    code = getattr(function, "__code__", None)
    if code is None or "site-packages" in code.co_filename or vm.is_library(function.__module__):
        return True
    codes = [code, *(part for part in code.co_consts if type(part) is types.CodeType)]
    found = [function.__globals__[name] for c in codes for name in c.co_names if name in function.__globals__]
    return not code.co_freevars and all(_is_fixed(vm, value) for value in found)


def _is_fixed(vm: Interpreter, value: Any) -> bool:
    if type(value) is types.ModuleType:
        return vm.is_library(value.__name__)
    return isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) and vm.is_library(value.__module__)


def _is_held(vm: Interpreter, value: Any) -> bool:
    """Whether an argument is the caller's own object; it is guarded by identity then."""
    if is_constant(value):
        return True
    known = vm.user.by_value.get(id(value))
    if known is None or known.real is not value or isinstance(value, Tensor) or id(value) in vm.user.opaque:
        return False
    vm.guards.add("is", known.source, value)
    return True


class _Asked:
    """`cached(*args)` as a step of a source: equal for equal arguments."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.__name__, self._args, self._kwargs = name, args, kwargs
        given = (*args, *(x for pair in kwargs.items() for x in pair))
        self._key = tuple((type(a), a if is_constant(a) else id(a)) for a in given)

    def __call__(self, cached: Any) -> Any:
        return cached(*self._args, **self._kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_told_by_c(vm: Interpreter, value: Any) -> bool:
    """Whether a key is told from others without code of the program's, by what lasts as long as the capture.

    Objects of the caller's are told by which they are (`check_keys` guards that), those of the capture's own as their class in C says.
    """
    if is_constant(value):
        return True
    if type(value) is tuple:
        return all(_is_told_by_c(vm, item) for item in value)
    if isinstance(value, Tensor | torch.SymInt | torch.SymFloat | Identity | frozenset):
        return False
    if any(objects.find_method(type(value), name) is not None for name in ("__eq__", "__hash__")):
        return False
    by_address = all(objects.lookup(type(value), name)[1] is object for name in ("__eq__", "__hash__"))
    if by_address or vm.user.source_of(value) is not None:
        check_keys(vm, (value,))
    return by_address or vm.user.source_of(value) is None and not vm.is_frontend_class(type(value))


class Cache:
    """What a cache holds that the program has made: the real one stays empty, as results are values of capture.

    `place` is where it was first called: there, the graph can end while an entry can still make the cache again.
    """

    def __init__(self, vm: Interpreter, cached: Any) -> None:
        self.results: OrderedDict[Any, Any] = OrderedDict()  # the one that was used last is the last
        self.hits = self.misses = 0
        self.place = restart_point(vm), tuple(vm.places())
        self.function, most, self.typed, _ = vm.recipes[id(cached)][1]
        self.most = None if most is None else max(most, 0)

    def call(self, vm: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of the cache."""
        key = vm.native(functools._make_key, args, kwargs, self.typed)
        if vm.native(operator.contains, self.results, key):
            self.hits += 1
            self.results.move_to_end(key)
            return self.results[key]
        self.misses += 1
        result = vm.call(self.function, args, kwargs)
        if self.most is None:
            self.results[key] = result
        elif self.most > 0 and key not in self.results:  # the function may have called the cache
            while len(self.results) >= self.most:
                self.results.popitem(last=False)
            self.results[key] = result
        return result


@ROWS.rule(LRU)
def _make(vm: Interpreter, *args: Any) -> Any:
    """`_lru_cache_wrapper(function, maxsize, typed, kind)`: the program makes a cache."""
    made = vm.create(vm.native(LRU, *args))
    vm.recipes[id(made)] = (LRU, args, {})
    return made


def _made(vm: Interpreter, cached: Any) -> Cache:
    if id(cached) not in vm.caches:
        vm.caches[id(cached)] = Cache(vm, cached)
    return vm.caches[id(cached)]


def check_empty(vm: Interpreter, cached: Any) -> None:
    """Raise Unsupported, in front of its first call, for a cache that outlives the graph and has been called: an entry makes empty ones."""
    cache = vm.caches.get(id(cached))
    if cache is not None:
        error = Unsupported("a cache that was made inside the captured code is called and outlives it")
        error.split, error.frames = cache.place
        raise error


@ROWS.rule(LRU.cache_info)
def _info(vm: Interpreter, cached: Any) -> Any:
    cache = _asked(vm, cached)
    return functools._CacheInfo(cache.hits, cache.misses, cache.most, len(cache.results))


@ROWS.rule(LRU.cache_clear)
def _clear(vm: Interpreter, cached: Any) -> None:
    cache = _asked(vm, cached)
    cache.results.clear()
    cache.hits = cache.misses = 0


def _asked(vm: Interpreter, cached: Any) -> Cache:
    if not vm.is_created(cached):
        raise Unsupported("a cache of the caller's is asked what it holds, or cleared")
    return _made(vm, cached)
