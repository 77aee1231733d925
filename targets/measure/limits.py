"""How fast a machine copies memory and multiplies matrices: measured once, kept beside the compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch

from ..build.toolchain import cpu_facts
from ..torch_private import onednn_linear, onednn_pack_linear
from .store import Measurements

SECONDS = 0.2  # for one number, about
LEAST_ROUNDS = 4


@dataclass
class Limits:
    """What a device reaches at best, as a program could use it: with torch's own calls.

    Args:
        device: "cpu" or "cuda:0".
        folder: where the numbers are kept; None: nowhere.
    """

    device: str
    folder: Path | None
    table: Measurements = field(init=False)

    def __post_init__(self) -> None:
        self.table = Measurements(self.folder, self.device)

    @property
    def name(self) -> str:
        """The device's own name."""
        if self.device.startswith("cuda"):
            return torch.cuda.get_device_name(self.device)
        return f"{cpu_facts()[0]}, {_threads()}"

    def copies(self) -> float:
        """Bytes a second of a large copy, what is read and what is written counted; 0 where there is no memory for one."""
        return self._known(f"copy{self._setting()}", lambda: _copy_rate(self.device))

    def products(self, dtype: torch.dtype) -> float:
        """Operations a second of a large product of matrices, two for each number multiplied; 0 where there is none."""
        tf32 = dtype == torch.float32 and self.device != "cpu" and torch.backends.cuda.matmul.allow_tf32
        word = f"product {str(dtype).removeprefix('torch.')}{' as tf32' if tf32 else ''}"
        return self._known(f"{word}{self._setting()}", lambda: _product_rate(self.device, dtype))

    def _setting(self) -> str:
        return f" with {_threads()}" if self.device == "cpu" else ""

    def _known(self, key: str, measure: Callable[[], float]) -> float:
        def measured() -> float:
            try:
                with torch.no_grad(), torch.inference_mode(False):
                    return measure()
            except RuntimeError:  # no memory, or no such product
                return 0.0

        return float(self.table.get(key, measured, _is_a_rate))


def _is_a_rate(found: object) -> bool:
    return isinstance(found, int | float) and 0 < found < float("inf")


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count != 1 else ''}"


def _copy_rate(device: str) -> float:
    count = 1 << (27 if device.startswith("cuda") else 24)  # far more than the caches hold
    source = torch.zeros(count, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _least(device, lambda: target.copy_(source))


def _product_rate(device: str, dtype: torch.dtype) -> float:
    gpu = device.startswith("cuda")
    size = (8192 if dtype.itemsize == 2 else 4096) if gpu else 768
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    calls: list[Callable[[], object]] = [lambda: torch.mm(a, b)]
    if not gpu and onednn_linear is not None and dtype in (torch.float32, torch.bfloat16):
        packed = onednn_pack_linear(b, size)
        calls.append(lambda: onednn_linear(a, packed, None, "none", [], ""))
    return 2 * size**3 / min(_least(device, call) for call in calls)


def _least(device: str, call: Callable[[], object]) -> float:
    """The least seconds of one call."""
    least, end, rounds = float("inf"), perf_counter() + SECONDS, 0
    call()
    while rounds < LEAST_ROUNDS or perf_counter() < end:
        least, rounds = min(least, _once(device, call)), rounds + 1
    return least


def _once(device: str, call: Callable[[], object]) -> float:
    if not device.startswith("cuda"):
        start = perf_counter()
        call()
        return perf_counter() - start
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1000
