"""The attribute protocol: classes, descriptors, instances, `super()`, and the overlay of writes."""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
import warnings
from typing import Any

from torch import Tensor, nn

from ..bytecode.exceptions import first_context, frame_attr
from ..calls.registry import C_DESCRIPTORS, row_of
from ..entry.effects import DELETED
from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.definitions import MISSING, can_change, lookup
from ..guards.source import Attr, Const, Fetch, Item, Source
from ..state import Interpreter
from ..torch_private.functions import OF_OPERATORS
from .constant import is_constant
from .container import GlobalsDict, InstanceDict
from .held import PROXIES, behind
from .kinds import HEAP_TYPE, SYMBOLIC, c_name, isinstance, namespace_of
from .namespaces import (
    MEMBERS,
    bind_class,
    find_method,
    instance_attr,
    is_library_function,
    is_member,
    load_cell,
    load_global_value,
    member_table,
    refuse_former,
    refuse_unsaved,
    refuses,
    rely_on_entry,
    wrap_class_value,
    wrap_library,
    write_instance,
)
from .tensor import TensorMethod, load_tensor_attr, store_tensor_attr

__all__ = [
    "MISSING",
    "Super",
    "bind",
    "delete_attr",
    "find_method",
    "generic_delete",
    "is_data_descriptor",
    "load_attr",
    "shown_globals",
    "lookup",
    "store_attr",
]


class Super:
    """`super()`: attribute look-up that starts after `cls` in the class order of `obj`."""

    __slots__ = ("cls", "obj", "shown")

    def __init__(self, cls: type, obj: Any, shown: type | None = None) -> None:
        self.cls, self.obj = cls, obj
        self.shown = shown  # the class that an object's `__class__` names, where its own does not derive from `cls`

    def begins(self, vm: Interpreter) -> type:
        """The class in whose order the look-up begins."""
        if isinstance(self.obj, type) and issubclass(self.obj, self.cls):
            return self.obj
        return self.shown or vm.type_of(self.obj)


def load_attr(vm: Interpreter, obj: Any, name: str) -> Any:
    """`obj.name` as the program sees it."""
    if isinstance(obj, Tensor):
        value = vm.overrides.load(obj, name) if vm.overrides.is_marked(obj) else NotImplemented
        return load_tensor_attr(vm, obj, name) if value is NotImplemented else value
    kind = type(obj)
    if kind in PROXIES:
        return load_attr(vm, behind(vm, obj), name)
    if name == "__class__" and vm.is_frontend_class(kind):
        return vm.type_of(obj)
    if name == "__context__" and isinstance(obj, BaseException) and obj.__context__ is None:
        first_context(vm)
    if kind in SYMBOLIC and (name == "__class__" or not hasattr(kind, name) or not name.startswith("__")):
        return vm.type_of(obj) if name == "__class__" else _number_attr(vm, obj, name)
    if kind is types.ModuleType:
        return _module_attr(vm, obj, name)
    if kind is Super:
        return _super_attr(vm, obj, name)
    if isinstance(obj, enum.Enum) and not vm.is_created(type(obj)) and vm.user.source_of(obj) is None:
        vm.user.track(obj, obj, Const(obj, str(obj)))  # a constant, whose attributes may change
    if isinstance(obj, type):
        return _class_attr(vm, obj, name)
    if kind is types.MethodType:
        if name in ("__self__", "__func__"):
            return getattr(obj, name)
        return load_attr(vm, obj.__func__, name)
    if kind is types.FunctionType:
        return _function_attr(vm, obj, name)
    if kind is types.CellType and name == "cell_contents":
        return _cell_contents(vm, obj)
    if kind is types.FrameType and (value := frame_attr(vm, obj, name)) is not NotImplemented:
        return value
    plain = not kind.__flags__ & HEAP_TYPE and (vm.user.source_of(obj) is None or not hasattr(obj, "__dict__"))
    if kind is TensorMethod or plain or vm.is_frontend_class(kind):
        value = vm.native(getattr, obj, name)
        if id(obj) in vm.user.opaque and getattr(value, "__self__", None) is not obj:
            return vm.user.wrap(value, Attr(vm.user.by_value[id(obj)].source, name))
        return vm.user.held(value)
    return _instance_attr(vm, obj, kind, name)


def _number_attr(vm: Interpreter, obj: Any, name: str) -> Any:
    """An attribute of a symbolic number: the frontend's and torch's own, or that of the plain number that it is now."""
    plain = hasattr(vm.type_of(obj), name) or not hasattr(obj, name)
    return vm.native(getattr, vm.type_of(obj)(obj) if plain else obj, name)


def _module_attr(vm: Interpreter, module: types.ModuleType, name: str) -> Any:
    if vm.is_library(module.__name__):
        if vm.effects.warned is not None and module is warnings:
            vm.effects.warned.check_name(name)
        if module is sys and (id(sys.__dict__), name) in vm.effects.globals:
            return vm.effects.globals[id(sys.__dict__), name][1]
        value = vm.native(getattr, module, name)
        if name in module.__dict__:
            rely_on_entry(vm, module.__dict__, name)
        return wrap_library(vm, value, Attr(Const(module, module.__name__), name))
    written = vm.effects.globals.get((id(module.__dict__), name))
    if written is not None:
        return _checked(written[1], type(module), name)
    namespace = module.__dict__
    if name in namespace:
        return load_global_value(vm, namespace, name, module.__name__)
    source = Const(namespace, module.__name__)
    if name == "__dict__":
        return shown_globals(vm, namespace)
    if lookup(type(module), name)[1] is not None:
        return vm.user.wrap(vm.native(getattr, module, name), Attr(Const(module, module.__name__), name))
    vm.guards.add("missing", source, name)
    if "__getattr__" in namespace:
        return vm.call(load_global_value(vm, namespace, "__getattr__", module.__name__), (name,), {})
    vm.guards.add("missing", source, "__getattr__")
    return vm.native(getattr, module, name)


def shown_globals(vm: Interpreter, namespace: dict[str, Any]) -> Any:
    """What stands for the namespace of a module."""
    if vm.is_created(namespace):
        return namespace
    found = vm.effects.namespaces.get(id(namespace))
    if found is None:
        found = vm.effects.namespaces[id(namespace)] = GlobalsDict(vm, namespace)
    return found


def _class_attr(vm: Interpreter, cls: type, name: str) -> Any:
    found, value = written_class_value(vm, cls, name)
    if found:
        return _checked(value, cls, name)
    if name == "__dict__" and vm.effects.classes:
        raise Unsupported("the namespace of a class is read after one was written")
    meta, meta_owner = lookup(type(cls), name)
    raw, owner = lookup(cls, name)
    if owner is None or _is_data_descriptor(meta) or name in _ANSWERED_BY_TYPE:
        if isinstance(meta, types.FunctionType):
            return types.MethodType(meta, cls)
        if (own := _own_get(vm, meta)) is not None:
            return vm.call(own, (meta, cls, type(cls)), {})
        getter = meta.fget if isinstance(meta, property) else None
        known = row_of(getter) is not None or not vm.is_library(type(cls).__module__)
        if known and isinstance(getter, types.FunctionType):
            return vm.call(getter, (cls,), {})
        if owner is None and meta is MISSING:
            getter = find_method(type(cls), "__getattr__")
            if getter is not None and not vm.is_library(getter.__module__):
                return vm.call(getter, (cls, name), {})
        if meta is not MISSING and owner is None and not _has(meta, "__get__"):
            return wrap_class_value(vm, meta, meta_owner, name)
        value = vm.native(getattr, cls, name)
        if name == "__dict__" and not vm.is_created(cls) and not vm.is_library(cls.__module__):
            vm.user.track(value, value, Attr(Const(cls, cls.__name__), name))
        if name in ("__name__", "__qualname__") and can_change(cls) and not vm.is_library(cls.__module__):
            vm.guards.add("equals", Attr(Const(cls, value), name), value)
        return value
    if (own := _own_get(vm, raw)) is not None:
        return vm.call(own, (raw, None, cls), {})
    if isinstance(raw, staticmethod):
        return raw.__func__
    if isinstance(raw, classmethod):
        return bind_class(vm, raw.__func__, cls)
    if isinstance(raw, types.FunctionType | property):
        return raw
    if _has(raw, "__get__"):
        return vm.native(getattr, cls, name)
    return wrap_class_value(vm, raw, owner, name)


_ANSWERED_BY_TYPE = "__class__ __dict__ __mro__ __bases__ __name__ __module__ __qualname__".split()  # noqa: SIM905


def _super_attr(vm: Interpreter, sup: Super, name: str) -> Any:
    obj = sup.obj
    if name in ("__thisclass__", "__self__", "__self_class__", "__class__"):
        known = {"__thisclass__": sup.cls, "__self__": obj, "__class__": super}
        return known.get(name) if name in known else sup.begins(vm)
    cls = sup.begins(vm)
    raw, owner = lookup(cls, name, sup.cls)
    if vm.effects.classes:
        order = cls.__mro__
        for written in order[order.index(sup.cls) + 1 :]:
            found, value = vm.effects.attr(written, name)
            if found:
                return _checked(value, written, name)
            if written is owner:
                break
    if owner is not None:
        return bind(vm, raw, owner, obj, cls, name, is_class=cls is obj)
    raise UserRaise(AttributeError(f"'super' object has no attribute '{name}'"))


def bind(vm: Interpreter, raw: Any, owner: type, obj: Any, cls: type, name: str, is_class: bool = False) -> Any:
    """What reading class attribute `raw` through an instance gives."""
    if type(raw) is types.FunctionType:
        return raw if is_class else types.MethodType(raw, obj)
    if (own := _own_get(vm, raw)) is not None:
        return vm.call(own, (raw, None if is_class else obj, cls), {})
    if isinstance(raw, staticmethod):
        return raw.__func__
    if isinstance(raw, classmethod):
        return bind_class(vm, raw.__func__, cls)
    if isinstance(raw, property):
        if raw.fget is None:
            vm.native(raw.__get__, obj, cls)  # which refuses, in CPython's words
        if owner in OF_OPERATORS:
            return vm.native(raw.__get__, obj, cls)
        return vm.call(raw.fget, (obj,), {})
    if isinstance(raw, functools.cached_property):
        value = vm.call(raw.func, (obj,), {})
        write_instance(vm, obj, name, value)
        return value
    if isinstance(raw, types.MethodDescriptorType | types.WrapperDescriptorType):
        return types.MethodType(raw, obj)
    if owner is enum.Enum and name in ("name", "value"):
        return load_attr(vm, obj, f"_{name}_")
    getter = find_method(type(raw), "__get__")
    if getter is not None:
        return vm.call(getter, (raw, None if is_class else obj, cls), {})
    if _has(raw, "__get__"):
        value = vm.native(raw.__get__, obj, cls)
        known = vm.user.by_value.get(id(obj))
        # What a stand-in holds is on the stack already.
        return value if known is None or known.real is not obj else vm.user.wrap(value, Attr(known.source, name))
    return wrap_class_value(vm, raw, owner, name)


def _own_get(vm: Interpreter, raw: Any) -> Any:
    """The `__get__` of a class of the program's, which may derive from one of Python's descriptors; None where there is none."""
    getter, owner = lookup(type(raw), "__get__")
    if owner is None or isinstance(getter, C_DESCRIPTORS):
        return None
    return None if vm.is_library((getter if type(getter) is types.FunctionType else owner).__module__) else getter


def is_data_descriptor(cls: type, name: str) -> bool:
    """Whether Python code of the class's own would run where the attribute of an instance is set."""
    raw = lookup(cls, name)[0]
    return isinstance(raw, property) or raw is not MISSING and find_method(type(raw), "__set__") is not None


def _has(raw: Any, special: str) -> bool:
    """Whether what was found in a class has a special method itself."""
    return raw is not MISSING and lookup(type(raw), special)[1] is not None


def _is_data_descriptor(raw: Any) -> bool:
    return _has(raw, "__get__") and (_has(raw, "__set__") or _has(raw, "__delete__"))


def _hook(kind: type, name: str) -> Any:
    """What a class has in the place of one of C's methods of attributes: a function, or one of C's under that name (`__getattr__ = dict.get`)."""
    found = find_method(kind, name)
    if found is None and type(raw := lookup(kind, name)[0]) in C_DESCRIPTORS and raw.__name__ != name:
        return raw
    return found


def _instance_attr(vm: Interpreter, obj: Any, kind: type, name: str) -> Any:
    custom = _hook(kind, "__getattribute__")
    if name == "__class__" and custom is None and lookup(kind, name)[1] is object:
        return kind
    try:
        return vm.call(custom, (obj, name), {}) if custom is not None else generic_attr(vm, obj, kind, name)
    except UserRaise as raised:
        getter = _hook(kind, "__getattr__")
        if getter in (None, nn.Module.__getattr__) or not isinstance(raised.value, AttributeError):
            raise
    return vm.call(getter, (obj, name), {})


def generic_attr(vm: Interpreter, obj: Any, kind: type, name: str) -> Any:
    """`object.__getattribute__`, and the members of a module."""
    raw, owner = lookup(kind, name)
    if name == "__dict__":
        return _dict_of(vm, obj)
    if _is_data_descriptor(raw):
        assert owner is not None
        return _slot_or_property(vm, obj, raw, owner, kind, name)
    if owner is None and isinstance(obj, nn.Module) and _is_member(vm, obj, name):
        source = vm.user.source_of(obj)
        if source is not None:
            vm.guards.add("missing", Attr(source, "__dict__"), name)
        return _module_member(vm, obj, name)
    found, value = instance_attr(vm, obj, name)
    if not found:
        found, value = written_class_value(vm, kind, name)
    if found:
        return value
    if owner is not None:
        return bind(vm, raw, owner, obj, kind, name)
    if isinstance(obj, nn.Module) and find_method(kind, "__getattr__") is nn.Module.__getattr__:
        return _module_member(vm, obj, name)
    if vm.is_created(obj) or not vm.effects.attr(obj, name)[0]:
        vm.native(object.__getattribute__, obj, name)  # raises, in CPython's words
    raise UserRaise(AttributeError(f"'{c_name(kind)}' object has no attribute '{name}'"))


def _slot_or_property(vm: Interpreter, obj: Any, raw: Any, owner: type, kind: type, name: str) -> Any:
    if isinstance(raw, types.MemberDescriptorType | types.GetSetDescriptorType):
        found, value = vm.effects.attr(obj, name)
        if found:
            return _checked(value, kind, name)
        source = vm.user.source_of(obj)
        try:
            value = vm.native(raw.__get__, obj)
        except UserRaise:
            if source is not None:
                vm.guards.add("no attribute", source, name)
            raise
        place = source and (Fetch(raw.__get__, source) if find_method(kind, "__getattribute__") else Attr(source, name))
        return vm.user.wrap(value, place) if place is not None else value
    return bind(vm, raw, owner, obj, kind, name)


def _dict_of(vm: Interpreter, obj: Any) -> Any:
    source = vm.user.source_of(obj)
    if source is None:
        return vm.native(getattr, obj, "__dict__")
    found = vm.effects.namespaces.get(id(obj))
    if found is None:
        found = vm.effects.namespaces[id(obj)] = InstanceDict(vm, obj, source)
    return found


def _is_member(vm: Interpreter, module: nn.Module, name: str) -> bool:
    return is_member(vm, module, name) and find_method(type(module), "__getattr__") is nn.Module.__getattr__


def _module_member(vm: Interpreter, module: nn.Module, name: str) -> Any:
    """`nn.Module.__getattr__`: parameters, buffers, submodules."""
    found, value = vm.effects.attr(module, name)
    if found and not (value is DELETED and name in module.__dict__):  # a plain attribute may have made way for a member
        return _checked(value, type(module), name)
    source = vm.user.source_of(module)
    unseen = []
    for where in MEMBERS:
        members: Any = module.__dict__.get(where)
        known = vm.user.by_real.get(id(members))
        if known is not None and type(known.value) is type(members):  # the program itself may have changed it
            if name in known.value:
                return known.value[name]
            continue
        unseen.append(where)
        if members is not None and name in members:
            if source is None:
                return members[name]
            return vm.user.wrap(members[name], Item(Item(Attr(source, "__dict__"), where), name))
    if source is not None:
        for where in unseen:
            vm.guards.add("missing", Item(Attr(source, "__dict__"), where), name)
    raise UserRaise(AttributeError(f"'{type(module).__name__}' object has no attribute '{name}'"))


def _function_attr(vm: Interpreter, function: types.FunctionType, name: str) -> Any:
    found, value = vm.effects.attr(function, name)
    if found:
        return _checked(value, type(function), name)
    if name == "__get__":
        return function.__get__
    if vm.is_created(function) or name == "__globals__":
        return vm.native(getattr, function, name)
    if is_library_function(vm, function) and name in _FACTS_OF_CODE:
        return getattr(function, name)
    source: Source = vm.user.source_of(function) or Const(function, function.__name__)
    if name not in function.__dict__ and lookup(type(function), name)[1] is None:
        vm.guards.add("missing", Attr(source, "__dict__"), name)
    return vm.user.wrap(vm.native(getattr, function, name), Attr(source, name))


_FACTS_OF_CODE = ("__name__", "__qualname__", "__module__", "__code__", "__doc__")


def _cell_contents(vm: Interpreter, cell: types.CellType) -> Any:
    try:
        return load_cell(vm, cell, "cell_contents")
    except UserRaise as raised:
        if isinstance(raised.value, NameError):
            raise UserRaise(ValueError("Cell is empty")) from None
        raise


def _checked(value: Any, kind: type, name: str) -> Any:
    if value is DELETED:
        raise UserRaise(AttributeError(f"'{c_name(kind)}' object has no attribute '{name}'"))
    return value


# ---- writing ----


def store_attr(vm: Interpreter, obj: Any, name: str, value: Any) -> None:
    """`obj.name = value`."""
    if isinstance(obj, Tensor):
        if not vm.overrides.is_marked(obj) or vm.overrides.store(obj, name, value) is NotImplemented:
            store_tensor_attr(vm, obj, name, value)
        return None
    kind = type(obj)
    if kind in PROXIES:
        return store_attr(vm, behind(vm, obj), name, value)
    if isinstance(obj, type | types.ModuleType):
        if vm.is_created(obj):
            vm.native(setattr, obj, name, value)
            return None
        if obj is sys and name in _SETTINGS:
            vm.effects.globals[id(sys.__dict__), name] = sys.__dict__, value
            return None
        if isinstance(obj, enum.EnumType) and name in obj._member_map_ and type(obj) is enum.EnumType:
            vm.native(setattr, obj, name, value)  # which refuses
        if isinstance(obj, types.ModuleType) and type(obj) is types.ModuleType and not vm.is_library(obj.__name__):
            vm.effects.globals[id(obj.__dict__), name] = (obj.__dict__, value)
            return None
        if isinstance(obj, type) and _is_plain_class_value(vm, obj, name, value):
            vm.effects.write_attr(obj, name, value)
            vm.effects.classes = True
            return None
        raise Unsupported(
            f"an attribute of the {'class' if isinstance(obj, type) else 'module'} {obj.__name__} is assigned: {name}"
        )
    custom = _hook(kind, "__setattr__")
    if custom is nn.Module.__setattr__:
        _store_module_attr(vm, obj, name, value)
    elif custom is not None:
        vm.call(custom, (obj, name, value), {})
    else:
        generic_store(vm, obj, name, value)


_SETTINGS = ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")  # of sys


def _is_plain_class_value(vm: Interpreter, cls: type, name: str, value: Any) -> bool:
    """Whether `cls.name = value` changes data and nothing else: no method, no descriptor, no metaclass of the program's."""
    raw, _ = lookup(cls, name)
    plain = find_method(type(cls), "__setattr__") is None and lookup(type(cls), name)[1] is None
    code = any(_has(v, "__get__") for v in (raw, value))
    heap = bool(cls.__flags__ & HEAP_TYPE) and not vm.is_library(cls.__module__)
    return plain and heap and not code and not name.startswith("__") and not issubclass(cls, nn.Module)


def written_class_value(vm: Interpreter, cls: Any, name: str) -> tuple[bool, Any]:
    """(True, value) when the program has written the class attribute that `name` finds."""
    if vm.effects.classes:
        for owner in cls.__mro__:
            found, value = vm.effects.attr(owner, name)
            if found or name in owner.__dict__:
                return found, value
    return False, None


def generic_store(vm: Interpreter, obj: Any, name: str, value: Any) -> None:
    """`object.__setattr__`."""
    kind = type(obj)
    raw, owner = lookup(kind, name)
    if _by_descriptor(vm, obj, raw, name, ("fset", "__set__"), value):
        return
    slot = isinstance(raw, types.MemberDescriptorType)
    if kind in (collections.defaultdict, property) and slot and vm.user.source_of(obj) is None:
        vm.native(setattr, obj, name, value)
        return
    if namespace_of(obj) is None and (not slot or not kind.__flags__ & HEAP_TYPE):
        vm.native(setattr, obj if vm.is_created(obj) or is_constant(obj) else _twin(vm, obj), name, value)
        if name == "__class__" and vm.is_created(obj) and kind.__flags__ & HEAP_TYPE:
            return  # which it now is, wherever it is made again
        raise Unsupported(f"the attribute {name!r} of a {kind.__name__} is assigned")
    of_c = not slot and _has(raw, "__set__") and not vm.is_created(obj)
    if of_c and not isinstance(obj, types.FunctionType | BaseException):
        raise Unsupported(f"the attribute {name!r} of a {kind.__name__} is assigned")
    write_instance(vm, obj, name, value)


def _by_descriptor(vm: Interpreter, obj: Any, raw: Any, name: str, words: tuple[str, str], *value: Any) -> bool:
    """Whether Python code of the class's own stores or deletes the attribute: it has done so."""
    part, special = words
    if isinstance(raw, property) and find_method(type(raw), special) is None:
        function = getattr(raw, part)
        if function is None:  # in CPython's words, which depend on what the property knows of its name
            vm.native(raw.__set__ if value else raw.__delete__, obj, *value)
        vm.call(function, (obj, *value), {})
        return True
    if raw is MISSING:
        return False
    method, owner = lookup(type(raw), special)
    if owner is None or isinstance(method, C_DESCRIPTORS):
        return False
    vm.call(bind(vm, method, owner, raw, type(raw), special), (obj, *value), {})
    return True


_PLAIN = (list, dict, set, frozenset, tuple)
_WITHOUT_ATTRIBUTES: tuple[Any, ...] = (*_PLAIN, collections.defaultdict, collections.deque, collections.OrderedDict)


def _twin(vm: Interpreter, obj: Any) -> Any:
    """An object of the same class that holds nothing, on which an operation fails as it would on `obj`."""
    if type(obj) in _WITHOUT_ATTRIBUTES:
        return type(obj)()
    try:
        return object.__new__(type(obj))
    except TypeError:
        raise Unsupported(f"an attribute of a {type(obj).__name__} is changed") from None


def _store_module_attr(vm: Interpreter, module: nn.Module, name: str, value: Any) -> None:
    if vm.is_created(module):
        vm.native(nn.Module.__setattr__, module, name, value)
    elif isinstance(value, nn.Parameter | nn.Module) or refuses(vm, module, name, value):
        set_member: Any = nn.Module.__setattr__
        vm.inline(set_member, (module, name, value), {})
    elif name in module.__dict__.get("_modules", {}) or name in module.__dict__.get("_parameters", {}):
        raise GraphBreak(f"a parameter or submodule is replaced during forward: {name}")
    elif (table := member_table(vm, module, name)) is not None and (value is None or isinstance(value, Tensor)):
        table[name] = value
    else:
        refuse_former(vm, module, name)
        generic_store(vm, module, name, value)


def delete_attr(vm: Interpreter, obj: Any, name: str) -> None:
    """`del obj.name`."""
    obj = behind(vm, obj) if type(obj) in PROXIES else obj
    custom = _hook(type(obj), "__delattr__")
    if custom not in (None, nn.Module.__delattr__):
        vm.call(custom, (obj, name), {})
        return None
    if isinstance(obj, Tensor) and name == "grad":  # None from then on
        return store_tensor_attr(vm, obj, name, None)
    if isinstance(obj, type) and vm.is_created(obj):
        return vm.native(delattr, obj, name)
    if isinstance(obj, Tensor | type | types.ModuleType):
        raise Unsupported(f"an attribute is deleted: {name}")
    generic_delete(vm, obj, name)


def generic_delete(vm: Interpreter, obj: Any, name: str) -> None:
    """`object.__delattr__`."""
    kind = type(obj)
    raw, owner = lookup(kind, name)
    if _by_descriptor(vm, obj, raw, name, ("fdel", "__delete__")):
        return
    if vm.is_created(obj):
        vm.native(object.__delattr__, obj, name)
        return
    if hasattr(kind, "rename") and vm.is_frontend_class(kind):  # a generator
        vm.native(obj.rename, name, None)
    if kind in _WITHOUT_ATTRIBUTES or is_constant(obj) and namespace_of(obj) is None:  # which says so
        vm.native(object.__delattr__, obj if is_constant(obj) else _twin(vm, obj), name)
    if vm.user.source_of(obj) is None:
        raise Unsupported(f"an attribute of an unknown object is deleted: {name}")
    if isinstance(obj, nn.Module) and name in obj.__dict__ and any(name in obj.__dict__[where] for where in MEMBERS):
        raise GraphBreak(f"an attribute of a module is deleted that is a member, too: {name}")
    if isinstance(raw, types.MemberDescriptorType):
        _slot_or_property(vm, obj, raw, owner or kind, kind, name)
    elif _has(raw, "__delete__"):
        raise Unsupported(f"the attribute {name!r} of a {kind.__name__} is deleted")
    elif isinstance(obj, nn.Module) and (table := member_table(vm, obj, name)) is not None:
        refuse_unsaved(obj, name)
        del table[name]
        return
    elif isinstance(obj, nn.Module) and _is_member(vm, obj, name):
        _module_member(vm, obj, name)
    elif not instance_attr(vm, obj, name)[0]:
        vm.native(object.__delattr__, _twin(vm, obj), name)
    vm.effects.delete_attr(obj, name)
