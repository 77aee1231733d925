"""Programs whose sizes change from call to call: the parts of them whose sizes do not, as functions of their own that can be recorded.

A decoder whose cache grows is the case: only the attention sees the growing size, and between two attentions lie a dozen kernels and library calls
that are the same in every call. `split` makes a function of each such run of steps:

    @piece
    def part0(a4, t1):
        o5 = ...
        return (o5, t3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import BlockArgument

from ...ir.dialects import buffer, loop
from ...ir.symbols import free_symbols
from ...ir.syntax import Op
from ...ir.types import RefType, is_gpu
from ..recordings.recordable import LEAST
from .ir import Function, Names, Statement, tuple_of, use
from .kernels import viewed

Emitted = tuple[Op, Sequence[Statement]]  # an operation of a host program, and its lines


def is_fixed(op: Op, kernels: Mapping[str, loop.Kernel]) -> bool:
    """Whether a step is the same in calls of all sizes, and writes to no argument."""
    for value in (*op.operands, *op.results):
        ref = value.type
        if not isinstance(ref, RefType) or not is_gpu(ref.device) or free_symbols([*ref.shape, *ref.strides]):
            return False
    match op:
        case buffer.Launch():
            kernel = kernels[op["kernel"]]
            written = map(viewed, op.operands[kernel.operand_count :])
            return not kernel.sizes and not any(isinstance(value, BlockArgument) for value in written)
        case buffer.Extern():
            return bool(op.results) and not op.get("seed") and not any(map(_symbolic, op.literals.values()))
        case buffer.View():
            return not free_symbols([op["offset"]])
        case buffer.Alloc():
            return True
    return False


def _symbolic(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_symbolic, value))
    return bool(getattr(value, "free_symbols", None))


def split(
    head: Sequence[Statement],
    steps: Sequence[Emitted],
    kernels: Mapping[str, loop.Kernel],
    run: Function,
    stream: Statement,
) -> list[Function]:
    """The parts, and `run` as a program that calls them; nothing where there are no parts.

    Args:
        head: the lines of `run` in front of all steps.
        steps: the operations of `run`, each with its lines.
        stream: asks for the stream.
    """
    groups: list[tuple[bool, list[Statement]]] = []
    fixed: list[Emitted] = []

    def close() -> None:
        work = sum(isinstance(op, buffer.Launch | buffer.Extern) for op, _ in fixed)
        groups.append((work >= LEAST, [line for _, lines in fixed for line in lines]))
        fixed.clear()

    for op, lines in steps:
        lines = [line for line in lines if line.kind != "stream"]
        if isinstance(op, buffer.Free) and fixed or is_fixed(op, kernels):
            fixed.append((op, lines))
        else:
            close()
            groups.append((False, lines))
    close()
    groups.append((False, [Statement(run.result)]))
    names = [Names.of(lines) for _, lines in groups]
    parts: list[Function] = []
    body = [*head, stream]
    for k, (is_part, lines) in enumerate(groups[:-1]):
        if not is_part:
            body += lines
            continue
        before = set().union(*(n.writes for n in names[:k]))
        later = set().union(*(n.reads for n in names[k + 1 :]))
        mine = names[k]
        takes = sorted((mine.reads - mine.writes) & (before | set(run.arguments)))
        gives = sorted(mine.writes & later)
        name, given = f"part{len(parts)}", tuple_of([*map(use, gives)])
        parts.append(Function(name, tuple(takes), (stream, *lines), given, is_part=True))
        call = f"{use(name)}({', '.join(map(use, takes))})"
        body.append(Statement(f"{given[1:-1]} = {call}" if gives else call, tuple(gives)))
        if freed := sorted(mine.frees & before):
            body.append(Statement(f"{' = '.join(map(use, freed))} = None", frees=tuple(freed)))
    return [*parts, Function(run.name, run.arguments, tuple(body), run.result)] if parts else []
