"""What a recorded program needs of its GPU: memory that recordings share, arguments copied in, results copied out.

Copies are the driver's, of whole ranges of bytes: one call of a microsecond, where torch's own copy takes five.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ...ir.snapshots import members
from ...ir.symbols import span
from ..torch_private import current_stream, empty_strided_gpu, storage_address
from .capture import Replay, capture, in_context
from .seeds import draw_seed

WARM = 2  # calls with the same sizes and places before a recording: libraries choose algorithms in them
LEAST_RESERVED = 20 << 20  # bytes: torch takes as many from the driver at once
# Where torch's allocator is told one of these, it may not divide a large block.
_SETTINGS, _INDIVISIBLE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), ("max_split", "backend", "expandable")
# The caller's arguments, the results before this one, the stream -> a result.
Maker = Callable[[Sequence[Any], list[Any], int], Any]
SPARSE = 4  # times as many bytes in a tensor's range as in its elements: then elements are copied, not the range


@dataclass
class Pool:
    """Memory that all recordings of one stream share: none leaves anything there that is needed after its results were copied.

    `lock` is held from the first copy to the last: another thread's recording on the same stream would write between them.
    """

    memory: Any  # torch's memory pool
    side: Any  # the stream on which recordings are made
    lock: Any = field(default_factory=threading.Lock)


class Gpu:
    """One GPU as recordings see it.

    Args:
        index: its number.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_only = torch.cuda.device_count() < 2

    def is_current(self) -> bool:
        """Whether torch works on it at present."""
        return torch.cuda.current_device() == self.index

    def as_current(self) -> Any:
        """Inside of this context torch works on it."""
        return torch.cuda.device(self.index)

    def stream(self) -> int:
        """The address of torch's current stream."""
        return current_stream(self.index)

    def capturing(self) -> bool:
        """Whether the current stream is recording something of the user's."""
        return torch.cuda.is_current_stream_capturing()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies on a GPU: some results of library calls are numbers on the CPU, whatever their fake twins say."""
        return tensor.is_cuda

    def memory(self) -> Any:
        """A memory pool for recordings."""
        made = torch.cuda.MemPool()
        _memories.add(made)
        return made

    def pool(self) -> Pool:
        """Memory for all recordings of a stream."""
        return Pool(self.memory(), torch.cuda.Stream(self.index))

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the caller's stream. Shape and strides are tuples: torch's function takes nothing else."""
        return empty_strided_gpu(shape, strides, dtype)

    def record(self, work: Callable[[], list[Any]], pool: Pool) -> tuple[Replay, list[Any]]:
        """What plays the work back, and its results as they are in the recording's memory.

        Raises:
            RuntimeError: something in it cannot be recorded.
        """
        return capture(work, self.index, pool.memory, pool.side)

    def reserve(self, pool: Pool, size: int) -> None:
        """Let a pool have one block of so many bytes, which recordings divide among their tensors.

        Blocks of torch's own choice hold a few tensors each, and where these go others do not fit: a quarter more for BERT's backward.
        """
        if size < LEAST_RESERVED or any(
            word in os.environ.get(name, "") for name in _SETTINGS for word in _INDIVISIBLE
        ):
            return
        memory = torch.cuda.use_mem_pool(pool.memory, self.index)
        with suppress(torch.OutOfMemoryError), torch.cuda.stream(pool.side), memory:
            torch.empty(size, dtype=torch.uint8, device=f"cuda:{self.index}")

    def release(self, least: int = 0) -> None:
        """Give memory that torch keeps without a use back to the driver, where it is at least so many bytes."""
        if torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index) >= least:
            torch.cuda.empty_cache()

    @cached_property
    def _copy(self) -> Callable[[int, int, int, int], int]:
        from ..triton.program import driver

        return driver().copy

    def move(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy bytes on the GPU, in the order of the stream."""
        if not size or not (code := self._copy(target, source, size, stream)):
            return
        if code := in_context(code, self._copy, target, source, size, stream):
            from ..triton.program import driver

            raise RuntimeError(f"the CUDA driver does not copy {size} bytes: {driver().words(code)} (error {code})")

    def write(self, target: int, data: bytes, stream: int) -> None:
        """Put bytes of the host, at most a few hundred, into the GPU's memory, in the order of the stream: the driver has them when this returns."""
        from ..triton.program import driver

        call = driver().write
        if (code := call(target, data, len(data), stream)) and (
            code := in_context(code, call, target, data, len(data), stream)
        ):
            raise RuntimeError(
                f"the CUDA driver does not copy {len(data)} bytes: {driver().words(code)} (error {code})"
            )

    def seed(self) -> torch.Tensor:
        """64 random bits of the GPU's generator."""
        return draw_seed(f"cuda:{self.index}")

    def shown(self, tensor: torch.Tensor, memory: Any) -> torch.Tensor:
        """The bytes of the tensor's storage as a tensor that does not own them; this memory pool, in which they lie, lives as long."""
        storage = tensor.untyped_storage()
        return torch.as_tensor(_Bytes(storage.data_ptr(), storage.nbytes(), memory), device=f"cuda:{self.index}")

    def number(self, value: float, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of one number, of its own memory."""
        return torch.full((), value, dtype=torch.float64, device=f"cuda:{self.index}").to(dtype)


class _Bytes:
    """A range of a GPU's memory as torch reads it."""

    def __init__(self, address: int, size: int, memory: Any) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class Pools:
    """The shared memory of each GPU and stream."""

    def __init__(self) -> None:
        self.pools: dict[tuple[int, int], Pool] = {}
        # The streams to record on stay: libraries keep memory for each one that they were called on.
        self.sides: dict[tuple[int, int], Any] = {}
        self.lock = threading.Lock()

    def of(self, gpu: Gpu, stream: int) -> Pool:
        """Of recordings that are played back on this stream."""
        with self.lock:
            found = self.pools.get((gpu.index, stream))
            if found is None:
                made = gpu.pool()
                side = self.sides.setdefault((gpu.index, stream), made.side)
                found = self.pools[gpu.index, stream] = replace(made, side=side)
            return found

    def drop(self, pool: Pool | None = None) -> None:
        """Take new memory for later recordings; what is left of the old (of one pool, or of all) goes with the recordings that use it."""
        with self.lock:
            self.pools = {k: p for k, p in self.pools.items() if pool is not None and p is not pool}


POOLS = Pools()
_memories: weakref.WeakSet[Any] = weakref.WeakSet()  # for statistics, and for the end


@atexit.register
def _keep() -> None:
    """At the end of the process no memory may go before the graphs that use it, so it stays until the process is gone."""
    for memory in members(_memories):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))


def recorded_bytes() -> int:
    """Bytes of GPU memory that recordings hold; copies of arguments are not in it."""
    handles = {tuple(memory.id) for memory in members(_memories)}
    if not handles:
        return 0
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", ())) in handles)


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the last."""
    return span(tensor.shape, tensor.stride()) * tensor.element_size()


def storages(values: Sequence[Any]) -> set[int]:
    """Where the tensors among some values lie."""
    return {storage_address(v) for v in values if isinstance(v, torch.Tensor)}


def copies(copied: Sequence[torch.Tensor], results: Sequence[Any], args: Sequence[Any]) -> tuple[int, int]:
    """How many copies a playback makes, and of how many bytes: these arguments, and results that are no views of any argument."""
    known = storages(args)
    count, size = len(copied), sum(map(extent, copied))
    for r in results:
        if isinstance(r, torch.Tensor) and (storage := storage_address(r)) not in known:
            known.add(storage)
            count, size = count + 1, size + extent(r)
    return count, size


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether much less than its range of bytes is the tensor's."""
    return extent(tensor) > SPARSE * tensor.nbytes


def once(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its repetitions: one element along dimensions of stride 0."""
    for d, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(d) > 1:
            tensor = tensor.narrow(d, 0, 1)
    return tensor


class Memory:
    """Where an argument is copied to for a recording, of the size and strides that it has there.

    Args:
        place: which argument.
        tensor: the argument.
    """

    def __init__(self, place: int, tensor: torch.Tensor, gpu: Gpu) -> None:
        self.place, self.gpu, self.bytes, self.sparse = place, gpu, extent(tensor), is_sparse(tensor)
        self.memory = gpu.empty((self.bytes // tensor.element_size(),), (1,), tensor.dtype)
        self.address = self.memory.data_ptr()
        # What lies between the elements of a tensor that is written to is not ours to write.
        self.whole = self.bytes == tensor.nbytes
        self.shape, self.strides = tensor.shape, tensor.stride()

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory as the argument."""
        return self.memory.as_strided(tensor.shape, tensor.stride())

    def fill(self, tensor: torch.Tensor, stream: int) -> None:
        """Copy the argument in."""
        if self.sparse:
            once(self.like(tensor)).copy_(once(tensor))
        else:
            self.gpu.move(self.address, tensor.data_ptr(), self.bytes, stream)

    def give_back(self, tensor: torch.Tensor, stream: int) -> None:
        """Copy what the program wrote to the argument."""
        if self.whole:
            self.gpu.move(tensor.data_ptr(), self.address, self.bytes, stream)
        else:
            once(tensor).copy_(once(self.like(tensor)))


def result_makers(
    results: Sequence[Any], given: Sequence[Any], gpu: Gpu, handed: Container[int] = ()
) -> tuple[list[Maker], list[torch.Tensor]]:
    """How a caller's results are made from those of the recording, each with the strides that it has there; and which of these have to live on.

    Arguments and views of them are the caller's own; results that share memory share that of one copy. The results themselves need not live
    on: playing the recording back writes the same places again, and they are copied before anything else may write there.
    Results at places `handed` that share memory with no others are given as they are.
    """
    arguments = {storage_address(x): k for k, x in reversed(list(enumerate(given))) if isinstance(x, torch.Tensor)}
    sharing: dict[int, list[torch.Tensor]] = {}
    copied: set[int] = set()
    held: list[torch.Tensor] = []
    for number, r in enumerate(results):
        if isinstance(r, torch.Tensor):
            sharing.setdefault(storage_address(r), []).append(r)
            if number not in handed:
                copied.add(storage_address(r))
    makers: list[Maker] = []
    first: dict[int, int] = {}  # storage -> the first result there
    for number, r in enumerate(results):
        before = next((j for j in range(number) if results[j] is r), None)
        same = next((k for k, x in enumerate(given) if x is r), None)
        if not isinstance(r, torch.Tensor):
            makers.append(_constant(r))
        elif not gpu.holds(r):
            makers.append(_number(r))
        elif same is not None:
            makers.append(_argument(same))
        elif before is not None:
            makers.append(_earlier(before))
        elif (storage := storage_address(r)) in arguments:
            k = arguments[storage]
            makers.append(_view_of_argument(r, k, r.storage_offset() - given[k].storage_offset()))
        elif storage not in copied:
            held.append(r)
            makers.append(_as_it_is(r))
        elif storage in first:
            makers.append(_view_of_result(r, results[first[storage]], first[storage]))
        else:
            first[storage] = number
            makers.append(_copied(r, sharing[storage], gpu))
    return makers, held


def owned(results: Sequence[Any], places: set[int], gpu: Gpu) -> list[tuple[int, Maker]]:
    """Which results lie in these storages, and what makes the caller's own of each."""
    ours = [k for k, r in enumerate(results) if isinstance(r, torch.Tensor) and storage_address(r) in places]
    makers, _ = result_makers([results[k] for k in ours], (), gpu)
    return list(zip(ours, makers, strict=True))


def with_copies(results: Sequence[Any], copied: Iterable[tuple[int, Maker]], stream: int) -> list[Any]:
    """The results, some of them copied."""
    found, made = list(results), list[Any]()
    for k, make in copied:
        made.append(make((), made, stream))
        found[k] = made[-1]
    return found


def _constant(value: Any) -> Maker:
    return lambda args, done, stream: value


def _number(value: torch.Tensor) -> Maker:
    return lambda args, done, stream: value.clone()


def _argument(k: int) -> Maker:
    return lambda args, done, stream: args[k]


def _earlier(j: int) -> Maker:
    return lambda args, done, stream: done[j]


def _as_it_is(r: torch.Tensor) -> Maker:
    return lambda args, done, stream: r.data  # a tensor of the caller's own over the same memory


def _view_of_argument(r: torch.Tensor, k: int, offset: int) -> Maker:
    shape, strides = r.shape, r.stride()
    return lambda args, done, stream: args[k].as_strided(shape, strides, args[k].storage_offset() + offset)


def _view_of_result(r: torch.Tensor, base: torch.Tensor, j: int) -> Maker:
    shape, strides, dtype = r.shape, r.stride(), r.dtype
    offset, size = _place(r) - _place(base), r.element_size()

    def make(args: Sequence[Any], done: list[Any], stream: int) -> Any:
        other = done[j]
        start = max(0, other.storage_offset() * other.element_size() + offset)  # less only where there are no elements
        if other.dtype is dtype:
            return other.as_strided(shape, strides, start // size)
        return torch.empty(0, dtype=dtype, device=other.device).set_(
            other.untyped_storage(), start // size, shape, strides
        )

    return make


def _copied(r: torch.Tensor, sharing: Iterable[torch.Tensor], gpu: Gpu) -> Maker:
    """A copy of the range that this result and the others of its storage take."""
    shape, strides, dtype, size = tuple(r.shape), r.stride(), r.dtype, extent(r)
    full = next((t for t in sharing if t.numel()), None)
    if full is None:
        return lambda args, done, stream: gpu.empty(shape, strides, dtype)
    storage = full.data_ptr() - _place(full)  # a tensor without elements gives no address
    address = storage + _place(r)
    low = min(storage + _place(t) for t in sharing)
    high = max(storage + _place(t) + extent(t) for t in sharing)
    if low == address and high == address + size:
        if is_sparse(r):
            return lambda args, done, stream: _strided_copy(r, gpu)

        def whole(args: Sequence[Any], done: list[Any], stream: int) -> Any:
            made = gpu.empty(shape, strides, dtype)
            gpu.move(made.data_ptr(), address, size, stream)
            return made

        return whole
    low -= (low - address) % r.element_size()  # a view of another dtype may begin between two elements
    count, offset = -(-(high - low) // r.element_size()), (address - low) // r.element_size()
    high = min(high, low + count * r.element_size())

    def part(args: Sequence[Any], done: list[Any], stream: int) -> Any:
        made = gpu.empty((count,), (1,), dtype)
        gpu.move(made.data_ptr(), low, high - low, stream)
        return made.as_strided(shape, strides, offset)

    return part


def _place(tensor: torch.Tensor) -> int:
    """Where in its storage a tensor begins, in bytes."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _strided_copy(r: torch.Tensor, gpu: Gpu) -> torch.Tensor:
    made = gpu.empty(tuple(r.shape), r.stride(), r.dtype)
    once(made).copy_(once(r))
    return made
