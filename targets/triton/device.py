"""Which GPU a program runs on, and what there is to compile for it."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache

import torch
from xdsl.dialects.builtin import ModuleOp

from ...ir.syntax import defined_values
from ...ir.types import TensorType, is_gpu
from ..build.versions import triton_settings

OLDEST = (3, 6)


class NoTriton(RuntimeError):
    """Kernels for a GPU cannot be compiled here; the graph runs in eager."""


def gpu_of(module: ModuleOp) -> int | None:
    """The number of the GPU that a program's tensors are on; the first of several, None where there are none.

    Raises:
        NoTriton: there is one, but no Triton, or one that is too old.
    """
    for op in module.walk():
        for value in defined_values(op):
            if isinstance(value.type, TensorType) and is_gpu(value.type.device):
                triton_version()
                return int(value.type.device.partition(":")[2] or 0)
    return None


@cache
def triton_version() -> str:
    """The version of the installed Triton.

    Raises:
        NoTriton: none is installed, or it is older than 3.6.
    """
    wanted = ".".join(map(str, OLDEST))
    found = next((v for v in map(_version, _DISTRIBUTIONS) if v), "")
    if not found:
        raise NoTriton(
            f"kernels for a GPU need Triton {wanted} or later, which is not installed: pip install 'intarsia[triton]'"
        )
    if tuple(int(n) for n in re.findall(r"\d+", found)[:2]) < OLDEST:
        raise NoTriton(f"kernels for a GPU need Triton {wanted} or later, found {found}: pip install -U triton")
    return found


_DISTRIBUTIONS = ("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm")  # by whom it was built


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def capability(gpu: int) -> str:
    """What kernels for a GPU of this machine are compiled for: "sm_90", or AMD's "gfx942"."""
    properties = torch.cuda.get_device_properties(gpu)
    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@cache
def multiprocessors() -> int:
    """Of the smallest of this machine's GPUs; those of an H100 without one."""
    if not torch.cuda.is_available():
        return 132
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return min(each.multi_processor_count for each in properties)


@cache
def gpu_identity() -> str:
    """Changes when binaries for this machine's GPUs are others; "" without a GPU. Different GPUs count in their order, which programs name."""
    if not torch.cuda.is_available():
        return ""
    kinds = [_kind(gpu) for gpu in range(torch.cuda.device_count())]
    if len(set(kinds)) == 1:  # then it does not matter which of them a program is for, and how many there are
        kinds = kinds[:1]
    try:
        return f"{','.join(kinds)} triton {triton_version()} {triton_settings()}"
    except NoTriton:
        return ",".join(kinds)


def _kind(gpu: int) -> str:
    found = torch.cuda.get_device_properties(gpu)
    return f"{found.name} {capability(gpu)} of {found.multi_processor_count}"
