"""Inputs for a module, and whether two runs of it agree."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.interpreter.loops import main_function
from ...ir.interpreter.run import range_text, symbol_source
from ...ir.symbols import Dim, contiguous_strides, symbol
from ...ir.types import RefType, TensorType
from .errors import CommandError, InputError

# How far results may be apart, in parts of the largest element.
TOLERANCES = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_SINGLE = 1e-4
_MOST_ELEMENTS = 1 << 28  # of one input


@dataclass(frozen=True)
class Inputs:
    """What a module is run with: `sizes` of its symbols, and the arguments of `@main`."""

    sizes: Mapping[str, int]
    args: tuple[Any, ...]

    def fresh(self) -> list[Any]:
        """Copies: a program may write to its arguments."""
        return [_copy(a) if isinstance(a, Tensor) else a for a in self.args]


def _copy(given: Tensor) -> Tensor:
    made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
    return made.copy_(given)


def sizes_of(text: str) -> dict[str, int]:
    """The sizes of `--sizes s0=4,s1=8`.

    Raises:
        CommandError: it has another form.
    """
    found: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.partition("=")
        if not equals or not value.strip().isdigit():
            raise CommandError(f"--sizes takes s0=4,s1=8, not '{entry}'")
        found[name.strip()] = int(value)
    return found


def inputs_of(module: ModuleOp, where: str, sizes: Mapping[str, int]) -> Inputs:
    """Inputs for `@main`.

    Args:
        where: "random:SEED", or a file of torch.save with a list of tensors and numbers.
        sizes: what symbols are to be; others are as in the call that was captured, or as small as they may be.

    Raises:
        CommandError: neither of the two forms, or a symbol that there is not.
        InputError: the file does not hold such a list, or a size lies outside its symbol's range.
    """
    func = main_function(module)
    rows = list(func.get("symbols", ()))
    known = [str(row[0]) for row in rows]
    if unknown := [name for name in sizes if name not in known]:
        raise CommandError(f"--sizes: the module has no symbol '{unknown[0]}'; it has: {', '.join(known) or 'none'}")
    kind, _, seed = where.partition(":")
    if kind != "random":
        return _read(func, where)
    if not (seed or "0").isdigit():
        raise CommandError(f"--inputs takes random, random:SEED or a file, not '{where}'")
    hints = {str(name): int(value) for name, value in func.get("size_hints", ())}
    chosen: dict[str, int] = {}
    for name, _, _, low, high in rows:
        wanted = sizes.get(str(name), hints.get(str(name), max(int(low), 3)))
        if wanted < low or (high is not None and wanted > high):
            if str(name) in sizes:
                raise InputError(f"--sizes: {name}={wanted} lies outside its range {range_text(low, high)}")
            wanted = max(low, min(wanted, high))
        chosen[str(name)] = int(wanted)
    generator = torch.Generator().manual_seed(int(seed or 0))
    numbers = {row[1]: chosen[str(row[0])] for row in rows if row[2] == -1}
    values = {symbol(name): value for name, value in chosen.items()}
    strides = func.get("arg_strides") or (None,) * len(func.block_body.args)
    args = []
    for k, (value, wanted_strides) in enumerate(zip(func.block_body.args, strides, strict=True)):
        args.append(numbers.get(k, 0) if k in numbers else _random(value, wanted_strides, values, generator))
    return Inputs(chosen, tuple(args))


def _read(func: prim.Func, path: str) -> Inputs:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"--inputs: cannot read '{path}': {error.strerror or error}") from None
    except Exception as error:  # torch reads archives, pickles and what other kinds of files hold
        said = "" if isinstance(error, pickle.UnpicklingError) else f" ({str(error).splitlines()[0]})"
        raise InputError(
            f"--inputs: '{path}' is no file that torch.save made of tensors and numbers alone{said}"
        ) from None
    arguments = func.block_body.args
    if not isinstance(found, list | tuple) or len(found) != len(arguments):
        has = f"a list of {len(found)}" if isinstance(found, list | tuple) else type(found).__name__
        raise InputError(f"--inputs: '{path}' holds {has}; @main takes a list of {len(arguments)} tensors and numbers")
    strides = func.get("arg_strides") or (None,) * len(arguments)
    for k, (value, given) in enumerate(zip(arguments, found, strict=True)):
        if wrong := _wrong_argument(value, given):
            raise InputError(f"--inputs: '{path}': argument {k} of @main is {value.type}, and not {wrong}")
    sizes = {}
    for name, argument, dimension, _, _ in func.get("symbols", ()):
        source: Any = found[argument]
        sizes[str(name)] = int(source) if dimension == -1 else symbol_source(source, dimension)
    values = {symbol(name): size for name, size in sizes.items()}
    args = [_laid_out(v, w, given, values) for v, w, given in zip(arguments, strides, found, strict=True)]
    return Inputs(sizes, tuple(args))


def _wrong_argument(value: SSAValue, given: object) -> str:
    """What an argument is that has not the kind that the program takes; "" where it has."""
    if not isinstance(value.type, TensorType | RefType):
        return "" if isinstance(given, int | float | Tensor) else f"a {type(given).__name__}"
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    if given.dim() != len(value.type.shape) or given.dtype != value.type.dtype.torch:
        return f"a tensor of {given.dim()} dimensions and {str(given.dtype).removeprefix('torch.')}"
    return ""


def _laid_out(value: SSAValue, wanted: Any, given: Any, sizes: Mapping[Any, int]) -> Any:
    """The tensor with the strides that the module was made for: code reads memory as it expects it."""
    if not isinstance(given, Tensor) or not isinstance(value.type, TensorType | RefType):
        return given
    steps = _strides_of(value.type, wanted, sizes)
    if given.stride() == steps:
        return given
    return torch.empty_strided(given.shape, steps, dtype=given.dtype).copy_(given)


def _strides_of(kind: TensorType | RefType, wanted: Any, sizes: Mapping[Any, int]) -> tuple[int, ...]:
    if wanted is None:
        wanted = getattr(kind, "strides", None) or contiguous_strides(tuple(kind.shape))
    return tuple(_number(d, sizes) for d in wanted)


def _random(value: SSAValue, strides: Any, sizes: Mapping[Any, int], generator: torch.Generator) -> Any:
    kind = value.type
    if not isinstance(kind, TensorType | RefType):
        raise InputError(f"random inputs: {kind} is no tensor, and no symbol says what it is; give a file to --inputs")
    shape = tuple(_number(d, sizes) for d in kind.shape)
    steps = _strides_of(kind, strides, sizes)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise InputError(
            f"random inputs: {kind} has {math.prod(shape):,} elements; give smaller sizes, as in --sizes s0=4"
        )
    dtype = kind.dtype.torch
    if dtype == torch.bool:
        made = torch.rand(shape, generator=generator) < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    else:
        made = torch.randint(0, 2, shape, generator=generator)  # which are places in every list of two
    return torch.empty_strided(shape, steps, dtype=dtype).copy_(made)


def _number(value: Dim, sizes: Mapping[Any, int]) -> int:
    if isinstance(value, int):
        return value
    found = value.xreplace({name: sympy.Integer(size) for name, size in sizes.items()})
    if not found.is_Integer:
        raise InputError(f"random inputs: nothing says how large {value} is")
    return int(found)


def apart(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of two elements, in parts of the result's largest element; infinity where shapes, dtypes or NaNs differ."""
    if len(found) != len(wanted):
        return math.inf
    return max((_apart(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def _apart(a: Tensor, b: Tensor) -> float:
    if a.dtype != b.dtype or a.shape != b.shape:
        return math.inf
    if not b.numel():
        return 0.0
    if not (b.dtype.is_floating_point or b.dtype.is_complex):
        return 0.0 if torch.equal(a, b) else math.inf
    wide = torch.complex128 if b.dtype.is_complex else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = (x == y) | (x.isnan() & y.isnan())
    if bool((~same & ~(x.isfinite() & y.isfinite())).any()):
        return math.inf
    x, y = x.masked_fill(same, 0), y.masked_fill(same, 0)
    size = max(float(b.to(wide).abs().nan_to_num(0, 0, 0).max()), 1e-30)
    return float((x - y).abs().max()) / size


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float | None = None) -> bool:
    """Whether each result is as near as its dtype, or a tolerance that was given, allows."""
    return len(found) == len(wanted) and all(
        _apart(a, b) <= (TOLERANCES.get(b.dtype, _SINGLE) if tolerance is None else tolerance)
        for a, b in zip(found, wanted, strict=True)
    )


def shown(result: Tensor) -> str:
    """A result in a line: dtype, shape, and its first elements."""
    head = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in result.flatten()[:4].tolist())
    more = ", ..." if result.numel() > 4 else ""
    return f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}: {head}{more}"
