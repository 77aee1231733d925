"""What to do about a graph break, by how its reason begins. Whoever knows better gives the advice with the error."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["GENERAL", "remedy"]

GENERAL = "move it out of the compiled function"
_READ = "go on with the tensor itself (one without dimensions takes part in arithmetic), or read it after the compiled function"
_NUMPY = "use torch's own function, or go to NumPy before or after the compiled function"
_SHOW = "print after the compiled function, or leave it: a break where little is computed costs little"

_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "control flow depends on a tensor's value": "compute both sides and choose with torch.where, or decide outside of the "
        "compiled function",
        "a tensor's value is read": _READ,
        "a tensor's values are read": _READ,
        "a tensor's value is used as an index": "index with the tensor itself (index_select, gather), or read it after the "
        "compiled function",
        "the size of the result of": "mask with torch.where instead of selecting, or leave it: what follows is compiled with that "
        "size as an input",
        "a tensor becomes a NumPy array": _NUMPY,
        "a NumPy array becomes a tensor": _NUMPY,
        "NumPy is called": _NUMPY,
        "numpy.": _NUMPY,
        "print is called": _SHOW,
        "a tensor is printed": _SHOW,
        "a tensor is formatted": _SHOW,
        "backward() is called": "leave it: backward is compiled all the same; to have it in the graph, compute in the compiled function all "
        "that it goes through, and return results detached",
        "torch.autograd.grad is called": "compute in the compiled function all that it goes through, and return results detached",
        "a class is defined": "define it outside of the compiled function",
        "a class is made": "make it outside of the compiled function",
        "an optimizer or scheduler": "leave it: it runs between the graphs, once a step",
        "a fused kernel of the library's": "give the optimizer foreach=True instead: its step is then part of the graph, on a GPU, too",
        "processes of data-parallel": "leave it: the wrapped module is compiled",
        "the shards of a module": "leave it: the module's forward is compiled",
        "a kernel of Triton is started": "make an operator of the function that starts it (torch.library.custom_op): those are part of the graph",
        "the clock is read": "take the time around the compiled function",
        "Python's random module is called": "draw before the compiled function, or use torch's random numbers",
        "what follows depends on a random number": "leave it: each way is compiled; or choose with a tensor (torch.where)",
    }
)


# Reasons that begin with a name of the program's.
_INSIDE: Mapping[str, str] = MappingProxyType(
    {
        " shares its memory": "pass a copy of one of them (clone()), or make a new tensor instead of writing",
        " is a tensor subclass": "pass a plain tensor (as_subclass(torch.Tensor)), or leave it: such calls run as without compiling",
        " has the layout ": "pass a dense tensor (to_dense()), or leave it: such calls run as without compiling",
        " is inside a functorch transform": "compile the function around the transform",
        " is a lazy conjugate or negation": "pass x.resolve_conj().resolve_neg()",
        "eager does not call it": "correct it there: capture asks it what a call gives; this call is right",
        "no fake impl": "nothing, the call is right; give the operator one (its register_fake), and it is part of the graph",
        "only fake tensors": "nothing, the call is right: torch checks it otherwise where it asks for sizes and types alone",
        "eager does not": "nothing, the call is right; please report it, so that it gets compiled",
        "symbol that no input binds": "nothing, the call is right; please report it, so that it gets compiled",
    }
)


def remedy(reason: str) -> str:
    """A sentence of advice for a reason."""
    found = [advice for start, advice in _REMEDIES.items() if reason.startswith(start)]
    found += [advice for part, advice in _INSIDE.items() if part in reason]
    return found[0] if found else GENERAL
