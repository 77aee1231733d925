"""Single operators over their whole argument space: samples of torch's database and calls made up from schemas, both changed at random.

An argument becomes another number, a list or tuple of one, a string, None, another dtype or layout; defaults appear and vanish.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tests.opdb.database import op_db

from .script import HEADER, Invalid, _put_back
from .tensors import DTYPES, FLOATS, LAYOUTS, SIZES, SPECIAL

NONDETERMINISTIC = (
    "empty",
    "resize",
    "set_",
    "new_empty",
    "jiterator",
    "sparse",
    "_nested",
    "quantize",
    "fake_quant",
    "to_mkldnn",
    "_make",
    "_debug",
    "geqrf",
    "lu_unpack",  # some read or write beyond their arguments in eager
    "lu_solve",
    "ldl_",
    "ormqr",
    "householder",
)
HOT = (
    "conv",
    "pool",
    "interpolate",
    "_norm",
    "linear",
    "addmm",
    "baddbmm",
    "attention",
    "pad",
    "index",
    "scatter",
    "gather",
    "embedding",
    "softmax",
    "loss",
    "entropy",
    "std",
    "var",
)
LITERAL = 24  # elements of a tensor that is written out


class Unspeakable(Exception):
    """A value that has no short text."""


@functools.cache
def named_operators() -> list[tuple[str, Any]]:
    """(text, entry) of every operator of the database that has a name that anyone can type."""
    found = []
    for info in op_db:
        text = _text_of_function(info.op)
        if text and not any(word in text for word in NONDETERMINISTIC):
            found.append((text, info))
    return found


def _text_of_function(op: Any) -> str:
    name = getattr(op, "__name__", "")
    if isinstance(op, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{str(op).removesuffix('.default')}".replace("torch.ops.torch.ops", "torch.ops")
    places = {
        "torch": torch, "F": torch.nn.functional, "torch.linalg": torch.linalg, "torch.special": torch.special, "torch.fft": torch.fft, "torch.Tensor": torch.Tensor,
        "torch.signal.windows": torch.signal.windows, "torch.masked": torch.masked,
    }  # fmt: skip
    for text, place in places.items():
        for candidate in (name, name.removeprefix("linalg_"), name.removeprefix("special_"), name.removeprefix("fft_")):
            if candidate and getattr(place, candidate, None) is op:
                return f"{text}.{candidate}"
    return ""


@functools.cache
def schemas() -> list[Any]:
    """Functional and in-place overloads of ATen with a kernel for the CPU."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if (
            space != "aten"
            or packet.startswith("_")
            or any(word in packet for word in NONDETERMINISTIC)
            or packet.endswith(("_copy", "_backward"))
        ):
            continue
        if overload.endswith(
            ("out", "Dimname", "names", "_t")
        ) or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
            continue
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError:
            continue
        kinds = [str(a.type) for a in op._schema.arguments]
        if (
            kinds
            and "Tensor" in kinds[0]
            and not any(word in k for k in kinds for word in ("Storage", "Generator", "Stream", "Dimname", "Layout"))
        ):
            found.append(op)
    return found


class Writer:
    """Turns values into text, tensors into statements that make them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.names: list[str] = []

    def text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.Size):
            return repr(tuple(value))
        if isinstance(value, bool | int | str | type(None)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if isinstance(value, complex):
            return f"complex({self.text(value.real)}, {self.text(value.imag)})"
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if isinstance(value, slice):
            return f"slice({', '.join(self.text(v) for v in (value.start, value.stop, value.step))})"
        if value is Ellipsis:
            return "..."
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if type(value) is tuple:
            return f"({''.join(self.text(v) + ', ' for v in value)})"
        if isinstance(value, type) and value in (int, float, bool, complex):
            return value.__name__
        raise Unspeakable(type(value).__name__)

    def tensor(self, value: torch.Tensor) -> str:
        rng, name = self.rng, f"x{len(self.names)}"
        if value.layout != torch.strided or value.is_quantized or value.numel() > 20_000:
            raise Unspeakable("a tensor")
        if rng.random() < 0.06 and self.names:
            return rng.choice(self.names)
        dtype = value.dtype
        if rng.random() < 0.25:
            dtype = getattr(torch, rng.choice(DTYPES if rng.random() < 0.5 else FLOATS))
        shape = tuple(value.shape)
        if rng.random() < 0.12 and shape:
            place = rng.randrange(len(shape))
            shape = (*shape[:place], rng.choice(SIZES[:16]), *shape[place + 1 :])
        whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        if value.numel() <= LITERAL and shape == tuple(value.shape) and (whole or rng.random() < 0.5) and value.numel():
            made = value.detach().resolve_conj().resolve_neg().flatten().tolist()
            if value.is_floating_point():
                made = [float(f"{v:.4g}") for v in made]
            line = f"torch.tensor([{', '.join(map(self.text, made))}], dtype={dtype}).reshape({shape})"
        elif dtype == torch.bool:
            line = f"torch.rand({shape}) > 0.5"
        elif whole:
            high = int(value.max()) + 1 if value.numel() and not value.is_complex() else 5
            low = int(value.min()) if value.numel() and not value.is_complex() else 0
            line = f"torch.randint({min(low, high - 1)}, {max(high, low + 1)}, {shape}).to({dtype})"
        else:
            positive = value.numel() and not value.is_complex() and bool((value >= 0).all())
            line = f"torch.rand({shape}).to({dtype})" if positive else f"torch.randn({shape}).to({dtype})"
        self.lines.append(f"{name} = {line}")
        if dtype.is_floating_point and rng.random() < 0.06 and shape:
            self.lines.append(f"{name} = -{name}.abs() - 1")
        if dtype.is_floating_point and rng.random() < 0.1 and shape:
            self.lines.append(f"{name}.view(-1)[::{rng.choice([2, 3])}] = {rng.choice(SPECIAL)}")
        if rng.random() < 0.2 and len(shape) > 0:
            turned = [
                "{0}.transpose(0, -1).contiguous().transpose(0, -1)",
                "torch.stack([{0}, {0}], -1)[..., 0]",
                "torch.cat([{0}, {0}], -1)[..., :{0}.shape[-1]]",
                "{0}.flip(0)",
            ]
            self.lines.append(f"{name} = {rng.choice(turned if rng.random() < 0.7 else LAYOUTS).format(name)}")
        self.names.append(name)
        return name

    def changed(self, value: Any) -> Any:
        """Another value that the same argument might be given."""
        rng = self.rng
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return rng.choice([value + 1, value - 1, -value, 0, 1, 2, [value], (value,), -1, value, float(value), None])
        if isinstance(value, float):
            return rng.choice(
                [0.0, 1.0, -value, value * 2, math.inf, math.nan, int(value) if math.isfinite(value) else 1, -0.0, 1e-3]
            )
        if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
            items = list(value)
            choice = rng.randrange(7)
            if choice == 0:
                return [items[0]]
            if choice == 1:
                return (items[0],)
            if choice == 2:
                return items[0]
            if choice == 3:
                place = rng.randrange(len(items))
                items[place] = rng.choice([0, 1, 2, 3, -1, items[place] + 1])
                return type(value)(items)
            return {4: list(items), 5: tuple(items), 6: items[::-1]}[choice]
        if isinstance(value, str):
            return rng.choice(
                [
                    "mean",
                    "sum",
                    "none",
                    "same",
                    "valid",
                    "reflect",
                    "replicate",
                    "circular",
                    "constant",
                    "nearest",
                    "linear",
                    "bilinear",
                    "bicubic",
                    "area",
                    "nearest-exact",
                    "tanh",
                    "trunc",
                    "floor",
                    value,
                ]
            )
        if value is None:
            return rng.choice([None, 1, 0, -1, 0.5, True, [0], (1,)])
        if isinstance(value, torch.dtype):
            return getattr(torch, rng.choice(DTYPES))
        return value


def _samples(info: Any, dtype: torch.dtype, rng: random.Random, noncontiguous: bool) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from info.sample_inputs(
            "cpu", dtype, requires_grad=False, **({"noncontiguous": True} if noncontiguous else {})
        )


def from_database(rng: random.Random, writer: Writer) -> str:
    """The text of one call."""
    known = named_operators()
    hot = [item for item in known if any(word in item[0] for word in HOT)]
    text, info = rng.choice(hot if rng.random() < 0.4 else known)
    dtypes = sorted(info.dtypes, key=str)
    dtype = torch.float32 if torch.float32 in dtypes and rng.random() < 0.5 else rng.choice(dtypes)
    samples = []
    for number, sample in enumerate(_samples(info, dtype, rng, False)):
        samples.append(sample)
        if number > 40:
            break
    if not samples:
        raise Invalid("no samples")
    sample = rng.choice(samples)
    args, kwargs = [sample.input, *sample.args], dict(sample.kwargs)
    for place in range(1, len(args)):
        if rng.random() < 0.3:
            args[place] = writer.changed(args[place])
    for name in list(kwargs):
        draw = rng.random()
        if draw < 0.35:
            kwargs[name] = writer.changed(kwargs[name])
        elif draw < 0.42:
            del kwargs[name]
    if len(args) > 1 and rng.random() < 0.05:
        args.pop()
    return _call(text, args, kwargs, writer)


def from_schema(rng: random.Random, writer: Writer) -> str:
    """The text of one call of an overload, its arguments made up by their types."""
    op = rng.choice(schemas())
    size = tuple(rng.choice([1, 2, 3, 4, 5, 8]) for _ in range(rng.choice([1, 2, 2, 3, 4])))
    dtype = getattr(torch, rng.choice(FLOATS * 3 + DTYPES))
    args, kwargs = [], {}
    for argument in op._schema.arguments:
        value = _made_up(str(argument.type), argument, size, dtype, rng)
        if argument.has_default_value() and rng.random() < 0.5:
            value = argument.default_value if rng.random() < 0.3 else _SKIP
        if value is _SKIP:
            if not argument.kwarg_only and not argument.has_default_value():
                raise Invalid("an argument of an unknown kind")
            continue
        if argument.kwarg_only or len(args) < len(
            [a for a in op._schema.arguments if not a.kwarg_only][: op._schema.arguments.index(argument)]
        ):
            kwargs[argument.name] = value
        else:
            args.append(value)
    name = str(op)
    return _call(f"torch.ops.{name}", args, kwargs, writer)


_SKIP = object()


def _made_up(kind: str, argument: Any, size: tuple[int, ...], dtype: torch.dtype, rng: random.Random) -> Any:
    optional = kind.startswith("Optional[")
    if optional:
        if rng.random() < 0.4:
            return None
        kind = kind[9:-1]
    name = argument.name
    if kind == "Tensor":
        if "ind" in name or name in ("target", "offsets"):
            return torch.randint(0, min(size) if size else 1, size[: rng.choice([1, 2])])
        if name == "mask" or name == "condition":
            return torch.rand(size) > 0.5
        shape = size
        if (
            name in ("weight", "bias", "running_mean", "running_var", "mat2", "other", "batch2", "vec", "vec2")
            and rng.random() < 0.5
        ):
            shape = rng.choice([size[-1:], size[:1], size[::-1], (size[-1], size[-1])])
        made = torch.rand(shape) if rng.random() < 0.5 else torch.randn(shape)
        return made.to(dtype) if not (dtype.is_complex or dtype == torch.bool) else (made > 0).to(dtype)
    if kind == "List[Tensor]":
        return [torch.randn(size).to(dtype) for _ in range(rng.choice([1, 2, 3]))]
    if kind in ("number", "Scalar", "float"):
        return rng.choice([0, 1, 2, 0.5, -1, 2.0, 3, 1e-5])
    if kind in ("int", "SymInt"):
        if "dtype" in name:
            return getattr(torch, rng.choice(DTYPES))
        if name == "layout":
            return torch.strided
        if name == "memory_format":  # any other number is undefined behaviour
            return rng.choice([torch.contiguous_format, torch.preserve_format])
        return rng.choice([0, 1, -1, 2, 3, -2, 0, 1])
    if kind == "bool":
        return rng.random() < 0.5
    if kind in ("List[int]", "List[SymInt]"):
        count = rng.choice([1, 1, 2, 2, 3, len(size)])
        return (
            [rng.choice([0, 1, 2, 1, 2, 3, -1]) for _ in range(count)]
            if "size" not in name or rng.random() < 0.4
            else list(size)
        )
    if kind == "List[float]":
        return [rng.choice([0.5, 2.0, 1.0]) for _ in range(rng.choice([1, 2]))]
    if kind == "str":
        return rng.choice(
            ["none", "tanh", "floor", "trunc", "mean", "sum", "linear", "reduced", "amax", "prod", "lower", "ij"]
        )
    if kind == "ScalarType":
        return getattr(torch, rng.choice(DTYPES))
    return None if optional else _SKIP


def _call(text: str, args: list[Any], kwargs: dict[str, Any], writer: Writer) -> str:
    given = [writer.text(a) for a in args] + [f"{k}={writer.text(v)}" for k, v in kwargs.items()]
    return f"{text}({', '.join(given)})"


class Calls:
    """A few calls of operators that share one function."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.writer = Writer(self.rng)

    def program(self) -> str:
        rng = self.rng
        calls: list[str] = []
        for _ in range(rng.choice([1, 1, 2, 3, 4])):
            for _ in range(8):
                before = len(self.writer.lines), len(self.writer.names)
                call = self._one()
                if call is None or (self._raises(call) and (calls or rng.random() < 0.85)):
                    del self.writer.lines[before[0] :], self.writer.names[before[1] :]
                    continue
                calls.append(call)
                break
        if not calls:
            raise Invalid("no call")
        names = self.writer.names
        body = [f"    return {', '.join(calls)}{',' if rng.random() < 0.5 else ''}"]
        lines = [HEADER.rstrip(), f"def f({', '.join(names)}):", *body, "f = intarsia.compile(f)", *self.writer.lines]
        if rng.random() < 0.15:
            floats = [line.split(" ")[0] for line in self.writer.lines if "float" in line]
            lines += [f"{n} = {n}.detach().requires_grad_()" for n in dict.fromkeys(floats)]
            lines += [
                f"r = f({', '.join(names)})",
                "r = [t for t in (r if isinstance(r, (tuple, list)) else [r]) if isinstance(t, torch.Tensor) and t.requires_grad]",
            ]
            lines += ["sum(t.abs().sum() for t in r).backward()"]
        else:
            lines += [f"f({', '.join(names)})"] * rng.choice([1, 2])
        return "\n".join(lines) + "\n"

    def _one(self) -> str | None:
        try:
            return (from_database if self.rng.random() < 0.7 else from_schema)(self.rng, self.writer)
        except (
            Unspeakable,
            Invalid,
            RuntimeError,
            TypeError,
            NotImplementedError,
            ValueError,
            IndexError,
            AssertionError,
            ImportError,
        ):
            return None

    def _raises(self, call: str) -> bool:
        """Whether eager raises; a call that works has to give the same again."""
        scope: dict[str, Any] = {}
        exec(HEADER, scope)
        try:
            torch.manual_seed(0)
            exec("\n".join(self.writer.lines), scope)
            result = eval(call, scope)
            return not isinstance(result, torch.Tensor | tuple | list | int | float | bool | complex)
        except Exception:
            return True


def program(seed: int) -> str:
    """The program of this seed."""
    with _put_back():
        torch.manual_seed(seed)
        for attempt in range(10):
            try:
                return Calls(seed * 10 + attempt).program()
            except Invalid:
                continue
    raise Invalid(f"no program for seed {seed}")
