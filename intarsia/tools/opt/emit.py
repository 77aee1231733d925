"""`--emit`: the code of a module at the `buffer` level, or a picture of the module at any level; `--graph`: the order of the passes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...exchange.to_stablehlo import stablehlo
from ...ir.dialects.prim import Func
from ...ir.syntax import Op, line_of
from ...passes.core.base import LEVELS, Pass
from ...passes.core.levels import module_levels
from ...passes.core.manager import Road
from ...passes.pipeline import is_for_gpu
from ...targets.build.program import Generated, generate
from ...targets.host.library import Library
from ...targets.triton.program import compile_kernels
from ..kernel_scripts import scripts
from .check import level_of
from .errors import CommandError, InputError
from .linalg import linalg

EMITTED = ("cpp", "triton", "host", "cubin", "benchmarks", "dot", "html", "linalg", "stablehlo")


def emitted(module: ModuleOp, what: str, target: str | None, folder: str | None, locations: bool = True) -> str:
    """The text asked for; of "cubin" the list of the files that were written to `folder`.

    Raises:
        CommandError: binaries without a GPU's name, or without a folder.
        InputError: the module has not come to the `buffer` level, or has no kernels of that kind.
    """
    if what == "dot":
        return dot(module)
    level = level_of(module)
    if what == "linalg":
        if not {"aten", "prim", "kernel"} & set(module_levels(module)):
            raise InputError(
                f"--emit linalg: the module is at level '{level}'; it has to be at 'aten', 'prim' or 'kernel'"
            )
        return linalg(module)
    if what == "stablehlo":
        if not {"aten", "prim", "kernel"} & set(module_levels(module)):
            raise InputError(
                f"--emit stablehlo: the module is at level '{level}'; it has to be at 'aten', 'prim' or 'kernel'"
            )
        return stablehlo(module, locations)
    if level != "buffer":
        raise InputError(
            f"--emit {what}: the module is at level '{level}'; the pipeline 'default' takes it to 'buffer'"
        )
    if what in ("triton", "cubin") and not is_for_gpu(module):
        raise InputError(f"--emit {what}: the module is for a CPU; --target triton:sm_90 makes it one for that GPU")
    if what == "benchmarks":
        name = (target or "").partition(":")[2] if is_for_gpu(module) else "cpu"
        return _benchmarks(module, name, folder)
    generated = generate(module, Library())
    if what == "host":
        return generated.host.text
    if what == "cpp":
        return "\n".join(f"// ----- {unit.name}.cpp -----\n{unit.text}" for unit in generated.units)
    if generated.gpu is None:
        raise InputError(f"--emit {what}: no operation of the module became a kernel")
    if what == "triton":
        return generated.gpu.text
    return _binaries(generated, target, folder)


def _binaries(generated: Generated, target: str | None, folder: str | None) -> str:
    assert generated.gpu is not None
    name = (target or "").partition(":")[2]
    if not name:
        raise CommandError("--emit cubin: for which GPU? name it, as in --target triton:sm_90")
    if folder is None:
        raise CommandError("--emit cubin writes a file for each kernel: name their folder with -o")
    work = Path(tempfile.mkdtemp(prefix="intarsia-"))
    try:
        made = compile_kernels(generated.gpu, name, work).result()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    lines = []
    for binary in made:
        path = Path(folder) / f"{binary.name}.{'hsaco' if name.startswith('gfx') else 'cubin'}"
        _write(path, binary.code)
        lines.append(f"{path}: {len(binary.code)} bytes, {binary.warps} warps\n")
    return "".join(lines)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


def _benchmarks(module: ModuleOp, target: str, folder: str | None) -> str:
    if not target:
        raise CommandError("--emit benchmarks: for which GPU? name it, as in --target triton:sm_90")
    if folder is None:
        raise CommandError("--emit benchmarks writes a program for each kernel: name their folder with -o")
    lines = []
    for name, text in scripts(module, target):
        _write(Path(folder) / name, text.encode("utf-8", "backslashreplace"))
        lines.append(f"{Path(folder) / name}\n")
    return "".join(lines)


def _quoted(text: str) -> str:
    """A string of DOT, whatever stands in it."""
    safe = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'


def dot(module: ModuleOp) -> str:
    """The functions of a module as a graph for Graphviz: operations are nodes, values are edges with their types."""
    lines = ["digraph module {", "  node [shape=box, fontname=monospace, fontsize=10];", "  edge [fontsize=8];"]
    names: dict[SSAValue | Operation, str] = {}

    def node(key: SSAValue | Operation, label: str, tip: str = "") -> None:
        names[key] = f"n{len(names)}"
        more = f", tooltip={_quoted(tip)}" if tip else ""
        lines.append(f"  {names[key]} [label={_quoted(label)}{more}];")

    for count, func in enumerate(op for op in module.body.block.ops if isinstance(op, Func)):
        lines += [f"  subgraph cluster_{count} {{", f"  label={_quoted('@' + str(func['sym_name']))};"]
        given = func.get("arg_names") or ()
        for k, value in enumerate(func.block_body.args):
            node(value, str(given[k]) if k < len(given) else f"argument {k}", str(value.type))
        for op in func.block_body.ops:
            inside = [
                o.name.partition(".")[2] for r in op.regions for b in r.blocks for o in b.ops if o is not b.last_op
            ]
            label = op.name if not inside else f"{op.name}: {' '.join(inside)}"
            if isinstance(op, Op) and op.at and op.get(op.at):
                label += f" @{op.get(op.at)}"
            node(op, label, line_of(op))
            for value in op.operands:
                source = value if value in names else value.owner
                if isinstance(source, SSAValue | Operation) and source in names:
                    lines.append(f"  {names[source]} -> {names[op]} [label={_quoted(str(value.type))}];")
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


_ROW, _LEFT = 26, 250


def order_svg(passes: Sequence[Pass], road: Road) -> str:
    """The passes of a road from top to bottom, as SVG: an arc for each edge that orders two of them, a colour for each level."""
    colours = dict(zip(LEVELS, ("#8d6cc1", "#3f7fbf", "#2f9e77", "#c98a1b", "#c0504d"), strict=True))
    own = {name for name, _ in road}
    place = {item.name: k for k, item in enumerate(passes)}
    height = _ROW * len(passes) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for k, level in enumerate(LEVELS):
        parts.append(f'<text x="{20 + 80 * k}" y="22" fill="{colours[level]}" font-weight="bold">{level}</text>')
    for k, item in enumerate(passes):
        y = 50 + _ROW * k
        what = escape(item.name) + ("" if item.name in own else " (of others)")
        moves = f" → {item.gives}" if item.gives not in (None, item.level) else ""
        first = escape((type(item).__doc__ or "").strip().partition("\n")[0])
        parts.append(f'<circle cx="{_LEFT}" cy="{y}" r="6" fill="{colours[item.level]}"/>')
        parts.append(f'<text x="{_LEFT + 14}" y="{y + 4}">{what}{moves}<title>{first}</title></text>')
        for name in dict.fromkeys((*item.after, *item.requires)):
            if name in place and place[name] < k:
                top, bend = 50 + _ROW * place[name], min(20 + 6 * (k - place[name]), _LEFT - 20)
                dashed = "" if name in item.requires else ' stroke-dasharray="4 3"'
                parts.append(
                    f'<path d="M{_LEFT - 7} {top} C{_LEFT - bend} {top} {_LEFT - bend} {y} {_LEFT - 7} {y}" '
                    f'fill="none" stroke="#777"{dashed}><title>{escape(name)} before {escape(item.name)}</title></path>'
                )
    parts.append('<text x="430" y="22" fill="#777">solid: requires; dashed: after</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
