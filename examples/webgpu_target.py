"""A target of your own: WebGPU's shading language (WGSL) for the kernels of a function, as text. One row of a kernel is one invocation."""

import math
from collections.abc import Callable
from typing import ClassVar

import torch

import intarsia
from intarsia.extend import Op, Target, Walk, dtype_of, loop, memory_of

TYPES = {
    "f32": "f32",
    "i32": "i32",
    "i64": "i32",
    "bool": "u32",
}  # WGSL has no 64 bits: numbers in lists are passed as i32
SCALARS = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{op: f"{op}({{0}})" for op in ("exp", "log", "sin", "cos", "tanh", "sqrt", "floor", "ceil", "abs")},
    **{op: f"{op}({{0}}, {{1}})" for op in ("max", "min", "pow")},
    "neg": "-{0}",
    "rsqrt": "inverseSqrt({0})",
    "sigmoid": "1.0 / (1.0 + exp(-{0}))",
}
COMBINE = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "max({0}, {1})", "min": "min({0}, {1})"}
ROWS = 64  # invocations of a workgroup


class WGSL(Walk):
    """A function that is being written."""

    indent, comment = "    ", "//"
    table: ClassVar[dict[str, Callable[["WGSL", Op], None]]] = {}

    def value(self, op: Op, text: str) -> None:
        name = self.names[op.results[0]] = self.fresh("t")
        self.line(f"let {name}: {kind(dtype_of(op.results[0]).name)} = {text};")

    def element(self, op: Op, k: int) -> str:
        return f"{self.names[op.operands[k]]}[{index(op['index'])}]"


def kind(name: str) -> str:
    if name not in TYPES:
        raise NotImplementedError(f"WGSL has no {name}")
    return TYPES[name]


def index(expression: object) -> str:
    text = str(expression)
    if any(word in text for word in ("Floor", "Mod", "//", "**")):
        raise NotImplementedError(f"the index {text}")
    return text


def number(value: object, name: str) -> str:
    if name != "f32":
        return str(int(value))
    return f"{value!r}f" if math.isfinite(value) else f"{'-' if value < 0 else ''}3.4028234e38f"


def write_for(w: WGSL, op: Op) -> None:
    var, stop = op["var"], index(op["stop"])
    if op["kind"] == "parallel" and w.depth == 1:  # the grid
        w.line(f"let {var} = i32(id.x);")
        w.line(f"if ({var} >= {stop}) {{ return; }}")
        w.operations(op.block_body.ops)
        return
    with w.scope(
        f"for (var {var} = {index(op.get('start', 0))}; {var} < {stop}; {var} += {op.get('step', 1)}) {{", "}"
    ):
        w.operations(op.block_body.ops)


def write_local(w: WGSL, op: Op) -> None:
    name, dtype = w.fresh("m"), memory_of(op.results[0]).dtype.name
    w.names[op.results[0]] = name
    w.line(f"var {name}: array<{kind(dtype)}, {op['size']}>;")
    if op.get("value") is not None:
        w.line(f"for (var k = 0; k < {op['size']}; k++) {{ {name}[k] = {number(op['value'], dtype)}; }}")


def write_accumulate(w: WGSL, op: Op) -> None:
    if op["kind"] not in COMBINE:
        raise NotImplementedError(f"the reduction {op['kind']}")
    target = w.element(op, 1)
    w.line(f"{target} = {COMBINE[op['kind']].format(target, w.names[op.operands[0]])};")


def write_scalar(w: WGSL, op: Op) -> None:
    row = op.name.removeprefix("scalar.")
    if row not in SCALARS:
        raise NotImplementedError(f"the scalar function {row}")
    w.value(op, SCALARS[row].format(*(w.names[v] for v in op.operands)))


def write_load(w: WGSL, op: Op) -> None:
    if op.get("mask"):
        raise NotImplementedError("a load under a condition")
    w.value(op, w.element(op, 0))


WGSL.table.update(
    {
        "loop.for": write_for,
        "loop.local": write_local,
        "loop.load": write_load,
        "loop.store": lambda w, op: w.line(f"{w.element(op, 1)} = {w.names[op.operands[0]]};"),
        "loop.accumulate": write_accumulate,
        "loop.index": lambda w, op: w.value(op, f"i32({index(op['value'])})"),
        "scalar.constant": lambda w, op: w.names.update(
            {op.results[0]: number(op["value"], dtype_of(op.results[0]).name)}
        ),
        "scalar.cast": lambda w, op: w.value(op, f"{kind(dtype_of(op.results[0]).name)}({w.names[op.operands[0]]})"),
        **{f"scalar.{name}": write_scalar for name in loop.SCALAR_OPS},
    }
)


def shader(kernel: loop.Kernel) -> str:
    """One kernel as a module: its memory as bindings, its sizes as a struct, one entry point."""
    if "members" in kernel.attributes:
        raise NotImplementedError("kernels of many tensors at once")
    w, head = WGSL(), []
    for k, argument in enumerate(kernel.block_body.args):
        is_input = k < kernel["inputs"]
        name = w.names[argument] = f"in{k}" if is_input else f"out{k - kernel['inputs']}"
        access, dtype = "read" if is_input else "read_write", kind(memory_of(argument).dtype.name)
        head.append(f"@group(0) @binding({k}) var<storage, {access}> {name}: array<{dtype}>;")
    if kernel.sizes:
        fields = ", ".join(f"{name}: i32" for name in kernel.sizes)
        head.append(f"struct Sizes {{ {fields} }}\n@group(0) @binding({len(head)}) var<uniform> sizes: Sizes;")
        for name in kernel.sizes:
            w.line(f"let {name} = sizes.{name};")
    w.operations(kernel.block_body.ops)
    entry = (
        f"@compute @workgroup_size({ROWS})\nfn {kernel['sym_name']}(@builtin(global_invocation_id) id: vec3<u32>) {{"
    )
    return "\n".join([*head, "", entry, *w.text, "}", ""])


class WebGPU(Target):
    """`lower(fn, x, target=WebGPU)`, `passes-opt --load webgpu_target.py --emit webgpu`: a module for each kernel."""

    name = "webgpu"
    stage = "lower"

    def write(self, module):
        return "\n".join(shader(op) for op in module.body.block.ops if isinstance(op, loop.Kernel))


if __name__ == "__main__":
    low = intarsia.lower(
        lambda x, w: (torch.tanh(x) * w).softmax(-1), torch.randn(8, 40), torch.randn(40), target=WebGPU
    )
    print(low.source())
