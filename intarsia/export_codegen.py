"""The Python of an exported graph: `forward` has the function's own parameters."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch.utils._pytree as pytree

from .frontend.torch_private import PyTreeCodeGen, PyTreeInfo

__all__ = ["SignatureCodeGen", "flatten_like"]


def flatten_like(values: tuple[Any, ...], spec: Any) -> list[Any]:
    """The leaves of the arguments.

    Raises:
        ValueError: they are nested in another way than at export.
    """
    leaves, found = pytree.tree_flatten(values)
    if found != spec:
        raise ValueError(f"the graph was exported for arguments nested as\n  {spec}\nnot as\n  {found}")
    return leaves


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
        return [("flatten_like", flatten_like), *((n, p.default) for n, p in self._named_defaults().items())]

    def _named_defaults(self) -> dict[str, inspect.Parameter]:
        plain = (bool, int, str, bytes, type(None))
        return {
            f"default_{p.name}": p
            for p in self.signature.parameters.values()
            if p.default is not p.empty and type(p.default) not in plain
        }

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        """`def forward(self, x, y=1):`, and the line that takes nested arguments apart."""
        annotated = {re.match(r"\w+", v)[0]: v.split("#")[0].strip() for v in free_vars}  # type: ignore[index]
        heads, star, named = ["self"], False, self._named_defaults()
        parameters = list(self.signature.parameters.values())
        for i, p in enumerate(parameters):
            if p.kind is p.KEYWORD_ONLY and not star:
                heads.append("*")
                star = True
            prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
            star = star or prefix == "*"
            text = annotated.get(p.name, p.name) if self.flat else p.name
            if p.default is not p.empty:
                text += f" = default_{p.name}" if f"default_{p.name}" in named else f" = {p.default!r}"
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
