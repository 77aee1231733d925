"""Functions of Python's library with a meaning of their own: numbers, copies, caches."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import json
import math
import operator
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..breaks.kernel_warnings import warn_of_scalar
from ..bytecode.generator import InterpretedGenerator
from ..errors import GraphBreak, UserRaise
from ..graph.read_numbers import constant_of
from ..graph.sym_nodes import concrete
from ..guards.source import Const, Item
from ..state import Interpreter
from ..torch_private.dispatch import storage_key
from ..values import object as objects
from ..values import operators
from ..values.constant import is_constant
from ..values.container import InstanceDict, LazyDict
from ..values.function import CallBack, trampoline
from ..values.identity import Identity
from ..values.kinds import HEAP_TYPE, isinstance, namespace_of
from ..values.namespaces import instance_attr
from ..values.protocol import answered, binary_by_methods, is_written_in_python
from ..values.text import guarded_repr
from .pickles import answers_itself, asked_of_object, has_slots, is_copied_as_itself, reconstructed, registered
from .registry import Rows, Then, twin_of
from .visibility import check_keys, check_visible

__all__ = [
    "as_floats",
    "call_getter",
    "call_methodcaller",
    "call_partial",
    "methodcaller_parts",
    "plain_data",
    "special_function",
]

ROWS = Rows()

# ---- numbers ----


def _is_read(tensor: Tensor) -> bool:
    """Whether the number in a tensor is one that the graph may go on with."""
    return tensor.is_floating_point() or tensor.dtype in (torch.int64, torch.int32)


def _number(
    function: Callable[..., Any], *names: str, symbolic: Any = None, only: bool = False, floats: bool = False
) -> Callable[..., Any]:
    """A built-in that asks its operand's class: the program's methods are interpreted.

    With `only` it asks for nothing else, with `floats` it takes what has no such method for a float.
    """

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        if args:
            value = args[0]
            if symbolic is not None and len(args) == 1 and isinstance(value, torch.SymInt | torch.SymFloat):
                if function is int and isinstance(value, torch.SymFloat):
                    return vm.dynamic.whole(value)
                return vm.dynamic.call(symbolic, args, {}) if function is float else symbolic(value)
            if function is round and isinstance(value, torch.SymInt) and (kwargs or len(args) > 1):
                args = (vm.native(int, value), *args[1:])  # torch's symbols leave out to which digit
            if function in (int, float) and len(args) == 1 and (known := constant_of(value)) is not None:
                return function(known)
            if function is operator.index and len(args) == 1 and type(known := constant_of(value)) is int:
                return known
            if function in (int, float) and isinstance(value, Tensor) and len(args) == 1 and _is_read(value):
                number = vm.dynamic.any_item(value)
                if number is not None:
                    if function is float:
                        warn_of_scalar(vm, value)
                    kept = value.is_floating_point() if function is float else not value.is_floating_point()
                    return number if kept else vm.call(function, (number,), {})
            if not isinstance(value, Tensor):
                for name in () if function is operator.index and isinstance(value, int) else names:
                    method = objects.find_method(type(value), name)
                    if method is not None and not vm.is_library(method.__module__):
                        return answered(vm, function, value, name, vm.call(method, args, kwargs))
                    if objects.lookup(type(value), name)[1] is not None:
                        break  # C code answers
            if floats:
                args = (as_float(vm, value), *args[1:])
            check_visible(vm, args[1:] if only else args, f"{function.__name__}()")
        return vm.native_recorded(function, *map(vm.materialize, args), **kwargs)

    return apply


def as_floats(vm: Interpreter, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`as_float` of each, up to the first one that C code refuses: it does not come to the others."""
    given: list[Any] = []
    for value in args:
        given.append(as_float(vm, value))
        if isinstance(given[-1], _NO_NUMBERS):
            return (*given, *(0.0,) * (len(args) - len(given)))
    return tuple(given)


_NO_NUMBERS = (str, bytes, list, tuple, dict, set, frozenset, type(None))


def as_float(vm: Interpreter, value: Any) -> Any:
    """What C code that computes with floats makes of an object whose class says in Python which number it is."""
    if isinstance(value, float | Tensor) or is_constant(value):
        return value
    for name in ("__float__", "__index__"):
        method = objects.find_method(type(value), name)
        if method is not None and not vm.is_library(method.__module__):
            return vm.call(float, (value,), {})
    return value


ROWS.rule(int)(_number(int, "__int__", "__index__", symbolic=torch.sym_int))
ROWS.rule(float)(_number(float, "__float__", "__index__", symbolic=torch.sym_float))
ROWS.rule(complex)(_number(complex, "__complex__", "__float__"))
ROWS.rule(round)(_number(round, "__round__", only=True))
ROWS.rule(math.floor)(_number(math.floor, "__floor__", floats=True))
ROWS.rule(math.ceil)(_number(math.ceil, "__ceil__", floats=True))
ROWS.rule(math.trunc)(_number(math.trunc, "__trunc__", only=True))
ROWS.rule(operator.index)(_number(operator.index, "__index__"))
_ABS = _number(abs, "__abs__")
ROWS.rule(abs, operator.abs)(
    lambda vm, x: vm.call_tensor_method(x, "abs", (), {}) if isinstance(x, Tensor) else _ABS(vm, x)
)


@ROWS.rule(divmod)
def _divmod(vm: Interpreter, left: Any, right: Any) -> Any:
    kinds = vm.type_of(left), vm.type_of(right)
    if any(issubclass(kind, Tensor) for kind in kinds):
        others = [(k, n) for k, n in zip(kinds, ("__divmod__", "__rdivmod__"), strict=True) if k not in (int, float)]
        if any(objects.lookup(kind, name)[1] is not None for kind, name in others):
            raise GraphBreak("divmod of a tensor is called")
        names = " and ".join(repr(kind.__name__) for kind in kinds)
        raise UserRaise(TypeError(f"unsupported operand type(s) for divmod(): {names}"))
    if is_written_in_python(left, "__divmod__") or is_written_in_python(right, "__rdivmod__"):
        return binary_by_methods(vm, "divmod()", "divmod", left, right)
    if is_constant(left) and is_constant(right):
        return vm.native(divmod, left, right)
    return operators.binary(vm, "//", left, right), operators.binary(vm, "%", left, right)


@ROWS.rule(hash)
def _hash(vm: Interpreter, obj: Any) -> Any:
    obj = concrete(obj)
    method = objects.find_method(type(obj), "__hash__")
    if method is not None and not isinstance(obj, Tensor) and not vm.is_library(method.__module__):
        return answered(vm, hash, obj, "__hash__", vm.call(method, (obj,), {}))
    if isinstance(obj, torch.SymInt | torch.SymFloat):
        obj = vm.native(int if isinstance(obj, torch.SymInt) else float, obj)
    by_address = (object, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
    if objects.lookup(type(obj), "__hash__")[1] in by_address and not isinstance(obj, InterpretedGenerator):
        return Identity(vm, obj, hash)
    placed = type(obj) is tuple and all(_has_known_hash(vm, item) or _is_at_one_place(vm, item) for item in obj)
    if not placed and not _has_known_hash(vm, obj):
        raise GraphBreak("hash() of an object is read")
    check_keys(vm, (obj,))
    return vm.native(hash, obj)


def _is_at_one_place(vm: Interpreter, item: Any) -> bool:
    """Whether an object whose hash is made of its address hangs on a module: a guard asks which it is, so that the number is the same."""
    if objects.lookup(type(item), "__hash__")[1] is not object or isinstance(item, InterpretedGenerator | Tensor):
        return False
    if isinstance(item, type) and not item.__flags__ & HEAP_TYPE:
        return True
    source = vm.user.source_of(item)
    if source is None or not isinstance(source.root(), Const):
        return False
    vm.guards.add("is", source, item)
    return True


def _has_known_hash(vm: Interpreter, obj: Any) -> bool:
    """Whether a hash is that of constants, of what hashes itself in Python, or there is none."""
    method, owner = objects.lookup(type(obj), "__hash__")
    if owner in (tuple, frozenset):
        return all(_has_known_hash(vm, item) for item in owner.__iter__(obj))  # type: ignore[union-attr]
    if owner in (int, float, complex, str, bytes):
        return True
    return is_constant(obj) or method is None or isinstance(method, types.FunctionType) and not isinstance(obj, Tensor)


# ---- copies ----


@ROWS.rule(copy.copy)
def _copy(vm: Interpreter, value: Any) -> Any:
    value = value.function if type(value) is CallBack else value  # what an iterator of C's calls
    if isinstance(value, LazyDict | InstanceDict):
        return value.force()
    kind = type(value)
    if is_constant(value) or isinstance(value, types.ModuleType | types.CodeType | slice) or is_copied_as_itself(value):
        return value
    if kind in (list, dict, set, collections.OrderedDict, collections.deque, collections.defaultdict):
        return value.copy()
    if kind in (tuple, frozenset):
        return value
    if kind is collections.Counter:
        made: Any = collections.Counter()
        dict.update(made, value)
        return made
    if isinstance(value, Tensor):
        raise GraphBreak("copy.copy of a tensor")
    method, owner = objects.lookup(kind, "__copy__")
    if owner is not None and isinstance(method, types.MethodDescriptorType) and kind is not owner:
        if any(objects.find_method(kind, name) is not None for name in ("__new__", "__init__", "__iter__")):
            raise GraphBreak(f"a {kind.__qualname__} is copied by C code, which asks methods of the program's")
        return vm.create(vm.call(method, (value,), {}))
    if owner is not None:
        return vm.call(method, (value,), {})
    return _rebuild(vm, value, "copy.copy", lambda item: item)


def _rebuild(
    vm: Interpreter, value: Any, who: str, item_of: Callable[[Any], Any], made_of: Any = None, memo: Any = None
) -> Any:
    """An object with the attributes of `value`, passed through `item_of`, or what pickling makes of it."""
    kind = type(value)
    if vm.is_frontend_class(kind) and kind.__name__ == "InterpretedGenerator":
        raise UserRaise(TypeError("cannot pickle 'generator' object"))
    custom = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
    own = [name for name in custom if objects.find_method(kind, name) is not None]
    own += ["__reduce_ex__"] if answers_itself(vm, value, "__reduce_ex__") else []
    own += ["copyreg"] if not isinstance(value, nn.Module) and registered(vm, kind) is not None else []
    plain = namespace_of(value) is not None and kind.__new__ is object.__new__
    if isinstance(value, nn.Module) or own or not plain or id(value) in vm.user.opaque or has_slots(kind):
        return reconstructed(vm, value, who, memo)
    made = vm.create(vm.native(object.__new__, kind))
    if made_of is not None:
        made_of(made)
    for name in vm.effects.names(value, list(value.__dict__)):
        found, item = instance_attr(vm, value, name)
        if found:
            made.__dict__[name] = item_of(item)
    return made


_MEMO = object()  # the key under which a memo keeps what it refers to alive


@ROWS.rule(copy.deepcopy)
def _deepcopy(vm: Interpreter, value: Any, memo: Any = None) -> Any:
    value = value.function if type(value) is CallBack else value
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or is_constant(value):
        return value
    if isinstance(value, types.ModuleType | types.CodeType) or is_copied_as_itself(value):
        return value
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    memo.setdefault(id(memo), []).append(value)

    def copied(item: Any) -> Any:
        return _deepcopy(vm, item, memo)

    kind = type(value)
    made: Any
    if isinstance(value, Tensor):
        memo[id(value)] = made = _copied_tensor(vm, value, memo)
        return made
    if kind in (tuple, frozenset, set):
        items = [copied(item) for item in value]
        same = kind is not set and all(a is b for a, b in zip(items, value, strict=True))
        return memo.setdefault(id(value), value if same else kind(items))
    if kind in (list, collections.deque):
        made = memo[id(value)] = [] if kind is list else collections.deque(maxlen=value.maxlen)
        made.extend(copied(item) for item in value)
        return made
    if isinstance(value, LazyDict | InstanceDict) or kind in _MAPPINGS:
        defaults = kind is collections.defaultdict
        made = memo[id(value)] = kind(value.default_factory) if defaults else (kind if kind in _MAPPINGS else dict)()
        put = collections.OrderedDict.__setitem__ if kind is collections.OrderedDict else dict.__setitem__
        for key, item in list(value.items()):
            put(made, copied(key), copied(item))
        return made
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return memo.setdefault(id(value), vm.native(tuple.__new__, kind, [copied(item) for item in value]))
    method = None if isinstance(value, nn.Module) else asked_of_object(vm, value, "__deepcopy__")
    if method is not None:
        made = memo[id(value)] = vm.call(method, (memo,), {})
        return made
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, copied(value.__self__))
    return _rebuild(vm, value, "copy.deepcopy", copied, lambda made: memo.__setitem__(id(value), made), memo)


_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def _copied_tensor(vm: Interpreter, tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
    """A clone where that is all that copying is: no parameter, no gradient, no attributes, memory of its own."""
    if (foreign := vm.foreign.of(tensor)) is not None:
        raise GraphBreak(f"copy.deepcopy of a {foreign.kind}")
    info = vm.out.inputs.get(id(tensor))
    real = None if info is None else info.real
    storage = ("storage", storage_key(tensor))
    plain = vm.type_of(tensor) is Tensor and not tensor.requires_grad and not vm.effects.touches(tensor)
    if real is not None:
        plain = plain and real.grad is None and not real.__dict__
    whole = tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    if not plain or not whole or storage in memo or isinstance(tensor.numel(), torch.SymInt):
        raise GraphBreak(
            "copy.deepcopy of a tensor that is a view or a parameter, or that carries more than its values"
        )
    memo[storage] = True
    return vm.out.call_method("clone", (tensor,), {})


# ---- callables ----


def call_partial(vm: Interpreter, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a `functools.partial`, or an instance of a subclass that capture made."""
    if not all(isinstance(name, str) for name in made.keywords):
        raise UserRaise(TypeError("keywords must be strings"))
    return Then(made.func, (*made.args, *args), {**made.keywords, **kwargs})


def methodcaller_parts(caller: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The type, arguments and keywords that make an `operator.methodcaller` again; the first argument is the name."""
    made, args = caller.__reduce__()
    if isinstance(made, functools.partial):
        return made.func, (*made.args, *args), made.keywords
    return made, args, {}


def call_getter(vm: Interpreter, getter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`operator.itemgetter(...)(obj)` and `operator.attrgetter(...)(obj)`."""
    if len(args) != 1 or kwargs:
        return vm.native(getter, *args, **kwargs)  # which says so
    names = getter.__reduce__()[1]
    if operator.itemgetter in (type(getter), twin_of(type(getter))):
        values = [operators.get_item(vm, args[0], name) for name in names]
    else:
        values = [
            functools.reduce(lambda o, n: objects.load_attr(vm, o, n), name.split("."), args[0]) for name in names
        ]
    return values[0] if len(values) == 1 else tuple(values)


def call_methodcaller(vm: Interpreter, caller: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`operator.methodcaller(name, ...)(obj)`."""
    _, (name, *rest), keywords = methodcaller_parts(caller)
    return vm.call(objects.load_attr(vm, args[0], name), tuple(rest), keywords)


@ROWS.rule(traceback.clear_frames)
def _clear_frames(vm: Interpreter, trace: Any) -> None:
    """The frames of an exception that capture has seen being raised hold no values."""
    if vm.user.source_of(trace) is not None:
        raise GraphBreak("the frames of an exception that was raised before this graph are cleared")


def special_function(function: types.FunctionType) -> Any:
    """What stands for a closure of the library's own: the look-up of `singledispatch`, the guard of `__repr__`."""
    found = _SPECIAL.get(function.__code__.co_qualname)
    return found if found is not None and function.__globals__["__name__"] in _SPECIAL_MODULES else None


def _dispatch(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    registry = inspect.getclosurevars(function).nonlocals["registry"]
    vm.guards.add("keys", Const(registry, "registry"), list(registry))
    found = vm.native(function, *args, **kwargs)
    return vm.user.wrap(found, Item(Const(registry, "registry"), next(k for k, v in registry.items() if v is found)))


def _compile_setting(
    vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Settings of torch.compile, changed for a while: nothing to what the program computes."""
    config = inspect.getclosurevars(function).nonlocals.get("config")
    if getattr(config, "__name__", "") not in ("torch._dynamo.config", "torch._inductor.config"):
        raise GraphBreak(f"a setting of {getattr(config, '__name__', 'torch')} is changed")


_SPECIAL_MODULES = ("functools", "dataclasses", "reprlib", "torch.utils._config_module")
_PATCH = "ConfigModule.patch.<locals>.ConfigPatch"
_SPECIAL: dict[str, Any] = {
    f"{_PATCH}.__enter__": _compile_setting,
    f"{_PATCH}.__exit__": _compile_setting,
    "singledispatch.<locals>.dispatch": _dispatch,
    "_recursive_repr.<locals>.wrapper": guarded_repr,
    "recursive_repr.<locals>.decorating_function.<locals>.wrapper": guarded_repr,
}


# ---- text ----


def plain_data(value: Any, depth: int = 0, symbols: bool = False) -> bool:
    if is_constant(value) or symbols and isinstance(value, torch.SymInt):
        return True
    if depth > 8 or type(value) not in (list, tuple, dict):
        return False
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return all(plain_data(item, depth + 1, symbols) for item in items)


def _of_plain_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the library that is run as it is when it is given nothing but plain data."""

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(vm.materialize, args))
        if not all(map(plain_data, (*args, *kwargs.values()))):
            raise GraphBreak(f"{function.__module__}.{function.__name__} is given more than plain data")
        return vm.native(function, *args, **kwargs)

    return apply


for _function in (json.dumps, json.loads, sys.intern):
    ROWS.rule(_function)(_of_plain_data(_function))


# ---- exceptions ----


@ROWS.rule(sys.exit)
def _exit(vm: Interpreter, status: Any = None) -> Any:
    if isinstance(status, SystemExit):
        raise UserRaise(status)
    args = () if status is None else status if isinstance(status, tuple) else (status,)
    raise UserRaise(vm.call(SystemExit, tuple(args), {}))


def _parted(function: Any) -> Any:
    """A method of exception groups that asks a function of the program's about each exception: C code takes real functions only."""

    def apply(vm: Interpreter, group: Any, condition: Any) -> Any:
        if type(condition) is types.FunctionType:
            called = trampoline(vm, condition)
            return vm.native(function, group, lambda error: called(error))
        return vm.native(function, group, condition)

    return apply


for _method in (BaseExceptionGroup.split, BaseExceptionGroup.subgroup):
    ROWS.rule(_method)(_parted(_method))
