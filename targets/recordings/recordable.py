"""What a recording has to know of a host program: what kind each argument is, how sizes are read, why it may not be recorded; what was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from xdsl.dialects.builtin import ModuleOp

from ...ir.binding import late_names
from ...ir.dialects import buffer, prim
from ...ir.dialects.aten import COLLECTIVES, is_torchs_own, overload
from ...ir.fx.functional_operators import written_by
from ...ir.interpreter.loops import find_function
from ...ir.regions import bodies
from ...ir.syntax import line_of
from ...ir.types import RefType, is_gpu
from ..host.kernels import is_step

CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
LEAST = 4  # kernels and library calls that are worth a recording
ROUNDS = 8  # of a loop or branch, as which each counts: how many there are is not known
# Bytes that need no copy, for each step of a tail: a copy of so many takes 4 us, a launch 8, often hidden.
SPARED = 8 << 20
_LOOKING = ("aten.multinomial", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")  # at values, on the CPU


@dataclass
class Statistics:
    """What this process has recorded."""

    recordings: int = 0
    replays: int = 0
    refused: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Back to zero."""
        self.recordings = self.replays = 0
        self.refused.clear()


STATISTICS = Statistics()  # counters only: nothing depends on them


def argument_kinds(func: prim.Func) -> tuple[str, ...]:
    """What each argument is to a recording: see `Recorded`."""
    block = func.block_body
    static = list(func.get("arg_static") or [False] * len(block.args))
    for number in func.get("numbers", ()):  # on a GPU they lie at one place for each stream: see numbers.py
        static[number] = True
    written = {argument for argument, _ in func.get("mutations", ())}
    returned = {spec[1] for spec in func.get("results", ()) if spec[0] in ("input", "alias")}
    kinds = []
    for k, arg in enumerate(block.args):
        ref = arg.type
        if not isinstance(ref, RefType):
            kinds.append("number")
        elif not arg.uses and k not in returned:
            kinds.append("unused")
        elif not is_gpu(ref.device):
            kinds.append("scalar")
        else:
            kinds.append("static" if static[k] else "written" if k in written else "tensor")
    return tuple(kinds)


def size_reads(func: prim.Func) -> dict[str, tuple[str, str]]:
    """For each symbol one of the arguments a0, a1, ..., and what of it gives its number."""
    return {
        name: (f"a{i}", "" if d == -1 else f".shape[{d}]" if d >= 0 else f".stride({-2 - d})")
        for name, i, d, *_ in func.get("symbols", ())
    }


def called(func: prim.Func) -> list[prim.Func]:
    """The functions that the operations of this one call, and those that these call."""
    module = func.parent_op()
    assert isinstance(module, ModuleOp)
    found: dict[prim.Func, None] = {}
    waiting = [func]
    while waiting:
        for op in waiting.pop().block_body.ops:
            for name in bodies(op) if isinstance(op, buffer.Extern) else ():
                body = find_function(module, name)
                assert body is not None
                if body not in found:
                    found[body] = None
                    waiting.append(body)
    return list(found)


def work_of(func: prim.Func) -> int:
    """How many kernels and library calls a call starts; of what values decide, so many rounds."""
    return _steps(func) + ROUNDS * sum(map(_steps, called(func)))


def _steps(func: prim.Func) -> int:
    return sum(isinstance(op, buffer.Launch | buffer.Extern | buffer.Contract) for op in func.block_body.ops)


def why_not(func: prim.Func, operators: Sequence[str]) -> str:
    """Why a host program is not recorded, or "". Loops and branches are nodes of a recording, whose bodies are recorded with the rest.

    Args:
        operators: the library calls of the function itself.
    """
    functions = [func, *called(func)]
    ops = [op for each in functions for op in each.block_body.ops]
    externs = [op for op in ops if isinstance(op, buffer.Extern)]
    seeds = [op for op in externs if op.get("seed")]
    if any(op.parent_op() is not func for op in seeds):
        return "it draws random numbers in a loop or branch that values decide"
    read = next((op for op in externs if late_names(op)), None)
    if read is not None:
        where = f" ({line_of(read)})" if line_of(read) else ""
        return f"{read['target']} gives a size that the host reads{where}"
    inner = [op["target"] for op in externs if op.parent_op() is not func]
    away = next(filter(None, map(on_cpu, functions)), "")
    return refusal(work_of(func), [*operators, *inner], away, len(seeds))


def on_cpu(func: prim.Func) -> str:
    """What of the function is on the CPU, but for arguments of one number that library calls of a GPU take; "" for nothing."""
    numbers = {arg for arg in func.block_body.args if isinstance(arg.type, RefType) and not arg.type.shape}
    for arg in func.block_body.args:
        if isinstance(arg.type, RefType) and not is_gpu(arg.type.device) and arg not in numbers and arg.uses:
            return "an argument is on the CPU"
    for op in func.block_body.ops:
        if not is_step(op):
            continue
        takes_numbers = isinstance(op, buffer.Extern) and "copy" not in op["target"] and not op.get("own")
        for value in (*op.operands, *op.results):
            away = isinstance(value.type, RefType) and not is_gpu(value.type.device)
            if away and not (takes_numbers and value in numbers):
                name, place = op.get("target") or op.get("kernel") or op.name, line_of(op)
                return f"{name} has a value on the CPU" + (f" ({place})" if place else "")
    return ""


def of_a_library(operators: Iterable[str], wanted: bool) -> str:
    """Why a program with operators of a user's library is not recorded, or "".

    Played back, an operator's Python code does not run: what it prints, counts or reads from elsewhere stays as it was recorded.

    Args:
        operators: the library calls.
        wanted: the user asks for recordings by mode="reduce-overhead": only operators that say they are not fit for it are not recorded.
    """
    for name in operators:
        if name.startswith(COLLECTIVES):
            return "processes talk in it"
        if is_torchs_own(name):
            continue
        if CUDAGRAPH_UNSAFE is not None and CUDAGRAPH_UNSAFE in overload(written_by(name)).tags:
            return f"{name} is tagged cudagraph_unsafe"
        if not wanted:
            return f"{name} may keep state outside of the graph; mode='reduce-overhead' records it"
    return ""


def refusal(steps: int, operators: Sequence[str], cpu: str = "", seeds: int = 0) -> str:
    """Why a program is not recorded, or "".

    Args:
        steps: how many kernels and library calls it has.
        operators: the library calls.
        cpu: what of it is on the CPU.
        seeds: how many seeds it draws: a playback puts one where the recording reads it.
    """
    if seeds > 1:
        return "it draws more than one seed"
    if steps < LEAST:
        return f"fewer than {LEAST} kernels"
    if cpu:
        return cpu
    looking = [o for o in operators if o.startswith(_LOOKING)]
    return f"{looking[0]} looks at values" if looking else ""
