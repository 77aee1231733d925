"""A program of its own for each kernel of a program: `kernel_3.py`, which times it (`micro_benchmark.py` is what it runs)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp

from ..faults.single import single, steps
from ..ir.dialects import buffer
from ..ir.syntax import Op, comment_of, line_of
from ..ir.text import print_module
from ..targets.build.program import Generated, generate
from ..targets.cpp.call_kernels import call_kernel, has_kernel
from ..targets.host.library import Library
from ..targets.triton.program import KERNELS

_SCRIPT = '''"""The kernel {name} by itself{lines}.

    python {file}                  its time, bytes and operations, and its share of what this machine can do
    python {file} --check          whether it computes what its loops say, too
    python {file} --sizes s0=64    with other sizes, where they may change; --inputs FILE: of torch.save, not random

CODE may be changed: what stands there is what runs. MODULE says what it computes, and how it is called.
"""

from intarsia.tools.micro_benchmark import main

TARGET = {target!r}

CODE = {{
{code}}}

MODULE = {module}

if __name__ == "__main__":
    raise SystemExit(main(MODULE, CODE, TARGET))
'''


def scripts(module: ModuleOp, target: str) -> Iterator[tuple[str, str]]:
    """A script for each kernel of `@main`, `kernel_1.py` and so on in the order of the program, as (file name, text).

    Kernels that are launched with equal types are one.

    Args:
        module: at the `buffer` level.
        target: what the code is made for: "cpu", or a GPU as in "sm_90".
    """
    seen: set[tuple[str, ...]] = set()
    for op in steps(module):
        if not (isinstance(op, buffer.Launch) or has_kernel(op)):
            continue  # a library's
        name, lines = _name_and_lines(op, module)
        key = name, *(str(value.type) for value in op.operands)
        if key not in seen:
            seen.add(key)
            yield _script(f"kernel_{len(seen)}.py", name, lines, single(op, module)[0], target)


def _script(file: str, name: str, lines: Sequence[str], alone: ModuleOp, target: str) -> tuple[str, str]:
    said = f", from {', '.join(map(comment_of, lines[:4]))}" if lines else ""
    head = said.replace("\\", "\\\\").replace('"', "'")
    texts = _editable(generate(alone, Library()))
    code = "".join(f"    {unit!r}: {_literal(source)},\n" for unit, source in texts.items())
    module = _literal(print_module(alone))
    return file, _SCRIPT.format(name=name, lines=head, file=file, target=target, code=code, module=module)


def _name_and_lines(op: Op, module: ModuleOp) -> tuple[str, Sequence[str]]:
    if isinstance(op, buffer.Launch):
        kernel = next(k for k in module.body.block.ops if isinstance(k, Op) and k.get("sym_name") == op["kernel"])
        return str(op["kernel"]), list(kernel.get("lines", ()))
    return call_kernel(op).name, list(filter(None, [line_of(op)]))


def _literal(text: str) -> str:
    """A text as Python, in lines where that is the same text."""
    plain = all(c.isascii() and (c.isprintable() or c == "\n") for c in text)
    if plain and '"""' not in text and not text.endswith(('"', "\\")):
        return f'r"""{text}"""'
    return repr(text)


def _editable(generated: Generated) -> dict[str, str]:
    """The texts that a reader may change: the Triton module, or the C++ of the kernel."""
    if generated.gpu is not None:
        return {KERNELS: generated.gpu.text}
    return {unit.name: unit.text for unit in generated.units}
