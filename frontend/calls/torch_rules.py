"""Torch's own Python functions with a meaning of their own: custom functions, parameters, functional calls, cond."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..branches.truths import truth_of
from ..errors import GraphBreak
from ..graph.aside import storage_of
from ..graph.read_sizes import resizes
from ..graph.sym_nodes import check_relation
from ..guards.sameness import is_numpy_number
from ..guards.source import Attr, Const
from ..operators.arrays import as_tensor_of, is_array
from ..state import ASSERTED, Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import is_fake, real_tensors
from ..torch_private.functions import ASSERT_ASYNC, CHECK_TENSOR_ALL, CHECK_WITH
from ..torch_private.symbols import hint_of, is_of_this_call
from ..values import operators
from ..values.kinds import SYMBOLIC, isinstance
from . import contexts
from .registry import Rows, Then
from .torch_calls import torch_call

__all__ = [
    "LEGACY",
    "allclose",
    "check_uncompiled",
    "data_of_numbers",
    "equal",
    "legacy_tensor",
    "new_tensor",
    "parameter",
]

ROWS = Rows()

# Closures of torch's that mark a function as not to be compiled, and modules whose functions look at real tensors or at the device.
_MARKS = {
    "_disable_dynamo.<locals>.inner": "a function is called that torch does not let compile",
    "DisableContext.__call__.<locals>._fn": "a function is called that is marked torch.compiler.disable",
    "_TorchDynamoContext.__call__.<locals>.compile_wrapper": "a function is called that torch.compile has compiled",
}
_MARKING = "mark_compile_region"
_RUN_AS_THEY_ARE: dict[str, str] = {
    "torch._functorch": "a functorch transform (vmap, grad, jacrev) is called",
    "torch._vmap_internals": "torch's older vmap is called",
    "torch._higher_order_ops": "a torch operator that takes Python functions is called",
    "triton.runtime": "a kernel of Triton is started",
}


def check_uncompiled(function: types.FunctionType) -> None:
    """Break at Python functions of torch that have to run as they are."""
    module = function.__globals__.get("__name__", "")
    if module in ("torch._compile", "torch._dynamo.eval_frame") and function.__code__.co_qualname in _MARKS:
        raise GraphBreak(_MARKS[function.__code__.co_qualname])
    if function in (torch.autocast.__enter__, torch.autocast.__exit__):  # capture has its own for those that it entered
        raise GraphBreak("autocast that was made before this graph is entered or left")
    # triton.cdiv and the like only compute; torch.compiler.nested_compile_region only marks.
    if function.__qualname__.startswith("ConstexprFunction.") or function.__code__.co_qualname.startswith(_MARKING):
        return
    if module == "torch._functorch.functional_call":  # plain Python
        return
    for prefix, reason in _RUN_AS_THEY_ARE.items():
        if module == prefix or module.startswith(prefix + "."):
            raise GraphBreak(f"{reason} ({function.__name__})")


@ROWS.rule(contexts.GradMode.__exit__)
def _leave_grad_mode(vm: Interpreter, mode: contexts.GradMode, *_: Any) -> None:
    """A `set_grad_enabled` block that began before a graph break."""
    source = vm.user.source_of(mode)
    if source is not None:
        vm.guards.add("equals", Attr(source, "before"), mode.before)
    contexts.set_grad(vm, mode.before)


@ROWS.rule(nn.functional.dropout)
def _dropout(
    vm: Interpreter, input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False, **kwargs: Any
) -> Any:
    """Where nothing is dropped, eager gives back its argument; torch's Python replacement for symbolic sizes gives a copy."""
    nothing = training is False or type(p) in (int, float) and p == 0
    if nothing and vm.shape_env is not None and is_fake(input) and type(p) is float and 0 <= p <= 1:
        return input
    everything = training is True and not inplace and type(p) in (int, float) and p == 1
    if everything and isinstance(input, Tensor) and not any(type(n) is int and n == 0 for n in input.shape):
        none = vm.call(torch.zeros, ((),), {"dtype": input.dtype, "device": input.device})
        return vm.call(torch.mul, (input, none), {})  # eager draws no numbers then, torch's replacement does
    return torch_call(vm, nn.functional.dropout, (input, p, training, inplace), kwargs)


def _renormed(function: Any) -> Any:
    """A lookup with `max_norm` writes to its weight first, by torch through a detached alias: here, where autograd is told not to look."""
    parameters = inspect.signature(function)

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        try:
            given = parameters.bind(*args, **kwargs)
        except TypeError:
            return torch_call(vm, function, args, kwargs)
        given.apply_defaults()
        named, weight = given.arguments, given.arguments["weight"]
        tracked = isinstance(weight, Tensor) and weight.requires_grad and torch.is_grad_enabled()
        if named["max_norm"] is not None and tracked and isinstance(named["input"], Tensor):
            given_norm = named["max_norm"], named["norm_type"]
            with contexts.grad_mode(vm, False):
                indices = vm.out.call_method("contiguous", (named["input"],), {})
                vm.out.call_function(torch.embedding_renorm_, (weight, indices, *given_norm), {})
            named["max_norm"] = None
        return torch_call(vm, function, given.args, given.kwargs)

    return apply


for _lookup in (nn.functional.embedding, nn.functional.embedding_bag):
    ROWS.rule(_lookup)(_renormed(_lookup))


@ROWS.rule(nn.functional.one_hot, torch.ops.aten.one_hot, torch.ops.aten.one_hot.default)
def _one_hot(vm: Interpreter, tensor: Any, num_classes: Any = -1) -> Any:
    """Eager looks at all classes on a CPU; torch's form for tracing compares them with the numbers that there are."""
    counted = type(num_classes) in (int, torch.SymInt)
    if is_fake(tensor) and tensor.device.type == "cpu" and counted and num_classes >= 0:
        for test, bound, words in ((torch.ge, 0, "non-negative"), (torch.lt, num_classes, "smaller than num_classes")):
            holds = vm.call(torch.all, (vm.call(test, (tensor, bound), {}),), {})
            vm.call(ASSERT_ASYNC, (holds, f"Class values must be {words}."), {})
    return torch_call(vm, nn.functional.one_hot, (tensor, num_classes), {})


@ROWS.rule(nn.functional.interpolate)
def _interpolate(vm: Interpreter, input: Any, *args: Any, **kwargs: Any) -> Any:
    return torch_call(vm, resizes(input), (input, *args), kwargs)


# ---- truths ----


@ROWS.rule(type(torch.ops.aten).__getattr__)
def _operator(vm: Interpreter, namespace: Any, name: str) -> Any:
    """`torch.ops.namespace.name`, the first time that anybody asks for it: torch looks it up and keeps it there."""
    return vm.native(getattr, namespace, name)


@ROWS.rule(torch.is_nonzero)
def _is_nonzero(vm: Interpreter, tensor: Any) -> Any:
    return truth_of(vm, tensor) if isinstance(tensor, Tensor) else torch_call(vm, torch.is_nonzero, (tensor,), {})


@ROWS.rule(torch.equal)
def equal(vm: Interpreter, a: Any, b: Any) -> Any:
    """Of two plain tensors whose sizes guards may ask for; with NaN a tensor is not what it is itself, in some releases."""
    plain = all(isinstance(t, Tensor) and t.layout is torch.strided and not is_composite(t) for t in (a, b))
    known = plain and all(hint_of(n) is not None for n in (*a.shape, *b.shape)) and not vm.overrides.concern((a, b))
    if not known or a.dtype != b.dtype or a.device != b.device or storage_of(a) == storage_of(b):
        return torch_call(vm, torch.equal, (a, b), {})
    if a.shape != b.shape:
        return False
    return truth_of(vm, vm.call(torch.all, (vm.call(torch.eq, (a, b), {}),), {}))


@ROWS.rule(torch.allclose)
def allclose(vm: Interpreter, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator is defined as `isclose(...).all()`."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or vm.overrides.concern((a, b)):
        return torch_call(vm, torch.allclose, (a, b, *args), kwargs)
    return truth_of(vm, vm.call(torch.all, (vm.call(torch.isclose, (a, b, *args), kwargs),), {}))


# ---- parameters ----


def parameter(vm: Interpreter, cls: type, data: Any = None, requires_grad: bool = True) -> Any:
    """`nn.Parameter(data)`: another tensor over the same memory."""
    if torch.is_grad_enabled() or not is_fake(data) or cls is not nn.Parameter:
        raise GraphBreak(f"a {cls.__name__} is constructed inside the captured code")
    made = vm.out.call_method("detach", (data,), {})
    vm.parameters[id(made)] = requires_grad
    made._is_param = True
    return vm.native(made.requires_grad_, requires_grad)


def data_of_numbers(function: Any) -> Any:
    """Functions that make a tensor of Python data; tensors among the data are read."""

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        if is_array(data) and len(args) < 2 and not kwargs.keys() - _OF_ARRAYS:
            return as_tensor_of(vm, function, data, **{k: v for k, v in kwargs.items() if k not in ("data", "obj")})
        if isinstance(data, list | tuple) and any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(data)):
            if function is torch.tensor and len(args) == 1 and not kwargs.keys() - {"dtype", "device"}:
                made = _of_numbers(vm, data, **kwargs)
                if made is not None:
                    return made
            raise GraphBreak(f"torch.{function.__name__} reads the values of tensors")
        if isinstance(data, torch.SymFloat | torch.SymInt) and len(args) < 2 and not kwargs.keys() - _OF_DATA:
            settings = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
            return torch_call(vm, torch.full, ((), data), settings)
        args, kwargs = pytree.tree_map(_known_number, (args, kwargs))
        if len(args) < 2 and kwargs.get("dtype") is None and any(map(is_numpy_number, pytree.tree_leaves(data))):
            with real_tensors():  # the graph is given Python's numbers for NumPy's, which have a type of their own
                kwargs["dtype"] = torch.tensor(pytree.tree_map(hint_of, data)).dtype
        return torch_call(vm, function, args, kwargs)

    return apply


_OF_DATA = {"data", "obj", "dtype", "device"}
_OF_ARRAYS = _OF_DATA | {"requires_grad"}


def new_tensor(vm: Interpreter, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new_tensor(data)`."""
    args, kwargs = pytree.tree_map(_known_number, (args, kwargs))
    return vm.out.call_method("new_tensor", (tensor, *args), kwargs)


def _known_number(value: Any) -> Any:
    """An int that changes between calls as what it is in this one, which is guarded: of a symbol torch takes the lower 32 bits."""
    return int(value) if isinstance(value, torch.SymInt) and is_of_this_call(value) else value


def _of_numbers(vm: Interpreter, data: Any, dtype: Any = None, device: Any = None) -> Any:
    """`torch.tensor` of tensors of one kind that have no dimensions: a copy of their values on another device; None of anything else."""
    if not all(isinstance(t, Tensor) and vm.out.is_known(t) and not is_composite(t) for t in data):
        return None
    kinds = {(t.dtype, t.device, t.dim(), t.requires_grad) for t in data}
    if len(kinds) != 1 or data[0].dim() or data[0].requires_grad or vm.overrides.concern(tuple(data)):
        return None
    target = torch.get_default_device() if device is None else device
    return vm.call(Tensor.to, (vm.call(torch.stack, (list(data),), {}), target, dtype or data[0].dtype), {})


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    ROWS.rule(_function)(data_of_numbers(_function))
LEGACY = type(torch.FloatTensor)


def legacy_tensor(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.Tensor(...)`, `torch.LongTensor(...)`: of numbers, or of sizes."""
    default = torch.get_default_dtype()
    if not kwargs and (cls is Tensor or cls.__module__ == "torch" and not cls.is_cuda and not cls.is_sparse):
        dtype = default if cls is Tensor else cls.dtype
        if len(args) == 1 and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
            return vm.call(torch.tensor, args, {"dtype": dtype})
        if all(isinstance(a, int | torch.SymInt) for a in args):
            return vm.call(torch.empty, (args or (0,),), {"dtype": dtype})
    raise GraphBreak(f"a {cls.__name__} is constructed inside the captured code")


# ---- functions that call functions ----


@ROWS.rule(torch.cond)
def _cond(vm: Interpreter, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if not isinstance(pred, bool):
        raise GraphBreak("torch.cond depends on a tensor's value")
    return vm.call(true_fn if pred else false_fn, tuple(operands), {})


@ROWS.rule(torch.func.functional_call)
def _functional_call(
    vm: Interpreter,
    module: Any,
    parameters: Any,
    args: Any = None,
    kwargs: Any = None,
    *,
    tie_weights: Any = True,
    strict: Any = False,
) -> Any:
    """The module's members are covered by writes while it is called."""
    given = _given(vm, parameters)
    members = _members(module)
    if vm.user.source_of(module) is None or strict or not given.keys() <= members.keys():
        raise GraphBreak("functional_call of a module that capture made, or with names that the module has not")
    by_tensor: dict[int, list[str]] = {}
    for name, (owner, attr) in members.items():
        by_tensor.setdefault(id(getattr(owner, attr)), []).append(name)
    for names in by_tensor.values() if tie_weights else ():
        values = {id(given.get(name)) for name in names}
        if sum(name in given for name in names) > 1 and len(values) > 1:
            raise GraphBreak("functional_call is given several values for tied members")  # an error
    wanted = dict(given)
    for name, value in given.items():
        owner, attr = members[name]
        for other in by_tensor[id(getattr(owner, attr))] if tie_weights else ():
            wanted.setdefault(other, value)
    writes = vm.effects.attrs
    before = {}
    for name, value in wanted.items():
        owner, attr = members[name]
        if owner is not module and vm.user.source_of(owner) is None:
            vm.user.track(owner, owner, Const(owner, name.rpartition(".")[0]))
        before[id(owner), attr] = writes.get((id(owner), attr))
        writes[id(owner), attr] = (owner, value)
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    try:
        return vm.call(module, args, kwargs or {})
    finally:
        for (name, value), (key, entry) in zip(wanted.items(), before.items(), strict=True):
            now = writes[key][1] if key in writes else None
            if not isinstance(now, Tensor):
                raise GraphBreak(f"{name} is deleted or set to no tensor inside functional_call")
            if now is not value and name in given and not isinstance(parameters, tuple | list):
                operators.set_item(
                    vm, parameters, name, now
                )  # torch hands a member's new value back in the caller's dict
            if entry is None:
                del writes[key]
            else:
                writes[key] = entry


def _given(vm: Interpreter, parameters: Any) -> dict[str, Tensor]:
    many = parameters if isinstance(parameters, tuple | list) else (parameters,)
    if len(many) != 1 and sum(map(len, map(vm.materialize, many))) != len(
        {n for one in many for n in vm.materialize(one)}
    ):
        raise GraphBreak("functional_call is given a name twice")  # an error
    return {name: value for one in many for name, value in vm.materialize(one).items()}


def _members(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where each parameter and buffer is: by its full name, the module that holds it and its name there."""
    found = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for kind in (owner._parameters, owner._buffers):
            for name, value in kind.items():
                if value is not None:
                    found[f"{prefix}.{name}" if prefix else name] = (owner, name)
    return found


@ROWS.rule(torch.jit.isinstance)
def _jit_isinstance(vm: Interpreter, obj: Any, target_type: Any) -> Any:
    """Asks for the very classes of the values inside: a symbol is of another one than the number it stands for."""
    held = vm.materialize(obj)
    if any(isinstance(part, SYMBOLIC) for part in pytree.tree_leaves(held)):
        raise GraphBreak("torch.jit.isinstance is asked of numbers that change between calls")
    return vm.native(torch.jit.isinstance, held, target_type)


@ROWS.rule(CHECK_WITH)
def _check_with(vm: Interpreter, error_type: Any, cond: Any, message: Any = None) -> Any:
    """`torch._check` and its kin."""
    if check_relation(vm, cond):
        return None
    truth = vm.truth(cond) if isinstance(cond, torch.SymBool) else cond
    return Then(CHECK_WITH, (error_type, truth, message), {}, body=True)


@ROWS.rule(CHECK_TENSOR_ALL)
def _check_tensor_all(vm: Interpreter, error_type: Any, cond: Any, message: Any = None) -> Any:
    """A check of all elements of a tensor."""
    if not isinstance(cond, Tensor) or cond.dtype is not torch.bool:
        return Then(CHECK_TENSOR_ALL, (error_type, cond, message), {}, body=True)  # an error
    truth = vm.decision(vm.call(torch.all, (cond,), {}), ASSERTED)
    return Then(CHECK_WITH, (error_type, truth, message), {})
