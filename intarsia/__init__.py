"""Intarsia: an optimizing compiler for PyTorch programs.

import intarsia

@intarsia.compile
def f(x, y): ...
"""

from __future__ import annotations

import sys as _sys

from .frontend import versions as _versions

try:
    from .backends import BackendError, list_backends, register_backend
    from .compile import compile, compile_in_place, reset
    from .config import Config, warn_of_unknown_variables
    from .control import (
        allow_in_graph,
        assume_constant_result,
        cudagraph_mark_step_begin,
        disable,
        graph_break,
        is_compiling,
        is_exporting,
        load_cache_artifacts,
        save_cache_artifacts,
        set_stance,
        substitute_in_graph,
    )
    from .counters import counters
    from .exchange.from_stablehlo import from_stablehlo
    from .exchange.models.from_onnx import from_onnx
    from .explaining.explanation import Explanation, explain
    from .explaining.stages import Lowered, lower
    from .explaining.topics import set_logs, set_logs_from_environment
    from .exporting.graph import Exported, ExportError, export
    from .faults.leave_out import Culprit, bisect
    from .faults.minify import minify
    from .faults.verify import Verification, verify
    from .frontend.errors import GraphBreak, Unsupported
    from .frontend.graph.dynamic import ConstraintError, mark_dynamic, mark_static, maybe_mark_dynamic
    from .graph_compiler import default_backend
    from .integrations import accelerate as _accelerate
    from .reports.program import trace_from_environment
    from .reports.report import ReportPage, report
except Exception as _error:
    _torch_version = str(getattr(_sys.modules.get("torch"), "__version__", ""))
    # `python -m intarsia doctor` imports the package before it runs: what does not load is said there, not shown as a traceback
    if _sys.argv[:1] == ["-m"] and "intarsia" in _sys.orig_argv:
        _tried = f" (torch {_torch_version}; tried with {_versions.tried()})" if _torch_version else ""
        _sys.exit(f"Intarsia cannot be loaded, because of what it needs: {type(_error).__name__}: {_error}{_tried}")
    if not _versions.is_untried(_torch_version):
        raise
    _versions.warn_if_untried(_torch_version, _error)
    from . import eager_only as _eager_only

    globals().update({name: getattr(_eager_only, name) for name in _eager_only.__all__})
else:
    warn_of_unknown_variables()
    _accelerate.install()
    set_logs_from_environment()
    trace_from_environment()
    _versions.warn_if_untried(_sys.modules["torch"].__version__)

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Config",
    "ConstraintError",
    "Culprit",
    "Explanation",
    "ExportError",
    "Exported",
    "GraphBreak",
    "Lowered",
    "ReportPage",
    "Unsupported",
    "Verification",
    "allow_in_graph",
    "assume_constant_result",
    "bisect",
    "compile",
    "compile_in_place",
    "counters",
    "cudagraph_mark_step_begin",
    "default_backend",
    "disable",
    "explain",
    "export",
    "from_onnx",
    "from_stablehlo",
    "graph_break",
    "is_compiling",
    "is_exporting",
    "list_backends",
    "load_cache_artifacts",
    "lower",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "minify",
    "register_backend",
    "report",
    "reset",
    "save_cache_artifacts",
    "set_logs",
    "set_stance",
    "substitute_in_graph",
    "verify",
]
