"""The generated Python of one capture: check, fetch the inputs, run the graph, replay effects, build the result."""

from __future__ import annotations

import copy
import enum
import gc
import io
import pathlib
import re
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..breaks.iterators import moves
from ..bytecode.exceptions import builtin_members, handled_outside
from ..bytecode.generator import InterpretedGenerator
from ..calls.contexts import Scope
from ..calls.visibility import is_opaque_type
from ..classes.rebuild import check_globals, escapes, is_signature, made_again
from ..errors import Unsupported
from ..foreign.tensors import given_out, of_class
from ..gradients.grads import assignment, is_unchanged
from ..guards.emitter import Emitter
from ..guards.sameness import is_value_type, same_keys
from ..guards.set_tables import made_set, recipe
from ..guards.source import Source
from ..modes.caches import LRU, check_empty
from ..state import Interpreter
from ..subclasses.wrappers import counted_versions, handed_out
from ..torch_private.dtensor import is_composite, is_fact
from ..torch_private.symbols import exact_of, is_unknown, python_text
from ..torch_private.wrapped import is_ragged
from ..transforms.rules import Linear, Pullback, Transformed
from ..values.constant import has_identity, is_bound, is_constant, is_static, plain_value
from ..values.container import GlobalsDict, InstanceDict, LazyDict, Shadow
from ..values.function import CallBack
from ..values.held import PROXIES, lets_go
from ..values.identity import Identity
from ..values.kinds import isinstance
from ..values.lazy import Append, Unread
from ..values.object import find_method, is_data_descriptor
from ..values.text import Text
from .effects import DELETED
from .entry import Message
from .replay import REDUCED, change_set, forget, put, refill, refill_dict, remake_set, set_changes, slots_of
from .suspended import BUILDERS, as_it_is, is_iterator, iterator
from .views import Views, given_as, view_of_wrapper

__all__ = ["Residual"]


class Residual:
    """Collects the graph's outputs and the statements that run after it."""

    def __init__(self, vm: Interpreter, emit: Emitter, with_grad: bool | None = None) -> None:
        self.vm, self.emit = vm, emit
        self.outputs: list[Tensor] = []
        self.gradients: list[int] = []  # which of them become the `.grad` of the caller's tensors
        self.views = None if with_grad is None else Views(self, vm.out, with_grad)
        self.post: list[str] = []
        self._names: dict[int, str] = {}
        self._tensors: dict[int, int] = {}
        self._alive: list[Any] = []
        self._count, self._codes_held = 0, False
        self.sizes: Any = None
        self.lets_go = False  # whether no variable is to hold what is handed on to a piece

    def effects(self) -> None:
        """Statements for everything the program changed."""
        vm, effects = self.vm, self.vm.effects
        self.post += counted_versions(vm, self.emit)
        for shadow in filter(Shadow.changed, vm.user.shadows):
            self._replace_contents(shadow.real, shadow.copy, shadow.source)
        for unread in vm.user.appended:
            target = self.emit.fetch(unread.source)
            self.post += [f"{target}.append({text})" for text in map(self.value, unread.appended)]
        self.post += moves(vm, self.emit)
        for (_, name), (obj, value) in effects.attrs.items():
            if vm.is_created(obj) or isinstance(obj, Tensor) and not vm.out.concerns((obj,)):
                continue
            if isinstance(obj, Tensor) and name == "grad":
                self._gradient(obj, value)
                continue
            if isinstance(obj, Tensor) and (known := vm.overrides.known.get(id(obj))) and known.source is None:
                continue  # with the tensor, where it is given out
            target = self.value(obj)
            if value is DELETED and isinstance(obj, nn.Module):
                plain = name in obj.__dict__  # whatever members have come since
                remove = self.emit.constant(object.__delattr__, "delete_attribute") if plain else "delattr"
                self.post.append(f"{remove}({target}, {name!r})")
            elif value is DELETED:
                self.post.append(f"{self.emit.constant(forget, 'forget')}({target}, {name!r})")
            elif (_, name) in effects.moved or is_data_descriptor(type(obj), name):
                self.post.append(f"{self.emit.constant(put, 'put')}({target}, {name!r}, {self.value(value)})")
            elif (
                isinstance(obj, nn.Module)
                and (name in obj._buffers or not isinstance(value, Tensor))
                or find_method(type(obj), "__setattr__") is None
            ):
                self.post.append(f"{target}.{name} = {self.value(value)}")
            else:
                self._set_attribute(target, name, value)
        for cell, value in effects.cells.values():
            contents = f"{self._user_cell(cell)}.cell_contents"
            self.post.append(f"del {contents}" if value is DELETED else f"{contents} = {self.value(value)}")
        for (_, name), (namespace, value) in effects.globals.items():
            where = self.emit.constant(namespace, "globals")
            self.post.append(
                f"{where}.pop({name!r}, None)" if value is DELETED else f"{where}[{name!r}] = {self.value(value)}"
            )
        for function, args, kwargs in effects.calls:
            parts = [self.value(a) for a in args] + [f"{k}={self.value(v)}" for k, v in kwargs.items()]
            self.post.append(Message(f"{self.emit.constant(function, function.__name__)}({', '.join(parts)})"))

    def _gradient(self, tensor: Tensor, value: Any) -> None:
        """What `.grad` of one of the caller's tensors is behind the graph."""
        if not is_unchanged(self.vm, tensor, value):
            self.post.append(assignment(self.vm, self, tensor, value))
            if (at := self._tensors.get(id(value))) is not None:
                self.gradients.append(at)

    def _set_attribute(self, target: str, name: str, value: Any) -> None:
        setter = self.emit.constant(object.__setattr__, "set_attribute")
        self.post.append(f"{setter}({target}, {name!r}, {self.value(value)})")

    def made(self) -> list[str]:
        """The names of what was built, where an iterator is among it: dropping it can be noticed."""
        kinds = set(map(type, self._alive))
        self.lets_go = lets_go(self.vm) or any(issubclass(kind, (weakref.ReferenceType, *PROXIES)) for kind in kinds)
        noticed = any(issubclass(kind, InterpretedGenerator) or hasattr(kind, "__next__") for kind in kinds)
        return [f"r{n}" for n in range(self._count) if noticed]

    @property
    def known(self) -> dict[int, str]:
        """The names of values that were built or fetched, by identity."""
        return self._names

    def _user_cell(self, cell: types.CellType) -> str:
        source = self.vm.user.source_of(cell)
        return self.emit.constant(cell, "cell") if source is None else self.emit.fetch(source)

    def _replace_contents(self, real: Any, copy: Any, source: Source) -> None:
        target = self.emit.fetch(source)
        self._names[id(copy)] = target
        if isinstance(real, list | deque):
            new = ", ".join(self.value(v) for v in copy)
            self.post.append(f"{target}[:] = [{new}]" if isinstance(real, list) else f"refill({target}, [{new}])")
            if isinstance(real, deque):
                self.emit.namespace["refill"] = refill
        elif isinstance(real, dict):
            pairs = ", ".join(f"({self.key(k)}, {self.value(v)})" for k, v in copy.items())
            self.emit.namespace["refill_dict"] = refill_dict
            self.post.append(f"refill_dict({target}, [{pairs}])")
        else:
            steps = set_changes(real, copy)
            change = self.emit.constant(change_set if isinstance(steps, list) else remake_set, "change_set")
            self.post.append(f"{change}({target}, {', '.join(map(self._items, steps))})")

    def _items(self, items: Any) -> str:
        return str(items) if isinstance(items, int) else f"[{', '.join(map(self.key, items))}]"

    def key(self, value: Any) -> str:
        """`value` of a key of a dict or of an item of a set."""
        self.vm.methods.check_key(value)
        return self.value(value)

    # ---- values ----

    def value(self, value: Any) -> str:
        """The expression that gives `value` after the graph has run."""
        if is_constant(value) and not has_identity(value):
            if isinstance(value, enum.Enum) and self.vm.is_created(type(value)):
                raise escapes(self.vm, type(value), "it is an enumeration")
            _, found = self.vm.user.places.get(id(value), (None, None))
            if found is None and type(value) is str and (parts := self.vm.addresses.parts(value)):
                return self._with_addresses(value, parts)
            return self.emit.literal(value) if found is None else self.emit.fetch(next(iter(found)))
        known = self._names.get(id(value))
        if known is not None:
            return known
        if is_constant(value):
            return self._constant(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._symbolic(value)
        if type(value) is Unread:
            return self.emit.fetch(value.source)
        source = self.vm.user.source_of(value)
        if source is not None and not self.vm.is_created(value):
            self._names[id(value)] = name = self.emit.fetch(source)
            return name
        return self._build(value)

    def _with_addresses(self, text: str, parts: list[Any]) -> str:
        """Text that shows where objects lie."""
        known = self._names.get(id(text))
        if known is not None:
            return known
        show = self.emit.constant(_address, "address")
        pieces = [f"{show}({self.value(part[0])})" if type(part) is tuple else repr(part) for part in parts]
        return self._fresh(text, f"({' + '.join(pieces)})")

    def _constant(self, value: Any) -> str:
        """A constant that programs tell from an equal one: what was there before the call is itself, what the call makes is new each time."""
        user = self.vm.user
        if not self._codes_held:
            self._codes_held = True
            for code in self.vm.codes.values():
                user.held(code.co_consts)
        _, source = user.constants.get(id(value), (None, None))
        if source is not None:
            return self.emit.fetch(source)
        if id(value) in user.constants:
            return self.emit.literal(value)
        if type(value) is tuple:
            items = ", ".join(map(self.value, value))
            return self._fresh(value, f"tuple([{items}])")  # not a constant of the generated code
        if type(value) is frozenset:
            return self._set(value)
        if type(value) is torch.Size:
            return self._named_tuple(value)
        if isinstance(value, pathlib.PurePath):
            return self._fresh(value, f"{self.emit.constant(type(value), 'Path')}({str(value)!r})")
        return self._fresh(value, f"{type(value).__name__}({value.start}, {value.stop}, {value.step})")

    def _tensor(self, tensor: Tensor) -> str:
        known = self.vm.overrides.known.get(id(tensor))
        if known is not None and known.source is not None:
            return self.emit.fetch(known.source)
        return self._plain(tensor) if known is None else self._of_class(tensor, known.kind)

    def _of_class(self, tensor: Tensor, kind: type) -> str:
        """A tensor of a class of the program's, with the attributes that it was given."""
        name = self._fresh(tensor, of_class(self, tensor, kind))
        for (_, attribute), (owner, value) in list(self.vm.effects.attrs.items()):
            if owner is tensor and value is not DELETED and attribute != "grad":  # that is the plain one's
                self.post.append(f"{self.emit.constant(put, 'put')}({name}, {attribute!r}, {self.value(value)})")
        return name

    def _plain(self, tensor: Tensor) -> str:
        info = self.vm.out.inputs.get(id(tensor))
        if info is not None:
            if info.static:
                return self.emit.constant(info.real, info.source.name())
            return self.emit.fetch(info.source)
        if (foreign := self.vm.foreign.of(tensor)) is not None:
            return given_out(self, foreign)
        if is_composite(tensor):
            if (source := self.vm.user.source_of(tensor)) is not None:
                return self.emit.fetch(source)
            if (base := tensor._base) is not None and self.vm.user.source_of(base) is not None:
                return self._named(tensor, view_of_wrapper(self.views, tensor))
            parts, whole = handed_out(self.vm, tensor)
            return self._fresh(tensor, f"{self.emit.constant(whole, 'whole')}({', '.join(map(self._tensor, parts))})")
        at = self._tensors.get(id(tensor))
        if at is None:
            if not self.vm.out.is_known(tensor):
                raise Unsupported("a tensor that capture has not seen being made is returned")
            if self.views is not None and id(tensor) not in self.vm.parameters and (name := given_as(self, tensor)):
                return self._named(tensor, name)
            at = self._place(tensor)
        if id(tensor) in self.vm.parameters:
            cls = self.emit.constant(nn.Parameter, "Parameter")
            return self._fresh(tensor, f"{cls}(out{at}, {self.vm.parameters[id(tensor)]})")
        return f"out{at}"

    def _named(self, value: Any, name: str) -> str:
        self._names[id(value)] = name
        self._alive.append(value)
        return name

    def _place(self, tensor: Tensor) -> int:
        """Where the tensor is among the graph's results."""
        at = self._tensors.get(id(tensor))
        if at is None:
            at = self._tensors[id(tensor)] = len(self.outputs)
            self.outputs.append(tensor)
        return at

    def base(self, tensor: Tensor) -> str:
        """An input, or a result of the graph's own even if it is a view of something."""
        plain = id(tensor) in self.vm.out.inputs or is_composite(tensor)
        return self._plain(tensor) if plain else f"out{self._place(tensor)}"

    def _symbolic(self, value: Any) -> str:
        if is_ragged(value):
            raise Unsupported("the ragged size of a jagged tensor is given out")
        expr = value.node.expr
        if expr.is_number:
            return self.emit.literal(exact_of(value))
        late = self.vm.dynamic.late(value)
        if late is not None:
            self.vm.dynamic.check_type(value)
            return self._fresh(value, f"{self._tensor(late)}.item()")
        shown = {s: self._shown(s) for s in sorted(expr.free_symbols, key=str) if is_unknown(s)}
        if self.sizes is None and len(shown) < len(expr.free_symbols):
            raise Unsupported("a symbolic number is returned")
        self.emit.namespace.setdefault("torch", torch)  # conversions between kinds of numbers are torch's
        return f"({python_text(expr, shown) if self.sizes is None else self.sizes.symbol_text(expr, shown)})"

    def _shown(self, symbol: Any) -> str:
        """What a symbol is, as a result of the graph shows it."""
        tensor, place = self.vm.out.read.shown(symbol)
        return f"out{self._place(tensor)}{place}"

    def _fresh(self, value: Any, text: str) -> str:
        name = self._named(value, f"r{self._count}")
        self._count += 1
        self.post.append(f"{name} = {text}")
        return name

    def _build(self, value: Any) -> str:
        kind = type(value)
        if kind in (LazyDict, InstanceDict, GlobalsDict):
            return self.emit.fetch(value.source)
        rule = _BUILDERS.get(kind)
        if rule is not None:
            return rule(self, value)
        if (made := made_again(self, value)) is not None:
            return made
        if is_bound(value) and (self._has_name(value.__self__) or is_iterator(type(value.__self__))):
            return f"{self.value(value.__self__)}.{value.__name__}"
        if kind is LRU and self.vm.is_created(value):
            check_empty(self.vm, value)
            return self._object(value)
        if kind is types.FunctionType and not self.vm.is_created(value) or is_static(value):
            return as_it_is(self, value)
        if isinstance(value, tuple):
            return self._named_tuple(value)
        if kind is Append:
            return f"{self.emit.fetch(value.unread.source)}.append"
        if kind is CallBack:
            return self.value(value.function)
        if is_iterator(kind):
            return iterator(self, value)
        if self.vm.is_created(value) or isinstance(value, BaseException):
            return self._object(value)
        if is_value_type(value):
            return self._value_object(value)
        if is_signature(self.vm, value):
            return self._fresh(value, f"{self.emit.constant(value, 'signature')}.replace()")
        if is_fact(value) or kind is types.TracebackType:
            return self.emit.constant(value, type(value).__name__)
        if kind.__name__ == "cython_function_or_method":  # code, as a function of Python's is
            return self.emit.constant(value, value.__name__)
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
        if owner is not None and self._has_name(owner) and isinstance(name, str) and hasattr(type(owner), name):
            return f"{self.value(owner)}.{name}"  # a method of an extension's own kind
        raise Unsupported(f"an object of type {kind.__module__}.{kind.__qualname__} is returned or stored")

    def _value_object(self, value: Any) -> str:
        """A date, a decimal: equal to the one that capture found, and another object in each call, where it is made of plain data."""
        constant = self.emit.constant(value, type(value).__name__)
        if isinstance(value, re.Pattern | torch.finfo | torch.iinfo):
            return constant  # made once for all calls by its own library, or without a way to copy it
        if not isinstance(value, REDUCED):
            return self._fresh(value, f"{self.emit.constant(copy.copy, 'copy')}({constant})")
        reduced: Any = value.__reduce__()
        made, args = reduced[:2]
        given = ", ".join(self.emit.literal(a) if is_constant(a) else self.value(a) for a in args)
        return self._fresh(value, f"{self.emit.constant(made, made.__name__)}({given})")

    def _has_name(self, owner: Any) -> bool:
        """Whether generated code can refer to the object: it is the caller's, or was made during capture."""
        vm = self.vm
        known = vm.user.source_of(owner) is not None or vm.is_created(owner) or isinstance(owner, Tensor)
        return known or id(owner) in self._names or type(owner) in _BUILDERS or is_constant(owner)

    def _scope(self, scope: Scope) -> str:
        """The exit of an open context manager: entered again, as the graph has left it."""
        if scope.rebuild is None:
            raise Unsupported("a context manager is open at a graph break that cannot be entered again")
        function, args = scope.rebuild
        maker = self.emit.constant(function, getattr(function, "__name__", "context"))
        name = self._fresh(scope, f"{maker}({', '.join(map(self.value, args))})")
        self.post.append(f"{name}.__enter__()")
        self._names[id(scope)] = f"{name}.__exit__"
        return f"{name}.__exit__"

    def _view(self, view: Any) -> str:
        kind = {type({}.values()): "values", type({}.items()): "items"}.get(type(view), "keys")
        return f"{self.value(gc.get_referents(view)[0])}.{kind}()"

    def _named_tuple(self, value: Any) -> str:
        items = ", ".join(self.value(v) for v in value)
        cls = self._class_of(value)
        module = type(value).__module__
        if type(value) is torch.Size or module.startswith("torch.return_types"):
            return self._fresh(value, f"{cls}([{items}])")
        if hasattr(type(value), "_fields") and not module.startswith("torch") or self.vm.is_created(value):
            return self._fresh(value, f"tuple.__new__({cls}, [{items}])")
        raise Unsupported(f"an object of type {type(value).__name__} is returned")

    def _list(self, value: list[Any]) -> str:
        name, items = self._around(value, value, "[]")
        text = f"[{', '.join(items)}]"
        self.post.append(f"{name}.extend({text})" if name in items else f"{name} = {text}")
        return name

    def _around(self, value: Any, parts: Iterable[Any], empty: str = "None") -> tuple[str, list[str]]:
        """A name for a value that its parts may refer to, and their expressions; it is made first only where one of them is it."""
        name = self._fresh(value, empty)
        at = len(self.post) - 1
        texts = [self.value(part) for part in parts]
        if name not in texts or empty == "None":
            del self.post[at]
        return name, texts

    def _tuple(self, value: tuple[Any, ...]) -> str:
        items = [self.value(v) for v in value]
        return self._fresh(value, f"({', '.join(items)}{',' if len(items) == 1 else ''})")

    def _dict(self, value: dict[Any, Any]) -> str:
        pairs = [f"{self.key(k)}: {self.value(v)}" for k, v in value.items()]
        return self._fresh(value, f"{{{', '.join(pairs)}}}")

    def _mapping(self, value: Any) -> str:
        pairs = ", ".join(f"({self.key(k)}, {self.value(v)})" for k, v in value.items())
        cls = self._class_of(value)
        first = f"{self.value(value.default_factory)}, " if isinstance(value, defaultdict) else ""
        items = f"dict([{pairs}])" if type(value) is Counter else f"[{pairs}]"
        return self._fresh(value, f"{cls}({first}{items})")

    def _set(self, value: Any) -> str:
        members, items = [*value], ", ".join(map(self.key, value))  # as generated code would give them
        if all(map(is_constant, value)) and not same_keys(type(value)(members), members):
            if (made := recipe(value)) is not None:
                head, fillers, late = (part if isinstance(part, int) else self._items(part) for part in made)
                text = f"{self.emit.constant(made_set, 'made_set')}({head}, {fillers}, {late})"
                if type(value) is set:
                    return self._fresh(value, text)
                if same_keys(frozenset(made_set(*made)), members):
                    return self._fresh(value, f"frozenset({text})")
            raise Unsupported("a set is returned or stored whose order another set with its items does not get")
        return self._fresh(value, f"{type(value).__name__}([{items}])")

    def _deque(self, value: Any) -> str:
        items = ", ".join(self.value(v) for v in value)
        return self._fresh(value, f"{self.emit.constant(deque, 'deque')}([{items}], {value.maxlen})")

    def _stream(self, value: Any) -> str:
        """A file in memory, which says what it holds and where it stands."""
        if value.closed:
            raise Unsupported("a file in memory that is closed is returned or stored")
        name = self._fresh(value, f"{self.emit.constant(type(value), type(value).__name__)}()")
        *facts, more = value.__getstate__()
        self.post.append(f"{name}.__setstate__(({', '.join(map(self.value, (*facts, more or None)))}))")
        return name

    def _slice(self, value: slice) -> str:
        return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"

    def _text(self, value: Text) -> str:
        value = value.made()
        parts = [*map(self.value, value.args), *(f"{k}={self.value(v)}" for k, v in value.kwargs.items())]
        return self._fresh(value, f"{self.emit.constant(value.function, 'text')}({', '.join(parts)})")

    def _function(self, value: types.FunctionType) -> str:
        if not self.vm.is_created(value):
            return as_it_is(self, value)
        check_globals(self.vm, value.__globals__)
        cells = [self.cell(c) for c in value.__closure__ or ()]
        defaults = self.value(value.__defaults__) if value.__defaults__ else "None"
        closure = f"({', '.join(cells)},)" if cells else "None"
        make = self.emit.constant(types.FunctionType, "FunctionType")
        code, names = self.emit.constant(value.__code__, "code"), self.emit.constant(value.__globals__, "globals")
        name = self._fresh(value, f"{make}({code}, {names}, {value.__name__!r}, {defaults}, {closure})")
        plain = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, value.__closure__)
        for slot in ("__kwdefaults__", "__qualname__", "__doc__", "__module__", "__annotations__"):
            if getattr(value, slot) != getattr(plain, slot):
                self.post.append(f"{name}.{slot} = {self.value(getattr(value, slot))}")
        if value.__dict__:
            self.post.append(f"{name}.__dict__.update({self.value(dict(value.__dict__))})")
        return name

    def cell(self, cell: types.CellType) -> str:
        """The expression of a closure cell."""
        if not self.vm.is_created(cell):
            return self._user_cell(cell)
        known = self._names.get(id(cell))
        if known is not None:
            return known
        name = self._fresh(cell, f"{self.emit.constant(types.CellType, 'CellType')}()")
        try:
            contents = cell.cell_contents
        except ValueError:
            return name
        self.post.append(f"{name}.cell_contents = {self.value(contents)}")
        return name

    def _origin(self, error: BaseException, name: str) -> None:
        """What an exception says of where it comes from."""
        for slot in ("__cause__", "__context__"):
            if getattr(error, slot) is not None:
                self.post.append(f"{name}.{slot} = {self.value(getattr(error, slot))}")
        if error.__context__ is None and error.__traceback__ is not None:
            self.post.append(f"{name}.__context__ = {self.emit.constant(handled_outside, 'handled_outside')}(None)")
        if error.__suppress_context__ != (error.__cause__ is not None):
            self.post.append(f"{name}.__suppress_context__ = {error.__suppress_context__}")
        if error.__traceback__ is not None:
            self.post.append(f"{name}.__traceback__ = {self.emit.constant(error.__traceback__, 'traceback')}")
        for member in builtin_members(error):
            self.post.append(f"{name}.{member} = {self.value(getattr(error, member))}")

    def _class_of(self, value: Any) -> str:
        cls = type(value)
        return self.value(cls) if self.vm.is_created(cls) else self.emit.constant(cls, cls.__name__)

    def _object(self, value: Any) -> str:
        """An instance that the program made: allocated without its constructor, then filled."""
        cls = type(value)
        name_of = self._class_of(value)
        recipe = self.vm.recipes.get(id(value))
        if recipe is not None:
            function, args, kwargs = recipe
            given = [*map(self.value, args), *(f"{k}={self.value(v)}" for k, v in kwargs.items())]
            name = self._fresh(value, f"{self.emit.constant(function, function.__name__)}({', '.join(given)})")
            if function is not cls:  # it makes all of it
                return name
        elif isinstance(value, torch.jit.ScriptModule):
            raise Unsupported("a module that was made inside the captured code is returned or stored")
        elif isinstance(value, BaseException):
            name = self._fresh(value, f"{name_of}.__new__({name_of}, {', '.join(map(self.value, value.args))})")
            self._origin(value, name)
        elif isinstance(value, dict):
            base = OrderedDict if isinstance(value, OrderedDict) else dict
            name = self._fresh(value, f"{name_of}.__new__({name_of})")
            setter = self.emit.constant(base.__setitem__, "set_item")
            for key in base.keys(value):
                self.post.append(f"{setter}({name}, {self.key(key)}, {self.value(dict.__getitem__(value, key))})")
        elif isinstance(value, list):
            name = self._fresh(value, f"list.__new__({name_of})")
            self.post.append(f"list.extend({name}, [{', '.join(map(self.value, list.__iter__(value)))}])")
        elif isinstance(value, int | float | complex | str | bytes):
            name = self._fresh(value, f"{name_of}.__new__({name_of}, {self.emit.literal(plain_value(value))})")
        elif isinstance(value, set):
            name = self._fresh(value, f"{name_of}.__new__({name_of})")
            self.post.append(f"set.update({name}, [{', '.join(map(self.key, set.__iter__(value)))}])")
        elif cls in (object, types.SimpleNamespace):
            name = self._fresh(value, f"{name_of}()")
        elif cls.__new__ is object.__new__ or not is_opaque_type(cls):
            name = self._fresh(value, f"object.__new__({name_of})")
        else:
            raise Unsupported(f"an object of type {cls.__module__}.{cls.__qualname__} is returned or stored")
        for slot in slots_of(cls):
            if hasattr(value, slot):
                self._set_attribute(name, slot, getattr(value, slot))
        self.own_attributes(value, name)
        return name

    def own_attributes(self, value: Any, name: str) -> None:
        """Statements for what an object's dict holds."""
        attributes = getattr(value, "__dict__", None)
        if attributes:
            pairs = ", ".join(f"{k!r}: {self.value(v)}" for k, v in attributes.items())
            self.post.append(f"{name}.__dict__.update({{{pairs}}})")


def _address(value: Any) -> str:
    return hex(id(value))


_ORDERED: Any = OrderedDict()
_BUILDERS: dict[type, Any] = {
    Scope: Residual._scope,
    list: Residual._list,
    tuple: Residual._tuple,
    dict: Residual._dict,
    **dict.fromkeys((OrderedDict, defaultdict, Counter), Residual._mapping),
    **dict.fromkeys((set, frozenset), Residual._set),
    deque: Residual._deque,
    bytearray: lambda r, v: r._fresh(v, f"bytearray({bytes(v)!r})"),
    slice: Residual._slice,
    types.FunctionType: Residual._function,
    **dict.fromkeys((type({}.keys()), type({}.values()), type({}.items())), Residual._view),
    **{type(view()): Residual._view for view in (_ORDERED.keys, _ORDERED.values, _ORDERED.items)},
    **dict.fromkeys((Linear, Pullback, Transformed), lambda r, v: r._fresh(v, v.text(r))),
    **dict.fromkeys((io.StringIO, io.BytesIO), Residual._stream),
    Identity: lambda r, v: r._fresh(v, f"{r.emit.constant(v.number, 'number_of')}({r.value(v.value)})"),
    Text: Residual._text,
    **BUILDERS,
}
