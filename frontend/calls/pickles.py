"""`pickle.dumps`, `pickle.loads` and what copies ask of objects: Python's own picklers, whose steps into the program are interpreted.

The picklers of Python's library that are written in Python run as they are on what capture knows: they write the same bytes as those of C. Where
they would call something of the program's (`__reduce__`, `__getstate__`, a constructor, `__setstate__`), capture calls it, and what they find
by name is guarded. Whether equal texts are one object, which pickles show in their bytes alone, is as it
was at capture.
"""

from __future__ import annotations

import _compat_pickle
import collections
import copy
import copyreg
import io
import operator
import pickle
import sys
import types
import weakref
from typing import Any

from torch import Tensor, nn

from ..breaks.iterators import refuse_iterator
from ..bytecode.generator import InterpretedGenerator
from ..errors import CaptureError, GraphBreak, UserRaise
from ..graph.sym_nodes import concrete
from ..guards.source import Const, Item
from ..state import Interpreter
from ..values import object as objects
from ..values import operators
from ..values.constant import is_constant
from ..values.container import InstanceDict, LazyDict
from ..values.function import CallBack
from ..values.kinds import HEAP_TYPE, SYMBOLIC, c_name, is_honest, isinstance, namespace_of
from ..values.namespaces import instance_attr
from .registry import Rows
from .visibility import is_opaque_type

__all__ = [
    "answers_itself",
    "asked_of_object",
    "has_slots",
    "is_copied_as_itself",
    "reconstructed",
    "reduced",
    "registered",
    "rely_on_registries",
]

ROWS = Rows()
# The classes of which `pickle.Pickler` and `pickle.Unpickler` are copies in C.
_PICKLER: Any = pickle._Pickler  # type: ignore[attr-defined]
_UNPICKLER: Any = pickle._Unpickler  # type: ignore[attr-defined]
_DUMPS: Any = vars(pickle)["_dumps"]
_LOADS: Any = vars(pickle)["_loads"]
_HOOKS: tuple[str, ...] = (
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getattr__",
)
_HOOKS += ("__getattribute__",)
_NEW_OBJECT: Any = vars(copyreg)["__newobj__"]
_EXTENSIONS: Any = vars(copyreg)["_extension_registry"]
_ITEMS = ("__iter__", "items")  # of what derives from a list or a dict
_OF_ITEMS = (set, frozenset, collections.deque)
_CONVERSIONS = (
    "__int__",
    "__float__",
    "__complex__",
    "__str__",
    "__bytes__",
    "__iter__",
)  # of what derives from a value, in old pickles


# ---- what an object says of itself ----


@ROWS.rule(object.__reduce_ex__)
def reduced(vm: Interpreter, obj: Any, *given: Any) -> Any:
    """`object.__reduce_ex__(obj, protocol)`."""
    kind = vm.type_of(obj)
    if isinstance(obj, nn.Module | Tensor) or vm.is_frontend_class(kind) or id(obj) in vm.user.opaque:
        raise GraphBreak(f"a {kind.__name__} is pickled or copied")
    protocol = _protocol(vm, given)
    method, owner = objects.lookup(kind, "__reduce__")
    if isinstance(method, types.FunctionType):
        return vm.call(method, (obj,), {})
    programs = _hooks(vm, kind, protocol)
    asks = "__getattribute__" in programs
    if is_honest(kind):
        own = [name for name in _HOOKS if name in (namespace_of(obj) or ())]
    elif asks and type(obj) is kind and not any("__class__" in vars(base) for base in kind.__mro__[:-1]):
        own = [name for name in _HOOKS if instance_attr(vm, obj, name)[0]]
    else:  # a proxy, or one that says that it is of another class
        own = [kind.__name__]
    programs += own
    ours = vm.is_created(obj) or is_constant(obj) or vm.user.source_of(obj) is None
    if not programs and ours:
        refuse_iterator(vm, obj)
        made = vm.native(object.__reduce_ex__, obj, protocol)
        # Capture has read `__dict__` of the exception, which made one.
        return made[:2] if isinstance(obj, BaseException) and len(made) == 3 and made[2] == {} else made
    if owner in _OF_ITEMS and not own and not asks:
        return _items_and_state(vm, obj, kind)
    known = not is_opaque_type(kind) or _derives_from_value(kind) and (ours or protocol < 2 or _says_its_value(kind))
    if owner is not object or not known or own or not {*_ASKED, *_CONVERSIONS}.issuperset(programs):
        raise GraphBreak(
            f"a {kind.__qualname__} is pickled or copied, of which {', '.join(programs) or 'C code'} is asked"
        )
    if asks:
        _check_default(vm, obj, "__reduce__")
    if protocol < 2:
        return vm.call(vars(copyreg)["_reduce_ex"], (obj, protocol), {})
    args, kwargs = _new_arguments(vm, obj, kind)
    found = _asked_state(vm, obj)
    if kwargs:
        return copyreg.__newobj_ex__, (kind, args, kwargs), found, None, None  # type: ignore[attr-defined]
    return _NEW_OBJECT, (kind, *args), found, None, None


def _items_and_state(vm: Interpreter, obj: Any, kind: type) -> Any:
    """What `set.__reduce__` and `deque.__reduce__` say, which take the items as the program has it."""
    if not issubclass(kind, collections.deque):
        return kind, (vm.call(list, (obj,), {}),), _asked_state(vm, obj)
    state, most = _asked_state(vm, obj), obj.maxlen
    return kind, () if most is None else ((), most), state, vm.call(iter, (obj,), {})


def _protocol(vm: Interpreter, given: tuple[Any, ...]) -> int:
    """The number of the protocol; what is none raises as C code does."""
    if len(given) == 1 and type(given[0]) in (int, bool):
        return int(given[0])
    if all(map(is_constant, given)):
        vm.native(object.__reduce_ex__, object(), *given)
    raise GraphBreak("object.__reduce_ex__ is given something else than the number of a protocol")


def _asked_state(vm: Interpreter, obj: Any) -> Any:
    """`obj.__getstate__()`."""
    return vm.call(vm.call(getattr, (obj, "__getstate__"), {}), (), {})


@ROWS.rule(object.__getstate__)
def _state(vm: Interpreter, obj: Any) -> Any:
    """`object.__getstate__(obj)`: its attributes, and those in slots beside them."""
    kind = vm.type_of(obj)
    if vm.is_frontend_class(kind) or id(obj) in vm.user.opaque or isinstance(obj, nn.Module | Tensor):
        raise GraphBreak(f"a {kind.__name__} is pickled or copied")
    try:
        names = objects.generic_attr(vm, obj, kind, "__dict__")
    except UserRaise as error:
        if not isinstance(error.value, AttributeError):
            raise
        names = None
    slots = {}
    for name in vars(copyreg)["_slotnames"](kind) if has_slots(kind) else ():
        try:
            slots[name] = vm.call(getattr, (obj, name), {})
        except UserRaise as error:
            if not isinstance(error.value, AttributeError):
                raise
    state = names if names else None
    return (state, slots) if slots else state


# What is asked of an object that consists of its attributes; `__getattr__` is not, as all that is looked for is there.
_ASKED = frozenset(("__getstate__", "__getnewargs__", "__getnewargs_ex__", "__getattr__", "__getattribute__"))


def _check_default(vm: Interpreter, obj: Any, name: str) -> None:
    """Ask the program's `__getattribute__` for a method of `object`, as C code does; another answer is a break."""
    found = vm.call(getattr, (obj, name, None), {})
    if not (type(found) is types.MethodType and found.__self__ is obj and found.__func__ is getattr(object, name)):
        raise GraphBreak(f"`__getattribute__` of a {type(obj).__qualname__}, which is copied, answers for {name}")


def _new_arguments(vm: Interpreter, obj: Any, kind: type) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an object's `__new__` is to be given when it is made again; what is of another kind raises in CPython's words."""
    if (method := objects.find_method(kind, "__getnewargs_ex__")) is not None:
        given = vm.call(method, (obj,), {})
        _check_kind(vm, given, tuple, "__getnewargs_ex__ should return a tuple, not '{}'")
        if len(given) != 2:
            raise UserRaise(ValueError(f"__getnewargs_ex__ should return a tuple of length 2, not {len(given)}"))
        _check_kind(vm, given[0], tuple, _ITEM.format("first", "tuple"))
        _check_kind(vm, given[1], dict, _ITEM.format("second", "dict"))
        return given
    if (method := objects.find_method(kind, "__getnewargs__")) is not None:
        given = vm.call(method, (obj,), {})
        _check_kind(vm, given, tuple, "__getnewargs__ should return a tuple, not '{}'")
        return given, {}
    of_value = objects.lookup(kind, "__getnewargs__")[0]  # which looks at the value itself
    return (vm.native(of_value, obj) if type(of_value) is types.MethodDescriptorType else ()), {}


_ITEM = "{} item of the tuple returned by __getnewargs_ex__ must be a {}, not '{{}}'"


def _check_kind(vm: Interpreter, given: Any, kind: type, message: str) -> None:
    if type(given) is kind or kind is dict and type(given) in (LazyDict, InstanceDict):
        return
    if issubclass(vm.type_of(given), kind):
        raise GraphBreak(f"the arguments for __new__ of an object that is copied are a {type(given).__qualname__}")
    raise UserRaise(TypeError(message.format(c_name(vm.type_of(given)))))


def _hooks(vm: Interpreter, kind: type, protocol: int) -> list[str]:
    """The methods of the program's that C code would call."""
    names = [
        *_HOOKS,
        *(_ITEMS if issubclass(kind, (list, dict, *_OF_ITEMS)) else ()),
        *(_CONVERSIONS if protocol < 2 and _is_value(kind) else ()),
    ]
    found = [(name, objects.find_method(kind, name)) for name in names]
    return [name for name, method in found if method is not None and not vm.is_library(method.__module__)]


def _derives_from_value(kind: type) -> bool:
    """Whether a class of the program's derives from plain values."""
    return any(base in _VALUES for base in kind.__mro__) and bool(kind.__flags__ & HEAP_TYPE)


def _says_its_value(kind: type) -> bool:
    """Whether a method of the program's gives what `__new__` makes one of."""
    return any(objects.find_method(kind, name) is not None for name in ("__getnewargs__", "__getnewargs_ex__"))


_VALUES = (int, float, complex, str, bytes, tuple)


def _is_value(kind: type) -> bool:
    return any(not base.__flags__ & HEAP_TYPE for base in kind.__mro__[:-1])


def has_slots(kind: type) -> bool:
    """Whether instances have attributes in slots."""
    return any(isinstance(raw, types.MemberDescriptorType) for c in kind.__mro__ for raw in c.__dict__.values())


def rely_on_registries(vm: Interpreter) -> None:
    """Guard which classes are pickled by functions that were registered for them."""
    for name in ("dispatch_table", "_extension_registry"):
        table = getattr(copyreg, name)
        vm.guards.add("keys", Const(table, f"copyreg.{name}"), list(table))


def registered(vm: Interpreter, kind: type) -> Any:
    """The function that `copyreg.pickle` was given for a class, by anybody before the call or by the program; None where there is none."""
    rely_on_registries(vm)
    table = copyreg.dispatch_table
    known = vm.user.by_real.get(id(table))
    if known is not None:
        return known.value.get(kind)
    found = table.get(kind)
    return None if found is None else vm.user.wrap(found, Item(Const(table, "copyreg.dispatch_table"), kind))


def _check_global(vm: Interpreter, obj: Any, module: str, name: str) -> Any:
    """What a pickle refers to by name, found again with guards."""
    table = vm.user.by_real.get(id(sys.modules))  # which the program may have changed
    found: Any = sys.modules.get(module) if table is None else table.value.get(module)
    if found is None:
        raise GraphBreak(f"a pickle imports {module}")
    for part in name.split("."):
        found = objects.load_attr(vm, found, part)
    if obj is not None and found is not obj:
        raise GraphBreak(f"a pickle refers to {module}.{name}, which is another object")
    return found


def _is_found(module: str, name: str, obj: Any) -> bool:
    """Whether the process has the object under its name, where Python's own picklers look for it."""
    try:
        return operator.attrgetter(name)(sys.modules[module]) is obj
    except (KeyError, AttributeError):
        return False


def _is_missing(vm: Interpreter, obj: Any, module: str, name: str) -> bool:
    """Whether the process has not got a class or function under its name either, and no code of the program's runs where C code looks for it."""
    first, *rest = name.split(".")
    names = getattr(sys.modules.get(module), "__dict__", {})
    kinds = type(obj).__mro__[:-1]
    missing = first not in names and "__getattr__" not in names or "<locals>" in rest
    return missing and all(vm.is_library(kind.__module__) for kind in kinds)


# ---- copies ----


def is_copied_as_itself(value: Any) -> bool:
    """Whether the functions of `copy` take a value for one that never changes, by its class alone."""
    return isinstance(value, type) or type(value) in _SHARED


_SHARED = (types.FunctionType, types.BuiltinFunctionType, range, property, weakref.ref)


def answers_itself(vm: Interpreter, obj: Any, name: str) -> bool:
    """Whether an object, and not its class alone, says what its method `name` is: its own attribute, or code of the program's that finds attributes."""
    kind = type(obj)
    if not kind.__flags__ & HEAP_TYPE or isinstance(obj, nn.Module):
        return False
    hooks = (objects.find_method(kind, hook) for hook in ("__getattribute__", "__getattr__"))
    return any(hook is not None for hook in hooks) or namespace_of(obj) is not None and instance_attr(vm, obj, name)[0]


def asked_of_object(vm: Interpreter, obj: Any, name: str) -> Any:
    """`getattr(obj, name, None)`, as the functions of `copy` ask."""
    if answers_itself(vm, obj, name) or objects.lookup(type(obj), name)[1] is not None:
        return vm.call(getattr, (obj, name, None), {})
    return None


def reconstructed(vm: Interpreter, value: Any, who: str, memo: Any) -> Any:
    """The copy of an object that says itself, for pickling, what it consists of: Python's own steps, interpreted."""
    kind = type(value)
    if kind in SYMBOLIC or vm.is_frontend_class(kind) or id(value) in vm.user.opaque or isinstance(value, nn.Module):
        raise GraphBreak(f"{who} of a {kind.__name__}")
    if (function := registered(vm, kind)) is not None:
        parts = vm.call(function, (value,), {})
    elif (method := asked_of_object(vm, value, "__reduce_ex__")) is not None:
        parts = vm.call(method, (4,), {})
    elif (method := asked_of_object(vm, value, "__reduce__")) is not None:
        parts = vm.call(method, (), {})
    else:
        way = "shallow" if who == "copy.copy" else "deep"
        raise UserRaise(copy.Error(f"un({way})copyable object of type {kind}"))
    if isinstance(parts, str):
        return value
    return vm.call(_RECONSTRUCT, (value, memo, *parts), {})


_RECONSTRUCT: Any = copy._reconstruct  # type: ignore[attr-defined]


# ---- writing ----


class _Writer(_PICKLER):  # type: ignore[misc]
    """A pickler of objects of the capture."""

    def __init__(self, vm: Interpreter, file: io.BytesIO, protocol: Any, fix_imports: bool) -> None:
        super().__init__(file, protocol, fix_imports=fix_imports)
        self.vm = vm
        self.plain: dict[int, Any] = {}

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Write one object."""
        vm = self.vm
        if isinstance(obj, LazyDict | InstanceDict):
            obj = self.plain.setdefault(id(obj), (obj, obj.force()))[1]
        obj = concrete(obj) if type(obj) in SYMBOLIC else obj
        kind = type(obj)
        if isinstance(obj, InterpretedGenerator):
            raise UserRaise(TypeError(f"cannot pickle '{obj.kind}' object"))
        if kind is CallBack:  # what an iterator of C's calls
            obj, kind = obj.function, type(obj.function)
        if isinstance(obj, Tensor) or kind in SYMBOLIC or vm.is_frontend_class(kind) or kind is types.GeneratorType:
            raise GraphBreak(f"a {vm.type_of(obj).__name__} is pickled")
        refuse_iterator(vm, obj)
        super().save(obj, save_persistent_id)

    def save_global(self, obj: Any, name: Any = None) -> None:
        """Write a reference to a class or function."""
        module, name = getattr(obj, "__module__", "builtins"), name or obj.__qualname__
        try:
            _check_global(self.vm, obj, module, name)
        except UserRaise as error:
            if isinstance(error.value, AttributeError) and _is_missing(self.vm, obj, module, name):
                self.vm.native(pickle.dumps, obj, self.proto)  # raises, in CPython's words
            raise GraphBreak(f"a pickle refers to {module}.{name}, which is not found") from None
        if _is_found(module, name, obj):
            super().save_global(obj, name)
        else:
            self._save_name(obj, module, name)

    def _save_name(self, obj: Any, module: str, name: str) -> None:
        """Write a reference to what only the program finds: it has put another module in the place of one."""
        if self.proto < 4 and "." in name or (module, name) in _EXTENSIONS:
            raise GraphBreak(f"a pickle refers to {module}.{name}, which is another object")
        if self.proto >= 4:
            self.save(module)
            self.save(name)
            self.write(pickle.STACK_GLOBAL)
        else:
            if self.proto < 3 and self.fix_imports:  # as names were in Python 2
                module, name = _compat_pickle.REVERSE_NAME_MAPPING.get(
                    (module, name), (_compat_pickle.REVERSE_IMPORT_MAPPING.get(module, module), name)
                )
            coding = "utf-8" if self.proto == 3 else "ascii"
            self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode(coding))
        self.memoize(obj)

    def save_type(self, obj: Any) -> None:
        """Write a reference to a class; those of None and its like have a form of their own."""
        if obj in (type(None), type(NotImplemented), type(...)):
            super().save_type(obj)
        else:
            self.save_global(obj)

    dispatch = {**_PICKLER.dispatch, types.FunctionType: save_global, type: save_type}

    def reducer_override(self, obj: Any) -> Any:
        """What an object that is no plain data consists of."""
        vm, kind = self.vm, type(obj)
        if kind in self.dispatch or isinstance(obj, type):
            return NotImplemented
        if not is_honest(kind):
            raise GraphBreak(f"a {kind.__qualname__} is pickled, which says itself what its class is")
        if (function := registered(vm, kind)) is not None:
            made = vm.call(function, (obj,), {})
        else:
            made = vm.call(objects.load_attr(vm, obj, "__reduce_ex__"), (self.proto,), {})
        if not isinstance(made, tuple):
            if isinstance(made, str):
                _check_global(vm, obj, getattr(obj, "__module__", "builtins"), made)
            return made
        return (*made[:3], *(None if items is None else iter(vm.listed(items)) for items in made[3:5]), *made[5:])


@ROWS.rule(pickle.dumps, _DUMPS)
def _dumps(
    vm: Interpreter, obj: Any, protocol: Any = None, *, fix_imports: Any = True, buffer_callback: Any = None
) -> bytes:
    if buffer_callback is not None or not is_constant(protocol):
        raise GraphBreak("pickle.dumps is given a callback")
    rely_on_registries(vm)
    file = io.BytesIO()
    _run(_Writer(vm, file, protocol, vm.truth(fix_imports)).dump, obj)
    return file.getvalue()


def _run(function: Any, *args: Any) -> Any:
    """Run one of the picklers; how it words its own errors is not how those of C do."""
    try:
        return function(*args)
    except (CaptureError, UserRaise):
        raise
    except Exception as error:
        raise GraphBreak(f"pickling fails ({type(error).__name__})") from error


# ---- reading ----


class _Reader(_UNPICKLER):  # type: ignore[misc]
    """An unpickler whose objects are the capture's."""

    def __init__(self, vm: Interpreter, data: bytes, **settings: Any) -> None:
        super().__init__(io.BytesIO(data), **settings)
        self.vm = vm

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle refers to by name."""
        now, called = module, name
        if self.proto < 3 and self.fix_imports:  # as names were in Python 2
            now, called = _compat_pickle.NAME_MAPPING.get(
                (module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name)
            )
        if now not in sys.modules:
            raise GraphBreak(f"a pickle imports {now}")
        replaced = self.vm.user.by_real.get(id(sys.modules)) is not None
        if self.vm.is_library(now) and not replaced:
            return super().find_class(module, name)
        return _check_global(self.vm, None, now, called)

    def load_reduce(self) -> None:
        """Call a function."""
        args = self.stack.pop()
        self.stack[-1] = self.vm.call(self.stack[-1], tuple(args), {})

    def load_newobj(self) -> None:
        """Make an object without its `__init__`."""
        args = self.stack.pop()
        self.stack[-1] = self._made(self.stack[-1], args, {})

    def load_newobj_ex(self) -> None:
        """The same with keywords."""
        kwargs, args = self.stack.pop(), self.stack.pop()
        self.stack[-1] = self._made(self.stack[-1], args, kwargs)

    def _made(self, cls: Any, args: Any, kwargs: Any) -> Any:
        return self.vm.call(objects.load_attr(self.vm, cls, "__new__"), (cls, *args), kwargs)

    def load_build(self) -> None:
        """Give an object its state."""
        vm, state, obj = self.vm, self.stack.pop(), self.stack[-1]
        setter = vm.call(getattr, (obj, "__setstate__", None), {})
        if setter is not None:
            vm.call(setter, (state,), {})
            return
        slots = None
        if isinstance(state, tuple) and len(state) == 2:
            state, slots = state
        if state:
            names = objects.load_attr(vm, obj, "__dict__")
            for name, value in state.items():
                operators.set_item(vm, names, sys.intern(name) if type(name) is str else name, value)
        for name, value in (slots or {}).items():
            vm.call(setattr, (obj, name, value), {})

    def load_appends(self) -> None:
        """Put items behind a list."""
        items = self.pop_mark()
        self._extend(items)

    def load_append(self) -> None:
        """Put one item behind a list."""
        self._extend([self.stack.pop()])

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        else:
            self.vm.call(objects.load_attr(self.vm, target, "extend"), (items,), {})

    def load_setitems(self) -> None:
        """Put items into a dict."""
        items = self.pop_mark()
        for at in range(0, len(items), 2):
            operators.set_item(self.vm, self.stack[-1], items[at], items[at + 1])

    def load_setitem(self) -> None:
        """Put one item into a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        operators.set_item(self.vm, self.stack[-1], key, value)

    def load_additems(self) -> None:
        """Put items into a set."""
        items = self.pop_mark()
        self.vm.call(objects.load_attr(self.vm, self.stack[-1], "update"), (items,), {})

    def load_unknown(self) -> None:
        """What pickles hold rarely."""
        raise GraphBreak("a pickle with classes by number, or of an old form, is read")

    dispatch: dict[int, Any] = {
        **_UNPICKLER.dispatch,
        **{pickle.REDUCE[0]: load_reduce, pickle.NEWOBJ[0]: load_newobj, pickle.NEWOBJ_EX[0]: load_newobj_ex},
        **{pickle.BUILD[0]: load_build, pickle.APPENDS[0]: load_appends, pickle.APPEND[0]: load_append},
        **{pickle.SETITEMS[0]: load_setitems, pickle.SETITEM[0]: load_setitem, pickle.ADDITEMS[0]: load_additems},
        **dict.fromkeys(
            (op[0] for op in (pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4)), load_unknown
        ),
    }


@ROWS.rule(pickle.loads, _LOADS)
def _loads(
    vm: Interpreter,
    data: Any,
    *,
    fix_imports: Any = True,
    encoding: Any = "ASCII",
    errors: Any = "strict",
    buffers: Any = None,
) -> Any:
    if type(data) not in (bytes, bytearray) or buffers is not None or not all(map(is_constant, (encoding, errors))):
        raise GraphBreak("pickle.loads is given more than bytes")
    settings = {"fix_imports": vm.truth(fix_imports), "encoding": encoding, "errors": errors}
    return _run(_Reader(vm, bytes(data), **settings).load)
