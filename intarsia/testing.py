"""Does a compiled function do what eager does? `check` runs both, `same` compares two results.

The accuracy rule: allclose to eager, or as close to eager in float64 as eager itself is (a factor of 2, of 3 in half types),
with no single element far off. Types, shapes, strides, aliasing, mutated inputs, exceptions and the random generator's state
must agree exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-3,
    torch.bfloat16: 1e-3,
    torch.complex32: 1e-3,
}
_HALF = (torch.float16, torch.bfloat16, torch.complex32)
_WIDE_MARGIN = 10.0  # how much worse than eager's worst element a single element may be
_COSINE = 0.99


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison; true if it passed.

    ``reason`` says what differs and where. ``ratio`` is the worst rmse against float64 over eager's own (None where allclose
    was enough), ``exact`` whether every element has eager's bits.
    """

    ok: bool
    reason: str = ""
    ratio: float | None = None
    exact: bool = True

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Report:
    """What a passed check saw: how many outputs, mutated inputs, and the exception's type if both raised it."""

    verdict: Verdict
    outputs: int
    mutated: int
    raised: type[BaseException] | None = None


def same(
    ref: Any, res: Any, gold: Any = None, *, tol: float | None = None, strides: bool = True, where: str = "output"
) -> Verdict:
    """Compare ``res`` with eager's ``ref``: nested containers of tensors, numbers and other values.

    ``gold`` is eager in float64, or a function that computes it (called only if allclose is not enough), or None.
    ``tol`` replaces the tolerance of the table for floating dtypes. Strides of dimensions with one element do not count.
    """
    left, tree = pytree.tree_flatten_with_path(ref)
    right, other = pytree.tree_flatten(res)
    if tree != other:
        return Verdict(False, f"{where}: structure differs: got {_brief(other)}, expected {_brief(tree)}", exact=False)
    lazy = _Gold(gold, len(left))
    verdicts = [
        _same_leaf(f"{where}{pytree.keystr(path)}", a, b, lazy, i, tol, strides)
        for i, ((path, a), b) in enumerate(zip(left, right, strict=True))
    ]
    for verdict in verdicts:
        if not verdict:
            return verdict
    ratios = [v.ratio for v in verdicts if v.ratio is not None]
    return Verdict(True, ratio=max(ratios, default=None), exact=all(v.exact for v in verdicts))


def check(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    compiled: Callable[..., Any] | None = None,
    tol: float | None = None,
    backend: Any = "auto",
    dynamic: bool | None = None,
    seed: int = 0,
) -> Report:
    """Run ``fn`` in eager and compiled, each on its own copy of the inputs, without gradients; compare everything visible.

    Args:
        fn: a function or module; a module is copied for each run, and its parameters and buffers count as inputs.
        compiled: what to compare; default: `intarsia.compile(fn, fullgraph=True, backend=backend, dynamic=dynamic)`.
            For a module it is called as it is, so it must hold the same state as ``fn``.
        tol: replaces the tolerance of the dtype.
        seed: the random generator starts from here in each run.

    Raises:
        AssertionError: the two differ, or eager disagrees with itself; the message names the output and the worst element.
    """
    inputs = (tuple(args), dict(kwargs or {}))
    module = fn if isinstance(fn, nn.Module) else None
    bound = _target_of(compiled, module)
    # Copies are made before anything runs, as a given `compiled` may share the original's state.
    first, again, wide = (_Run.prepare(fn, inputs) for _ in range(3))
    if compiled is None:
        mine = copy.deepcopy(module) if module is not None else fn
        actual = _Run(_compile(mine, backend, dynamic), copy.deepcopy(inputs), mine if module is not None else None)
    else:
        actual = _Run(compiled, copy.deepcopy(inputs), bound)
    for run in (first, again):
        run.call(seed)
    before = copy.deepcopy(inputs)
    if first.error is None and not (steady := same(first.seen, again.seen, strides=False)):
        raise AssertionError(f"eager disagrees with itself, nothing can be compared\n{steady.reason}")
    actual.call(seed)
    if first.error is not None or actual.error is not None:
        return _same_error(first, actual)

    def gold() -> Any:
        wide.widen()
        wide.call(seed)
        return wide.seen if wide.error is None else None

    # Random numbers are drawn differently in float64, so gold says nothing about them.
    verdict = same(first.seen, actual.seen, None if first.drew else gold, tol=tol, where="")
    problems = [] if verdict else [verdict.reason]
    problems += _aliasing_differences(first, actual)
    if not torch.equal(first.generator, actual.generator):
        problems.append("the random generator is left in another state than after eager")
    if problems:
        raise AssertionError("\n".join(["compiled and eager differ", *problems][:15]))
    outputs = len(pytree.tree_leaves(first.result))
    mutated = sum(
        not _unchanged(a, b)
        for a, b in zip(pytree.tree_leaves(first.inputs), pytree.tree_leaves(before), strict=True)
        if isinstance(a, Tensor)
    )
    return Report(verdict, outputs, mutated)


def _compile(fn: Any, backend: Any, dynamic: bool | None) -> Any:
    from .compile import compile  # the checker is also used without the compiler

    return compile(fn, fullgraph=True, backend=backend, dynamic=dynamic)


def _target_of(compiled: Any, module: nn.Module | None) -> nn.Module | None:
    if module is None or compiled is None:
        return None
    return compiled if isinstance(compiled, nn.Module) and len(compiled.state_dict()) else module


class _Run:
    """One call on its own inputs, and everything that can be seen afterwards."""

    def __init__(self, fn: Callable[..., Any], inputs: tuple[Any, Any], module: nn.Module | None):
        self.fn, self.inputs, self.module = fn, inputs, module
        self.result: Any = None
        self.error: BaseException | None = None
        self.drew = False
        self.generator = torch.empty(0)

    @staticmethod
    def prepare(fn: Callable[..., Any], inputs: tuple[Any, Any]) -> _Run:
        """Deep copies keep strides, and memory that tensors share."""
        own = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        return _Run(own, copy.deepcopy(inputs), own if isinstance(own, nn.Module) else None)

    def call(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            try:
                self.result = self.fn(*self.inputs[0], **self.inputs[1])
            except Exception as error:
                self.error = error
            self.generator = torch.get_rng_state()
            self.drew = not torch.equal(before, self.generator)

    def widen(self) -> None:
        """Turn every floating tensor (and the module) into float64, complex into complex128."""
        self.inputs = pytree.tree_map(_wide, self.inputs)
        if self.module is not None:
            self.module.double()

    @property
    def state(self) -> dict[str, Tensor]:
        if self.module is None:
            return {}
        names = (self.module.named_parameters(), self.module.named_buffers())
        return {name.replace("_orig_mod.", ""): tensor for part in names for name, tensor in part}

    @property
    def seen(self) -> dict[str, Any]:
        return {
            "output": self.result,
            "argument after the call": self.inputs[0],
            "keyword argument after the call": self.inputs[1],
            "module state after the call": dict(sorted(self.state.items())),
        }

    def tensors(self) -> Iterator[tuple[str, bool, Tensor]]:
        """Name, whether it is an output, and tensor; for outputs, arguments and module state."""
        groups = [("output", True, self.result), ("argument", False, self.inputs), ("state", False, self.state)]
        for name, is_output, tree in groups:
            for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
                if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                    yield f"{name}{pytree.keystr(path)}", is_output, leaf


def _wide(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_complex():
        return leaf.to(torch.complex128)
    return leaf.double() if leaf.is_floating_point() else leaf


def _same_error(expected: _Run, actual: _Run) -> Report:
    if type(expected.error) is type(actual.error):
        return Report(Verdict(True), 0, 0, type(expected.error))
    got, want = (
        f"{type(run.error).__name__}: {_brief(run.error, 300)}" if run.error else "no exception"
        for run in (actual, expected)
    )
    raise AssertionError(f"exceptions differ\n  compiled: {got}\n  eager:    {want}") from actual.error


def _aliasing_differences(expected: _Run, actual: _Run) -> list[str]:
    """Pairs (output, output or input) that share memory, or are one object, in one run and not in the other."""
    problems = []
    theirs, ours = list(expected.tensors()), list(actual.tensors())
    if len(theirs) != len(ours):
        return []  # the structure differs, which was said already
    for i, (name, is_output, _) in enumerate(theirs):
        if not is_output:
            continue
        for j, (other, _, _) in enumerate(theirs):
            if j == i or (j < i and theirs[j][1]):
                continue
            want = _relation(theirs[i][2], theirs[j][2])
            got = _relation(ours[i][2], ours[j][2])
            if want != got:
                problems.append(f"{name} and {other}: compiled has {got}, eager has {want}")
    return problems[:5]


def _relation(a: Tensor, b: Tensor) -> str:
    if a is b:
        return "one object"
    first, second = a.untyped_storage(), b.untyped_storage()
    if not first.nbytes() or not second.nbytes() or first.data_ptr() != second.data_ptr():
        return "separate memory"
    return f"shared memory, {b.data_ptr() - a.data_ptr()} bytes apart"


def _unchanged(a: Any, b: Any) -> bool:
    return bool(same(a, b, tol=0.0))


class _Gold:
    """Results in float64, computed at most once."""

    def __init__(self, gold: Any, count: int):
        self.given, self.count = gold, count

    @cached_property
    def leaves(self) -> list[Any]:
        tree = self.given() if callable(self.given) and not isinstance(self.given, Tensor) else self.given
        leaves = pytree.tree_leaves(tree)
        return leaves if tree is not None and len(leaves) == self.count else [None] * self.count

    def __getitem__(self, index: int) -> Any:
        return self.leaves[index]


def _same_leaf(
    name: str, ref: Any, res: Any, gold: _Gold, index: int, tol: float | None, strides: bool
) -> Verdict:
    def bad(reason: str) -> Verdict:
        return Verdict(False, f"{name}: {reason}", exact=False)

    if not isinstance(ref, Tensor) or not isinstance(res, Tensor):
        if type(ref) is not type(res):
            return bad(f"got {type(res).__name__} {_brief(res)}, expected {type(ref).__name__} {_brief(ref)}")
        close = _same_number(ref, res) if isinstance(ref, (float, complex)) else _equal(ref, res)
        return Verdict(True) if close else bad(f"got {_brief(res)}, expected {_brief(ref)}")
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(ref, what) != getattr(res, what):
            return bad(f"{what} differs: got {getattr(res, what)}, expected {getattr(ref, what)}")
    if ref.layout != torch.strided or ref.is_quantized or ref.device.type == "meta":
        return Verdict(True) if ref.device.type == "meta" or _equal_special(ref, res) else bad("contents differ")
    if strides and _strides(ref) != _strides(res):
        return bad(f"stride differs: got {res.stride()}, expected {ref.stride()}")
    return _same_values(name, ref.detach().resolve_conj(), res.detach().resolve_conj(), gold, index, tol)


def _same_values(name: str, ref: Tensor, res: Tensor, gold: _Gold, index: int, tol: float | None) -> Verdict:
    if not (ref.is_floating_point() or ref.is_complex()):
        if torch.equal(ref, res):
            return Verdict(True)
        return Verdict(False, _worst(name, ref, res, None, (ref != res).double()), exact=False)
    tolerance = TOLERANCE.get(ref.dtype, 1e-3) if tol is None else tol
    r, s = _real(ref), _real(res)
    exact = torch.equal(r, s) or bool(((r == s) | (r.isnan() & s.isnan())).all())
    if exact or torch.allclose(s, r, rtol=tolerance, atol=tolerance, equal_nan=True):
        return Verdict(True, exact=exact)
    g = gold[index]
    wide = _real(g.detach().resolve_conj()) if isinstance(g, Tensor) and g.shape == ref.shape else None
    if wide is not None and (wide.shape != r.shape or _cosine(r, wide) < _COSINE):
        wide = None  # float64 takes another way through the program
    return _by_gold(name, ref, res, (r, s, wide), tolerance)


def _by_gold(
    name: str, ref: Tensor, res: Tensor, parts: tuple[Tensor, Tensor, Tensor | None], tol: float
) -> Verdict:
    """The second half of the rule: errors against float64 instead of against eager."""
    r, s, g = parts
    off = torch.where(r.isfinite() & s.isfinite(), (r - s).abs(), (~_alike(r, s)).double() * float("inf"))
    off = off.nan_to_num(nan=0.0, posinf=float("inf"))
    if g is None:
        unlike = ~_alike(r, s) & ~(r.isfinite() & s.isfinite())
        cosine = _cosine(r, s)
        if not unlike.any() and cosine >= _COSINE:
            return Verdict(True, exact=False)
        reason = _worst(name, ref, res, None, off)
        return Verdict(False, f"{reason}\n  no float64 result; cosine similarity {cosine:.4f}", exact=False)
    # An infinity or NaN must be eager's, unless float64 shows that it was eager's own overflow.
    unlike = ~_alike(r, s) & ~(r.isfinite() & s.isfinite())
    if (unlike & ~torch.isclose(s, g, rtol=tol, atol=tol)).any():
        return Verdict(False, _worst(name, ref, res, g, off), exact=False)
    usable = r.isfinite() & s.isfinite() & g.isfinite()
    mine, eager = (s - g)[usable].abs(), (r - g)[usable].abs()
    rmse_mine, rmse_eager = (float(e.square().mean().sqrt()) if e.numel() else 0.0 for e in (mine, eager))
    worst_mine, worst_eager = (float(e.max()) if e.numel() else 0.0 for e in (mine, eager))
    factor = 3.0 if ref.dtype in _HALF else 2.0
    ratio = rmse_mine / rmse_eager if rmse_eager else float("inf") if rmse_mine else 1.0
    if rmse_mine <= factor * rmse_eager + tol / 10 and worst_mine <= _WIDE_MARGIN * worst_eager + tol:
        return Verdict(True, ratio=ratio, exact=False)
    errors = f"\n  rmse against float64 {rmse_mine:.3g}, eager's {rmse_eager:.3g} (ratio {ratio:.3g}, allowed {factor:g})"
    errors += f"\n  largest error against float64 {worst_mine:.3g}, eager's {worst_eager:.3g}"
    return Verdict(False, _worst(name, ref, res, g, off) + errors, ratio, exact=False)


def _worst(name: str, ref: Tensor, res: Tensor, gold: Tensor | None, off: Tensor) -> str:
    """Name, index and values of the element that is furthest off."""
    complex_pair = off.dim() > ref.dim()
    per_element = off.amax(-1) if complex_pair else off
    index = tuple(int(i) for i in torch.unravel_index(per_element.argmax(), ref.shape)) if ref.dim() else ()
    reason = f"{name}: wrong value at {index}: got {res[index].item()}, expected {ref[index].item()}"
    if gold is not None:
        reason += f", in float64 {gold[index].tolist()}"
    return f"{reason}\n  {int((per_element > 0).sum())} of {ref.numel()} elements differ"


def _real(t: Tensor) -> Tensor:
    """In float64, a complex tensor with its parts along a new last dimension."""
    return torch.view_as_real(t.to(torch.complex128)) if t.is_complex() else t.double()


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _cosine(a: Tensor, b: Tensor) -> float:
    usable = a.isfinite() & b.isfinite()
    x, y = a[usable], b[usable]
    norm = float(x.norm() * y.norm())
    return float(x @ y) / norm if norm else float(float(x.norm()) == float(y.norm()))


def _strides(t: Tensor) -> tuple[int, ...]:
    if t.numel() == 0:
        return ()
    return tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)


def _same_number(a: Any, b: Any) -> bool:
    return bool(torch.allclose(torch.tensor(b), torch.tensor(a), rtol=1e-6, atol=1e-8, equal_nan=True))


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or type(a).__eq__ is object.__eq__
    except Exception:  # values that cannot be compared
        return True


def _equal_special(a: Tensor, b: Tensor) -> bool:
    left, right = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
    return torch.allclose(left, right, equal_nan=True)


def _brief(value: Any, width: int = 120) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= width else text[: width - 3] + "..."
