"""A kernel with `members` as C++: one parallel loop over the blocks of all of them, so that threads share elements and not tensors."""

from __future__ import annotations

from itertools import accumulate

from ...ir.dialects import loop
from ...ir.symbols import dim, symbol
from ..text.walk import memory_of, parameter_names
from .writer import Writer


def write_members(w: Writer, kernel: loop.Kernel) -> None:
    """The body of the function: a table of the members, and a loop over blocks, each of which is one member's."""
    ops = list(kernel.block_body.ops)
    outer = next(op for op in ops if isinstance(op, loop.For))
    step = int(outer.get("step", 1)) if _is_blocked(outer) else 0
    sizes = [size for size in kernel.members if size is not None]
    ends = list(accumulate(-(-size // step) if step else 1 for size in sizes))
    arguments = [(a, w.names[a]) for a in kernel.block_body.args]
    shared, names = kernel.get("shared", 0), list(parameter_names(kernel))
    own = [(_pointer(kernel, k), name) for k, (_, name) in enumerate(arguments) if k >= shared]
    w.line(f"struct Member {{ {' '.join(f'{kind} {name};' for kind, name in own)} int64_t n, end; }};")
    with w.scope(f"const Member members[] = {{  // end: blocks of {step or 'any number of'} elements up to here", "};"):
        for member, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            given = [names[k] for k in kernel.places(member)[shared:]]
            w.line(f"{{{', '.join(given)}, {size}, {end}}},")
    if outer["kind"] == "parallel" and sum(sizes) >= outer.get("grain", 1) * max(1, step) and ends[-1] > 1:
        w.line("#pragma omp parallel for schedule(static)")
    w.in_parallel = True
    with w.scope(f"for (int64_t block = 0; block < {ends[-1]}; ++block) {{", "}"):
        w.line(f"const Member& member = im::member_of(members, {len(sizes)}, block);")
        for kind, name in own:
            w.line(f"{kind} const {name} = member.{name};")
        w.line("const int64_t n = member.n;")
        if not step:
            w.operations(ops)
            return
        w.operations([op for op in ops if op is not outer])
        w.line(f"const int64_t {outer['var']} = (block - member.end) * {step} + (n + {step - 1}) / {step} * {step};")
        w.operations(outer.block_body.ops)


def _is_blocked(op: loop.For) -> bool:
    """Whether a loop goes over all elements of a member in blocks."""
    whole = op.get("start", 0) == 0 and dim(op["stop"]) == symbol(loop.MEMBER)
    return whole and isinstance(op.get("step", 1), int) and op.get("step", 1) > 1


def _pointer(kernel: loop.Kernel, place: int) -> str:
    argument = kernel.block_body.args[place]
    return f"{'const ' if place < kernel['inputs'] else ''}{memory_of(argument).dtype.cpp}*"
