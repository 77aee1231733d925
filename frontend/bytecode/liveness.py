"""Which local variables of a frame may still be read from an instruction on: what a suspended frame has to keep."""

from __future__ import annotations

import types

from .instruction import Program, disassemble, per_code

__all__ = ["live_names"]

# Functions that look at the frame which calls them; all variables are live then.
_FRAME_READERS = frozenset(
    "locals vars dir eval exec breakpoint _getframe currentframe set_trace post_mortem stack".split()  # noqa: SIM905
)
_READS = frozenset({"LOAD_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF"})
_ENDS = frozenset({"RETURN_VALUE", "RERAISE", "RAISE_VARARGS", "JUMP"})
_JUMPS = ("JUMP", "POP_JUMP", "FOR_ITER", "SEND", "END_ASYNC_FOR")


def live_names(code: types.CodeType, index: int) -> frozenset[str]:
    """Names of locals and closure cells that may be read from normal-form instruction `index` on.

    A cell counts as read where it is stored to as well: other functions may share it.
    """
    table = _table(code)
    return table[index] if index < len(table) else frozenset()


@per_code
def _table(code: types.CodeType) -> tuple[frozenset[str], ...]:
    program = disassemble(code)
    count = len(program.instructions)
    if _FRAME_READERS.intersection(code.co_names) - ({"stack"} if _stacks_tensors_only(program) else set()):
        return (frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars)),) * count
    boxed = {*code.co_cellvars, *code.co_freevars}
    following = [_successors(program, i) for i in range(count)]
    # super() finds the class and the first argument itself, in the frame that calls it.
    found = frozenset(("__class__", *code.co_varnames[:1])) if "super" in code.co_names else frozenset()
    live: list[frozenset[str]] = [frozenset()] * count
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            ins = program.instructions[i]
            after = frozenset().union(*(live[s] for s in following[i] if s < count))
            if ins.op == "STORE_FAST" and ins.arg not in boxed:
                after -= {ins.arg}
            if ins.op in _READS:
                after |= {ins.arg}
            after |= found
            if after != live[i]:
                live[i], changed = after, True
    return tuple(live)


def _stacks_tensors_only(program: Program) -> bool:
    """Whether every `stack` is that of a global variable `torch`, and not inspect's."""
    before = [None, *program.instructions]
    found = [(a, b) for a, b in zip(before, program.instructions, strict=False) if b.arg == "stack"]
    return all(a is not None and a.op == "LOAD_GLOBAL" and a.arg == "torch" for a, b in found)


def _successors(program: Program, index: int) -> list[int]:
    ins = program.instructions[index]
    out = [] if ins.op in _ENDS else [index + 1]
    if ins.op.startswith(_JUMPS) and isinstance(ins.arg, int):
        out.append(ins.arg)
    entry = program.handler(index)
    if entry is not None:
        out.append(entry.target)
    return out
