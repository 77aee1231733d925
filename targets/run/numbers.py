"""Floats that a call gives to a program on a GPU (learning rates): they wait in a small memory there, which each call fills before it starts.

The memory stays at one place for each stream, so that recordings read it where it is: a schedule is one recording.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ir.dialects import prim
from ...ir.types import RefType, TensorType, is_gpu
from ..host.kernels import gpu_index
from ..recordings.recording_memory import Gpu

APART = 16  # bytes: kernels are compiled for addresses that are multiples of this
MOST_STREAMS = 16
_FORMATS = {torch.float64: "d8x", torch.float32: "f12x"}

Run = Callable[..., Sequence[Any]]


class Numbers:
    """The floats among the arguments of a program.

    Args:
        places: which arguments they are.
        dtypes: what the program reads each as: float64 or float32.
        gpu: where it runs.
    """

    def __init__(self, places: Sequence[int], dtypes: Sequence[torch.dtype], gpu: Gpu) -> None:
        self.places, self.dtypes, self.gpu = list(places), list(dtypes), gpu
        self.packed = struct.Struct("=" + "".join(_FORMATS[dtype] for dtype in dtypes))
        self.memories: dict[int, tuple[int, list[torch.Tensor]]] = {}  # by stream: the address, and a tensor for each
        self.lock = threading.Lock()  # never waited for: two threads may work on one stream

    def __call__(self, run: Run, args: Sequence[Any]) -> Sequence[Any]:
        """The program's results."""
        if self.gpu.is_only or self.gpu.is_current():
            return self._call(run, args)
        with self.gpu.as_current():
            return self._call(run, args)

    def _call(self, run: Run, args: Sequence[Any]) -> Sequence[Any]:
        given, values = list(args), [args[k] for k in self.places]
        # Numbers in a graph of the user's are those of its capture, as in eager.
        if self.gpu.capturing() or not self.lock.acquire(blocking=False):
            made = [self.gpu.number(value, dtype) for value, dtype in zip(values, self.dtypes, strict=True)]
            for k, tensor in zip(self.places, made, strict=True):
                given[k] = tensor
            return run(*given)
        try:
            for k, tensor in zip(self.places, self._written(values), strict=True):
                given[k] = tensor
            return run(*given)
        finally:
            self.lock.release()

    def _written(self, values: Sequence[float]) -> list[torch.Tensor]:
        stream = self.gpu.stream()
        found = self.memories.get(stream)
        if found is None:
            if len(self.memories) >= MOST_STREAMS:
                self.memories.clear()
            found = self.memories[stream] = self._memory()
        address, tensors = found
        self.gpu.write(address, self._bytes(values), stream)
        return tensors

    def _memory(self) -> tuple[int, list[torch.Tensor]]:
        whole = self.gpu.empty((APART * len(self.places),), (1,), torch.uint8)
        parts = (whole[APART * k :][: dtype.itemsize] for k, dtype in enumerate(self.dtypes))
        return whole.data_ptr(), [part.view(dtype)[0] for part, dtype in zip(parts, self.dtypes, strict=True)]

    def _bytes(self, values: Sequence[float]) -> bytes:
        try:
            return self.packed.pack(*values)
        except OverflowError:  # beyond float32: infinite, as in a cast
            rounded = (torch.tensor(v, dtype=dtype).item() for v, dtype in zip(values, self.dtypes, strict=True))
            return self.packed.pack(*rounded)


def with_numbers(run: Run, func: prim.Func) -> Run:
    """A program whose floats are given as Python's: on the CPU new tensors, on a GPU in memory that each call fills."""
    places = [(k, func.block_body.args[k].type) for k in func.get("numbers", ())]
    types = {k: kind for k, kind in places if isinstance(kind, TensorType | RefType)}
    there = {k: kind for k, kind in types.items() if is_gpu(kind.device)}
    here = [(k, kind.dtype.torch) for k, kind in types.items() if k not in there]
    if not types:
        return run
    returned = [
        (at, spec[1]) for at, spec in enumerate(func.get("results", ())) if spec[0] == "input" and spec[1] in types
    ]
    numbers = None
    if there:
        gpu = Gpu(gpu_index(next(iter(there.values())).device))
        numbers = Numbers(list(there), [kind.dtype.torch for kind in there.values()], gpu)

    def call(*args: Any) -> Sequence[Any]:
        given = list(args)
        for k, dtype in here:
            given[k] = torch.tensor(given[k], dtype=dtype, device="cpu")
        results = run(*given) if numbers is None else numbers(run, given)
        if returned:
            results = list(results)
            for at, k in returned:
                results[at] = args[k]
        return results

    return call
