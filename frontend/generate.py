"""The text of compiled callables: the function that looks for an entry, and entries that run in eager."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from .capture import Parameters
from .guards import Emitter, GuardSet

__all__ = ["MISS", "compiled_function", "eager_entry"]


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS = _Miss()
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def compiled_function(
    target: Any, parameters: Parameters, entries: list[Callable[..., Any]], runtime: Any
) -> types.FunctionType:
    """`def compiled(x, y=default): ...` with the target's own parameters, so that a hit costs one call.

    It keeps the runtime alive; the runtime must not keep it alive.
    """
    # The parameters have the user's names: what else the function mentions begins with two underscores.
    namespace: dict[str, Any] = {"__entries": entries, "__MISS": MISS, "__runtime": runtime}
    heads, star = [], False
    given = parameters.signature.parameters
    for i, (name, parameter) in enumerate(given.items()):
        default = ""
        if parameter.default is not parameter.empty:
            namespace[f"__default_{i}"] = parameter.default
            default = f"=__default_{i}"
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            heads.append("*")
        prefix = _STARS.get(parameter.kind.name, "")
        star = star or prefix == "*"
        heads.append(f"{prefix}{name}{default}")
        following = list(given.values())[i + 1 :]
        if parameter.kind is parameter.POSITIONAL_ONLY and not any(p.kind is p.POSITIONAL_ONLY for p in following):
            heads.append("/")
    names = ", ".join(given)
    heads = ["__self", *heads] if owner_of(target) is not None else heads  # errors of wrong calls count it
    pairs = ", ".join(f"{n!r}: {n}" for n in given)
    text = (
        f"def compiled({', '.join(heads)}):\n"
        "    __missed = None\n"
        "    for __entry in __entries:\n"
        f"        __result = __entry({names})\n"
        "        if __result is not __MISS:\n"
        "            if __missed is not None:\n"
        "                __runtime.prefer(__entry)\n"
        "            return __result\n"
        "        __missed = __entry\n"
        f"    return __runtime.miss({{{pairs}}})\n"
    )
    namespace["__text"] = text
    exec(compile(text, "<intarsia entry>", "exec"), namespace)
    return namespace.pop("compiled")  # type: ignore[no-any-return]


def owner_of(target: Any) -> Any:
    """What a call of the target passes as `self`: the module, or the object of a bound method; None: nothing."""
    if isinstance(target, nn.Module):
        return target
    return target.__self__ if isinstance(target, types.MethodType) else None


def eager_entry(guards: GuardSet, names: list[str], eager: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """An entry that remembers, under the same guards, that these calls run in eager."""
    emit = Emitter()
    guards.lines(emit)
    values = ", ".join(f"{n!r}: {n}_" for n in names)
    lines = [f"def entry({', '.join(f'{n}_' for n in names)}):", "    try:"]
    lines += [f"        {line}" for line in emit.lines] or ["        pass"]
    lines += ["    except Exception:", "        return MISS"]
    lines += [f"    return eager({{{values}}})"]
    namespace = {**emit.namespace, "MISS": MISS, "eager": eager}
    exec(compile("\n".join(lines), "<intarsia eager entry>", "exec"), namespace)
    return namespace.pop("entry")  # type: ignore[no-any-return]
