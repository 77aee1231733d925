"""`intarsia.lower`: every stage between a function and its machine code, to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp

from .backend import machine, pipeline_of
from .compile import check_function, compile
from .config import Config
from .frontend.capture import Capture, capture
from .frontend.functional import functionalize
from .ir.import_fx import import_fx
from .ir.text import print_module
from .passes.base import LEVELS
from .passes.context import CompileContext, Diagnostics, Remark
from .passes.manager import run_pipeline
from .targets.build import find_toolchain
from .targets.cpp.program import Generated, generate
from .targets.library import Library


class _Received(Exception):
    """Ends a call when the graph's inputs are known."""


@dataclass
class Lowered:
    """A function on its way down, for the arguments it was lowered with.

    Attributes:
        fx: the captured graph, torch level.
        functional: the ATen graph.
        guards: the compiled guards, as text.
        stages: the IR's text after each pass, by the pass's name; "aten" is what was imported.
        remarks: what the passes did and refused, and why.
        constants: tensors of the function's own that the program takes after the graph's inputs.
    """

    fx: GraphModule
    functional: GraphModule
    guards: str
    stages: dict[str, str]
    remarks: list[Remark]
    constants: list[torch.Tensor]
    _levels: dict[str, str]
    _generated: Generated
    _compile: Callable[[], Any] = field(repr=False)
    _capture: Capture = field(repr=False)

    def ir(self, level: str = "buffer") -> str:
        """The IR's text at the end of a level: "aten", "prim", "kernel", "loop" or "buffer"; or after a pass, by its name.

        Raises:
            ValueError: no such level or pass.
        """
        found = self._levels.get(level) or self.stages.get(level)
        if found is None:
            raise ValueError(f"no level or pass {level!r}; known: {', '.join([*self._levels, *self.stages])}")
        return found

    def inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the graph receives for these arguments: its placeholders' values, in order.

        Raises:
            ValueError: the guards do not hold for these arguments.
        """
        received: list[list[Any]] = []

        def graph(*values: Any) -> Any:
            received.append(list(values))
            raise _Received

        miss = object()
        entry = self._capture.compile_entry(graph, miss)
        bound = self._capture.parameters.bind(args, kwargs)
        try:
            entry(*bound.values())
        except _Received:
            return received[0]
        raise ValueError(f"the guards do not hold for these arguments: {self._capture.guards.explain(bound)}")

    def source(self) -> str:
        """The generated C++."""
        return "\n".join(unit.text for unit in self._generated.units)

    def host(self) -> str:
        """The host program."""
        return self._generated.host.text

    def compile(self) -> Any:
        """The compiled function: takes what the original takes."""
        return self._compile()


def lower(fn: Any, *args: Any, **kwargs: Any) -> Lowered:
    """Take a function or module through every stage for these arguments, without calling the C++ compiler.

    Raises:
        TypeError: `fn` is nothing that can be compiled, as for `compile`.
        Unsupported: the function cannot be captured in one graph; names the user's line.
        ImportFailure: the graph has no form in the IR.
        CompilerNotFound: no C++ compiler: the machine that code is made for is not known.
    """
    check_function(fn, "lower")
    config = Config.from_environment()
    with torch.no_grad():
        captured = capture(fn, args, kwargs)
        functional = functionalize(captured.graph_module, captured.example_inputs)
    imported = import_fx(functional)
    module = imported.module
    stages, levels = {"aten": print_module(module)}, {"aten": print_module(module)}
    pipeline = pipeline_of(config)
    by_name = {item.name: item for item in pipeline}

    def keep(name: str, current: ModuleOp, seconds: float, phase: str) -> None:
        if phase == "after":
            stages[name] = print_module(current)
            levels[by_name[name].gives or by_name[name].level] = stages[name]

    ctx = CompileContext(machine(find_toolchain(), config), Diagnostics(want_remarks=True))
    run_pipeline(ctx, module, pipeline, on_pass=keep)
    generated = generate(module, Library(config.packing))
    ordered = {level: levels[level] for level in LEVELS if level in levels}
    return Lowered(
        fx=captured.graph_module,
        functional=functional.graph_module,
        guards=captured.guards.code,
        stages=stages,
        remarks=ctx.diagnostics.remarks,
        constants=imported.constants,
        _levels=ordered,
        _generated=generated,
        _compile=lambda: compile(fn),
        _capture=captured,
    )
