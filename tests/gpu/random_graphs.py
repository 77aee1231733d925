"""Programs of the `prim` level, random (tests/fuzz/graphs.py) or handwritten (tests/passes/kernel_zoo.py), compiled for a GPU and run
there through the launches and host programs that users' programs have; compared with the interpreter on the CPU.

The kernels of many programs are built together: one Triton module, one library of launches.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.dialects import loop
from intarsia.ir.dtypes import DType
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.kernels.attention import Attention
from intarsia.passes.kernels.choose_products import ChooseProducts
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.build.cache import shared_cache
from intarsia.targets.build.program import Generated, build, callees, load
from intarsia.targets.build.toolchain import Source, find_toolchain
from intarsia.targets.host.host import host_source
from intarsia.targets.host.ir import Function, HostProgram
from intarsia.targets.host.kernels import runs_on_gpu
from intarsia.targets.host.library import Library
from intarsia.targets.host.source import HostSource
from intarsia.targets.run.load import load_program
from intarsia.targets.triton.device import capability
from intarsia.targets.triton.program import LAUNCHES, gpu_source

sys.path += [str(Path(__file__).parents[1] / room) for room in ("fuzz", "passes")]
from check_passes import compare  # noqa: E402
from graphs import random_program  # noqa: E402
from kernel_zoo import CASES  # noqa: E402
from test_schedule import arguments  # noqa: E402

GPU = "cuda:0"
JOINED = ("lists", "casts", "mixed", "statistics", "sorting")


@dataclass
class Lowered:
    """A program, the same for a GPU at the `buffer` level, and what to call it with.

    `scales`: a bound on the size of each result, then of each argument that is `written` to; `rounded`: the types that each was rounded to.
    """

    name: str
    reference: ModuleOp
    module: ModuleOp
    calls: Sequence[Sequence[torch.Tensor]]
    scales: Sequence[float]
    written: Sequence[int] = ()
    rounded: Sequence[Collection[DType]] = ()

    @property
    def kernels(self) -> list[loop.Kernel]:
        """Its kernels."""
        return [op for op in self.module.body.block.ops if isinstance(op, loop.Kernel)]


def random_one(seed: int) -> Lowered:
    """The random program of a seed; each second one has tensors of many blocks."""
    program = random_program(seed, random.Random(seed).choice([4, 8, 14]), large=bool(seed % 2), gpu=True)
    calls = [program.inputs(binding, seed) for binding in program.bindings]
    module = _on_gpu(program.module)
    return Lowered(f"seed {seed}", program.module, module, calls, program.scales, program.written, program.rounded)


def handwritten() -> list[Lowered]:
    """All of the zoo."""
    found = []
    for name, case in CASES.items():
        module = case.module()
        results = len(list(module.body.block.ops)[0].block_body.last_op.operands)
        found.append(Lowered(name, module, _on_gpu(module, kernels=True), [arguments(case)], [10.0] * results))
    return found


def captured() -> list[Lowered]:
    """Functions that were captured: pools, scatters, pads and the like, products and attention in tiles of their own, small kernels that
    are joined to one launch."""
    sys.path.append(str(Path(__file__).parents[1] / "targets"))
    from attention_programs import AttentionProgram, attention
    from product_programs import ProductProgram, products
    from triton_operators import FAMILIES, operators
    from triton_programs import models

    every = {"resizes": 5, "pools": 2, "pads": 3, "float8": 3, "searches": 2, "bags": 3}
    families = (p for family in FAMILIES for p in operators(family, every.get(family, 1)))
    found = []
    for program in (*models(JOINED), *products(), *attention(), *families):
        passes: list[Pass] = []
        if isinstance(program, ProductProgram):
            passes = [ChooseProducts(tile=program.tile)]
        elif isinstance(program, AttentionProgram):
            passes = [Attention(tile=program.tile)]
        module = parse_module(print_module(program.module))
        retarget(module, GPU)
        for item in default_pipeline(passes, gpu=True):
            item.apply(CompileContext(), module)
        module.verify()
        wanted = run_user(program.module, [_copied(x, "cpu") for x in program.args])
        scales = [_plain(x).double().abs().nan_to_num(posinf=0).max().item() if x.numel() else 1.0 for x in wanted]
        found.append(Lowered(program.name, program.module, module, [program.args], scales))
    return found


def _plain(x: torch.Tensor) -> torch.Tensor:
    """float8, of which torch has few operations, as float32."""
    return x.float() if x.is_floating_point() and x.itemsize == 1 else x


def _on_gpu(program: ModuleOp, kernels: bool = False) -> ModuleOp:
    """The program for a GPU, through all passes; `kernels`: it has been fused."""
    module = parse_module(print_module(program))
    retarget(module, GPU)
    passes = default_pipeline(gpu=True)
    first = next(k for k, item in enumerate(passes) if item.name == "lower") if kernels else 0
    for item in passes[first:]:
        if item.level != "aten":
            item.apply(CompileContext(), module)
    module.verify()
    return module


def built(programs: Sequence[Lowered], target: str) -> dict[str, Callable[..., Any]]:
    """The launches of all kernels of these programs, by name."""
    kernels = {k["sym_name"]: k for p in programs for k in p.kernels}
    assert all(map(runs_on_gpu, kernels.values()))
    source = gpu_source(list(kernels.values()))
    if source is None:
        return {}
    hosts = [host_source(p.module, Library(), callees(p.kernels, {})) for p in programs]
    arities = {name: count for host in hosts for name, count in host.kernels.items()}
    nothing = HostProgram((), (Function("run", (), (), "()"),))
    host = HostSource(nothing, arities, quick=list(arities), gpu=0, not_recorded="a test")
    key = hashlib.sha256((target + source.text).encode()).hexdigest()
    generated = Generated((Source(LAUNCHES, source.launches),), host, gpu=source)
    cache = shared_cache(None)
    entry = cache.get(key)  # of an earlier process: under the sanitizer nothing is compiled
    made = load(entry, Library()) if entry else build(generated, key, find_toolchain, cache, Library(), gpu=target)
    return dict(made.functions)


def wrong(program: Lowered, functions: dict[str, Callable[..., Any]]) -> str:
    """What differs from the interpreter; "" for nothing."""
    host = host_source(program.module, Library(), callees(program.kernels, {}))
    call = load_program(host, functions, Library(record=False), program.name)
    for inputs in program.calls:
        wanted = interpreted(program, program.reference, inputs)
        given = [_copied(x, GPU) for x in inputs]
        results = call(*given)
        found = [_copied(x, "cpu") for x in (*results, *(given[k] for k in program.written))]
        try:
            assert [x.shape for x in found] == [x.shape for x in wanted]
            compare(comparable(program, found), comparable(program, wanted), program.scales, program.rounded)
        except AssertionError as error:
            return f"{program.name}, sizes {[list(x.shape) for x in inputs]}: {error}"
    return ""


def interpreted(program: Lowered, module: ModuleOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the interpreter makes of the program, at any level: its results, then the arguments that it writes to."""
    given = [_copied(x, "cpu") for x in inputs]
    results = run_user(module, given)
    return [*results, *(given[k] for k in program.written)]


def _copied(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides, whatever they are."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((extent,), (1,)).to(device, copy=True).as_strided(x.shape, x.stride())


def comparable(program: Lowered, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results with strides of dimensions that have more than one element only. float64 may have been float32, in which a GPU rounds otherwise."""
    text = print_module(program.reference)
    coarse = any(f", {name}" in text for name in ("f32", "f16", "bf16"))
    found = []
    for x in results:
        kept = _plain(x.squeeze() if x.numel() else x.new_empty(x.shape))
        found.append(kept.float() if coarse and kept.dtype == torch.float64 else kept)
    return found


def check(programs: Sequence[Lowered]) -> list[str]:
    """Compile the programs together, run them one by one; what is wrong."""
    functions = built(programs, capability(0))
    found = []
    for program in programs:
        try:
            found.append(wrong(program, functions))
        except Exception as error:
            found.append(f"{program.name}: {type(error).__name__}: {error}")
    return [text for text in found if text]
