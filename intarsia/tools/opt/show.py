"""What is printed beside the result: the IR around passes, times, statistics, the list of passes and of dialects."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, UnknownLoc
from xdsl.ir import Operation

from ...extend.target import Target
from ...ir.text import DIALECTS, print_module
from ...passes.core.base import LEVELS, Pass
from ...passes.core.context import Diagnostics
from ...passes.core.manager import Registry
from ...passes.core.run import PipelineRun
from ...passes.core.syntax import describe_options
from ...passes.pipeline import default_pipeline
from .errors import InputError

VERIFY = "(verify)"


def text_of(module: Operation, locations: bool = True) -> str:
    """The module's text, or with `locations` off that of a copy without the places in the user's code."""
    if locations:
        return print_module(module)
    bare = module.clone()
    for op in bare.walk():
        op.location = UnknownLoc()
    return print_module(bare)


class PassPrinter:
    """The `--print-ir-*` flags: IR on standard error, each under a line that names its pass; or files of a folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.last = ""
        self.ran = 0
        self.folder = None if args.print_ir_tree_dir is None else Path(args.print_ir_tree_dir)
        shown = (args.print_ir_before, args.print_ir_after)
        flags = (args.print_ir_before_all, args.print_ir_after_all, args.print_ir_after_change, args.print_ir_diff)
        self.wanted = any([*shown, *flags, self.folder is not None, args.print_ir_after_failure])

    def __call__(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        if not self.wanted:
            return
        args, before = self.args, self.last
        self.last = text = text_of(module, not args.no_loc)
        if phase == "before":
            if args.print_ir_before_all or name in args.print_ir_before:
                self._show(f"IR before {name}", text)
            return
        self.ran += 1
        if args.print_ir_after_all or name in args.print_ir_after or (args.print_ir_after_change and text != before):
            self._show(f"IR after {name}", text)
        if args.print_ir_diff:
            print(difference(name, before, text), file=sys.stderr, end="")
        if self.folder is not None:
            self._write(f"{self.ran:02d}-{name}.ir", text)

    def start(self, module: ModuleOp) -> None:
        """What the first pass receives."""
        if self.folder is not None:
            self._write("00-input.ir", text_of(module, not self.args.no_loc))

    def failed(self, name: str, module: ModuleOp) -> None:
        """A pass failed, and left the module like this."""
        if not self.args.print_ir_after_failure:
            return
        try:
            text = text_of(module, not self.args.no_loc)
        except Exception as error:  # what a broken pass leaves may have no text
            text = f"// it cannot be printed: {type(error).__name__}: {error}\n"
        self._show(f"IR after {name} failed", text)

    def _show(self, head: str, text: str) -> None:
        print(f"// ----- {head} -----\n{text}", file=sys.stderr, end="")

    def _write(self, name: str, text: str) -> None:
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--print-ir-tree-dir: cannot write '{self.folder / name}': {error.strerror}") from None


def difference(name: str, before: str, after: str) -> str:
    """What a pass changed, as a unified difference without its heads."""
    if before == after:
        return f"// ----- {name}: no change -----\n"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    body = [line for line in lines if not line.startswith(("---", "+++"))]
    return "\n".join([f"// ----- IR changed by {name} -----", *body]) + "\n"


def time_report(run: PipelineRun, levels: Sequence[str], form: str) -> str:
    """Seconds of passes: "list" in the order of the run, "tree" under the levels that they work on, or "json".

    Args:
        levels: the level of each pass of the run, without verifications.
    """
    total = sum(seconds for _, seconds in run.seconds) or 1e-12
    if form == "json":
        return (
            json.dumps({"total": total, "passes": [{"name": n, "seconds": s} for n, s in run.seconds]}, indent=1) + "\n"
        )
    if form == "list":
        return "".join(_row(seconds, total, name) for name, seconds in [*run.seconds, ("total", total)])
    table: dict[str, list[tuple[str, float]]] = {}
    ahead = iter(levels)
    for name, seconds in run.seconds:
        table.setdefault(VERIFY if name == VERIFY else next(ahead), []).append((name, seconds))
    lines = [_row(total, total, "total")]
    for level, rows in table.items():
        inside = rows if level != VERIFY else []
        lines.append(_row(sum(seconds for _, seconds in rows), total, f"  {level}"))
        lines += [_row(seconds, total, f"    {name}") for name, seconds in inside]
    return "".join(lines)


def _row(seconds: float, total: float, name: str) -> str:
    return f"{seconds:9.4f} s {100 * seconds / total:5.1f}%  {name}\n"


def statistics_report(diagnostics: Diagnostics) -> str:
    """One line a count."""
    return "".join(
        f"{number:9d}  {name}: {what}\n"
        for name, table in diagnostics.statistics.items()
        for what, number in table.items()
    )


def list_passes(passes: Registry) -> str:
    """One block a pass, in the order in which they run, then the others: name, roads, level, docstring, options."""
    roads = {road: [item.name for item in default_pipeline(gpu=road == "gpu")] for road in ("cpu", "gpu")}
    names = merged(*roads.values())
    names += sorted(passes.classes.keys() - set(names))
    width = max(map(len, names))
    lines = []
    for name in names:
        kind = passes.classes[name]
        level = kind.level if kind.gives in (None, kind.level) else f"{kind.level} -> {kind.gives}"
        first = (kind.__doc__ or "").strip().partition("\n")[0]
        where = " ".join(road for road, standard in roads.items() if name in standard) or "by name"
        lines.append(f"{name:<{width}}  {where:<7}  {level:<15}  {first}")
        if options := describe_options(kind):
            lines.append(f"{'':<{width + 9}}  {'':<15}  options: {options}")
    lines.append("Every pass also has the option remarks=false. `--help-pass NAME` says more of one.")
    return "\n".join(lines) + "\n"


def list_targets(targets: Iterable[Target]) -> str:
    """A line for each target of `--load`."""
    return "".join(f"target {t.name}: --emit {t.name}, which reads modules behind '{t.stage}'\n" for t in targets)


def merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The names of two lists in one: what only the second has stands behind what stands before it there."""
    found, place = list(dict.fromkeys(first)), 0
    for name in dict.fromkeys(second):
        if name not in found:
            found.insert(place, name)
        place = found.index(name) + 1
    return found


def help_pass(kind: type[Pass]) -> str:
    """A pass in full: its docstring, levels, edges, roads and options with their defaults."""
    roads = [road for road in ("cpu", "gpu") if kind.name in [p.name for p in default_pipeline(gpu=road == "gpu")]]
    text = textwrap.dedent("    " + (kind.__doc__ or "no description").strip())
    rows = [
        ("level", ", ".join([kind.level, *kind.accepts]) + (f" -> {kind.gives}" if kind.gives else "")),
        ("default pipeline", " and ".join(roads) or "no, by name only"),
        *(
            (where, ", ".join(getattr(kind, where)))
            for where in ("after", "before", "requires")
            if getattr(kind, where)
        ),
        ("defined in", f"{kind.__module__}.{kind.__qualname__}"),
    ]
    lines = [f"{kind.name}: {text}", "", *(f"  {what + ':':<18}{said}" for what, said in rows), "  options:"]
    for f in fields(kind):
        default = str(f.default).lower() if isinstance(f.default, bool) else f.default
        kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}
        lines.append(f"    {f.name.replace('_', '-')}={default}  ({kinds.get(type(f.default), 'not as text')})")
    return "\n".join(lines) + "\n"


def show_dialects() -> str:
    """The dialects with their operations, types and attributes; `aten` is an open set."""
    lines = []
    for dialect in DIALECTS:
        ops = sorted(op.name.partition(".")[2] for op in dialect.operations)
        types = sorted(attribute.name for attribute in dialect.attributes)
        lines += [f"{dialect.name} ({len(ops)} operations)"]
        lines += textwrap.wrap(" ".join(ops), 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        lines += [f"  types: {' '.join(types)}"] if types else []
    lines += ["aten (one operation for each of torch's operators, with an overload: aten.add.Tensor)", ""]
    lines += [f"levels: {' -> '.join(LEVELS)}"]
    return "\n".join(lines) + "\n"
