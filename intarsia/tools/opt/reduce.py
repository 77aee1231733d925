"""`--reduce`: a smaller module on which a command still fails in the same way.

Pieces are taken away by halves, as in Zeller's delta debugging: operations (their results become arguments, or an operand of the
same type takes their place), results of the program, then arguments. Every candidate verifies before the command sees it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...ir.dialects.prim import Func
from ...ir.text import print_module
from .errors import InputError


def _complaint(printed: str) -> str:
    """How a failure begins to say what it is."""
    lines = [line for line in printed.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return re.sub(r"\d+", "#", first.partition("error: ")[2] or first)[:_SAID]


_SAID = 48  # characters: names of passes and kinds of errors, hardly values


@dataclass
class Test:
    """A command that fails on the module; `%s` stands for the module's file, which is else its last argument.

    Attributes:
        main: runs passes-opt in this process, which starts in a child of it: loading torch takes seconds.
        seconds: after which a run counts as one that does not end: exit code 124.
        matches: a regular expression that what the command prints has to match, as well. Without one the beginning of its first line
            with "error" in it (else of its last line) has to be as on the first module, but for digits.
    """

    command: str
    main: Callable[[Sequence[str]], int]
    seconds: float = 60.0
    matches: str = ""
    runs: int = 0
    known: dict[str, bool] = field(default_factory=dict)
    code: int | None = None
    said: str = ""

    def fails(self, text: str) -> bool:
        """Whether the command fails on this text as it did on the first one.

        Raises:
            InputError: on the first one, and it does not fail, or prints something else than `matches`.
        """
        if text not in self.known:
            self.runs += 1
            code, printed = self._run(text)
            if self.code is None:
                self._first(code, printed)
            self.known[text] = code == self.code and self._is_same(printed)
        return self.known[text]

    def _first(self, code: int, printed: str) -> None:
        if code == 0:
            raise InputError(f"--reduce: the test does not fail on the module as it was read: {self.command}")
        if code == 2 and shlex.split(self.command)[0] == "passes-opt":
            said = (printed.strip().splitlines() or ["nothing"])[-1]
            raise InputError(f"--reduce: the test is no command that passes-opt takes: {said}")
        if not re.search(self.matches, printed):
            last = (printed.strip().splitlines() or ["nothing"])[-1]
            raise InputError(
                f"--reduce: the test fails, but prints nothing that '{self.matches}' matches; its last line: {last}"
            )
        self.code, self.said = code, _complaint(printed)

    def _is_same(self, printed: str) -> bool:
        return bool(re.search(self.matches, printed)) if self.matches else _complaint(printed) == self.said

    def _run(self, text: str) -> tuple[int, str]:
        """The exit code and what was printed, where the candidate's path, which is another each time, is `candidate.ir`."""
        with tempfile.TemporaryDirectory(prefix="passes-opt-") as folder:
            code, printed = self._run_in(Path(folder), text)
        return code, printed.replace(f"{folder}{os.sep}", "")

    def _run_in(self, folder: Path, text: str) -> tuple[int, str]:
        path = folder / "candidate.ir"
        path.write_text(text, encoding="utf-8")
        words = shlex.split(self.command)
        at = [k for k, word in enumerate(words) if "%s" in word]
        words = [w.replace("%s", str(path)) for w in words] if at else [*words, str(path)]
        if words[0] == "passes-opt" and hasattr(os, "fork"):
            return self._forked(words[1:], folder)
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, ""
        except OSError as error:
            raise InputError(f"--test: cannot run '{words[0]}': {error.strerror}") from None
        return done.returncode, done.stdout + done.stderr

    def _forked(self, arguments: Sequence[str], folder: Path) -> tuple[int, str]:
        """The command in a child of this process: the passes are loaded already."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            code = 70
            with contextlib.suppress(BaseException):
                printed = io.StringIO()
                os.chdir(folder)
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    try:
                        code = Context().run(self.main, arguments)  # without the passes that this command has loaded
                    except SystemExit as error:
                        code = error.code if isinstance(error.code, int) else 1
                    except BaseException as error:
                        print(f"{type(error).__name__}: {error}")
                        code = 1
                (folder / "printed").write_text(printed.getvalue(), encoding="utf-8")
            os._exit(code)
        end = time.monotonic() + self.seconds
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                said = folder / "printed"
                return os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8") if said.exists() else ""
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return 124, ""
            time.sleep(0.005)


class Fails(Protocol):
    """What `reduced` asks of each candidate; `runs` counts."""

    runs: int

    def fails(self, text: str) -> bool: ...


def reduced(module: ModuleOp, test: Fails, tell: Callable[[str], None] = lambda line: None) -> ModuleOp:
    """The smallest module that was found. No piece of the same kind can be taken away from it alone.

    Raises:
        InputError: the test does not fail on the module.
    """
    if not test.fails(print_module(module)):
        raise InputError("--reduce: the test does not fail twice in the same way")
    before = 0
    while (size := operations(module)) != before:
        before = size
        for shrink in (_results, _operations, _kernels, _results, _arguments):
            module = _by_halves(module, shrink, test)
        tell(f"{operations(module)} operations after {test.runs} runs of the test")
    if not before:
        tell("the test fails without any operation, too: perhaps it does not fail because of the module")
    return module


def operations(module: ModuleOp) -> int:
    """Operations of the program's functions and kernels, without what frames them."""
    return sum(1 for op in module.walk() if op.name not in _FRAMES)


_FRAMES = {"builtin.module", "prim.func", "prim.return", "kernel.yield", "loop.kernel"}

# Takes away the pieces with these numbers from a module, in place; the number of pieces that there are.
Shrink = Callable[[ModuleOp, range], int]


def _by_halves(module: ModuleOp, shrink: Shrink, test: Fails) -> ModuleOp:
    """Try to take away long runs of pieces first, then shorter ones."""
    count = shrink(module.clone(), range(0))
    length = count
    while length:
        start = max(0, count - length)
        while True:  # from the end: what is taken away there frees what stands before it
            candidate = module.clone()
            shrink(candidate, range(start, start + length))
            if _is_legal(candidate) and test.fails(print_module(candidate)):
                module = candidate
                count = shrink(module.clone(), range(0))
            if not start:
                break
            start = max(0, min(start, count) - length)
        length //= 2
    return module


def _is_legal(module: ModuleOp) -> bool:
    try:
        module.verify()
    except Exception:
        return False
    return True


def _main(module: ModuleOp) -> Func:
    return next(op for op in module.body.block.ops if isinstance(op, Func) and op["sym_name"] == "main")


def _operations(module: ModuleOp, gone: range) -> int:
    func = _main(module)
    pieces = [op for op in func.block_body.ops if op is not func.block_body.last_op]
    for op in [pieces[k] for k in gone if k < len(pieces)][::-1]:
        _take_away(func, op)
    if gone:
        _drop_unused(func)
    return len(pieces)


def _take_away(func: Func, op: Operation) -> None:
    for result in op.results:
        if not result.uses:
            continue
        same = next((v for v in op.operands if v.type == result.type), None)
        result.replace_all_uses_with(_new_argument(func, result) if same is None else same)
    op.detach()
    op.erase()


def _new_argument(func: Func, like: SSAValue) -> SSAValue:
    block = func.block_body
    added = block.insert_arg(like.type, len(block.args))
    for name, value in (("arg_names", f"cut{len(block.args)}"), ("arg_strides", None), ("arg_static", False)):
        if name in func.attributes:
            func[name] = (*func[name], value)
    return added


def _drop_unused(func: Func) -> None:
    """What nobody reads any more, and has no effect."""
    for op in list(func.block_body.ops)[::-1]:
        if op is not func.block_body.last_op and op.results and not any(r.uses for r in op.results):
            op.detach()
            op.erase()


def _results(module: ModuleOp, gone: range) -> int:
    func = _main(module)
    last = func.block_body.last_op
    assert last is not None
    count = len(last.operands)
    if gone:
        left = [k for k in range(count) if k not in gone]
        at = {k: place for place, k in enumerate(left)}
        last.operands = [last.operands[k] for k in left]
        if "result_strides" in func.attributes:
            func["result_strides"] = tuple(func["result_strides"][k] for k in left)
        if "results" in func.attributes:
            func["results"] = tuple(("value", k) for k in range(len(left)))
        func["mutations"] = tuple((a, at[k]) for a, k in func.get("mutations", ()) if k in at)
        _drop_unused(func)
    return count


def _kernels(module: ModuleOp, gone: range) -> int:
    """Operations inside of others: bodies of fused kernels."""
    bodies = [b for op in _main(module).block_body.ops for r in op.regions for b in r.blocks]
    pieces = [op for b in bodies for op in b.ops if op is not b.last_op and len(op.results) == 1]
    for op in [pieces[k] for k in gone if k < len(pieces)][::-1]:
        same = next((v for v in op.operands if v.type == op.results[0].type), None)
        if same is not None:
            op.results[0].replace_all_uses_with(same)
            op.detach()
            op.erase()
    return len(pieces)


def _arguments(module: ModuleOp, gone: range) -> int:
    func = _main(module)
    block = func.block_body
    bound = {row[1] for row in func.get("symbols", ())}
    kept = bound | {row[0] for row in func.get("mutations", ())} | set(func.get("numbers", ()))
    unused = [k for k, a in enumerate(block.args) if not a.uses and k not in kept]
    if any(isinstance(op, Func) and op is not func for op in module.body.block.ops):
        return 0  # arguments are counted by another function
    for k in sorted((unused[n] for n in gone if n < len(unused)), reverse=True):
        block.erase_arg(block.args[k])
        for name in ("arg_names", "arg_strides", "arg_static"):
            if name in func.attributes:
                func[name] = tuple(v for i, v in enumerate(func[name]) if i != k)
        func["symbols"] = tuple((n, a - (a > k), *rest) for n, a, *rest in func.get("symbols", ()))
        func["mutations"] = tuple((a - (a > k), r) for a, r in func.get("mutations", ()))
        if "numbers" in func.attributes:
            func["numbers"] = tuple(a - (a > k) for a in func["numbers"])
    return len(unused)
