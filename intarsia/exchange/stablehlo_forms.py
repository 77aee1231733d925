"""The forms that operations of StableHLO have of their own in text; what they say becomes the attributes of the generic form."""

from __future__ import annotations

import re

from .mlir_text import Form, Operation, Reader, Region, Type

SAME_TYPE = (
    *("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2", "and", "or", "xor"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical", "abs", "negate", "exponential", "log", "sqrt"),
    *("exponential_minus_one", "log_plus_one", "logistic", "tanh", "rsqrt", "cbrt", "ceil", "floor", "sine", "cosine"),
    *("tan", "sign", "not", "round_nearest_afz", "round_nearest_even", "clamp", "reshape", "convert", "is_finite"),
    *("bitcast_convert", "optimization_barrier", "real", "imag", "complex"),
)
CHLO = (
    *("erf", "erfc", "erf_inv", "lgamma", "digamma", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("square", "tan"),
)


def _typed(r: Reader, op: Operation) -> None:
    """`: type`, `: types`, `: type -> type` or `: (types) -> types`, by the number of operands and results."""
    op.attributes |= r.optional_dictionary()
    r.want(":")
    given = r.types() if r.token == "(" else r.several(r.type)
    if r.take("->"):
        op.given, op.types = given, r.types()
    elif len(given) == len(op.operands) != 1 and len(op.results) == len(given):
        op.given = op.types = given
    else:
        op.given, op.types = given * len(op.operands), given[-1:]


def _plain(r: Reader, op: Operation) -> None:
    op.operands = r.values()
    _typed(r, op)


def _compare(r: Reader, op: Operation) -> None:
    op.attributes["comparison_direction"] = r.advance()
    r.want(",")
    op.operands = [r.value()]
    r.want(",")
    op.operands.append(r.value())
    if r.take(","):
        op.attributes["compare_type"] = r.advance()
    r.signature(op)


def _select(r: Reader, op: Operation) -> None:
    op.operands = r.values()
    r.want(":")
    if r.token == "(":
        op.given = r.types()
        r.want("->")
        op.types = r.types()
        return
    kinds = r.several(r.type)
    op.given, op.types = [kinds[0], kinds[-1], kinds[-1]], kinds[-1:]


def _constant(r: Reader, op: Operation) -> None:
    op.attributes |= r.optional_dictionary()
    value = r.attribute()
    op.attributes["value"] = value
    op.types = [getattr(value, "type", Type((), "f32"))]


def _words(*names: tuple[str, str]) -> Form:
    """`%a, %b, word = value, ...`: (the word, the attribute)."""

    def read(r: Reader, op: Operation) -> None:
        op.operands = []
        while r.token.startswith("%"):
            op.operands.append(r.value())
            if not r.take(","):
                break
        for k, (word, name) in enumerate(names):
            if k:
                r.want(",")
            r.word(word)
            op.attributes[name] = r.integers() if r.token == "[" else r.integer()
        _typed(r, op)

    return read


def _slice(r: Reader, op: Operation) -> None:
    op.operands = [r.value()]
    parts = [p.split(":") for p in r.raw("[").replace(" ", "").split(",") if p]
    if not all(2 <= len(p) <= 3 and all(re.fullmatch(r"\d{1,15}", n) for n in p) for p in parts):
        r.fail("expected [from:to:step, ...]", op.position)
    op.attributes["start_indices"] = [int(p[0]) for p in parts]
    op.attributes["limit_indices"] = [int(p[1]) for p in parts]
    op.attributes["strides"] = [int(p[2]) if len(p) > 2 else 1 for p in parts]
    r.signature(op)


def _crossed(r: Reader) -> tuple[list[int], list[int]]:
    """`[0] x [1]`."""
    first = r.integers()
    r.want("x")
    return first, r.integers()


def _dot_general(r: Reader, op: Operation) -> None:
    op.operands = [r.value()]
    r.want(",")
    op.operands.append(r.value())
    numbers = {}
    while r.take(","):
        word = r.advance()
        r.want("=")
        if word in ("batching_dims", "contracting_dims"):
            left, right = _crossed(r)
            kind = word.removesuffix("_dims")
            numbers[f"lhs_{kind}_dimensions"], numbers[f"rhs_{kind}_dimensions"] = left, right
        else:
            op.attributes[word] = r.attribute()
    op.attributes["dot_dimension_numbers"] = numbers
    op.attributes |= r.optional_dictionary()
    r.signature(op)


def _convolution(r: Reader, op: Operation) -> None:
    op.operands = r.listed("(", r.value)
    r.word("dim_numbers")
    begin = r.start
    for _ in range(3):
        r.raw("[")
        if not r.take("x"):
            r.take("->")
    op.attributes["dimension_numbers"] = r.text[begin : r.text.rfind("]", begin, r.start) + 1]
    r.take(",")
    r.word("window")
    window = r.dictionary()
    for word, name in _WINDOW.items():
        if word in window:
            op.attributes[name] = window[word]
    op.attributes |= r.optional_dictionary()
    r.signature(op)


_WINDOW = {
    "stride": "window_strides",
    "pad": "padding",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
    "reverse": "window_reversal",
}


def _reduce(r: Reader, op: Operation) -> None:
    starts: list[str] = []
    while True:
        r.want("(")
        op.operands.append(r.value())
        r.want("init", ":")
        starts.append(r.value())
        r.want(")")
        if not r.take(","):
            break
    applied = r.advance() if r.take("applies") else ""
    r.want("across", "dimensions", "=")
    op.attributes["dimensions"] = r.integers()
    op.attributes |= r.optional_dictionary()
    count = len(starts)
    op.operands += starts
    r.signature(op)
    if applied:
        kind = Type((), op.types[0].element)
        joined = Operation(applied, ["%a", "%b"], {}, [], ["%c"], [kind], op.position)
        last = Operation("stablehlo.return", ["%c"], {}, [], [], [], op.position)
        op.regions = [Region([("%a", kind), ("%b", kind)], [joined, last])]
        return
    r.want("reducer")
    pairs = []
    for _ in range(count):
        pairs.append(r.listed("(", r._argument))
    if any(len(pair) != 2 for pair in pairs):
        r.fail("a reducer takes two values of each operand", op.position)
    r.location()
    op.regions = [r.region([pair[k] for k in range(2) for pair in pairs])]


def _while(r: Reader, op: Operation) -> None:
    names: list[str] = []

    def given() -> None:
        names.append(r.value())
        r.want("=")
        op.operands.append(r.value())

    r.want("(")
    if r.token != ")":
        r.several(given)
    r.want(")")
    op.types = op.given = []
    if r.take(":"):
        op.types = op.given = r.several(r.type)
    if r.take("attributes"):
        r.dictionary()
    arguments = list(zip(names, op.types, strict=False))
    r.want("cond")
    cond = r.region(arguments)
    r.want("do")
    op.regions = [cond, r.region(arguments)]


def _call(r: Reader, op: Operation) -> None:
    op.name = "func.call"
    op.attributes["callee"] = r.advance()
    op.operands = r.listed("(", r.value)
    op.attributes |= r.optional_dictionary()
    r.signature(op)


def _return(r: Reader, op: Operation) -> None:
    op.name = "stablehlo.return"
    op.operands = r.values()
    if op.operands:
        r.want(":")
        op.given = r.several(r.type)


def _custom_call(r: Reader, op: Operation) -> None:
    op.attributes["call_target_name"] = r.advance()
    op.operands = r.listed("(", r.value)
    op.attributes |= r.optional_dictionary()
    r.signature(op)


def _top_k(r: Reader, op: Operation) -> None:
    r.want("(")
    op.operands = [r.value()]
    r.want(",")
    r.word("k")
    op.attributes["k"] = r.integer()
    r.want(")")
    _typed(r, op)


def _iota(r: Reader, op: Operation) -> None:
    r.word("dim")
    op.attributes["iota_dimension"] = r.integer()
    r.want(":")
    op.types = [r.type()]


FORMS: dict[str, Form] = {
    **{f"stablehlo.{name}": _plain for name in SAME_TYPE},
    **{f"chlo.{name}": _plain for name in CHLO},
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.slice": _slice,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce": _reduce,
    "stablehlo.while": _while,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.broadcast_in_dim": _words(("dims", "broadcast_dimensions")),
    "stablehlo.transpose": _words(("dims", "permutation")),
    "stablehlo.reverse": _words(("dims", "dimensions")),
    "stablehlo.concatenate": _words(("dim", "dimension")),
    "stablehlo.dynamic_slice": _words(("sizes", "slice_sizes")),
    "stablehlo.dynamic_update_slice": _plain,
    "stablehlo.pad": _words(
        ("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding")
    ),
    "chlo.top_k": _top_k,
    "call": _call,
    "func.call": _call,
    "return": _return,
    "func.return": _return,
    "stablehlo.return": _return,
}
