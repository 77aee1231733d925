"""`intarsia.lower`: every stage between a function and its machine code, to look at; for this processor, or for a GPU that need not be there."""

from __future__ import annotations

import difflib
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp

from ..compile import callable_of, check_function, compile
from ..config import Config, suggestion
from ..extend.configured import pipeline_of
from ..extend.target import Target, installed_targets, is_target, text_of
from ..extend.target import made as made_target
from ..frontend.entry.capture import Capture, ProgramRaised, capture
from ..frontend.functional.spec import FunctionalGraph
from ..frontend.functional.trace import functionalize
from ..graph_compiler import machine, open_cache
from ..ir.fx.importer import import_fx
from ..ir.interpreter.loops import main_function
from ..ir.interpreter.run import run_user
from ..ir.retarget import retarget
from ..ir.syntax import Op
from ..ir.text import parse_module, print_module
from ..linear_losses import without_logits
from ..passes.analysis.cost import HINT
from ..passes.core.base import LEVELS
from ..passes.core.context import CompileContext, Diagnostics, Remark
from ..passes.core.load import is_given, passes_given
from ..passes.core.run import run_pipeline
from ..passes.pipeline import is_for_gpu
from ..targets.build.program import Generated, generate
from ..targets.build.toolchain import find_toolchain
from ..targets.host.library import Library
from ..targets.measure.limits import Limits
from ..targets.triton.compile import Binary
from ..targets.triton.device import capability, triton_version
from ..targets.triton.program import compile_kernels
from .cost import Cost, Work, cost_of, works
from .plan import MemoryPlan, memory_plan
from .staged_text import StagedKernel, difference, kernels_of, page, summary

GPUS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950")
TARGETS = ("cpp", "triton", *(f"triton:{gpu}" for gpu in GPUS))


class _Received(Exception):
    """Ends a call when the graph's inputs are known."""


@dataclass(repr=False)
class Lowered:
    """A function on its way down, for the arguments it was lowered with. `print` shows a summary, a notebook the stages to unfold.

    Attributes:
        target: what code is made for: "cpp", a GPU as in "triton:sm_90", or the name of a target of your own.
        fx: the captured graph, torch level.
        functional: the ATen graph.
        guards: the compiled guards, as text.
        stages: the IR's text after each pass, by the pass's name; "aten" is what was imported.
        remarks: what the passes did and refused, and why.
        counts: what the passes counted, by pass: kernels and the bytes that they move, of "fuse".
        constants: tensors of the function's own that the program takes after the graph's inputs.
    """

    fx: GraphModule
    functional: GraphModule
    guards: str
    stages: dict[str, str]
    remarks: list[Remark]
    counts: dict[str, dict[str, int]]
    constants: list[torch.Tensor]
    target: str
    _levels: dict[str, str]
    _generated: Generated
    _compile: Callable[[], Any]
    _capture: Capture
    _tree: pytree.TreeSpec
    _grad: bool  # whether gradients were on when it was captured
    _theirs: Target | None = None
    _written: str | None = None  # by a target of somebody else's

    def __repr__(self) -> str:
        return summary(self)

    def _repr_html_(self) -> str:
        return page(self)

    @property
    def levels(self) -> list[str]:
        """The levels that it has come through."""
        return list(self._levels)

    def ir(self, level: str = "buffer") -> str:
        """The IR's text at the end of a level: "aten", "prim", "kernel", "loop" or "buffer"; or after a pass, by its name.

        Raises:
            ValueError: no such level or pass.
        """
        found = self._levels.get(level) or self.stages.get(level)
        if found is None:
            known = list(dict.fromkeys([*self._levels, *self.stages]))
            raise ValueError(f"no level or pass {level!r}{suggestion(level, known)}; known: {', '.join(known)}")
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

        try:
            self._call(graph, args, kwargs)
        except _Received:
            return received[0]
        raise AssertionError("the entry of a captured function did not call its graph")

    def run(self, level: str, *args: Any, **kwargs: Any) -> Any:
        """What the function gives when the reference interpreter runs the module of a level, or behind a pass, instead of compiled code.

        Raises:
            ValueError: no such level or pass, or the guards do not hold for these arguments.
            InterpreterError: the module is wrong.
        """
        module = parse_module(self.ir(level))

        def graph(*values: Any) -> Any:
            return pytree.tree_unflatten(run_user(module, [*values, *self.constants]), self._tree)

        return self._call(graph, args, kwargs)

    def _call(self, graph: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the captured function with another graph in the place of its own.

        Raises:
            ValueError: the guards do not hold for these arguments.
        """
        miss = object()
        with torch.set_grad_enabled(self._grad):
            bound = self._capture.parameters.bind(args, kwargs)
            found = self._capture.compile_entry(graph, miss)(*bound.values())
            if found is miss:
                raise ValueError(f"the guards do not hold for these arguments: {self._capture.guards.explain(bound)}")
        return found

    def sizes(self, **sizes: int) -> dict[str, int]:
        """The symbols of sizes that may change: as in the arguments that it was lowered with, or as given here.

        Of a size that values decide (`x[x > 0]`) nothing is known: it counts as costs and orders guess it, unless it is given.
        """
        func = main_function(self._module)
        known = {str(row[0]): HINT for op in func.walk() if isinstance(op, Op) for row in op.get("binds", ())}
        known |= {str(name): int(value) for name, value in func.get("size_hints", ())}
        if unknown := [name for name in sizes if name not in known]:
            raise ValueError(_unknown("size", unknown[0], list(known)))
        return known | sizes

    @property
    def _module(self) -> ModuleOp:
        return parse_module(self.ir("buffer"))

    def works(self, **sizes: int) -> list[Work]:
        """The steps of the program, in order, with the bytes and operations of each."""
        return list(works(self._module, self.sizes(**sizes)))

    @property
    def kernels(self) -> tuple[StagedKernel, ...]:
        """The generated kernels, with their texts and what a launch of each has to do."""
        return kernels_of(self.ir("buffer"), self._generated, self.works())

    @property
    def memory_plan(self) -> MemoryPlan:
        """Which value lies where, from which step to which."""
        return memory_plan(self._module, self.sizes())

    def cost_analysis(self, limits: Mapping[str, float] | None = None, **sizes: int) -> Cost:
        """Bytes, operations, memory in use at once, and the least time at the limits of the machine.

        Args:
            limits: bytes a second of large copies ("copy") and operations a second of products of matrices by type ("float32" ...). Left
                out: those of this processor, measured once (about a second); of a GPU none, and the time is not known.
            sizes: what symbols of sizes are; left out, as in the call that it was lowered with.
        """
        if limits is None and self.target == "cpp":
            config = Config.from_environment()
            known: Limits | Mapping[str, float] | None = Limits(
                "cpu", open_cache(config).root if config.cache else None
            )
        else:
            known = limits
        found = self.sizes(**sizes)
        return cost_of(self._module, found, memory_plan(self._module, found).peak, known)

    def diff(self, other: Lowered, stage: str | None = None) -> str:
        """Where this and another lowered function part, as a unified difference: of the first stage at which they do, or of the one named: a
        pass, or a level, which is what stands at its end.

        Raises:
            ValueError: one of them has no such stage.
        """
        if stage in self.levels and stage in other.levels:
            return difference({stage: self.ir(stage)}, {stage: other.ir(stage)}, stage)
        return difference(self._texts, other._texts, stage)

    @property
    def _texts(self) -> dict[str, str]:
        return self.stages | {"triton": self.triton(), "cpp": self.source(), "host": self.host()}

    def source(self) -> str:
        """The generated C++; for a GPU the launches of its kernels; of a target of somebody else's what that has written."""
        if self._written is not None:
            return self._written
        return "\n".join(unit.text for unit in self._generated.units)

    def triton(self) -> str:
        """The Triton module of the kernels on a GPU; "" where there are none."""
        return "" if self._generated.gpu is None else self._generated.gpu.text

    def host(self) -> str:
        """The host program."""
        return self._generated.host.text

    def as_text(self, stage: str) -> str:
        """A stage as text: "fx", "functional" or "guards"; a level or pass as for `ir`; "triton", "cpp" or "host".

        Raises:
            ValueError: no such stage, with a suggestion.
        """
        made: dict[str, Callable[[], str]] = {
            "fx": lambda: str(self.fx.print_readable(print_output=False)),
            "functional": lambda: str(self.functional.print_readable(print_output=False)),
            "guards": lambda: self.guards,
            "triton": self.triton,
            "cpp": self.source,
            "host": self.host,
        }
        if self._theirs is not None:
            made[self._theirs.name] = self.source
        if stage in made:
            return made[stage]()
        known = [*made, *self._levels, *self.stages]
        if stage in known:
            return self.ir(stage)
        raise ValueError(_unknown("stage", stage, known))

    def compile(self) -> Any:
        """The compiled function: takes what the original takes. For a GPU it has the `binaries` of the kernels, see `ForGPU`.

        Raises:
            NoTriton: for a GPU, and no Triton that can be used.
            TritonError: Triton does not compile a kernel; names it and the user's line.
            TypeError: a target of somebody else's writes text only.
        """
        if self._theirs is not None:
            return self._theirs.compile(self)
        return self._compile()


@dataclass
class ForGPU:
    """A function compiled for a GPU that need not be there; where it is, a call takes what the original takes, on that GPU.

    Attributes:
        target: the GPU, as "sm_90".
        binaries: the compiled kernels by name: their code (a cubin, or AMD's hsaco), shared memory in bytes, and warps.
        report: bytes of code by kernel, as a text.
    """

    target: str
    binaries: Mapping[str, Binary]
    _fn: Any = field(repr=False)
    _made: Any = field(default=None, repr=False)

    @property
    def report(self) -> str:
        return "\n".join(f"{n}: {len(b.code)} bytes of code, {b.warps} warps" for n, b in self.binaries.items())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it.

        Raises:
            RuntimeError: this machine has no such GPU.
        """
        here = capability(torch.cuda.current_device()) if torch.cuda.is_available() else "no GPU"
        if here != self.target:
            raise RuntimeError(
                f"this was compiled for {self.target}, and this machine has {here}: "
                "its text and its binaries can be read here, but not run"
            )
        if self._made is None:
            self._made = compile(self._fn)
        return self._made(*args, **kwargs)


def _takes(fn: Any, name: str) -> bool:
    """Whether a keyword may be an argument of the function itself."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _unknown(what: str, word: str, known: list[str]) -> str:
    same = [name for name in known if name.endswith(f":{word}")]  # "sm_90" of "triton:sm_90"
    close = same or difflib.get_close_matches(word, known, n=1)
    return f"unknown {what} {word!r}{f'; did you mean {close[0]!r}?' if close else ''}; known: {', '.join(dict.fromkeys(known))}"


def gpu_target(target: str) -> str:
    """The GPU of a target: "sm_90" of "triton:sm_90", that of this machine of "triton", "" of "cpp".

    Raises:
        ValueError: an unknown target, with a suggestion; "triton" on a machine without a GPU.
    """
    if target not in TARGETS:
        raise ValueError(_unknown("target", target, list(TARGETS)))
    if target != "triton":
        return target.partition(":")[2]
    if not torch.cuda.is_available():
        raise ValueError("target 'triton' is the GPU of this machine, which has none; name one, as in 'triton:sm_90'")
    return capability(torch.cuda.current_device())


def _traced(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Capture, FunctionalGraph, bool]:
    """The function as a graph for inference; one that calls backward itself raises without gradients, and is captured with them, and True."""
    try:
        with torch.no_grad():
            captured = capture(fn, args, kwargs, compiling=True)
            return captured, functionalize(captured.graph_module, captured.example_inputs), False
    except ProgramRaised:
        if not torch.is_grad_enabled():
            raise
    captured = capture(fn, args, kwargs, compiling=True)
    return captured, functionalize(captured.graph_module, captured.example_inputs), True


def lower(fn: Any, *args: Any, target: Any = "cpp", passes: Any = (), **kwargs: Any) -> Lowered:
    """Take a function or module through every stage for these arguments, without calling a compiler of machine code.

    Args:
        target: "cpp" is this processor. "triton:sm_80", "triton:sm_90", "triton:gfx942" ... is a GPU, which this machine need not have: the
            arguments may be tensors on the CPU, and all of them count as that GPU's. "triton" is the GPU of this machine. A target
            of your own is an object or a class that derives from `intarsia.extend.Target`. What is none of these is an argument of `fn`.
        passes: passes of your own, as for `compile`; what is no list of such is an argument of `fn`. One that fails is an error here.

    Raises:
        TypeError: `fn` is nothing that can be compiled, as for `compile`.
        ValueError: an unknown target, with a suggestion; for a GPU, a call that torch has on CPUs only, such as oneDNN's LSTM.
        Unsupported: the function cannot be captured in one graph; names the user's line.
        ImportFailure: the graph has no form in the IR.
        PassError: a pass of yours fails, or has no place among the others; names it.
        CompilerNotFound: no C++ compiler: the machine that code is made for is not known.
    """
    if isinstance(target, str) and target not in TARGETS:
        target = installed_targets().get(target, target)
    theirs = made_target(target) if is_target(target) else None
    if theirs is not None:
        target = "cpp"
    if not isinstance(target, str):
        kwargs, target = kwargs | {"target": target}, "cpp"
    if (not isinstance(passes, list | tuple) or not all(map(is_given, passes))) and _takes(fn, "passes"):
        kwargs, passes = kwargs | {"passes": passes}, ()
    given = passes_given(passes)
    fn = callable_of(fn)
    check_function(fn, "lower")
    gpu = gpu_target(target)
    config = Config.from_environment()
    captured, functional, grad = _traced(fn, args, kwargs)
    without_logits(functional.graph_module, config)
    imported = import_fx(functional)
    module = imported.module
    if gpu:
        retarget(module, "cuda:0")
    stages, levels = {"aten": print_module(module)}, {"aten": print_module(module)}
    pipeline = pipeline_of(config, given, gpu=is_for_gpu(module))
    by_name = {item.name: item for item in pipeline}

    def keep(name: str, current: ModuleOp, seconds: float, phase: str) -> None:
        if phase == "after":
            stages[name] = print_module(current)
            levels[by_name[name].gives or by_name[name].level] = stages[name]

    ctx = CompileContext(machine(find_toolchain(), config, gpu), Diagnostics(want_remarks=True))
    run_pipeline(ctx, module, pipeline, on_pass=keep, limit=config.pass_seconds)
    generated = generate(module, Library(config.packing))
    here_only = [o for o in generated.host.operators.values() if gpu and any(word in o for word in ("mkldnn", "_cpu"))]
    if here_only:
        raise ValueError(
            f"{here_only[0]} exists on CPUs only: torch chooses it while a function is captured with tensors on the CPU.\n"
            f"  What to do: lower the parts around it, or on a machine with a GPU give it tensors that are there"
        )
    written = None
    if theirs is not None:
        text = levels.get(theirs.stage) or stages.get(theirs.stage)
        if text is None:
            raise ValueError(_unknown("stage of a target", theirs.stage, [*levels, *stages]))
        written = text_of(theirs, parse_module(text))
    ordered = {level: levels[level] for level in LEVELS if level in levels}
    return Lowered(
        fx=captured.graph_module,
        functional=functional.graph_module,
        guards=captured.guards.code,
        stages=stages,
        remarks=ctx.diagnostics.remarks,
        counts={name: dict(found) for name, found in ctx.diagnostics.statistics.items()},
        constants=imported.constants,
        target=theirs.name if theirs is not None else f"triton:{gpu}" if gpu else target,
        _levels=ordered,
        _generated=generated,
        _compile=(lambda: _compile_for(fn, generated, gpu)) if gpu else lambda: compile(fn, passes=given),
        _capture=captured,
        _tree=functional.output_tree,
        _grad=grad,
        _theirs=theirs,
        _written=written,
    )


def _compile_for(fn: Any, generated: Generated, gpu: str) -> ForGPU:
    triton_version()
    if generated.gpu is None:
        return ForGPU(gpu, {}, fn)
    folder = Path(tempfile.mkdtemp(prefix="intarsia-"))
    made = compile_kernels(generated.gpu, gpu, folder).result()  # where it fails, the folder stays
    shutil.rmtree(folder, ignore_errors=True)
    return ForGPU(gpu, {binary.name: binary for binary in made}, fn)
