"""Containers of the user's: shadow copies, whose changes are found by comparing them with what they were."""

from __future__ import annotations

import builtins
import dataclasses
import dis
import gc
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..entry.effects import DELETED
from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.definitions import lookup
from ..guards.source import Attr, Const, Fetch, Item, Source
from ..state import Interpreter, Tracked
from .kinds import isinstance, namespace_of
from .namespaces import find_method, instance_attr, is_member, load_global_value, namespace_source, refuse_former
from .sets import are_keys, compares_itself, is_plain_set, key_source, shadow_of_set, shadow_of_subclass

__all__ = ["GlobalsDict", "InstanceDict", "LazyDict", "Shadow", "compares_fields", "list_items", "shadow_of"]

LARGE = 48


@dataclass
class Shadow:
    """A container of the user's, its stand-in during capture and a copy of how the stand-in began."""

    real: Any
    copy: Any
    source: Source
    before: Any = field(default=None)

    def changed(self) -> bool:
        """Whether the program changed the container; not where capture stopped at one of its items."""
        if self.before is None:
            return False
        now, then = _contents(self.copy), self.before
        return len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True))

    def freeze(self) -> None:
        """Remember the contents as they are now."""
        self.before = _contents(self.copy)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [x for pair in value.items() for x in pair]
    return list(value)


def shadow_of(vm: Interpreter, value: Any, source: Source) -> Any:
    """The stand-in for a container, or None when `value` is no plain container."""
    kind = type(value)
    make = _SHADOWS.get(kind)
    if make is None and isinstance(value, tuple) and _is_plain_tuple(value):
        make = _tuple_subclass
    if make is None and isinstance(value, set | frozenset) and is_plain_set(vm, value, source):
        make = shadow_of_subclass
    if make is None:
        return None
    vm.guards.add("type", source, kind)
    if kind is dict and len(value) > LARGE:
        return LazyDict(vm, value, source)
    return make(vm, value, source)


def _is_plain_tuple(value: tuple[Any, ...]) -> bool:
    """Whether a named tuple, or the like, holds no more than its items and reads as a tuple."""
    kind = type(value)
    reads = kind.__getitem__ is tuple.__getitem__ and kind.__iter__ is tuple.__iter__ and kind.__len__ is tuple.__len__
    return reads and not getattr(value, "__dict__", None)


def _tuple_subclass(vm: Interpreter, value: Any, source: Source) -> Any:
    kind = type(value)
    if getattr(kind, "n_fields", 0) > getattr(
        kind, "n_sequence_fields", 0
    ):  # such as os.stat_result: more than its items
        vm.user.track(value, value, source)
        vm.user.opaque[id(value)] = source.name()
        return value
    if kind.__module__ == "sys":  # there is one of each (sys.flags), and no other can be made
        vm.guards.add("is", source, value)
        vm.user.track(value, value, source)
        return value
    vm.guards.add("length", source, len(value))
    items = [vm.user.wrap(item, Item(source, i)) for i, item in enumerate(value)]
    # Structure sequences (torch.return_types) are made by calling their type, subclasses of Python's need not be.
    made = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)
    vm.user.track(value, made, source)
    return made


def _sequence(vm: Interpreter, value: Any, source: Source) -> Any:
    vm.guards.add("length", source, len(value))
    kind = type(value)
    if kind is tuple or kind is torch.Size:
        made = kind(vm.user.wrap(item, Item(source, i)) for i, item in enumerate(value))
        if made:  # there is one empty tuple
            vm.user.track(value, made, source)
        return made
    if kind is deque:
        vm.guards.add("equals", Attr(source, "maxlen"), value.maxlen)
    copy: Any = deque(maxlen=value.maxlen) if kind is deque else []
    vm.user.track(value, copy, source)
    copy.extend(vm.user.wrap(item, Item(source, i)) for i, item in enumerate(value))
    return copy


def _mapping(vm: Interpreter, value: Any, source: Source) -> Any:
    keys = list(value)
    if keys and all(isinstance(k, Tensor) for k in keys):
        return _by_tensor(vm, value, source, keys)
    if not are_keys(vm, keys, source):
        raise Unsupported(f"the keys of {source.name()} are tensors or containers")
    own = {type(key) for key in keys if compares_itself(key) and not compares_fields(type(key))}
    for kind in own:
        if not vm.is_library(kind.__module__) and not _looks_only(kind):
            raise Unsupported(
                f"the keys of {source.name()} have an __eq__ or __hash__ that may do more than look at them"
            )
        vm.methods.take(kind, "a look-up")
    vm.guards.add("keys", source, keys)
    if own and any(value.get(key, vm) is not item for key, item in value.items()):
        raise Unsupported(f"a key of {source.name()} has changed since it was put in")
    for i, key in enumerate(keys):
        vm.user.held(key, key_source(source, i))
        vm.user.tell_apart(key, pinned=True)
    copy: Any = type(value)()
    if type(value) is defaultdict:
        copy.default_factory = vm.user.wrap(value.default_factory, Attr(source, "default_factory"))
    vm.user.track(value, copy, source)
    items = Fetch(list, Fetch(dict.values, source))  # a guard that looks a key up runs its methods
    for i, (key, item) in enumerate(value.items()):
        copy[key] = vm.user.wrap(item, Item(items, i) if own else Item(source, key))
    return copy


_CHANGES = re.compile(
    "(STORE|DELETE)_(ATTR|GLOBAL|DEREF|SUBSCR|NAME|SLICE)|IMPORT_.*|YIELD_.*|PUSH_NULL|LOAD_METHOD|CALL_FUNCTION_EX"
)
_LOOKING = frozenset(
    [hash, builtins.isinstance, type, id, len, tuple, frozenset, str, int, repr, abs, bool, issubclass]
)


def _looks_only(kind: type) -> bool:
    """Whether equality and hash of a class write nothing and call only what looks at values, so that capture may ask them beside the program."""
    return all(_is_look(lookup(kind, name)[0]) for name in ("__eq__", "__hash__"))


def _is_look(method: Any) -> bool:
    if not isinstance(method, types.FunctionType):
        return True  # of C, or None
    names = {**vars(builtins), **method.__globals__}
    for step in dis.get_instructions(method):
        if _CHANGES.fullmatch(step.opname) or "NULL|self" in step.argrepr:
            return False
        if "NULL" in step.argrepr and step.opname == "LOAD_GLOBAL" and names.get(step.argval) not in _LOOKING:
            return False
    return True


def compares_fields(kind: type) -> bool:
    """Whether the equality and the hash of a class are those that `dataclass` makes of its fields."""
    own = (find_method(kind, name) for name in ("__hash__", "__eq__"))
    return dataclasses.is_dataclass(kind) and all(m is None or m.__code__.co_filename == "<string>" for m in own)


def _by_tensor(vm: Interpreter, value: Any, source: Source, keys: list[Tensor]) -> Any:
    """A mapping whose keys are tensors, as an optimizer's state is: found by identity, and read by place, which asks no key for its hash."""
    vm.guards.add("length", source, len(keys))
    vm.definitions.note(Tensor)
    copy: Any = type(value)()
    if type(value) is defaultdict:
        copy.default_factory = vm.user.wrap(value.default_factory, Attr(source, "default_factory"))
    vm.user.track(value, copy, source)
    items = Fetch(list, Fetch(dict.values, source))
    for i, (key, item) in enumerate(zip(keys, value.values(), strict=True)):
        copy[vm.user.wrap(key, key_source(source, i))] = vm.user.wrap(item, Item(items, i))
    return copy


_SHADOWS: dict[type, Any] = {
    tuple: _sequence,
    torch.Size: _sequence,
    list: _sequence,
    deque: _sequence,
    dict: _mapping,
    OrderedDict: _mapping,
    defaultdict: _mapping,
    Counter: _mapping,
    set: shadow_of_set,
    frozenset: shadow_of_set,
}


def list_items(value: list[Any]) -> list[Any]:
    """The items of a list or of an object that derives from it, past methods of its own."""
    return list.copy(value)


class _View:
    """What stands for a mapping of the user's."""

    def keys(self) -> Any:
        """The keys, guarded as a whole."""
        raise NotImplementedError

    def items(self) -> Any:
        """Pairs; each value is guarded."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def force(self) -> dict[Any, Any]:
        """A plain dict with the same contents."""
        return dict(self.items())

    copy = force


class LazyDict(_View):
    """A large or subclassed mapping of the user's: guarded key by key, until the program changes it."""

    def __init__(self, vm: Interpreter, real: Any, source: Source) -> None:
        self.vm, self.real, self.source = vm, real, source
        self.shadow: dict[Any, Any] | None = None
        self.viewed = False

    def writable(self) -> dict[Any, Any]:
        """The stand-in that the program may change, as that of a small dict."""
        if self.shadow is None:
            if type(self.real) is not dict or self.viewed:
                raise Unsupported(f"a large or subclassed dict of the caller's is changed: {self.source.name()}")
            shadow = {key: self[key] for key in self._keys()}
            self.shadow = shadow
            made = Shadow(self.real, shadow, self.source)
            made.freeze()
            self.vm.user.shadows.append(made)
        return self.shadow

    def __getitem__(self, key: Any) -> Any:
        if self.shadow is not None:
            return self.vm.native(self.shadow.__getitem__, key)
        self.vm.addresses.looked_at((key,))
        if not dict.__contains__(self.real, key):
            self.vm.guards.add("missing", self._plain(), key)
            raise UserRaise(KeyError(key))
        return self.vm.user.wrap(dict.__getitem__(self.real, key), Item(self._plain(), key))

    def __contains__(self, key: Any) -> bool:
        if self.shadow is not None:
            return key in self.shadow
        self.vm.addresses.looked_at((key,))
        found = dict.__contains__(self.real, key)
        self.vm.guards.add("contains" if found else "missing", self._plain(), key)
        return found

    def __len__(self) -> int:
        if self.shadow is not None:
            return len(self.shadow)
        self.vm.guards.add("length", self._plain(), dict.__len__(self.real))
        return dict.__len__(self.real)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LazyDict) and other.real is self.real)

    __hash__ = None  # type: ignore[assignment]

    def _plain(self) -> Source:
        return self.source if type(self.real) is dict else Fetch(_dict_view, self.source)

    def get(self, key: Any, default: Any = None) -> Any:
        """`dict.get`."""
        return self[key] if key in self else default  # noqa: SIM401  # it is `get` itself

    def keys(self) -> Any:
        """A fixed view of the keys, guarded as a whole."""
        self.viewed = self.viewed or self.shadow is None
        return self._keys()

    def _keys(self) -> Any:
        if self.shadow is not None:
            return self.shadow.keys()
        self.vm.guards.add("keys", self._plain(), list(dict.keys(self.real)))
        return self._standing(dict.fromkeys(dict.keys(self.real))).keys()

    def _standing(self, made: dict[Any, Any]) -> dict[Any, Any]:
        """A dict whose views are those of the caller's."""
        self.vm.user.by_value[id(made)] = Tracked(self.real, made, self.source)
        return made

    def values(self) -> Any:
        """The values; each is guarded."""
        self.viewed = self.viewed or self.shadow is None
        if self.shadow is not None:
            return self.shadow.values()
        return self._standing({key: self[key] for key in self._keys()}).values()

    def items(self) -> Any:
        """Pairs; each value is guarded."""
        self.viewed = self.viewed or self.shadow is None
        return self._items()

    def _items(self) -> Any:
        if self.shadow is not None:
            return self.shadow.items()
        return self._standing({key: self[key] for key in self._keys()}).items()

    def force(self) -> dict[Any, Any]:
        """A plain dict with the same contents."""
        return dict(self._items())

    copy = force

    def update(self, *others: Any, **more: Any) -> None:
        """`dict.update`."""
        self.writable().update(*(o.force() if isinstance(o, LazyDict | InstanceDict) else o for o in others), **more)

    def pop(self, key: Any, *default: Any) -> Any:
        """`dict.pop`."""
        return self.vm.native(self.writable().pop, key, *default)

    def popitem(self) -> Any:
        """`dict.popitem`."""
        return self.vm.native(self.writable().popitem)

    def clear(self) -> None:
        """`dict.clear`."""
        self.writable().clear()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """`dict.setdefault`."""
        return self.writable().setdefault(key, default)


def shown_dict(proxy: Any) -> Any:
    """The mapping that a mapping proxy shows."""
    return gc.get_referents(proxy)[0]


def is_class_namespace(source: Source) -> bool:
    """Whether a proxy comes from a class: attributes of classes are tracked one by one."""
    return isinstance(source, Attr) and isinstance(source.base, Const) and isinstance(source.base.value, type)


class _DictView:
    """Reads a dict subclass through dict's own methods."""

    __slots__ = ("real",)

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self.real, key)

    def __contains__(self, key: Any) -> bool:
        return dict.__contains__(self.real, key)

    def __len__(self) -> int:
        return dict.__len__(self.real)

    def __iter__(self) -> Iterator[Any]:
        return dict.__iter__(self.real)


_dict_view = _DictView


class InstanceDict(_View):
    """`obj.__dict__` of a user's object: reads and writes go through the object's tracked attributes."""

    def __init__(self, vm: Interpreter, obj: Any, source: Source) -> None:
        self.vm, self.obj, self.source = vm, obj, namespace_source(obj, source)
        for name in namespace_of(obj) or ():
            if type(name) is not str:
                raise Unsupported(f"a name of an object's namespace is a {type(name).__name__}")

    def _find(self, key: Any) -> tuple[bool, Any]:
        """(found, value)."""
        return (False, None) if self._is_elsewhere(key) else instance_attr(self.vm, self.obj, key)

    def _is_elsewhere(self, key: Any) -> bool:
        """What the class keeps in a slot, and members of modules, are attributes of the object, and none of its dict's items."""
        slot = lookup(type(self.obj), key)[0] if type(key) is str else None
        return isinstance(slot, types.MemberDescriptorType | types.GetSetDescriptorType) or is_member(
            self.vm, self.obj, key
        )

    def __getitem__(self, key: Any) -> Any:
        found, value = self._find(key)
        if not found:
            raise UserRaise(KeyError(key))
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not str:
            raise Unsupported(f"a name of an object's namespace is a {type(key).__name__}")
        if self._is_elsewhere(key):
            raise GraphBreak(f"an item of an object's dict is set that its class or module keeps elsewhere: {key}")
        refuse_former(self.vm, self.obj, key)
        self.vm.effects.write_attr(self.obj, key, value)

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def __contains__(self, key: Any) -> bool:
        return self._find(key)[0]

    def __len__(self) -> int:
        return len(self.keys())

    def get(self, key: Any, default: Any = None) -> Any:
        """`dict.get`."""
        found, value = self._find(key)
        return value if found else default

    def keys(self) -> Any:
        """The names, guarded as a whole."""
        self.vm.guards.add("keys", self.source, list(self.obj.__dict__))
        names = self.vm.effects.names(self.obj, list(self.obj.__dict__))
        return {name: None for name in names if not self._is_elsewhere(name)}.keys()

    def values(self) -> Any:
        """The values; each is guarded."""
        return [self[key] for key in self.keys()]

    def items(self) -> Any:
        """Pairs; each value is guarded."""
        return {key: self[key] for key in self.keys()}.items()

    def update(self, *others: Any, **more: Any) -> None:
        """`dict.update`."""
        for key, value in dict(*others, **more).items():
            self[key] = value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """`dict.setdefault`."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Any, *default: Any) -> Any:
        """`dict.pop`."""
        if key in self:
            value = self[key]
            self.vm.effects.delete_attr(self.obj, key)
            return value
        if default:
            return default[0]
        raise UserRaise(KeyError(key))


class GlobalsDict(InstanceDict):
    """`globals()` of a user's module: reads and writes go through its tracked names."""

    def __init__(self, vm: Interpreter, namespace: dict[str, Any]) -> None:
        self.vm, self.obj = vm, namespace
        self.module = str(namespace.get("__name__", "module"))
        self.source = Const(namespace, self.module)

    def _find(self, key: Any) -> tuple[bool, Any]:
        vm, namespace = self.vm, self.obj
        if type(key) is not str:
            raise Unsupported(f"a name of a module's namespace is a {type(key).__name__}")
        if vm.effects.read is not None:
            vm.effects.read["global", id(namespace), key] = namespace
        written = vm.effects.globals.get((id(namespace), key))
        if written is not None:
            return (False, None) if written[1] is DELETED else (True, written[1])
        if key in namespace:
            return True, load_global_value(vm, namespace, key, self.module)
        vm.guards.add("missing", self.source, key)
        return False, None

    def _is_elsewhere(self, key: Any) -> bool:
        return False

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not str:
            raise Unsupported(f"a name of a module's namespace is a {type(key).__name__}")
        self.vm.effects.globals[id(self.obj), key] = self.obj, value

    def keys(self) -> Any:
        """The names, guarded as a whole."""
        self.vm.guards.add("keys", self.source, list(self.obj))
        names = dict.fromkeys(self.obj)
        for (owner, name), (_, value) in self.vm.effects.globals.items():
            if owner == id(self.obj):
                names[name] = None
                if value is DELETED:
                    del names[name]
        return names.keys()

    def pop(self, key: Any, *default: Any) -> Any:
        """`dict.pop`."""
        found, value = self._find(key)
        if found:
            self[key] = DELETED
            return value
        if default:
            return default[0]
        raise UserRaise(KeyError(key))
