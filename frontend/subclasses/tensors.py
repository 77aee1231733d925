"""Tensors of classes of the program's: how they come into a graph, what their attributes are, how they are made."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..calls.registry import Rows
from ..classes.instances import is_subclass
from ..errors import GraphBreak, Unsupported, UserRaise
from ..foreign import shells
from ..gradients.grads import read_grad, write_grad
from ..guards.definitions import MISSING, lookup
from ..guards.source import Attr, Fetch, Item, Source
from ..state import Interpreter
from ..torch_private.autograd_graph import is_leaf
from ..torch_private.dispatch import CORRECT_ALIASING
from ..torch_private.fake import real_tensors
from ..torch_private.foreign.data import is_alone, is_plain_data
from ..torch_private.functions import (
    ASKS_OVERRIDES,
    CONVERT,
    LAZY,
    MAKE_SUBCLASS,
    MAKE_WRAPPER,
    NEW_TENSOR,
    NO_DISPATCH,
    NO_FUNCTION,
    as_plain,
    never_wrapped,
)
from ..torch_private.wrapped import (
    JAGGED_OF_LISTS,
    JAGGED_OF_PARTS,
    is_wrapped,
    is_wrapper,
    layout_of,
    prepare_jagged,
)
from ..values import object as objects
from ..values.constant import is_constant
from ..values.kinds import isinstance, namespace_of
from . import methods, wrappers
from .overrides import Marked

__all__ = ["ROWS", "as_subclass", "by_descriptor", "load", "make", "new", "store", "taken_in", "takes"]

ROWS = Rows()

# What the plain tensor that stands for one of the caller's cannot answer.
_REFUSED = frozenset(
    """
    is_leaf output_nr retains_grad names is_inference _is_view data grad grad_fn _base _version retain_grad __dict__
    register_hook register_post_accumulate_grad_hook detach_ requires_grad_ share_memory_ pin_memory set_ resize_
    """.split()  # noqa: SIM905
)


def takes(kind: type) -> bool:
    """Whether a class only says what calls of torch mean: it holds memory as any tensor, and sees no operators."""
    if is_wrapper(kind) or shells.takes(kind):
        return True
    own = kind.__module__.partition(".")[0] != "torch"
    return own and not issubclass(kind, LAZY) and lookup(kind, "__torch_dispatch__")[0] is NO_DISPATCH


def taken_in(vm: Interpreter, value: Tensor, source: Source, check: Any) -> Tensor:
    """The stand-in for a tensor of the caller's: the graph is given the same memory as a plain tensor."""
    if is_wrapper(type(value)):
        return wrappers.taken_in(vm, value, source, check)
    if shells.takes(type(value)):
        _check_own(type(value), source)
        if vm.foreign.takes_apart:
            return wrappers.taken_in(vm, value, source, check)
        return shells.taken_in(vm, value, source)
    plain, kind = as_plain(value), type(value)
    check(plain, source.name())
    _check_own(kind, source)
    vm.guards.add("type", source, kind)
    vm.definitions.note(kind)
    fake, info = vm.dynamic.tensor(plain, Fetch(as_plain, source), False)
    vm.out.add_input(info)
    vm.user.arg_tensors.append(info)
    vm.user.track(value, fake, source)
    return vm.overrides.mark(fake, kind, value, source)


def _check_own(kind: type, source: Source) -> None:
    for name in ("__getattribute__", "__setattr__"):
        if _of_program(kind, name):
            raise Unsupported(
                f"{source.name()} is a {kind.__qualname__}, whose attributes are found by code of its own"
            )


def _of_program(kind: type, name: str) -> bool:
    """Whether a class of the program's defines the attribute, and not torch's."""
    owner = lookup(kind, name)[1]
    return owner is not None and owner not in Tensor.__mro__


# ---- attributes ----


def load(vm: Interpreter, tensor: Tensor, name: str) -> Any:
    """`tensor.name` where its class, the tensor itself or a mode says what that is; else `NotImplemented`."""
    known: Marked | None = vm.overrides.known.get(id(tensor))
    if known is None and is_wrapped(tensor):
        known = Marked(tensor, type(tensor), wrapper=True)
    kind = Tensor if known is None else known.kind
    if name == "__class__":
        return vm.type_of(tensor)
    raw, owner = lookup(kind, name)
    fresh = known is not None and known.wrapper and methods.is_fresh(vm, tensor)
    if fresh and name in (namespace_of(tensor) or {}):
        return (namespace_of(tensor) or {})[name]
    if known is not None and known.wrapper and not fresh:
        if name in layout_of(tensor).names:
            return wrappers.part(vm, tensor, name)
        if known.source is None and owner is None:
            return _made_attr(vm, tensor, name)
    if owner is not None and owner not in Tensor.__mro__:
        return _own_attr(vm, tensor, known, raw, owner, name)
    if known is not None and _is_hidden(known, owner, name):
        found, value = _held(vm, tensor, known, name)
        if found:
            return value
    if name == "grad" and known is not None and vm.overrides.is_of_caller(tensor):
        if methods.has_function(kind) and vm.overrides.off < 1:
            return methods.asked(vm, tensor, raw.__get__)
        found, value = vm.effects.attr(tensor, name)
        return value if found else read_grad(vm, tensor)
    real = known.real if known is not None and vm.overrides.is_of_caller(tensor) else None
    if real is not None and is_leaf(real) and name in ("grad_fn", "is_leaf"):
        methods.of_function(vm, tensor, raw.__get__)
        return (
            True if name == "is_leaf" else None
        )  # the layout's guard asks for a leaf; writes that are recorded are refused
    said = name == "requires_grad_" and vm.overrides.is_of_caller(tensor)  # mostly what it is already
    if known is not None and known.source is not None and name in _REFUSED and not said:
        raise GraphBreak(f"{name} of a {kind.__qualname__} of the caller's is read")
    if isinstance(raw, types.GetSetDescriptorType) and name not in ("__dict__", "__weakref__"):
        if known is not None and known.wrapper:
            methods.of_function(vm, tensor, raw.__get__)
        if vm.overrides.concern((tensor,)):
            return vm.overrides.dispatch(raw.__get__, (tensor,), None, True)
        return NotImplemented
    if owner is None:
        return _instance_attr(vm, tensor, known, name)
    if isinstance(raw, classmethod):
        return objects.load_attr(vm, kind, name)
    if isinstance(raw, property) and vm.overrides.concern((tensor,)):
        return vm.call(raw.fget, (tensor,), {})
    return NotImplemented


def _is_hidden(known: Marked, owner: type | None, name: str) -> bool:
    """Whether an attribute of the tensor's own would stand before a method of torch's."""
    return not name.startswith("__") and not known.wrapper and _is_method(known.kind, owner, name)


def _is_method(kind: type, owner: type | None, name: str) -> bool:
    """Whether a class has from torch, under this name, what an attribute of the object's own stands before: no `data` or `grad`."""
    return owner is not None and owner in Tensor.__mro__ and not _decides(lookup(kind, name)[0])


def _decides(raw: Any) -> bool:
    """Whether what a class has stands before what an object holds under the same name, and is asked where it is assigned."""
    return any(lookup(type(raw), special)[1] is not None for special in ("__set__", "__delete__"))


def _made_attr(vm: Interpreter, tensor: Tensor, name: str) -> Any:
    """An attribute of a wrapper tensor that the graph makes: a constant, which follows from what it is made of."""
    found = namespace_of(tensor) or {}
    if name not in found:
        raise UserRaise(AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}"))
    if methods.is_followed(vm) and is_plain_data(found[name]):
        return methods.copied_data(vm, found[name])
    if not is_constant(found[name]) and not (is_alone(found[name]) and id(found[name]) in vm.user.by_real):
        raise GraphBreak(f"{name} of a {type(tensor).__qualname__} is read, which is neither a part nor a constant")
    return found[name]


def _own_attr(vm: Interpreter, tensor: Tensor, known: Any, raw: Any, owner: type, name: str) -> Any:
    if isinstance(raw, types.MemberDescriptorType):
        raise GraphBreak(f"the slot {name} of a {known.kind.__qualname__} is used")
    if not objects.is_data_descriptor(known.kind, name):
        found, value = _held(vm, tensor, known, name)
        found, value = (found, value) if found else objects.written_class_value(vm, known.kind, name)
        if found:
            return value
    return objects.bind(vm, raw, owner, tensor, known.kind, name)


def _held(vm: Interpreter, tensor: Tensor, known: Marked | None, name: str) -> tuple[bool, Any]:
    """(True, value) of an attribute of the tensor's own."""
    found, value = vm.effects.attr(tensor, name)
    if found or known is None or known.real is None or known.source is None:
        return found, value
    where, values = Attr(known.source, "__dict__"), namespace_of(known.real) or {}
    if name in values:
        return True, vm.user.wrap(values[name], Item(where, name))
    vm.guards.add("missing", where, name)
    return False, None


def _instance_attr(vm: Interpreter, tensor: Tensor, known: Marked | None, name: str) -> Any:
    if known is None:
        return NotImplemented
    found, value = _held(vm, tensor, known, name)
    found, value = (found, value) if found else objects.written_class_value(vm, known.kind, name)
    if found:
        return value
    getter = objects.find_method(known.kind, "__getattr__")
    if getter is not None:
        return vm.call(getter, (tensor, name), {})
    raise UserRaise(AttributeError(f"{known.kind.__name__!r} object has no attribute {name!r}"))


def store(vm: Interpreter, tensor: Tensor, name: str, value: Any) -> Any:
    """`tensor.name = value` of a tensor of a class of the program's; `NotImplemented` for others."""
    known = vm.overrides.known.get(id(tensor))
    own, kind = lookup(type(tensor), name)[1], type(tensor)
    plain = (own is None or _is_method(kind, own, name)) and not _of_program(kind, "__setattr__")
    if is_wrapped(tensor) and plain and methods.is_fresh(vm, tensor):
        object.__getattribute__(tensor, "__dict__")[name] = vm.materialize(value)
        return None
    if is_wrapped(tensor) and name == "grad" and vm.overrides.is_of_caller(tensor):
        if methods.has_function(kind) and vm.overrides.off < 1:
            return methods.asked(vm, tensor, lookup(kind, name)[0].__set__, value)
        write_grad(vm, tensor, vm.materialize(value))
        return None
    if is_wrapped(tensor):
        raise GraphBreak(f"{name} of a {type(tensor).__qualname__} is assigned")
    kind = Tensor if known is None else known.kind
    raw, owner = lookup(kind, name)
    if owner in Tensor.__mro__ and owner is not None and (known is None or not _is_hidden(known, owner, name)):
        if known is None and not vm.overrides.concern((tensor,)):
            return NotImplemented
        raise GraphBreak(f"{name} of a {kind.__qualname__} is assigned")
    if known is None:
        return NotImplemented
    if _of_program(kind, "__setattr__"):
        raise GraphBreak(f"an attribute of a {kind.__qualname__} is assigned by code of its own")
    if isinstance(raw, property) and raw.fset is not None:
        return vm.call(raw.fset, (tensor, value), {})
    if raw is not MISSING and objects.is_data_descriptor(kind, name) or isinstance(raw, types.MemberDescriptorType):
        raise GraphBreak(f"{name} of a {kind.__qualname__} is assigned by code of its own")
    vm.effects.write_attr(tensor, name, value)
    return None


def by_descriptor(vm: Interpreter, function: Any, tensor: Tensor, *values: Any) -> Any:
    """A call of `Tensor.name.__get__` or of its `__set__`."""
    name = function.__self__.__name__
    if function.__name__ == "__get__" and len(values) < 2:
        return objects.load_attr(vm, tensor, name)
    if function.__name__ == "__set__" and len(values) == 1:
        return objects.store_attr(vm, tensor, name, *values)
    raise GraphBreak(f"{function.__name__} of Tensor.{name} is called")


# ---- making them ----


def holds_others(cls: type) -> bool:
    """Whether tensors of a class have no memory of their own."""
    return is_wrapper(cls) or shells.takes(cls)


def as_subclass(vm: Interpreter, tensor: Any, cls: Any) -> Tensor:
    """`tensor.as_subclass(cls)`: the same memory."""
    plain = cls is Tensor
    if not isinstance(tensor, Tensor) or not isinstance(cls, type) or not issubclass(cls, Tensor):
        raise GraphBreak("as_subclass is called with something else than a tensor and its new class")
    if is_wrapped(tensor) or not plain and (not takes(cls) or holds_others(cls) or issubclass(cls, nn.Parameter)):
        raise GraphBreak(f"a tensor becomes a {cls.__qualname__}")
    with vm.overrides.left():
        made: Tensor = vm.out.call_function(torch.ops.aten.alias.default, (tensor,), {})
    if not plain:
        vm.definitions.note(cls)
        vm.overrides.mark(made, cls)
    return made


@ROWS.rule(MAKE_WRAPPER)
def _make_wrapper(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Tensor:
    shelled = isinstance(cls, type) and issubclass(cls, Tensor) and shells.takes(cls) and not vm.foreign.takes_apart
    return shells.begun(vm, cls, *args, **kwargs) if shelled else methods.begun(vm, cls, *args, **kwargs)


ROWS.rule(CORRECT_ALIASING)(methods.aliasing_corrected)


@ROWS.rule(MAKE_SUBCLASS)
def _make_subclass(vm: Interpreter, cls: Any, data: Any, require_grad: Any = False, **more: Any) -> Tensor:
    if require_grad or more or not isinstance(data, Tensor):
        raise GraphBreak(f"a {getattr(cls, '__qualname__', cls)} is made that is a leaf")
    with vm.overrides.left():
        return as_subclass(vm, vm.out.call_method("detach", (data,), {}), cls)


def make(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cls(...)`."""
    apart = is_wrapper(cls) or vm.foreign.takes_apart and shells.takes(cls)
    if apart and objects.find_method(type(cls), "__call__") is None:
        return wrappers.built(vm, cls, args, kwargs)
    if (
        not takes(cls)
        or is_wrapper(cls)
        or issubclass(cls, nn.Parameter)
        or objects.find_method(type(cls), "__call__") is not None
    ):
        raise Unsupported(f"a {cls.__name__} is constructed inside the captured code")
    new, owner = lookup(cls, "__new__")
    made = (
        _new(vm, cls, *args, **kwargs)
        if owner in Tensor.__mro__
        else vm.call(getattr(new, "__func__", new), (cls, *args), kwargs)
    )
    if not isinstance(made, Tensor) or not issubclass(vm.type_of(made), cls):
        return made
    init = objects.find_method(cls, "__init__")
    if init is not None:
        vm.call(init, (made, *args), kwargs)
    return made


def _new(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.__new__(cls, tensor)`."""
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        raise Unsupported(f"a {getattr(cls, '__name__', cls)} is constructed inside the captured code")
    return as_subclass(vm, args[0], cls)


def new(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.__new__` as a program calls it; `NotImplemented` where it is another class's."""
    if not isinstance(cls, type) or not issubclass(cls, Tensor) or lookup(Tensor, "__new__")[0] is not NEW_TENSOR:
        return NotImplemented
    return _new(vm, cls, *args, **kwargs)


# ---- torch's own way ----


@ROWS.rule(Tensor.__torch_function__)
def _of_tensor(vm: Interpreter, cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """What every class of tensors inherits: the call as it is, with results of the class."""
    if not all(is_subclass(vm, cls, kind) for kind in vm.listed(types)):
        return NotImplemented
    with vm.overrides.without_classes():
        result = vm.call(func, tuple(vm.listed(args)), dict(vm.materialize(kwargs or {})))
    return result if cls is Tensor or _is_in(func, never_wrapped()) else _converted(vm, result, cls)


@ROWS.rule(NO_FUNCTION)
def _disabled(vm: Interpreter, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """What a class with `__torch_dispatch__` alone has: the call as it is."""
    with vm.overrides.without_classes():
        return vm.call(func, tuple(vm.listed(args)), dict(vm.materialize(kwargs or {})))


def _is_in(function: Any, functions: Any) -> bool:
    try:
        return function in functions
    except TypeError:
        return False


def _converted(vm: Interpreter, value: Any, cls: type) -> Any:
    if isinstance(value, Tensor):
        return value if issubclass(vm.type_of(value), cls) else as_subclass(vm, value, cls)
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        items = [_converted(vm, item, cls) for item in value]
        return (
            type(value)(items) if type(value) in (tuple, list) or not hasattr(value, "_fields") else type(value)(*items)
        )
    return value


ROWS.rule(CONVERT)(lambda vm, value, cls: value if cls is Tensor else _converted(vm, value, cls))
ROWS.rule(TorchFunctionMode.__init__)(lambda vm, *_: None)


@ROWS.rule(torch.overrides.handle_torch_function)
def _handle(vm: Interpreter, public_api: Any, relevant_args: Any, *args: Any, **kwargs: Any) -> Any:
    return vm.overrides.dispatch(public_api, args, kwargs, True)


def _asks(vm: Interpreter, function: Any, values: tuple[Any, ...]) -> bool:
    if vm.overrides.active and vm.overrides.modes and vm.overrides.off < 2:
        return True
    return bool(vm.overrides.overloaded(values))


ROWS.rule(ASKS_OVERRIDES[0])(lambda vm, values: _asks(vm, ASKS_OVERRIDES[0], tuple(vm.listed(values))))
ROWS.rule(*ASKS_OVERRIDES[1:])(lambda vm, *values: _asks(vm, None, values))


# ---- jagged tensors ----


class Jagged:
    """A call of a function of torch.nested, which makes a jagged tensor or has one."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _jagged(function: Any, made: bool) -> None:
    target = Jagged(function)

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        if made and kwargs.get("layout") is not torch.jagged:
            raise GraphBreak(f"{function.__name__} makes a nested tensor in the strided layout")
        with real_tensors():
            prepare_jagged()
        args, kwargs = tuple(map(vm.materialize, args)), {k: vm.materialize(v) for k, v in kwargs.items()}
        return vm.out.call_function(target, args, kwargs)

    ROWS.rule(function)(apply)


for _function in JAGGED_OF_LISTS:
    _jagged(_function, True)
for _function in JAGGED_OF_PARTS:
    _jagged(_function, False)
