"""What happens to a sum on its way to memory, as C++: a struct for the `Tail` of targets/cpp/include/intarsia_tail.h."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from ...ir.epilogue import PREFIX
from ...ir.syntax import Op
from ...ir.types import RefType

_GELU: dict[str, str] = {
    "none": "0.5f * v * (1.0f + im::erf(v * 0.70710678f))",
    "tanh": "0.5f * v * (1.0f + im::tanh(0.79788456f * (v + 0.044715f * v * v * v)))",
}
# The expression of a step of the epilogue on `v`. NaN stays NaN in each.
STEPS: dict[str, Callable[..., str]] = {
    "relu": lambda: "im::relu(v)",
    "hardtanh": lambda least, most: f"im::clamp(v, {_number(least)}, {_number(most)})",
    "hardsigmoid": lambda: "im::clamp(v + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "hardswish": lambda: "v * im::clamp(v + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "silu": lambda: "v * im::sigmoid(v)",
    "sigmoid": lambda: "im::sigmoid(v)",
    "tanh": lambda: "im::tanh(v)",
    "leaky_relu": lambda slope: f"v > 0.0f ? v : v * {_number(slope)}",
    "gelu": _GELU.__getitem__,
}


@dataclass(frozen=True)
class Tail:
    """A struct of C++ with that name, and the statement that makes a tail of it."""

    text: str
    statement: str


def tail_of(op: Op, bias: str, columns: int) -> Tail:
    """The bias, which is the operand of that name, and the epilogue of a `buffer.extern`.

    Args:
        columns: of the result, which is the last operand.
    """
    names, refs = list(op["operands"]), [v.type for v in op.operands if isinstance(v.type, RefType)]
    extras = [name for name in names if name == bias or name.startswith(PREFIX)]
    kinds = {name: refs[names.index(name)].dtype.cpp for name in extras}
    lines, words = [], []
    if bias in extras:
        lines.append(f"v = v + float(static_cast<const {kinds[bias]}*>(in[{extras.index(bias)}])[column]);")
        words.append("bias")
    for name, *arguments in op.get("epilogue", ()):
        if name == "add":
            extra = f"{PREFIX}{arguments[0]}"
            expression = f"v + float(static_cast<const {kinds[extra]}*>(in[{extras.index(extra)}])[at])"
        else:
            expression = STEPS[name](*arguments)
        lines.append(f"v = {expression};")
        words.append(name)
    head = "  IM_FN_MEMBER static float of(float v, const void* const* in, int64_t at, int64_t column) {"
    body = "\n".join(
        [head, "    (void)in, (void)at, (void)column;", *(f"    {x}" for x in lines), "    return v;", "  }"]
    )
    name = "_".join(["tail", *words, hashlib.sha256(body.encode()).hexdigest()[:6]])
    places = ", ".join(f"in{names.index(extra)}" for extra in extras)
    word = refs[-1].dtype.cpp
    statement = f"  const im::Tail<{word}> tail{{&im::finish<{name}, {word}>, out0, {columns}, {{{places}}}}};"
    return Tail(f"struct {name} {{\n{body}\n}};\n", statement)


def _number(value: float) -> str:
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{float(value)!r}f" if value == value else '__builtin_nanf("")'
