"""All that a pass, a policy or a target of somebody else's imports. What stands here stays; docs/extend.md says what each is for."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from ..ir.dialects import aten, buffer, kernel, loop, prim
from ..ir.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from ..ir.scalars import ScalarRow, add_row
from ..ir.symbols import dim, known_equal, symbol
from ..ir.syntax import Op, line_of
from ..ir.text import parse_module, print_module
from ..ir.types import RefType, TensorType, tensor_type
from ..partition.policy import Kind, PartitionPolicy, Value
from ..passes.analysis.machine import CPUS, Machine, Processor
from ..passes.analysis.size_names import replace_sizes
from ..passes.core.base import Pass, PassError
from ..passes.core.context import CompileContext, Diagnostics
from ..passes.core.manager import registered
from ..passes.core.rewriter import Rewrite, apply_rules, producer, replace, rule_table, sort_block, splat
from ..passes.core.run import run_pipeline
from ..passes.fusion.fuse import Fuse, bytes_read
from ..passes.fusion.graph import Access
from ..passes.fusion.groups import Group, Plan
from ..passes.graph.aten_rules.builder import Builder, NotCovered
from ..passes.graph.lowering import Lowering
from ..passes.memory.plan_buffers import Place, PlanBuffers
from ..passes.pipeline import default_pipeline
from ..passes.schedule.kernels import CpuLoopPass, innermost_loops
from ..targets.text.walk import Walk, dtype_of, memory_of
from .target import Target

__all__ = [
    "BF16",
    "BOOL",
    "CPUS",
    "F16",
    "F32",
    "F64",
    "I32",
    "I64",
    "Access",
    "Builder",
    "CompileContext",
    "CpuLoopPass",
    "DType",
    "Diagnostics",
    "Fuse",
    "Group",
    "Kind",
    "Lowering",
    "Machine",
    "ModuleOp",
    "NotCovered",
    "Op",
    "PartitionPolicy",
    "Pass",
    "PassError",
    "Place",
    "Plan",
    "PlanBuffers",
    "Processor",
    "RefType",
    "Rewrite",
    "ScalarRow",
    "Target",
    "TensorType",
    "Value",
    "Walk",
    "add_row",
    "apply_rules",
    "aten",
    "buffer",
    "bytes_read",
    "default_pipeline",
    "dim",
    "dtype_of",
    "innermost_loops",
    "kernel",
    "known_equal",
    "line_of",
    "loop",
    "memory_of",
    "parse_module",
    "prim",
    "print_module",
    "producer",
    "registered",
    "replace",
    "replace_sizes",
    "rule_table",
    "run_pipeline",
    "sort_block",
    "splat",
    "symbol",
    "tensor_type",
]
