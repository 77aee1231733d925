"""Rewrite rules and the loop that applies them.

A rule is an equation: its docstring states it, the annotation of its argument says which operation it matches, and it
returns what stands for the result: an existing value, a new operation, a list of new ones (the last one gives the result), or None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar, get_type_hints

from xdsl.dialects.builtin import ModuleOp, UnknownLoc
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from ...ir.dialects.prim import VIEWS, Full, Func, tensor
from ...ir.literals import Literal
from ...ir.scalars import SCALARS
from ...ir.syntax import Op
from ...ir.text import DIALECTS
from .syntax import suggest

Rewrite: TypeAlias = SSAValue | Op | Sequence[Op] | None
Rule: TypeAlias = Callable[..., Rewrite]  # of one argument, whose annotation names the operation
Table: TypeAlias = Mapping[str, tuple[Rule, ...]]
OpT = TypeVar("OpT", bound=Op)


def rule_table(*parts: Rule | Mapping[str, Sequence[Rule]]) -> Table:
    """Rules by the name of the operation that they match, which is a mapping's key or stands in a rule's annotation; in this order."""
    table: dict[str, tuple[Rule, ...]] = {}
    for part in parts:
        for name, rules in (part if isinstance(part, Mapping) else {_matched(part): (part,)}).items():
            table[name] = (*table.get(name, ()), *rules)
    return table


def _matched(rule: Rule) -> str:
    (kind,) = (hint for name, hint in get_type_hints(rule).items() if name != "return")
    return str(kind.name)


def producer(value: SSAValue, kind: type[OpT]) -> OpT | None:
    """The operation of that kind that makes the value, or None."""
    owner = value.owner
    return owner if isinstance(owner, kind) else None


def splat(value: SSAValue) -> Literal:
    """The number that every element of the value is, or None."""
    source = producer(value, Full)
    return None if source is None else source["value"]


@dataclass(frozen=True)
class InFrontOf:
    """Puts operations in front of another one, with its place in the user's code."""

    op: Operation

    def add(self, new: Operation) -> SSAValue:
        """Insert an operation; its first result."""
        new.location = self.op.location
        assert self.op.parent is not None
        self.op.parent.insert_op_before(new, self.op)
        return new.results[0]


def is_dead(op: Operation) -> bool:
    """No effect, and nothing reads a result."""
    return (
        bool(op.results)
        and all(result.first_use is None for result in op.results)
        and isinstance(op, Op)
        and op.is_pure
        and not op.get("effect", False)
    )


def copy_with(op: Op, operands: Sequence[SSAValue]) -> Op:
    """The operation on other operands, in no block and no layout yet; a view has the dtype of what it shows."""
    types = [r.type for r in op.results]
    if type(op) in VIEWS and tensor(operands[0]).dtype != tensor(op.results[0]).dtype:
        types = [tensor(op.results[0]).with_(dtype=tensor(operands[0]).dtype)]
    attributes = {k: v for k, v in op.attributes.items() if k != "strides"}
    return type(op).create(operands=operands, result_types=types, attributes=attributes, location=op.location)


def erase_unread(value: SSAValue) -> None:
    """Erase what makes a value, as far as nothing reads it."""
    todo = [value]
    while todo:
        owner = todo.pop().owner
        if isinstance(owner, Operation) and owner.parent is not None and is_dead(owner):
            todo += owner.operands
            owner.parent.erase_op(owner)


def erase_dead(block: Block) -> None:
    """Erase what nobody reads, also in regions: all readers of a value stand behind it."""
    for op in reversed(list(block.ops)):
        if is_dead(op):
            block.erase_op(op)
            continue
        for region in op.regions:
            for inner in region.blocks:
                erase_dead(inner)


def apply_rules(module: ModuleOp, table: Table) -> int:
    """Apply the rules until none matches, also inside kernels; gives the number of rewrites.

    Operations that a rewrite leaves without readers are erased.

    Raises:
        ValueError: there is no operation of a name in the table.
        TypeError: a rule gives something else than a rewrite.
    """
    if lost := [name for name in table if name.partition(".")[0] in _CLOSED and not _is_known(name)]:
        raise ValueError(f"no operation is called '{lost[0]}'{suggest(lost[0], sorted(known_operations()))}")
    work = deque(op for op in module.walk() if op.name in table and isinstance(op, Op))
    waiting = set(work)
    count = 0
    while work:
        op = work.popleft()
        waiting.discard(op)
        if op.parent is None:
            continue
        for rule in table[op.name]:
            found = rule(op)
            if found is None:
                continue
            _check_rewrite(op, rule, found)
            count += 1
            for touched in _replace(op, found):
                if touched.name in table and touched not in waiting and touched.parent is not None:
                    waiting.add(touched)
                    work.append(touched)
            break
    return count


_CLOSED = frozenset(dialect.name for dialect in DIALECTS)  # `aten` is open


@cache
def known_operations() -> frozenset[str]:
    """The names of all operations of the closed dialects."""
    return frozenset(op.name for dialect in DIALECTS for op in dialect.operations)


def _is_known(name: str) -> bool:
    """Whether there is such an operation: ours, or one that somebody has added a row for since."""
    dialect, _, row = name.partition(".")
    return name in known_operations() or dialect in ("prim", "scalar") and row in SCALARS


def _check_rewrite(op: Op, rule: Rule, found: object) -> None:
    many = isinstance(found, Sequence) and not isinstance(found, str) and bool(found)
    if isinstance(found, SSAValue | Op) or (many and all(isinstance(each, Op) for each in found)):  # type: ignore[attr-defined]
        return
    code = getattr(rule, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    raise TypeError(
        f"the rule for {op.name}{where} gives {found!r:.60}: a rule gives a value, an operation, a list of operations, or None"
    )


def _replace(op: Op, found: SSAValue | Op | Sequence[Op]) -> list[Op]:
    """Put the rewrite in place; gives the operations whose rules may match now."""
    operands = list(op.operands)
    if isinstance(found, SSAValue):
        new_ops: list[Op] = []
        value = found
    else:
        new_ops = [found] if isinstance(found, Op) else list(found)
        value = new_ops[-1].results[0]
    for new in new_ops:
        if isinstance(new.location, UnknownLoc):
            new.location = op.location
    _keep_strides(op, value)
    block = op.parent
    assert block is not None
    if new_ops:
        block.insert_ops_before(new_ops, op)
    op.results[0].replace_all_uses_with(value)
    block.erase_op(op)
    touched = [*new_ops, *(use.operation for use in value.uses if isinstance(use.operation, Op))]
    for operand in operands:
        erase_unread(operand)
    return touched


def _keep_strides(op: Op, value: SSAValue) -> None:
    """The replaced value's layout goes to its new producer. A view's layout says nothing about a computed value."""
    strides: Attribute | None = op.attributes.get("strides")
    owner = value.owner
    if strides is None or not isinstance(owner, Op) or "strides" in owner.attributes or len(owner.results) != 1:
        return
    is_new = owner.parent is None
    if isinstance(owner, VIEWS) and not (is_new and isinstance(op, VIEWS)):
        return
    if isinstance(op, VIEWS) and not isinstance(owner, VIEWS):
        return
    owner.attributes["strides"] = strides


def replace(op: Operation, values: Sequence[SSAValue | None], made: Iterable[Operation] = ()) -> None:
    """Put `made` in front of the operation and `values` in the place of its results (None: nobody reads it); it goes.

    What was made without a place in the user's code gets that of the operation.
    """
    block, new_ops = op.parent, list(made)
    assert block is not None
    for new_op in new_ops:
        if isinstance(new_op.location, UnknownLoc):
            new_op.location = op.location
    block.insert_ops_before(new_ops, op)
    for old, new in zip(op.results, values, strict=True):
        if new is not None:
            new.name_hint = new.name_hint or old.name_hint
            old.replace_all_uses_with(new)
    block.erase_op(op)


def sort_block(block: Block) -> None:
    """Put each operation behind what it reads, where a pass left one in front of that; what has an effect keeps its order.

    Raises:
        ValueError: operations read one another.
    """
    needs: dict[Operation, list[Operation]] = {}
    last_effect: Operation | None = None
    for op in block.ops:
        made_by = (value.owner for inner in op.walk() for value in inner.operands)
        needs[op] = [o for o in made_by if isinstance(o, Operation) and o.parent is block and o is not op]
        if isinstance(op, Op) and op.get("effect", False):
            needs[op] += [last_effect] if last_effect is not None else []
            last_effect = op
    order: dict[Operation, None] = {}
    for op in needs:
        waiting = {op: iter(needs[op])}  # each reads what the next one makes
        while waiting:
            reader = next(reversed(waiting))
            maker = next((found for found in waiting[reader] if found not in order), None)
            if maker is None:
                del waiting[reader]
                order.setdefault(reader)
            elif maker in waiting:
                raise ValueError(f"{maker.name} and {reader.name} read one another")
            else:
                waiting[maker] = iter(needs[maker])
    if list(order) != list(needs):
        for op in order:
            op.detach()
        block.add_ops(order)


def is_static(value: SSAValue, func: Func) -> bool:
    """An argument of the function that is a parameter or buffer."""
    static = func.get("arg_static")
    return isinstance(value, BlockArgument) and bool(static and static[value.index])


def is_kept(value: SSAValue, func: Func) -> bool:
    """A parameter or buffer that this call does not overwrite: what is computed of it serves many calls."""
    if not isinstance(value, BlockArgument) or not is_static(value, func):
        return False
    return all(value.index != argument for argument, _ in func.get("mutations", ()))
