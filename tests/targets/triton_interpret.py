"""Runs programs for a GPU with Triton's interpreter: `TRITON_INTERPRET=1 python triton_interpret.py GROUP`.

Prints one JSON object a program: its name, its kernels that ran, and what is wrong ("" for nothing). What Triton 3.6's interpreter lacks or
does wrong with NumPy 2.4 is mended in this process first: `__index__` of a tensor, rounding to bfloat16, products of it, libdevice; reductions and
scans are by halves instead of one element after another, and a call of a function does not look through the whole language again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import quotients
import scipy.special
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from attention_programs import attention
from product_programs import products, uneven
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_operators import FAMILIES, operators
from triton_programs import Program, kernels_of, models, randoms, rows, zoo

from intarsia.ir.dialects import loop
from intarsia.ir.interpreter import run as reference
from intarsia.ir.interpreter.loops import find_kernel, launch_memory
from intarsia.ir.symbols import symbol
from intarsia.passes.schedule.gpu import cooperative
from intarsia.targets.triton import language
from intarsia.targets.triton.compile import load_text
from intarsia.targets.triton.descriptors import descriptors
from intarsia.targets.triton.emit import emit_module, program_count


def shared() -> Iterator[Program]:
    """Rows that several programs share, as if a GPU held a few hundred elements."""
    from kernel_zoo import SMALL_GPU  # triton_programs has said where it is

    for name, value in SMALL_GPU.items():
        setattr(cooperative, name, value)
    yield from (p for p in zoo() if "shared_rows" in p.name)


GROUPS: dict[str, Callable[[], Iterator[Program]]] = {
    "zoo": zoo,
    "rows": rows,
    "random": lambda: randoms(range(24)),
    "models": models,
    "shared": shared,
    "products": products,
    "uneven": uneven,
    "attention": attention,
    "operators": lambda: (p for family in FAMILIES for p in operators(family)),
}
RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def library(function: Callable[..., Any], result: Any = None) -> Callable[..., Any]:
    """A function of libdevice by one of NumPy."""

    def call(*args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, tl.core.tensor)]
        dtype = tensors[0].handle.data.dtype
        with np.errstate(all="ignore"):
            data = function(*[np.asarray(a.handle.data if isinstance(a, tl.core.tensor) else a, dtype) for a in args])
        kind = result or tensors[0].dtype
        data = np.asarray(data, interpreter._get_np_dtype(kind))
        block = tl.block_type(kind, list(data.shape)) if any(a.type.is_block() for a in tensors) else kind
        return tl.core.tensor(interpreter.TensorHandle(data, kind), block)

    return call


_NUMPY = {
    **{name: getattr(np, name) for name in ("fmod", "hypot", "copysign", "trunc", "expm1", "log10", "log1p", "tan")},
    **{name: getattr(np, name) for name in ("sinh", "cosh", "tanh")},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")},
    "pow": np.power,
    "exp2": np.exp2,
    "fast_dividef": np.divide,
    "nearbyint": np.rint,
    "erfc": scipy.special.erfc,
    "lgamma": lambda x: np.where(np.isinf(x), np.inf, scipy.special.gammaln(x)),
}
LIBDEVICE = SimpleNamespace(
    **{name: library(function) for name, function in _NUMPY.items()}, isinf=library(np.isinf, tl.int1)
)


def reduce_by_halves(self: Any, values: tuple[Any, ...]) -> list[Any]:
    """A reduction along `self.axis`, whose length is a power of two."""
    axis, parts = self.axis, [v.handle.data for v in values]
    while parts[0].shape[axis] > 1:
        left, right = zip(*(np.split(p, 2, axis) for p in parts), strict=True)
        parts = joined(self, values, left, right)
    if not self.keep_dims:
        parts = [p.squeeze(axis) for p in parts]
    return [self.to_tensor(p, v.dtype) for p, v in zip(parts, values, strict=True)]


def scan_by_halves(self: Any, values: tuple[Any, ...]) -> list[Any]:
    """A scan along `self.axis`: each element is joined to that 1, 2, 4 ... before it."""
    axis, parts = self.axis, [v.handle.data for v in values]
    size, apart = parts[0].shape[axis], 1
    place = np.arange(size).reshape([-1 if d == axis else 1 for d in range(parts[0].ndim)])
    while apart < size:
        made = joined(self, values, [np.roll(p, apart, axis) for p in parts], parts)
        parts = [np.where(place >= apart, new, old) for new, old in zip(made, parts, strict=True)]
        apart *= 2
    return [self.to_tensor(p, v.dtype) for p, v in zip(parts, values, strict=True)]


def joined(self: Any, values: Any, left: Any, right: Any) -> list[Any]:
    """What the combining function makes of two blocks."""
    a = [self.to_tensor(p, v.dtype) for p, v in zip(left, values, strict=True)]
    b = [self.to_tensor(p, v.dtype) for p, v in zip(right, values, strict=True)]
    made = self.combine_fn.fn(*a, *b)
    return [m.handle.data for m in (made if isinstance(made, tuple) else (made,))]


def mend() -> None:
    """Mend Triton's interpreter."""
    patch, convert, dot, splat = (
        interpreter._patch_lang_tensor,
        interpreter._convert_float,
        interpreter.InterpreterBuilder.create_dot,
        interpreter.InterpreterBuilder.create_splat,
    )

    def create_splat(self: Any, kind: Any, x: Any) -> Any:
        made = splat(self, kind, x)
        if x.data.dtype == bool:  # 3.9 makes integers of a scalar's truth value, which no load takes as a mask
            made.data = made.data.astype(bool)
        return made

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, *(widened(x) for x in (a, b)), *rest)

    def widened(x: Any) -> Any:
        if x.dtype != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert_float(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(np.array(data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return convert(data, source, target, mode)

    table = functools.cache(interpreter._get_np_dtype)  # it makes one at each call

    def numpy_dtype(kind: Any) -> Any:
        return np.dtype(np.uint64) if isinstance(kind.scalar, tl.pointer_type) else table(kind.scalar)

    seen: set[int] = set()  # the modules whose view of the language was patched since the kernel was started
    grid = interpreter.GridExecutor.__call__

    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.clear()
        return grid(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self.fn.__globals__) not in seen:
            seen.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    # No check of every sum and product for overflow: what is compiled has none, and a seventh of the time is spent on it.
    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = start, call
    interpreter._get_np_dtype = numpy_dtype
    interpreter._patch_lang_tensor, interpreter._convert_float = patch_tensor, convert_float
    interpreter.InterpreterBuilder.create_splat = create_splat
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_fma = fused
    interpreter.InterpreterBuilder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    interpreter.ReduceOps.generic_reduce = reduce_by_halves
    interpreter.ScanOps.generic_scan = scan_by_halves
    make_types_once()
    language.libdevice = LIBDEVICE
    language.meet = lambda counter, count: None


def make_types_once() -> None:
    """Half of the time goes into the types of blocks: each is made once, and of tuples, which shapes are, where somebody asks for one."""
    kind, shape = tl.core.block_type, tl.core.tuple
    make_block, make_tuple = kind.__init__, shape.__init__
    blocks: dict[Any, dict[str, Any]] = {}

    def block(self: Any, element: Any, sizes: Any) -> None:
        key = element.name, getattr(element, "address_space", None), *(getattr(n, "value", n) for n in sizes)
        if key not in blocks:
            make_block(self, element, sizes)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def of_values(self: Any, values: Any, *given: Any, **named: Any) -> None:
        if given or named:
            make_tuple(self, values, *given, **named)
        else:
            self.values = [*values]

    def type_of(self: Any) -> Any:
        if "made" not in vars(self):
            make_tuple(self, self.values)
        return vars(self)["made"]

    def same(self: Any, other: Any) -> Any:
        return tl.constexpr(self.values == [tl.core._unwrap_if_constexpr(n) for n in other])

    kind.__init__, shape.__init__, shape.__eq__ = block, of_values, same
    shape.type = property(type_of, lambda self, made: vars(self).update(made=made))


def fused(_: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z of float32, rounded once: the sum in float64 is rounded to odd (the interpreter's own rounds twice)."""
    if z.data.dtype != np.float32:
        return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
    with np.errstate(all="ignore"):
        product, added = x.data.astype(np.float64) * y.data, z.data.astype(np.float64)
        total = np.asarray(product + added)
        back = total - product
        left = (product - (total - back)) + (added - back)
        bits = total.view(np.int64)
        odd = np.where(left == 0, bits, np.where((left > 0) == (total > 0), bits, bits - 1) | 1)
        exact = np.isfinite(total) & (left == left) & (total != 0)
        found = np.where(exact, odd, bits).view(np.float64).astype(np.float32)
    return interpreter.TensorHandle(found, z.dtype.scalar)


def launch(machine: Any, op: Any) -> list[torch.Tensor]:
    """`loop.launch` by Triton's interpreter instead of the reference interpreter."""
    kernel = find_kernel(machine, op["kernel"])
    tensors, results = launch_memory(machine, kernel, op)
    programs = machine.number(program_count(kernel))
    if programs:
        sizes = [machine.number(symbol(s)) for s in kernel.sizes]
        memories = [
            m.view(torch.uint8) if m.dtype.itemsize == 1 and m.is_floating_point() else m for m in tensors + results
        ]
        # Programs run one after another: the second time, each finds what those of its row have stored.
        meet = any(isinstance(each, loop.Exchange) for each in kernel.block_body.walk())
        for _ in range(1 + meet):
            getattr(TEXT["module"], op["kernel"])[(programs,)](*memories, *sizes, *tensor_maps(kernel, memories))
        RAN.add(op["kernel"])
    return results


def tensor_maps(kernel: loop.Kernel, memories: list[torch.Tensor]) -> list[TensorDescriptor]:
    """What a kernel reads through."""
    found = []
    for each in descriptors(kernel):
        strides = [each.stride, 1]
        matrix = memories[each.position].as_strided(each.shape, strides)
        found.append(TensorDescriptor(matrix, list(each.shape), strides, list(each.block)))
    return found


TEXT: dict[str, Any] = {}  # the module of the program's kernels
RAN: set[str] = set()


def wrong(program: Program, number: int, folder: Path) -> str:
    """What is wrong with a program, or ""."""
    torch.manual_seed(number)
    expected = reference.run(program.exact or program.module, program.args)
    module = program.on_gpu()
    path = folder / f"kernels_{number}.py"
    path.write_text(emit_module(kernels_of(module)))
    TEXT["module"] = load_text(path, path.stem)
    TEXT["module"].libdevice = LIBDEVICE  # type: ignore[attr-defined]
    reference.RULES["loop.launch"] = launch
    torch.manual_seed(number)
    found = reference.run(module, program.args)
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.stride() != b.stride():
            return f"result {k} has strides {b.stride()}, not {a.stride()}"
        scale = program.scales[k] if program.scales else 1.0
        near = RELATIVE.get(a.dtype, 0.0) * (10 if program.scales else 1)
        torch.testing.assert_close(b, a, rtol=near, atol=near * min(max(scale, 1.0), 1e6), equal_nan=True)
    return ""


def main(*groups: str) -> None:
    """One line for each program of these groups."""
    mend()
    torch.set_num_threads(1)
    for group in groups:
        _run(group)


def _run(group: str) -> None:
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        for number, program in enumerate(GROUPS[group]()):
            RAN.clear()
            try:
                message = wrong(program, number, Path(folder))
            except Exception as error:
                cause = error.__cause__ or error
                message = f"{type(cause).__name__}: {cause}"[-1500:]
            finally:
                reference.RULES["loop.launch"] = LAUNCH
            _say(group, program.name, message)
    if group == "operators":
        RAN.clear()
        _say(group, "quotient", quotients.wrong())


def _say(group: str, name: str, message: str) -> None:
    print(json.dumps({"group": group, "name": name, "kernels": sorted(RAN), "wrong": message}), flush=True)


LAUNCH = reference.RULES["loop.launch"]

if __name__ == "__main__":
    main(*sys.argv[1:])
