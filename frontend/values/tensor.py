"""Tensors: fake twins whose methods and attributes become nodes of the graph."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..distributed.tensors import METHODS, check_attribute
from ..errors import GraphBreak, Unsupported, UserRaise
from ..foreign.calls import load as load_foreign
from ..gradients.grads import read_grad, write_grad
from ..guards.source import Attr, Const, Fetch, Item
from ..state import Interpreter
from ..torch_private.dispatch import storage_key
from ..torch_private.dtensor import is_shared
from ..torch_private.wrapped import is_wrapped
from .kinds import isinstance

__all__ = ["ASKED", "TensorMethod", "asked", "load_tensor_attr", "rely_on_method", "store_tensor_attr", "tensor_class"]


class TensorMethod:
    """`tensor.name`, not called yet. Calling it records a `call_method` node."""

    __slots__ = ("__self__", "__name__", "vm")

    def __init__(self, vm: Interpreter, tensor: Tensor, name: str) -> None:
        self.vm = vm
        self.__self__ = tensor
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.vm.call_tensor_method(self.__self__, self.__name__, args, kwargs)


# Facts that the guards of a tensor cover: reading them gives a constant (or a symbolic size).
_FACTS = frozenset(
    """
    shape dtype device ndim requires_grad layout is_cuda is_cpu is_mps is_xpu is_meta is_sparse is_quantized is_mkldnn is_nested
    is_complex itemsize nbytes is_sparse_csr is_xla is_vulkan is_ipu is_maia is_mtia
    """.split()  # noqa: SIM905
)
# Facts that these guards do not tell: the tensor itself is asked, now and in each call.
ASKED: dict[str, Callable[[Tensor], Any]] = {
    "is_leaf": operator.attrgetter("is_leaf"),
    "output_nr": operator.attrgetter("output_nr"),
    "retains_grad": operator.attrgetter("retains_grad"),
    "names": operator.attrgetter("names"),
    "storage_offset": Tensor.storage_offset,
    "is_shared": Tensor.is_shared,
    "is_pinned": Tensor.is_pinned,
    "is_inference": Tensor.is_inference,
    "_is_view": Tensor._is_view,
}
_COMPUTED_FACTS = ("is_leaf", "storage_offset", "names")  # what a fake tensor tells as a real one would
_COMPUTED = frozenset(["T", "mT", "H", "mH", "real", "imag", "data"])
_REFUSED = {
    "_base": "a tensor's view base is read (_base)",
    "_version": "a tensor's version counter is read (_version)",
    "__array_interface__": "NumPy reads a tensor",
    "__cuda_array_interface__": "a foreign library reads a tensor",
}


def tensor_class(vm: Interpreter, tensor: Tensor) -> type:
    """`type(tensor)` as the program would see it."""
    if (kind := vm.overrides.kind_of(tensor)) is not None:
        return kind  # type: ignore[no-any-return]
    info = vm.out.inputs.get(id(tensor))
    if info is not None:
        return type(info.real)
    if is_shared(tensor) or is_wrapped(tensor):
        return type(tensor)
    return torch.nn.Parameter if getattr(tensor, "_is_param", False) else Tensor


def load_tensor_attr(vm: Interpreter, tensor: Tensor, name: str) -> Any:
    """`tensor.name`."""
    found, value = vm.effects.attr(tensor, name)
    if found:
        return value
    if (foreign := vm.foreign.of(tensor)) is not None:
        value = load_foreign(vm, foreign, name)
        if value is not NotImplemented:
            return value
    if is_shared(tensor):
        value = check_attribute(vm, tensor, name)
        if value is not NotImplemented:
            return value
        if name in METHODS:
            return TensorMethod(vm, tensor, name)
    if name == "nbytes":
        return tensor.numel() * tensor.element_size()
    if name in ASKED and hasattr(Tensor, name) and not callable(getattr(Tensor, name)):
        return asked(vm, tensor, name)
    if name in _FACTS:
        value = vm.native(getattr, tensor, name)
        return TensorMethod(vm, tensor, name) if callable(value) else value
    if name in _COMPUTED:
        return vm.out.call_function(getattr, (tensor, name), {})
    if name == "__class__":
        return tensor_class(vm, tensor)
    if name in _REFUSED:
        raise Unsupported(_REFUSED[name])
    if name == "grad":
        return read_grad(vm, tensor)
    if name == "grad_fn":
        return _grad_fn(vm, tensor)
    static = getattr(Tensor, name, None)
    if static is not None and callable(static):
        rely_on_method(vm, name)
        return TensorMethod(vm, tensor, name)
    if static is not None:
        raise Unsupported(f"the tensor attribute {name!r} is read")
    return _user_attr(vm, tensor, name)


def asked(vm: Interpreter, tensor: Tensor, name: str) -> Any:
    """A fact that the guards of tensors do not cover, with a guard of its own.

    That of a computed tensor follows from the same facts of the inputs, or breaks the graph.
    """
    info, read = vm.out.inputs.get(id(tensor)), ASKED[name]
    if info is None and vm.branches.choices.is_one_of(tensor):
        raise GraphBreak(f"a tensor is asked for {name} that is one of two, by a tensor's value")
    if info is not None and vm.out.version(info) == info.version:
        value = vm.dynamic.offset(info) if name == "storage_offset" else read(info.real)
        inputs = [info]
    elif name == "is_inference" and not vm.inference and info is None:
        return _is_inference(vm, tensor)
    elif name in _COMPUTED_FACTS and not vm.inference:
        value = vm.native(read, tensor)
        inputs = [i for i in vm.out.inputs.values() if isinstance(i.fake, Tensor)]
    else:
        raise GraphBreak(f"a computed tensor is asked for {name}")
    for given in inputs:
        offset = vm.dynamic.offset(given) if name == "storage_offset" else None
        if not isinstance(offset, torch.SymInt):  # else an equation says what it is
            vm.guards.add("equals", Fetch(read, given.source), read(given.real))
    return value


def _is_inference(vm: Interpreter, tensor: Tensor) -> Any:
    """Whether a computed tensor has memory that was made in inference mode: here, or an argument's."""
    shown = (i.fake for i in vm.out.inputs.values() if isinstance(i.fake, Tensor) and i.fake.layout is torch.strided)
    given = next((fake for fake in shown if storage_key(fake) == storage_key(tensor)), None)
    return vm.inferred.holds(tensor) if given is None else asked(vm, given, "is_inference")


def rely_on_method(vm: Interpreter, name: str) -> None:
    """Rely on a method of all tensors, which a program may patch."""
    method = getattr(Tensor, name, None)
    if method is not None:
        vm.guards.add("is", Attr(_TENSOR, name), method)


_TENSOR = Const(Tensor, "torch.Tensor")


def _grad_fn(vm: Interpreter, tensor: Tensor) -> None:
    info = vm.out.inputs.get(id(tensor))
    if (tensor if info is None else info.real).grad_fn is not None or tensor.grad_fn is not None:
        raise GraphBreak("the autograd graph is read (grad_fn)")
    if info is not None:
        vm.guards.add("equals", Attr(info.source, "grad_fn"), None)


def _user_attr(vm: Interpreter, tensor: Tensor, name: str) -> Any:
    """An attribute that the user put on the tensor object."""
    info = vm.out.inputs.get(id(tensor))
    if info is not None:
        values = info.real.__dict__
        where = Attr(info.source, "__dict__")
        if name in values:
            return vm.user.wrap(values[name], Item(where, name))
        vm.guards.add("missing", where, name)
    raise UserRaise(AttributeError(f"'{tensor_class(vm, tensor).__name__}' object has no attribute '{name}'"))


def store_tensor_attr(vm: Interpreter, tensor: Tensor, name: str, value: Any) -> None:
    """`tensor.name = value` for an attribute of the user's own; torch's own attributes are refused."""
    if is_shared(tensor) and not (name == "grad" and vm.overrides.place_of(tensor) is not None):
        raise GraphBreak(f"{name} of a DTensor is assigned")
    if (foreign := vm.foreign.of(tensor)) is not None:
        raise GraphBreak(f"{name} of a {foreign.kind} is assigned")
    if name == "requires_grad":
        vm.call_tensor_method(tensor, "requires_grad_", (value,), {})
        return
    if name == "grad":
        write_grad(vm, tensor, value)
        return
    if name == "data" and _may_be_data(vm, tensor, value):
        vm.effects.write_attr(tensor, name, vm.out.call_method("detach", (value,), {}))
        vm.out.replace(vm.out.inputs[id(tensor)])
        return
    if hasattr(Tensor, name):
        raise Unsupported(f"the tensor attribute {name!r} is assigned")
    vm.effects.write_attr(tensor, name, value)


def _may_be_data(vm: Interpreter, tensor: Tensor, value: Any) -> bool:
    """Whether an input can take the memory of another tensor behind the graph: nothing that guards know of it changes."""
    if id(tensor) not in vm.out.inputs or tensor._is_view() or not isinstance(value, Tensor) or value is tensor:
        return False
    if not vm.out.is_known(value):
        return False
    facts = [(t.shape, t.stride(), t.dtype, t.device, t.layout, t.storage_offset()) for t in (tensor, value)]
    return facts[0] == facts[1]


# ---- what tensors refuse ----

_BREAKS = {
    "item": "a tensor's value is read (.item())",
    "tolist": "a tensor's values are read (.tolist())",
    "numpy": "a tensor becomes a NumPy array",
    "__array__": "a tensor becomes a NumPy array",
    "__bool__": "control flow depends on a tensor's value",
    "__int__": "a tensor's value is read (int())",
    "__float__": "a tensor's value is read (float())",
    "__index__": "a tensor's value is used as an index",
    "__repr__": "a tensor is printed",
    "__str__": "a tensor is printed",
    "__format__": "a tensor is formatted",
    "data_ptr": "a tensor's address is read",
    "storage": "a tensor's storage is read",
    "untyped_storage": "a tensor's storage is read",
    "__reduce_ex__": "a tensor is pickled or copied by copy.copy",
    "set_": "a tensor's storage is replaced (set_)",
    "resize_": "a tensor is resized in place",
    "__torch_function__": "__torch_function__ is called",
    "__dlpack__": "a tensor is exported (dlpack)",
    "share_memory_": "a tensor is moved to shared memory",
    "pin_memory": "a tensor is pinned",
}


def refuse_method(name: str) -> None:
    """Raise when calling this method leaves the graph."""
    reason = _BREAKS.get(name)
    if reason is not None:
        raise GraphBreak(reason)


def is_method_descriptor(function: Any) -> bool:
    """Whether `function` is a method of Tensor taken from the class, such as `torch.Tensor.add`."""
    return (
        isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType)
        and issubclass(Tensor, function.__objclass__)
        and function.__objclass__ is not object
    )
