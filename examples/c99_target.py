"""A target of your own: plain C99 for the kernels of a function, from the plain loops of `lower`. One walk, one table of operations."""

import ctypes
import math
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch

import intarsia
from intarsia.extend import Op, Target, Walk, dtype_of, loop, memory_of

TYPES = {"f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "bool": "uint8_t"}
SCALARS = {  # the scalar table's operations that C's library has; others are an error that names them
    **{op: f"{{0}} {sign} {{1}}" for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{op: f"{{0}} {sign} {{1}}" for op, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="))},
    **{op: f"{op}({{0}})" for op in ("exp", "log", "sin", "cos", "tanh", "sqrt", "erf", "floor", "ceil")},
    "neg": "-{0}",
    "abs": "fabs({0})",
    "rsqrt": "1 / sqrt({0})",
    "sigmoid": "1 / (1 + exp(-{0}))",
    "max": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "where": "{0} ? {1} : {2}",
}
COMBINE = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": SCALARS["max"], "min": SCALARS["min"]}


class C99(Walk):
    """A function that is being written."""

    indent, comment = "    ", "//"
    table: ClassVar[dict[str, Callable[["C99", Op], None]]] = {}

    def value(self, op: Op, text: str) -> None:
        """A name for what an operation computes."""
        name = self.fresh("t")
        self.names[op.results[0]] = name
        self.line(f"const {TYPES[dtype_of(op.results[0]).name]} {name} = {text};")

    def element(self, op: Op, k: int) -> str:
        return f"{self.names[op.operands[k]]}[{index(op['index'])}]"


def index(expression: object) -> str:
    """Addresses are algebra over names: sums and products, which C writes as Python does."""
    text = str(expression)
    if any(word in text for word in ("Floor", "Mod", "//", "**")):
        raise NotImplementedError(f"the index {text}")
    return text


def number(value: object) -> str:
    if isinstance(value, bool | int):
        return str(int(value))
    return str(value) if math.isfinite(value) else "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"


def write_for(w: C99, op: Op) -> None:
    var, start, step = op["var"], index(op.get("start", 0)), op.get("step", 1)
    with w.scope(f"for (int64_t {var} = {start}; {var} < {index(op['stop'])}; {var} += {step}) {{", "}"):
        w.operations(op.block_body.ops)


def write_local(w: C99, op: Op) -> None:
    name = w.names[op.results[0]] = w.fresh("m")
    start = f" = {{{number(op['value'])}}}" if op.get("value") is not None else ""
    w.line(f"{TYPES[memory_of(op.results[0]).dtype.name]} {name}[{op['size']}]{start};")


def write_accumulate(w: C99, op: Op) -> None:
    if op["kind"] not in COMBINE:
        raise NotImplementedError(f"the reduction {op['kind']}")
    target = w.element(op, 1)
    w.line(f"{target} = {COMBINE[op['kind']].format(target, w.names[op.operands[0]])};")


def write_scalar(w: C99, op: Op) -> None:
    row = op.name.removeprefix("scalar.")
    if row not in SCALARS:
        raise NotImplementedError(f"the scalar function {row}")
    w.value(op, SCALARS[row].format(*(w.names[v] for v in op.operands)))


def write_load(w: C99, op: Op) -> None:
    if op.get("mask"):
        raise NotImplementedError("a load under a condition")
    w.value(op, w.element(op, 0))


def write_bind(w: C99, op: Op) -> None:
    var, size = op["var"], index(op["size"])
    w.line(f"int64_t {var} = {w.names[op.operands[0]]};")
    w.line(f"{var} += {var} < 0 ? {size} : 0;")
    w.line(f"if ({var} < 0 || {var} >= {size}) return 1;")


C99.table.update(
    {
        "loop.for": write_for,
        "loop.local": write_local,
        "loop.load": write_load,
        "loop.store": lambda w, op: w.line(f"{w.element(op, 1)} = {w.names[op.operands[0]]};"),
        "loop.accumulate": write_accumulate,
        "loop.bind": write_bind,
        "loop.index": lambda w, op: w.value(op, index(op["value"])),
        "scalar.constant": lambda w, op: w.names.update({op.results[0]: number(op["value"])}),
        "scalar.cast": lambda w, op: w.value(op, w.names[op.operands[0]]),
        **{f"scalar.{name}": write_scalar for name in loop.SCALAR_OPS},
    }
)


def c_function(kernel: loop.Kernel) -> str:
    """One kernel as one function; its memory comes first, then its sizes."""
    if "members" in kernel.attributes:
        raise NotImplementedError("kernels of many tensors at once")
    w = C99()
    arguments = []
    for k, argument in enumerate(kernel.block_body.args):
        name = w.names[argument] = f"in{k}" if k < kernel["inputs"] else f"out{k - kernel['inputs']}"
        arguments.append(f"{TYPES[memory_of(argument).dtype.name]} *{name}")
    arguments += [f"int64_t {name}" for name in kernel.sizes]
    w.operations(kernel.block_body.ops)
    w.line("return 0;")
    return f"int {kernel['sym_name']}({', '.join(arguments)}) {{\n" + "\n".join(w.text) + "\n}\n"


HEAD = "#include <math.h>\n#include <stdint.h>\n\n"


class PlainC(Target):
    """`lower(fn, x, target=PlainC)`, `passes-opt --load c99_target.py --emit c99`: a function for each kernel."""

    name = "c99"
    stage = "lower"  # the plain loops, before any pass chooses better ones

    def write(self, module):
        return HEAD + "\n".join(c_function(op) for op in module.body.block.ops if isinstance(op, loop.Kernel))


def compiled(source: str) -> ctypes.CDLL:
    """The library that cc makes of it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "k.c").write_text(source)
    flags = ["-std=c99", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-lm"]
    subprocess.run(["cc", "k.c", "-o", "k.so", *flags], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "k.so"))


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A norm of rows, a function of elements, a softmax: one kernel."""
    h = (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
    return (torch.tanh(h) * w).softmax(-1)


if __name__ == "__main__":
    x, w = torch.randn(8, 40), torch.randn(40)
    source = intarsia.lower(norm, x, w, target=PlainC).source()
    names = re.findall(r"^int (\w+)\(", source, flags=re.M)
    out = torch.empty(8, 40)
    result = getattr(compiled(source), names[0])(*(ctypes.c_void_p(t.data_ptr()) for t in (x, w, out)))
    print(source.splitlines()[3])
    print("kernels:", len(names), "code:", result, "close:", torch.allclose(out, norm(x, w), atol=1e-6))
