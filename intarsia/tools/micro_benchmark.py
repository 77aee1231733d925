"""What `python kernel_3.py` does: how long a kernel takes, what it moves and computes, and how near a limit of the machine that is.

The scripts are written by `kernel_scripts.py`. The code in one may be edited: what stands there is compiled, timed and checked.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from ..config import Config
from ..explaining.cost import works
from ..explaining.roofline import StepInfo, measure, rate_of, short_number, size_of
from ..graph_compiler import open_cache
from ..ir.interpreter.loops import main_function
from ..ir.interpreter.run import run
from ..ir.retarget import retarget
from ..ir.syntax import comment_of
from ..ir.text import parse_module, print_module
from ..ir.types import RefType
from ..passes.pipeline import is_for_gpu
from ..targets.build.cache import Cache
from ..targets.build.program import Generated, Program, build, generate
from ..targets.build.toolchain import CompilerError, CompilerNotFound, find_toolchain
from ..targets.host.library import Library
from ..targets.triton.device import capability
from ..targets.triton.program import KERNELS, compile_kernels
from ..targets.triton.worker import TritonError
from .opt.check import as_returned
from .opt.errors import CommandError, InputError
from .opt.values import Inputs, agree, apart, inputs_of, sizes_of


def main(module_text: str, code: Mapping[str, str], target: str, argv: Sequence[str] | None = None) -> int:
    """Time a kernel and print what it does. Exit codes: 0 fine; 1 it is wrong, or cannot be built or run; 2 the command line is at fault."""
    parser = argparse.ArgumentParser(description="A kernel by itself: its time, and its share of the machine's limit.")
    parser.add_argument("--check", action="store_true", help="compare its results with those of its loops")
    parser.add_argument("--sizes", metavar="s0=4,s1=8", default="", help="what symbols of sizes are")
    parser.add_argument(
        "--inputs", metavar="WHAT", default="random", help="random, random:SEED, or a file of torch.save"
    )
    args = parser.parse_args(argv)
    try:
        return _run(module_text, code, target, args)
    except CommandError as error:
        parser.error(str(error))
    except (InputError, CompilerNotFound, CompilerError, TritonError) as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return 1


def _run(module_text: str, code: Mapping[str, str], target: str, args: argparse.Namespace) -> int:
    module = parse_module(module_text)
    inputs = _placed(module, inputs_of(module, args.inputs, sizes_of(args.sizes)))
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        if is_for_gpu(module) and not torch.cuda.is_available():
            return _only_compiled(module, code, target, inputs, Path(folder))
        program = _built(module, code, Path(folder) / "timed")
        config = Config.from_environment()
        times = measure(program, inputs.args, open_cache(config).root if config.cache else None)
        if times.reason:
            raise InputError(f"the kernel cannot be timed: {times.reason}")
        (step,) = times.steps
        rate = times.copy if step.limit == "copy" else dict(times.products).get(_product_type(module, inputs), 0.0)
        print("\n".join(_told(step, times.device, rate)))
        return _checked(module, code, inputs, Path(folder) / "checked") if args.check else 0


def _with_code(generated: Generated, code: Mapping[str, str]) -> Generated:
    if generated.gpu is not None:
        return replace(generated, gpu=replace(generated.gpu, text=code.get(KERNELS, generated.gpu.text)))
    units = tuple(replace(unit, text=code.get(unit.name, unit.text)) for unit in generated.units)
    return replace(generated, units=units)


def _placed(module: ModuleOp, inputs: Inputs) -> Inputs:
    """The same inputs, where the module has them."""
    kinds = [value.type for value in main_function(module).block_body.args]
    if not torch.cuda.is_available():
        return inputs
    args = [_on(x, kind.device) if isinstance(kind, RefType) else x for x, kind in zip(inputs.args, kinds, strict=True)]
    return replace(inputs, args=tuple(args))


def _on(value: Any, device: str) -> Any:
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return made.copy_(value)


def _built(module: ModuleOp, code: Mapping[str, str], folder: Path) -> Program:
    text, library = print_module(module), Library()
    generated = replace(_with_code(generate(module, library), code), ir=text)
    key = hashlib.sha256(repr((text, sorted(code.items()))).encode()).hexdigest()
    gpu = capability(generated.host.gpu) if generated.host.gpu is not None else ""
    return build(generated, key, find_toolchain, Cache(folder), library, gpu=gpu)


def _checked(module: ModuleOp, code: Mapping[str, str], inputs: Inputs, folder: Path) -> int:
    """Whether compiled code gives what the interpreter gives of the loops."""
    bare = as_returned(module)
    loops = bare.clone()
    retarget(loops, "cpu")  # where the interpreter runs loops
    wanted = run(loops, [x.cpu() if isinstance(x, torch.Tensor) else x for x in inputs.fresh()])
    with torch.no_grad():
        found = [r for r in _built(bare, code, folder).run(*inputs.fresh()) if isinstance(r, torch.Tensor)]
    found, wanted = ([r.cpu() for r in each] for each in (found, wanted))
    right = agree(found, wanted)
    print(
        f"{'checked' if right else 'WRONG':<12}{apart(found, wanted):.2g} of the largest element apart from its loops"
    )
    return 0 if right else 1


def _only_compiled(module: ModuleOp, code: Mapping[str, str], target: str, inputs: Inputs, folder: Path) -> int:
    """What can be said of a GPU's kernel where there is no GPU: what it has to do, and that it compiles."""
    generated = _with_code(generate(module, Library()), code)
    assert generated.gpu is not None
    (work,) = works(module, inputs.sizes)
    step = StepInfo(work.name, work.lines, 1, 0.0, work.bytes, work.operations)
    print("\n".join(_told(step, "", 0.0)))
    for binary in compile_kernels(generated.gpu, target, folder).result():
        print(f"{'compiled':<12}for {target}: {len(binary.code)} bytes of code, {binary.warps} warps")
    print(f"{'time':<12}not measured: this machine has no GPU")
    return 0


def _product_type(module: ModuleOp, inputs: Inputs) -> str:
    (work,) = works(module, inputs.sizes)
    return str(work.dtype).removeprefix("torch.")


def _told(step: StepInfo, device: str, rate: float) -> list[str]:
    """What was found, a line each."""
    rows = [("kernel", step.name)]
    rows += [("lines", ", ".join(map(comment_of, step.lines)))] if step.lines else []
    rows += [("time", f"{step.seconds * 1e6:,.2f} us on {device}")] if device else []
    a_second = (lambda value, unit: f", {rate_of(value / step.seconds, unit)}") if step.seconds else lambda *_: ""
    rows.append(("bytes", f"{size_of(step.bytes)}{a_second(step.bytes, 'B/s')}"))
    rows.append(("operations", f"{short_number(step.operations)}{a_second(step.operations, 'op/s')}"))
    if step.limit:
        what = "large copies" if step.limit == "copy" else "large products"
        unit = "B/s" if step.limit == "copy" else "op/s"
        rows.append(("limit", f"{step.share:.0%} of {what} at {rate_of(rate, unit)}"))
    return [f"{name:<12}{text}" for name, text in rows]
