"""Triton text of reductions and scans: accumulators in front of a loop, joins in it, and what they come to behind it."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import I32, I64, DType
from ...ir.scalars import JOINT, REDUCES, identity
from ...ir.symbols import power_of_two
from ...ir.syntax import Op
from ..text.walk import dtype_of
from .text import as_tensor, constant_text, full, scalar_text, triton_type
from .writer import Writer, accumulates, is_one_block, longest, whole_blocks


def start_join(w: Writer, op: loop.For, memory: SSAValue) -> None:
    """What a loop's scratch holds before it."""
    join = accumulates(op, memory)
    dtype = sum_dtype(join)
    shape = w.row_shape([op] if op["kind"] == "reduce" else [])
    first = constant_text(identity(join["kind"], dtype), dtype)
    if join["kind"] in JOINT:
        shape = str(w.fold(op)[0])
        for place, value in zip(join.operands[1:], JOINT[join["kind"]], strict=True):
            alone = join["kind"] == "moments" and place is join.operands[1] and whole_blocks(op) is not None
            w.names[place] = w.fresh("acc")
            w.line(f"{w.names[place]} = {full('[]' if alone else shape, constant_text(value, dtype), dtype)}")
        return
    name = w.fresh("acc")
    w.names[join.operands[-2] if len(join.operands) == 4 else memory] = name
    w.line(f"{name} = {full(shape, first, dtype)}")
    if len(join.operands) == 4:
        positions = w.fresh("acc")
        w.names[memory] = positions
        w.line(f"{positions} = {full(shape, '0', None) if w.wide else f'tl.full({shape}, 0, tl.int32)'}")


def finish_join(w: Writer, op: loop.For, memory: SSAValue) -> None:
    """Join what the scratch holds along the axis of the loop."""
    if op not in w.axes or op["kind"] == "scan":
        return
    join = accumulates(op, memory)
    axis, kind = w.axes[op], join["kind"]
    if kind in JOINT and is_one_block(op):
        return  # joined at once
    if kind in JOINT:
        made = [w.fresh("t") for _ in join.operands[1:]]
        names = [w.names[m] for m in join.operands[1:]]
        if kind == "moments" and whole_blocks(op) is not None:
            names[0] += f" + tl.zeros_like({names[1]})"  # one count was that of all places
        parts = ", ".join(names)
        w.line(f"{', '.join(made)} = tl.reduce(({parts}), {axis}, {kind}_join, keep_dims=True)")
        w.line(f"{', '.join(made)} = {kind}_end({', '.join(made)})")
        w.names.update(zip(join.operands[1:], made, strict=True))
        return
    if len(join.operands) == 4:
        values, name = join.operands[-2], w.fresh("best")
        w.line(f"{name}, {name}_at = {kind}_end({w.names[values]}, {w.names[memory]}, {axis})")
        w.names[values], w.names[memory] = name, f"{name}_at"
        return
    text = w.names[memory]
    combine = REDUCES[kind].combine
    if dtype_of(join.operands[0]).kind == "bool":
        text = f"{text}.to(tl.int8)"
    reduced = f"tl.reduce({text}, {axis}, {combine}_, keep_dims=True)"
    if dtype_of(join.operands[0]).kind == "bool":
        reduced += " != 0"
    if sum_dtype(join) != dtype_of(join.operands[0]):
        reduced += f".to(tl.{triton_type(dtype_of(join.operands[0]))})"
    w.names[memory] = w.hold("t", reduced)


def sum_dtype(join: Operation) -> DType:
    """The dtype in which a reduction accumulates: sums of small integers in 32 bits where these hold the largest one, a third of the work."""
    value, around = join.operands[0], join.parent_op()
    dtype, owner = dtype_of(value), value.owner
    if (
        not isinstance(join, loop.Accumulate)
        or join["kind"] != "sum"
        or dtype != I64
        or not isinstance(owner, loop.ScalarCast)
    ):
        return dtype
    source = dtype_of(owner.operands[0])
    count = longest(around) if isinstance(around, loop.For) and around["kind"] == "reduce" else None
    fits = isinstance(count, int) and source.bytes <= 2 and count << 8 * source.bytes <= 1 << 31
    return I32 if fits and len(list(value.uses)) == 1 and not source.is_float else dtype


def fills(op: Op, dtype: DType) -> list[object]:
    """What a masked load may give outside, the best first: what changes nothing where a reduction joins it, so that nothing is selected."""
    found: list[object] = [False if dtype.kind == "bool" else 0]
    if not dtype.is_float:
        return found
    values = [
        op.results[0],
        *(u.operation.results[0] for u in op.results[0].uses if isinstance(u.operation, loop.ScalarCast)),
    ]
    found += [float("-inf"), float("inf")]
    for use in [use.operation for each in values for use in each.uses]:
        if isinstance(use, loop.Accumulate) and use["kind"] in _EXTREMES:
            found.sort(key=lambda o: o != float("inf" if use["kind"] in ("min", "argmin") else "-inf"))
    return found


_EXTREMES = ("max", "min", "max_expsum", "argmax", "argmin")


def _neutral(w: Writer, value: SSAValue, kind: str, var: str) -> bool:
    """Whether a value changes nothing outside the loop over `var` where it is joined by `kind`: it is a load's `other` there."""
    owner = value.owner
    if var not in w.spans.get(value, frozenset()):
        return False
    if isinstance(owner, loop.Load):
        if owner.get("mask", ()) or value not in w.fills:
            return False
        low = dtype_of(value).is_float and w.fills[value] == float("-inf")
        high = dtype_of(value).is_float and w.fills[value] == float("inf")
        return {"max": low, "argmax": low, "min": high, "argmin": high, "sum": w.fills[value] == 0}.get(kind, False)
    if isinstance(owner, loop.ScalarCast):
        return _neutral(w, owner.operands[0], kind, var) and (kind == "sum" or dtype_of(value).is_float)
    if kind == "sum" and isinstance(owner, loop.ScalarOp):
        keeps_zero = owner.row.name in ("add", "sub", "mul", "neg", "abs", "sqrt")
        return keeps_zero and all(_neutral(w, v, kind, var) for v in owner.operands)
    return False


def accumulate(w: Writer, op: Op) -> None:
    kind, memory = op["kind"], op.operands[-1]
    if not w.open or w.open[-1].op["kind"] == "parallel":  # a loop of one iteration is none: nothing came before
        for place, source in zip(
            op.operands[len(op.operands) // 2 :], op.operands[: len(op.operands) // 2], strict=True
        ):
            w.names[place] = as_tensor(source, w.names[source])
            w.spans[place] = w.spans.get(source, frozenset())
        return
    around = w.open[-1].op
    value, dtype = w.names[op.operands[0]], sum_dtype(op)
    spans = frozenset(each.op["var"].name for each in w.open)
    blocked = around in w.axes
    if w.rank:
        value = w.hold("t", w.spread(as_tensor(op.operands[0], value), w.spans.get(op.operands[0], frozenset())))
    if kind in JOINT:
        _accumulate_joint(w, op, around, value)
        return
    first = constant_text(identity(kind, dtype), dtype)
    mask = w.masks(spans & {around["var"].name})
    if mask and not _neutral(w, op.operands[0], kind, around["var"].name):
        value = w.hold("t", f"tl.where({' & '.join(mask)}, {value}, {first})")
    whole = blocked and is_one_block(around)
    if around["kind"] == "scan":
        _scan(w, op, around, value, whole)
        return
    if len(op.operands) == 4:
        position = w.names[op.operands[1]]
        if w.rank:
            number = "" if w.wide else ".to(tl.int32)"
            position = w.hold("t", f"tl.broadcast_to({position}, {w.row_shape([around])}){number}")
        if whole:
            w.names[op.operands[2]], w.names[memory] = value, position
            return
        pair = f"{w.names[op.operands[2]]}, {w.names[memory]}"
        w.line(f"{pair} = {kind}_next({pair}, {value}, {position})")
        return
    if whole:
        w.names[memory] = value
        return
    combine = REDUCES[kind].combine
    assert combine is not None
    w.line(f"{w.names[memory]} = {scalar_text(combine, [w.names[memory], value])}")


def _accumulate_joint(w: Writer, op: Op, around: loop.For, value: str) -> None:
    """Join what a thread has of a block, a few neighbours, among themselves first: its accumulators are few then."""
    if around not in w.axes:
        raise TypeError(f"no Triton text for {op['kind']} in a loop that is no walk over blocks")
    mask, kind = w.masks({around["var"].name}), op["kind"]
    first = constant_text(JOINT[kind][0], dtype_of(op.operands[0]))
    if mask and kind == "max_expsum" and not _neutral(w, op.operands[0], "max", around["var"].name):
        value = w.hold("t", f"tl.where({' & '.join(mask)}, {value}, {first})")
    if is_one_block(around):
        names = [w.fresh("t") for _ in op.operands[1:]]
        inside = f"tl.broadcast_to({' & '.join(mask)}, {w.row_shape([around])})" if mask else "True"
        given = value if kind == "max_expsum" else f"{value}, {inside}"
        w.line(f"{', '.join(names)} = {kind}_whole({given}, {w.axes[around]})")
        w.names.update(zip(op.operands[1:], names, strict=True))
        return
    value = w.hold("t", w.folded(around, value))
    parts = ", ".join(w.names[m] for m in op.operands[1:])
    if mask and kind == "moments":
        text = f"tl.broadcast_to({' & '.join(mask)}, {w.row_shape([around])})"
        inside = w.hold("m", w.folded(around, text))
        w.line(f"{parts} = {kind}_add_inside({parts}, {value}, {inside})")
    else:
        w.line(f"{parts} = {kind}_add({parts}, {value})")


def exchange(w: Writer, op: Op) -> None:
    """What the programs of a row have accumulated: each stores its own, waits for the others, and joins all in the same order."""
    half, count = len(op.operands) // 2, op["count"]
    own, given, counter = op.operands[:half], op.operands[half:-1], op.operands[-1]
    shape, axis, own_places = w.row_shape(), w.rank - 1, "program"
    width = power_of_two(count)
    numbers = w.hold("r", f"tl.arange(0, {width}){w.shape(axis)}")
    all_places = w.hold("r", f"program // {count} * {count} + {numbers}")
    for each in w.axes:
        if each["kind"] == "parallel" and each["block"] > 1:  # the programs of a block of rows
            lane = w.hold("r", f"tl.arange(0, {each['block']}){w.shape(w.axes[each])}")
            own_places, all_places = (f"({p} * {each['block']} + {lane})" for p in (own_places, all_places))
    for value, memory in zip(own, given, strict=True):
        w.line(f"tl.store(tl.broadcast_to({w.names[memory]} + {own_places}, {shape}), {w.names[value]})")
    w.line(f"meet({w.names[counter]} + program // {count}, {count})")
    assert op.parent is not None
    joins = [each for each in op.parent.walk() if isinstance(each, loop.Accumulate) and each.operands[-1] in own]
    memories = dict(zip(own, given, strict=True))
    for join in joins:
        kind, targets, dtype = join["kind"], join.operands[1:], dtype_of(join.operands[0])
        loads = []
        for target, start in zip(targets, JOINT.get(kind) or (identity(kind, dtype),), strict=True):
            other = constant_text(start, dtype, exact=False)
            masked = "" if width == count else f", mask={numbers} < {count}, other={other}"
            loads.append(w.hold("t", f"tl.load({w.names[memories[target]]} + {all_places}{masked}, volatile=True)"))
        names = [w.fresh("t") for _ in targets]
        if kind in JOINT:
            w.line(f"{', '.join(names)} = {kind}_all({', '.join(loads)}, {axis})")
        else:
            w.line(f"{names[0]} = tl.reduce({loads[0]}, {axis}, {REDUCES[kind].combine}_, keep_dims=True)")
        w.names.update(zip(targets, names, strict=True))


def _scan(w: Writer, op: Op, around: loop.For, value: str, whole: bool) -> None:
    """Join a block to what came before along the loop; the scratch then has the value at each element."""
    kind, memory = op["kind"], op.operands[-1]
    combine = REDUCES[kind].combine
    assert combine is not None
    spans = frozenset(each.op["var"].name for each in w.open)
    w.spans[memory] = spans
    if around not in w.axes:
        w.line(f"{w.names[memory]} = {scalar_text(combine, [w.names[memory], value])}")
        return
    axis = w.axes[around]
    as_int = dtype_of(op.operands[0]).kind == "bool"
    text = f"{value}.to(tl.int8)" if as_int else value
    here = w.hold("t", f"tl.associative_scan({text}, {axis}, {combine}_){' != 0' if as_int else ''}")
    if whole:
        w.names[memory] = here
        return
    carry = w.names[memory]
    joined = w.hold("t", scalar_text(combine, [carry, here]))
    total = f"tl.reduce({text}, {axis}, {combine}_, keep_dims=True){' != 0' if as_int else ''}"
    w.line(f"{carry} = {scalar_text(combine, [carry, total])}")
    w.names[memory] = joined
    w.scanned[memory] = carry
