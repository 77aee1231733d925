"""The text of compiled callables: the function that looks for an entry, and entries that run in eager."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..guards.emitter import MISS, Emitter
from ..guards.guards import GuardSet
from ..runtime.hidden_frames import name_of
from .entry import Entry
from .parameters import UNGIVEN, Parameters, default_of

__all__ = ["MISS", "Default", "compiled_function", "eager_entry"]


_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


@dataclass(frozen=True)
class Lookup:
    """The text of a compiled function: the head with its defaults, the names of the parameters, the pairs of name and value."""

    head: str
    names: tuple[str, ...]
    pairs: str

    def text(self, first: Sequence[str] = ()) -> str:
        """The function; `first` are statements that run before it looks for an entry."""
        lines = [
            *first,
            "__missed = None",
            "for __entry in __entries:",
            f"    __result = __entry({', '.join(self.names)})",
            "    if __result is not __MISS:",
            "        if __missed is not None:",
            "            __runtime.prefer(__entry)",
            "        return __result",
            "    __missed = __entry",
            f"return __runtime.miss({self.pairs})",
        ]
        return self.head + "".join(f"    {line}\n" for line in lines)


def compiled_function(
    target: Any, parameters: Parameters, entries: list[Callable[..., Any]], runtime: Any
) -> types.FunctionType:
    """`def compiled(x, y=default): ...` with the target's own parameters, so that a hit costs one call.

    It keeps the runtime alive; the runtime must not keep it alive.
    """
    # The parameters have the user's names: what else the function mentions begins with two underscores.
    namespace: dict[str, Any] = {"__entries": entries, "__MISS": MISS, "__runtime": runtime}
    heads, star, filled = [], False, ""
    given = parameters.signature.parameters
    function = parameters.function
    for i, (name, parameter) in enumerate(given.items()):
        default = ""
        if parameter.default is not parameter.empty:
            namespace[f"__default_{i}"] = parameter.default if function is None else Default(parameter.default)
            default = f"=__default_{i}"
            if function is not None:
                namespace |= {"__function": function, "__defaults": function.__defaults__, "__default_of": default_of}
                namespace[f"__value_{i}"] = parameter.default
                filled += f"    if {name} is __default_{i}:\n        {name} = {_default_text(parameter, i)}\n"
        elif name in parameters.named:  # one may come: entries miss where it is left out
            namespace["__UNGIVEN"], default = UNGIVEN, "=__UNGIVEN"
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            heads.append("*" if parameters.ours else "*__more")
        prefix = _STARS.get(parameter.kind.name, "")
        star = star or prefix == "*"
        heads.append(f"{prefix}{name}{default}")
        following = list(given.values())[i + 1 :]
        if parameter.kind is parameter.POSITIONAL_ONLY and not any(p.kind is p.POSITIONAL_ONLY for p in following):
            heads.append("/")
    wrong = _wrong_call(heads, star, parameters)
    heads = ["__self", *heads] if owner_of(target) is not None else heads  # errors of wrong calls count it
    pairs = ", ".join(f"{n!r}: {n}" for n in given)
    lookup = Lookup(f"def compiled({', '.join(heads)}):\n{wrong}{filled}", tuple(given), f"{{{pairs}}}")
    namespace["__lookup"] = lookup
    # Of a module, it stands for one of the two frames of torch's that call `forward` (see `CompiledModule.__call__`).
    name = "<intarsia entry>" if isinstance(target, nn.Module) else name_of("<intarsia entry>")
    exec(compile(lookup.text(), name, "exec"), namespace)
    return namespace.pop("compiled")  # type: ignore[no-any-return]


def _wrong_call(heads: list[str], star: bool, parameters: Parameters) -> str:
    """Take what is too much, too, and let eager raise in its own words: a signature with other defaults has others."""
    given = parameters.signature.parameters
    kinds = [p.kind.name for p in given.values()]
    if parameters.ours or "VAR_POSITIONAL" in kinds and (parameters.function is not None or "VAR_KEYWORD" in kinds):
        return ""
    if not star:
        heads.insert(len(heads) - ("VAR_KEYWORD" in kinds), "*__more")
    more = [] if "VAR_POSITIONAL" in kinds else ["__more"]
    if parameters.function is None and "VAR_KEYWORD" not in kinds:  # a partial or an object: `compiled` is not its name
        heads.append("**__others")
        more.append("__others")
    pairs = ", ".join(f"{name!r}: {name}" for name in given)
    extra = f"{more[0] if '__more' in more else '()'}, {more[-1] if '__others' in more else '{}'}"
    return f"    if {' or '.join(more)}:\n        return __runtime.wrong({{{pairs}}}, {extra})\n"


class Default:
    """Stands for the default of a parameter: what that is, the target's function says in each call."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _default_text(parameter: inspect.Parameter, place: int) -> str:
    late = f"__default_of(__function, {parameter.name!r})"
    if parameter.kind is parameter.KEYWORD_ONLY:
        return late
    return f"__value_{place} if __function.__defaults__ is __defaults else {late}"


def owner_of(target: Any) -> Any:
    """What a call of the target passes as `self`: the module, or the object of a bound method; None: nothing."""
    if isinstance(target, nn.Module):
        return target
    return target.__self__ if isinstance(target, types.MethodType) else None


def eager_entry(guards: GuardSet, parameters: Parameters, eager: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """An entry that remembers, under the same guards, that these calls run in eager."""
    emit, names = Emitter(), parameters.names
    guards.lines(emit)
    checks = [*emit.lines, *parameters.given(emit, guards)]
    made = Entry(names, checks, f"eager({{{', '.join(f'{n!r}: {n}_' for n in names)}}})")
    namespace = {**emit.namespace, "MISS": MISS, "eager": eager}
    exec(compile(made.text(), name_of("<intarsia eager entry>"), "exec"), namespace)
    return namespace.pop("entry")  # type: ignore[no-any-return]
