"""The fuzz programs with kernels compiled under AddressSanitizer and UndefinedBehaviorSanitizer: make sanitize-cpu.

    python tests/fuzz/sanitize.py [--seconds 300] [--seed 0] [--compiler g++]

A child process has the sanitizers' library loaded in front of Python, runs random calls and random functions, and ends at the first report.
The parent says which programs were running, prints the report, and goes on behind them. Exit code 1 if there was any.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Behind the flags of the target: at -O3 a unit takes a minute.
SANITIZERS = "-O1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
TOGETHER = 12


def library(compiler: str, name: str) -> str:
    """The path of a library of the compiler's."""
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise SystemExit(f"{compiler} has no {name}: install the sanitizers' libraries")
    return str(Path(found).resolve())


def environment(compiler: str, cache: str) -> dict[str, str]:
    """What the child runs with."""
    if "clang" in compiler:
        names = [f"libclang_rt.asan-{os.uname().machine}.so"]
        flags = f"{SANITIZERS} -shared-libasan"
    else:
        names, flags = ["libasan.so", "libubsan.so"], SANITIZERS
    wrapper = Path(cache) / compiler
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" {flags}\n')
    wrapper.chmod(0o755)
    return os.environ | {
        "CXX": str(wrapper),
        "LD_PRELOAD": " ".join(library(compiler, name) for name in names),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "INTARSIA_CACHE_DIR": f"{cache}/kernels",
        "OMP_NUM_THREADS": "2",
    }


def child(seed: int, seconds: float) -> None:
    """Programs from `seed` on, each announced by its number on standard output."""
    os.environ.pop("LD_PRELOAD", None)  # not for the compiler
    sys.path.insert(0, str(HERE))
    import torch
    from calls import differing, random_case
    from functions import random_function, runs_in_eager

    import intarsia

    start, wrong = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        print(f"seed {seed}", flush=True)
        if seed // TOGETHER % 4 == 3:
            intarsia.reset()
            functions = [f for s in range(seed, seed + TOGETHER) if runs_in_eager(f := random_function(s))]
            compiled = [intarsia.compile(f.call) for f in functions]
            for f, run in zip(functions, compiled, strict=True):
                run(*[x.clone() for x in f.inputs])
        else:
            with torch.no_grad():
                cases = [c for s in range(seed, seed + TOGETHER) if (c := random_case(s)) is not None]
                dynamic = True if seed // TOGETHER % 5 == 4 else None
                for case, what in differing(cases, {"winograd": random.Random(seed).random() < 0.5}, dynamic):
                    print(f"differs: {case.text}\n{what}", flush=True)
                    wrong += 1
        seed += TOGETHER
    print(f"seed {seed}\ndone", flush=True)
    sys.stdout.flush()
    os._exit(1 if wrong else 0)  # without the ends of libraries that are not ours


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args.seed, args.seconds)
    end, seed, bad, programs = time.monotonic() + args.seconds, args.seed, 0, 0
    with tempfile.TemporaryDirectory() as cache:
        while (left := end - time.monotonic()) > 10:
            command = [sys.executable, "-W", "ignore", __file__, "--child", "--seed", str(seed), "--seconds", str(left)]
            done = subprocess.run(
                command, env=environment(args.compiler, cache), capture_output=True, text=True, check=False
            )
            last = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seed ")]
            reached = last[-1] if last else seed + TOGETHER
            programs, bad = programs + reached - seed, bad + (done.returncode != 0)
            if done.returncode != 0:
                report = done.stderr[max(0, done.stderr.find("ERROR")) :][:4000]
                print(f"programs {reached} to {reached + TOGETHER - 1}: exit code {done.returncode}", flush=True)
                print(f"{done.stdout[-4000:]}\n{report}", flush=True)
            if not last:
                return 1
            seed = reached + (TOGETHER if done.returncode else 0)
    print(f"{programs} programs under {args.compiler}'s sanitizers, {bad} reports")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
