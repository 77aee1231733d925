"""`intarsia.minify`: the first wrong thing that `verify` finds, as a file of IR that is as small as possible, and a script that shows it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..ir.interpreter.run import run
from ..ir.text import parse_module, print_module
from ..passes.core.base import Pass
from ..passes.core.context import CompileContext
from ..passes.core.load import Given
from ..passes.core.manager import is_own
from ..passes.core.run import LOADED, REPRODUCER_HEADER
from ..tools.opt.check import run_on_target
from ..tools.opt.machines import machine_of
from ..tools.opt.reduce import reduced
from ..tools.opt.values import agree, inputs_of
from .verify import CODE, IMPORT, PASS, Finding, verify

IR, SCRIPT, INPUTS = "repro.ir", "repro.py", "inputs.pt"
_SEEDS = 4  # random inputs that are tried before the call's own are taken


def minify(
    fn: Any, *args: Any, folder: str | Path = "intarsia-repro", passes: Sequence[Given] = (), **kwargs: Any
) -> Path | None:
    """Write the smallest module that shows what is wrong, `repro.ir`, and a script that runs it, `repro.py`.

    Where it takes the inputs of the call, and random ones do not show it, they are kept beside it, and the module is not made smaller.

    Args:
        folder: where to; it is made where it is not there.
        passes: passes of others, as for `compile`.

    Returns:
        The script; None where nothing is wrong.

    Raises:
        TypeError: `fn` is nothing that can be compiled, or one of `passes` is no pass.
        RuntimeError: nothing was found, but not every graph could be looked at.
        OSError: the files cannot be written.
    """
    found = verify(fn, *args, passes=passes, **kwargs)
    if found:
        return None
    if not found.findings:
        raise RuntimeError(f"minify found nothing to make smaller, but could not look at everything: {found}")
    finding = found.findings[0]
    test = next(
        (t for t in (_Test(finding, f"random:{seed}") for seed in range(_SEEDS)) if t.fails(finding.before)), None
    )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    text = finding.before
    if test is not None and finding.stage == PASS:
        text = print_module(reduced(parse_module(text), test))
    flags = _flags(finding) if test is None else ["--inputs", test.inputs, *_flags(finding)]
    if test is None:
        torch.save(list(finding.values), place / INPUTS)
    (place / IR).write_text(_header(finding) + text, encoding="utf-8")
    (place / SCRIPT).write_text(_script(finding, flags, kept=test is None), encoding="utf-8")
    return place / SCRIPT


class _Test:
    """Whether a module shows the mistake with random inputs."""

    def __init__(self, finding: Finding, inputs: str) -> None:
        self.finding, self.inputs, self.runs = finding, inputs, 0
        self.machine = machine_of("cpu:native", None)

    def fails(self, text: str) -> bool:
        self.runs += 1
        if self.finding.stage == IMPORT:
            return False
        try:
            module = parse_module(text)
            inputs = inputs_of(module, self.inputs, {})
            wanted = run(module, inputs.fresh())
        except Exception:
            return False
        try:
            if self.finding.stage == CODE:
                found = run_on_target(module, inputs)
            else:
                assert self.finding.item is not None
                self.finding.item.apply(CompileContext(self.machine), module)
                found = run(module, inputs.fresh())
        except Exception:
            return self.finding.message.startswith("it raises")
        return not self.finding.message.startswith("it raises") and not agree(found, wanted)


def _header(finding: Finding) -> str:
    """What `--run-reproducer` reads."""
    if finding.stage != PASS or finding.item is None:
        return ""
    what = f"{REPRODUCER_HEADER}: pass '{finding.pass_name}'"
    machine = machine_of("cpu:native", None).text
    return f"{what}\n// pipeline: {finding.item.spec}\n// machine: {machine}\n"


def _flags(finding: Finding) -> list[str]:
    if finding.stage == PASS:
        return ["--check-each", "--run-reproducer"]  # the file says which pass, with its options, on which machine
    return ["--run-compiled"] if finding.kernel else ["-p", "default", "--target", "cpu:native", "--run-compiled"]


def _script(finding: Finding, flags: list[str], kept: bool) -> str:
    what = f"pass '{finding.pass_name}'" if finding.stage == PASS else finding.stage
    imports, around, load = _whose(finding.item)
    files = f'"--inputs", str(here / "{INPUTS}"), ' if kept else ""
    call = f'main([{files}{", ".join(map(repr, [*load, *flags]))}, str(here / "{IR}")])'
    lines = [
        f'"""Shows what is wrong: {what}."""',
        "import sys",
        "from pathlib import Path",
        "from intarsia.tools.opt.main import main",
        *imports,
        "here = Path(__file__).parent",
        *([around, f"    sys.exit({call})"] if around else [f"sys.exit({call})"]),
    ]
    return "\n".join(lines) + "\n"


def _whose(item: Pass | None) -> tuple[list[str], str, list[str]]:
    """How a script gets at a pass of others: lines in front, a `with` around the call, or flags."""
    if item is None or is_own(type(item)):
        return [], "", []
    kind = type(item)
    if (
        hasattr(sys.modules.get(kind.__module__), LOADED)
        or kind.__module__ == "__main__"
        or importlib.util.find_spec(kind.__module__) is None
    ):
        return [], "", ["--load", str(Path(inspect.getfile(kind)).absolute())]
    root = Path(inspect.getfile(kind)).absolute().parents[kind.__module__.count(".")]
    imports = [
        f"sys.path.insert(0, {str(root)!r})",
        "from intarsia.passes.core.manager import registered",
        f"from {kind.__module__} import {kind.__qualname__}",
    ]
    return imports, f"with registered({kind.__qualname__}):", []
