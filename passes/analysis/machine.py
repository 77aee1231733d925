"""Facts about the machines that programs run on, one row a processor. Passes ask for the facts; a row's name is for options and messages.

A decision that follows from a size follows from it here, so that a new row is all that a new processor takes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from ...ir.dtypes import F32, DType
from ...ir.types import is_gpu

KIB = 1024


@dataclass(frozen=True)
class Processor:
    """What the code of a kernel may count on. A fact that a processor does not have is 0 or False.

    Attributes:
        name: the row, as `passes-opt --isa` and Triton name it.
        vector_bytes: width of a SIMD register. vector_registers: how many of them code may name.
        l1_bytes, l2_bytes: caches of a core; of a GPU, the one that all multiprocessors share.
        threads: how many a kernel may use.
        dots_bfloat16: the dot product of bfloat16 vectors is the fastest way to multiply: it is there, and tiles (AMX) are not.
        multiprocessors: a kernel is a grid of programs that run on these; programs that wait for each other must all be running.
        registers: 32-bit registers of a multiprocessor.
        shared_bytes: memory of a multiprocessor that one block may use.
        tensor_maps: programs copy whole tiles by one instruction (Hopper's TMA), and blocks lie as its matrix units want them.
    """

    name: str
    vector_bytes: int = 0
    vector_registers: int = 0
    l1_bytes: int = 0
    l2_bytes: int = 0
    threads: int = 0
    dots_bfloat16: bool = False
    multiprocessors: int = 0
    registers: int = 0
    shared_bytes: int = 0
    tensor_maps: bool = False

    @property
    def is_grid(self) -> bool:
        """Whether a kernel is a grid of programs over blocks, which do not wait for each other, instead of loops over vectors."""
        return self.multiprocessors > 0

    @property
    def is_asynchronous(self) -> bool:
        """Whether a launch only queues a kernel: torch gives freed memory to what is queued next, errors are seen later, and
        contents of memory cannot be looked at in passing."""
        return self.is_grid

    def lanes(self, dtype: DType) -> int:
        """Elements of a dtype in a vector."""
        return self.vector_bytes // dtype.bytes

    @property
    def strip(self) -> int:
        """Numbers in float32 that the nearest cache holds: what one thread takes of a long loop at a time."""
        return self.l1_bytes // F32.bytes

    @property
    def square(self) -> int:
        """Side of the squares in which memory is transposed: a power of two, and half of the nearest cache holds one in float32."""
        return 1 << (((self.strip // 2).bit_length() - 1) // 2)

    @property
    def stays_cached(self) -> int:
        """Bytes that stay in the last cache while others pass by: a power of two, as sizes mostly are."""
        return 1 << max(0, self.l2_bytes.bit_length() - 1)


def _cpu(name: str, vector_bytes: int, vector_registers: int, dots_bfloat16: bool = False) -> Processor:
    return Processor(name, vector_bytes, vector_registers, 32 * KIB, 1024 * KIB, threads=2, dots_bfloat16=dots_bfloat16)


def _gpu(name: str, shared_kib: int, l2_mib: int, tensor_maps: bool = False) -> Processor:
    return Processor(
        name,
        l2_bytes=l2_mib << 20,
        multiprocessors=132,
        registers=64 * KIB,
        shared_bytes=shared_kib * KIB,
        tensor_maps=tensor_maps,
    )


# Widths of vectors and numbers of registers are the instruction sets'; caches are those of Zen 4, at whose sizes tiles were measured.
CPUS = {
    row.name: row
    for row in (
        _cpu("avx512", 64, 32, dots_bfloat16=True),
        _cpu("avx2", 32, 16),
        _cpu("neon", 16, 32),
        _cpu("plain", 16, 16),
    )
}

# Shared memory as the vendor's tables of compute capabilities give it; multiprocessors are counted where a GPU is (132: an H100).
GPUS = {
    row.name: row
    for row in (
        _gpu("sm_70", 96, 6),
        _gpu("sm_75", 64, 4),
        _gpu("sm_80", 163, 40),
        _gpu("sm_86", 99, 6),
        _gpu("sm_87", 163, 4),
        _gpu("sm_89", 99, 72),
        _gpu("sm_90", 227, 50, tensor_maps=True),
        _gpu("sm_100", 227, 126),
        _gpu("sm_103", 227, 126),
        _gpu("sm_120", 99, 96),
        _gpu("sm_121", 99, 24),
    )
}


def gpu_facts(name: str) -> Processor:
    """The row of "sm_90"; for one that has none, "gfx942", the shared memory that all have and the cache that was measured."""
    return GPUS.get(name) or _gpu(name, 64, 50)


@dataclass(frozen=True)
class Machine:
    """What a program runs on, and what torch's build and settings allow there.

    Attributes:
        cpu, gpu: for what lies in the host's memory, and in a GPU's.
        bfloat16: oneDNN multiplies in bfloat16 on this processor.
        tf32: convolutions in float32 on a GPU may round their operands to TF32, as torch's setting says.
        tf32_products: products of matrices may.
    """

    cpu: Processor = field(default=CPUS["avx512"])
    gpu: Processor = field(default=GPUS["sm_90"])
    bfloat16: bool = True
    tf32: bool = True
    tf32_products: bool = False

    @property
    def text(self) -> str:
        """The rows, for reproducers; `Machine.read` gives them back."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Machine:
        """The machine of a reproducer.

        Raises:
            ValueError: the text is none.
        """
        try:
            given = json.loads(text)
            return cls(**given | {part: Processor(**given[part]) for part in ("cpu", "gpu")})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"what stands behind '// machine:' is no machine that a reproducer writes: {error}"
            ) from None

    def at(self, device: str) -> Processor:
        """What runs the kernels of memory that lies on a device."""
        return self.gpu if is_gpu(device) else self.cpu
