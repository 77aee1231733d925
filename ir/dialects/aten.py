"""`aten`: the graph as captured. An open set: one operation per operator overload, made on demand from its name.

    %3 = aten.addmm.default(%0, %1, %2) {operands = ["self", "mat1", "mat2"], beta = 1, alpha = 1} : !prim.tensor<...>

`operands` names the schema argument that each tensor operand fills (`tensors.0` for the first of a list); all other
arguments are attributes under their schema names. Operators of other namespaces are `aten.` + namespace + `::` parts joined by
dots: `torch.ops.mkldnn._linear_pointwise.default` is `aten.ops.mkldnn._linear_pointwise.default`.
`returned` numbers the results among what the operator returns, where some of that is None (a gradient that nobody wants).
`binds` names sizes of the results that the operands' values decide, for all that comes behind: [name, result, dimension] rows; dimension
-1: the call reads a number. `assumes`: what the program relies on of these, as ["le" | "eq" | "ne", expression, expression] rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from xdsl.utils.exceptions import VerifyException

from ..binding import check_late
from ..fx import random_state
from ..fx.canonical import RESERVED, complaint
from ..fx.functional_operators import NAMESPACE, functional_operator_named
from ..linear_cross_entropy import linear_cross_entropy  # noqa: F401  (it registers the operator)
from ..literals import Literal
from ..syntax import Op
from ..types import TensorType

TORCHS_OWN = (
    "aten",
    "intarsia",
    "prims",
    "torchvision",
    "mkldnn",
    "quantized_decomposed",
)  # namespaces; operators of others may print or keep state


class AtenOp(Op):
    """One call of a registered operator."""

    name = "aten.unknown"
    outputs = None
    required = ("operands",)

    def check(self) -> None:
        if len(self["operands"]) != len(self.operands):
            raise VerifyException(f"{self.name} names {len(self['operands'])} operands but has {len(self.operands)}")
        for value in (*self.operands, *self.results):
            if not isinstance(value.type, TensorType):
                raise VerifyException(f"{self.name} takes and gives tensors, not {value.type}")
        check_canonical(self, self.name)
        check_late(self)

    @property
    def target(self) -> str:
        """The operator's name: `aten.addmm.default`."""
        return self.name


def check_canonical(op: Op, target: str, whole: bool = True) -> None:
    """Check that a call is written in canonical form (ir/fx/canonical.py); operators that are not registered here may have any.

    Raises:
        VerifyException: names the argument, and shows what to write.
    """
    try:
        registered = overload(target)
    except LookupError:
        return
    kinds = {
        name: v.type for name, v in zip(op["operands"], op.operands, strict=True) if isinstance(v.type, TensorType)
    }
    if op.get("packed") and "weight" in kinds:
        kinds["weight"] = kinds["weight"].with_(shape=op["packed"])
    results = [r.type for r in op.results if isinstance(r.type, TensorType)]
    given = {k: v for k, v in op.literals.items() if k not in RESERVED}
    found = complaint(registered, kinds, results, given, whole)
    if found is not None:
        raise VerifyException(f"{target}: {found}")


@cache
def aten_op(name: str) -> type[AtenOp]:
    """The operation class for `aten.<operator>.<overload>`."""
    return type("Aten_" + name.replace(".", "_"), (AtenOp,), {"name": name})


# Operators of this package's that are Python functions, by target: what programs call in their place, on real tensors and where
# autograd records nothing. The function needs nothing of what torch's dispatcher does on the way.
DIRECT: dict[str, Callable[..., Any]] = {}


@cache
def overload(target: str) -> Any:
    """The `torch._ops.OpOverload` that a name stands for.

    Raises:
        LookupError: no such operator is registered.
    """
    namespace, *rest = target.removeprefix("aten.ops.").split(".")
    if namespace == NAMESPACE and len(rest) == 2:
        made = functional_operator_named(*rest)
        if made is not None:
            return made
    if namespace == random_state.NAMESPACE and rest:  # it is registered when it is first asked for
        random_state.operator_named(rest[0])
    found: Any = None
    if len(rest) == 2 and not any(part.startswith("__") for part in (namespace, rest[1])):
        found = getattr(getattr(getattr(torch.ops, namespace), rest[0], None), rest[1], None)
    if not isinstance(found, torch._ops.OpOverload):
        raise LookupError(f"no operator is registered under the name '{target}'")
    return found


def is_torchs_own(target: str) -> bool:
    """Whether the operator of this name only computes: those of a user's library may print or keep state."""
    return not target.startswith("aten.ops.") or target.split(".")[2] in TORCHS_OWN


def target_name(op: Any) -> str:
    """The inverse of `overload`."""
    namespace, name = op._schema.name.split("::")
    overload_name = op._schema.overload_name or "default"
    prefix = "aten" if namespace == "aten" else f"aten.ops.{namespace}"
    return f"{prefix}.{name}.{overload_name}"


def call_arguments(op: Op, values: list[Any], target: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for the operator, `values` standing for the operands."""
    schema = overload(target)._schema
    given: dict[str, Any] = {}
    lists: dict[str, dict[int, Any]] = {}
    for name, value in zip(op["operands"], values, strict=True):
        base, _, index = name.partition(".")
        if index:
            lists.setdefault(base, {})[int(index)] = value
        else:
            given[base] = value
    for name, items in lists.items():
        given[name] = [items.get(i) for i in range(max(items) + 1)]
    reserved = ("operands", "target", "strides")
    given |= {k: _thaw(v) for k, v in op.literals.items() if k not in reserved and k not in given}
    positional = [given.pop(a.name, a.default_value) for a in schema.arguments if not a.kwarg_only]
    known = {a.name for a in schema.arguments}
    return positional, {k: v for k, v in given.items() if k in known}


@cache
def shares(target: str) -> tuple[tuple[str, ...], ...]:
    """For each value that an operator returns: the arguments whose memory it may be, by the schema. All tensors of a list are one value."""
    schema = overload(target)._schema
    if target.startswith((*_VIEWS_IN_SECRET, WAIT)):
        return ((schema.arguments[0].name,),)
    given = [(a.name, a.alias_info) for a in schema.arguments if a.alias_info is not None]
    found = []
    for r in schema.returns:
        # A list's own entry names no set; `Tensor(a -> *)` says that the argument is in some list.
        names = r.alias_info.before_set if r.alias_info is not None else None
        sharing = [
            n for n, i in given if names is not None and (i.before_set & names or (not names and "*" in i.after_set))
        ]
        found.append(tuple(sharing))
    return tuple(found)


_VIEWS_IN_SECRET = ("aten._unsafe_view.", "aten.unsafe_")  # their schemas do not say what autograd is not to know

# Calls by which processes talk. One begins and gives a tensor that is not there yet; its operand may be read until `WAIT` has run.
COLLECTIVES = ("aten.ops._c10d_functional.", "aten.ops._c10d_functional_autograd.")
WAIT = "aten.ops._c10d_functional.wait_tensor."  # gives its argument


def is_wait(op: Op) -> bool:
    """Whether a library call waits for what processes have begun to tell each other."""
    return str(op.get("target", "")).startswith(WAIT)


def begins_talk(op: Op) -> bool:
    """Whether a library call begins to send its operands and does not wait."""
    return str(op.get("target", "")).startswith(COLLECTIVES) and not is_wait(op)


def may_share(op: Op) -> list[tuple[int, ...]]:
    """For each result of a library call: the operands whose memory it may be, by the operator's schema."""
    sharing = shares(op["target"])
    if not any(sharing):
        return [()] * len(op.results)
    bases = [name.partition(".")[0] for name in op["operands"]]
    places = op.get("returned") or range(len(op.results))
    names = [sharing[0 if len(sharing) == 1 else place] for place in places]
    return [tuple(k for k, base in enumerate(bases) if base in n) for n in names]


def writes_to(op: Op) -> list[int]:
    """The operands that a library call writes to, by the operator's schema."""
    written = {
        a.name for a in overload(op["target"])._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    }
    return [k for k, name in enumerate(op["operands"]) if name.partition(".")[0] in written]


def _thaw(value: Literal) -> Any:
    return [_thaw(v) for v in value] if isinstance(value, tuple) else value
