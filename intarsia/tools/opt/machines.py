"""`--target`: the machine that code is made for, and the road that its programs take."""

from __future__ import annotations

import difflib
from dataclasses import replace

import torch
from xdsl.dialects.builtin import ModuleOp

from ...ir.retarget import retarget
from ...passes.analysis.machine import CPUS, GPUS, Machine, gpu_facts
from ...passes.core.base import LEVELS
from ...passes.core.levels import module_levels
from ...passes.pipeline import is_for_gpu
from ...targets.build.toolchain import detect_isa
from .errors import CommandError, InputError

# AMD's GPUs have no rows: they get the facts that all GPUs have.
TARGETS = (
    "cpu",
    "cpu:native",
    *(f"cpu:{name}" for name in CPUS),
    *(f"triton:{name}" for name in (*GPUS, "gfx90a", "gfx942", "gfx950")),
)


def machine_of(target: str | None, threads: int | None) -> Machine:
    """The machine of a target: "cpu" has AVX-512 on every machine, so that the same text comes out; "cpu:native" is this one.

    Raises:
        CommandError: an unknown target, with a suggestion.
    """
    made = Machine()
    if target is not None and target not in TARGETS:
        same = [t for t in TARGETS if t.endswith(f":{target}")] or difflib.get_close_matches(target, TARGETS, n=1)
        suggestion = f"; did you mean '{same[0]}'?" if same else ";"
        raise CommandError(f"unknown target '{target}'{suggestion} known: {', '.join(TARGETS)}")
    kind, _, name = (target or "cpu").partition(":")
    if kind == "triton":
        made = replace(made, gpu=gpu_facts(name))
    elif name:
        made = replace(made, cpu=CPUS[detect_isa() if name == "native" else name])
    if name == "native" and threads is None:
        threads = torch.get_num_threads()
    return made if threads is None else replace(made, cpu=replace(made.cpu, threads=threads))


def moved(module: ModuleOp, target: str | None) -> bool:
    """Put a module's tensors where the target is, and say whether the program takes a GPU's road.

    Raises:
        InputError: its loops are made for another kind of machine.
    """
    gpu = is_for_gpu(module)
    if target is None or target.startswith("triton") == gpu:
        return gpu
    levels = module_levels(module)
    if not any(LEVELS.index(level) < LEVELS.index("loop") for level in levels):
        here, there = ("a GPU", "a CPU") if gpu else ("a CPU", "a GPU")
        level = min(levels, key=LEVELS.index, default="loop")
        raise InputError(
            f"--target {target}: the module is at level '{level}', made for {here}; {there} has other loops"
        )
    retarget(module, "cpu" if gpu else "cuda:0")
    return not gpu
