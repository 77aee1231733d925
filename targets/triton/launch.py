"""Launches: a C++ function for each kernel, called like one of the CPU's, that hands a cubin's function to the driver.

    int name(uint64_t in0, uint64_t out0, int64_t s0, void* stream)

returns 0, a positive error number of the driver, MISALIGNED or TOO_LARGE. The driver is found at run time: no CUDA headers.
Tensor maps are made in each launch, from the operands' addresses: a call of the driver that takes less than a microsecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property

from ...ir.dialects import loop
from ...ir.symbols import Dim, dim, free_symbols
from ...passes.analysis.alignment import ALIGNMENT
from ..cpp.text import cpp_index
from ..errors import MISALIGNED, TOO_LARGE
from ..host.kernels import Callee
from ..text.walk import is_checked, memory_of, parameter_names
from .compile import Binary, KernelSource
from .descriptors import Descriptor, descriptors
from .emit import needs_int64, program_count
from .text import pointer_type

_HEAD = """#include <cstdint>
#include "intarsia_kernel.h"

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
static Launch launch;
static void* const* functions;
static const unsigned* shared;

extern "C" void intarsia_gpu(void* driver, void* found, void* bytes) {
  launch = reinterpret_cast<Launch>(driver);
  functions = static_cast<void* const*>(found);
  shared = static_cast<const unsigned*>(bytes);
}
"""

# Of kernels that read through tensor maps: how the driver makes one, and for each kernel how its maps are read.
_MAPS = """
struct alignas(64) Map { uint64_t words[16]; };
typedef int (*Encode)(Map*, unsigned, unsigned, void*, const uint64_t*, const uint64_t*, const unsigned*, const unsigned*, int, int, int, int);
static Encode encode;
static const unsigned* const* boxes;

extern "C" void intarsia_maps(void* found, void* read) {
  encode = reinterpret_cast<Encode>(found);
  boxes = static_cast<const unsigned* const*>(read);
}

// Of rows of neighbouring elements, a number of bytes apart. box: swizzle, dtype, rows and neighbours of a copy.
static int make_map(Map* map, const unsigned* box, uint64_t address, uint64_t rows, uint64_t columns, uint64_t bytes) {
  const uint64_t sizes[] = {columns, rows};
  const uint64_t strides[] = {bytes, rows * bytes};
  const unsigned copied[] = {box[3], box[2]}, steps[] = {1, 1};
  const int to_l2 = 2;  // lines of 128 bytes
  return encode(map, box[1], 2, reinterpret_cast<void*>(address), sizes, strides, copied, steps, 0, box[0], to_l2, 0);
}
"""


def kernel_source(kernel: loop.Kernel) -> KernelSource:
    """What Triton is given for a kernel."""
    signature = {name: pointer_type(memory_of(a).dtype) for name, a in parameter_names(kernel).items()}
    pointers = len(signature)
    size = "i64" if needs_int64(kernel) else "i32"
    signature |= dict.fromkeys(kernel.sizes, size)
    maps = descriptors(kernel)
    free = set(kernel.get("unaligned", ())) - {each.position for each in maps}
    signature |= {each.name: each.type for each in maps}
    return KernelSource(
        kernel["sym_name"],
        signature,
        [k for k in range(pointers) if k not in free],
        kernel["warps"],
        is_checked(kernel.block_body),
        kernel.get("stages", 0),
        kernel.get("contract", True),
        len(maps),
    )


def launchers(kernels: Sequence[loop.Kernel]) -> str:
    """The C++ text of the launches of these kernels, in the order of their binaries."""
    head = _HEAD + (_MAPS if any(map(descriptors, kernels)) else "")
    return head + "".join("\n" + _launcher(k, kernel) for k, kernel in enumerate(kernels))


def _launcher(number: int, kernel: loop.Kernel) -> str:
    source = kernel_source(kernel)
    pointers = [n for n, t in source.signature.items() if t.startswith("*")]
    maps = descriptors(kernel)
    named = {each.name for each in maps}
    sizes = [n for n, t in source.signature.items() if not t.startswith("*") and n not in named]
    given = [f"uint64_t {n}" for n in pointers] + [f"int64_t {n}" for n in sizes] + ["void* stream"]
    lines = [f'extern "C" int {source.name}({", ".join(given)}) {{']
    if checked := [pointers[k] for k in source.aligned]:
        lines.append(f"  if (({' | '.join(checked)}) & {ALIGNMENT - 1}) return {MISALIGNED};")
    lines.append(f"  const int64_t programs = {cpp_index(program_count(kernel))};")
    lines.append("  if (programs <= 0) return 0;")
    tests = [f"{text} > INT32_MAX" for text in ["programs", *map(cpp_index, _symbolic_extents(kernel))]]
    lines.append(f"  if ({' || '.join(tests)}) return {TOO_LARGE};")
    arguments = [f"&{n}" for n in pointers]
    for n in sizes:
        kind = source.signature[n]
        lines.append(f"  {'int32_t' if kind == 'i32' else 'int64_t'} {n}_ = {n};")
        arguments.append(f"&{n}_")
    for k, each in enumerate(maps):
        lines += _map_lines(each, f"boxes[{number}] + {4 * k}", pointers[each.position])
        arguments += [f"&{each.name}", *(f"&{each.name}_{part}" for part in ("rows", "columns", "stride", "one"))]
    lines.append("  uint64_t scratch = 0;")
    arguments += ["&scratch", "&scratch"]
    lines.append(f"  void* arguments[] = {{{', '.join(arguments)}}};")
    threads = 32 * source.warps
    lines.append(
        f"  return launch(functions[{number}], programs, 1, 1, {threads}, 1, 1, shared[{number}], stream, arguments, nullptr);"
    )
    lines += ["}", ""]
    return "\n".join(lines)


def _map_lines(each: Descriptor, box: str, address: str) -> list[str]:
    """What makes a tensor map, and the sizes and strides that the kernel is given with it."""
    name, (rows, columns) = each.name, each.shape
    made = f"make_map(&{name}, {box}, {address}, {rows}, {columns}, {each.stride * each.bytes})"
    return [
        f"  Map {name};",
        f"  if (const int code = {made}) return code;",
        f"  int32_t {name}_rows = {rows}, {name}_columns = {columns};",
        f"  int64_t {name}_stride = {each.stride}, {name}_one = 1;",
    ]


def callee(kernel: loop.Kernel) -> Callee:
    """A kernel as host programs call it: 32 bits count its programs, and the elements from the first to the last of each operand."""
    counted = (program_count(kernel), *_symbolic_extents(kernel))
    return Callee(kernel["sym_name"], counted=tuple(e for e in counted if free_symbols([e])))


def _symbolic_extents(kernel: loop.Kernel) -> list[Dim]:
    if "i32" not in kernel_source(kernel).signature.values() or "members" in kernel.attributes:
        return []
    found: dict[Dim, None] = {}
    for argument in kernel.block_body.args:
        ref = memory_of(argument)
        extent = dim(sum((size - 1) * stride for size, stride in zip(ref.shape, ref.strides, strict=True)))
        if free_symbols([extent]):
            found[extent] = None
    return list(found)


class DriverError(RuntimeError):
    """The CUDA driver refused something; the message has its words."""


class Driver:
    """The CUDA driver of this process. torch must have made the device's context.

    Raises:
        DriverError: it has no library here.
    """

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"kernels for a GPU need the CUDA driver's library: {error}") from None

    def load(self, binary: Binary) -> int:
        """The function of a compiled kernel, in the context of the current device."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.library.cuModuleLoadData(ctypes.byref(module), binary.code), binary)
        self._check(self.library.cuModuleGetFunction(ctypes.byref(function), module, binary.symbol.encode()), binary)
        # More must be asked for: attribute 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
        if binary.shared > 48 * 1024:
            self._check(self.library.cuFuncSetAttribute(function, 8, binary.shared), binary)
        assert function.value is not None
        return function.value

    def words(self, code: int) -> str:
        """What an error number means."""
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode()

    @property
    def launch(self) -> int:
        """The address of cuLaunchKernel."""
        found = ctypes.cast(self.library.cuLaunchKernel, ctypes.c_void_p).value
        assert found is not None
        return found

    @property
    def encode(self) -> int:
        """The address of cuTensorMapEncodeTiled."""
        found = ctypes.cast(self.library.cuTensorMapEncodeTiled, ctypes.c_void_p).value
        assert found is not None
        return found

    @cached_property
    def copy(self) -> Callable[[int, int, int, int], int]:
        """cuMemcpyDtoDAsync: target, source, bytes and stream, gives an error number."""
        function = ctypes.PyDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
        function.argtypes = (ctypes.c_void_p,) * 4
        return function  # type: ignore[no-any-return]

    @cached_property
    def write(self) -> Callable[[int, bytes, int, int], int]:
        """cuMemcpyHtoDAsync from memory that is not pinned, which the driver copies before it returns: target, bytes, their number, stream."""
        function = ctypes.PyDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2
        function.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
        return function  # type: ignore[no-any-return]

    def _check(self, code: int, binary: Binary) -> None:
        if code:
            raise DriverError(
                f"the CUDA driver does not load the kernel {binary.name}: {self.words(code)} (error {code}); "
                "'python -m intarsia doctor' shows whether driver, torch and Triton fit together"
            )
