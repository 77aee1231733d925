"""Is a program compiled as it is in eager? Runs the script both ways, and says what differs: a kind of failure and its details."""

from __future__ import annotations

import ast
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import intarsia
from intarsia import graph_compiler, testing
from intarsia.ir.interpreter.run import InterpreterError, run_user
from intarsia.ir.text import parse_module
from intarsia.targets.build.program import Program
from intarsia.targets.errors import UnplannedResult
from intarsia.tools.aliasing import has_memory, relation

from . import script
from .script import Compile, Invalid, Leaf, Step

STAGES = ("graph", "interpreter", "compiled")
NUDGES = 3
CHAOS = 30  # how many times the effect of nudged inputs an error may be before it counts
DECLINED = ("Unsupported", "GraphBreak", "BackendError")  # what fullgraph=True raises


@dataclass(frozen=True)
class Failure:
    """What differs: a kind ("value", "stride", "alias", "exception", ...), and the details."""

    kind: str
    detail: str
    place: str = ""  # the statement

    @property
    def signature(self) -> str:
        """What a smaller program has to keep: the kind, and for messages of ours their words without names and numbers."""
        if self.kind not in ("internal", "exception", "exception text", "crash"):
            return self.kind
        return f"{self.kind}: {re.sub(r'[0-9]+|0x[0-9a-f]+|s[0-9]+|%[a-z_0-9]+', '#', self.detail)[:60]}"


def judge(text: str, stage: str = "compiled") -> Failure | str:
    """The failure; else "ok", or "invalid"/"undecided"/"declined" with a reason."""
    intarsia.reset()
    try:
        wanted = script.run(text, None)
    except (Invalid, SyntaxError) as error:
        return f"invalid: {error}"
    if any(isinstance(s.error, NameError) and "'f'" in str(s.error) for s in wanted):
        return "invalid: f is not defined"
    if any(type(s.error).__name__ in ("InternalTorchDynamoError", "UncapturedHigherOrderOpError") for s in wanted):
        return "invalid: torch's own compiler, which runs operators that take functions, fails"
    with listening() as said, staged(stage) as compiled:
        try:
            found = script.run(text, compiled)
        except Invalid as error:
            return f"invalid: {error}"
        except Exception as error:  # of the compile statement
            return Failure("exception", f"intarsia.compile raised {type(error).__name__}: {error}")
    failure = compare(wanted, found, text)
    if failure is not None and failure.kind == "exception" and "fullgraph=True" in text:
        first = next((b for a, b in zip(wanted, found, strict=False) if b.error and not a.error), None)
        if first is not None and type(first.error).__name__ in DECLINED:
            return "declined: fullgraph"
    if failure is not None and re.match(
        r"no exception instead of NotImplementedError: .* not implemented for", failure.detail
    ):
        return "declined: eager has no kernel for this dtype, a kernel of ours does it"
    ours = [
        line
        for line in said
        if any(word in line for word in ("an error inside intarsia", "(please report it)", "not Intarsia's own"))
    ]
    if failure is None and ours:
        failure = Failure("internal", ours[0][:600])
    if failure is None:
        return "ok"
    again = script.run(text, None)
    if compare(wanted, again, None) is not None:
        return "undecided: eager does not agree with itself"
    return failure


# ---- the three stages -----------------------------------------------------------------------------------------------


@contextmanager
def staged(stage: str) -> Iterator[Compile]:
    """What stands for `intarsia.compile`: capture alone, up to the last pass with the interpreter, or all."""
    if stage == "graph":
        yield _graph_only
    elif stage == "interpreter":
        with mock.patch.object(graph_compiler, "build", _interpreted):
            yield functools.partial(_with_options, cache=False)
    else:
        yield intarsia.compile


def _graph_only(fn: Any, **settings: Any) -> Any:
    settings.pop("options", None)
    settings.pop("passes", None)
    return intarsia.compile(fn, **{**settings, "backend": "eager"})


def _with_options(fn: Any, **settings: Any) -> Any:
    extra = {k: settings.pop(k) for k in ("cache",)}
    return intarsia.compile(fn, **{**settings, "options": {**settings.get("options", {}), **extra}})


def _interpreted(generated: Any, key: str, *args: Any, **kwargs: Any) -> Program:
    """In place of the C++ compiler: the reference interpreter on the text of the last level."""
    with warnings.catch_warnings():  # a program's own "error" filter is not for the parser's warnings
        warnings.simplefilter("ignore")
        module = parse_module(generated.ir)

    def run(*given: Any) -> tuple[Any, ...]:
        try:
            return tuple(run_user(module, list(given)))
        except InterpreterError as error:  # what the compiled program does, too: the graph runs in eager
            if "the result of buffer.extern" in str(error):
                raise UnplannedResult(str(error)) from error
            raise

    return Program(run, generated, key=key)


@contextmanager
def listening() -> Iterator[list[str]]:
    """What intarsia logs and warns meanwhile."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("intarsia")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    shown = warnings.showwarning
    try:
        yield said
    finally:
        warnings.showwarning = shown
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


# ---- comparison -----------------------------------------------------------------------------------------------------


def compare(wanted: Sequence[Step], found: Sequence[Step], text: str | None) -> Failure | None:
    """The first difference that counts; with a text, values may differ as the accuracy rule allows."""
    worst: Failure | None = None
    for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
        failure = _step(a, b, text, number)
        if failure is not None:
            failure = Failure(failure.kind, failure.detail, f"line {a.line}, {a.text[:80]}: ")
            if failure.kind not in MINOR:
                return failure
            worst = worst or failure
    return worst


MINOR = ("exception text", "stride of 1")  # what is looked past for something worse


def _step(a: Step, b: Step, text: str | None, number: int) -> Failure | None:
    minor: Failure | None = None
    if type(a.error).__name__ != type(b.error).__name__:
        return Failure("exception", f"{_shown(b.error)} instead of {_shown(a.error)}")
    if a.error is not None and _words(a.error) != _words(b.error):
        minor = Failure("exception text", f"{_shown(b.error)} instead of {_shown(a.error)}")
    if _without_nodes(a.printed) != _without_nodes(b.printed):
        return Failure("printed", f"{b.printed[-300:]!r} instead of {a.printed[-300:]!r}")
    if len(a.state) != len(b.state) or any(p != q for (p, _), (q, _) in zip(a.state, b.state, strict=True)):
        paths = [p for p, _ in a.state], [p for p, _ in b.state]
        missing, more = [p for p in paths[0] if p not in paths[1]], [p for p in paths[1] if p not in paths[0]]
        return Failure("structure", f"missing {missing[:4]}, unexpected {more[:4]}")
    for index, ((path, x), (_, y)) in enumerate(zip(a.state, b.state, strict=True)):
        failure = _leaf(path, x, y, text, number, index)
        if failure is not None:
            if failure.kind not in MINOR:
                return failure
            minor = minor or failure
    failure = _aliases(a.tensors, b.tensors)
    if failure is not None:
        return failure
    if a.modes != b.modes:
        names = ("grad mode", "inference mode", "default dtype", "autocast", "deterministic", "random state")
        which = [n for n, x, y in zip(names, a.modes, b.modes, strict=True) if x != y]
        if which == ["random state"] and text is not None and _draws_by_chance(text, number):
            return minor
        return Failure("modes", f"{', '.join(which)} differ afterwards")
    return minor


def _shown(error: BaseException | None) -> str:
    return "no exception" if error is None else f"{type(error).__name__}: {str(error).strip()[:300]}"


def _without_nodes(text: str) -> str:
    """Of a tensor as text, the name of its autograd node is that of a compiled graph."""
    return re.sub(r"grad_fn=<\w+>", "grad_fn", text)


def _words(error: BaseException) -> str:
    text = re.sub(r"0x[0-9a-f]+|at [0-9a-f]{6,}", "", _without_nodes(str(error)))
    return text.strip().split("\n")[0]


def _leaf(path: str, x: Any, y: Any, text: str | None, number: int, index: int) -> Failure | None:
    if isinstance(x, Leaf) and isinstance(y, Leaf):
        return _tensor(path, x, y, text, number, index)
    if type(x).__name__ != type(y).__name__:
        return Failure("type", f"{path}: {_brief(y)} instead of {_brief(x)}")
    if isinstance(x, float | complex):
        if x == y or (x != x and y != y):
            return None
        close = abs(x - y) <= 1e-4 * max(1.0, abs(x)) if not _odd(x) and not _odd(y) else False
        if close or text is not None and _chaotic(text, number, index, abs(x - y)):
            return None
        return Failure("value", f"{path}: {y!r} instead of {x!r}")
    if x == y:
        return None
    if text is not None and isinstance(x, int) and _chaotic(text, number, index, 1.0):
        return None
    kind = (
        "identity"
        if isinstance(x, tuple) and x[0] == "object" or isinstance(y, tuple) and y[0] == "object"
        else "value"
    )
    return Failure(kind, f"{path}: {_brief(y)} instead of {_brief(x)}")


def _odd(x: complex) -> bool:
    return not (math.isfinite(x.real) and math.isfinite(x.imag))


def _brief(value: Any) -> str:
    return f"a tensor {dict(value.facts)}" if isinstance(value, Leaf) else repr(value)[:200]


def _tensor(path: str, x: Leaf, y: Leaf, text: str | None, number: int, index: int) -> Failure | None:
    for (what, want), (_, have) in zip(x.facts, y.facts, strict=True):
        if want != have:
            if what == "shape" and text is not None and _chaotic(text, number, index, math.inf):
                return None
            return Failure(what, f"{path}: {have} instead of {want}")
    failure = _values(path, x.value, y.value, text, number, index)
    if failure is not None or x.strides == y.strides:
        return failure
    seen = x.value.numel() > 0 and any(
        n > 1 and s != t for n, s, t in zip(x.value.shape, x.strides or (), y.strides or (), strict=True)
    )
    return Failure(
        "stride" if seen else "stride of 1",
        f"{path}: strides {y.strides} instead of {x.strides}, shape {tuple(x.value.shape)}",
    )


def _values(
    path: str, want: torch.Tensor, have: torch.Tensor, text: str | None, number: int, index: int
) -> Failure | None:
    if want.is_meta:
        return None  # it has no values
    if want.layout != torch.strided or want.is_quantized:
        same = want.is_quantized or testing.same(want.to_dense(), have.to_dense())
        return None if same else Failure("value", f"{path}: a {want.layout} tensor differs")
    if want.dtype is have.dtype is torch.complex32:  # for which torch has hardly an operator
        want, have = want.to(torch.complex64), have.to(torch.complex64)
    verdict = testing._values(path, want, have, None, testing.TOLERANCES.get(want.dtype, 1e-4))
    if verdict:
        return None
    if text is None:
        return Failure("value", verdict.message)
    gold = _other_run(text, "gold")
    leaf = _find(gold, number, index)
    if isinstance(leaf, torch.Tensor) and leaf.shape == want.shape and leaf.dtype in (torch.float64, torch.complex128):
        verdict = testing._values(path, want, have, leaf, testing.TOLERANCES.get(want.dtype, 1e-4))
        if verdict:
            return None
    finite = want.isfinite() & have.isfinite() if want.is_floating_point() or want.is_complex() else None
    apart = (
        math.inf if finite is not None and not _same_odd(want, have) else testing._difference(want, have).max().item()
    )
    if _chaotic(text, number, index, apart):
        return None
    return Failure("value", verdict.message)


def _same_odd(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = testing._reals(a), testing._reals(b)
    return bool((a.isnan() == b.isnan()).all() and (a.where(a.isinf(), 0) == b.where(b.isinf(), 0)).all())


def _aliases(a: Sequence[tuple[str, torch.Tensor]], b: Sequence[tuple[str, torch.Tensor]]) -> Failure | None:
    """Which of the visible tensors share memory, and how far apart they start."""
    for i in range(len(a)):
        for j in range(i):
            pairs = (a[i][1], a[j][1]), (b[i][1], b[j][1])
            if not all(has_memory(t) for pair in pairs for t in pair):
                continue
            want, have = relation(*pairs[0]), relation(*pairs[1])
            if want != have:
                return Failure("alias", f"{a[i][0]} and {a[j][0]}: {have} instead of {want}")
    return None


# ---- other runs of eager: in float64, and with inputs that differ in the last bits ------------------------------------


def _chaotic(text: str, number: int, index: int, apart: float) -> bool:
    """Whether eager itself moves that much where its inputs move by rounding: then a difference says nothing."""
    plain = _other_run(text, "plain")
    base = _find(plain, number, index)
    for k in range(NUDGES):
        moved = _find(_other_run(text, f"nudge{k}"), number, index)
        if type(moved) is not type(base):
            return True
        if not isinstance(base, torch.Tensor):
            if moved != base and (not isinstance(base, float) or abs(moved - base) * CHAOS > apart):
                return True
            continue
        if moved.shape != base.shape or (base.is_floating_point() or base.is_complex()) and not _same_odd(base, moved):
            return True
        largest = testing._difference(base, moved).max().item() if base.numel() else 0.0
        if largest and (not math.isfinite(apart) or largest * CHAOS >= apart):
            return apart != math.inf
    return False


def _draws_by_chance(text: str, number: int) -> bool:
    """Whether rounding decides how many random numbers eager draws: RReLU draws one for each number that is not positive."""
    plain, *moved = (_other_run(text, how) for how in ("plain", *(f"nudge{k}" for k in range(NUDGES))))
    states = [run[number].modes[-1] if run is not None and number < len(run) else None for run in (plain, *moved)]
    return any(state != states[0] for state in states[1:])


def _find(steps: list[Step] | None, number: int, index: int) -> Any:
    if steps is None or number >= len(steps) or index >= len(steps[number].state):
        return None
    value = steps[number].state[index][1]
    return value.value if isinstance(value, Leaf) else value


@functools.lru_cache(maxsize=8)
def _other_run(text: str, how: str) -> list[Step] | None:
    """Eager once more: "plain", in float64 ("gold"), or with nudged inputs."""
    hook: Callable[[dict[str, Any]], None] | None = None
    if how == "gold":
        text, hook = widened(text), _widen
    elif how.startswith("nudge"):
        hook = functools.partial(_nudge, generator=torch.Generator().manual_seed(int(how[5:])))
    try:
        return script.run(text, None, hook)
    except Exception:
        return None


WIDER = dict.fromkeys(("float32", "float16", "bfloat16", "half", "float"), "float64") | {"complex64": "complex128"}
METHODS = {"float": "double", "half": "double", "bfloat16": "double"}


def widened(text: str) -> str:
    """The text with float64 in place of narrower types inside its functions."""

    class Widen(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in WIDER:
                node.attr = WIDER[node.attr]
            elif node.attr in METHODS:
                node.attr = METHODS[node.attr]
            return node

    tree = ast.parse(text)
    tree.body = [Widen().visit(n) if isinstance(n, ast.FunctionDef | ast.ClassDef) else n for n in tree.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def _widen(scope: dict[str, Any]) -> None:
    """Everything that a program has, in float64."""
    torch.set_default_dtype(torch.float64)
    kept = {
        k: v
        for k, v in scope.items()
        if isinstance(v, torch.Tensor | torch.nn.Module | list | tuple | dict) and not k.startswith("__")
    }
    scope.update(testing.copied(kept, True))


def _nudge(scope: dict[str, Any], generator: torch.Generator) -> None:
    """Every float that a program has, moved by about its last bit."""
    seen = script.Snapshot()
    seen.add_scope({k: v for k, v in scope.items() if k != "_"})
    done = set()
    for _, tensor in seen.tensors:
        if not (tensor.is_floating_point() or tensor.is_complex()) or not has_memory(tensor) or tensor.itemsize == 1:
            continue
        with torch.no_grad():
            whole = tensor.detach().new_empty(0).set_(tensor.untyped_storage())  # type: ignore[call-overload]
            if whole.data_ptr() in done:
                continue
            done.add(whole.data_ptr())
            noise = torch.randint(-2, 3, whole.shape, generator=generator, device="cpu").double().to(whole.device)
            whole.copy_(whole * (1 + noise * torch.finfo(tensor.dtype).eps))
