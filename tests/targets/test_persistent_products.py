"""Products whose programs walk over tiles and read these through tensor maps, and products whose result's rows begin anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch.nn.functional as F
from product_programs import ProductProgram, captured, half
from triton_programs import kernels_of

from intarsia.ir.dialects import loop, prim
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.machine import Machine, gpu_facts
from intarsia.passes.analysis.product_model import Shape, Tile, candidates, choose
from intarsia.passes.core.context import CompileContext
from intarsia.passes.kernels.choose_products import ChooseProducts
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.build.toolchain import find_toolchain
from intarsia.targets.triton import device
from intarsia.targets.triton.compile import compile_kernel, load_text
from intarsia.targets.triton.descriptors import descriptors
from intarsia.targets.triton.emit import emit_module, program_count
from intarsia.targets.triton.launch import kernel_source, launchers

TILE = "128x256x64x8x3x1x4"


def product(columns: int = 600, tile: str = TILE, machine: Machine | None = None) -> loop.Kernel:
    """(512, 320) by (320, columns)."""
    program = captured("linear", F.linear, [half(512, 320), half(columns, 320)], tile)
    module = parse_module(print_module(program.module))
    retarget(module, "cuda:0")
    for item in default_pipeline([ChooseProducts(tile=tile)], gpu=True, until="choose-forms"):
        item.apply(CompileContext(machine or Machine()), module)
    (kernel,) = kernels_of(module)
    return kernel


def test_code_for_hopper(tmp_path: Path) -> None:
    """Both operands are copied whole by tensor maps while the matrix units work, and nothing spills; odd rows are stored as they lie."""
    pytest.importorskip("triton")
    kernel = product(601)
    path = tmp_path / "kernels.py"
    path.write_text(emit_module([kernel]))
    source = kernel_source(kernel)
    assert [source.signature[f"d{k}"] for k in (0, 1)] == ["tensordesc<bf16[128, 64]>", "tensordesc<bf16[256, 64]>"]
    binary = compile_kernel(load_text(path, "persistent_kernels"), source, "sm_90")
    assert [list(box) for box in binary.boxes] == [[3, 9, 128, 64], [3, 9, 256, 64]]
    assert binary.shared <= Machine().gpu.shared_bytes
    with pytest.raises(TypeError, match="0 of 2 operands"):
        compile_kernel(load_text(path, "persistent_kernels"), source, "sm_80")


def test_launch(tmp_path: Path) -> None:
    """What a launch tells the driver: of each operand where it lies and what a tile of it is, and no more programs than may run at once."""
    kernel = product()
    assert program_count(kernel) == 4 and [each.position for each in descriptors(kernel)] == [0, 1]
    path, headers = tmp_path / "launches.cpp", Path(device.__file__).parents[1] / "cpp" / "include"
    path.write_text(launchers([kernel]))
    command = [find_toolchain().compiler, "-std=c++17", "-O0", "-shared", "-fPIC", f"-I{headers}", str(path)]
    subprocess.run([*command, "-o", str(tmp_path / "launches.so")], check=True)
    library = ctypes.CDLL(str(tmp_path / "launches.so"))
    maps, launches = [], []
    number, wide, small = ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint)

    @ctypes.CFUNCTYPE(
        number, wide, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64, wide, wide, small, small, *[number] * 4
    )
    def encode(made, kind, rank, address, sizes, strides, box, steps, *rest):  # type: ignore[no-untyped-def]
        made[0] = 1000 + len(maps)
        maps.append((kind, rank, address, sizes[:2], strides[0], box[:2], steps[:2], rest))
        return 0

    @ctypes.CFUNCTYPE(
        number, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(wide), ctypes.c_void_p
    )
    def launch(function, *rest):  # type: ignore[no-untyped-def]
        values = rest[8]
        launches.append((function, rest[:7], values[3][0], values[8][0], [values[k][0] & 0xFFFFFFFF for k in (4, 5)]))
        return 0

    functions, shared = (ctypes.c_void_p * 1)(77), (ctypes.c_uint * 1)(5000)
    boxes = (ctypes.c_uint * 8)(3, 9, 128, 64, 3, 9, 256, 64)
    library.intarsia_gpu(launch, functions, shared)
    table = (ctypes.c_void_p * 1)(ctypes.addressof(boxes))
    library.intarsia_maps(encode, table)
    run = library[kernel["sym_name"]]
    run.argtypes = (ctypes.c_void_p,) * 4
    assert run(0x1000, 0x2000, 0x3000, None) == 0 and run(0x1008, 0x2000, 0x3000, None) == -1
    assert maps == [
        (9, 2, 0x1000, [320, 512], 640, [64, 128], [1, 1], (0, 3, 2, 0)),
        (9, 2, 0x2000, [320, 600], 640, [64, 256], [1, 1], (0, 3, 2, 0)),
    ]
    assert launches == [(77, (4, 1, 1, 256, 1, 1, 5000), 1000, 1001, [512, 320])]


def test_other_gpus() -> None:
    """Without tensor maps each program has one tile, and reads by addresses."""
    kernel = product(machine=Machine(gpu=replace(gpu_facts("sm_90"), tensor_maps=False)))
    assert not descriptors(kernel) and program_count(kernel) == 12 and "tl.range" not in emit_module([kernel])
    assert [gpu_facts(name).tensor_maps for name in ("sm_90", "sm_80", "sm_100", "gfx942")] == [
        True,
        False,
        False,
        False,
    ]
    for shape in (Shape(1, 4096, 4096, 1024, "bf16", True), Shape(1, 4096, 50257, 768, "bf16")):
        assert any(t.programs for t in candidates(shape))


def test_more_than_a_copy_may_have() -> None:
    """Operands whose tiles are wider than the hardware copies are read by addresses; the walk over tiles is the same."""
    kernel = product(tile="128x512x16x8x3x1x4")
    assert [each.name for each in descriptors(kernel)] == ["d0"] and "tl.range" in emit_module([kernel])


@pytest.mark.parametrize(("columns", "group"), [(26208, 8), (26220, 128)])
def test_groups(columns: int, group: int) -> None:
    """A second factor of more than 16 MiB passes by as many rows of the first one as stay in the cache."""
    outer = product(columns).block_body.first_op
    assert isinstance(outer, loop.For) and outer["group"] == group


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        (Shape(1, 4096, 50257, 768, "bf16"), "128x256x64x8x3x1x132"),
        (Shape(1, 512, 50257, 768, "bf16"), "128x256x64x8x3x1x132"),
        (Shape(1, 64, 50257, 768, "bf16"), "64x128x64x4x3x1"),
        (Shape(1, 4, 50257, 768, "bf16"), "16x128x64x4x4x1"),
        (Shape(1, 4096, 50264, 768, "bf16"), ""),
        (Shape(1, 8192, 11008, 4096, "bf16", True, 1), "128x256x64x8x4x1x132"),
        (Shape(1, 8192, 11008, 4096, "bf16", True, 1, narrow=False), ""),
        (Shape(1, 8192, 11008, 4096, "bf16", True, 1, tensor_maps=False), ""),
        (Shape(1, 16384, 768, 768, "bf16", True, 1), "128x128x64x4x3x1x264"),
        (Shape(1, 6272, 1536, 384, "bf16", True), "64x128x64x4x3x1"),
        (Shape(1, 100352, 288, 96, "bf16"), "128x128x32x4x3x1x264"),
        (Shape(1, 100352, 288, 96, "bf16", tensor_maps=False), "128x128x32x4x3x1"),
        (Shape(1, 6272, 1152, 384, "bf16"), ""),
    ],
)
def test_choices(shape: Shape, tile: str) -> None:
    """What was measured on an H200 to be the fastest, or next to it; "" is the library."""
    found = choose(shape).tile
    assert (found.text if found else "") == tile and (found is None or Tile.parse(tile) == found)


def test_rows_that_begin_anywhere() -> None:
    """A vocabulary of 1003 has a kernel of our own, without an epilogue too."""
    program = ProductProgram("head", captured("head", F.linear, [half(1024, 64), half(1003, 64)]).module, [])
    module = parse_module(print_module(program.module))
    retarget(module, "cuda:0")
    for item in default_pipeline(gpu=True, until="layout"):
        item.apply(CompileContext(), module)
    assert any(isinstance(op, prim.Contract) for op in module.walk())
