"""The steps of a program: what it runs, how often, and for which of the user's lines and modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument

from ..ir.dialects import buffer, loop
from ..ir.fx.importer import user_module
from ..ir.interpreter.loops import find_function
from ..ir.syntax import Op, line_of
from ..passes.analysis.aliases import Aliases
from ..targets.cpp.call_kernels import call_kernel, has_kernel
from ..targets.host.kernels import is_step

KERNEL, LIBRARY, COPY = "kernel", "library", "copy"


@dataclass(frozen=True)
class Step:
    """One step of a program, in the order of its host program.

    Attributes:
        name: of the kernel, or of the library's operator.
        kind: "kernel" for one of our own, "library" for a library's operator, "copy" for a copy into an argument.
        line: the user's line that it is named after ("file:line", or "").
        lines: all of the user's lines that it computes.
        module: the path of the module whose parameters it reads, as "transformer.h.0.attn"; "" where it reads none.
        why: why it is carried out like this, where a pass has said so.
    """

    name: str
    kind: str
    line: str
    lines: tuple[str, ...]
    module: str = ""
    why: str = ""


def steps_of(module: ModuleOp, lines: Mapping[str, Sequence[str]]) -> list[Step]:
    """The steps of a program at the `buffer` level; `lines` are those of its kernels, by name, as the host program knows them."""
    main = find_function(module, "main")
    if main is None:
        return []
    kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
    names = dict(zip(main.block_body.args, map(str, main.get("arg_names") or ()), strict=False))
    aliases = Aliases.of(main.block_body)

    def step(op: Op) -> Step:
        name, kind = _named(op)
        line = line_of(op)
        known: Sequence[str] = ()
        if kind == KERNEL:
            known = lines.get(name) or (kernels[name].get("lines", ()) if name in kernels else ())
        roots = (root for value in op.operands for root in aliases.roots(value))
        read = [names[root] for root in roots if isinstance(root, BlockArgument) and root in names]
        every = tuple(dict.fromkeys(filter(None, (line, *known))))
        return Step(name, kind, line, every, common_module(read), str(op.get("why") or ""))

    return [step(op) for op in main.block_body.ops if isinstance(op, Op) and is_step(op)]


def _named(op: Op) -> tuple[str, str]:
    if isinstance(op, buffer.Launch):
        return str(op["kernel"]), KERNEL
    if isinstance(op, buffer.Copy):
        return "copy into an argument", COPY
    if has_kernel(op):
        return call_kernel(op).name, KERNEL
    return str(op["target"]).removesuffix(".default"), LIBRARY


def common_module(names: Iterable[str]) -> str:
    """`transformer.h.0` of `self.transformer.h.0.ln_1.weight` and `self.transformer.h.0.attn.c_proj.bias`: what holds all parameters."""
    paths = [name.split(".")[1:-1] for name in names if name.startswith("self.") and name.count(".") > 1]
    if not paths:
        return ""
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def module_of_node(node: fx.Node) -> str:
    """The path of the module whose code makes an operation of a captured graph, else of that whose parameters it reads; "": none."""
    if node.meta.get("nn_module_stack"):
        return user_module(node.meta["nn_module_stack"])
    given = [source_name(n) for n in node.all_input_nodes]
    return common_module(filter(None, given))


def source_name(node: fx.Node) -> str:
    """How the program calls an input of a captured graph, as "self.fc.weight"; "" where it has no such name."""
    source: Any = node.meta.get("source")
    return source.name() if node.op == "placeholder" and hasattr(source, "name") else ""
