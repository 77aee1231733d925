"""A target of your own: NumPy. Every primitive is one line of Python on whole arrays, and the function can be run and read."""

from collections.abc import Callable

import numpy as np
import torch

import intarsia
from intarsia.extend import Op, Target, prim

SCALARS = {  # the scalar table's operations; others are an error that names them
    **{op: f"{{0}} {sign} {{1}}" for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{op: f"{{0}} {sign} {{1}}" for op, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="))},
    **{op: f"np.{op}({{0}})" for op in ("exp", "log", "sin", "cos", "tanh", "sqrt", "floor", "ceil", "abs", "isnan")},
    **{op: f"np.{numpy}({{0}}, {{1}})" for op, numpy in (("max", "maximum"), ("min", "minimum"), ("pow", "power"))},
    "neg": "-{0}",
    "rsqrt": "1 / np.sqrt({0})",
    "sigmoid": "1 / (1 + np.exp(-{0}))",
    "where": "np.where({0}, {1}, {2})",
}
REDUCES = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "any", "all": "all", "argmax": "argmax"}
CALLS = {  # calls of a library: the text for their operands
    "aten.mm.default": "{0} @ {1}",
    "aten.bmm.default": "{0} @ {1}",
    "aten.addmm.default": "{0} + {1} @ {2}",
    "aten.linear.default": "{0} @ {1}.T",
}


def shape(op: Op) -> str:
    """The result's shape; sizes that are symbols are variables of the function."""
    return "(" + "".join(f"{size}, " for size in prim.tensor(op.results[0]).shape) + ")"


def dtype(op: Op) -> str:
    name = str(prim.tensor(op.results[0]).dtype.torch).removeprefix("torch.")
    if name == "bfloat16":
        raise NotImplementedError("bfloat16")
    return f"np.dtype('{name}')"


def write_broadcast(op: Op, x: str) -> str:
    """NumPy aligns at the right; `dims` says where each dimension goes."""
    axes = ", ".join(":" if d in op["dims"] else "None" for d in range(prim.tensor(op.results[0]).rank))
    return f"np.broadcast_to({x}[{axes or '()'}], {shape(op)})"


def write_slice(op: Op, x: str) -> str:
    parts = zip(op["starts"], op["steps"], prim.tensor(op.results[0]).shape, strict=True)
    return f"{x}[{', '.join(f'{a} : {a} + {n} * {step} : {step}' for a, step, n in parts)}]"


def write_reduce(op: Op, x: str) -> str:
    axis = op["dims"][0] if op["kind"] == "argmax" else tuple(op["dims"])
    if op["kind"] not in REDUCES:
        raise NotImplementedError(f"the reduction {op['kind']}")
    return f"np.{REDUCES[op['kind']]}({x}, axis={axis})"


def write_extern(op: Op, *values: str) -> str:
    if op["target"] not in CALLS or (op["target"].startswith("aten.linear") and len(values) > 2):
        raise NotImplementedError(f"the call {op['target']}")
    return CALLS[op["target"]].format(*values)


WRITE: dict[str, Callable[..., str]] = {
    "prim.full": lambda op: f"np.full({shape(op)}, {op['value']!r}, {dtype(op)})".replace("inf", "np.inf"),
    "prim.iota": lambda op: write_iota(op),
    "prim.broadcast": write_broadcast,
    "prim.reshape": lambda op, x: f"{x}.reshape({shape(op)})",
    "prim.permute": lambda op, x: f"{x}.transpose({tuple(op['perm'])})",
    "prim.slice": write_slice,
    "prim.flip": lambda op, x: f"np.flip({x}, {tuple(op['dims'])})",
    "prim.concat": lambda op, *xs: f"np.concatenate(({', '.join(xs)},), axis={op['dim']})",
    "prim.take": lambda op, x, at: f"np.take({x}, {at}, axis={op['dim']})",
    "prim.cast": lambda op, x: f"{x}.astype({dtype(op)})",
    "prim.reduce": write_reduce,
    "kernel.extern": write_extern,
}


def write_iota(op: Op) -> str:
    rank, d = prim.tensor(op.results[0]).rank, op["dim"]
    size = prim.tensor(op.results[0]).shape[d]
    axes = ", ".join(":" if k == d else "None" for k in range(rank))
    return (
        f"np.broadcast_to(({op['start']} + {op['step']} * np.arange({size}))[{axes}], {shape(op)}).astype({dtype(op)})"
    )


def numpy_source(module) -> str:
    """The Python of a module at the level `prim`: a function of arrays."""
    (func,) = [op for op in module.body.block.ops if isinstance(op, prim.Func)]
    results = func.get("results") or [("value", k) for k in range(len(func.block_body.last_op.operands))]
    if func.get("mutations") or any(spec[0] != "value" for spec in results):
        raise NotImplementedError("functions that change or give back their arguments")
    names = {argument: f"x{k}" for k, argument in enumerate(func.block_body.args)}
    lines = [f"def run({', '.join(names.values())}):"]
    if any(d < -1 for _, _, d, *_ in func["symbols"]):
        raise NotImplementedError("strides that change")
    lines += [f"    {name} = {f'x{k}.shape[{d}]' if d >= 0 else f'int(x{k})'}" for name, k, d, *_ in func["symbols"]]
    for op in func.block_body.ops:
        values = [names[v] for v in op.operands]
        if isinstance(op, prim.Return):
            lines.append(f"    return {', '.join(values[spec[1]] for spec in results)}")
            continue
        row = op.name.removeprefix("prim.")
        if isinstance(op, prim.Elementwise) and row in SCALARS:
            right = SCALARS[row].format(*values)
        elif op.name in WRITE:
            right = WRITE[op.name](op, *values)
        else:
            raise NotImplementedError(op.name)
        names[op.results[0]] = f"v{len(names)}"
        lines.append(f"    {names[op.results[0]]} = {right}")
    return "\n".join(lines) + "\n"


class NumPy(Target):
    """`lower(fn, x, target=NumPy).compile()`, `passes-opt --load numpy_target.py --emit numpy`."""

    name = "numpy"
    stage = "dce"  # the tensor algebra, before anything is fused

    def write(self, module):
        return numpy_source(module)

    def compile(self, low):
        """A function that takes what the original takes, and gives arrays."""
        space = {"np": np}
        exec(low.source(), space)
        run, constants = space["run"], [c.numpy() for c in low.constants]
        return lambda *given: run(*(np.asarray(x) for x in low.inputs(*given)), *constants)


def layer(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """A lookup, a product, a norm, and a softmax."""
    h = x[i] @ w
    h = (h - h.mean(1, keepdim=True)) * torch.rsqrt(h.var(1, keepdim=True, unbiased=False) + 1e-5)
    return torch.cat([h.sigmoid(), h.t().contiguous().t()], 1).softmax(-1)


if __name__ == "__main__":
    args = torch.randn(9, 16), torch.randn(16, 24), torch.tensor([3, 1, 8, 3])
    low = intarsia.lower(layer, *args, target=NumPy)
    print(low.source())
    print("close:", np.allclose(low.compile()(*args), layer(*args).numpy(), atol=1e-5))
