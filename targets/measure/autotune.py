"""Mode max-autotune: which kernel of a matrix product is the fastest on this GPU, measured once for each bucket of shapes.

Candidates are the library's call with a kernel behind it, and kernels of our own in several tiles. Each is built as a program of its own, as the
passes make it, and timed on the device. The table of measurements (store.py) has the winners.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import prim
from ...ir.text import parse_module, print_module
from ...passes.analysis.machine import Machine
from ...passes.core.context import CompileContext
from ...passes.core.run import run_pipeline
from ...passes.kernels.choose_products import ChooseProducts
from ...passes.pipeline import GPU, registry
from ..build.cache import Cache, cache_key
from ..build.program import Generated, Program, build, generate
from ..build.toolchain import Toolchain, cpu_identity
from ..build.versions import versions
from ..host.library import Library
from ..triton.device import capability, gpu_identity
from .store import Measurements

log = logging.getLogger("intarsia")

LIBRARY = "library"
CLEARLY = 0.97  # of the library's time: less is noise
BYTES = 192 << 20  # that a round touches, more than the caches hold
MOST_CALLS, ROUNDS = 32, 7


@dataclass
class MeasuredProducts:
    """Chooses between kernels by measuring them; `cache` has what is built and what was found out.

    Args:
        gpu: its number.
        keep: whether the table is kept on disk.
    """

    ctx: CompileContext
    toolchain: Toolchain
    cache: Cache
    gpu: int
    keep: bool = True
    table: Measurements = field(init=False)
    times: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # key -> candidate -> seconds, of what this process measured

    def __post_init__(self) -> None:
        # What was measured holds for these kernels of ours, this compiler and these libraries.
        made_by = hashlib.sha256(repr((versions(), gpu_identity())).encode()).hexdigest()[:12]
        self.table = Measurements(self.cache.root if self.keep else None, f"cuda:{self.gpu}", made_by)

    def pick(self, key: str, module: Callable[[], ModuleOp], tiles: Sequence[str]) -> str:
        """The fastest of the tiles for the kernels of a module at the `kernel` level, or "" for the library.

        Args:
            key: the shape's bucket and what is computed; what is found out holds for all with the same key.
        """
        known = (LIBRARY, *tiles)
        found = self.table.get(key, lambda: self._measure(key, print_module(module()), tiles), known.__contains__)
        return "" if found == LIBRARY else found

    def _measure(self, key: str, text: str, tiles: Sequence[str]) -> str:
        names = [LIBRARY, *tiles]
        with ThreadPoolExecutor(8) as pool:
            programs = list(pool.map(partial(self._build, text), names))
        times = self.times[key] = {}
        with torch.no_grad(), torch.cuda.device(self.gpu), torch.random.fork_rng([self.gpu]):
            sets = _operands(parse_module(text), self.gpu)
            for name, program in zip(names, programs, strict=True):
                if program is not None:
                    times[name] = _time(program, sets)
        if not times:
            return ""
        return min(times, key=lambda name: times[name] * (CLEARLY if name == LIBRARY else 1))

    def _build(self, text: str, name: str) -> Program | None:
        """The program of a candidate; None where Triton cannot compile it, as tiles that are too large for this GPU."""
        library, target = Library(record=False), capability(self.gpu)
        key = cache_key(
            ir_text=text,
            config={"candidate": name, "machine": repr(self.ctx.machine)},
            versions=versions(),
            isa=self.toolchain.identity + cpu_identity() + gpu_identity(),
        )
        try:
            generated = candidate(text, name, self.ctx.machine, library)
            return build(generated, key, lambda: self.toolchain, self.cache, library, gpu=target)
        except RuntimeError:
            log.debug("the candidate %s is not measured", name, exc_info=True)
            return None


def candidate(text: str, name: str, machine: Machine, library: Library) -> Generated:
    """The code of a product's kernels, by a tile or by the library: all that a GPU's program goes through behind `fuse`."""
    module, known = parse_module(text), registry()
    names = [each for each, _ in GPU]
    first = ChooseProducts(tiles=False) if name == LIBRARY else ChooseProducts(tile=name)
    passes = [known.make(each) for each in names[names.index(first.name) + 1 :]]
    run_pipeline(CompileContext(machine), module, [first, *passes])
    return generate(module, library)


def _operands(module: ModuleOp, gpu: int) -> list[list[Any]]:
    """Several sets of random arguments for the module's function, so that all together do not stay in the caches."""
    func = next(op for op in module.body.block.ops if isinstance(op, prim.Func))
    strides = func.get("arg_strides") or [None] * len(func.block_body.args)
    types = [prim.tensor(a) for a in func.block_body.args]

    def made() -> list[Any]:
        found = []
        for kind, given in zip(types, strides, strict=True):
            shape = [int(s) for s in kind.shape]
            tensor = torch.empty(shape, dtype=kind.dtype.torch, device=f"cuda:{gpu}")
            if given is not None:
                tensor = torch.empty_strided(
                    shape, [int(s) for s in given], dtype=kind.dtype.torch, device=f"cuda:{gpu}"
                )
            found.append(tensor.normal_() if kind.dtype.is_float else tensor.zero_())
        return found

    first = made()
    count = min(MOST_CALLS, max(2, -(-BYTES // max(1, sum(t.nbytes for t in first)))))
    return [first, *(made() for _ in range(count - 1))]


def _time(program: Program, sets: Sequence[list[Any]]) -> float:
    """Seconds of a call on the device, as part of a recorded chain of them; infinite where it fails."""
    try:
        for args in sets[:2]:
            program.run(*args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for args in sets:
                program.run(*args)
    except RuntimeError:
        return float("inf")
    best = float("inf")
    for _ in range(ROUNDS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        best = min(best, first.elapsed_time(last) / 1000)
    return best / len(sets)
