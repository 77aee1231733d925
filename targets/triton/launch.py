"""Launches: a C++ function for each kernel, called like one of the CPU's, that hands a cubin's function to the driver.

    int name(uint64_t in0, uint64_t out0, int64_t s0, void* stream)

returns 0, a positive error number of the driver, MISALIGNED or TOO_LARGE. The driver is found at run time: no CUDA headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property

from xdsl.ir import SSAValue

from ...ir.dialects import loop
from ...ir.symbols import Dim, dim, free_symbols
from ...ir.types import RefType
from ..cpp.emit import cpp_index
from .compile import Binary, KernelSource
from .emit import needs_int64, program_count
from .run import MISALIGNED, TOO_LARGE
from .text import pointer_type

ALIGNMENT = 16  # bytes that addresses are multiples of, as kernels are compiled

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


def kernel_source(kernel: loop.Kernel) -> KernelSource:
    """What Triton is given for a kernel."""
    signature: dict[str, str] = {}
    for i, argument in enumerate(kernel.block_body.args):
        name = f"in{i}" if i < kernel["inputs"] else f"out{i - kernel['inputs']}"
        signature[name] = pointer_type(_ref(argument).dtype)
    pointers = len(signature)
    size = "i64" if needs_int64(kernel) else "i32"
    signature |= {str(s): size for s in kernel.get("symbols", ())}
    checks = any(isinstance(op, loop.Bind) and op.is_checked for op in kernel.block_body.walk())
    return KernelSource(
        kernel["sym_name"],
        signature,
        list(range(pointers)),
        kernel["warps"],
        checks,
        kernel.get("stages", 0),
        kernel.get("contract", True),
    )


def _ref(value: SSAValue) -> RefType:
    assert isinstance(value.type, RefType)
    return value.type


def launchers(kernels: Sequence[loop.Kernel]) -> str:
    """The C++ text of the launches of these kernels, in the order of their binaries."""
    return _HEAD + "".join("\n" + _launcher(k, kernel) for k, kernel in enumerate(kernels))


def _launcher(number: int, kernel: loop.Kernel) -> str:
    source = kernel_source(kernel)
    pointers = [n for n, t in source.signature.items() if t.startswith("*")]
    sizes = [n for n, t in source.signature.items() if not t.startswith("*")]
    given = [f"uint64_t {n}" for n in pointers] + [f"int64_t {n}" for n in sizes] + ["void* stream"]
    lines = [f'extern "C" int {source.name}({", ".join(given)}) {{']
    if pointers:
        lines.append(f"  if (({' | '.join(pointers)}) & {ALIGNMENT - 1}) return {MISALIGNED};")
    lines.append(f"  const int64_t programs = {cpp_index(program_count(kernel))};")
    lines.append("  if (programs <= 0) return 0;")
    tests = [f"{text} > INT32_MAX" for text in ["programs", *map(cpp_index, _symbolic_extents(kernel))]]
    lines.append(f"  if ({' || '.join(tests)}) return {TOO_LARGE};")
    arguments = [f"&{n}" for n in pointers]
    for n in sizes:
        kind = source.signature[n]
        lines.append(f"  {'int32_t' if kind == 'i32' else 'int64_t'} {n}_ = {n};")
        arguments.append(f"&{n}_")
    lines.append("  uint64_t scratch = 0;")
    arguments += ["&scratch", "&scratch"]
    lines.append(f"  void* arguments[] = {{{', '.join(arguments)}}};")
    threads = 32 * source.warps
    lines.append(
        f"  return launch(functions[{number}], programs, 1, 1, {threads}, 1, 1, shared[{number}], stream, arguments, nullptr);"
    )
    lines += ["}", ""]
    return "\n".join(lines)


def counted(kernel: loop.Kernel) -> list[Dim]:
    """Numbers, symbolic ones, that must fit into 32 bits: of programs, and of elements from the first to the last of an operand."""
    return [e for e in (program_count(kernel), *_symbolic_extents(kernel)) if free_symbols([e])]


def _symbolic_extents(kernel: loop.Kernel) -> list[Dim]:
    if "i32" not in kernel_source(kernel).signature.values():
        return []
    found: dict[Dim, None] = {}
    for argument in kernel.block_body.args:
        ref = _ref(argument)
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
        if (
            binary.shared > 48 * 1024
        ):  # more must be asked for: attribute 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
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

    @cached_property
    def copy(self) -> Callable[[int, int, int, int], int]:
        """cuMemcpyDtoDAsync: target, source, bytes and stream, gives an error number."""
        function = ctypes.PyDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
        function.argtypes = (ctypes.c_void_p,) * 4
        return function  # type: ignore[no-any-return]

    def _check(self, code: int, binary: Binary) -> None:
        if code:
            raise DriverError(
                f"the CUDA driver does not load the kernel {binary.name}: {self.words(code)} (error {code}); "
                "'python -m intarsia doctor' shows whether driver, torch and Triton fit together"
            )
