"""The examples run and say what they promise; so does the program in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import Prepared

ROOT = Path(__file__).parent.parent
SAYS = {
    "toy.py": ["graphs: 1 kernels: 1", "softmax is right"],
    "module.py": ["close: True", "still close after a new bias: True", "another batch size: True"],
    "inspect_stages.py": [
        "---- aten",
        "prim.reduce",
        "kernel.fused",
        "loop.kernel",
        "buffer.alloc",
        "---- C++",
        "#pragma omp",
        "def run(",
    ],
    "fx_backend.py": ["captured:", "close: True"],
    "first_pass/program.py": ["with the pass: [4.0, 5.0, 1.0", "in the report: [('root-of-square', True)]"],
    "custom_pass.py": ["with the pass:  [2.0, 11.0, 101.0]"],
    "breaks.py": [
        "a negative sum\na negative sum\nclose: True - same side effects: True\nclose: True",
        "whole calls in eager: 0",
        "breaks.py:12: history.append(",
    ],
    "numpy_target.py": ["v4 = v3 @ x2", "close: True"],
    "c99_target.py": ["(float *in0, float *in1, float *out0) {", "kernels: 1 code: 0 close: True"],
    "webgpu_target.py": ["@compute @workgroup_size(64)", "let o0 = i32(id.x);", "max(m0[0], t4)"],
    "fusion_policy.py": ["kernels: 1 close: True\nkernels: 2 close: True\nkernels: 3 close: True\n"],
    "custom_operator.py": ["library calls: 2 close: True\nlibrary calls: 0 close: True\n"],
    "scalar_function.py": ["= scalar.softsign(", "interpreted: True\ncompiled:    True\nTriton:      True\n"],
    "partition_policy.py": [
        "every 1: 8 values of 512 KiB saved, close: True\nevery 4: 2 values of 128 KiB saved, close: True\n"
    ],
    "memory_planner.py": ["close: True\nclose: True\narena: arena_bytes = ", "\nclose: True\n"],
    "unroll_by_two.py": ["close: True", "stop = 32, step = 2}", " + r0 + 1]"],
    "machine_row.py": [
        "size = 48, value = 0.0",
        "step = 64}",
        "---- made-up",
        "size = 40, value = 0.0",
        "step = 128}",
    ],
    "explain.py": [
        "explain.py:13, in clip_norm: if norm > limit:",
        "line 13 - compute both sides and choose with torch.where",
        "graph breaks afterwards: 0",
        "exported: True",
    ],
    "training_table.py": [],
    **dict.fromkeys(["train_gpt.py", "train_resnet.py", "train_ddp.py", "train_fsdp.py"], ["losses as in eager: True"]),
    "dynamic_shapes.py": ["captured 2 times", "dynamic_shapes.py:24: return x + 1 if", "needs it to be 2"],
}


SHORT = ["--steps", "3", "--systems", "eager,intarsia"]


@pytest.fixture(scope="module")
def prepared():
    with Prepared(PYTHONWARNINGS="error::UserWarning:intarsia") as process:
        yield process


@pytest.fixture
def run(prepared, tmp_path):
    """What a program prints in a process of its own, with an empty cache."""

    def in_process(program, *arguments):
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
        cache = {"INTARSIA_CACHE_DIR": str(tmp_path)}
        code, out, err = prepared.run(program, tmp_path, *arguments, seconds=120, **alone, **cache)
        assert code == 0, err
        return out

    return in_process


def test_every_example_is_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {name for name in SAYS if "/" not in name}


@pytest.mark.parametrize("name", SAYS)
def test_example(name, run):
    printed = run(ROOT / "examples" / name, *(SHORT if name.startswith("train_") else []))
    for text in SAYS[name]:
        assert text in printed


def test_readme(run, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    blocks = [block for block in blocks if "import intarsia" in block]  # the others are fragments
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"readme_{number}.py"
        file.write_text(block)
        run(file)
