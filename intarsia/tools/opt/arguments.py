"""The flags of `passes-opt`, in groups, and their completion in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...config import suggestion
from ...passes.core.base import LEVELS
from .emit import EMITTED
from .imports import SOURCES
from .machines import TARGETS

# group -> flags and what argparse is told of them
GROUPS: dict[str, tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = {
    "which passes": (
        (
            ("-p", "--pipeline", "--pass-pipeline"),
            {
                "metavar": "PASSES",
                "help": "fuse{max-ops=8},schedule; default: as compile does; default{after=fuse: mine}",
            },
        ),
        (("--until",), {"metavar": "PASS", "help": "run this pass (or to this level) and what it requires before it"}),
        (("--load",), {"metavar": "FILE.py", "action": "append", "default": [], "help": "passes that a file defines"}),
        (
            ("--load-package",),
            {"metavar": "NAME", "action": "append", "default": [], "help": "passes that are names of a module"},
        ),
        (
            ("--target",),
            {
                "metavar": "TARGET",
                "help": f"{', '.join(TARGETS[:4])} ..., triton:sm_90 ... (default: where the values lie)",
            },
        ),
        (("--threads",), {"type": int, "metavar": "N", "help": "threads that kernels may use (default: 2)"}),
        (
            ("--opt-bisect-limit",),
            {
                "type": int,
                "metavar": "N",
                "help": "leave out all passes behind the first N that nothing else needs; -1: none",
            },
        ),
        (
            ("--from",),
            {"dest": "source", "choices": SOURCES, "help": "the input is no IR but a program of another compiler"},
        ),
        (("--run-reproducer",), {"metavar": "FILE", "help": "run the pipeline that a reproducer names, on that file"}),
    ),
    "what is printed": (
        (("-o", "--output"), {"metavar": "FILE", "dest": "output_file", "help": "write the result there"}),
        (("--no-loc",), {"action": "store_true", "help": "leave out the places in the user's code"}),
        (
            ("--print-ir-before",),
            {"metavar": "PASS", "action": "append", "default": [], "help": "the IR before a pass; may be repeated"},
        ),
        (("--print-ir-before-all",), {"action": "store_true", "help": "the IR before each pass"}),
        (
            ("--print-ir-after",),
            {"metavar": "PASS", "action": "append", "default": [], "help": "the IR after a pass; may be repeated"},
        ),
        (("--print-ir-after-all",), {"action": "store_true", "help": "the IR after each pass"}),
        (("--print-ir-after-change",), {"action": "store_true", "help": "the IR after each pass that changed it"}),
        (("--print-ir-after-failure",), {"action": "store_true", "help": "the IR as a pass that failed left it"}),
        (("--print-ir-diff",), {"action": "store_true", "help": "a difference after each pass that changed the IR"}),
        (("--print-ir-tree-dir",), {"metavar": "DIR", "help": "a file of IR for each pass"}),
        (("--print-pipeline",), {"action": "store_true", "help": "the pipeline that ran, ready for -p"}),
        (("--remarks",), {"action": "store_true", "help": "what the passes did and refused, and why"}),
        (("--statistics",), {"action": "store_true", "help": "what the passes counted"}),
        (("--timing",), {"action": "store_true", "help": "seconds for each pass"}),
        (
            ("--timing-display",),
            {
                "choices": ("list", "tree", "json"),
                "help": "in their order (if not given), by level, or for programs",
            },
        ),
    ),
    "what is checked": (
        (("--verify-each",), {"action": "store_true", "help": "verify after each pass, not only at the end"}),
        (
            ("--verify-roundtrip",),
            {"action": "store_true", "help": "the text after each pass has to read back as itself"},
        ),
        (
            ("--check-each",),
            {
                "action": "store_true",
                "help": "run the interpreter around each pass, and name the first that changes results",
            },
        ),
        (("--run",), {"action": "store_true", "help": "print results instead of IR, compared between the levels"}),
        (
            ("--run-compiled",),
            {"action": "store_true", "help": "the same, and those of compiled code on this processor"},
        ),
        (
            ("--inputs",),
            {"metavar": "WHAT", "help": "for these three: random, random:SEED, or a file of torch.save"},
        ),
        (
            ("--tolerance",),
            {
                "type": float,
                "metavar": "X",
                "help": "for these three: how far results may be apart, in parts of the largest element",
            },
        ),
        (("--sizes",), {"metavar": "s0=4,s1=8", "default": "", "help": "what symbols are in random inputs"}),
        (("--disable-verify",), {"action": "store_true", "help": "do not verify what is read"}),
        (
            ("--verify-diagnostics",),
            {"action": "store_true", "help": "print the verifier's error as output, exit with 0"},
        ),
        (("--parsing-diagnostics",), {"action": "store_true", "help": "print a syntax error as output, exit with 0"}),
        (
            ("--split-input-file",),
            {"action": "store_true", "help": "pieces between lines '// -----' are modules of their own"},
        ),
        (
            ("--pass-seconds",),
            {
                "type": float,
                "default": 120.0,
                "metavar": "N",
                "help": "after which a pass that is not Intarsia's own is stopped (0: never)",
            },
        ),
        (
            ("--reproducer-dir",),
            {"metavar": "DIR", "help": "where a failing pass leaves its reproducer (default: here)"},
        ),
    ),
    "what is made": (
        (("--emit",), {"metavar": "WHAT", "help": f"instead of IR: {', '.join(EMITTED)}, or a target of --load"}),
        (("--reduce",), {"action": "store_true", "help": "a smaller module on which --test fails in the same way"}),
        (("--test",), {"metavar": "COMMAND", "help": "of --reduce; %%s stands for the module's file"}),
        (
            ("--test-seconds",),
            {"type": float, "metavar": "N", "help": "after which a test does not end (default: 60)"},
        ),
        (("--test-prints",), {"metavar": "REGEX", "default": "", "help": "what a test has to print, besides failing"}),
    ),
    "help": (
        (("--list",), {"action": "store_true", "help": "the passes with their levels and options"}),
        (("--help-pass",), {"metavar": "PASS", "help": "all about a pass"}),
        (("--show-dialects",), {"action": "store_true", "help": "the dialects with their operations and types"}),
        (("--graph",), {"action": "store_true", "help": "the order of the passes as SVG"}),
        (("--completion",), {"choices": ("bash", "zsh", "fish"), "help": "a script that completes flags and passes"}),
        (("-v", "--version"), {"action": "store_true", "help": "the versions of intarsia, xdsl and torch"}),
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line; what it does not know is an error, and flags are not abbreviated."""
    made = argparse.ArgumentParser(
        "passes-opt",
        usage="passes-opt [flags] [FILE]",
        description="Run Intarsia's passes on a file of IR (or on standard input).",
        allow_abbrev=False,
    )
    made.add_argument("input_file", nargs="?", help="a file of IR; '-' or none: standard input")
    for title, flags in GROUPS.items():
        group = made.add_argument_group(title)
        for names, how in flags:
            group.add_argument(*names, **how)
    return made


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; a misspelled one is answered with what it may have meant, for argparse does not say."""
    made = parser()
    found, rest = made.parse_known_args(argv)
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is not None:
        flags = [name for group in GROUPS.values() for names, _ in group for name in names]
        made.error(f"unknown flag {unknown}{suggestion(unknown, flags, '; --help shows all')}")
    if rest:
        made.error(f"one file is read, '{found.input_file}'; too many arguments: {' '.join(rest)}")
    return found


def completion(shell: str, passes: tuple[str, ...], theirs: tuple[str, ...] = ()) -> str:
    """A script for a shell: `eval "$(passes-opt --completion bash)"`; with `--load` it knows passes and targets of others, too."""
    values = {"--target": (*TARGETS, *theirs), "--until": (*passes, *LEVELS), "--emit": (*EMITTED, *theirs)}
    values |= {"--help-pass": passes, "--from": SOURCES, "--timing-display": ("list", "tree", "json")}
    values |= {"--completion": ("bash", "zsh", "fish")}
    values |= dict.fromkeys(("-p", "--pipeline", "--pass-pipeline"), ("default", *passes))
    values |= dict.fromkeys(("--print-ir-before", "--print-ir-after"), passes)
    flags = [name for group in GROUPS.values() for names, _ in group for name in names]
    if shell == "fish":
        lines = [
            f"complete -c passes-opt -l {f[2:]}" if f.startswith("--") else f"complete -c passes-opt -s {f[1:]}"
            for f in flags
        ]
        for flag, words in values.items():
            kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"complete -c passes-opt {kind} -x -a '{' '.join(words)}'")
        return "\n".join(lines) + "\n"
    cases = "\n".join(f"    {flag}) words='{' '.join(words)}' ;;" for flag, words in values.items())
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{start}_passes_opt() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=''
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
    *) [[ "$word" == -* ]] && words='{" ".join(flags)}' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ ${{#COMPREPLY[@]}} -gt 0 || -n "$words" ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _passes_opt passes-opt
"""
