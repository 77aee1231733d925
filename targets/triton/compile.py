"""From Triton text to a cubin, for a GPU that need not be there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class KernelSource:
    """What one kernel is compiled from.

    Attributes:
        name: the function in the module's text.
        signature: argument name to type ("*fp32", "i32"), in order.
        aligned: positions of arguments that are multiples of 16: addresses, and sizes where that is known.
        warps: how many warps work on one program.
        stages: how many blocks of a loop's operands are on their way at once; 0: as many as Triton likes.
        checks: whether assertions in the text are compiled.
        contract: whether a product and a sum may be rounded at once.
        maps: how many of the last arguments are tensor maps.
    """

    name: str
    signature: Mapping[str, str]
    aligned: Sequence[int]
    warps: int
    checks: bool = False
    stages: int = 0
    contract: bool = True
    maps: int = 0


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: its code, and what a launch needs beside it.

    Attributes:
        symbol: its name in the code.
        shared: bytes of a multiprocessor's memory.
        boxes: of each tensor map, how it is read: the driver's numbers of swizzle and dtype, and the rows and neighbours of a copy.
    """

    name: str
    symbol: str
    code: bytes
    shared: int
    warps: int
    boxes: Sequence[Sequence[int]] = ()


def load_text(path: Path, name: str) -> ModuleType:
    """Import a module of generated kernels from its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compile_kernel(module: ModuleType, source: KernelSource, target: str) -> Binary:
    """Compile one kernel of a module for a target such as "sm_90" or "gfx942".

    Raises:
        Exception: whatever Triton raises; the caller names the kernel.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if target.startswith("gfx"):
        goal = GPUTarget("hip", target, 64)
    else:
        goal = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    attributes = {(k,): [["tt.divisibility", 16]] for k in source.aligned}
    ast = ASTSource(getattr(module, source.name), signature=dict(source.signature), constexprs={}, attrs=attributes)
    options = {"num_warps": source.warps, "debug": source.checks, "sanitize_overflow": False}
    options["enable_fp_fusion"] = source.contract
    if source.stages:
        options["num_stages"] = source.stages
    made = triton.compile(ast, target=goal, options=options)
    code = made.asm["hsaco" if goal.backend == "hip" else "cubin"]
    return Binary(source.name, made.metadata.name, code, made.metadata.shared, source.warps, _boxes(made, source.maps))


def _boxes(made: Any, count: int) -> list[list[int]]:
    """What launches make tensor maps by.

    Raises:
        TypeError: Triton has not made the kernel for tensor maps, as for GPUs before Hopper.
    """
    found = getattr(made.metadata, "tensordesc_meta", None) or []
    if len(found) != count or (count and made.metadata.global_scratch_size):
        raise TypeError(f"{len(found)} of {count} operands are read through tensor maps")
    # Numbers of dtypes in code and in the driver's call differ for these three.
    kinds = {8: 10, 9: 8, 10: 9}
    return [[m["swizzle"], kinds.get(m["elem_type"], m["elem_type"]), *m["block_size"]] for m in found]
