"""One captured graph on its road, kept at every stage, and what a run of a stage gives beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.dialects.builtin import ModuleOp

from ..config import Config
from ..frontend.functional.trace import functionalize
from ..frontend.gradients.nodes import has_gradients
from ..graph_compiler import GraphFunction, compile_graph, machine, pipeline_of
from ..ir.fx.importer import import_fx, user_line
from ..ir.interpreter.run import run_user
from ..ir.text import parse_module, print_module
from ..linear_losses import without_logits
from ..passes.core.base import Pass
from ..passes.core.context import CompileContext, Diagnostics
from ..passes.core.run import run_pipeline
from ..passes.pipeline import is_for_gpu
from ..targets.build.toolchain import find_toolchain
from ..testing import Verdict, copied, same


@dataclass(frozen=True)
class Stage:
    """The module as a pass left it; `item` is None for the module as it was imported."""

    item: Pass | None
    text: str


@dataclass
class Graph:
    """A captured graph with the inputs of its first call.

    Attributes:
        gm: the graph.
        values: copies of its inputs.
        half: "forward" or "backward" of a graph with gradients, else "".
        stages: the imported module, then that behind each pass that changed it.
        constants: tensors of the graph's own that the module takes last.
        failure: the pass that raised, and what.
    """

    gm: fx.GraphModule
    values: list[Any]
    config: Config
    passes: Sequence[Pass | type[Pass]]
    half: str = ""
    stages: list[Stage] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    failure: Exception | None = None
    ctx: CompileContext = field(init=False)

    def __post_init__(self) -> None:
        self.wanted, self.gold = _eager(self.gm, self.values), _golden(self.gm, self.values)

    @property
    def scope(self) -> str:
        """What kind of graph the passes are told that it is."""
        return self.half or "inference"

    def lower(self, example_inputs: Sequence[Any]) -> None:
        """Take the graph through the passes, and keep the text behind each."""
        functional = functionalize(self.gm, example_inputs)
        without_logits(functional.graph_module, self.config)
        imported = import_fx(functional)
        module, self.constants = imported.module, list(imported.constants)
        pipeline = pipeline_of(self.config, self.passes, gpu=is_for_gpu(module), scope=self.scope)
        self.ctx = CompileContext(machine(find_toolchain(), self.config), Diagnostics())
        self.stages = [Stage(None, print_module(module))]
        ahead = iter(pipeline)

        def keep(name: str, current: ModuleOp, seconds: float, phase: str) -> None:
            if phase == "after":
                item, text = next(ahead), print_module(current)
                if text != self.stages[-1].text:
                    self.stages.append(Stage(item, text))

        try:
            run_pipeline(self.ctx, module, pipeline, on_pass=keep)
        except Exception as error:
            self.failure = error

    def interpreted(self, text: str) -> Verdict:
        """Whether the interpreter gives of a stage what eager gives."""
        module = parse_module(text)
        return self.compared(lambda *values: run_user(module, [*values, *self.constants]))

    def compiled(self) -> Verdict:
        """Whether compiled code does."""
        settings = {"cache": False, "on_error": "raise"}
        config = Config.from_environment({**settings, "pipeline": self.config.pipeline})
        return self.compared(compile_graph(self.gm, self.values, config, tuple(self.passes), self.scope)[0])

    def compared(self, function: GraphFunction) -> Verdict:
        """Whether a function gives what eager gives, and writes what it writes."""
        try:
            found = _eager(function, self.values)
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0]
            return Verdict(False, f"it raises {type(error).__name__}: {said}")
        return same(self.wanted, found, self.gold, name="")

    @property
    def place(self) -> str:
        """The user's line that it begins with."""
        return place_of(self.gm)


def place_of(gm: fx.GraphModule) -> str:
    """The user's line that a graph begins with."""
    lines = (user_line(node.meta.get("stack_trace")) for node in gm.graph.nodes)
    found = next((line for line in lines if line is not None), None)
    return "" if found is None else f"{found.filename.data}:{found.line.data}"


def _eager(function: Callable[..., Any], values: Sequence[Any]) -> dict[str, Any]:
    """The results of a call with copies of the inputs, and what the inputs are afterwards."""
    given = copied(list(values))
    torch.manual_seed(0)
    with torch.set_grad_enabled(isinstance(function, fx.GraphModule) and has_gradients(function.graph)):
        results = pytree.tree_leaves(function(*given))
    return {"result": results, "input": given}


def _golden(gm: fx.GraphModule, values: Sequence[Any]) -> dict[str, Any] | None:
    """The same in float64; None where eager cannot."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _eager(copy.deepcopy(gm).double(), copied(list(values), True))
    except Exception:  # float64 is a help, never a condition
        return None
    finally:
        torch.set_default_dtype(default)
