"""`passes-opt`: run passes on a file of IR, as mlir-opt does.

passes-opt --pipeline fuse,schedule graph.ir
passes-opt --until plan-buffers --print-changed graph.ir
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Span
from xdsl.xdsl_opt_main import xDSLOptMain

from ..ir.binding import all_late_names
from ..ir.dialects import loop, prim
from ..ir.text import make_context, print_module
from .analysis.machine import CPUS, Machine
from .core.base import LEVELS, Pass, PassError
from .core.context import CompileContext, Diagnostics
from .core.levels import module_levels
from .core.manager import PipelineError, Registry, describe_options, pipeline_text
from .core.run import REPRODUCER_HEADER, PipelineRun, run_pipeline
from .pipeline import CPU, GPU, default_pipeline, is_for_gpu, registry


class PositionParser(Parser):
    """A parser that remembers where each operation stands in the text."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.positions: dict[Operation, int] = {}

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        op = super().parse_operation()
        self.positions[op] = start
        return op


class PassesOpt(xDSLOptMain):
    """xDSL's driver with our dialects, passes and pipeline."""

    passes: Registry
    version_format: ClassVar[str] = "passes-opt of intarsia, on xdsl {xdsl_version}"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        self.passes = registry()
        super().__init__("Run Intarsia's passes on a file of IR (or on standard input).", args)
        self.ctx = make_context()

    # What the base class would load from xDSL itself: dialects and passes that we do not have.
    def register_all_dialects(self) -> None: ...

    def register_all_passes(self) -> None: ...

    def register_all_targets(self) -> None:
        self.available_targets["mlir"] = lambda module, stream: _discard(stream.write(print_module(module)))

    def register_all_frontends(self) -> None: ...

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "passes-opt"
        super().register_all_arguments(arg_parser)
        for action in arg_parser._actions:
            if not set(action.option_strings) & _KEPT and action.option_strings:
                action.help = argparse.SUPPRESS
        for flags, how in _FLAGS:
            arg_parser.add_argument(*flags, **how)

    def setup_pipeline(self) -> None:
        """Check everything that the command line alone decides, before any input is read."""
        self.machine = Machine(replace(CPUS[self.args.isa], threads=self.args.threads))
        self.chosen = [] if self.args.pipeline in (None, "default") else self.passes.parse(self.args.pipeline)
        if self.args.until is not None:
            self.until = self._until(self.args.until)
        for name in self.args.print_before + self.args.print_after:
            self.passes.make(name)

    def _until(self, text: str) -> Pass:
        """The pass named, or the one that gives the level named."""
        givers = self.passes.giving(text) if text in LEVELS else []
        parsed = self.passes.parse(givers[0] if givers else text)
        if len(parsed) != 1:
            raise PipelineError(f"--until takes one pass, not '{text}'")
        return parsed[0]

    def run(self) -> int:
        """Read, run, write; the exit code."""
        if self.args.list:
            print(list_passes(self.passes), end="")
            return 0
        name, text = self._input()
        chunks = re.split(r"^// -----.*$", text, flags=re.M) if self.args.split_input_file else [text]
        outputs, line = [], 0
        for chunk in chunks:
            # Blank lines in front keep the line numbers of the whole file.
            try:
                outputs.append(self._chunk("\n" * line + chunk, name))
            except ParseError as error:
                if not self.args.parsing_diagnostics:
                    raise
                outputs.append(f"{error_text(error)}\n")
            except LocatedVerifyError as error:
                if not self.args.verify_diagnostics:
                    raise
                outputs.append(f"{error}\n")
            line += chunk.count("\n")
        self._write("// -----\n".join(outputs))
        return 0

    def _input(self) -> tuple[str, str]:
        path = self.args.run_reproducer or self.args.input_file
        if path is None or path == "-":
            return "<stdin>", sys.stdin.read()
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read '{path}': {reason}") from None
        if self.args.run_reproducer:
            self._read_header(text, path)
        return path, text

    def _read_header(self, text: str, path: str) -> None:
        header = dict(re.findall(r"^// (\w+): (.*)$", text, flags=re.M))
        if not text.startswith(REPRODUCER_HEADER) or "pipeline" not in header:
            raise InputError(f"'{path}' is not a reproducer: it does not start with '{REPRODUCER_HEADER}'")
        self.chosen = self.passes.parse(header["pipeline"])
        try:
            self.machine = Machine.read(header["machine"]) if "machine" in header else self.machine
        except ValueError as error:
            raise InputError(f"'{path}': {error}") from None

    def _write(self, text: str) -> None:
        if self.args.output_file in (None, "-"):
            sys.stdout.write(text)
            return
        try:
            Path(self.args.output_file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write '{self.args.output_file}': {error.strerror}") from None

    def _chunk(self, text: str, name: str) -> str:
        parser = PositionParser(self.ctx.clone(), text, name)
        module = parser.parse_module(not self.args.no_implicit_module)
        if not self.args.disable_verify:
            verify_located(module, parser)
        ctx = CompileContext(self.machine, Diagnostics(want_remarks=self.args.remarks))
        passes = self._passes_for(module)
        directory = None if self.args.run_reproducer else self.args.reproducer_dir or "."
        check, printer = self.args.verify_each, PassPrinter(self.args)
        run = run_pipeline(ctx, module, passes, verify_each=check, on_pass=printer, reproducer_dir=directory)
        ctx.diagnostics.print()
        if self.args.time_passes:
            print(time_report(run), file=sys.stderr, end="")
        if self.args.statistics:
            print(statistics_report(ctx.diagnostics), file=sys.stderr, end="")
        if self.args.print_pipeline:
            print(f"pipeline: {pipeline_text(passes)}", file=sys.stderr)
        return print_module(module)

    def _passes_for(self, module: ModuleOp) -> list[Pass]:
        levels = module_levels(module)
        if self.args.until is not None:
            return self.passes.required_for(self.until, levels, GPU if self._on_gpu(module) else CPU)
        if self.args.pipeline == "default":
            at = min((LEVELS.index(level) for level in levels), default=0)
            return [p for p in default_pipeline(gpu=self._on_gpu(module)) if LEVELS.index(p.level) >= at]
        return self.chosen

    def _on_gpu(self, module: ModuleOp) -> bool:
        return is_for_gpu(module) if self.args.device is None else bool(self.args.device == "gpu")


class InputError(Exception):
    """A file that cannot be read or written."""


class LocatedVerifyError(Exception):
    """A verifier's error with the place of its operation in the text."""


def _discard(_: object) -> None: ...


_KEPT = {"-h", "-o", "-v", "--split-input-file", "--verify-diagnostics", "--parsing-diagnostics"}
_KEPT |= {"--time-passes", "--disable-verify"}
_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--pipeline",),
        {"metavar": "PASSES", "help": "run exactly these: fuse{max-ops=8},schedule; 'default': as compile does"},
    ),
    (("--until",), {"metavar": "PASS", "help": "run this pass (or to this level) and what it requires before it"}),
    (("--list",), {"action": "store_true", "help": "list the passes with their levels and options"}),
    (("--print-before",), {"metavar": "NAME", "action": "append", "default": [], "help": "print the IR before a pass"}),
    (("--print-after",), {"metavar": "NAME", "action": "append", "default": [], "help": "print the IR after a pass"}),
    (("--print-before-all",), {"action": "store_true", "help": "print the IR before each pass"}),
    (("--print-after-all",), {"action": "store_true", "help": "print the IR after each pass"}),
    (("--print-changed",), {"action": "store_true", "help": "print a difference after each pass that changed the IR"}),
    (("--print-pipeline",), {"action": "store_true", "help": "print the pipeline that ran"}),
    (("--statistics",), {"action": "store_true", "help": "print what the passes counted"}),
    (("--remarks",), {"action": "store_true", "help": "print what the passes did and refused, and why"}),
    (("--verify-each",), {"action": "store_true", "help": "verify after each pass, not only at the end"}),
    (("--run-reproducer",), {"metavar": "FILE", "help": "run the pipeline that a reproducer file names, on that file"}),
    (("--reproducer-dir",), {"metavar": "DIR", "help": "where a failing pass leaves its reproducer (default: here)"}),
    (
        ("--device",),
        {"choices": ("cpu", "gpu"), "help": "the road of --until and 'default' (default: where the values lie)"},
    ),
    (("--threads",), {"type": int, "default": Machine().cpu.threads, "help": "threads that kernels may use"}),
    (
        ("--isa",),
        {"choices": tuple(CPUS), "default": Machine().cpu.name, "help": "instruction set that loops are made for"},
    ),
)


class PassPrinter:
    """The `--print-*` flags: IR on standard error, each under a line that names its pass."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.last = ""

    def __call__(self, name: str, module: ModuleOp, seconds: float, phase: str) -> None:
        args = self.args
        chosen, every = (
            (args.print_before, args.print_before_all)
            if phase == "before"
            else (args.print_after, args.print_after_all)
        )
        if not (every or name in chosen or args.print_changed):
            return
        text = print_module(module)
        if every or name in chosen:
            print(f"// ----- IR {phase} {name} -----\n{text}", file=sys.stderr, end="")
        if args.print_changed and phase == "after":
            print(_difference(name, self.last, text), file=sys.stderr, end="")
        self.last = text


def _difference(name: str, before: str, after: str) -> str:
    if before == after:
        return f"// ----- {name}: no change -----\n"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    body = [line for line in lines if not line.startswith(("---", "+++"))]
    return "\n".join([f"// ----- IR changed by {name} -----", *body]) + "\n"


def verify_located(module: ModuleOp, parser: PositionParser) -> None:
    """Verify each operation by itself, so that an error has the place of the innermost one.

    Raises:
        LocatedVerifyError: file, line, column, the line itself and a caret.
    """
    for op in [*(op for op in module.walk() if not op.regions), *module.walk()]:  # what is inside of another first
        try:
            func = op.parent_op()
            while func is not None and not isinstance(func, prim.Func | loop.Kernel):
                func = func.parent_op()
            if isinstance(func, prim.Func):
                func.check_names(op, all_late_names(func.block_body.ops))
            op.verify(verify_nested_ops=False)
        except VerifyException as error:
            start = parser.positions.get(op, 0)
            span = Span(start, start + len(_token_at(parser.lexer.input.content, start)), parser.lexer.input)
            raise LocatedVerifyError(caret_text(span, str(error))) from None
    try:
        module.verify()
    except (VerifyException, ValueError) as error:
        span = Span(0, 1, parser.lexer.input)
        raise LocatedVerifyError(caret_text(span, str(error).splitlines()[0])) from None


def _token_at(text: str, start: int) -> str:
    match = re.compile(r"(%[\w, %:]+= )?[\w.]+").match(text, start)
    return match.group() if match else " "


def caret_text(span: Span[str], message: str) -> str:
    """`file:line:column: error: message`, the line, and carets under the place."""
    source: Input[str] = span.input
    begin = source.get_start_of_line(span.start)
    end = source.get_end_of_line(span.start)
    line, column = source.content.count("\n", 0, span.start) + 1, span.start - begin
    shown = source.content[begin:end]
    carets = "^" * max(1, min(span.end, end) - span.start)
    if len(shown) > 160:  # keep the place visible in a long line
        first = max(0, column - 60)
        shown, column = shown[first : first + 160], column - first
        carets = carets[: 160 - column] or "^"
    return f"{source.name}:{line}:{begin and span.start - begin + 1 or span.start + 1}: error: {message}\n  {shown}\n  {' ' * column}{carets}"


def error_text(error: ParseError) -> str:
    """A parse error in the same form as the verifier's."""
    span: Any = error.span
    return caret_text(span, error.msg)


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
    lines.append("Every pass also has the option remarks=false.")
    return "\n".join(lines) + "\n"


def merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The names of two lists in one: what only the second has stands behind what stands before it there."""
    found, place = list(dict.fromkeys(first)), 0
    for name in dict.fromkeys(second):
        if name not in found:
            found.insert(place, name)
        place = found.index(name) + 1
    return found


def time_report(run: PipelineRun) -> str:
    """A table of seconds, in the order of the run."""
    total = sum(seconds for _, seconds in run.seconds)
    rows = [*run.seconds, ("total", total)]
    return "".join(f"{seconds:9.4f} s {100 * seconds / (total or 1):5.1f}%  {name}\n" for name, seconds in rows)


def statistics_report(diagnostics: Diagnostics) -> str:
    """One line a count."""
    return "".join(
        f"{number:9d}  {name}: {what}\n"
        for name, table in diagnostics.statistics.items()
        for what, number in table.items()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 fine; 1 the input or a pass is at fault; 2 the command line is."""
    try:
        return PassesOpt(argv).run()
    except PipelineError as error:
        return _fail(f"passes-opt: {error}", 2)
    except ParseError as error:
        return _fail(error_text(error), 1)
    except LocatedVerifyError as error:
        return _fail(str(error), 1)
    except (PassError, InputError) as error:
        return _fail(f"passes-opt: error: {error}", 1)
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
