"""What an entry relies on of objects that may be one: containers, objects and tensors that a call writes to."""

from __future__ import annotations

from torch import Tensor, nn

from ..graph.output import GraphInput
from ..guards.checks import Distinct
from ..guards.memory import Memory
from ..guards.source import Attr, Const
from ..state import Interpreter


def guard_aliasing(vm: Interpreter) -> None:
    """Rely on different tensors staying different; refuse writes to memory that two inputs share."""
    changed = [shadow for shadow in vm.user.shadows if shadow.changed()]
    containers = dict.fromkeys([s.source for s in vm.user.shadows] + [u.source for u in vm.user.appended])
    if (changed or vm.user.appended) and len(containers) > 1:  # a change to one must not be a change to another
        vm.guards.extra.append(Distinct(list(containers)))
    for kind in {type(obj) for obj, _ in vm.effects.attrs.values()}:
        constants = vm.dynamic.marks.modules and issubclass(kind, nn.Module)
        found = (e.source for e in vm.user.by_real.values() if type(e.real) is kind)
        same = [source for source in found if constants or not isinstance(source, Const)]
        if len(same) > 1 and not issubclass(kind, Tensor):
            vm.guards.extra.append(Distinct(same))
    arguments = vm.user.arg_tensors
    # Those that the program names as what it writes to come last: messages speak of them.
    written = sorted(filter(vm.out.is_written, vm.out.used), key=lambda i: vm.out.version(i) != i.version)
    for info in written:
        if info.required and vm.out.version(info) != info.version:
            _written_leaf(vm, info)
    memory = Memory.of([i for i in vm.out.used if isinstance(i.fake, Tensor)], written)
    sources = [i.source for i in arguments]
    if len(sources) > 1:
        vm.guards.extra.append(Distinct(sources))
    if memory is not None:
        vm.guards.extra.append(memory)


def _written_leaf(vm: Interpreter, info: GraphInput) -> None:
    """Whether a tensor that is written to is a leaf, or a view of one: autograd refuses to see such writes, other ones are recorded."""
    base = info.real._base
    if info.node is not None:
        info.node.meta["of_leaf"] = info.grad_fn is None or base is not None and base.is_leaf
    if info.static:
        return
    vm.guards.add("equals", Attr(info.source, "is_leaf"), info.grad_fn is None)
    if base is None:
        vm.guards.add("is", Attr(info.source, "_base"), None)
    else:
        vm.guards.add("equals", Attr(Attr(info.source, "_base"), "is_leaf"), base.is_leaf)
