"""Programs whose sizes change from call to call: the parts of them whose sizes do not are recorded, each as a CUDA graph of its own.

A decoder whose cache grows is the case: only the attention sees the growing size, and between two attentions lie a dozen kernels and library calls
that are the same in every call. `split` writes such runs of steps as functions of their own into the host program:

    @piece
    def part0(a4, t1):
        o5 = ...
        return (o5, t3)

and `Pieces` runs a program with these recorded. What one part gives lies at the same place in each call, where later parts find it without a copy.
"""

from __future__ import annotations

import ast
import logging
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import buffer, loop
from ...ir.symbols import free_symbols
from ...ir.syntax import Op
from ...ir.types import RefType, is_gpu
from ..torch_private import storage_address
from .capture import Replay, first_line
from .playback import Gpu, Memory, Pool, result_makers
from .recordable import LEAST

Run = Callable[..., Sequence[Any]]
WORTH = 50  # calls that pay for recording the parts
MOST_CHANGES = 3  # of parameters' places that came before that
log = logging.getLogger("intarsia")
PLAIN = "piece=lambda part: part"  # the parameter of `make`: parts are functions like any other


def is_fixed(op: Op, kernels: dict[str, loop.Kernel]) -> bool:
    """Whether a step is the same in calls of all sizes, and writes to no argument."""
    for value in (*op.operands, *op.results):
        ref = value.type
        if not isinstance(ref, RefType) or not is_gpu(ref.device) or free_symbols([*ref.shape, *ref.strides]):
            return False
    match op:
        case buffer.Launch():
            kernel = kernels[op["kernel"]]
            return not kernel.get("symbols") and not any(map(_of_argument, op.operands[kernel["inputs"] :]))
        case buffer.Extern():
            return bool(op.results) and not any(map(_symbolic, op.literals.values()))
        case buffer.View():
            return not free_symbols([op["offset"]])
        case buffer.Alloc():
            return True
    return False


def _of_argument(value: SSAValue) -> bool:
    while isinstance(value.owner, buffer.View):
        value = value.owner.operands[0]
    return isinstance(value, BlockArgument)


def _symbolic(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_symbolic, value))
    return bool(getattr(value, "free_symbols", None))


def split(
    steps: Sequence[tuple[Op, list[str]]], kernels: dict[str, loop.Kernel], head: str
) -> tuple[list[str], list[str]]:
    """The lines of the parts, and of a program that calls them.

    Args:
        steps: the operations of a host program, each with its lines.
        head: a line that stands at the beginning of each part.
    """
    groups: list[tuple[bool, list[str]]] = []
    run: list[tuple[Op, list[str]]] = []

    def close() -> None:
        work = sum(isinstance(op, buffer.Launch | buffer.Extern) for op, _ in run)
        groups.append((work >= LEAST, [line for _, lines in run for line in lines]))
        run.clear()

    for op, lines in steps:
        if isinstance(op, buffer.Free) and run or is_fixed(op, kernels):
            run.append((op, lines))
        else:
            close()
            groups.append((False, lines))
    close()
    names = [Names.of(lines) for _, lines in groups]
    made: list[str] = []
    body: list[str] = []
    count = 0
    for k, (is_part, lines) in enumerate(groups):
        if not is_part:
            body += lines
            continue
        before = set().union(*(n.stored for n in names[:k]))
        later = set().union(*(n.loaded for n in names[k + 1 :]))
        mine = names[k]
        takes = sorted(n for n in mine.loaded if n not in mine.stored and (n in before or _is_argument(n)))
        gives = sorted(mine.stored & later)
        made += ["@piece", f"def part{count}({', '.join(takes)}):", f"    {head}"]
        made += ["    " + line for line in lines]
        made.append(f"    return ({', '.join(gives)}{',' if len(gives) == 1 else ''})")
        call = f"part{count}({', '.join(takes)})"
        body.append(f"{', '.join(gives)}{',' if len(gives) == 1 else ''} = {call}" if gives else call)
        freed = sorted(mine.freed & before)
        body += [f"{' = '.join(freed)} = None"] if freed else []
        count += 1
    return made, body


def _is_argument(name: str) -> bool:
    return name[0] == "a" and name[1:].isdigit()


@dataclass(frozen=True)
class Names:
    """What lines of a host program read, define and give up."""

    loaded: frozenset[str]
    stored: frozenset[str]
    freed: frozenset[str]

    @staticmethod
    def of(lines: Iterable[str]) -> Names:
        loaded: set[str] = set()
        stored: set[str] = set()
        freed: set[str] = set()
        for statement in ast.parse(textwrap.dedent("\n".join(lines))).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                freed |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
                continue
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    (stored if isinstance(node.ctx, ast.Store) else loaded).add(node.id)
        return Names(frozenset(loaded), frozenset(stored - {"code", "_"}), frozenset(freed - {"_"}))


class Pieces:
    """A program whose parts are recorded.

    Args:
        make: makes the program from what becomes of its parts.
        gpu: where it runs.
    """

    def __init__(self, make: Callable[[Callable[[Run], Run]], Run], gpu: Gpu) -> None:
        self.make, self.gpu = make, gpu
        self.key: tuple[Any, ...] = ()
        self.run: Run | None = None
        self.parts: list[_Part] = []
        self.pool: Pool | None = None
        self.recorded = self.calls = self.changes = 0
        self.fixed: set[int] = (
            set()
        )  # tensors, by id, that are the same in each call: parameters while recording, and what parts give
        self.places: set[int] = set()  # storages of what parts give

    def __call__(
        self, args: Sequence[Any], key: tuple[Any, ...], static: Sequence[torch.Tensor], pool: Pool
    ) -> Sequence[Any]:
        """The user's results. The caller holds the pool's lock.

        Args:
            key: stream and addresses of parameters; for others the parts are recorded anew.
            static: the parameters.
            pool: memory of the stream's recordings.
        """
        if self.run is None or key != self.key:
            self.changes += self.run is not None and self.calls < WORTH
            self.key, self.pool, self.calls, self.parts = key, pool, 0, []
            self.fixed, self.places = set(map(id, static)), set()
            self.run = self.make(self._part)
        self.calls += 1
        results = self.run(*args)
        if not any(isinstance(r, torch.Tensor) and storage_address(r) in self.places for r in results):
            return results
        return self._copied(results, key[0])

    @property
    def is_worth_it(self) -> bool:
        """Whether parameters stay where they are for long enough."""
        return self.changes < MOST_CHANGES

    def _part(self, function: Run) -> Run:
        self.parts.append(_Part(function, self))
        return self.parts[-1]

    def _copied(self, results: Sequence[Any], stream: int) -> list[Any]:
        """Results that lie where the next call writes as copies; the others as they are."""
        ours = [isinstance(r, torch.Tensor) and storage_address(r) in self.places for r in results]
        makers, _ = result_makers([r for r, our in zip(results, ours, strict=True) if our], (), self.gpu)
        made: list[Any] = []
        for make in makers:
            made.append(make((), made, stream))
        copies = iter(made)
        return [next(copies) if our else r for r, our in zip(results, ours, strict=True)]


class _Part:
    """One part: recorded when it is called first, then played back."""

    def __init__(self, function: Run, whole: Pieces) -> None:
        self.function, self.whole, self.is_plain = function, whole, False
        self.replay: Replay | None = None
        self.inputs: list[Memory] = []
        self.gives: Sequence[Any] = ()

    def __call__(self, *args: Any) -> Sequence[Any]:
        if self.replay is None and not self.is_plain:
            self._record(args)
        if self.replay is None:
            return self.function(*args)
        stream = self.whole.key[0]
        for memory in self.inputs:
            memory.fill(args[memory.place], stream)
        self.replay(stream)
        return self.gives

    def _record(self, args: Sequence[Any]) -> None:
        whole = self.whole
        assert whole.pool is not None
        given = list(args)
        for k, x in enumerate(args):
            if id(x) not in whole.fixed:
                self.inputs.append(Memory(k, x, whole.gpu))
                given[k] = self.inputs[-1].like(x)
        try:
            self.replay, self.gives = whole.gpu.record(lambda: list(self.function(*given)), whole.pool)
        except Exception as error:  # whatever it is: the program runs without
            log.info("a part of a program is not recorded as a CUDA graph: %s", first_line(error))
            self.is_plain = True
            return
        whole.recorded += 1
        statics = {storage_address(x) for x in args if id(x) in whole.fixed} - whole.places
        whole.fixed |= set(map(id, self.gives))
        whole.places |= {storage_address(x) for x in self.gives} - statics
