"""Kernels under NVIDIA's compute-sanitizer: `python tests/gpu/sanitize.py [memcheck] [racecheck]`.

Those of tests/passes/kernel_zoo.py, random ones, and those of captured functions: pools, scatters, pads, searches, embedding bags, products
(odd sizes, chunks, programs that walk over tiles), attention, launches of several kernels.

Each tensor has memory of its own, so that a kernel that reads or writes one element beyond it is found. Exits with 1 where the
sanitizer finds something, or a result is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = {
    "memcheck": ["--tool", "memcheck", "--leak-check", "no"],
    "racecheck": ["--tool", "racecheck", "--racecheck-report", "analysis"],
}
RANDOM = 12  # random programs beside the zoo


def check() -> int:
    """Compile, where that has not been done, and run all; the number of wrong programs."""
    sys.path.insert(0, str(Path(__file__).parent))
    import random_graphs
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    programs = random_graphs.handwritten() + random_graphs.captured()
    programs += [random_graphs.random_one(seed) for seed in range(RANDOM)]
    failures = random_graphs.check(programs)
    print(f"{len(programs)} programs, {sum(len(p.kernels) for p in programs)} kernels, {len(failures)} wrong")
    for text in failures:
        print(f"  {text}")
    return len(failures)


def main() -> int:
    """Run the tools that are named, else all; 1 where one finds something."""
    if sys.argv[1:] == ["--check"]:
        return int(check() > 0)
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(program).exists():
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit")
        return 1
    with tempfile.TemporaryDirectory(prefix="intarsia-sanitize-") as folder:
        environment = {**os.environ, "INTARSIA_CACHE_DIR": folder}
        own = [sys.executable, str(Path(__file__).resolve()), "--check"]
        failed = subprocess.run(own, env=environment).returncode  # compiles, without the sanitizer
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        for tool in sys.argv[1:] or TOOLS:
            print(f"{tool}:", flush=True)
            command = [program, *TOOLS[tool], "--error-exitcode", "9", "--print-limit", "20", *own]
            failed |= subprocess.run(command, env=environment).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
