"""The host program: from the `buffer` level to a short Python function that allocates, launches and calls.

Everything that can be done once is done once: addresses in the arena, tensors over it, functions looked up. What is left is one line
a step. With symbolic sizes the same lines stand inside the function, because sizes are known only there.

    def make(empty=empty):
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from ...ir.binding import ASSUMED, all_late_names
from ...ir.dialects import buffer, loop, prim
from ...ir.dialects.aten import begins_talk, overload
from ...ir.dtypes import U8, DType
from ...ir.interpreter.loops import find_function
from ...ir.regions import bodies, groups
from ...ir.symbols import Dim, contiguous_strides, dim, free_symbols
from ...ir.syntax import Op, comment_of, line_of
from ...ir.types import RefType, is_gpu
from ...passes.analysis.aliases import shared_operands
from ...passes.analysis.alignment import ALIGNMENT
from ..errors import MISALIGNED, TOO_LARGE, UNALIGNED_WRITE
from ..recordings.recordable import argument_kinds, called, size_reads, why_not, work_of
from .ir import ADDRESS, Function, HostProgram, Kind, Statement, address_of, tuple_of, use, verbatim
from .kernels import (
    Callee,
    Callees,
    SeveralGPUs,
    gpu_index,
    is_quick,
    is_read_on_gpu,
    is_step,
    memories,
    runs_on_gpu,
    viewed,
)
from .large_results import halves
from .library import Library
from .library_product import LYING, PACKED, panels_step
from .memory import planned_bytes
from .partition import Emitted, split
from .pool import LARGE
from .source import HostSource
from .steps import Step
from .text import dtype_text, failure, of_no_round, python_index, python_literal, shape_text, view_text


def _talk(op: buffer.Extern) -> tuple[str, str, str]:
    """A call by which processes talk, as all of them make it: sizes may change, and be others in each."""
    words = [str(v.type.dtype) for v in op.operands if isinstance(v.type, RefType)]
    words += [str(op[key]) for key in ("reduce_op", "src", "group_size") if op.get(key) is not None]
    return str(op.get("group_name", "")), f"{op['target'].split('.')[3]}({', '.join(words)})", line_of(op)


def host_source(module: ModuleOp, library: Library, callees: Callees) -> HostSource:
    """The host program of a module at the `buffer` level.

    Args:
        callees: what targets say of the module's kernels, and of its library calls that kernels carry out.
    """
    main = find_function(module, "main")
    assert main is not None
    kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
    writer = _Writer(main, kernels, library, callees)
    source = writer.write()
    for func in reversed([op for op in module.body.block.ops if isinstance(op, prim.Func) and op is not main]):
        found = {"step": writer.counts.get("step", 0)}
        other = _Writer(func, kernels, library, callees, steps=writer.steps, counts=found)
        writer.counts["step"], source = found["step"], _with(source, func, other.write())
    return source


def _with(source: HostSource, func: prim.Func, made: HostSource) -> HostSource:
    """The host program with that of a function beside `@main`: a body comes before what calls it."""
    program = replace(made.program, name=f"make_{func['sym_name']}")
    own: dict[str, Any] = {"bodies": (*source.bodies, program)}
    if func["sym_name"] == "constants":
        own = {"make_constants": program, "constants": tuple(func["parameters"])}
    return replace(
        source,
        kernels=source.kernels | made.kernels,
        quick=[*source.quick, *made.quick],
        operators=source.operators | made.operators,
        lines=source.lines | made.lines,
        **own,
    )


@dataclass
class _Writer:
    func: prim.Func
    kernels: dict[str, loop.Kernel]
    library: Library
    callees: Callees
    once: list[Statement] = field(default_factory=list)  # of `make`
    each: list[Statement] = field(default_factory=list)  # of `run`
    names: dict[SSAValue, str] = field(default_factory=dict)  # the tensor
    addresses: dict[SSAValue, str] = field(default_factory=dict)  # the address, where one is at hand
    used_kernels: dict[str, int] = field(default_factory=dict)
    quick: set[str] = field(default_factory=set)
    operators: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # expression -> the name that holds it
    place: str = ""
    owner: dict[str, str] = field(default_factory=dict)  # a view -> the tensor that it is a view of
    views: dict[str, list[str]] = field(default_factory=dict)  # a tensor -> its views, theirs too
    large: int = 0  # bytes of results from the pool
    number: int = -1  # of the step that is being written
    result: str = ""
    changed: dict[str, None] = field(default_factory=dict)  # arguments that kernels write to

    def write(self) -> HostSource:
        block = self.func.block_body
        arguments = tuple(f"a{i}" for i in range(len(block.args)))
        self.names |= dict(zip(block.args, arguments, strict=True))
        sizes = size_reads(self.func)
        for name, read in sizes.items():
            self.add(f"{use(name)} = {use(read[0])}{read[1]}", name, kind="size")
        if self.func.get("writes_early"):
            self._check_first()
        arena = self._arena()
        head = list(self.each)
        steps: list[Emitted] = []
        count = 0
        for op in block.ops:
            assert isinstance(op, Op)
            before = len(self.each)
            self.number = count if is_step(op) else -1
            count += is_step(op)
            _STEPS[op.name](self, op)
            steps.append((op, self.each[before:]))
        run = Function("run", arguments, tuple(self.each), self.result)
        refused = why_not(self.func, list(self.operators.values()))
        on_gpu = any(map(runs_on_gpu, self.kernels.values()))
        functions, found = [run], None
        if on_gpu and not refused and not called(self.func):  # a loop is recorded with the rest
            found = halves(self.func, self.kernels, self.once, head, steps, run, self._stream())
            functions = split(head, steps, self.kernels, run, self._stream()) if sizes else []
        return HostSource(
            HostProgram(tuple(self.once), tuple(functions or [run]), arena=arena),
            self.used_kernels,
            self.operators,
            self.steps,
            self.lines,
            planned_bytes(self.func),
            quick=sorted(self.quick),
            large=self.large,
            gpu=self.func_device() if on_gpu else None,
            arguments=argument_kinds(self.func),
            sizes=tuple(map("".join, sizes.values())),
            work=work_of(self.func),
            not_recorded=refused,
            mutated=tuple(dict.fromkeys(argument for argument, _ in self.func.get("mutations", ()))),
            halves=found,
            talks=tuple(_talk(op) for op in block.ops if isinstance(op, buffer.Extern) and begins_talk(op)),
        )

    def add(self, text: str, *writes: str, frees: tuple[str, ...] = (), kind: Kind = "step") -> None:
        """A line of `run`."""
        self.each.append(Statement(text, writes, frees, kind, self.number))

    def line(self, name: str, text: str, dims: Sequence[Dim]) -> None:
        """A name for an expression that depends on these: outside the function if nothing in it is symbolic."""
        if free_symbols(dims):
            self.add(f"{use(name)} = {text}", name)
        else:
            self.once.append(Statement(f"{use(name)} = {text}", (name,)))

    def _address_in_argument(self, value: SSAValue) -> str:
        """Where an argument, or a view of one, begins; "" for other memory."""
        offset: Dim = 0
        while isinstance(value.owner, buffer.View):
            base = value.owner.operands[0]
            assert isinstance(base.type, RefType)
            offset, value = dim(offset + value.owner["offset"] * base.type.dtype.bytes), base
        if not isinstance(value, BlockArgument):
            return ""
        address = f"{use(self.tensor(value))}{ADDRESS}"
        return address if offset == 0 else f"({address} + {python_index(offset)})"

    def _check_first(self) -> None:
        """What a launch could refuse is asked for before anything is written to an argument: the call may yet run in another way."""
        launches = [op for op in self.func.block_body.ops if isinstance(op, buffer.Launch)]
        late = all_late_names(self.func.block_body.ops)
        kernels = {
            op["kernel"]: self.kernels[op["kernel"]] for op in launches if runs_on_gpu(self.kernels[op["kernel"]])
        }
        given, written = dict[str, None](), dict[str, None]()
        for op in launches:
            free = self.kernels[op["kernel"]].get("unaligned", ())
            for place, v in enumerate(op.operands if op["kernel"] in kernels else ()):
                if place not in free and (address := self._address_in_argument(v)):
                    (given if place < kernels[op["kernel"]].operand_count else written)[address] = None
        if written:  # a copy would be written, and not the argument
            self._refuse(f"({' | '.join(written)}) & {ALIGNMENT - 1}", UNALIGNED_WRITE)
        if read := [address for address in given if address not in written]:
            self._refuse(f"({' | '.join(read)}) & {ALIGNMENT - 1}", MISALIGNED, kind="alignment")
        for name, kernel in kernels.items():
            for number in dict.fromkeys(self.callees[kernel].counted):
                if not late.isdisjoint(map(str, free_symbols([number]))):  # the launch itself says it
                    continue
                self._refuse(f"{python_index(number)} > {2**31 - 1}", TOO_LARGE, name)

    def _refuse(self, condition: str, code: int, kernel: str = "", kind: Kind = "step") -> None:
        self.add(f"if {condition}: {use('not_launched')}({code}, {kernel!r})", kind=kind)

    def _arena(self) -> int | None:
        size = self.func.get("arena_bytes", 0)
        allocs = (op for op in self.func.block_body.ops if isinstance(op, buffer.Alloc))
        if all(op["pool"] != "arena" for op in allocs):  # a tensor without elements lies in an arena of no bytes
            return None
        static = isinstance(size, int)
        memory = f"{use('empty')}({size})" if static else self._memory((size,), (1,), U8)
        self.line("arena", memory, (size,))
        self.line("base", f"{use('arena')}.data_ptr()", (size,))
        return size if static else None

    # -- small pieces

    def fresh(self, prefix: str) -> str:
        number = self.counts.get(prefix, 0)
        self.counts[prefix] = number + 1
        return f"{prefix}{number}"

    def comment(self, op: Op) -> None:
        place = line_of(op)
        if place and place != self.place:
            self.place = place
            self.add(verbatim(f"# {comment_of(place)}"), kind="comment")

    def tensor(self, value: SSAValue) -> str:
        """The name of a tensor over the value's memory."""
        if value not in self.names:
            self._arena_tensor(value)
        return self.names[value]

    def _arena_tensor(self, value: SSAValue) -> None:
        op, ref = value.owner, value.type
        assert isinstance(op, buffer.Alloc) and isinstance(ref, RefType)
        offset = op["offset"]
        geometry = f"{shape_text(ref.shape)}, {shape_text(ref.strides)}, {dtype_text(ref.dtype)}"
        text = f"{use('over')}({use('arena')}, {python_index(offset)}, {geometry})"
        self.names[value] = self._shared("b", text, (offset, *ref.shape, *ref.strides, self._arena_size()))

    def _shared(self, prefix: str, text: str, dims: Sequence[Dim]) -> str:
        """The name of an expression over the arena: one line however many values are laid there."""
        if text not in self.known:
            self.known[text] = self.fresh(prefix)
            self.line(self.known[text], text, dims)
        return self.known[text]

    def address(self, value: SSAValue) -> str:
        """The expression for the value's address."""
        if value in self.addresses:
            return self.addresses[value]
        name = self.tensor(value)  # memory of ours is aligned
        return f"{use(name)}{ADDRESS}" if isinstance(value.owner, buffer.Alloc) else address_of(name)

    # -- steps

    def alloc(self, op: Op) -> None:
        result = op.results[0]
        ref = result.type
        assert isinstance(ref, RefType)
        if op["pool"] == "arena":
            offset = op["offset"]
            place = f"{use('base')} + {python_index(offset)}"
            self.addresses[result] = use(self._shared("p", place, (offset, self._arena_size())))
            return
        name = self.fresh("o")
        self.names[result] = name
        self.comment(op)
        if is_gpu(ref.device):
            memory = self._gpu_memory(ref)
        elif op["pool"] == "device":
            memory = f"{use('empty_strided')}({self._geometry(ref.shape, ref.strides, ref.dtype)})"
        else:
            memory = self._memory(ref.shape, ref.strides, ref.dtype)
        self.add(f"{use(name)} = {memory}", name)

    @staticmethod
    def _gpu_memory(ref: RefType) -> str:
        return (
            f"{use('empty_strided_gpu')}({shape_text(ref.shape)}, {shape_text(ref.strides)}, {dtype_text(ref.dtype)})"
        )

    @staticmethod
    def _geometry(shape: Sequence[Dim], strides: Sequence[Dim], dtype: DType) -> str:
        return f"{shape_text(shape)}, {shape_text(strides)}, {dtype_text(dtype)}"

    def _memory(self, shape: Sequence[Dim], strides: Sequence[Dim], dtype: DType) -> str:
        """The expression for uninitialised memory: of the pool where it is large."""
        geometry = self._geometry(shape, strides, dtype)
        small = f"{use('empty_strided')}({geometry})"
        size = dim(math.prod(shape) * dtype.bytes)
        if isinstance(size, int) and size < LARGE:
            return small
        number = self.counts.get("large", 0)
        slot = self.fresh("large")
        if not free_symbols((*shape, *strides)):
            self.line(slot, f"{use('results')}.slot({number}, {geometry})", ())
            self.large += int(size)
            return f"{use(slot)}()"
        return f"{small} if {python_index(size)} < {LARGE} else {use('results')}.any({number}, {geometry})"

    def view(self, op: Op) -> None:
        result = op.results[0]
        ref, base = result.type, op.operands[0]
        assert isinstance(ref, RefType)
        if not result.uses:
            return
        users = [use.operation for use in result.uses]
        called = [
            self.callees.get(user) if isinstance(user, buffer.Contract | buffer.Extern) else None for user in users
        ]
        if all(callee and not callee.packs for callee in called):  # an address is all that is needed
            self.addresses[result] = f"{self.address(base)} + {python_index(dim(op['offset'] * ref.dtype.bytes))}"
            return
        name = self.fresh("v")
        self.names[result] = name
        source = self.tensor(base)
        text = view_text(use(source), ref.shape, ref.strides, op["offset"])
        if isinstance(base.owner, buffer.Alloc) and base.owner["pool"] == "arena":
            assert isinstance(base.type, RefType)  # its tensor may depend on sizes where a view of no elements does not
            dims = (*base.type.shape, *base.type.strides, base.owner["offset"])
            self.line(name, text, (*dims, *ref.shape, *ref.strides, op["offset"], self._arena_size()))
        else:
            self.add(f"{use(name)} = {text}", name)
        self._is_view(name, source)

    def _is_view(self, name: str, of: str) -> None:
        owner = self.owner[name] = self.owner.get(of, of)
        self.views.setdefault(owner, []).append(name)

    def _arena_size(self) -> Dim:
        return self.func.get("arena_bytes", 0)  # type: ignore[no-any-return]

    def _note_writes(self, op: Op) -> None:
        """Arguments that a kernel writes to, or to views of them: autograd and packed weights have to know."""
        for value in op.operands[self.kernels[op["kernel"]].operand_count :]:
            if isinstance(argument := viewed(value), BlockArgument):
                self.changed[self.tensor(argument)] = None

    def launch(self, op: Op) -> None:
        self.comment(op)
        kernel = self.kernels[op["kernel"]]
        arguments = [*map(self.address, op.operands), *map(use, kernel.sizes)]
        gpu = runs_on_gpu(kernel)
        if gpu:
            if "stream" not in self.known:  # asked for once a call
                self.known["stream"] = "stream"
                self.each.append(self._stream()._replace(step=self.number))
            arguments.append(use("stream"))
        self.used_kernels[op["kernel"]], self.lines[op["kernel"]] = len(arguments), tuple(kernel.get("lines", ()))
        if gpu or is_quick(op):
            self.quick.add(op["kernel"])
        self._note_writes(op)
        call = f"{use(op['kernel'])}({', '.join(arguments)})"
        if gpu:
            self._call(call, f"{use('not_launched')}({use('code')}, {op['kernel']!r}{self._late()})")
        elif self.callees[kernel].fails:
            self._call(call, failure(kernel.get("lines", ())))
        else:
            self.add(call)

    def _call(self, call: str, otherwise: str) -> None:
        """A call that gives 0, or something goes wrong."""
        self.add(f"if {use('code')} := {call}: {otherwise}")

    def _stream(self) -> Statement:
        """Asks for torch's current stream."""
        return Statement(f"{use('stream')} = {use('current_stream')}({self.func_device()})", ("stream",), kind="stream")

    def func_device(self) -> int:
        """The number of the GPU that the function's kernels run on.

        Raises:
            SeveralGPUs: they run on more than one.
        """
        found = {
            gpu_index(ref.device) for kernel in self.kernels.values() for ref in memories(kernel) if is_gpu(ref.device)
        }
        if len(found) > 1:
            raise SeveralGPUs(f"a graph with tensors on the GPUs {', '.join(map(str, sorted(found)))} is not compiled")
        return found.pop()

    def kernel_call(self, op: Op, callee: Callee) -> None:
        """A contraction or a library call that a kernel carries out; of a weight it reads a packed copy, where these may take more memory."""
        arguments = [*map(self.address, op.operands), *map(use, callee.symbols)]
        lines = tuple(filter(None, [line_of(op)]))
        self.lines[callee.name] = tuple(dict.fromkeys((*self.lines.get(callee.name, ()), *lines)))
        if callee.packs is not None:
            name, copy, lines = self.fresh("step"), self.fresh("w"), ()
            self.steps[name] = panels_step(callee.packs)
            self.add(f"{use(copy)} = {use(name)}({use(self.tensor(op.operands[callee.packs.operand]))})", copy)
            arguments.append(f"{use(copy)}{ADDRESS}")
        self.used_kernels[callee.name] = len(arguments)
        self._call(f"{use(callee.name)}({', '.join(arguments)})", failure(lines))

    def contract(self, op: Op) -> None:
        self.comment(op)
        self.kernel_call(op, self.callees[op])

    def extern(self, op: Op) -> None:
        self.comment(op)
        if op in self.callees:
            self.kernel_call(op, self.callees[op])
            return
        values = [self.tensor(v) for v in op.operands]
        called = bodies(op)
        step = None if called else self.library.choose(op, self.func)
        if op.get("seed"):
            call = f"{use('draw_seed')}({str(op['device'])!r})"
        elif called:
            given = [tuple_of(list(map(use, g))) if isinstance(g, tuple) else use(g) for g in groups(op, values)]
            given += of_no_round(op)
            call = f"{use(op['target'].split('.')[3])}({', '.join([*map(use, called), *given])})"
        elif step is None:
            call = f"{use(self._operator(op['target']))}({self._arguments(op, values)})"
        else:
            name = self.fresh("step")
            self.steps[name] = step
            call = f"{use(name)}({', '.join(map(use, values))})"
        names = [self.fresh("t") for _ in op.results]
        for name, result in zip(names, op.results, strict=True):
            self.names[result] = name
        returned = overload(op["target"])._schema.returns
        taken, returns = list(names), len(returned)
        several = called or returns > 1 or returns == 1 and str(returned[0].type) == "List[Tensor]"
        if op.get("returned"):  # the others are None
            taken = ["_"] * returns
            for position, name in zip(op["returned"], names, strict=True):
                taken[position] = name
        for name, result in zip(names, op.results, strict=True):
            for operand in shared_operands(op, result)[:1]:
                self._is_view(name, values[list(op.operands).index(operand)])
        unpacked = f"{', '.join(map(use, taken))}{',' if several and len(taken) == 1 else ''}"
        if names or "binds" not in op.attributes:
            self.add(f"{unpacked} = {call}" if names else call, *names)
        if "_" in taken:
            self.add(f"{use('_')} = None")
        self._bind_late(op, call, names)
        for name, result in zip(names, op.results, strict=True):
            ref = result.type
            assert isinstance(ref, RefType)
            known = (
                step is not None and step.builder in (PACKED, LYING) and ref.strides == contiguous_strides(ref.shape)
            )
            if not known and any(not isinstance(u.operation, buffer.Free) for u in result.uses):
                self._check_result(use(name), name, ref, op["target"])
            if self._late() and is_read_on_gpu(result, self.kernels):  # a launch that refuses it could not begin again
                unaligned = f"{address_of(name)} & {ALIGNMENT - 1}"
                self.add(f"if {unaligned}: {use(name)} = {use('moved')}({use(name)})", name)

    def _bind_late(self, op: Op, call: str, tensors: Sequence[str]) -> None:
        """The names that the call binds, and what the program relies on of these."""
        for name, which, dimension in op.get("binds", ()):
            read = f"int({call})" if dimension == -1 else f"{use(tensors[which])}.shape[{dimension}]"
            self.add(f"{use(name)} = {read}", name, kind="size")
        rows = [f"{python_index(a)} {ASSUMED[relation]} {python_index(b)}" for relation, a, b in op.get("assumes", ())]
        if rows:
            late = bool(self._late())
            holds = " and ".join(dict.fromkeys(rows))
            self.add(f"if not ({holds}): {use('not_assumed')}({late}, {line_of(op)!r})", kind="size")

    def _check_result(self, value: str, name: str, ref: RefType, target: str) -> None:
        """What a library gives has to be what was planned."""
        planned = f"({dtype_text(ref.dtype)}, {shape_text(ref.shape)}, {shape_text(ref.strides)})"
        found = f"({value}.dtype, {value}.shape, {value}.stride())"
        late = f"{self._late() or ', False'}, {target!r}"
        self.add(f"if {found} != {planned}: {value} = {use('fit')}({value}, *{planned}{late})", name)

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
                items[int(index)] = use(value)
            else:
                given[base] = use(value)
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
        source, target = (use(self.tensor(v)) for v in op.operands)
        self.add(f"{target}.copy_({source})")

    def free(self, op: Op) -> None:
        name = self.names[op.operands[0]]
        names = (name, *self.views.get(name, ()))  # a view would keep the memory
        self.add(f"{' = '.join(map(use, names))} = None", frees=names)

    def finish(self, op: Op) -> None:
        specs = self.func.get("results")
        if specs is None:
            specs = tuple(("value", k) for k in range(len(op.operands)))
        shared = {spec[1] for spec in specs if spec[0] == "output"}  # one object in two places of the result
        items = []
        for position, spec in enumerate(specs):
            item = self._result(spec, op)
            if position in shared:
                self.add(f"{use(f'r{position}')} = {item}", f"r{position}")
                item = use(f"r{position}")
            items.append(item)
        if self.changed:
            self.add(f"{use('increment_version')}(({', '.join(map(use, self.changed))},))")
        self.result = tuple_of(items)

    def _result(self, spec: Sequence[Any], op: Op) -> str:
        match spec[0]:
            case "value":
                return use(self.tensor(op.operands[spec[1]]))
            case "input":
                return use(f"a{spec[1]}")
            case "alias":
                return view_text(use(f"a{spec[1]}"), *spec[2:])
            case "alias_output":
                return self._alias(op.operands[spec[1]], *spec[2:])
            case "output":
                return use(f"r{spec[1]}")
            case "size" | "constant":
                return python_literal(spec[1])
            case "none":
                return "None"
        raise ValueError(f"unknown result kind {spec[0]!r}")

    def _alias(self, value: SSAValue, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> str:
        """Another tensor over the memory of a result; one that shows all of it is no view to autograd, as eager's is none."""
        ref, base = value.type, use(self.tensor(value))
        assert isinstance(ref, RefType)
        if (*ref.shape,) == (*sizes,) and (*ref.strides,) == (*strides,) and offset == 0:
            return f"{base}.detach()"
        return view_text(base, sizes, strides, offset)


_STEPS: dict[str, Callable[[_Writer, Op], None]] = {
    "buffer.alloc": _Writer.alloc,
    "buffer.view": _Writer.view,
    "buffer.launch": _Writer.launch,
    "buffer.extern": _Writer.extern,
    "buffer.contract": _Writer.contract,
    "buffer.copy": _Writer.copy,
    "buffer.free": _Writer.free,
    "prim.return": _Writer.finish,
}
