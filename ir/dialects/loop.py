"""`loop` and `scalar`: in what order, with which loops.

    loop.kernel @k0() {inputs = 1} ({ ^bb0(%x: !buffer.ref<...>, %o: !buffer.ref<...>):
      loop.for<parallel>() {var = i0, stop = s0} ({
        %sum = loop.local() {value = 0.0, size = 1} : !buffer.ref<[1], [1], f32>
        loop.for<reduce>() {var = r0, stop = 768, vector = true} ({
          %0 = loop.load(%x)[768*i0 + r0] : !loop.scalar<f32>
          loop.accumulate<sum>(%0, %sum)[0]
        })
        ...

Values are SSA scalars, addresses are algebra: loads and stores carry one flat index, in elements from the start of the
memory, over loop variables and size symbols. Names of loop variables are unique within a kernel.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.ir import OpTraits, SSAValue
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from ..binding import check_bound
from ..scalars import DOT, JOINT, REDUCES, SCALARS, ScalarRow, follow
from ..syntax import Op
from ..types import RefType, ScalarType, scalar_type

MEMBER = "n"  # the size symbol of a kernel with `members`


class Kernel(Op):
    """A kernel: its arguments are memory, the first `inputs` of them read, the rest written (or both).

    `symbols`: the size symbols that it is given, in order. `lines`: the user's lines it comes from (["file:line", ...]).
    `warps`: how many of a GPU work on one block; `stages`: how many blocks of a product's operands are on their way at once.
    `unaligned`: arguments that may begin anywhere, where the others begin at multiples of 16 bytes (on a GPU).
    `contract = false`: no product and sum are rounded at once, and quotients are rounded to nearest.
    `plain = true`: loops, rows and stages are as `lower` gives them, and passes that choose loops may still read them back.
    `members = [40, 1200]`: one launch runs it once for each of these numbers, which is the size symbol `n` then, on memory of that
    member's own, but for the first `shared` inputs. Operands are the shared inputs, the first member's inputs, the second's, ..., results
    the first member's outputs, the second's, ...
    """

    name = "loop.kernel"
    has_body = True
    at = "sym_name"
    arity = 0
    outputs = 0
    required = ("sym_name", "inputs")
    is_pure = False
    traits = OpTraits(lambda: (IsolatedFromAbove(), NoTerminator()))

    @property
    def members(self) -> tuple[int | None, ...]:
        """The size of each run of a launch; (None,) where there is one run of no particular size."""
        return self.get("members") or (None,)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The size symbols that a launch gives it."""
        own = {MEMBER} if "members" in self.attributes else set()
        return tuple(name for name in map(str, self.get("symbols", ())) if name not in own)

    @property
    def operand_count(self) -> int:
        """How many values the runs of a launch read in all; what they write comes behind them."""
        shared: int = self.get("shared", 0)
        found: int = shared + len(self.members) * (self["inputs"] - shared)
        return found

    def argument(self, place: int) -> tuple[int, int | None]:
        """Which argument the value at a place of a launch is, and to which of the runs it is given; None: to all."""
        shared, inputs, first = self.get("shared", 0), self["inputs"], self.operand_count
        if place < shared:
            return place, None
        own, begin = (inputs - shared, shared) if place < first else (len(self.block_body.args) - inputs, first)
        member, k = divmod(place - begin, own)
        return k + (shared if place < first else inputs), member

    def places(self, member: int) -> list[int]:
        """The places of a launch's values that one run is given, in the order of the arguments."""
        shared, inputs = self.get("shared", 0), self["inputs"]
        own, outputs = inputs - shared, len(self.block_body.args) - inputs
        begin, end = shared + member * own, self.operand_count + member * outputs
        return [*range(shared), *range(begin, begin + own), *range(end, end + outputs)]

    def check(self) -> None:
        names = {str(name) for name in self.get("symbols", ())}
        names |= {str(op["var"]) for op in self.walk() if isinstance(op, For | Bind)}
        if "members" in self.attributes:
            names.add(MEMBER)
            if not self["members"] or not all(isinstance(size, int) for size in self["members"]):
                raise VerifyException(f"{self.name}: `members` are numbers, one for each run")
        for op in self.block_body.walk():  # the types of its memory may have symbols that it does not need
            check_bound(op, names, "loop and no argument (see `symbols` of loop.kernel)")


class Launch(Op):
    """Run a kernel: operands are its inputs, results its outputs. Replaced by `buffer.launch` when memory is planned.

    A kernel with `updates = k` leaves parts of its one output as they are: it holds input k before.
    """

    name = "loop.launch"
    at = "kernel"
    arity = None
    outputs = None
    required = ("kernel",)


KINDS = ("parallel", "serial", "reduce", "scan")
FORMS = ("transpose", "extreme", "arg_rows", "blocked_scan", "near_angles", "measured_angles")


class For(Op):
    """Run the body for `var` = `start` (default 0), start + `step` (default 1) ... below `stop`.

    Kinds: `parallel` (iterations are independent and are spread over threads), `serial` (independent, one thread), `reduce`
    (iterations meet only in `loop.accumulate`), `scan` (in order). `vector = true` asks for SIMD lanes along this loop;
    `unroll = n` for copies; `grain` is the least number of iterations worth a thread. On a GPU `block = n` makes n iterations one
    operation on a tensor: under `parallel` each program of the grid takes one block, else a program takes them one after another.
    `apart = true`: neighbours of the block go to different threads, because what they read lies in steps or begins anywhere.
    The iterations of a `cooperative` loop are programs, too, as many for each row as it has iterations (`loop.exchange`).
    `group = n`: programs take n blocks of this loop with one of the loop inside, then with the next one, so that caches serve both.
    `persistent = n`, of the outermost loop: at most n programs walk over all blocks, so that one's loads begin while another's is stored.
    `transpose = true`: this loop and the one directly in it copy, reading along one of them and writing along the other.

    `form`, which `choose-forms` sets on loops of that shape: what a CPU runs in the loop's place, with the same results.
    `transpose`: blocks turned in registers. `extreme`: an argmax or argmin in two vector loops, the extreme and then its first place.
    `arg_rows`: argmax or argmin of columns, row by row. `blocked_scan`: a running reduction of blocks in the nearest cache.
    `near_angles`: sin and cos for angles near zero. `measured_angles`: these where a loop that runs before finds no angle far from it.
    """

    name = "loop.for"
    has_body = True
    angle = "kind"
    arity = 0
    outputs = 0
    required = ("kind", "var", "stop")
    is_pure = False
    traits = OpTraits(lambda: (NoTerminator(),))

    def check(self) -> None:
        if self["kind"] not in KINDS:
            raise VerifyException(f"loop.for: unknown kind '{self['kind']}'; known: {', '.join(KINDS)}")
        if self.get("form", FORMS[0]) not in FORMS:
            raise VerifyException(f"loop.for: unknown form '{self['form']}'; known: {', '.join(FORMS)}")


class Local(Op):
    """Scratch memory that lives for one iteration of the loops around it: `size` elements, all `value` at first.

    `size` 1 is a register. No `value`: not initialised. `element`, in a plain kernel: which element of a reduction it gathers, where that is
    not the one that the row loops around it number.
    """

    name = "loop.local"
    arity = 0
    required = ("size",)
    is_pure = False


def is_register(memory: SSAValue) -> bool:
    """Whether memory is scratch of one element."""
    return isinstance(memory.owner, Local) and memory.owner["size"] == 1


class _Access(Op):
    bracket = "index"
    memory: ClassVar[int] = -1  # which operand is the memory

    def check(self) -> None:
        if not isinstance(self.operands[self.memory].type, RefType):
            raise VerifyException(f"{self.name}: operand {self.memory} is not memory")
        if "index" not in self.attributes:
            raise VerifyException(f"{self.name} needs an index: {self.name}(...)[index]")

    @property
    def ref(self) -> RefType:
        """The memory's type."""
        found = self.operands[self.memory].type
        assert isinstance(found, RefType)
        return found


class Load(_Access):
    """The element at `index`. With `mask` (a list of expressions): only where all are >= 0, else the value `other`.

    Half types arrive as f32: the result type says so.
    """

    name = "loop.load"
    arity = 1
    memory = 0


class Store(_Access):
    """Write operand 0 to `index` of operand 1. `mask` as in `loop.load`. An f32 value is rounded to half types.

    `stream = true`: the memory is larger than the caches, and better written past them. It changes no value.
    """

    name = "loop.store"
    arity = 2
    outputs = 0
    is_pure = False


class Accumulate(_Access):
    """Join operand 0 into `index` of operand 1: m[index] = combine(m[index], value), in any order under `reduce`.

    `argmax`/`argmin`: operands are value, position, memory of values, memory of positions (i64); the first position wins.
    `max_expsum`, `moments` (`scalars.JOINT`): operands are the value and one memory for each of what is computed together.
    `dot`: the product of operands 0 and 1, each rounded to `dtype` before, is added to the memory; `tf32 = true`: float32 may lose bits.
    In a plain kernel `tile` is the tile that a product asks for, and `bag = true` says that numbers in memory choose what is joined.
    """

    name = "loop.accumulate"
    angle = "kind"
    arity = None
    outputs = 0
    is_pure = False
    required = ("kind",)

    def check(self) -> None:
        super().check()
        kind = self["kind"]
        if kind not in REDUCES and kind not in JOINT and kind != DOT:
            known = ", ".join([*REDUCES, *JOINT, DOT])
            raise VerifyException(f"loop.accumulate: unknown kind '{kind}'; known: {known}")
        expected = 1 + len(JOINT[kind]) if kind in JOINT else 4 if kind.startswith("arg") else 2 + (kind == DOT)
        if len(self.operands) != expected:
            raise VerifyException(f"loop.accumulate<{self['kind']}> takes {expected} operands")


class Exchange(Op):
    """Behind a `cooperative` loop: programs of a GPU that share a row give each other what they have accumulated.

    Operands: n scratch memories; n memories that hold what each program gives, in their order; and a counter for each row (or block of
    rows), 0 at first. `count`: how many programs share one. Where one iteration follows another, all has been joined already.
    """

    name = "loop.exchange"
    arity = None
    outputs = 0
    is_pure = False
    required = ("count",)

    def check(self) -> None:
        if len(self.operands) % 2 == 0:
            raise VerifyException("loop.exchange takes scratch, as many memories, and a counter")


class Atomic(_Access):
    """Join operand 0 into `index` of operand 1, memory that other iterations and programs join values into, in any order."""

    name = "loop.atomic"
    angle = "kind"
    arity = 2
    outputs = 0
    is_pure = False
    required = ("kind", "index")


class Index(Op):
    """The value of an index expression `value`, as a scalar of the result's dtype."""

    name = "loop.index"
    arity = 0
    required = ("value",)


class Bind(Op):
    """Give operand 0, an integer read from memory, the name `var` in the index expressions that follow in this block.

    It is checked to lie in 0 <= var < `size` (after adding `size` to negative ones when `wrap`); a value outside makes the
    kernel report an IndexError and counts as 0. `inside = true`: it was computed so that it lies there, and nothing is checked.
    """

    name = "loop.bind"
    arity = 1
    outputs = 0
    is_pure = False
    required = ("var", "size")

    @property
    def is_checked(self) -> bool:
        """Whether a value outside is an error of the kernel."""
        return not self.get("inside", False)


class Prefetch(_Access):
    """Ask for `count` elements from `index` on, which later iterations read in no order. It changes no value and may point
    outside the memory.
    """

    name = "loop.prefetch"
    arity = 1
    outputs = 0
    memory = 0
    is_pure = False
    required = ("count",)


class ScalarOp(Op):
    """One row of the scalar table, on single elements."""

    row: ClassVar[ScalarRow]

    def check(self) -> None:
        dtypes = [scalar(v).dtype for v in self.operands]
        compared = dtypes[1:] if self.row.name == "where" else dtypes
        if len(set(compared)) > 1:
            raise VerifyException(f"{self.name}: operands differ in dtype: {', '.join(d.name for d in dtypes)}")
        expected = self.row.result_dtype(dtypes)
        if scalar(self.results[0]).dtype != expected:
            raise VerifyException(f"{self.name}: the result is {self.results[0].type}, not {expected.name}")


def scalar(value: SSAValue) -> ScalarType:
    """The value's type, known to be a scalar.

    Raises:
        VerifyException: it is something else.
    """
    if not isinstance(value.type, ScalarType):
        raise VerifyException(f"expected a scalar, found {value.type}")
    return value.type


def _scalar_op(row: ScalarRow) -> type[ScalarOp]:
    body = {"name": f"scalar.{row.name}", "row": row, "arity": row.arity, "__doc__": row.note or row.name}
    return type(f"Scalar{row.name.title()}", (ScalarOp,), body)


SCALAR_OPS: dict[str, type[ScalarOp]] = {row.name: _scalar_op(row) for row in SCALARS.values()}
follow(lambda row: SCALAR_OPS.update({row.name: _scalar_op(row)}))


class Constant(Op):
    """A number: `value`, of the result's dtype."""

    name = "scalar.constant"
    arity = 0
    required = ("value",)


class ScalarCast(Op):
    """Convert to the result's dtype. `checked`, in a plain kernel: names of `loop.bind` that must be in range wherever this is used."""

    name = "scalar.cast"
    arity = 1


def scalar_op(name: str, *operands: SSAValue) -> ScalarOp:
    """Build `scalar.<name>` with its result type inferred."""
    cls = SCALAR_OPS[name]
    dtype = cls.row.result_dtype([scalar(v).dtype for v in operands])
    return cls.make(operands, [scalar_type(dtype)])


LOOP_OPS = (Kernel, Launch, For, Local, Load, Store, Accumulate, Atomic, Exchange, Index, Bind, Prefetch)
SCALAR_DIALECT_OPS = (Constant, ScalarCast) + tuple(SCALAR_OPS.values())
