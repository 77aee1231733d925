"""What a compiled program depends on beside its own text: the versions of the libraries that made it, and that it calls."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys

import networkx
import sympy
import torch
import xdsl

from .cache import package_fingerprint

# Settings of Triton's that change its code; where its files are does not.
_TRITON = ("TRITON_", "PTXAS", "NVPTX_", "AMDGCN_", "LLVM_", "MLIR_", "DISABLE_")
_PLACES = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR")


@functools.cache
def torch_build() -> str:
    """torch and the libraries that it was built with: oneDNN, MKL, cuBLAS, cuDNN ..., and the instructions that it may use."""
    facts = (torch.__version__, torch.version.git_version, torch.version.debug, torch.__config__.show())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@functools.cache
def versions() -> dict[str, str]:
    """By name; part of every key of the cache."""
    return {
        "intarsia": package_fingerprint(),
        "torch": f"{torch.__version__} {torch_build()}",
        "python": f"{sys.version} {sys.flags.optimize}",
        "xdsl": str(getattr(xdsl, "__version__", "")),
        "sympy": sympy.__version__,
        "networkx": networkx.__version__,
        "system": f"{platform.system()} {platform.machine()} {platform.libc_ver()}",
    }


def triton_settings() -> str:
    """The variables by which Triton compiles otherwise, as one text."""
    found = {k: v for k, v in os.environ.items() if k.startswith(_TRITON) and k not in _PLACES}
    return repr(sorted(found.items())) if found else ""
