"""Operators that write to their arguments, as functions: the same call on copies, which are results behind the operator's own.

Operators of a user's library (`torch.library.custom_op(..., mutates_args=...)`) have no variant that returns what they write. One is registered
for each that a graph calls: `lab::scale_(Tensor(a!) x, float by) -> ()` becomes `intarsia_functional::lab__of__scale_(Tensor x, float by) -> Tensor`.
Its name says which operator it stands for, so a program from the disk cache finds it in a new process.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "intarsia_functional"
_BETWEEN = "__of__"
_ALIAS = re.compile(r"(?<=Tensor)\(\w+!?( -> [\w|*]+)?\)")  # Tensor(a!), Tensor(a -> *)
_LIBRARY: list[torch.library.Library] = []  # a Library takes its operators away when it is collected
_LOCK = threading.Lock()


def functional_operator(func: Any) -> Any | None:
    """The function of an operator that writes to tensors; None where it writes to lists or to what may be None, or returns what it writes in a list.

    Args:
        func: an overload with a mutable schema.
    """
    schema = func._schema
    written = [k for k, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    aliases = [a for k, a in enumerate(schema.arguments) if a.alias_info is not None and k not in written]
    if aliases or not written or any(str(schema.arguments[k].type) != "Tensor" for k in written):
        return None
    kept = [k for k, r in enumerate(schema.returns) if r.alias_info is None]
    if any(str(schema.returns[k].type) != "Tensor" for k in kept):
        return None
    namespace, name = schema.name.split("::")
    made = f"{namespace}{_BETWEEN}{name}"
    with _LOCK:
        if not _LIBRARY:
            _LIBRARY.append(torch.library.Library(NAMESPACE, "DEF"))
        packet = getattr(getattr(torch.ops, NAMESPACE), made, None)
        overload = schema.overload_name or "default"
        if packet is None or overload not in packet.overloads():
            _register(func, made, written, kept)
    return getattr(getattr(getattr(torch.ops, NAMESPACE), made), overload)


def functional_operator_named(name: str, overload: str) -> Any | None:
    """What `functional_operator` gives for the operator that a name in NAMESPACE stands for, or None."""
    namespace, between, inner = name.partition(_BETWEEN)
    packet = getattr(getattr(torch.ops, namespace), inner, None) if between else None
    func = getattr(packet, overload, None) if packet is not None else None
    return functional_operator(func) if func is not None and func._schema.is_mutable else None


def written_by(target: str) -> str:
    """The name of the operator that a function stands for (`aten.ops.lab.scale_.default`), or the name itself."""
    parts = target.split(".")
    if parts[:3] != ["aten", "ops", NAMESPACE]:
        return target
    return ".".join(["aten", "ops", *parts[3].split(_BETWEEN, 1), *parts[4:]])


def _register(func: Any, name: str, written: list[int], kept: list[int]) -> None:
    """Called under the lock."""
    schema = func._schema
    arguments, _, _ = _ALIAS.sub("", str(schema).partition("(")[2]).rpartition(" -> ")
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    results = ", ".join(["Tensor"] * (len(kept) + len(written)))
    library, names = _LIBRARY[0], [a.name for a in schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        copies = {names[k]: given[names[k]].clone() for k in written}
        given |= copies
        positional = [given.pop(a.name) for a in schema.arguments if not a.kwarg_only and a.name in given]
        returned = func(*positional, **given)
        own = [returned] if isinstance(returned, Tensor) else list(returned or ())
        found = (*(own[k] for k in kept), *copies.values())
        return found[0] if len(found) == 1 else found

    library.define(f"{name}{overload}({arguments} -> ({results})")
    library.impl(f"{name}{overload}", run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}{overload}", run, lib=library)
