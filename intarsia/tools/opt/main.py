"""The command: what the flags ask for, in order: read, run the passes, write."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ParseError

from ...exchange.errors import ExchangeError
from ...extend.target import Target, Unwritten, check_level, installed_targets, targets_in, text_of, up_to
from ...ir.syntax import visible
from ...ir.text import make_context, parse_module, print_module
from ...passes.analysis.machine import Machine
from ...passes.core.base import LEVELS, Pass, PassError
from ...passes.core.context import CompileContext, Diagnostics
from ...passes.core.levels import module_levels
from ...passes.core.load import NO_PASS, Loaded, load, passes_in
from ...passes.core.manager import Registry, registered
from ...passes.core.run import REPRODUCER_HEADER, PassFailure, run_pipeline, write_reproducer
from ...passes.core.syntax import PipelineError, pipeline_text, suggest
from ...passes.pipeline import CPU, GPU, default_pipeline, is_for_gpu, registry
from ...reports.module import module_facts
from ...reports.page import page
from ...reports.record import PassRecord, Recording
from ...targets.build.toolchain import CompilerError, CompilerNotFound
from ...targets.triton.worker import TritonError
from . import show
from .arguments import completion, parsed
from .bisect import kept_passes
from .check import Checker, Stages, WrongPass, of_nothing, run_on_target
from .combinations import check, check_shown, say_without_passes
from .emit import EMITTED, emitted, order_svg
from .errors import CommandError, InputError, LocatedVerifyError, PositionParser, error_text, verify_located
from .imports import imported, imported_model, with_constants
from .machines import TARGETS, machine_of, moved
from .reduce import Test, reduced
from .values import Inputs, inputs_of, sizes_of

_MOST_LINES, _LONGEST = 15, 400  # of an error: lines, and characters of one


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 fine; 1 the input or a pass is at fault, or results differ; 2 the command line is."""
    args = parsed(argv)
    try:
        loaded = load(args.load, args.load_package)
        for each in loaded:
            if not (passes_in(each) or targets_in(each)):
                raise PipelineError(_nothing_in(each))
        for target in (t for each in loaded for t in targets_in(each)):
            if target.name in (*EMITTED, *TARGETS):
                raise CommandError(
                    f"the target {type(target).__qualname__} cannot be called '{target.name}': that is one of ours"
                )
        with registered(*dict.fromkeys(item for each in loaded for item in passes_in(each))):
            known = {n: t for n, t in installed_targets().items() if n not in (*EMITTED, *TARGETS)}
            return _Command(args, known | {t.name: t for each in loaded for t in targets_in(each)}).run()
    except (PipelineError, CommandError) as error:
        return _fail(f"passes-opt: {error}", 2)
    except ParseError as error:
        return _fail(error_text(error), 1)
    except LocatedVerifyError as error:
        return _fail(str(error), 1)
    except (PassError, InputError, ExchangeError, Unwritten, CompilerNotFound, CompilerError, TritonError) as error:
        return _fail(f"passes-opt: error: {error}", 1)
    except (RecursionError, MemoryError):
        return _fail("passes-opt: error: the file is nested too deeply, or too large", 1)
    except KeyboardInterrupt:
        return _fail("passes-opt: interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:  # a module that verifies, and that a pass or a target does not expect
        return _fail(f"passes-opt: error: {_unexpected(error)}", 1)


def _nothing_in(loaded: Loaded) -> str:
    module, where, _ = loaded
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, Pass | Target) and kind.__module__ == module.__name__:
            return f"{where}: the class {name} has no name: give it the class attribute 'name'"
    return f"{where} has no pass: {NO_PASS}; and no target"


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    lines = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..." for line in visible(message).splitlines()]
    cut = [*lines[: _MOST_LINES - 1], f"... and {len(lines) - _MOST_LINES + 1} lines more"]
    print("\n".join(lines if len(lines) <= _MOST_LINES else cut), file=sys.stderr)
    return code


def _unexpected(error: Exception) -> str:
    """What was raised, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('intarsia/')[2]}:{place.lineno}, in {place.name}"
    said = "\n".join(str(error).splitlines()[:6])
    return f"the module is not what a pass or a target expects: {type(error).__name__}: {said} ({where})"


class _Command:
    """One call of the tool. What the command line alone decides is checked before any input is read."""

    def __init__(self, args: argparse.Namespace, theirs: Mapping[str, Target]) -> None:
        self.args, self.theirs = args, theirs
        check(args, theirs)
        if args.target in theirs:  # it is no machine: what it writes is what is asked for
            args.emit, args.target = args.target, None
        self.passes: Registry = registry()
        self.machine = machine_of(args.target or ("cpu:native" if args.run_compiled else None), args.threads)
        self.ctx = make_context()
        self.pipeline: str | None = args.pipeline
        self.wrong = False
        self._check_pipeline()
        if args.until is not None:
            self.until = self._until(args.until)
        for name in (*args.print_ir_before, *args.print_ir_after):
            self.passes.make(name)
        self.sizes = sizes_of(args.sizes)

    def _check_pipeline(self) -> None:
        if self.pipeline is not None:
            self.passes.parse(self.pipeline, [self.passes.make(name) for name in self.passes.classes])

    def _until(self, text: str) -> Pass:
        """The pass named, or the one that gives the level named."""
        givers = self.passes.giving(text) if text in LEVELS else []
        if re.fullmatch(r"[\w-]+", text) and not givers and text not in self.passes.classes:
            known = [*LEVELS[1:], *self.passes.classes]
            raise PipelineError(f"unknown pass or level '{text}'{suggest(text, known)}")
        parsed = self.passes.parse(givers[0] if givers else text)
        if len(parsed) != 1:
            raise PipelineError(f"--until takes one pass, not '{text}'")
        return parsed[0]

    def run(self) -> int:
        """Read, run, write; the exit code."""
        asked = self._help()
        if asked is not None:
            self._write(asked)
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
        if self.args.emit in ("cubin", "benchmarks"):  # whose files are written
            sys.stdout.write("".join(outputs))
        else:
            self._write("// -----\n".join(outputs))
        return int(self.wrong)

    def _help(self) -> str | None:
        """What needs no input."""
        args = self.args
        answers: list[tuple[object, Callable[[], str]]] = [
            (args.version, _versions),
            (args.list, lambda: show.list_passes(self.passes) + show.list_targets(self.theirs.values())),
            (args.help_pass, lambda: show.help_pass(type(self.passes.make(args.help_pass)))),
            (args.show_dialects, show.show_dialects),
            (
                args.completion,
                lambda: completion(args.completion, tuple(sorted(self.passes.classes)), tuple(self.theirs)),
            ),
            (args.graph, self._graph),
        ]
        return next((text() for wanted, text in answers if wanted), None)

    def _graph(self) -> str:
        gpu = (self.args.target or "").startswith("triton")
        return order_svg(default_pipeline(gpu=gpu), GPU if gpu else CPU)

    def _input(self) -> tuple[str, str]:
        path = self.args.run_reproducer or self.args.input_file
        is_stream = path is None or path == "-"
        name = "<stdin>" if is_stream else path
        if self.args.source == "onnx":
            if is_stream:
                raise InputError("--from onnx: a model of ONNX is read from a file, not from standard input")
            if not Path(path).is_file():
                raise InputError(f"cannot read '{path}': it is {'a folder' if Path(path).is_dir() else 'no file'}")
            return path, ""
        try:
            text = sys.stdin.read() if is_stream else Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read '{name}': {reason}") from None
        if not text.strip():
            raise InputError(f"'{name}' is empty: there is no module in it")
        if self.args.run_reproducer:
            self._read_header(text, path)
        return name, text

    def _read_header(self, text: str, path: str) -> None:
        header = dict(re.findall(r"^// (\w+): (.*)$", text, flags=re.M))
        if not text.startswith(REPRODUCER_HEADER) or "pipeline" not in header:
            raise InputError(f"'{path}' is not a reproducer: it does not start with '{REPRODUCER_HEADER}'")
        self.pipeline = header["pipeline"]
        self._check_pipeline()
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
        args = self.args
        constants: Sequence[Tensor] = ()
        if args.source:
            made = imported_model(name, self.sizes) if args.source == "onnx" else imported(text, name)
            module, constants = made.module, made.constants
        else:
            positions = PositionParser(self.ctx.clone(), text, name)
            module = positions.parse_module()
            if not args.disable_verify:
                verify_located(module, positions)
        if args.reduce:
            test = Test(args.test, main, 60.0 if args.test_seconds is None else args.test_seconds, args.test_prints)
            return self._text(reduced(module, test, lambda line: print(line, file=sys.stderr)))
        self.recording, self.record = Recording(), PassRecord(print_module(module))
        passes = self._passes_for(module)
        check_shown(args, [item.name for item in passes])
        wanted = args.run or args.run_compiled or args.check_each
        inputs = (
            with_constants(inputs_of(module, args.inputs or "random", {} if args.source else self.sizes), constants)
            if wanted
            else None
        )
        stages = Stages(module, inputs, args.tolerance) if (args.run or args.run_compiled) and inputs else None
        ctx = CompileContext(self.machine, Diagnostics(want_remarks=args.remarks or args.emit == "html"))
        self._run(ctx, module, passes, inputs, stages)
        if stages is not None and inputs is not None:
            if args.run_compiled:
                stages.note("code", "compiled C++", run_on_target(module, inputs))
            self.wrong |= not stages.right
            return stages.report()
        if args.emit == "html":
            return page(module_facts(name, self.record, ctx.diagnostics, module, self.recording))
        if args.emit in self.theirs:
            target, gpu = self.theirs[args.emit], is_for_gpu(module)
            check_level(target, module_levels(module), default_pipeline(gpu=gpu))
            return text_of(target, module)
        if args.emit:
            return emitted(module, args.emit, args.target, args.output_file, not args.no_loc)
        return self._text(module)

    def _text(self, module: ModuleOp) -> str:
        return show.text_of(module, not self.args.no_loc)

    def _run(
        self, ctx: CompileContext, module: ModuleOp, passes: list[Pass], inputs: Inputs | None, stages: Stages | None
    ) -> None:
        args, printer = self.args, show.PassPrinter(self.args)
        checker = Checker(module, inputs, args.tolerance) if args.check_each and inputs is not None else None
        if not passes:
            say_without_passes(args)
            if args.disable_verify:  # what runs no pass verifies what was read
                return
        before, ran = "", 0
        printer.start(module)

        def on_pass(name: str, current: ModuleOp, seconds: float, phase: str) -> None:
            nonlocal before, ran
            printer(name, current, seconds, phase)
            if phase == "before":
                before = print_module(current) if checker or args.verify_roundtrip else ""
                return
            item = passes[ran]
            ran += 1
            if args.emit == "html":
                self.recording.spent(name, seconds, "pass")
                self.record.behind(name, print_module(current), seconds)
            try:
                if args.verify_roundtrip:
                    _check_roundtrip(current)
                if checker is not None and print_module(current) != before:
                    checker(item, current)
            except WrongPass as error:
                directory = None if args.run_reproducer else args.reproducer_dir or "."
                path = write_reproducer(directory, item, "wrong result", before, ctx.machine)
                raise PassFailure(item, str(error), path) from None
            if stages is not None:
                stages.behind(item, current, ran == len(passes))

        directory = None if args.run_reproducer else args.reproducer_dir or "."
        try:
            run = run_pipeline(
                ctx,
                module,
                passes,
                verify_each=args.verify_each,
                on_pass=on_pass,
                reproducer_dir=directory,
                limit=args.pass_seconds,
            )
        except PassFailure as error:
            printer.failed(error.pass_name, module)
            raise
        if args.emit != "html" or args.remarks:
            ctx.diagnostics.print()
        if checker is not None:
            said = "; ".join(filter(None, (_worst(*checker.worst), of_nothing(checker.wanted))))
            print(f"checked: {len(passes)} passes; {said}", file=sys.stderr)
        if args.timing:
            print(
                show.time_report(run, [p.level for p in passes], args.timing_display or "list"), file=sys.stderr, end=""
            )
        if args.statistics:
            print(show.statistics_report(ctx.diagnostics), file=sys.stderr, end="")
        if args.print_pipeline:
            print(f"pipeline: {pipeline_text(passes)}", file=sys.stderr)

    def _passes_for(self, module: ModuleOp) -> list[Pass]:
        gpu = moved(module, self.args.target)
        levels = module_levels(module)
        if self.args.until is not None:
            passes = self.passes.required_for(self.until, levels, GPU if gpu else CPU)
        else:
            at = min((LEVELS.index(level) for level in levels), default=0)
            default = [p for p in default_pipeline(gpu=gpu) if LEVELS.index(p.level) >= at]
            passes = self.passes.parse(self._asked_for(), default)
            if self.pipeline is None and self.args.emit in self.theirs:
                passes = up_to(self.theirs[self.args.emit].stage, passes)
        return passes if self.args.opt_bisect_limit is None else _bisected(passes, self.args.opt_bisect_limit)

    def _asked_for(self) -> str:
        """The pipeline as text: code is made behind all passes, a picture of the module as it is."""
        if self.pipeline is not None:
            return self.pipeline
        return "" if self.args.emit in (None, "dot", "linalg", "stablehlo") else "default"


def _bisected(passes: Sequence[Pass], limit: int) -> list[Pass]:
    kept, said = kept_passes(passes, limit)
    print("".join(said), file=sys.stderr, end="")
    return kept


def _check_roundtrip(module: ModuleOp) -> None:
    """The text reads back as itself.

    Raises:
        WrongPass: it does not; shows the first line that differs.
    """
    text = print_module(module)
    try:
        again = print_module(parse_module(text))
    except ParseError as error:
        raise WrongPass(f"its text does not parse:\n{error_text(error)}") from None
    if again != text:
        lines = zip(text.splitlines(), again.splitlines(), strict=False)
        first, second = next(((a, b) for a, b in lines if a != b), ("", ""))
        raise WrongPass(f"its text reads back as another module:\n  {first.strip()}\n  {second.strip()}")


def _worst(far: float, name: str) -> str:
    return (
        f"results at most {far:.2g} of their largest element apart, behind '{name}'"
        if far
        else "results are the same bits"
    )


def _versions() -> str:
    return f"passes-opt of intarsia {version('intarsia')}, with xdsl {version('xdsl')} and torch {version('torch')}\n"
