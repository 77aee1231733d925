"""What torch.compile and torch.jit know of functions, modules, backends and options."""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch


def script_source(function: Any) -> Any:
    """The Python function that torch.jit.script was given, where it is kept."""
    plain = getattr(function, "_torchdynamo_inline", None)
    # A traced function keeps its source too, but need not agree with it.
    scripted = None if plain is None else torch.jit._state._try_get_jit_cached_function(plain)
    return plain if scripted is not None and scripted.qualified_name == function.qualified_name else None


def substituted(function: Any) -> Any:
    """The Python function that torch.compiler.substitute_in_graph of a program's gave for this one; None for what torch gave itself."""
    from torch._dynamo.variables.functions import PolyfilledFunctionVariable

    try:
        found = PolyfilledFunctionVariable._get_polyfill_handlers().get(function)
    except TypeError:  # it cannot be a key
        return None
    found = getattr(found, "__torch_dynamo_polyfill__", None)
    return None if str(getattr(found, "__module__", "torch.")).startswith("torch.") else found


def optimized_module() -> type[torch.nn.Module]:
    """The class of modules that torch.compile makes, by which frameworks know compiled ones."""
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule


def compiling_questions() -> list[Any]:
    """The functions of torch.compile's package that say whether it compiles."""
    import torch._dynamo as dynamo

    return [*filter(None, (getattr(owner, "is_compiling", None) for owner in (dynamo, dynamo.external_utils)))]


def size_marks() -> list[Any]:
    """Functions that mark tensors for torch.compile, and do nothing else."""
    import torch._dynamo as dynamo

    return [dynamo.mark_static_address, dynamo.mark_dynamic]


def graph_breaks() -> list[Any]:
    """The functions that ask torch.compile for a break."""
    import torch._dynamo as dynamo

    return [dynamo.graph_break]


def is_disabled(function: Any) -> bool:
    """Whether a Python function carries torch's mark that says it must not be compiled."""
    if function.__dict__.get("_torchdynamo_disable"):
        return True
    code = function.__code__
    return code.co_name == "inner" and code.co_filename.endswith(_DISABLING_WRAPPER)


def unmarked(function: Any) -> Any:
    """The function of torch.optim behind the mark that torch.compile sets for its own sake when it is first used; None for all else.

    It cannot trace how optimizers make their states, fused kernels and some steps. Marks that a program sets are not looked through.
    Tried with torch 2.11 to 2.15.
    """
    if function.__code__.co_qualname != "DisableContext.__call__.<locals>._fn":  # functools.wraps copies marks
        return None
    plain = function.__dict__.get("_torchdynamo_orig_callable")
    said = str(function.__dict__.get("_torchdynamo_disable_msg"))
    own = said.startswith("optimizer <class 'torch.optim.") or said == "don't trace into fused optimizer"
    return plain if own and str(getattr(plain, "__module__", "")).startswith("torch.optim.") else None


_DISABLING_WRAPPER = os.path.join("torch", "_compile.py")


def torch_backends(exclude_tags: tuple[str, ...]) -> list[str]:
    """Names of the backends that torch.compile knows, without those that carry one of the tags."""
    from torch._dynamo.backends import registry

    return list(registry.list_backends(exclude_tags=exclude_tags or None))  # type: ignore[arg-type]


def torch_backend(name: str) -> Callable[..., Any]:
    """One of torch.compile's backends: `(gm, example_inputs, **options) -> callable`."""
    from torch._dynamo.backends import registry

    return registry.lookup_backend(name)  # type: ignore[no-any-return]


def torch_stance() -> str:
    """The stance that torch.compiler.set_stance has set for the process."""
    from torch._dynamo import eval_frame

    return str(getattr(getattr(eval_frame, "_stance", None), "stance", "default"))


def break_switch() -> Any:
    """The class of what `torch._dynamo.error_on_graph_break(...)` gives, which has the answer in an attribute of that name.

    Tried with torch 2.11 to 2.15.
    """
    from torch._dynamo import decorators

    return getattr(decorators, "ErrorOnGraphBreakDecoratorContextManager", None)


def breaks_are_errors() -> bool:
    """Whether the code is inside of one that says so."""
    from torch._dynamo import decorators

    return bool(getattr(decorators, "_get_error_on_graph_break", bool)())


def specialize_floats(gm: torch.fx.GraphModule) -> None:
    """Inside torch.compile: have it capture again with the values of the floats that it made inputs.

    They arrive as 0-dim tensors that the graph reads with `item`; a backend that cannot take them asks by exceptions.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    names = set()
    for node in gm.graph.find_nodes(op="placeholder"):
        memo = getattr(node.meta.get("example_value"), "item_memo", None)
        if isinstance(memo, torch.SymFloat) and all(user.target == "item" for user in node.users):
            names.add(getattr(memo.node._expr, "name", ""))
    names = {n for n in names if n and not TensorifyState.should_specialize(n)}
    if names:
        for name in names:
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def is_allowed(function: Any) -> bool:
    """Whether torch.compiler.allow_in_graph (or nonstrict_trace) was called on a function."""
    from torch._dynamo import trace_rules

    allowed = getattr(trace_rules, "_allowed_callable_ids", ())
    nonstrict = getattr(trace_rules, "_nonstrict_trace_callable_ids", ())
    return id(function) in allowed or id(function) in nonstrict


def inductor_options(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings with which torch.compile(mode=, options=) calls its inductor backend.

    Raises ValueError for an option that inductor does not have, with a suggestion.
    """
    import torch._inductor as inductor

    chosen = dict(inductor.list_mode_options(mode)) if mode not in (None, "default") else {}
    known = inductor.list_options() if options else []
    for given, value in (options or {}).items():
        name = str(given).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "; torch._inductor.list_options() lists them"
            raise ValueError(f"unknown option {given!r} of the backend 'inductor'{hint}")
        chosen[name] = value
    return chosen


def without_compile(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """`function` as something that torch.compile does not look into."""
    return torch._dynamo.disable(function, reason=reason)  # type: ignore[no-any-return,attr-defined]


def undisabled(method: Any) -> Any:
    """A bound method without the mark that torch puts on it, against its own capture."""
    function = getattr(method, "__func__", None)
    if isinstance(function, types.FunctionType) and is_disabled(function):
        plain = function.__dict__.get("__wrapped__")
        if isinstance(plain, types.FunctionType):
            return types.MethodType(plain, method.__self__)
    return method
