"""What every kernel of our own takes, by the name that a call's attribute `own` gives it; asked again after every pass."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import buffer, kernel
from ...ir.syntax import Op
from ..analysis.machine import Machine
from ..kernels.attention import CPP, takes_cpp
from ..kernels.convolution import takes_convolution, takes_max_pool, takes_planes, takes_points
from ..kernels.depthwise_kernels import OWN as DEPTHWISE
from ..kernels.depthwise_kernels import takes_depthwise_on_gpu
from ..kernels.microkernel import takes_registers, takes_rows
from ..kernels.own_kernels import takes_index_add
from ..kernels.short_attention import LOOPS, takes_loops
from ..kernels.trained_attention import OWN as TRAINED
from ..kernels.trained_attention import takes_trained
from .clauses import Clauses, broken
from .levels import host_operations

PRECONDITIONS: dict[str, Callable[[Op, Machine], Clauses]] = {
    "convolution": takes_convolution,
    "max_pool": takes_max_pool,
    "planes": takes_planes,
    "points": takes_points,
    "rows": takes_rows,
    CPP: takes_cpp,
    "index_add": takes_index_add,
    DEPTHWISE: takes_depthwise_on_gpu,
    LOOPS: takes_loops,
    TRAINED: takes_trained,
}


def check(module: ModuleOp, target: Machine) -> None:
    """Every call that a kernel of our own is to carry out is one that it takes.

    Raises:
        ValueError: one is not; says which, and which clause of its precondition does not hold.
    """
    for op in host_operations(module):
        if isinstance(op, kernel.Contract | buffer.Contract) and op.get("choice", "").startswith("registers"):
            name, clause = "linear", broken(takes_registers(op, target))
        elif isinstance(op, Op) and (precondition := PRECONDITIONS.get(op.get("own"))) is not None:
            name, clause = op["own"], broken(precondition(op, target))
        else:
            continue
        if clause is not None:
            raise ValueError(f"the kernel '{name}' takes only {clause}, which {op} is not")
