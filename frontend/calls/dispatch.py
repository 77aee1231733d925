"""Calls: which callables are nodes of the graph, which are interpreted, which run as they are."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..breaks.iterators import method_taken_over
from ..bytecode import coroutine
from ..bytecode.generator import InterpretedGenerator
from ..bytecode.unpacking import as_mapping
from ..classes import code_text, collected, descriptors, making, weak
from ..classes import library as class_library
from ..distributed import collectives, wrappers
from ..entry import messages, warned
from ..errors import GraphBreak, Unsupported, UserRaise
from ..gradients import checkpoint, custom, hooks, saving
from ..gradients import rules as gradient_rules
from ..guards import process_state
from ..guards.sameness import is_value_type
from ..guards.source import Attr, Const, Item
from ..modes import caches, locks, python_random, randomness, uncaught
from ..operators import ROWS as OPERATORS
from ..regions import branches, flex, loops
from ..state import Interpreter
from ..subclasses import tensors as subclasses
from ..torch_private.dynamo import script_source, substituted, unmarked
from ..torch_private.functions import MODULE_CALL, MODULE_CALL_WITH_HOOKS, OpOverload, OpOverloadPacket
from ..torch_private.guards import global_module_hooks
from ..transforms import rules as transforms
from ..values import object as objects
from ..values import sets
from ..values.constant import is_constant
from ..values.container import GlobalsDict, InstanceDict, LazyDict
from ..values.function import trampoline
from ..values.held import behind
from ..values.kinds import c_name, isinstance
from ..values.lazy import Append, read_methods
from ..values.protocol import ask_length
from ..values.sets import check_history
from ..values.tensor import TensorMethod, is_method_descriptor
from ..values.text import is_late, late_format
from . import builtins as rules
from . import contexts, library, marks, natives, optimizers, order, pickles, registry, tables, torch_rules
from .contexts import is_torch_context
from .registry import C_DESCRIPTORS, Row, Then, called_row, check_refused, fill, row_of, rule_of, twin_of
from .torch_calls import call_operator, check_torch_state, is_operator, is_torch_builtin, torch_answer, torch_call
from .visibility import check_keys, check_text, check_visible, keys_in

__all__ = ["call", "call_forward"]


def call(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool = False) -> Any:
    """Call `function` as the program would; `direct`: the result is that of a CALL instruction, with nothing left to do."""
    while True:
        result = _once(vm, function, args, kwargs)
        if type(result) is not Then:
            return result
        function, args, kwargs = result.function, result.args, result.kwargs
        if result.body:
            return vm.inline(function, args, kwargs, direct)


def _once(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if vm.overrides.active and _is_overridable(function) and vm.overrides.concern((args, kwargs)):
        if type(function) is types.FunctionType and vm.foreign.has_shells((args, kwargs)):
            return Then(function, args, kwargs, body=True)  # it asks `__torch_function__` itself
        if (result := vm.overrides.run(function, args, kwargs)) is not NotImplemented:
            return result
    if vm.branches.lists.known and (result := vm.branches.lists.call(vm, function, args, kwargs)) is not NotImplemented:
        return result
    if vm.overrides.known:
        vm.overrides.check_methods(function, args)
    if (result := vm.overrides.of_builtin(function, args)) is not NotImplemented:
        return result
    row = row_of(function)
    if vm.unread and Append in map(type, args):
        args = read_methods(function, args)
    if row is not None:
        check_refused(row)
    if row is not None and row.apply is not None:
        return _ruled(vm, row, function, args, kwargs)
    kind = type(function)
    handler = _BY_KIND.get(kind)
    if handler is not None:
        return handler(vm, function, args, kwargs)
    if isinstance(function, type):
        return _construct(vm, function, args, kwargs)
    if isinstance(function, nn.Module):
        return call_module(vm, function, args, kwargs)
    if vm.is_frontend_class(kind):
        return vm.native(function, *args, **kwargs)
    if kind.__module__ == "typing" and hasattr(function, "__origin__") or isinstance(function, types.GenericAlias):
        return _generic(vm, function, args, kwargs)
    method = objects.find_method(kind, "__call__")
    if method is not None:
        return Then(method, (function, *args), kwargs)
    if (handler := _BY_KIND.get(twin_of(kind))) is not None:
        return handler(vm, function, args, kwargs)
    if _is_scripted(function):
        return _scripted(vm, function, args, kwargs)
    if kind is _INSTANCE_METHOD and function.__name__ == "__call__" and args and _is_scripted(args[0]):
        return _scripted(vm, args[0], args[1:], kwargs)  # C's own, where a program has put another around it
    raw, owner = objects.lookup(kind, "__call__")
    if owner is not None and functools.partial in (owner, twin_of(owner)) and vm.user.source_of(function) is None:
        return library.call_partial(vm, function, args, kwargs)
    if owner is not None and not isinstance(raw, types.WrapperDescriptorType):
        return vm.call(objects.bind(vm, raw, owner, function, kind, "__call__"), args, kwargs)
    if (own := vm.overrides.own(function, "__call__")) is not None:
        return Then(own, args, kwargs)
    if not callable(function):
        raise UserRaise(TypeError(f"'{c_name(kind)}' object is not callable"))
    return natives.call_other(vm, function, args, kwargs)


def _is_overridable(function: Any) -> bool:
    """Whether torch asks `__torch_function__` about a function, or in it; methods of tensors are asked about where they are called."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return True
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "") or ""
    if isinstance(function, types.FunctionType) and module.startswith("torch.") and registry.asks_overrides(function):
        return True
    if name in tables.REFUSED_TORCH or name.startswith(tables.STATE_CHANGES):
        return False
    if isinstance(function, types.FunctionType):
        return rules.is_leaf_module(module) and module != "torch.overrides" and name != "__torch_function__"
    return (
        isinstance(function, types.BuiltinFunctionType) and is_torch_builtin(function, None) and is_operator(function)
    )


def _ruled(vm: Interpreter, row: Row, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that a row interprets; arguments that its function does not take, eager mostly refuses as well."""
    assert row.apply is not None
    try:
        return row.apply(vm, *args, **kwargs)
    except TypeError as error:
        if type(row.target) in C_DESCRIPTORS and args and not issubclass(vm.type_of(args[0]), row.target.__objclass__):
            vm.native(row.target, *args, **kwargs)  # a method of C's, called with an object of another class
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise
    if row.target is not type.__call__:
        vm.native(registry.refuse_misfit, row.target, args, kwargs)
    raise GraphBreak(f"{getattr(function, '__name__', function)} is called with arguments that do not fit it")


def _is_scripted(function: Any) -> bool:
    return isinstance(function, torch.jit.ScriptFunction | torch.jit.ScriptModule)


def _scripted(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if (plain := script_source(function)) is not None:
        return vm.call(plain, args, kwargs)
    raise Unsupported("a TorchScript function is called")


_INSTANCE_METHOD = type(torch.jit.ScriptFunction.__dict__["save"])


def _generic(vm: Interpreter, alias: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Class[int](...)`: the class is called, and the instance remembers the alias where it can."""
    made = vm.call(alias.__origin__, args, kwargs)
    if vm.is_created(made) and hasattr(made, "__dict__"):
        objects.store_attr(vm, made, "__orig_class__", alias)
    return made


# ---- Python functions ----


def _python(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function in vm.plain and not function.__dict__:
        return Then(function, args, kwargs, body=True)
    module = function.__module__ or ""
    if vm.is_created(function):
        special = library.special_function(function)
        return Then(function, args, kwargs, body=True) if special is None else special(vm, function, args, kwargs)
    functorch = function.__globals__.get("__name__", "").startswith("torch._functorch")
    if functorch and (made := transforms.made_before(vm, function)) is not None:
        return Then(made, args, kwargs)
    target = function.__dict__.get(
        "_intarsia_target"
    )  # also where functools.wraps has put it on a function around that
    if target is not None and function.__dict__["_intarsia_runtime"].is_made(function):
        bound = function.__code__.co_varnames[:1] == ("__self",)
        return Then(target, args[1:] if bound else args, kwargs)
    if rules.is_leaf_module(module) and not vm.foreign.has_shells((args, kwargs)):
        return torch_call(vm, function, args, kwargs)
    if module.startswith(rules.FRONTEND):
        return vm.native(function, *args, **kwargs)
    if (plain := unmarked(function)) is not None:
        return Then(plain, args, kwargs)
    torch_rules.check_uncompiled(function)
    optimizers.check_step(vm, function, args)
    if module == "torch._dynamo.mutation_guard" and function.__name__ == "patched_init":
        # torch.compile puts this in the place of nn.Module.__init__, to count modules for itself.
        return rules.module_init(vm, *args, **kwargs)
    special = library.special_function(function)
    if special is not None:
        return special(vm, function, args, kwargs)
    if function.__name__ not in tables.ONLY_ASKING:
        rules.check_module(module, function.__qualname__)
    if module.startswith("torch") and function.__name__ != "__getattr__":
        check_torch_state(function.__name__, module)
    marked = marks.call_marked(vm, function, args, kwargs)
    if marked is not NotImplemented:
        return marked
    if row_of(function) is not None:
        return c_call(vm, function, args, kwargs)
    native = module in tables.NATIVE_PYTHON and function.__globals__.get("__name__") == module
    if native and function.__name__ != "__getattr__":
        if module.startswith("torch") and function.__name__ not in tables.TORCH_FIXED:
            return torch_answer(vm, function, args, kwargs)
        return vm.native_recorded(function, *map(vm.materialize, args), **kwargs)
    if module in ("logging", "warnings"):
        messages.check(function)
    elif not module.startswith("torch") and not function.__dict__:
        vm.plain.add(function)
    return Then(function, args, kwargs, body=True)


def _method(vm: Interpreter, method: types.MethodType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = method.__self__
    ruled = rule_of(method.__func__) is not None
    mine = not ruled and vm.is_frontend_class(type(owner)) and not vm.foreign.has_shells((owner,))
    if mine or isinstance(owner, InterpretedGenerator):
        return vm.native(method, *args, **kwargs)
    return Then(method.__func__, (owner, *args), kwargs)


# ---- C functions ----


def _builtin(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = function.__self__
    if is_torch_builtin(function, owner) and called_row(function) is None:
        if isinstance(owner, Tensor):
            return vm.call_tensor_method(owner, function.__name__, args, kwargs)
        return torch_call(vm, function, args, kwargs)
    if owner is not None and not isinstance(owner, types.ModuleType):
        if isinstance(owner, type):
            return _class_builtin(vm, owner, function, args, kwargs)
        return _bound_builtin(vm, owner, function, args, kwargs)
    return c_call(vm, function, args, kwargs)


def _class_builtin(vm: Interpreter, cls: type, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function.__name__ == "__new__":
        made = subclasses.new(vm, *args, **kwargs) if args else NotImplemented
        if made is not NotImplemented:
            return made
        if args and isinstance(args[0], type):
            return vm.create(c_call(vm, function, args, kwargs))
        raise Unsupported("__new__ without a class")
    row = called_row(function)
    if row is not None and row.apply is not None:
        return _ruled(vm, row, function, (cls, *args), kwargs)
    return c_call(vm, function, args, kwargs)


def _bound_builtin(vm: Interpreter, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mapping = vm.tracked_mapping(owner)
    name = function.__name__
    if mapping is not None:
        return _mapping_method(vm, mapping, name, args, kwargs)
    row = called_row(function)
    if row is not None and row.apply is not None and not (isinstance(owner, list) and type(owner) is not list):
        return _ruled(vm, row, function, (owner, *args), kwargs)
    _refuse_callers(vm, owner, name, known=is_constant(owner) or registry.is_never_run(function, args, kwargs))
    return c_call(vm, function, args, kwargs)


def _refuse_callers(vm: Interpreter, owner: Any, name: str, known: bool) -> None:
    """Break before a C method of an object of the caller's, which would read what is not guarded."""
    entry = vm.user.by_value.get(id(owner))
    taken = isinstance(owner, frozenset) and id(owner) not in vm.user.opaque  # its items are guarded
    if entry is not None and entry.real is owner and not known and not taken and not is_value_type(owner):
        raise Unsupported(f"a C method of the caller's {type(owner).__name__} is called: {name}")


def _mapping_method(vm: Interpreter, mapping: LazyDict, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    if name in _MAPPING_METHODS:
        return vm.native(getattr(mapping, name), *args, **kwargs)
    raise Unsupported(f"a dict of the caller's is changed: {mapping.source.name()}.{name}")


_MAPPING_METHODS = frozenset(
    ("get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__len__", "__iter__")
    + ("update", "pop", "popitem", "clear", "setdefault")
)


def _descriptor(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function.__name__
    if not args:
        return vm.native(function, *args, **kwargs)
    owner = args[0]
    if isinstance(owner, Tensor) and is_method_descriptor(function):
        return vm.call_tensor_method(owner, name, args[1:], kwargs)
    if function is type.__call__ and isinstance(owner, type) and owner is not type:
        return _make(vm, owner, args[1:], kwargs)
    mapping = vm.tracked_mapping(owner)
    if mapping is not None:
        return _mapping_method(vm, mapping, name, args[1:], kwargs)
    known = isinstance(owner, type) or name in _HARMLESS or registry.is_never_run(function, args, kwargs)
    _refuse_callers(vm, owner, name, known)
    return c_call(vm, function, args, kwargs)


def _wrapper(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A special method of C's, bound to an object."""
    function = method_taken_over(vm, function)
    row = called_row(function)
    if row is not None and row.apply is not None:
        return _ruled(vm, row, function, (function.__self__, *args), kwargs)
    if isinstance(function.__self__, types.GetSetDescriptorType) and args and isinstance(args[0], Tensor):
        return subclasses.by_descriptor(vm, function, *args)
    return c_call(vm, function, args, kwargs)


_HARMLESS = {"__repr__", "__hash__", "__eq__", "__ne__", "__sizeof__"}


def c_call(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a native function on values of the program, as its row says: views are made plain, callbacks come back to the interpreter."""
    row = called_row(function)
    if row is None and is_value_type(getattr(function, "__self__", None)):  # of NumPy's numbers, for instance
        row = Row(function)
    if row is None and (stand_in := substituted(function)) is not None:
        return vm.call(stand_in, args, kwargs)
    if row is None:
        twin = twin_of(function)
        row = called_row(twin) if twin is not None else None
        if row is not None and row.apply is not None:
            return vm.call(twin, args, kwargs)
    if row is None and registry.is_never_run(function, args, kwargs):
        return vm.native(function, *args, **kwargs)
    if row is None:
        raise GraphBreak(rules.refusal(function))
    check_refused(row)
    if row.reads == "state":
        return process_state.ask(vm, function, args, kwargs)
    if row.reads:
        process_state.KINDS[row.reads](vm, args)
    _check_visible(vm, row, function, args, kwargs)
    check_history(vm, function, args)
    if row.calls != ():
        back = [row.calls is None or i in row.calls for i in range(len(args))]
        args = tuple(trampoline(vm, a) if b and _is_callback(vm, a) else a for a, b in zip(args, back, strict=True))
        kwargs = {k: trampoline(vm, a) if _is_callback(vm, a) else a for k, a in kwargs.items()}
    if function is filter and args[:1] == (None,):
        args = (trampoline(vm, bool), *args[1:])
    if row.writes and is_late(vm, [*args, *kwargs.values()]):
        return late_format(vm, function, args, kwargs)
    if row.writes:
        check_text(vm, [*args, *kwargs.values()])
    if row.maps:
        own = args[: type(function) in C_DESCRIPTORS and vm.is_created(args[0])]  # whose method it is
        args = (*own, *(as_mapping(vm, a, row.target) for a in args[len(own) :]))
    if row.iterates:
        own = args[: type(function) in C_DESCRIPTORS and objects.find_method(type(args[0]), "__iter__") is not None]
        args, given = (*own, *(rules.iterable(vm, a) for a in args[len(own) :])), args[len(own) :]
        for value in given if any(row.target is f for f in (list, tuple, list.extend)) else ():
            ask_length(vm, value)
    if row.sees == "floats":
        args = library.as_floats(vm, args)
        check_visible(vm, (*args, *kwargs.values()), function.__name__)
    moves = getattr(function, "__name__", "") in _MOVES
    args = tuple(a if moves and vm.user.is_iterator(a) else vm.materialize(a) for a in args)
    kwargs = {k: vm.materialize(v) for k, v in kwargs.items()}
    if row.sees == "keys":
        args = tuple(keys_in(vm, a, row.maps) for a in args)
    return vm.native_recorded(function, *args, **kwargs)


_MOVES = ("append", "appendleft", "insert")  # these take nothing from an iterator that was there before


def _check_visible(vm: Interpreter, row: Row, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Break where the native function would look at what capture has not guarded (see `sight`)."""
    rest = args[1:] if type(function) in C_DESCRIPTORS else args
    if row.sees == "key":
        check_keys(vm, rest[:1])
    elif row.sees == "keys":
        check_keys(vm, rest)
    elif row.sees == "first":
        check_visible(vm, rest[:1], function.__name__)
    elif row.sees == "values":
        seen = [_iterated(vm, a) for a in args] if row.iterates else args
        check_visible(vm, (*seen, *kwargs.values()), getattr(function, "__name__", type(function).__name__))


def _iterated(vm: Interpreter, value: Any) -> Any:
    """What C code sees of what it iterates: the guarded items of a list of the caller's, nothing where `__iter__` is interpreted."""
    own = objects.find_method(type(value), "__iter__") is not None
    items = () if own else vm.user.items_of(value)
    return value if items is None or objects.find_method(type(value), "__index__") is not None else items


def _is_callback(vm: Interpreter, value: Any) -> bool:
    if value is None or isinstance(value, type) and value.__module__ == "builtins" and value not in _ASKING:
        return False
    return callable(value) and not isinstance(value, Tensor)


# Builtin classes whose call asks methods of the argument.
_ASKING = frozenset({bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, enumerate})


# ---- classes ----


def _construct(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cls is Tensor or type(cls) is torch_rules.LEGACY:
        return torch_rules.legacy_tensor(vm, cls, args, kwargs)
    if cls is nn.Parameter:
        return torch_rules.parameter(vm, cls, *args, **kwargs)
    if issubclass(cls, Tensor):
        return subclasses.make(vm, cls, args, kwargs)
    if is_torch_context(cls):
        return contexts.make(vm, cls, args, kwargs)
    if cls.__module__ == "numpy" and natives.takes_numbers(cls):
        return natives.call_other(vm, cls, args, kwargs)
    rules.check_module(cls.__module__, cls.__qualname__)
    if issubclass(cls, weakref.ref) and (made := weak.made(vm, cls, args, kwargs)) is not None:
        return made
    meta_call = objects.find_method(type(cls), "__call__")
    if meta_call is not None:
        if type(cls).__module__ == "enum":
            return class_library.call_enumeration(vm, cls, meta_call, args, kwargs)
        if not vm.is_library(meta_call.__module__):
            return vm.call(meta_call, (cls, *args), kwargs)
    return _make(vm, cls, args, kwargs)


def _make(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`type.__call__(cls, ...)`."""
    if issubclass(cls, type):
        return making.call_metaclass(vm, cls, args, kwargs)
    if objects.find_method(cls, "__del__") is not None:
        raise GraphBreak(f"a {cls.__qualname__} is made, whose finalizer runs when CPython drops it")
    new, init = (objects.lookup(cls, name)[0] for name in ("__new__", "__init__"))
    new = new.__func__ if isinstance(new, staticmethod) else new
    if not isinstance(new, types.FunctionType) and not isinstance(init, types.FunctionType):
        return _construct_native(vm, cls, args, kwargs)
    if isinstance(new, types.FunctionType):
        if rules.is_native_class(cls):
            return vm.create(vm.native(cls, *args, **kwargs))
        obj = vm.call(new, (cls, *args), kwargs)
        if not isinstance(obj, cls):
            return obj
    elif new is object.__new__:
        if getattr(cls, "__abstractmethods__", None):
            return vm.native(cls, *args, **kwargs)
        obj = vm.native(object.__new__, cls)
    elif issubclass(cls, BaseException):
        obj = vm.native(new, cls, *args)
    else:
        obj = vm.native_recorded(new, cls, *map(vm.materialize, args))
    vm.create(obj)
    if isinstance(init, types.FunctionType):
        made = vm.call(init, (obj, *args), kwargs)
        if made is not None:
            raise UserRaise(TypeError(f"__init__() should return None, not '{vm.type_of(made).__name__}'"))
    elif init is not object.__init__:
        c_call(vm, init, (obj, *args), kwargs)
    return obj


def _construct_native(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    module = cls.__module__ or ""  # of a class that text without `__name__` has made
    rules.check_module(module, cls.__qualname__)
    user_class = bool(cls.__flags__ & 512) and not vm.is_library(module)
    if module.startswith("torch.distributed.tensor") and cls in tables.torch_values():
        return _made_again(vm, cls, args, kwargs)
    if module.startswith("torch") and called_row(cls) is None:
        raise GraphBreak(f"an object of type {cls.__name__} is constructed")
    if called_row(cls) is None and called_row(twin_of(cls)) is None:
        raise Unsupported(f"an object of type {module}.{cls.__name__} is constructed")
    made = c_call(vm, cls, args, kwargs)
    pythons = user_class or cls is object or "__slots__" in vars(cls)
    return vm.create(made) if pythons or hasattr(made, "__dict__") else made


def _made_again(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An object that keeps what it is in C: capture looks at one, and each compiled call makes another."""
    if not all(map(is_constant, (*args, *kwargs.values()))):
        raise GraphBreak(f"an object of type {cls.__name__} is constructed")
    made = vm.create(vm.native(cls, *args, **kwargs))
    vm.recipes[id(made)] = (cls, args, kwargs)
    return made


# ---- modules ----


def call_module(vm: Interpreter, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module(*args)`: forward, or all of `nn.Module.__call__` where hooks are registered."""
    kind = type(module)
    custom = objects.find_method(kind, "__call__")
    _check_callable(module)
    if vm.is_frontend_class(kind):
        wrapper = vm.user.source_of(module) or Const(module, "compiled")
        forward, own = module.__dict__["forward"], Item(Attr(wrapper, "__dict__"), "forward")
        if forward is not module._compiled:  # the program's own
            if module._forward_hooks or module._forward_pre_hooks:
                raise GraphBreak("a compiled module has hooks, and a forward that was assigned to it")
            return Then(vm.user.wrap(forward, own), args, kwargs)
        vm.guards.add("is", own, forward)
        inner = Item(Attr(wrapper, "__dict__"), "_orig_mod")
        return Then(vm.user.wrap(module._orig_mod, inner), args, kwargs)
    if custom is not MODULE_CALL:
        assert custom is not None
        return Then(custom, (module, *args), kwargs)
    namespace = module.__dict__
    source = vm.user.source_of(module)
    if source is not None:
        where = Attr(source, "__dict__")
        in_place = namespace.get("_compiled_call_impl")
        if in_place is not None:
            vm.guards.add("is", Item(where, "_compiled_call_impl"), in_place)
        if in_place is not None and not hasattr(in_place, "_intarsia_target"):
            raise Unsupported("a module that was compiled in place (Module.compile) is called")
        names = ["_forward_hooks", "_forward_pre_hooks"]
        if torch.is_grad_enabled():
            names += ["_backward_hooks", "_backward_pre_hooks"]
        for name in names:
            if not namespace[name]:
                vm.guards.add("empty", Item(where, name))
    grads = torch.is_grad_enabled()
    everywhere = global_module_hooks()[: 4 if grads else 2]
    for registered in everywhere:
        vm.guards.add("empty", Const(registered, "global_hooks")) if not registered else None
    backward = grads and (namespace["_backward_hooks"] or namespace["_backward_pre_hooks"])
    if backward or namespace["_forward_hooks"] or namespace["_forward_pre_hooks"] or any(everywhere):
        if backward or any(everywhere[2:]):
            vm.gradients.note(vm, "a module has backward hooks")
        if wrappers.is_sharded(module):
            return Then(wrappers.call_sharded, (module, *args), kwargs, body=True)
        return Then(MODULE_CALL_WITH_HOOKS, (module, *args), kwargs)
    return Then(objects.load_attr(vm, module, "forward"), args, kwargs)


def call_forward(vm: Interpreter, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args)`, what of a compiled module is compiled."""
    _check_callable(module)
    return call(vm, objects.load_attr(vm, module, "forward"), args, kwargs, direct=True)


def _check_callable(module: nn.Module) -> None:
    marks.check_disabled(module, type(module).__name__)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        raise GraphBreak("a lazy module initialises itself")
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported("a TorchScript module is called")


def _helper(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return vm.native(function, *map(vm.materialize, args), **kwargs)


_BY_KIND: dict[type, Any] = {
    types.FunctionType: _python,
    types.MethodType: _method,
    TensorMethod: _helper,
    types.BuiltinFunctionType: _builtin,
    types.MethodWrapperType: _wrapper,
    functools.partial: library.call_partial,
    caches.LRU: caches.call_cached,
    OpOverload: call_operator,
    OpOverloadPacket: call_operator,
    **dict.fromkeys((operator.itemgetter, operator.attrgetter), library.call_getter),
    operator.methodcaller: library.call_methodcaller,
    staticmethod: lambda vm, f, args, kwargs: vm.call(f.__func__, args, kwargs),
    **dict.fromkeys((InstanceDict, GlobalsDict), _helper),
    weakref.ReferenceType: weak.read,
    weakref.CallableProxyType: lambda vm, proxy, args, kwargs: Then(behind(vm, proxy), args, kwargs),
} | dict.fromkeys(C_DESCRIPTORS, _descriptor)

fill(
    *(
        *(natives.ROWS, sets.ROWS, contexts.ROWS, library.ROWS, order.ROWS),
        *(pickles.ROWS, weak.ROWS, collected.ROWS, descriptors.ROWS, torch_rules.ROWS, transforms.ROWS, uncaught.ROWS),
        *(messages.ROWS, warned.ROWS),
    ),
    *(optimizers.ROWS, rules.ROWS, wrappers.ROWS, collectives.ROWS, gradient_rules.ROWS, custom.ROWS, checkpoint.ROWS),
    *(hooks.ROWS, coroutine.ROWS, subclasses.ROWS, saving.ROWS, branches.ROWS, loops.ROWS, flex.ROWS, caches.ROWS),
    *(locks.ROWS, randomness.ROWS, python_random.ROWS, making.ROWS, class_library.ROWS, code_text.ROWS, *OPERATORS),
)
