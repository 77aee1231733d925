"""Tables of what capture knows about particular functions: builtins, torch's questions, what is refused and why."""

from __future__ import annotations

import builtins
import collections
import contextvars
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import sys
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..branches.truths import truth_of
from ..bytecode.exceptions import first_context, note_missing, traceback_of
from ..bytecode.generator import InterpretedGenerator
from ..classes.instances import is_instance, is_subclass
from ..classes.making import call_metaclass
from ..errors import GraphBreak, Unsupported, UserRaise
from ..gradients import rules as gradient_rules
from ..guards import process_state
from ..guards.source import Const, Fetch
from ..operators import METHODS as OPERATOR_METHODS
from ..state import ASSERTED, Interpreter
from ..subclasses import jagged
from ..subclasses.tensors import as_subclass
from ..torch_private.dynamo import compiling_questions, size_marks
from ..torch_private.fake import FakeTensor
from ..torch_private.functions import (
    ASSOCIATIVE_SCAN,
    DISPATCH_MODES,
    FUNCTION_MODES,
    IS_COMPILING,
    IS_SCRIPTING,
    LOG_USAGE,
    MODULE_APPLY,
    TRACING_STATE,
)
from ..torch_private.guards import function_mode_count
from ..torch_private.symbols import sym_sqrt
from ..values import object as objects
from ..values import operators
from ..values.constant import is_constant
from ..values.container import InstanceDict, LazyDict
from ..values.function import trampoline
from ..values.identity import PLAIN_KINDS, Identity
from ..values.kinds import isinstance
from ..values.lazy import Unread
from ..values.namespaces import load_cell
from ..values.protocol import Stepping, answered
from ..values.text import Text, is_late, late_text
from . import higher_order, tables, torch_rules
from .contexts import RealContext
from .registry import Rows, Then
from .visibility import check_operands, check_text, identity, refuse_opaque

ROWS = Rows()
FRONTEND = __name__.rsplit(".", 2)[0]


def is_leaf_module(name: str) -> bool:
    """Whether Python functions of this module are nodes of the graph."""
    return name in tables.LEAF_MODULES


def is_native_class(cls: type) -> bool:
    """Whether a Python class with `__new__` is constructed as it is (a value class of the library)."""
    return cls.__module__ in ("torch", "pathlib", "fractions", "decimal", "enum", "weakref", "inspect")


def check_module(module: str | None, name: str) -> None:
    """Break before code of a module whose functions have effects; a class that text without `__name__` has made has none."""
    module = module or ""
    if module in tables.WITHOUT_EFFECTS and name.partition(".")[0] in tables.WITHOUT_EFFECTS[module]:
        return
    reason = tables.REFUSED_MODULES.get(module.partition(".")[0]) or tables.REFUSED_MODULES.get(module)
    if reason is not None:
        raise GraphBreak(reason)


def refusal(function: Any) -> str:
    """Why the graph breaks at a native function that has no row."""
    name, module = function.__name__, getattr(function, "__module__", None) or ""
    if module == "builtins" and name in tables.REFUSED_BUILTINS:
        return tables.REFUSED_BUILTINS[name]
    if module in ("posix", "_thread"):
        return f"the operating system is called ({name})"
    owner = getattr(function, "__self__", None)
    if not module and owner is not None and not isinstance(owner, types.ModuleType):
        return f"a C method that capture does not know: {type(owner).__name__}.{name}"
    top = module.partition(".")[0]
    return (
        tables.REFUSED_MODULES.get(top) or f"a C function that capture does not know is called: {module or '?'}.{name}"
    )


def iterable(vm: Interpreter, value: Any) -> Any:
    """`value` in a form that C code can iterate without running the user's Python itself."""
    if type(value) in (list, tuple, str, dict, set, frozenset, range, int, bool, type(None), types.FunctionType):
        return value
    if isinstance(value, LazyDict | InstanceDict):
        return value
    own_iter = objects.find_method(type(value), "__iter__")
    if own_iter is None and vm.tracked_mapping(value) is not None:
        return vm.tracked_mapping(value)
    items = vm.user.items_of(value) if own_iter is None else None
    if items is not None:
        return items
    refuse_opaque(vm, value, "iteration")
    if objects.lookup(type(value), "__iter__")[1] is None and not operators.is_old_sequence(value):
        return value  # which C code refuses
    if isinstance(value, Tensor) or own_iter or operators.is_old_sequence(value):
        value = vm.iterate(value)
    if objects.find_method(type(value), "__next__"):
        return Stepping(vm, value)
    return value


# ---- builtins that look at types and attributes ----


def _real_kinds(kinds: Any) -> Any:
    """The classes of an `isinstance` without that of fake tensors."""
    if type(kinds) is tuple:
        return tuple(map(_real_kinds, kinds))
    return () if kinds is FakeTensor else kinds


@ROWS.rule(builtins.isinstance)
def _isinstance(vm: Interpreter, obj: Any, kinds: Any, /) -> bool:
    if type(kinds) is tuple:
        return any(_isinstance(vm, obj, kind) for kind in kinds)
    if vm.type_of(obj) is kinds:
        return True
    if isinstance(kinds, type):
        check = objects.find_method(type(kinds), "__instancecheck__")
        if check is not None and not vm.is_library(check.__module__):
            return vm.truth(vm.call(check, (kinds, obj), {}))
    if isinstance(obj, LazyDict) or type(obj) in PLAIN_KINDS:
        return is_subclass(vm, vm.type_of(obj), kinds)
    if isinstance(obj, Tensor) and (known := vm.overrides.known.get(id(obj))) is not None:
        parameter = known.real is not None and getattr(known.real, "_is_param", False) is True
        return parameter and kinds is nn.Parameter or is_subclass(vm, known.kind, kinds)
    if isinstance(obj, Tensor):  # what stands for it here is none of the program's business
        kinds = _real_kinds(kinds)
    if isinstance(obj, InterpretedGenerator) and kinds in (types.GeneratorType, collections.abc.Generator):
        return True
    return is_instance(vm, obj, kinds)


@ROWS.rule(issubclass)
def _issubclass(vm: Interpreter, cls: Any, kinds: Any, /) -> bool:
    if type(kinds) is tuple:
        return any(_issubclass(vm, cls, kind) for kind in kinds)
    if isinstance(kinds, type):
        check = objects.find_method(type(kinds), "__subclasscheck__")
        if check is not None and not vm.is_library(check.__module__):
            return vm.truth(vm.call(check, (kinds, cls), {}))
    return is_subclass(vm, cls, kinds)


def _stays(module: nn.Module, fn: Any, recurse: bool = True) -> bool:
    """Whether what `module._apply(fn)` would make is there already. Capture runs this as code of the program's."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for name in [*module._parameters, *module._buffers]:
        if (tensor := getattr(module, name)) is None:
            continue
        with torch.no_grad():
            if fn(tensor) is not tensor:
                return False
            if tensor.grad is not None and fn(tensor.grad) is not tensor.grad:
                return False
    return True


@ROWS.rule(MODULE_APPLY)
def _apply(vm: Interpreter, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`module.to(...)` and its like give parameters other data, or leave all as it is."""
    if not vm.is_created(module):
        if vm.inline(_stays, (module, *args), kwargs) is True:  # type: ignore[arg-type]
            return module
        raise GraphBreak(
            "the parameters of a module are moved or cast", "do it once, before the compiled function is called"
        )
    return Then(MODULE_APPLY, (module, *args), kwargs, body=True)


@ROWS.rule(type)
def _type(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    return call_metaclass(vm, type, args, kwargs) if len(args) in (1, 3) else vm.native(type, *args, **kwargs)


@ROWS.rule(super)
def _super(vm: Interpreter, *args: Any) -> Any:
    if len(args) not in (0, 2):
        vm.native(super, *args)  # which refuses most
        raise GraphBreak("super() is called with one argument")
    cls, first = args or _own_super(vm)
    if not isinstance(cls, type):
        raise UserRaise(TypeError(f"super() argument 1 must be a type, not {vm.type_of(cls).__name__}"))
    if issubclass(vm.type_of(first), cls) or isinstance(first, type) and issubclass(first, cls):
        return objects.Super(cls, first)
    if first is None:
        raise GraphBreak("super() is called without an object")
    shown = vm.call(getattr, (first, "__class__", None), {})
    if not isinstance(shown, type) or not issubclass(shown, cls):
        vm.native(super, cls, first if isinstance(first, type) else type(vm.type_of(first).__name__, (), {})())
    return objects.Super(cls, first, shown)


@ROWS.rule(super.__init__)
def _init_super(vm: Interpreter, sup: Any, *args: Any) -> None:
    """A second `__init__` of the same object."""
    if type(sup) is not objects.Super:
        raise GraphBreak("super.__init__ is called")
    made = _super(vm, *args)
    sup.cls, sup.obj, sup.shown = made.cls, made.obj, made.shown


def _own_super(vm: Interpreter) -> tuple[Any, Any]:
    """The class and the object of `super()` in the function that runs."""
    frame = vm.frames[-1]
    name = frame.code.co_varnames[0] if frame.code.co_argcount else ""
    first = frame.fast.get(name, objects.MISSING)
    if not name or first is objects.MISSING:
        raise UserRaise(RuntimeError("super(): arg[0] deleted" if name else "super(): no arguments"))
    if type(first) is Unread:
        first = first.read()
    if isinstance(first, types.CellType) and name in frame.code.co_cellvars:
        first = load_cell(vm, first, name)
    cell = frame.fast.get("__class__")
    if not isinstance(cell, types.CellType) or cell == types.CellType():
        raise UserRaise(RuntimeError(f"super(): {'empty __class__ cell' if cell else '__class__ cell not found'}"))
    if not isinstance(cell.cell_contents, type):
        raise UserRaise(RuntimeError(f"super(): __class__ is not a type ({vm.type_of(cell.cell_contents).__name__})"))
    return cell.cell_contents, first


@ROWS.rule(getattr)
def _getattr(vm: Interpreter, obj: Any, name: str, default: Any = objects.MISSING, /) -> Any:
    try:
        return objects.load_attr(vm, obj, name)
    except UserRaise as raised:
        if default is not objects.MISSING and isinstance(raised.value, AttributeError):
            return default
        note_missing(vm, raised.value, obj, name)
        raise


@ROWS.rule(hasattr)
def _hasattr(vm: Interpreter, obj: Any, name: str, /) -> bool:
    try:
        objects.load_attr(vm, obj, name)
    except UserRaise as raised:
        if isinstance(raised.value, AttributeError):
            return False
        raise
    return True


ROWS.rule(setattr)(objects.store_attr)
ROWS.rule(delattr)(objects.delete_attr)


@ROWS.rule(len)
def _len(vm: Interpreter, obj: Any, /) -> Any:
    method = objects.find_method(type(obj), "__len__")
    if isinstance(obj, Tensor):
        own = vm.overrides.own(obj, "__len__")
        return operators.length_of(vm, obj) if own is None else answered(vm, len, obj, "__len__", vm.call(own, (), {}))
    if method is not None:
        return answered(vm, len, obj, "__len__", vm.call(method, (obj,), {}))
    mapping = vm.tracked_contents(obj)
    if mapping is None:
        refuse_opaque(vm, obj, "len()")
    return vm.native(len, obj if mapping is None else mapping)


@ROWS.rule(iter)
def _iter(vm: Interpreter, obj: Any, /, *sentinel: Any) -> Any:
    return vm.native_recorded(iter, trampoline(vm, obj), *sentinel) if sentinel else vm.iterate(obj)


@ROWS.rule(next)
def _next(vm: Interpreter, iterator: Any, default: Any = objects.MISSING, /) -> Any:
    more, value = vm.advance(iterator)
    if more:
        return value
    if default is not objects.MISSING:
        return default
    raise UserRaise(StopIteration(value))


@ROWS.rule(callable)
def _callable(vm: Interpreter, obj: Any, /) -> bool:
    owner = objects.lookup(vm.type_of(obj), "__call__")[1]
    return owner is not None if isinstance(obj, Tensor) else callable(obj)


@ROWS.rule(id)
def _id(vm: Interpreter, obj: Any, /) -> Any:
    """Of what guards hold by identity: that object is alive as long as the guard, and no other has its address."""
    source = vm.user.source_of(obj)
    if source is not None and not isinstance(obj, Tensor) and vm.is_library_frame(vm.frames[-1]):
        vm.guards.add("is", source, obj)  # a library's table of objects, such as the optimizers of a gradient scaler
        return id(vm.user.by_value[id(obj)].real)
    if isinstance(source, Const) and not isinstance(obj, Tensor):
        return id(obj)
    if isinstance(obj, (InterpretedGenerator, *operators.SYMBOLIC)):
        raise Unsupported("id() of an object is read")
    return Identity(vm, obj)


def _text(name: str, function: Any) -> Any:
    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        if not args or kwargs:
            return vm.native(function, *args, **kwargs)
        value = args[0]
        if is_late(vm, value):
            return value if type(value) is Text and function is str else late_text(vm, function, args, {})
        if function is str and isinstance(value, BaseException):
            args_of = vm.load_attr(value, "args")
            if len(args_of) == 1 and type(args_of[0]) is Text and objects.lookup(type(value), name)[1] is BaseException:
                return args_of[0]
        names = (name, "__repr__") if name == "__str__" else (name,)
        for special in names:
            method = objects.find_method(type(value), special)
            if method is not None and not vm.is_library(method.__module__):
                return answered(vm, function, value, special, vm.call(method, (value,), {}))
            if objects.lookup(type(value), special)[1] not in (None, object):
                break
        check_text(vm, value)
        check_operands(vm, args, f"{function.__name__}()")
        return vm.native(function, *map(vm.materialize, args))

    return apply


_str = ROWS.rule(str)(_text("__str__", str))
ROWS.rule(repr)(_text("__repr__", repr))


@ROWS.rule(format)
def _format(vm: Interpreter, value: Any, spec: str = "") -> Any:
    if is_late(vm, value):
        return value if type(value) is Text and spec == "" else late_text(vm, format, (value, spec), {})
    method = objects.find_method(type(value), "__format__")
    if method is not None and not vm.is_library(method.__module__):
        return answered(vm, format, value, "__format__", vm.call(method, (value, spec), {}), spec)
    if spec == "" and not is_constant(value):
        return _str(vm, value)
    check_operands(vm, (value,), "format()")
    return vm.native(format, value, spec)


ROWS.rule(object.__getattribute__)(lambda vm, obj, name: objects.generic_attr(vm, obj, type(obj), name))
ROWS.rule(object.__setattr__)(objects.generic_store)
ROWS.rule(object.__delattr__)(objects.generic_delete)


@ROWS.rule(object.__init__)
def _object_init(vm: Interpreter, obj: Any, /, *args: Any, **kwargs: Any) -> None:
    """More than the object is refused where nobody but `object` has the arguments, or another `__init__` should have taken them."""
    if args or kwargs:
        kind = vm.type_of(obj)
        new, init = (objects.lookup(kind, name)[0] for name in ("__new__", "__init__"))
        if init is not object.__init__ or new is object.__new__:
            who = "object" if init is not object.__init__ else kind.__name__
            text = f"{who}.__init__() takes exactly one argument (the instance to initialize)"
            raise UserRaise(TypeError(text))


ROWS.rule(types.ModuleType.__getattribute__, type.__getattribute__)(objects.load_attr)


@ROWS.rule(bool)
def _bool(vm: Interpreter, value: Any = False, /) -> Any:
    return truth_of(vm, value)


ROWS.rule(math.sqrt)(lambda vm, x: vm.native(sym_sqrt if isinstance(x, torch.SymInt) else math.sqrt, x))


for _symbol, (_function, _) in operators.BINARY.items():
    ROWS.rule(_function)(functools.partial(lambda s, vm, a, b: operators.binary(vm, s, a, b), _symbol))
for _symbol, (_function, *_rest) in operators.COMPARE.items():
    ROWS.rule(_function)(functools.partial(lambda s, vm, a, b: operators.compare(vm, s, a, b), _symbol))
for _symbol, (_function, _) in operators.UNARY.items():
    ROWS.rule(_function)(functools.partial(lambda s, vm, a: operators.unary(vm, s, a), _symbol))
ROWS.rule(operator.getitem)(operators.get_item)
ROWS.rule(operator.setitem)(operators.set_item)
ROWS.rule(operator.contains)(operators.contains)
ROWS.rule(operator.is_)(identity)
ROWS.rule(operator.is_not)(lambda vm, a, b: operators.unary(vm, "not", identity(vm, a, b)))
ROWS.rule(operator.not_)(lambda vm, a: operators.unary(vm, "not", a))
ROWS.rule(operator.truth)(truth_of)


# ---- questions that libraries ask ----


def _is_compiling(vm: Interpreter) -> bool:
    """Optimizers of torch's compute otherwise where they are compiled, to help torch.compile: capture follows what they do in eager."""
    vm.told.asked = True
    return vm.told.refused is None and not str(vm.frames[-1].globals.get("__name__", "")).startswith("torch.optim.")


ROWS.rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, IS_COMPILING)(_is_compiling)
ROWS.late(lambda rows: rows.rule(*compiling_questions())(_is_compiling))
ROWS.rule(torch.jit.is_scripting)(lambda vm: False)
ROWS.rule(torch.jit.is_tracing)(lambda vm: False)
ROWS.rule(TRACING_STATE)(lambda vm: None)
ROWS.rule(torch.compiler.is_exporting)(lambda vm: vm.exporting)
ROWS.rule(torch.compiler.cudagraph_mark_step_begin)(lambda vm: None)
# Inside captured code: the function is interpreted, which comes to the same.
ROWS.rule(torch.compiler.allow_in_graph)(lambda vm, function: function)
ROWS.rule(IS_SCRIPTING)(lambda vm: False)
ROWS.rule(torch._assert)(lambda vm, condition, message="": _assert(vm, condition, message, ASSERTED))
ROWS.rule(torch.is_inference)(lambda vm, value: vm.call_tensor_method(value, "is_inference", (), {}))
ROWS.rule(torch.is_tensor)(lambda vm, value: isinstance(value, Tensor))
ROWS.rule(torch.nn.attention.sdpa_kernel)(lambda vm, *a, **k: RealContext(torch.nn.attention.sdpa_kernel(*a, **k)))


@ROWS.rule(DISPATCH_MODES)
def _dispatch_modes(vm: Interpreter) -> int:
    """Nothing is captured under a dispatch mode; the one that is active now is capture's own."""
    vm.guards.add("equals", process_state.Answer(DISPATCH_MODES), 0)
    return 0


@ROWS.rule(FUNCTION_MODES)
def _function_modes(vm: Interpreter) -> int:
    inside = [mode for mode in vm.overrides.modes if isinstance(mode, TorchFunctionMode)]
    return function_mode_count() + len(inside)  # guarded in every entry


ROWS.rule(LOG_USAGE)(lambda vm, *a: None)
ROWS.rule(inspect.currentframe)(lambda vm: _refuse("the call stack is inspected"))
ROWS.rule(builtins.__import__)(lambda vm, *a, **k: vm.native(builtins.__import__, *a, **k))


@ROWS.rule(torch.is_inference_mode_enabled)
def _is_inference_mode_enabled(vm: Interpreter) -> bool:
    vm.out.asked = True
    return vm.inference or vm.inferred.on


@ROWS.rule(torch.set_default_dtype)
def _set_default_dtype(vm: Interpreter, dtype: Any) -> None:
    vm.defaults.set_dtype(dtype)


@ROWS.rule(torch.set_default_device)
def _set_default_device(vm: Interpreter, device: Any) -> None:
    vm.defaults.set_device(device)


@ROWS.rule(torch.get_default_device)
def _get_default_device(vm: Interpreter) -> Any:
    return vm.defaults.get_device() or process_state.ask(vm, torch.get_default_device, (), {})


ROWS.describe(torch.inference_mode.__exit__, refused="inference mode is left")


def _refuse(reason: str) -> Any:
    raise Unsupported(reason)


def _assert(vm: Interpreter, condition: Any, message: Any, at: int | None = None) -> None:
    if not vm.decision(condition, at):
        raise UserRaise(AssertionError(message))


ROWS.late(lambda rows: rows.rule(*size_marks())(lambda vm, *args, **kwargs: None))


# ---- library functions with a meaning of their own ----


@ROWS.rule(BaseException.with_traceback)
def _with_traceback(vm: Interpreter, error: BaseException, trace: Any) -> BaseException:
    if vm.user.source_of(error) is None or not isinstance(trace, types.TracebackType | None):
        return vm.native(BaseException.with_traceback, error, trace)
    objects.store_attr(vm, error, "__traceback__", trace)
    return error


@ROWS.rule(sys.exc_info)
def _exc_info(vm: Interpreter) -> Any:
    error = vm.current_error
    if error is not None:
        return type(error), error, traceback_of(vm, error)
    first_context(vm)
    return None, None, None


ROWS.rule(sys.exception)(lambda vm: _exc_info(vm)[1])
for _function in (dataclasses.fields, dataclasses.is_dataclass):
    ROWS.rule(_function)(functools.partial(lambda f, vm, value: vm.native(f, value), _function))


@ROWS.rule(functools.wraps)
def _wraps(vm: Interpreter, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
    def apply(wrapper: Any) -> Any:
        return vm.native(functools.update_wrapper, wrapper, wrapped, *args, **kwargs)

    return apply


@ROWS.rule(itertools.chain.from_iterable)
def _chain_nested(vm: Interpreter, cls: type, values: Any) -> Any:
    return itertools.chain.from_iterable(map(functools.partial(iterable, vm), Stepping(vm, vm.iterate(values))))


@ROWS.rule(nn.Module.__init__)
def module_init(vm: Interpreter, module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`nn.Module.__init__` of a module that the program makes."""
    if not vm.is_created(module):
        raise Unsupported("a module of the caller's is initialised again")
    vm.native(nn.Module.__init__, module)


def _context_get(vm: Interpreter, variable: contextvars.ContextVar[Any], *default: Any) -> Any:
    where = Const(variable, variable.name)
    if _is_unset(variable):
        vm.guards.add("equals", Fetch(_is_unset, where), True)
        if default:
            return default[0]
    return vm.user.wrap(vm.native(contextvars.ContextVar.get, variable), Fetch(contextvars.ContextVar.get, where))


def _is_unset(variable: contextvars.ContextVar[Any]) -> bool:
    return variable.get(_is_unset) is _is_unset  # which no program puts there


def _state_refused(vm: Interpreter, variable: Any, *args: Any) -> Any:
    raise Unsupported(f"a context variable is changed ({variable.name})")


ROWS.rule(contextvars.ContextVar.get)(_context_get)
ROWS.rule(contextvars.ContextVar.set, contextvars.ContextVar.reset)(_state_refused)


# ---- tensor methods with a meaning of their own ----


def _fact(name: str) -> Any:
    return lambda vm, tensor, *args, **kwargs: vm.native(getattr(tensor, name), *args, **kwargs)


def _new_type(vm: Interpreter, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not args and not kwargs:
        return vm.native(tensor.type)
    return vm.out.call_method("type", (tensor, *args), kwargs)


# What tensors say of themselves.
_FACTS = """
size dim numel stride element_size is_contiguous is_floating_point is_complex is_conj is_neg get_device is_signed is_same_size
dim_order
"""
TENSOR_METHODS: dict[str, Any] = {
    "type": _new_type,
    "__iter__": operators.rows_of,
    "__len__": operators.length_of,
    "__hash__": lambda vm, tensor: _refuse("hash() of a tensor"),
    "as_subclass": as_subclass,
    "__getitem__": operators.item_of,
    "__setitem__": operators.set_item_of,
    "__bool__": operators.truth_as_torch,
    "allclose": torch_rules.allclose,
    "equal": torch_rules.equal,
    "is_nonzero": truth_of,
    "unbind": jagged.unbind,
    "new_tensor": torch_rules.new_tensor,
}
TENSOR_METHODS |= {name: _fact(name) for name in _FACTS.split()}
TENSOR_METHODS |= {
    "nelement": TENSOR_METHODS["numel"],
    "ndimension": TENSOR_METHODS["dim"],
} | (gradient_rules.TENSOR_METHODS | OPERATOR_METHODS)
ROWS.rule(ASSOCIATIVE_SCAN)(higher_order.associative_scan)
