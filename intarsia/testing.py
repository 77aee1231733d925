"""Is a compiled function right? `check` runs it beside eager and compares everything that a caller can see.

The rule: eager gives `ref`, the compiled function `res`, and eager in float64 `gold`. Structure, types, dtypes, shapes, strides and aliases
must agree. Values pass when they are close to `ref`, else when they are about as close to `gold` as eager's own are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .frontend.torch_private.dispatch import storage_key
from .tools.aliasing import has_memory, relation

TOLERANCES = {
    torch.float64: 1e-5,
    torch.complex128: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 1e-3,
}
DEFAULT_TOLERANCE = 1e-4
HALF_TYPES = (torch.float16, torch.bfloat16)
WORST_ELEMENT = 10  # how many times eager's worst error against float64 a single element may be off
COSINE = 0.99
CREDIBLE = 0.1  # float64 that is further from eager than this part of its size computed something else


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether two results are the same.

    Attributes:
        ok: they are.
        message: what differs, in a few lines; "" when nothing does.
        ratio: the largest rmse(gold, res) / rmse(gold, ref) of all tensors that are not simply close; 0 when all are.
        worst: the largest absolute difference of an element from eager.
    """

    ok: bool
    message: str = ""
    ratio: float = 0.0
    worst: float = 0.0

    def __bool__(self) -> bool:
        return self.ok


@dataclasses.dataclass(frozen=True)
class Report:
    """What `check` found out about a function that is right.

    Attributes:
        calls: how often the compiled function was called.
        ratio, worst: as in `Verdict`, over all calls.
        gold: whether eager could run in float64.
        raised: the type of the exception that both raised, or None.
    """

    calls: int
    ratio: float = 0.0
    worst: float = 0.0
    gold: bool = False
    raised: type[Exception] | None = None


class Undecided(Exception):
    """Eager does not agree with itself, so that there is nothing to compare with."""


def check(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    compiled: Callable[..., Any] | None = None,
    tol: float | None = None,
    calls: int = 2,
    seed: int = 0,
    gradients: bool = False,
) -> Report:
    """Run `fn` in eager and compiled on copies of the arguments, and compare everything that a caller can see.

    That is: outputs (values, types, dtypes, shapes, strides, requires_grad), which outputs share memory with inputs and with each other,
    arguments and module state after the call, exceptions. The random seed is set to `seed` before each call.

    Args:
        fn: a function, method or module. State of a module advances as after `calls` calls; the arguments are left alone.
        args: its arguments: tensors, and any nesting of containers, dataclasses and modules.
        kwargs: those by name, likewise.
        compiled: what to compare; default: `intarsia.compile(fn, fullgraph=True)`.
        tol: tolerance; default: 1e-4, in half types 1e-3, in float64 1e-5.
        calls: how often it is called: the second call takes the path of compiled code that is already there.
        gradients: also run backward from every output that requires grad, each weighted with fixed random numbers, and compare the
            gradients of all arguments and parameters. Those of a module accumulate over the calls.

    Raises:
        AssertionError: something differs; says what, where and by how much.
        Undecided: eager gave two answers to two equal calls.
    """
    if compiled is None:
        from .compile import compile as compile_function

        compiled = compile_function(fn, fullgraph=True)
    kwargs = dict(kwargs or {})
    eager, golden = copied(fn), _try(copied, fn, True)
    report = Report(calls)
    for number in range(calls):
        ref = _run(eager, args, kwargs, seed, gradients=gradients)
        random = ref.random or ref.error or golden is None
        gold = None if random else _gold_run(golden, args, kwargs, seed, gradients)
        res = _run(compiled, args, kwargs, seed, state=fn, gradients=gradients)
        verdict = _compare_runs(ref, res, gold, tol)
        if not verdict:
            _agrees_with_itself(eager, args, kwargs, seed, tol, gradients)
            first = "" if number == 0 else f" (call {number + 1})"
            raise AssertionError(f"{_name(fn)}: compiled differs from eager{first}\n{verdict.message}") from res.error
        report = Report(
            calls,
            max(report.ratio, verdict.ratio),
            max(report.worst, verdict.worst),
            gold is not None,
            type(ref.error) if ref.error else None,
        )
    return report


def same(ref: Any, res: Any, gold: Any = None, *, tol: float | None = None, name: str = "output") -> Verdict:
    """Compare two results of any nesting by the accuracy rule; `gold` is the float64 result, or None."""
    expected, got = list(leaves(ref, name)), list(leaves(res, name))
    golden = dict(leaves(gold, name)) if gold is not None else {}
    ratio = worst = 0.0
    for (path, want), (other, have) in zip(expected, got, strict=False):
        verdict = (
            Verdict(False, f"{path}: expected here, got {other}")
            if path != other
            else _leaf(path, want, have, golden.get(path), tol)
        )
        if not verdict:
            return verdict
        ratio, worst = max(ratio, verdict.ratio), max(worst, verdict.worst)
    return Verdict(True, "", ratio, worst)


# ---- what a caller can see ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Structure:
    """The outside of a container: its type and what it has inside."""

    kind: type
    keys: tuple[Any, ...] | int

    def __str__(self) -> str:
        size = f"{self.keys} items" if isinstance(self.keys, int) else f"keys {', '.join(map(str, self.keys[:8]))}"
        return f"{self.kind.__name__} with {size}"


def leaves(value: Any, path: str = "output", _inside: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Everything in a value with the path to it: containers as `_Structure`, then their contents; modules and objects by their attributes."""
    if isinstance(value, Tensor) or id(value) in _inside:
        yield path, value
        return
    inside = (*_inside, id(value))
    if isinstance(value, Mapping):
        children = [(f"{path}[{key!r}]", item) for key, item in value.items()]
        yield path, _Structure(type(value), tuple(value))
    elif isinstance(value, list | tuple | deque):
        children = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        yield path, _Structure(type(value), len(value))
    elif _is_object(value):
        attributes = sorted(_attributes(value).items())  # in which order they were set is nothing that counts
        children = [(f"{path}.{name}", item) for name, item in attributes]
        yield path, _Structure(type(value), tuple(name for name, _ in attributes))
    else:
        yield path, value
        return
    for child_path, child in children:
        yield from leaves(child, child_path, inside)


def _attributes(value: Any) -> Mapping[str, Any]:
    if hasattr(value, "__dict__"):
        return vars(value)
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}  # with slots


def _is_object(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return True
    return (
        hasattr(value, "__dict__")
        and not callable(value)
        and type(value).__eq__ in (object.__eq__, None)
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


@dataclasses.dataclass
class _Run:
    """One call: the result or the exception, arguments and module state afterwards."""

    output: Any
    error: Exception | None
    arguments: tuple[Any, ...]
    state: Any
    random: bool
    gradients: dict[str, Tensor | None]

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        args, kwargs = self.arguments
        state = ("self", self.state), ("gradients", self.gradients)
        return ("output", self.output), ("args", args), ("kwargs", kwargs), *state


def _run(
    fn: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    seed: int,
    double: bool = False,
    state: Any = None,
    gradients: bool = False,
) -> _Run:
    args, kwargs = copied((tuple(args), kwargs), double)
    torch.manual_seed(seed)
    before, output, error = _generators(), None, None
    state, found = _state(fn if state is None else state), dict[str, Tensor | None]()
    try:
        output = fn(*args, **kwargs)
        if gradients:
            found = _gradients(output, {"args": args, "kwargs": kwargs, "self": state})
    except Exception as raised:  # an exception is a result too
        error = raised
    used_random = not all(map(torch.equal, before, _generators()))
    return _Run(output, error, (args, kwargs), state, used_random, found)


def _generators() -> list[Tensor]:
    """The states of the random generators: the CPU's, and those of GPUs that are in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _gradients(output: Any, inputs: dict[str, Any]) -> dict[str, Tensor | None]:
    """Run backward from all of a result; what has arrived at the leaves of the inputs, by path."""
    results = [t for _, t in leaves(output) if isinstance(t, Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in results]
    if results:
        torch.autograd.backward(results, weights)
    found: dict[str, Tensor | None] = {}
    for name, part in inputs.items():
        for path, leaf in leaves(part, name):
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf:
                found[path] = leaf.grad
    return found


def _state(fn: Any) -> Any:
    """The module behind a function, whose state a call may change."""
    owner = getattr(fn, "__self__", fn)
    return owner if isinstance(owner, nn.Module) else None


def _gold_run(fn: Any, args: Sequence[Any], kwargs: dict[str, Any], seed: int, gradients: bool = False) -> _Run | None:
    """Eager in float64, also where the function makes tensors without a dtype; None where it cannot."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        run = _try(_run, fn, args, kwargs, seed, True, None, gradients)
    finally:
        torch.set_default_dtype(default)
    return None if run is None or run.error else run


def _try(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception:  # float64 is a help, never a condition
        return None


def _agrees_with_itself(
    fn: Any, args: Sequence[Any], kwargs: dict[str, Any], seed: int, tol: float | None, gradients: bool
) -> None:
    first, second = (_run(copied(fn), args, kwargs, seed, gradients=gradients) for _ in range(2))
    verdict = _compare_runs(first, second, None, tol)
    if not verdict:
        raise Undecided(f"eager does not agree with itself\n{verdict.message}") from second.error


def _compare_runs(ref: _Run, res: _Run, gold: _Run | None, tol: float | None) -> Verdict:
    if ref.error or res.error:
        return _compare_errors(ref.error, res.error)
    ratio = worst = 0.0
    golden = dict(gold.parts) if gold else {}
    for (name, want), (_, have) in zip(ref.parts, res.parts, strict=True):
        verdict = same(want, have, golden.get(name), tol=tol, name=name)
        if not verdict:
            return verdict
        ratio, worst = max(ratio, verdict.ratio), max(worst, verdict.worst)
    aliases = _compare_aliases(ref, res)  # a verdict that fails is false
    return Verdict(True, "", ratio, worst) if aliases is None else aliases


def _compare_errors(want: Exception | None, have: Exception | None) -> Verdict:
    if type(want) is type(have):
        return Verdict(True)
    return Verdict(False, f"exceptions\n  expected: {_describe_error(want)}\n  got: {_describe_error(have)}")


def _describe_error(error: Exception | None) -> str:
    if error is None:
        return "a result"
    lines = str(error).strip().splitlines()[:4]
    return f"{type(error).__name__}: " + "\n    ".join(textwrap.shorten(line, 200) for line in lines)


# ---- copies ---------------------------------------------------------------------------------------------------------


def copied(value: Any, double: bool = False) -> Any:
    """A deep copy that keeps strides and which tensors share memory; with `double`, floating-point types become 64 bits wide."""
    memo: dict[int, Any] = {}
    storages: dict[tuple[int, torch.dtype], Tensor] = {}
    for _, tensor in leaves((value, getattr(value, "__self__", None))):
        if isinstance(tensor, Tensor) and _is_plain(tensor) and id(tensor) not in memo:
            memo[id(tensor)] = _copy_tensor(tensor, storages, double)
    return copy.deepcopy(value, memo)


def _is_plain(tensor: Tensor) -> bool:
    kinds = (Tensor, nn.Parameter, nn.Buffer)
    plain = type(tensor) in kinds and tensor.layout == torch.strided and tensor.device.type != "meta"
    return plain and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _copy_tensor(tensor: Tensor, storages: dict[tuple[int, torch.dtype], Tensor], double: bool) -> Tensor:
    key = storage_key(tensor), tensor.dtype
    with torch.no_grad():
        if key not in storages:
            whole = tensor.new_empty(0).set_(tensor.untyped_storage())  # type: ignore[call-overload]
            storages[key] = (
                whole.to(_wide(tensor.dtype)) if double and _wide(tensor.dtype) != tensor.dtype else whole.clone()
            )
        made = storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, tensor.requires_grad)
    return made.detach().requires_grad_(tensor.requires_grad)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


# ---- values ---------------------------------------------------------------------------------------------------------


def _leaf(path: str, want: Any, have: Any, gold: Any, tol: float | None) -> Verdict:
    if isinstance(want, Tensor) and isinstance(have, Tensor):
        return _tensor(path, want, have, gold, tol)
    if type(want) is not type(have):
        return Verdict(False, f"{path}: expected {_show(want)}, got {_show(have)}")
    if isinstance(want, float | complex):
        wide = torch.complex128 if isinstance(want, complex) else torch.float64
        numbers = [torch.tensor(n, dtype=wide) for n in (want, have, gold if isinstance(gold, type(want)) else want)]
        return _values(path, numbers[0], numbers[1], numbers[2], DEFAULT_TOLERANCE if tol is None else tol)
    if type(want).__eq__ is object.__eq__ or callable(want) or want is have:
        return Verdict(True)
    equal = want == have
    if not isinstance(equal, bool) or equal:
        return Verdict(True)
    return Verdict(False, f"{path}: expected {_show(want)}, got {_show(have)}")


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} {value.dtype}"
    return textwrap.shorten(str(value) if isinstance(value, _Structure) else repr(value), 200)


_METADATA: tuple[tuple[str, Callable[[Tensor], Any]], ...] = (
    ("class", lambda t: type(t).__name__),
    ("dtype", lambda t: t.dtype),
    ("shape", lambda t: tuple(t.shape)),
    ("layout", lambda t: t.layout),
    ("device", lambda t: t.device),
    ("requires_grad", lambda t: t.requires_grad),
    ("strides", lambda t: _visible_strides(t)),
)


def _visible_strides(tensor: Tensor) -> tuple[int | None, ...] | None:
    """The strides that address something: not those of dimensions of size 1, and none of an empty tensor."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tuple(stride if size != 1 else None for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tensor(path: str, want: Tensor, have: Tensor, gold: Any, tol: float | None) -> Verdict:
    for what, read in _METADATA:
        if read(want) != read(have):
            return Verdict(False, f"{path}: {what}\n  expected: {read(want)}\n  got: {read(have)}")
    if want.device.type == "meta" or want.numel() == 0:
        return Verdict(True)
    if want.layout != torch.strided or want.is_quantized:
        return same(*(t.dequantize() if t.is_quantized else t.to_dense() for t in (want, have)), tol=tol, name=path)
    golden = gold.detach() if isinstance(gold, Tensor) and gold.shape == want.shape else None
    tolerance = TOLERANCES.get(want.dtype, DEFAULT_TOLERANCE) if tol is None else tol
    return _values(path, want.detach(), have.detach(), golden, tolerance)


def _values(path: str, want: Tensor, have: Tensor, gold: Tensor | None, tol: float) -> Verdict:
    """The accuracy rule for tensors of one shape and dtype."""
    if want.dtype == torch.complex32:  # few operators take it
        want, have = want.to(torch.complex64), have.to(torch.complex64)
    if torch.equal(want, have):
        return Verdict(True)
    if not (want.is_floating_point() or want.is_complex()):
        wrong = want != have
        if not wrong.any():
            return Verdict(True)
        return _unequal(path, want, have, gold, wrong, wrong.double(), "these must be equal")
    if want.is_floating_point() and want.itemsize == 1:  # few operators take float8
        want, have = want.float(), have.float()
    if torch.allclose(want, have, rtol=tol, atol=tol, equal_nan=True):
        return Verdict(True, worst=_largest(_difference(want, have)))
    factor = 3 if want.dtype in HALF_TYPES else 2
    ref, res = _reals(want), _reals(have)
    true = _reals(gold) if gold is not None and gold.dtype in (torch.float64, torch.complex128) else None
    odd = _odd(ref, res, true, tol)
    if odd.any():
        return _unequal(path, ref, res, true, odd, odd.double(), "NaN or infinity in one of them only")
    if true is None:
        return _without_gold(path, ref, res, tol, "float64 could not run")
    if _rms(_difference(true, ref)) > CREDIBLE * _rms(true.where(true.isfinite(), 0)) + tol:
        return _without_gold(path, ref, res, tol, "float64 is too far from eager itself to say more")
    mine, theirs = _difference(true, res), _difference(true, ref)
    mine = mine.where(ref.isfinite(), 0)  # where eager overflows the compiled value is judged above
    got, eager = _rms(mine), _rms(theirs)
    ratio = got / eager if eager else math.inf
    reason = f"rmse against float64: compiled {got:.3g}, eager {eager:.3g}, ratio {ratio:.3g}; allowed {factor} times + {tol / 10:.1g}"
    limit = WORST_ELEMENT * _largest(theirs) + tol
    if got <= factor * eager + tol / 10 and _largest(mine) <= limit:
        return Verdict(True, "", ratio, _largest(_difference(ref, res)))
    wrong = ~torch.isclose(ref, res, rtol=tol, atol=tol, equal_nan=True)
    return _unequal(path, ref, res, true, wrong, mine, f"{reason}; one element at most {limit:.3g}")


def _without_gold(path: str, ref: Tensor, res: Tensor, tol: float, why: str) -> Verdict:
    """No float64 to compare with: the same direction, and no element off by a tenth of the largest."""
    finite = ref.isfinite() & res.isfinite()
    a, b = ref.where(finite, 0).flatten(), res.where(finite, 0).flatten()
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    error = _difference(ref, res)
    if cosine >= COSINE and _largest(error) <= 0.1 * a.abs().max().item() + tol:
        return Verdict(True, "", 0.0, _largest(error))
    wrong = ~torch.isclose(ref, res, rtol=tol, atol=tol, equal_nan=True)
    return _unequal(path, ref, res, None, wrong, error, f"cosine similarity {cosine:.6f} ({why})")


def _unequal(
    path: str, want: Tensor, have: Tensor, gold: Tensor | None, wrong: Tensor, size: Tensor, reason: str
) -> Verdict:
    place = [int(i) for i in torch.unravel_index(size.masked_fill(~wrong, -1).argmax(), size.shape)]
    at = tuple(place)
    lines = [
        f"{path}: {int(wrong.sum())} of {wrong.numel()} elements differ, {want.dtype}, shape {tuple(want.shape)}",
        f"  worst element {place}: got {have[at].item()}, expected {want[at].item()}",
        f"  {reason}",
    ]
    if gold is not None:
        lines[1] += f", in float64 {gold[at].item()}"
    return Verdict(False, "\n".join(lines), math.inf, math.inf)


def _reals(tensor: Tensor) -> Tensor:
    """In float64, a complex tensor with one more dimension of size 2."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _odd(ref: Tensor, res: Tensor, gold: Tensor | None, tol: float) -> Tensor:
    """Where NaN or infinity stands in one of the two only, and the compiled value is not simply nearer to float64's."""
    alike = torch.where(ref.isfinite(), res.isfinite(), (ref == res) | (ref.isnan() & res.isnan()))
    return ~alike if gold is None else ~alike & ~torch.isclose(gold, res, rtol=tol, atol=tol, equal_nan=True)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| in float64; 0 where either is not finite, which `_odd` has judged."""
    a, b = _reals(a), _reals(b)
    return (a - b).abs().where(a.isfinite() & b.isfinite(), 0)


def _rms(error: Tensor) -> float:
    return error.square().mean().sqrt().item()


def _largest(error: Tensor) -> float:
    return error.max().item() if error.numel() else 0.0


# ---- aliases --------------------------------------------------------------------------------------------------------


def _compare_aliases(ref: _Run, res: _Run) -> Verdict | None:
    """None when outputs share memory with arguments, state and each other just as in eager."""
    want, have = _tensors(ref), _tensors(res)
    outputs = [i for i, (path, _) in enumerate(want) if path.startswith("output")]
    for i in outputs:
        for j in (*range(i), *range(len(outputs), len(want))):
            expected, got = relation(want[i][1], want[j][1]), relation(have[i][1], have[j][1])
            if expected != got:
                pair = f"{want[i][0]} and {want[j][0]}"
                return Verdict(False, f"{pair}: aliasing\n  expected: {expected}\n  got: {got}")
    return None


def _tensors(run: _Run) -> list[tuple[str, Tensor]]:
    """Outputs first, then arguments and state; those that have memory of their own."""
    return [
        (path, leaf)
        for name, part in run.parts
        for path, leaf in leaves(part, name)
        if isinstance(leaf, Tensor) and has_memory(leaf)
    ]


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
