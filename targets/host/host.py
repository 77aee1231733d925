"""The host program: from the `buffer` level to a short Python function that allocates, launches and calls.

Everything that can be done once is done once: addresses in the arena, tensors over it, functions looked up. What is left is one line
a step. With symbolic sizes the same lines stand inside the function, because sizes are known only there.

    def make():
        arena = empty(4096)
        p0 = arena.data_ptr() + 0            # %1
        def run(a0, a1):
            o0 = empty_strided((8, 16), (16, 1), torch.float32)
            k_add_exp(a0.data_ptr(), p0, o0.data_ptr())
            return (o0,)
        run.arena = arena
        return run
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.autograd.graph import increment_version
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import buffer, loop, prim
from ...ir.dialects.aten import overload
from ...ir.dtypes import U8, DType
from ...ir.epilogue import apply_epilogue, extras_of
from ...ir.interpreter.loops import find_function
from ...ir.symbols import Dim, contiguous_strides, dim, free_symbols
from ...ir.syntax import Op, comment_of, location_of
from ...ir.types import RefType, is_gpu
from ...passes.analysis.aliases import shared_operands
from ...passes.analysis.alignment import ALIGNMENT
from ..cpp.emit import uses_heap
from ..cpp.own import is_own, own_kernel, packs
from ..run.gpu import MISALIGNED, TOO_LARGE, UNALIGNED_WRITE, aligned, finished, moved, not_launched, on_gpu
from ..run.graphs import Recorded
from ..run.pieces import PLAIN, split
from ..run.profiling import note
from ..run.recordable import argument_kinds, of_a_library, on_cpu, refusal, size_reads
from ..run.tail import Halves, halves
from ..torch_private import current_stream, empty_strided_cpu, empty_strided_gpu, fast_overload
from ..triton.launch import counted
from .library import Library, Step
from .library_product import panels_step
from .memory import planned_bytes
from .names import empty, failed, fit, over
from .pool import LARGE, Results
from .steps import Folded

Run = Callable[..., Sequence[Any]]


@dataclass
class HostSource:
    """The text of a host program, and what it needs beside it.

    Attributes:
        text: Python source that defines `make`.
        kernels: name of each kernel and how many arguments it takes.
        operators: names in the text of the ATen operators it calls.
        steps: names in the text of library steps (packed weights), with the description from which each is built.
        stateful: whether `run` owns an arena, so that two threads need two of them.
        constants: which arguments the text's `make_constants` takes, whose results are the last arguments; None: there is none.
        stateful_constants: `stateful` for that one.
        quick: the kernels that are done in a few microseconds: other threads need not run meanwhile.
        gpu: the number of the GPU that kernels run on, None: there are none.
        arguments, sizes, work: what a recording has to know: `kinds`, `sizes` and `steps` of `Recorded`.
        not_recorded: why the program does not become a CUDA graph, "" where it does.
        mutated: the arguments that the program writes to.
        halves: the program as a recording and its tail, where results are large: see `Divided`.
        large: bytes of the results of one call whose memory comes from the pool, as far as sizes are known.
        memory: bytes kept between calls, and most bytes in use at once; None where that depends on sizes.
    """

    text: str
    kernels: dict[str, int]
    operators: dict[str, str]
    steps: dict[str, dict[str, Any]]
    stateful: bool
    memory: tuple[int, int] | None = None
    constants: tuple[int, ...] | None = None
    stateful_constants: bool = False
    quick: Sequence[str] = ()
    large: int = 0
    gpu: int | None = None
    arguments: Sequence[str] = ()
    sizes: Sequence[str] = ()
    work: int = 0
    not_recorded: str = ""
    mutated: Sequence[int] = ()
    halves: Halves | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data for the cache."""
        return asdict(self)


def host_source(module: ModuleOp, library: Library, *, timed: bool = False) -> HostSource:
    """Write the host program of a module at the `buffer` level; `timed`: with `begin(k)` and `end(k)` around its k-th step."""
    main, constants = find_function(module, "main"), find_function(module, "constants")
    assert main is not None
    kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
    writer = _Writer(main, kernels, library, timed=timed)
    source = writer.write()
    if constants is None:
        return source
    other = _Writer(constants, kernels, library, steps=writer.steps, counts={"step": writer.counts.get("step", 0)})
    made = other.write()
    text = f"{source.text}\n\n{made.text.replace('def make(', 'def make_constants(', 1)}"
    return replace(
        source,
        text=text,
        kernels=source.kernels | made.kernels,
        quick=[*source.quick, *made.quick],
        operators=source.operators | made.operators,
        constants=tuple(constants["parameters"]),
        stateful_constants=made.stateful,
    )


@dataclass
class _Writer:
    func: prim.Func
    kernels: dict[str, loop.Kernel]
    library: Library
    once: list[str] = field(default_factory=list)  # lines of `make`
    each: list[str] = field(default_factory=list)  # lines of `run`
    names: dict[SSAValue, str] = field(default_factory=dict)  # the tensor
    addresses: dict[SSAValue, str] = field(default_factory=dict)  # the address, where one is at hand
    used_kernels: dict[str, int] = field(default_factory=dict)
    quick: set[str] = field(default_factory=set)
    operators: dict[str, str] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # expression -> the name that holds it
    place: tuple[str, int] | None = None
    owner: dict[str, str] = field(default_factory=dict)  # a view -> the tensor that it is a view of
    views: dict[str, list[str]] = field(default_factory=dict)  # a tensor -> its views, theirs too
    large: int = 0  # bytes of results from the pool
    timed: bool = False
    changed: dict[str, None] = field(default_factory=dict)  # arguments that kernels write to

    def write(self) -> HostSource:
        block = self.func.block_body
        arguments = []
        for i, arg in enumerate(block.args):
            self.names[arg] = f"a{i}"
            arguments.append(f"a{i}")
        sizes = size_reads(self.func)
        self.each += [f"{name} = {read}" for name, read in sizes.items()]
        if self.func.get("writes_early"):
            self._check_first()
        stateful = self._arena()
        begun = len(self.each)
        steps = []
        for op in block.ops:
            assert isinstance(op, Op)
            before = len(self.each)
            self.step(op)
            steps.append((op, self.each[before:]))
        parts: list[str] = []
        refused = self._refusal()
        found = None if refused or self.timed else self._halves(steps, len(sizes), begun)
        if sizes and not refused and not self.timed:
            parts = self._split(begun, steps)
        body = [f"def make({PLAIN if parts else ''}):"]
        body += ["    " + line for line in (*self.once, *parts)]
        body += [f"    def run({', '.join(arguments)}):"]
        body += ["        " + line for line in self.each]
        if stateful:
            body.append("    run.arena = arena  # `run` knows only addresses in it: it must live as long")
        body += ["    return run", ""]
        text = "\n".join(body)
        return HostSource(
            text,
            self.used_kernels,
            self.operators,
            self.steps,
            stateful,
            planned_bytes(self.func),
            quick=sorted(self.quick),
            large=self.large,
            gpu=self.func_device() if any(map(runs_on_gpu, self.kernels.values())) else None,
            arguments=argument_kinds(self.func),
            sizes=tuple(sizes.values()),
            work=sum(isinstance(op, buffer.Launch | buffer.Extern) for op in block.ops),
            not_recorded=refused,
            mutated=tuple(dict.fromkeys(argument for argument, _ in self.func.get("mutations", ()))),
            halves=found,
        )

    def _split(self, begun: int, steps: list[tuple[Op, list[str]]]) -> list[str]:
        """The lines of the parts that are the same for all sizes; the others stay in `each`."""
        if not any(map(runs_on_gpu, self.kernels.values())):
            return []
        stream = f"stream = current_stream({self.func_device()})"
        parts, lines = split([(op, [x for x in text if x != stream]) for op, text in steps], self.kernels, stream)
        if parts:
            self.each[begun:] = [stream, *lines]
        return parts

    def _halves(self, steps: list[tuple[Op, list[str]]], sizes: int, begun: int) -> Halves | None:
        """The program as a recording and its tail, where results are large."""
        if not any(map(runs_on_gpu, self.kernels.values())):
            return None
        head, stream = (self.each[:sizes], self.each[sizes:begun]), f"stream = current_stream({self.func_device()})"
        return halves(self.func, self.kernels, steps, self.once, head, stream)

    def step(self, op: Op) -> None:
        """The lines of one operation."""
        timed = self.timed and is_step(op)
        number = self.fresh("timed")[len("timed") :] if timed else ""
        self.each += [f"begin({number})"] if timed else []
        _STEPS[op.name](self, op)
        self.each += [f"end({number})"] if timed else []

    def _address_in_argument(self, value: SSAValue) -> str:
        """Where an argument, or a view of one, begins; "" for other memory."""
        offset: Dim = 0
        while isinstance(value.owner, buffer.View):
            base = value.owner.operands[0]
            assert isinstance(base.type, RefType)
            offset, value = dim(offset + value.owner["offset"] * base.type.dtype.bytes), base
        if not isinstance(value, BlockArgument):
            return ""
        return self.address(value) if offset == 0 else f"({self.address(value)} + {python_index(offset)})"

    def _check_first(self) -> None:
        """What a launch could refuse is asked for before anything is written to an argument: the call may yet run in another way."""
        launches = [op for op in self.func.block_body.ops if isinstance(op, buffer.Launch)]
        kernels = {
            op["kernel"]: self.kernels[op["kernel"]] for op in launches if runs_on_gpu(self.kernels[op["kernel"]])
        }
        given, written = dict[str, None](), dict[str, None]()
        for op in launches:
            free = self.kernels[op["kernel"]].get("unaligned", ())
            for place, v in enumerate(op.operands if op["kernel"] in kernels else ()):
                if place not in free and (address := self._address_in_argument(v)):
                    (given if place < kernels[op["kernel"]]["inputs"] else written)[address] = None
        if written:  # a copy would be written, and not the argument
            self.each.append(f"if ({' | '.join(written)}) & {ALIGNMENT - 1}: not_launched({UNALIGNED_WRITE}, '')")
        if read := [address for address in given if address not in written]:
            self.each.append(f"if ({' | '.join(read)}) & {ALIGNMENT - 1}: not_launched({MISALIGNED}, '')")
        for name, kernel in kernels.items():
            for number in counted(kernel):
                text = f"if {python_index(number)} > {2**31 - 1}: not_launched({TOO_LARGE}, {name!r})"
                if text not in self.each:
                    self.each.append(text)

    def _refusal(self) -> str:
        """Why the program is not recorded as a CUDA graph."""
        steps = sum(isinstance(op, buffer.Launch | buffer.Extern) for op in self.func.block_body.ops)
        return refusal(steps, list(self.operators.values()), on_cpu(self.func))

    def _arena(self) -> bool:
        size = self.func.get("arena_bytes", 0)
        allocs = (op for op in self.func.block_body.ops if isinstance(op, buffer.Alloc))
        if all(op["pool"] != "arena" for op in allocs):  # a tensor without elements lies in an arena of no bytes
            return False
        static = isinstance(size, int)
        lines = self.once if static else self.each
        if static:
            lines.append(f"arena = empty({size})")
        else:
            lines.append(f"arena = {self._memory((size,), (1,), U8)}")
        lines.append("base = arena.data_ptr()")
        return static

    # -- small pieces

    def fresh(self, prefix: str) -> str:
        number = self.counts.get(prefix, 0)
        self.counts[prefix] = number + 1
        return f"{prefix}{number}"

    def lines_for(self, *dims: Dim) -> list[str]:
        """Where a line goes that depends on these: outside the function if nothing in it is symbolic."""
        return self.each if free_symbols(dims) else self.once

    def comment(self, op: Op) -> None:
        place = location_of(op)
        if place is not None and place != self.place:
            self.place = place
            self.each.append(f"# {comment_of(f'{place[0]}:{place[1]}')}")

    def tensor(self, value: SSAValue) -> str:
        """The name of a tensor over the value's memory."""
        if value not in self.names:
            self._arena_tensor(value)
        return self.names[value]

    def _arena_tensor(self, value: SSAValue) -> None:
        op, ref = value.owner, value.type
        assert isinstance(op, buffer.Alloc) and isinstance(ref, RefType)
        offset = op["offset"]
        text = f"over(arena, {python_index(offset)}, {_tuple(ref.shape)}, {_tuple(ref.strides)}, {ref.dtype.torch})"
        lines = self.lines_for(offset, *ref.shape, *ref.strides, self._arena_size())
        self.names[value] = self._shared("b", text, lines)

    def _shared(self, prefix: str, text: str, lines: list[str]) -> str:
        """The name of an expression over the arena: one line however many values are laid there."""
        if text not in self.known:
            self.known[text] = self.fresh(prefix)
            lines.append(f"{self.known[text]} = {text}")
        return self.known[text]

    def address(self, value: SSAValue) -> str:
        """The expression for the value's address."""
        return self.addresses.get(value) or f"{self.tensor(value)}.data_ptr()"

    # -- steps

    def alloc(self, op: Op) -> None:
        result = op.results[0]
        ref = result.type
        assert isinstance(ref, RefType)
        if op["pool"] == "arena":
            offset = op["offset"]
            lines = self.lines_for(offset, self._arena_size())
            self.addresses[result] = self._shared("p", f"base + {python_index(offset)}", lines)
            return
        name = self.fresh("o")
        self.names[result] = name
        self.comment(op)
        memory = self._gpu_memory(ref) if is_gpu(ref.device) else self._memory(ref.shape, ref.strides, ref.dtype)
        self.each.append(f"{name} = {memory}")

    @staticmethod
    def _gpu_memory(ref: RefType) -> str:
        return f"empty_strided_gpu({_tuple(ref.shape)}, {_tuple(ref.strides)}, {ref.dtype.torch})"

    def _memory(self, shape: Sequence[Dim], strides: Sequence[Dim], dtype: DType) -> str:
        """The expression for uninitialised memory: of the pool where it is large."""
        geometry = f"{_tuple(shape)}, {_tuple(strides)}, {dtype.torch}"
        small = f"empty_strided({geometry})"
        size = dim(math.prod(shape) * dtype.bytes)
        if isinstance(size, int) and size < LARGE:
            return small
        number = self.counts.get("large", 0)
        slot = self.fresh("large")
        if self.lines_for(*shape, *strides) is self.once:
            self.once.append(f"{slot} = results.slot({number}, {geometry})")
            self.large += int(size)
            return f"{slot}()"
        return f"{small} if {python_index(size)} < {LARGE} else results.any({number}, {geometry})"

    def view(self, op: Op) -> None:
        result = op.results[0]
        ref, base = result.type, op.operands[0]
        assert isinstance(ref, RefType)
        if not result.uses:
            return
        users = [use.operation for use in result.uses]
        if all(is_own(user) and not packs(user) for user in users):  # an address is all that is needed
            self.addresses[result] = f"{self.address(base)} + {python_index(dim(op['offset'] * ref.dtype.bytes))}"
            return
        name = self.fresh("v")
        self.names[result] = name
        arena = isinstance(base.owner, buffer.Alloc) and base.owner["pool"] == "arena"
        source = self.tensor(base)
        offset = f"{source}.storage_offset() + {python_index(op['offset'])}"
        text = f"{name} = {source}.as_strided({_tuple(ref.shape)}, {_tuple(ref.strides)}, {offset})"
        lines = self.lines_for(*ref.shape, *ref.strides, op["offset"], self._arena_size()) if arena else self.each
        lines.append(text)
        self._is_view(name, source)

    def _is_view(self, name: str, of: str) -> None:
        owner = self.owner[name] = self.owner.get(of, of)
        self.views.setdefault(owner, []).append(name)

    def _arena_size(self) -> Dim:
        return self.func.get("arena_bytes", 0)  # type: ignore[no-any-return]

    def _note_writes(self, op: Op) -> None:
        """Arguments that a kernel writes to: autograd and packed weights have to know."""
        for value in op.operands[self.kernels[op["kernel"]]["inputs"] :]:
            if isinstance(value, BlockArgument):
                self.changed[self.tensor(value)] = None

    def launch(self, op: Op) -> None:
        self.comment(op)
        kernel = self.kernels[op["kernel"]]
        symbols = list(kernel.get("symbols", ()))
        if runs_on_gpu(kernel):
            arguments = [*(self.address(v) for v in op.operands), *symbols, self._stream()]
            self.used_kernels[op["kernel"]] = len(arguments)
            self.quick.add(op["kernel"])
            self._note_writes(op)
            self.each.append(
                f"if code := {op['kernel']}({', '.join(arguments)}): not_launched(code, {op['kernel']!r}{self._late()})"
            )
            return
        self._note_writes(op)
        arguments = [self.address(v) for v in op.operands] + symbols
        self.used_kernels[op["kernel"]] = len(arguments)
        if _is_quick(op):
            self.quick.add(op["kernel"])
        call = f"{op['kernel']}({', '.join(arguments)})"
        checked = any(isinstance(inner, loop.Bind) and inner.is_checked for inner in kernel.block_body.walk())
        lines = "".join(f", {line!r}" for line in kernel.get("lines", ()))
        self.each.append(f"if code := {call}: failed(code{lines})" if checked or uses_heap(kernel) else call)

    def _stream(self) -> str:
        """The name of torch's current stream, asked for once a call."""
        if "stream" not in self.known:
            self.known["stream"] = "stream"
            self.each.append(f"stream = current_stream({self.func_device()})")
        return "stream"

    def func_device(self) -> int:
        """The number of the GPU that the function's kernels run on.

        Raises:
            SeveralGPUs: they run on more than one.
        """
        found = {
            gpu_index(ref.device) for kernel in self.kernels.values() for ref in _memories(kernel) if is_gpu(ref.device)
        }
        if len(found) > 1:
            raise SeveralGPUs(f"a graph with tensors on the GPUs {', '.join(map(str, sorted(found)))} is not compiled")
        return found.pop()

    def own(self, op: Op) -> None:
        """A library call that a kernel of our own carries out."""
        found = own_kernel(op)
        if packs(op):
            self.packed(op, found.name)
            return
        arguments = [*(self.address(v) for v in op.operands), *found.symbols]
        self.used_kernels[found.name] = len(arguments)
        call, place = f"{found.name}({', '.join(arguments)})", location_of(op)
        where = f", {f'{place[0]}:{place[1]}'!r}" if place else ""
        self.each.append(f"if code := {call}: failed(code{where})")

    def packed(self, op: Op, kernel: str) -> None:
        """A kernel that reads a packed copy of a weight; where copies may take no more memory, the operator itself."""
        chosen, name, copy = panels_step(op), self.fresh("step"), self.fresh("w")
        self.steps[name] = chosen.as_json()
        values = [self.tensor(v) for v in op.operands]
        arguments = [self.address(v) for v in op.operands]
        weight = chosen.options["weight"]
        arguments[weight] = f"{copy}.data_ptr()"
        self.used_kernels[kernel] = len(arguments)
        self.each.append(f"{copy} = {name}({values[weight]})")
        self.each.append(f"if {copy} is None: {name}.plain({', '.join(values)})")
        self.each.append(f"elif code := {kernel}({', '.join(arguments)}): failed(code)")

    def extern(self, op: Op) -> None:
        self.comment(op)
        if op.get("own"):
            self.own(op)
            return
        values = [self.tensor(v) for v in op.operands]
        step = self.library.choose(op, self.func)
        if step is None:
            call = f"{self._operator(op['target'])}({self._arguments(op, values)})"
        else:
            name = self.fresh("step")
            self.steps[name] = step.as_json()
            call = f"{name}({', '.join(values)})"
        names = [self.fresh("t") for _ in op.results]
        for name, result in zip(names, op.results, strict=True):
            self.names[result] = name
        taken, returns = list(names), len(overload(op["target"])._schema.returns)
        if op.get("returned"):  # the others are None
            taken = ["_"] * returns
            for position, name in zip(op["returned"], names, strict=True):
                taken[position] = name
        for name, result in zip(names, op.results, strict=True):
            for operand in shared_operands(op, result)[:1]:
                self._is_view(name, values[list(op.operands).index(operand)])
        unpacked = f"{', '.join(taken)}{',' if returns > 1 and len(taken) == 1 else ''}"
        self.each.append(f"{unpacked} = {call}" if names else call)
        if "_" in taken:
            self.each.append("_ = None")
        if step is None and op.get("epilogue"):
            extras = ", ".join(extras_of(op["operands"], values))
            self.each.append(f"{names[0]} = apply_epilogue({names[0]}, {python_literal(op['epilogue'])}, [{extras}])")
        for name, result in zip(names, op.results, strict=True):
            ref = result.type
            assert isinstance(ref, RefType)
            known = (
                step is not None and step.builder == "packed-product" and ref.strides == contiguous_strides(ref.shape)
            )
            if not known and any(not isinstance(u.operation, buffer.Free) for u in result.uses):
                planned = f"({ref.dtype.torch}, {_tuple(ref.shape)}, {_tuple(ref.strides)})"
                late = f"{self._late() or ', False'}, {op['target']!r}"
                found = f"({name}.dtype, {name}.shape, {name}.stride())"
                self.each.append(f"if {found} != {planned}: {name} = fit({name}, *{planned}{late})")
            if self._late() and _is_read_on_gpu(result, self.kernels):  # a launch that refuses it could not begin again
                self.each.append(f"if {name}.data_ptr() & {ALIGNMENT - 1}: {name} = moved({name})")

    def _late(self) -> str:
        """The argument of checks that says whether arguments may have been written to."""
        return ", True" if self.func.get("writes_early") else ""

    def _operator(self, target: str) -> str:
        name = target.replace("aten.ops.", "").replace(".", "_").removesuffix("_default")
        name = name + "_" if keyword.iskeyword(name) else name
        self.operators[name] = target
        return name

    def _arguments(self, op: Op, values: list[str]) -> str:
        schema = overload(op["target"])._schema
        given: dict[str, Any] = {}
        for name, value in zip(op["operands"], values, strict=True):
            base, _, index = name.partition(".")
            if index:
                items = given.setdefault(base, [])
                items += ["None"] * (int(index) + 1 - len(items))
                items[int(index)] = value
            else:
                given[base] = value
        given = {k: v if isinstance(v, str) else f"[{', '.join(v)}]" for k, v in given.items()}
        known = {a.name for a in schema.arguments}
        given |= {k: python_literal(v) for k, v in op.literals.items() if k in known and k not in given}
        positional, by_name = [], []
        for a in schema.arguments:
            if a.kwarg_only:
                if a.name in given:
                    by_name.append(f"{a.name}={given[a.name]}")
            elif a.name in given:
                positional.append(given[a.name])
            else:  # None where the schema has no default: an optional argument that is not written
                positional.append(python_literal(a.default_value))
        return ", ".join(positional + by_name)

    def copy(self, op: Op) -> None:
        self.comment(op)
        source, target = (self.tensor(v) for v in op.operands)
        self.each.append(f"{target}.copy_({source})")

    def free(self, op: Op) -> None:
        name = self.names[op.operands[0]]
        self.each.append(f"{' = '.join([name, *self.views.get(name, ())])} = None")  # a view would keep the memory

    def finish(self, op: Op) -> None:
        specs = self.func.get("results")
        if specs is None:
            specs = tuple(("value", k) for k in range(len(op.operands)))
        shared = {spec[1] for spec in specs if spec[0] == "output"}  # one object in two places of the result
        items = []
        for position, spec in enumerate(specs):
            item = self._result(spec, op)
            if position in shared:
                self.each.append(f"r{position} = {item}")
                item = f"r{position}"
            items.append(item)
        if self.changed:
            self.each.append(f"increment_version(({', '.join(self.changed)},))")
        self.each.append(f"return ({', '.join(items)}{',' if len(items) == 1 else ''})")

    def _result(self, spec: Sequence[Any], op: Op) -> str:
        match spec[0]:
            case "value":
                return self.tensor(op.operands[spec[1]])
            case "input":
                return f"a{spec[1]}"
            case "alias":
                return _view_text(f"a{spec[1]}", *spec[2:])
            case "alias_output":
                return self._alias(op.operands[spec[1]], *spec[2:])
            case "output":
                return f"r{spec[1]}"
            case "size" | "constant":
                return python_literal(spec[1])
            case "none":
                return "None"
        raise ValueError(f"unknown result kind {spec[0]!r}")

    def _alias(self, value: SSAValue, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> str:
        """Another tensor over the memory of a result; one that shows all of it is no view to autograd, as eager's is none."""
        ref, base = value.type, self.tensor(value)
        assert isinstance(ref, RefType)
        if (*ref.shape,) == (*sizes,) and (*ref.strides,) == (*strides,) and offset == 0:
            return f"{base}.detach()"
        return _view_text(base, sizes, strides, offset)


def is_step(op: Op) -> bool:
    """Whether an operation of a host program does work on memory."""
    return isinstance(op, buffer.Launch | buffer.Extern | buffer.Copy)


class SeveralGPUs(RuntimeError):
    """A graph uses more than one GPU; it has to run in eager."""


def gpu_index(device: str) -> int:
    """The number in "cuda:1"."""
    return int(device.partition(":")[2] or 0)


def _memories(kernel: loop.Kernel) -> list[RefType]:
    return [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]


def runs_on_gpu(kernel: loop.Kernel) -> bool:
    """Whether a kernel's memory is on a GPU."""
    return any(is_gpu(ref.device) for ref in _memories(kernel))


def _is_read_on_gpu(value: SSAValue, kernels: Mapping[str, loop.Kernel]) -> bool:
    """Whether a kernel on a GPU is given a value or a view of it."""
    users = [use.operation for use in value.uses]
    return any(
        _is_read_on_gpu(user.results[0], kernels)
        if isinstance(user, buffer.View)
        else isinstance(user, buffer.Launch) and runs_on_gpu(kernels[user["kernel"]])
        for user in users
    )


QUICK = 1 << 15  # bytes of operands and results


def one_device(kernel: loop.Kernel) -> None:
    """A kernel reaches the memory of one device only.

    Raises:
        ValueError: its arguments are on several.
    """
    devices = sorted({ref.device for ref in _memories(kernel)})
    if len(devices) > 1:
        raise ValueError(f"the kernel {kernel['sym_name']} has memory on {' and '.join(devices)}")


def _is_quick(op: Op) -> bool:
    """Whether a kernel touches so little memory that letting other threads run meanwhile costs more than it does."""
    total = 0
    for value in op.operands:
        ref = value.type
        assert isinstance(ref, RefType)
        if free_symbols(ref.shape):
            return False
        total += math.prod(map(int, ref.shape)) * ref.dtype.bytes
    return total <= QUICK


_STEPS: dict[str, Callable[[_Writer, Op], None]] = {
    "buffer.alloc": _Writer.alloc,
    "buffer.view": _Writer.view,
    "buffer.launch": _Writer.launch,
    "buffer.extern": _Writer.extern,
    "buffer.copy": _Writer.copy,
    "buffer.free": _Writer.free,
    "prim.return": _Writer.finish,
}


def _view_text(base: str, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> str:
    start = f"{base}.storage_offset() + {python_index(offset)}"
    return f"{base}.as_strided({_tuple(sizes)}, {_tuple(strides)}, {start})"


def python_index(value: Dim) -> str:
    """An index expression as Python."""
    return str(value)  # FloorDiv, Mod, Max and Min are names in the program's namespace


def python_literal(value: Any) -> str:
    """An attribute's value as Python."""
    match value:
        case tuple() | list():
            return "[" + ", ".join(map(python_literal, value)) + "]"
        case sympy.Expr():
            return python_index(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
        case torch.device():
            return f"torch.device({str(value)!r})"
    return repr(value)


def _tuple(dims: Sequence[Dim]) -> str:
    return f"({', '.join(map(python_index, dims))}{',' if len(dims) == 1 else ''})"


# -- running it


def namespace(
    source: HostSource, functions: Mapping[str, Callable[..., Any]], library: Library, results: Results
) -> dict[str, Any]:
    """The names that a host program's text refers to."""
    names: dict[str, Any] = {
        "torch": torch,
        "empty": empty,
        "empty_strided": empty_strided_cpu,
        "empty_strided_gpu": empty_strided_gpu,
        "current_stream": current_stream,
        "not_launched": not_launched,
        "increment_version": increment_version,
        "over": over,
        "aligned": aligned,
        "moved": moved,
        "fit": fit,
        "failed": failed,
        "results": results,
        "apply_epilogue": apply_epilogue,
        "FloorDiv": operator.floordiv,
        "Mod": operator.mod,
        "Max": max,
        "Min": min,
    }
    names |= functions
    names |= {name: fast_overload(overload(target)) for name, target in source.operators.items()}
    names |= {name: library.build(Step.from_json(data)) for name, data in source.steps.items()}
    return names


def load_program(
    source: HostSource,
    functions: Mapping[str, Callable[..., Any]],
    library: Library,
    name: str,
    results: Results | None = None,
    recorded: list[Recorded] | None = None,
) -> Run:
    """The callable: takes the function's arguments, gives the user's results, whose memory comes from `results` where it is large.

    What is recorded as CUDA graphs goes to `recorded`, for reports.
    """
    names = namespace(source, functions, library, results or Results())
    exec(compile(source.text, f"<intarsia host program {name}>", "exec"), names)
    make: Callable[[], Run] = names.pop("make")  # functions that their own globals hold are a cycle
    make_constants = names.pop("make_constants", None)
    if source.gpu is not None:
        custom = of_a_library(source.operators.values(), library.record_custom)
        record = library.record and not source.not_recorded and not custom
        recordable = (source.arguments, source.sizes, source.work) if record else None
        make = on_gpu(
            make, source.text, names, source.gpu, recordable, recorded, mutated=source.mutated, halves=source.halves
        )
    run = _pooled(make) if source.stateful else make()
    if source.gpu is None:
        note(make if source.stateful else run, functions)
    if source.constants is None:
        if not source.stateful and source.gpu is None:
            run.text = source.text  # type: ignore[attr-defined]  # a caller may write it into its own function
        return run
    make = make_constants
    if source.gpu is not None:
        make = on_gpu(make, source.text, names, source.gpu, None, entry="make_constants")
    constants = _pooled(make) if source.stateful_constants else make()
    if source.gpu is not None:
        constants = finished(constants, source.gpu)
    return _with_constants(run, constants, source.constants, library)


def _with_constants(run: Run, constants: Run, parameters: Sequence[int], library: Library) -> Run:
    """`run` with further arguments: what `constants` gives for the parameters as they are now."""
    assert library.fingerprint is not None
    known = Folded(lambda *tensors: constants(*tensors), library.fingerprint)

    def call(*args: Any) -> Sequence[Any]:
        return run(*args, *known([args[i] for i in parameters]))

    return call


def _pooled(make: Callable[[], Run]) -> Run:
    """One `run` with its arena for each call that is under way; they are kept for the next calls."""
    pool: list[Run] = [make()]

    def call(*args: Any) -> Sequence[Any]:
        try:
            run = pool.pop()  # atomic: another thread gets another one
        except IndexError:
            run = make()
        try:
            return run(*args)
        finally:
            pool.append(run)

    return call
