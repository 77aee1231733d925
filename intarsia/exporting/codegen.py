"""The Python of an exported graph: `forward` has the function's own parameters."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from ..frontend.torch_private.graphs import PyTreeCodeGen, PyTreeInfo
from .check import check_arguments

__all__ = ["ExportedModule", "SignatureCodeGen", "flatten_like"]


def flatten_like(values: tuple[Any, ...], spec: Any) -> list[Any]:
    """The leaves of the arguments.

    Raises:
        ValueError: they are nested in another way than at export.
    """
    leaves, found = pytree.tree_flatten(values)
    if found != spec:
        raise ValueError(f"the graph was exported for arguments nested as\n  {spec}\nnot as\n  {found}")
    return leaves


def _literal(value: Any) -> str | None:
    """A default as source text; None where it has none."""
    if type(value) is tuple:
        parts = [_literal(v) for v in value]
        return None if None in parts else f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"
    plain = isinstance(value, torch.dtype) or type(value) in (bool, int, str, bytes, type(None))
    return repr(value) if plain or (type(value) is float and math.isfinite(value)) else None


class _Defaults(dict[str, Any]):
    """Defaults by parameter, for those without text; torch.fx asks for the hash of what generated code names."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class SignatureCodeGen(PyTreeCodeGen):
    """Takes the parameters of `signature`, hands their leaves to the graph, and nests the results as `out_spec` says."""

    def __init__(self, signature: inspect.Signature, in_spec: Any, out_spec: Any, flat: bool) -> None:
        super().__init__(PyTreeInfo(list(signature.parameters), in_spec, out_spec))
        empty = inspect.Parameter.empty
        kept = [p.replace(annotation=empty) for p in signature.parameters.values()]
        self.signature = inspect.Signature(kept)
        self.flat = flat

    def process_inputs(self, *inputs: Any) -> Any:
        """The leaves of positional arguments, as `torch.fx.Interpreter` passes them."""
        bound = self.signature.bind(*inputs)
        bound.apply_defaults()
        return flatten_like(tuple(bound.arguments.values()), self.pytree_info.in_spec)

    def additional_globals(self) -> list[tuple[str, Any]]:
        """What the text of `forward` names."""
        defaults = _Defaults(
            (p.name, p.default)
            for p in self.signature.parameters.values()
            if p.default is not p.empty and _literal(p.default) is None
        )
        return [("flatten_like", flatten_like), *([("defaults", defaults)] if defaults else [])]

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        """`def forward(self, x, y=1):`, and the line that takes nested arguments apart."""
        annotated = {re.match(r"\w+", v)[0]: v.split("#")[0].strip() for v in free_vars}  # type: ignore[index]
        heads, star = ["self"], False
        parameters = list(self.signature.parameters.values())
        for i, p in enumerate(parameters):
            if p.kind is p.KEYWORD_ONLY and not star:
                heads.append("*")
                star = True
            prefix = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(p.kind.name, "")
            star = star or prefix == "*"
            text = annotated.get(p.name, p.name) if self.flat else p.name
            if p.default is not p.empty:
                text += f" = {_literal(p.default) or f'defaults[{p.name!r}]'}"
            heads.append(prefix + text)
            last = i + 1 == len(parameters) or parameters[i + 1].kind is not p.POSITIONAL_ONLY
            if p.kind is p.POSITIONAL_ONLY and last:
                heads.append("/")
        separator = ",\n    " if options.get("expanded_def") else ", "
        line = f"def {self._func_name}({separator.join(heads)}){maybe_return_annotation}:"
        if self.flat or not annotated:
            return line
        names = ", ".join(p.name for p in parameters)
        notes = "".join(f"\n    {v}" for v in annotated.values() if ":" in v)
        return f"{line}{notes}\n    {', '.join(annotated)}, = flatten_like(({names},), self._in_spec)"


class ExportedModule(fx.GraphModule):
    """A graph module whose copies and pickles are called, and check their arguments, as it does."""

    def _checks(self) -> list[check_arguments]:
        return [hook for hook in self._forward_pre_hooks.values() if isinstance(hook, check_arguments)]

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        made = super().__deepcopy__(memo)
        for check in self._checks():
            made.register_forward_pre_hook(check, with_kwargs=True)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # torch.fx pickles the code and traces it again, which is sound for the flat graph alone.
        flat = fx.Graph()
        flat.output(flat.graph_copy(self.graph, {}))
        codegen = self.graph._codegen
        assert isinstance(codegen, SignatureCodeGen)
        info = codegen.pytree_info
        return _unpickled, (
            fx.GraphModule(self, flat),
            (codegen.signature, info.in_spec, info.out_spec, codegen.flat),
            self._checks(),
        )


def _unpickled(flat: fx.GraphModule, codegen: tuple[Any, ...], checks: list[check_arguments]) -> fx.GraphModule:
    flat.graph.set_codegen(SignatureCodeGen(*codegen))
    made = ExportedModule(flat, flat.graph)
    for check in checks:
        made.register_forward_pre_hook(check, with_kwargs=True)
    return made
