"""Programs recorded as CUDA graphs: one call of the driver starts all kernels and library calls of a program.

A program runs as it is at first, then once into a recording, and from then on the recording is played back. What a user sees stays the same:

- results are copies that the caller owns, never memory of the recording;
- parameters are read where they are: another address is another recording; arguments that change from call to call are copied in;
- a recording belongs to one stream; a call on another one, from a second thread at the same time or inside the user's own capture runs
  the program itself;
- what cannot be recorded (see `refusal`) runs as it is, and `explain()` says why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch_private import current_stream

log = logging.getLogger("intarsia")
Run = Callable[..., Sequence[Any]]
WARM = 2  # calls before a recording: libraries choose algorithms and allocate work space in the first ones
LIMIT = 8  # recordings of one program: for so many sizes, or places of parameters


@dataclass
class Statistics:
    """What this process has recorded."""

    recordings: int = 0
    replays: int = 0
    refused: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Back to zero."""
        self.recordings = self.replays = 0
        self.refused.clear()


STATISTICS = Statistics()  # counters only: nothing depends on them


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    stream: int
    inputs: list[tuple[int, torch.Tensor]]  # places of arguments, and the memory that they are copied to
    results: list[Any]
    keeps: list[Any]  # parameters that the kernels read


class Recorded:
    """A program that is recorded after a few calls.

    Args:
        run: the program.
        static: which arguments are parameters or buffers, read and written where they are.
        gpu: the number of the GPU.
    """

    def __init__(self, run: Run, static: Sequence[bool], gpu: int) -> None:
        self.run, self.gpu, self.replays = run, gpu, 0
        self.fixed = [k for k, s in enumerate(static) if s]
        self.given = [k for k, s in enumerate(static) if not s]
        self.made: dict[Any, _Recording] = {}
        self.calls = 0
        self.reason = ""
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Sequence[Any]:
        if self.reason or self.calls < WARM:
            self.calls += 1
            return self.run(*args)
        if not self.lock.acquire(blocking=False):
            return self.run(*args)
        try:
            key = self._key(args)
            found = self.made.get(key)
            if found is None:
                if torch.cuda.is_current_stream_capturing():
                    return self.run(*args)
                if len(self.made) >= LIMIT:
                    self._refuse(f"more than {LIMIT} sizes or places of parameters")
                    return self.run(*args)
                found = self._record(args)
                if found is None:
                    return self.run(*args)
                self.made[key] = found
            if found.stream != current_stream(self.gpu) or torch.cuda.is_current_stream_capturing():
                return self.run(*args)
            for k, memory in found.inputs:
                memory.copy_(_once(args[k]))
            found.graph.replay()
            STATISTICS.replays += 1
            self.replays += 1
            return [_copy(r) if isinstance(r, torch.Tensor) else r for r in found.results]
        finally:
            self.lock.release()

    def _key(self, args: Sequence[Any]) -> Any:
        key: list[Any] = [args[k].data_ptr() for k in self.fixed]
        for k in self.given:
            x = args[k]
            key.append((x.shape, x.stride()) if isinstance(x, torch.Tensor) else x)
        return tuple(key)

    def _record(self, args: Sequence[Any]) -> _Recording | None:
        """One call into a recording; None where it cannot be recorded."""
        given = list(args)
        inputs = []
        for k in self.given:
            if isinstance(args[k], torch.Tensor):
                part = _once(args[k])
                memory = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=part.device).copy_(
                    part
                )
                inputs.append((k, memory))
                given[k] = memory.expand(args[k].shape)
        here = torch.cuda.current_stream(self.gpu)
        side = torch.cuda.Stream(self.gpu)
        graph = torch.cuda.CUDAGraph()
        side.wait_stream(here)
        try:
            with torch.cuda.stream(side):
                numbers = torch.cuda.get_rng_state(self.gpu)
                self.run(*given)  # libraries keep work space for each stream
                torch.cuda.set_rng_state(numbers, self.gpu)  # this call draws once
                with torch.cuda.graph(graph, pool=_pool(), stream=side, capture_error_mode="thread_local"):
                    results = list(self.run(*given))
        except RuntimeError as error:
            self._refuse(str(error).splitlines()[0])
            return None
        finally:
            here.wait_stream(side)
        STATISTICS.recordings += 1
        return _Recording(graph, here.cuda_stream, inputs, results, [args[k] for k in self.fixed])

    def _refuse(self, reason: str) -> None:
        self.reason = reason
        self.made.clear()
        STATISTICS.refused.append(reason)
        log.info("a program is not recorded as a CUDA graph: %s", reason)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, whatever they are."""
    made = tensor.clone()
    if made.stride() == tensor.stride():
        return made
    part = _once(tensor)
    memory = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=part.device)
    return memory.copy_(part).expand(tensor.shape)


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its repetitions: one element along dimensions of stride 0."""
    if 0 not in tensor.stride():
        return tensor
    for d, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(d) > 1:
            tensor = tensor.narrow(d, 0, 1)
    return tensor


_pools: list[Any] = []


def _pool() -> Any:
    """The memory that all recordings share: each leaves nothing there that is needed after it was played back."""
    if not _pools:
        _pools.append(torch.cuda.graph_pool_handle())
    return _pools[0]


def recorded_bytes() -> int:
    """Bytes of GPU memory that recordings hold, shared between them."""
    if not _pools:
        return 0
    shared = tuple(_pools[0])
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", ())) == shared)


LEAST = 4  # kernels and library calls that are worth a recording
_LOOKING = ("aten.multinomial", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")  # at values, on the CPU


def refusal(
    steps: int,
    operators: Sequence[str],
    results: Sequence[Sequence[Any]],
    mutated: Sequence[bool],
    devices: Sequence[str],
) -> str:
    """Why a program is not recorded, or "".

    Args:
        steps: how many kernels and library calls it has.
        operators: the library calls.
        results: how each of the user's results is made (`results` of `prim.Func`).
        mutated: for each argument that the program writes to, whether it is a parameter or buffer.
        devices: of its tensor arguments.
    """
    if steps < LEAST:
        return f"fewer than {LEAST} kernels"
    if any(not d.startswith("cuda") for d in devices):
        return "an argument is on the CPU"
    if not all(mutated):
        return "an argument that is no parameter is written to"
    kinds = {r[0] for r in results}
    if not kinds <= {"value", "none", "constant"}:
        return "a result is a view of an argument or of another result"
    values = [r[1] for r in results if r[0] == "value"]
    if len(set(values)) < len(values):
        return "two results are one"
    looking = [o for o in operators if o.startswith(_LOOKING)]
    return f"{looking[0]} looks at values" if looking else ""
