"""Loops and branches that values decide, inside of a recording: conditional nodes of a CUDA graph, so that the host takes no part in a round.

    graph:  copy the carried values -> condition -> set ── while ──▶ body: round -> copy what it carries on -> condition -> set

`set` is a kernel of one thread that tells the node whether to go on. It also reads a word that the host writes where the user interrupts the
program: a playback that holds a loop is waited for in Python, so that Ctrl-C ends a loop that would never end (`Interruptible`).

What a node may hold is the driver's to say (12.4 and later: kernels, copies, fills and further nodes); where it refuses, the program is not
recorded, and its loops are the host's. What the host reads inside of a body cannot be recorded: `recordable.why_not` says so beforehand.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...ir import regions
from ..torch_private import storage_address

Body = Callable[..., Sequence[Tensor]]

# CUDA's names: a node's type, its two kinds, how a handle begins, a capture's mode.
CONDITIONAL, IF, WHILE, ASSIGN_DEFAULT, THREAD_LOCAL = 13, 0, 1, 1, 1
SET_DEPENDENCIES = 1
SPIN = 2e-3  # seconds for which a playback is asked again and again whether it has ended
PAUSE = 5e-5  # seconds between two questions behind that

# set_condition(handle, flag, stop, wanted): the node runs (again) where the truth at `flag` is `wanted` and nobody has said stop.
_SET = b"""
.version 7.8
.target sm_75
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry set_condition(.param .u64 handle, .param .u64 flag, .param .u64 stop, .param .u32 wanted)
{
  .reg .pred %p, %q;
  .reg .b32 %truth, %wanted, %stopped, %value;
  .reg .b64 %handle, %flag, %stop;
  ld.param.u64 %handle, [handle];
  ld.param.u64 %flag, [flag];
  ld.param.u64 %stop, [stop];
  ld.param.u32 %wanted, [wanted];
  cvta.to.global.u64 %flag, %flag;
  cvta.to.global.u64 %stop, %stop;
  ld.global.u8 %truth, [%flag];
  ld.volatile.global.u32 %stopped, [%stop];
  setp.ne.u32 %p, %truth, 0;
  selp.u32 %truth, 1, 0, %p;
  setp.eq.u32 %p, %truth, %wanted;
  setp.eq.and.u32 %q, %stopped, 0, %p;
  selp.u32 %value, 1, 0, %q;
  {
    .param .b64 to;
    .param .b32 what;
    st.param.b64 [to], %handle;
    st.param.b32 [what], %value;
    call cudaGraphSetConditional, (to, what);
  }
  ret;
}
"""


class _NodeParams(ctypes.Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("reserved0", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("reserved1", ctypes.c_longlong * 25),
        ("reserved2", ctypes.c_longlong),
    ]


def while_loop(
    condition: Body, body: Body, carried: Sequence[Tensor], operands: Sequence[Tensor] = ()
) -> Sequence[Tensor]:
    """`regions.while_loop`; while the program is recorded, a node."""
    nodes: Nodes | None = getattr(_thread, "nodes", None)
    if nodes is None:
        return regions.while_loop(condition, body, carried, operands)
    return nodes.while_loop(condition, body, carried, operands)


def cond(true_body: Body, false_body: Body, pred: Tensor, operands: Sequence[Tensor] = ()) -> Sequence[Tensor]:
    """`regions.cond`; while the program is recorded, two nodes."""
    nodes: Nodes | None = getattr(_thread, "nodes", None)
    if nodes is None:
        return regions.cond(true_body, false_body, pred, operands)
    return nodes.cond(true_body, false_body, pred, operands)


_thread = threading.local()


class Nodes:
    """The conditional nodes of one recording.

    Args:
        index: number of the GPU, the current one.

    Attributes:
        stop: the word that ends all loops; None: there are no nodes.
    """

    def __init__(self, index: int) -> None:
        self.index, self.depth = index, 0
        self.stop: Tensor | None = None
        self._word = torch.zeros(1, dtype=torch.int32, device=f"cuda:{index}")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, this thread's loops and branches are nodes."""
        _thread.nodes = self
        try:
            yield
        finally:
            _thread.nodes = None

    def while_loop(
        self, condition: Body, body: Body, carried: Sequence[Tensor], operands: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """What is carried when the condition no longer holds: memory that each round is read from and copied to."""
        tried = self._tried(lambda: body(*carried, *operands))
        # A round that gives a carried tensor back has written to it: such memory is the loop's own.
        places = [x if y is x else _like(x).copy_(x) for x, y in zip(carried, tried, strict=True)]
        del tried
        handle = self._handle()
        self._set(handle, condition(*places, *operands)[0])

        def around() -> None:
            _copy_all(places, body(*places, *operands))
            self._set(handle, condition(*places, *operands)[0])

        self._node(handle, WHILE, around)
        return places

    def cond(self, true_body: Body, false_body: Body, pred: Tensor, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """What one of the bodies gives, in memory that both copy to."""
        places = [_like(x) for x in self._tried(lambda: true_body(*operands))]
        for wanted, body in ((1, true_body), (0, false_body)):
            handle = self._handle()
            self._set(handle, pred, wanted)
            self._node(handle, IF, lambda body=body: _copy_all(places, body(*operands)))  # type: ignore[misc]
        return places

    def _tried(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """What the work gives, of a capture that is thrown away: shapes, and which arguments it gives back."""
        library, graph = _library(), ctypes.c_void_p()
        with self._deeper() as side:
            stream = ctypes.c_void_p(side.cuda_stream)
            _check(library.cuStreamBeginCapture_v2(stream, THREAD_LOCAL), "try the body")
            try:
                return list(work())
            finally:
                library.cuStreamEndCapture(stream, ctypes.byref(graph))
                library.cuGraphDestroy(graph)

    @contextmanager
    def _deeper(self) -> Iterator[Any]:
        """The stream that a body is captured on, as the current one."""
        self.depth += 1
        side = _side(self.index, self.depth)
        try:
            with torch.cuda.stream(side):
                yield side
        finally:
            self.depth -= 1

    def _handle(self) -> int:
        made, (graph, _, _) = ctypes.c_uint64(), self._underway()
        code = _library().cuGraphConditionalHandleCreate(ctypes.byref(made), graph, _context(), 0, ASSIGN_DEFAULT)
        _check(code, "make the handle")
        return made.value

    def _underway(self) -> tuple[ctypes.c_void_p, Any, ctypes.c_size_t]:
        """The graph that the current stream captures to, and what its next node comes behind."""
        library = _library()
        status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        behind, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.index).cuda_stream)
        _check(
            library.cuStreamGetCaptureInfo_v2(stream, *map(ctypes.byref, (status, number, graph, behind, count))),
            "name the graph",
        )
        return graph, behind, count

    def _set(self, handle: int, flag: Tensor, wanted: int = 1) -> None:
        """A kernel that tells the node of a handle."""
        stop = self.stop = self._word
        given = (
            ctypes.c_uint64(handle),
            ctypes.c_uint64(flag.data_ptr()),
            ctypes.c_uint64(stop.data_ptr()),
            ctypes.c_uint32(wanted),
        )
        arguments = (ctypes.c_void_p * len(given))(*(ctypes.addressof(x) for x in given))
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.index).cuda_stream)
        code = _library().cuLaunchKernel(_setter(self.index), 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)
        _check(code, "launch its kernel")

    def _node(self, handle: int, kind: int, work: Callable[[], None]) -> None:
        """A node behind what was captured so far, with what the work starts."""
        library, node = _library(), ctypes.c_void_p()
        graph, behind, count = self._underway()
        params = _NodeParams(type=CONDITIONAL, handle=handle, kind=kind, size=1, context=_context())
        _check(library.cuGraphAddNode(ctypes.byref(node), graph, behind, count, ctypes.byref(params)), "add the node")
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.index).cuda_stream)
        inner, ended = ctypes.c_void_p(params.graphs[0]), ctypes.c_void_p()
        with self._deeper() as side:
            there = ctypes.c_void_p(side.cuda_stream)
            code = library.cuStreamBeginCaptureToGraph(there, inner, None, None, ctypes.c_size_t(0), THREAD_LOCAL)
            _check(code, "begin the body")
            try:
                work()
            finally:
                code = library.cuStreamEndCapture(there, ctypes.byref(ended))
            _check(code, "end the body")
        one = ctypes.c_size_t(1)
        code = library.cuStreamUpdateCaptureDependencies(stream, ctypes.byref(node), one, SET_DEPENDENCIES)
        _check(code, "go on behind the node")


class Interruptible:
    """Playing back a recording with loops: Python waits for it, as eager waits in each round.

    Args:
        launch: plays it back on a stream.
        nodes: its nodes.
    """

    def __init__(self, launch: Callable[[int], object], nodes: Nodes) -> None:
        assert nodes.stop is not None
        self.launch, self.stop, self.index = launch, nodes.stop, nodes.index
        self.ended = torch.cuda.Event()
        self.ended.record()  # makes it, which takes longer than to use it
        self.aside = torch.cuda.Stream(nodes.index)
        # What had the word's memory before may still be read by kernels that wait on the caller's stream.
        self.aside.wait_stream(torch.cuda.current_stream(nodes.index))
        self._say(0)  # what the driver does once, it could not do while a loop runs

    def __call__(self, stream: int) -> None:
        self.launch(stream)
        code = _library().cuEventRecord(ctypes.c_void_p(self.ended.cuda_event), ctypes.c_void_p(stream))
        _check(code, "tell its end")
        try:
            start = time.perf_counter()
            while not self.ended.query():
                if time.perf_counter() - start > SPIN:
                    time.sleep(PAUSE)
        except BaseException as error:  # what a signal's handler raises: no mistake of the graph's
            error.of_program = True  # type: ignore[attr-defined]
            self._end()
            raise

    def _end(self) -> None:
        """Let all loops end at once."""
        self._say(1)
        self.ended.synchronize()
        self._say(0)

    def _say(self, word: int) -> None:
        """Write the word. A copy, no kernel: the driver may load one only when the GPU is idle."""
        from ..triton.program import driver

        stream, data = self.aside.cuda_stream, word.to_bytes(4, sys.byteorder)
        _check(driver().write(self.stop.data_ptr(), data, len(data), stream), "write a word")
        self.aside.synchronize()


def _like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _copy_all(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy each value to its place, in one kernel for each dtype; what lies in one of the places is read before any is written."""
    lying = {storage_address(place) for place in places}
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, value in zip(places, values, strict=True):
        if value is not place:
            to, given = by_dtype.setdefault(place.dtype, ([], []))
            to.append(place)
            given.append(value.clone() if storage_address(value) in lying else value)
    for to, given in by_dtype.values():
        torch.ops.aten._foreach_copy_(to, given)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _side(index: int, depth: int) -> Any:
    """The stream on which bodies at a depth are captured: libraries keep memory for each that they were called on."""
    return torch.cuda.Stream(index)


@cache
def _setter(index: int) -> ctypes.c_void_p:
    """The kernel, in the context of a GPU, which is the current one."""
    library, module, function = _library(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.cuModuleLoadData(ctypes.byref(module), _SET), "load its kernel")
    _check(library.cuModuleGetFunction(ctypes.byref(function), module, b"set_condition"), "find its kernel")
    return function


def _context() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    _check(_library().cuCtxGetCurrent(ctypes.byref(context)), "name the context")
    return context


def _check(code: int, what: str) -> None:
    if code:
        from ..triton.program import driver

        words = driver().words(code)
        raise RuntimeError(
            f"a loop or branch cannot be recorded: the CUDA driver does not {what}: {words} (error {code})"
        )
