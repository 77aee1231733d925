"""`--run` and `--check-each`: what a module computes, between its stages, by the reference interpreter or by compiled code."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects.prim import Func
from ...ir.interpreter.run import run
from ...ir.text import print_module
from ...passes.core.base import LEVELS, Pass
from ...passes.core.levels import module_levels
from ...passes.pipeline import is_for_gpu
from ...targets.build.cache import Cache
from ...targets.build.program import build, generate
from ...targets.build.toolchain import find_toolchain
from ...targets.host.library import Library
from .errors import InputError
from .values import Inputs, agree, apart, shown


class WrongPass(Exception):
    """A pass changed what the module computes."""


def level_of(module: ModuleOp) -> str:
    """The highest level that the module is legal at; "mixed" where there is none."""
    return min(module_levels(module), key=LEVELS.index, default="mixed")


def results_of(module: ModuleOp, inputs: Inputs, what: str) -> list[Tensor]:
    """What the interpreter gives.

    Raises:
        InputError: it cannot run the module; `what` says which one in the message.
    """
    try:
        return run(module, inputs.fresh())
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"the interpreter cannot run {what}: {type(error).__name__}: {text}") from None


def of_nothing(wanted: Sequence[Tensor]) -> str:
    """A sentence where results have no finite element: all that is not finite is equal, whatever a pass does to it. Else ""."""
    found = [k for k, t in enumerate(wanted) if t.numel() and t.is_floating_point() and not t.isfinite().any()]
    if not found:
        return ""
    which = "all results have" if len(found) == len(wanted) else f"result {', '.join(map(str, found))} of them has"
    return f"{which} no finite element, which tells nothing: give others with --inputs"


class Checker:
    """Runs the module before the first pass, and behind each that changes it: the first one that changes the answer is named."""

    def __init__(self, module: ModuleOp, inputs: Inputs, tolerance: float | None = None) -> None:
        self.inputs, self.wanted = inputs, results_of(module, inputs, "the module as it was read")
        self.tolerance = tolerance
        self.worst: tuple[float, str] = (0.0, "")

    def __call__(self, item: Pass, module: ModuleOp) -> None:
        """Behind a pass.

        Raises:
            WrongPass: names the pass, the result and the difference.
        """
        try:
            found = run(module, self.inputs.fresh())
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            raise WrongPass(f"the module cannot be run any more: {type(error).__name__}: {text}") from None
        if not agree(found, self.wanted, self.tolerance):
            raise WrongPass(_difference(found, self.wanted, self.tolerance))
        self.worst = max(self.worst, (apart(found, self.wanted), item.name))


def _difference(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float | None) -> str:
    if len(found) != len(wanted):
        return f"the module gives {len(found)} results, and gave {len(wanted)}"
    k = next(k for k, (a, b) in enumerate(zip(found, wanted, strict=True)) if not agree([a], [b], tolerance))
    far = apart([found[k]], [wanted[k]])
    return (
        f"result {k} is {shown(found[k])}\n  and was   {shown(wanted[k])}\n  apart by {far:.2g} of its largest element"
    )


class Stages:
    """`--run`: results at the end of each level, beside those of the module as it was read."""

    def __init__(self, module: ModuleOp, inputs: Inputs, tolerance: float | None = None) -> None:
        self.inputs, self.tolerance = inputs, tolerance
        self.wanted = results_of(module, inputs, "the module as it was read")
        self.rows = [(level_of(module), "as read", 0.0, True)]

    def note(self, stage: str, by: str, found: Sequence[Tensor]) -> None:
        self.rows.append((stage, by, apart(found, self.wanted), agree(found, self.wanted, self.tolerance)))

    def behind(self, item: Pass, module: ModuleOp, last: bool) -> None:
        """Behind a pass: one that leaves a level, or the last one."""
        if last or (item.gives is not None and item.gives != item.level):
            what = f"the module behind '{item.name}'"
            self.note(level_of(module), f"behind {item.name}", results_of(module, self.inputs, what))

    def report(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.inputs.sizes.items())
        lines = [f"results{f' with {sizes}' if sizes else ''}:"]
        lines += [f"  {shown(result)}" for result in self.wanted]
        lines += [f"  ({said})" for said in [of_nothing(self.wanted)] if said]
        lines.append(f"{'stage':<8}{'':<28}apart, in parts of the largest element")
        lines += [f"{s:<8}{by:<28}{far:.2g}{'' if right else '  WRONG'}" for s, by, far, right in self.rows]
        return "\n".join(lines) + "\n"

    @property
    def right(self) -> bool:
        return all(row[3] for row in self.rows)


def as_returned(module: ModuleOp) -> ModuleOp:
    """The module for a caller that receives what `@main` returns: no writes to arguments, no views made of them."""
    bare = module.clone()
    for op in bare.body.block.ops:
        if isinstance(op, Func) and op["sym_name"] == "main":
            count = len(op.block_body.last_op.operands) if op.block_body.last_op else 0
            op["results"] = tuple(("value", k) for k in range(count))
            op["mutations"] = ()
    return bare


def run_on_target(module: ModuleOp, inputs: Inputs) -> list[Tensor]:
    """What compiled code gives on this machine's processor.

    Args:
        module: at the `buffer` level. Its results are compared as the tensors that `@main` returns.

    Raises:
        InputError: the module has not come to the `buffer` level, is for a GPU, or what the user gets are not its returned values.
        CompilerNotFound, CompilerError: as in `intarsia.compile`.
    """
    if level_of(module) != "buffer":
        raise InputError("--run-compiled: the module is not at level 'buffer'; the pipeline 'default' takes it there")
    if is_for_gpu(module):
        raise InputError("--run-compiled: the module is for a GPU, and passes-opt runs code on processors only")
    bare = as_returned(module)
    library, key = Library(), hashlib.sha256(print_module(bare).encode()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        program = build(generate(bare, library), key, find_toolchain, Cache(Path(folder)), library)
        given: list[Any] = inputs.fresh()
        with torch.no_grad():
            found = list(program.run(*given))
    return [r for r in found if isinstance(r, Tensor)]
