"""DTensors in a graph: each is made of this process's part where it comes in, and taken apart where it goes out.

Between, operators run on DTensors as eager's do, also in the traces of the graph, which see what they are on local parts: operators of
torch's and calls by which processes talk. Layouts are constants of a graph, and guarded. What a program does with a DTensor beside
operators, `to_local`, `redistribute` and `full_tensor` breaks the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak, Unsupported
from ..guards.source import Fetch, Source
from ..state import Interpreter
from ..torch_private.dtensor import (
    Layout,
    Like,
    Local,
    Redistributed,
    Restored,
    Shared,
    is_plain_part,
    is_shared,
    layout_of,
    local_of,
)
from ..torch_private.fake import real_tensors
from ..torch_private.functions import SET_GRAD_MODE
from ..values.kinds import isinstance

__all__ = ["METHODS", "asked", "check_attribute", "from_local", "handed_out", "set_grad", "taken_in"]

_READ = ("placements", "device_mesh")
_REFUSED = frozenset(
    """
    is_leaf output_nr retains_grad names storage_offset is_shared is_pinned is_inference _is_view data grad grad_fn _base _version
    register_hook register_post_accumulate_grad_hook detach_ requires_grad_ share_memory_ pin_memory
    """.split()  # noqa: SIM905
)


def taken_in(vm: Interpreter, value: Any, source: Source) -> Tensor:
    """The stand-in for a DTensor of the caller's: the DTensor of a fake local part, which is what the graph is given."""
    layout = layout_of(value)
    if not is_plain_part(value) or layout.mesh.device_type != value.device.type:
        raise Unsupported(f"{source.name()} is a DTensor whose part is no plain tensor")
    vm.guards.add("type", source, type(value))
    vm.guards.add("equals", Fetch(layout.has_layout, source), True)
    with real_tensors():
        part = local_of(value)
    fake, info = vm.dynamic.tensor(part, Fetch(local_of, source), True)  # its sizes are numbers: the layout's are
    info.static, info.temporary = False, True
    vm.out.add_input(info)
    vm.user.arg_tensors.append(info)
    before = torch.is_grad_enabled()
    set_grad(vm, True)  # it may be read where gradients are on
    made: Tensor = vm.out.call_function(Shared(**_facts(layout)), (fake,), {})
    set_grad(vm, before)
    vm.user.track(value, made, source)
    return made


def set_grad(vm: Interpreter, mode: bool) -> None:
    """A node that sets the grad mode, where it is another one."""
    if torch.is_grad_enabled() != mode:
        SET_GRAD_MODE(mode)
        vm.out.mark(SET_GRAD_MODE, (mode,))


def _facts(layout: Layout) -> dict[str, Any]:
    sizes = {"shape": torch.Size(layout.shape), "stride": layout.stride}
    return {"device_mesh": layout.mesh, "placements": layout.placements, **sizes}


def handed_out(vm: Interpreter, value: Tensor) -> tuple[Tensor, Shared]:
    """This process's part of a DTensor that the graph made, and what makes the DTensor of it."""
    before = torch.is_grad_enabled()
    set_grad(vm, value.requires_grad)
    part: Tensor = vm.out.call_function(Local(), (value,), {})
    set_grad(vm, before)
    return part, (Restored if value.requires_grad else Shared)(**_facts(layout_of(value)))


def check_attribute(vm: Interpreter, tensor: Any, name: str) -> Any:
    """An attribute that DTensors have beside those of tensors; `NotImplemented` for the others."""
    if name in _READ:
        return vm.native(getattr, tensor, name)
    if name == "grad" and vm.overrides.place_of(tensor) is not None:
        return NotImplemented
    if name in _REFUSED or name not in METHODS and not hasattr(Tensor, name):
        raise GraphBreak(f"{name} of a DTensor is read")
    return NotImplemented


def rely_on(vm: Interpreter, fact: Any) -> None:
    """Rely on a mesh, or a placement, of the caller's."""
    source = vm.user.source_of(fact)
    if source is not None:
        vm.guards.add("equals", Fetch(Like(fact), source), True)


def asked(name: str) -> Any:
    """A question that a placement answers."""

    def apply(vm: Interpreter, placement: Any, *args: Any, **kwargs: Any) -> Any:
        rely_on(vm, placement)
        return vm.native(getattr(placement, name), *args, **kwargs)

    return apply


def _constants(vm: Interpreter, mesh: Any, placements: Any) -> dict[str, Any]:
    """A mesh and placements as facts of the graph."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    found = list(placements) if isinstance(placements, list | tuple) else None
    if not isinstance(mesh, DeviceMesh) or found is None or not all(isinstance(p, Placement) for p in found):
        raise GraphBreak("the layout of a DTensor is no constant")
    for value in (mesh, *found):
        rely_on(vm, value)
    return {"device_mesh": mesh, "placements": tuple(found)}


def from_local(
    vm: Interpreter, local: Any, device_mesh: Any = None, placements: Any = None, *, run_check: Any = False, **more: Any
) -> Tensor:
    """`DTensor.from_local`."""
    if (
        run_check is not False
        or not isinstance(local, Tensor)
        or is_shared(local)
        or any(v is not None for v in more.values())
    ):
        raise GraphBreak("a DTensor is made of something else than a plain local tensor")
    if any(isinstance(n, torch.SymInt) for n in local.shape):  # each size is a graph of its own
        local = vm.out.call_method("view", (local, tuple(map(int, local.shape))), {})
    result: Tensor = vm.out.call_function(Shared(**_constants(vm, device_mesh, placements)), (local,), {})
    return result


def _redistribute(
    vm: Interpreter, tensor: Any, device_mesh: Any = None, placements: Any = None, *, async_op: Any = False, **more: Any
) -> Tensor:
    if not is_shared(tensor) or any(v is not None for v in more.values()):
        raise GraphBreak("redistribute is called with a type of its own")
    facts = _constants(vm, tensor.device_mesh if device_mesh is None else device_mesh, placements)
    result: Tensor = vm.out.call_function(Redistributed(**facts), (tensor,), {})
    return result


def _to_local(vm: Interpreter, tensor: Any, *, grad_placements: Any = None) -> Tensor:
    if not is_shared(tensor):
        raise GraphBreak("to_local of a tensor that is no DTensor")
    facts = {} if grad_placements is None else _constants(vm, tensor.device_mesh, grad_placements)
    result: Tensor = vm.out.call_function(Local(grad_placements=facts.get("placements")), (tensor,), {})
    return result


def _full_tensor(vm: Interpreter, tensor: Any, *, grad_placements: Any = None) -> Tensor:
    from torch.distributed.tensor import Replicate

    if not is_shared(tensor):
        raise GraphBreak("full_tensor of a tensor that is no DTensor")
    whole = _redistribute(vm, tensor, None, [Replicate()] * tensor.device_mesh.ndim)
    return _to_local(vm, whole, grad_placements=grad_placements)


METHODS: dict[str, Any] = {"to_local": _to_local, "redistribute": _redistribute, "full_tensor": _full_tensor}
