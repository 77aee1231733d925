"""Random programs about what crosses the boundary of a graph: views, writes in place, `detach`, islands without gradients, graph breaks.

A program is made line by line; a line that eager refuses is dropped. Its inputs share memory in some calls.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Observed", "Program", "Small", "difference", "halves_as_they_are", "observe"]

ARGUMENTS = ("x", "y", "z")
PURE = [
    "{r} = {p} * 2",
    "{r} = {p} + {q}",
    "{r} = {p}.sin()",
    "{r} = {p} * {q}",
    "{r} = {p}.sum(0)",
    "{r} = {p}.clone()",
    "{r} = {p} @ {q}",
    "{r} = {p} * m.w",
    "{r} = {p} + m.buf",
    "{r} = torch.where({p} > 0, {p}, {q})",
    "{r} = {p}.cumsum(-1)",
    "{r} = torch.nn.functional.dropout({p}, 0.3, False)",
    "{r} = {p}.softmax(-1)",
    "{r} = m.lin({p})",
]
VIEWS = [
    "{r} = {p}.detach()",
    "{r} = {p}.view(-1)",
    "{r} = {p}.t()",
    "{r} = {p}[0]",
    "{r} = {p}[..., 1:3]",
    "{r} = {p}.unsqueeze(0)",
    "{r} = {p}.expand(2, *{p}.shape)",
    "{r}, {s} = {p}.chunk(2)",
    "{r} = {p}.chunk(2, -1)[1]",
    "{r} = {p}.reshape(-1)",
    "{r} = {p}.contiguous()",
    "{r} = {p}.diagonal()",
    "{r} = {p}.view({p}.shape)",
    "{r} = {p}.detach()[1:]",
    "{r} = {p}.data",
    "{r} = m.w.t()",
    "{r} = m.w.detach()",
    "{r} = {p}.transpose(0, 1)",
    "{r} = m.buf.view(-1)",
    "{r} = {p}",
    "{r}, {s} = {p}.unbind()[:2]",
    "{r} = {p}.narrow(0, 0, 2)",
    "{r} = {p}.squeeze(0)",
    "{r} = {p}.view_as({p})",
]
WRITES = [
    "{p}.mul_(2)",
    "{p}.add_({q})",
    "{p}[0] = 1.5",
    "{p}[1:] = {q}[1:]",
    "{p}.copy_({q})",
    "{p}.detach().add_(1)",
    "{p}.view(-1)[1:3].mul_(3)",
    "m.buf.add_(1)",
    "{p}.t().mul_(2)",
    "{p}.clamp_(min=0)",
    "m.kept = {p}",
    "m.kept = {p}.detach()",
    "m.buf.copy_({p}.detach())",
    "m.buf = {p}.detach()",
]
BREAKS = [
    "print('seen', {p}.requires_grad)",
    "look({p})",
    "out.append(float({p}.detach().sum().round()))",
    "{r} = {p} * float({p}.detach().abs().max())",
    "{p}.detach().cpu().numpy().sum()",
    "{r} = look({p}.detach())",
    "out.append({p}.is_leaf)",
]
ISLANDS = ["torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)"]


class Small(nn.Module):
    """A parameter, a buffer, a layer."""

    buf: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, 4, generator=generator, dtype=torch.float64))
        self.register_buffer("buf", torch.randn(4, 4, generator=generator, dtype=torch.float64))
        self.lin = nn.Linear(4, 4, dtype=torch.float64)
        self.lin.load_state_dict({"weight": self.w.detach() + 1, "bias": self.w.detach()[0]})


def look(value: Any) -> Any:
    """A function that is not compiled: shows what it is given."""
    print(value.requires_grad, value.is_leaf)
    return value


look._torchdynamo_disable = True  # type: ignore[attr-defined]


class Program:
    """The text of one random function `program(m, x, y, z, out)`; `call` runs it."""

    def __init__(self, seed: int, breaks: bool = True) -> None:
        self.random, self.breaks, self.made = random.Random(seed), breaks, 0
        self.lines: list[str] = []
        self.names = list(ARGUMENTS)
        for _ in range(self.random.randint(3, 8)):
            self._block() if self.random.random() < 0.25 else self._line("    ")
        for name in ARGUMENTS:  # views of inputs alone, too
            if self.random.random() < 0.5 and name in self.names:
                self.names.remove(name)
        shown = self.random.sample(self.names, min(len(self.names), self.random.randint(1, 4)))
        self.lines.append(f"    return [{', '.join(shown)}]")
        self.call = self._build(seed)

    @property
    def source(self) -> str:
        """The function's text."""
        return "\n".join(["def program(m, x, y, z, out):", *self.lines])

    def _block(self) -> None:
        at = len(self.lines)
        self.lines.append(f"    with {self.random.choice(ISLANDS)}:")
        for _ in range(self.random.randint(1, 3)):
            self._line("        ")
        if len(self.lines) == at + 1:
            del self.lines[at]

    def _line(self, pad: str) -> None:
        pick = self.random.choice
        kinds = [PURE] * 3 + [VIEWS] * 4 + [WRITES] * 2 + [BREAKS] * self.breaks
        fresh = [f"v{self.made}", f"v{self.made + 1}"]
        text = pick(pick(kinds)).format(p=pick(self.names), q=pick(self.names), r=fresh[0], s=fresh[1])
        self.lines.append(pad + text)
        if not self._runs():
            self.lines.pop()
            return
        for name in fresh:
            if name in text.split(" = ")[0]:
                self.names.append(name)
        self.made += 2

    def _runs(self) -> bool:
        namespace: dict[str, Any] = {"torch": torch, "look": look}
        exec("\n".join([self.source, f"    return {', '.join(self.names)}"]), namespace)
        for variant in (0, 2):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    namespace["program"](Small(), *inputs(variant)[1], [])
            except (RuntimeError, IndexError, TypeError, ValueError):
                return False
        return True

    def _build(self, seed: int) -> Callable[..., Any]:
        source, name = self.source, f"<boundary {seed}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        namespace: dict[str, Any] = {"torch": torch, "look": look, "__name__": "boundary"}
        exec(compile(source, name, "exec"), namespace)
        made: Callable[..., Any] = namespace["program"]
        return made


def inputs(variant: int) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves, and the arguments made of them. Variants: who requires gradients, who is computed, who is a view of whom."""
    generator = torch.Generator().manual_seed(variant)
    leaves = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in ARGUMENTS]
    grads = [(True, False, True), (False, False, False), (True, True, False), (True, False, True)][variant % 4]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.requires_grad_(grad)
    arguments = [leaf + 0 for leaf in leaves]  # may be written to
    if variant % 4 == 1:
        arguments[1] = arguments[0].view(-1).view(4, 4)
    if variant % 4 == 3:
        arguments[2] = leaves[2]
    return leaves, arguments


@dataclass
class Observed:
    """What one run showed."""

    error: str
    text: str
    facts: list[Any]
    values: list[Tensor | None]


def observe(call: Callable[..., Any], m: Small, variant: int, backwards: int) -> Observed:
    """Run, differentiate so many times, and tell everything that a program can see of the results."""
    leaves, arguments = inputs(variant)
    out: list[Any] = []
    text = io.StringIO()
    with contextlib.redirect_stdout(text), torch.set_grad_enabled(variant != 4):
        try:
            results = call(m, *arguments, out)
        except Exception as error:
            return Observed(f"{type(error).__name__}: {error}", text.getvalue(), out, [])
    kept = [m.kept] if isinstance(getattr(m, "kept", None), Tensor) else []
    everything = [*results, *kept, *arguments, m.w, m.buf]
    facts: list[Any] = [torch.is_grad_enabled(), *out]
    for value in everything:
        same = [other is value for other in everything]
        base = [other is value._base for other in everything]  # whose base nobody sees may be no view
        shared = [o.untyped_storage()._cdata == value.untyped_storage()._cdata for o in everything]
        place = value.shape, value.stride(), value.storage_offset(), value.dtype
        facts.append((value.requires_grad, _ask(value, "is_leaf"), _recorded(value), same, base, shared, place))
    values: list[Tensor | None] = [v.detach().clone() for v in everything]
    seen = [v for v in everything if v.requires_grad and _recorded(v) is True]
    error = ""
    try:
        for k in range(backwards if seen else 0):
            generator = torch.Generator().manual_seed(k)
            weights = [torch.randn(v.shape, generator=generator, dtype=v.dtype) for v in seen]
            torch.autograd.backward(seen, weights, retain_graph=k < backwards - 1)
    except RuntimeError as failed:
        error = str(failed)[:60]
    differentiated = [*leaves, m.w, *m.lin.parameters(), *(v for v in everything if _ask(v, "is_leaf") is True)]
    values += [None if v.grad is None else v.grad.clone() for v in differentiated]
    with torch.no_grad():
        for parameter in m.parameters():
            parameter.grad = None
    m.__dict__.pop("kept", None)
    if m.buf.requires_grad or m.buf.shape != (4, 4):
        m.buf = torch.ones(4, 4, dtype=torch.float64)
    return Observed(error, text.getvalue(), facts, values)


def _ask(value: Tensor, name: str) -> Any:
    """A fact; a view whose memory was written to may refuse to tell."""
    try:
        return getattr(value, name)
    except RuntimeError:
        return "refused"


def _recorded(value: Tensor) -> bool | str:
    """Whether autograd knows how the tensor was made."""
    found = _ask(value, "grad_fn")
    return found if found == "refused" else found is not None


def difference(wanted: Observed, found: Observed) -> str:
    """What is different, "" where nothing is."""
    if wanted.error or found.error:
        return "" if bool(wanted.error) == bool(found.error) else f"errors: {wanted.error!r}, {found.error!r}"
    if wanted.text != found.text:
        return f"printed {wanted.text!r}, {found.text!r}"
    if any("refused" in fact for fact in wanted.facts if isinstance(fact, tuple)):  # autograd itself gives up
        return ""
    if wanted.facts != found.facts:
        return next(
            f"fact {i}:\n{a}\n{b}" for i, (a, b) in enumerate(zip(wanted.facts, found.facts, strict=True)) if a != b
        )
    for i, (a, b) in enumerate(zip(wanted.values, found.values, strict=True)):
        if (a is None) != (b is None) or a is not None and b is not None and not torch.allclose(a, b, equal_nan=True):
            return f"value {i}:\n{a}\n{b}"
    return ""


def halves_as_they_are(
    graph: Any, example_inputs: Any, config: Any, passes: Any = ()
) -> tuple[Callable[..., Any], Any]:
    """In the place of `compile_graph`: a graph runs as it is, once it is known to have a functional form."""
    from intarsia.frontend.errors import Unsupported
    from intarsia.frontend.functional.trace import functionalize
    from intarsia.graph_compiler import Report

    with contextlib.suppress(Unsupported):
        functionalize(graph, example_inputs)

    def run(*args: Any) -> list[Any]:
        return [
            r.detach() if isinstance(r, Tensor) and r._is_view() else r for r in graph(*args)
        ]  # compiled ones are no views

    return run, Report()
