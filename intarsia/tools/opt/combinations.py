"""Flags that do not fit each other: what would else be passed by in silence is an error."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping

from ...config import suggestion
from ...extend.target import Target
from ...targets.build.toolchain import detect_isa
from .emit import EMITTED
from .errors import CommandError
from .machines import TARGETS

_HELP = ("version", "list", "help_pass", "show_dialects", "completion", "graph")


def check(args: argparse.Namespace, theirs: Mapping[str, Target]) -> None:
    """What the command line alone decides.

    Args:
        theirs: the targets of others by their names.

    Raises:
        CommandError: the first thing that is wrong.
    """
    for message in _wrong(args, theirs):
        raise CommandError(message)


def _wrong(args: argparse.Namespace, theirs: Mapping[str, Target]) -> Iterator[str]:
    yield from _outputs(args, theirs)
    yield from _numbers(args)
    yield from _reducing(args)
    yield from _reproducer(args)
    yield from _running(args)
    yield from _alone(args)


def _outputs(args: argparse.Namespace, theirs: Mapping[str, Target]) -> Iterator[str]:
    known = (*EMITTED, *theirs)
    if args.emit not in (None, *known):
        yield f"unknown --emit '{args.emit}'{suggestion(args.emit, known)}; known: {', '.join(known)}"
    if args.target in theirs and args.emit not in (None, args.target):
        yield f"--target {args.target} writes its own text, and --emit {args.emit} another: give one of them"
    if args.target not in (None, *TARGETS, *theirs) and (near := suggestion(args.target, theirs)):
        yield f"unknown target '{args.target}'{near}; of others: {', '.join(theirs)}"
    if args.until is not None and args.pipeline is not None:
        yield "--until chooses the passes, and so does --pipeline: give one of them"
    if sum(map(bool, (args.emit, args.run or args.run_compiled, args.reduce))) > 1:
        yield "--emit, --run and --reduce each replace the output: give one of them"
    if args.emit in ("html", "benchmarks") and args.split_input_file:
        yield f"--emit {args.emit} takes one module, and --split-input-file gives several modules"
    asked = [f"--{name.replace('_', '-')}" for name in _HELP if getattr(args, name)]
    if len(asked) > 1:
        yield f"{' and '.join(asked)} each print something of their own: give one of them"
    if args.output_file == "":
        yield "-o takes the name of a file"


def _numbers(args: argparse.Namespace) -> Iterator[str]:
    if args.threads is not None and args.threads < 1:
        yield f"--threads takes 1 or more, not {args.threads}"
    if args.opt_bisect_limit is not None and args.opt_bisect_limit < -1:
        yield f"--opt-bisect-limit takes 0 or more, or -1 for all passes, not {args.opt_bisect_limit}"
    for flag, seconds in (("--pass-seconds", args.pass_seconds), ("--test-seconds", args.test_seconds)):
        if not (0 <= (seconds or 0.0) < math.inf):
            yield f"{flag} takes 0 or more, not {seconds:g}"


def _reducing(args: argparse.Namespace) -> Iterator[str]:
    if (args.test is None) == args.reduce:
        yield "--reduce and --test belong together: --reduce --test 'passes-opt -p default --check-each'"
    try:
        words = shlex.split("x" if args.test is None else args.test)
        re.compile(args.test_prints or "")
    except ValueError as error:
        yield f"--test: {error}: {args.test}"
    except re.error as error:
        yield f"--test-prints is no regular expression: {error}: {args.test_prints}"
    else:
        if args.test is not None and not words:
            yield "--test takes a command"


def _reproducer(args: argparse.Namespace) -> Iterator[str]:
    """A reproducer says itself which passes run, for which machine."""
    if args.run_reproducer is None:
        return
    others = {
        "-p": args.pipeline,
        "--until": args.until,
        "--target": args.target,
        "--threads": args.threads,
        "--from": args.source,
        f"the file '{args.input_file}'": args.input_file,
    }
    if given := [name for name, value in others.items() if value is not None]:
        yield f"--run-reproducer names the file, its passes and its machine itself: leave out {', '.join(given)}"


def _running(args: argparse.Namespace) -> Iterator[str]:
    """Code that runs here is made for this processor: the layout of packed weights is that of its registers."""
    kind, _, name = (args.target or "cpu:native").partition(":")
    made, here = name or "avx512", detect_isa()
    if args.run_compiled and kind == "cpu" and made not in ("native", here):
        yield f"--run-compiled runs code on this processor ({here}), and --target {args.target} makes it for {made}: leave it out"


def _alone(args: argparse.Namespace) -> Iterator[str]:
    """Flags that say more of another one."""
    runs = args.run or args.run_compiled or args.check_each
    named = runs or args.source == "onnx"
    rows = (
        ("--inputs", args.inputs is not None, runs, "--run, --run-compiled or --check-each"),
        ("--tolerance", args.tolerance is not None, runs, "--run, --run-compiled or --check-each"),
        ("--sizes", bool(args.sizes), named, "--run, --run-compiled, --check-each or --from onnx"),
        ("--test-seconds", args.test_seconds is not None, args.reduce, "--reduce"),
        ("--test-prints", bool(args.test_prints), args.reduce, "--reduce"),
        ("--timing-display", args.timing_display is not None, args.timing, "--timing"),
    )
    yield from (
        f"{flag} belongs to {to}: without it, it says nothing" for flag, given, used, to in rows if given and not used
    )
    if args.tolerance is not None and not 0 <= args.tolerance < math.inf:
        yield f"--tolerance takes a number from 0 on, not {args.tolerance}"
    if args.sizes and runs and args.source is None and not (args.inputs or "random").startswith("random"):
        yield f"--sizes are those of random inputs, and --inputs {args.inputs} brings its own: give one of them"


def check_shown(args: argparse.Namespace, ran: Collection[str]) -> None:
    """Whether the passes of `--print-ir-before` and `--print-ir-after` are among those that run.

    Raises:
        CommandError: one is not.
    """
    for flag, names in (("--print-ir-before", args.print_ir_before), ("--print-ir-after", args.print_ir_after)):
        for name in names:
            if name not in ran:
                what = f"the passes that run are {', '.join(ran)}" if ran else "no pass runs: -p names some"
                raise CommandError(f"{flag} {name}: {what}")


def say_without_passes(args: argparse.Namespace) -> None:
    """A line on standard error, where no pass runs and flags are given that say something of passes."""
    given = ((flag, getattr(args, flag[2:].replace("-", "_"))) for flag in _OF_PASSES)
    asked = [flag for flag, value in given if value is not None and value is not False]
    if asked:
        print(
            f"passes-opt: no pass runs (-p names some), of which {', '.join(asked)} could say something",
            file=sys.stderr,
        )


_OF_PASSES = (
    *("--print-ir-before-all", "--print-ir-after-all", "--print-ir-after-change", "--print-ir-after-failure"),
    *("--print-ir-diff", "--print-ir-tree-dir", "--remarks", "--statistics", "--timing", "--check-each"),
    *("--verify-each", "--verify-roundtrip", "--opt-bisect-limit", "--threads"),
)
