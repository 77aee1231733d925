"""What a call needs to know of its graph: whether it writes, draws random numbers, and what is replayed behind it."""

from __future__ import annotations

from functools import cache

from torch import Tensor, fx

from ..graph.value_errors import raises_by_name
from ..state import Interpreter
from ..torch_private.functions import OpOverload, OpOverloadPacket
from ..values.kinds import isinstance, namespace_of
from .effects import DELETED

__all__ = ["calls_of", "changes", "has_no_effect", "is_repeatable", "is_writing", "may_be_drawn_again", "may_draw"]

# Parts of the names of operators that draw random numbers.
_RANDOM = ["rand", "normal", "bernoulli", "dropout", "uniform", "exponential", "cauchy", "geometric", "poisson"]
_RANDOM += ["binomial", "standard_gamma", "dirichlet", "multinomial", "rrelu", "gumbel", "init_", "_init"]
_RANDOM += ["scaled_dot_product", "seed", "state"]


def is_writing(vm: Interpreter) -> bool:
    return any(map(vm.out.is_written, vm.out.used))


def calls_of(vm: Interpreter) -> list[fx.Node]:
    """The calls of the graph, and of the graphs that its nodes name."""
    inner = (module for one in vm.out.modules.values() for module in one.modules())
    graphs = [vm.out.graph, *(module.graph for module in inner if isinstance(module, fx.GraphModule))]
    return [node for graph in graphs for node in graph.nodes if node.op.startswith("call")]


def is_repeatable(vm: Interpreter) -> bool:
    return not any(map(may_draw, calls_of(vm)))


def may_be_drawn_again(vm: Interpreter) -> bool:
    """Whether a graph that draws random numbers may raise for what tensors hold: with the generator's state of before, eager shows how.

    Only that of the CPU's own generator is kept, which costs about a microsecond.
    """
    calls = calls_of(vm)
    if not all(has_no_effect(n) and n.kwargs.get("generator") is None for n in calls):
        return False
    return any(raises_by_name(_name(n)) for n in calls) and not any(_is_on_gpu(n) for n in vm.out.graph.nodes)


def _is_on_gpu(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value.device.type == "cuda"


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def may_draw(node: fx.Node) -> bool:
    """Whether a call draws random numbers, by the name of its operator."""
    name = _name(node)
    if name == "scaled_dot_product_attention":
        rate = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return type(rate) is not float or rate != 0.0
    return _is_random(name)


@cache
def _is_random(name: str) -> bool:
    return any(word in name for word in _RANDOM)


def has_no_effect(node: fx.Node) -> bool:
    """Whether a call can be made a second time: it has no effect but on what it is given and on random numbers."""
    target = node.target
    if node.op == "call_module":
        return False
    if isinstance(target, str):
        return True
    if isinstance(target, OpOverload | OpOverloadPacket):
        library, _, name = str(getattr(target, "overloadpacket", target)).partition(".")
        return library in _LIBRARIES and not name.startswith("seed")  # which seeds GPUs that nothing rewinds
    module = getattr(target, "__module__", None) or ""
    return not module.startswith("torch.distributed") and module.partition(".")[0] in _PURE


_PURE = ("", "torch", "_operator", "builtins", "math", "intarsia")
_LIBRARIES = ("aten", "prims", "torchvision", "intarsia_random")  # whose operators do nothing but compute


def changes(vm: Interpreter) -> tuple[str, ...]:
    """What is replayed after the graph, in words."""
    out = [shadow.source.name() for shadow in vm.user.shadows if shadow.changed()]
    out += [unread.source.name() for unread in vm.user.appended]
    for (_, name), (obj, value) in vm.effects.attrs.items():
        same = (namespace_of(obj) or {}).get(name, DELETED) is value  # as after a context manager
        if not same and not vm.is_created(obj) and not (isinstance(obj, Tensor) and not vm.out.is_known(obj)):
            source = vm.user.source_of(obj)
            out.append(f"{type(obj).__name__ if source is None else source.name()}.{name}")
    out += ["a variable of an enclosing function" for _ in vm.effects.cells]
    changed = [n for (_, n), (names, value) in vm.effects.globals.items() if names.get(n, DELETED) is not value]
    out += [f"the global {name}" for name in changed]
    return tuple(dict.fromkeys(out))
