"""Attention that is trained, on a CPU: the operator that keeps the logs of its rows' sums for backward, and its gradients, by kernels of our own."""

from __future__ import annotations

from ...ir.dialects import kernel
from ...ir.dtypes import F32
from ...ir.symbols import known_equal
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.machine import Machine
from ..core.clauses import Call, Clauses, broken

OWN = "trained_attention"
FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
ROWS = ("query", "key", "value")
READ = {FORWARD: ROWS, BACKWARD: ("grad_out", *ROWS, "out", "logsumexp")}  # the operands of each
FEW_QUERIES = 16  # two heads of 7 queries and 300 keys take 1.2 times torch's time


def takes_trained(op: Op, machine: Machine) -> Clauses:
    """What `attention` and `attention_gradients` of targets/cpp/include/intarsia_attention.h take of these operators."""
    call = Call.of(op)
    yield op["target"] in READ, "attention that keeps the logs of its sums, or its gradients"
    yield call.names == READ[op["target"]], "no mask"
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    results = [name for name in call.tensors if name.startswith("result")]
    whole = tuple(range(2 if op["target"] == FORWARD else 3))
    yield len(results) == len(whole) and tuple(op.get("returned", whole)) == whole, "all results wanted"
    yield call.are(F32, names=(*call.names, *results)), "float32"
    yield call.on_cpu and not call.empty, "memory of the host, nothing empty"
    q, k, v = (call.shape(name) for name in ROWS)
    yield len(q) == len(k) == len(v) == 4, "four dimensions"
    yield (
        all(known_equal(q[i], k[i]) and known_equal(q[i], v[i]) for i in (0, 1)),
        "as many heads of all, equal batches",
    )
    yield known_equal(q[3], k[3]) and known_equal(q[3], v[3]), "heads of one size"
    rows = [m for name, m in call.tensors.items() if isinstance(m, RefType) and len(m.shape) == 4]
    yield all(m.shape[-1] == 1 or m.strides[-1] == 1 for m in rows), "rows without gaps"


def has_trained(op: kernel.Extern, machine: Machine) -> bool:
    """Where it was measured, and is faster.

    One core of a Zen 5, ms of torch's and of ours, forward and backward: 6 heads of 197 tokens 0.75 + 1.66, 0.34 + 0.80, in code for AVX2
    0.59 + 1.43; 16 of 64, causal, 0.24 + 0.48, 0.12 + 0.26; 16 of 512, causal, 12.8 + 30.7, 3.3 + 9.2.
    """
    if op["target"] not in READ or machine.cpu.vector_bytes < 32 or broken(takes_trained(op, machine)):
        return False
    queries = Call.of(op).shape("query")[2]
    return not isinstance(queries, int) or queries >= FEW_QUERIES
