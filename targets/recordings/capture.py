"""One run of a program captured as a CUDA graph.

The driver's own capture comes first: torch's puts the default random generator of the GPU into a state in which other threads cannot draw.
Programs whose library calls draw random numbers need that state, and are captured by torch while no other thread runs that may draw, too
(`drawing_threads`); seeds of our own kernels are drawn before a playback (seeds.py).

torch keeps a block of memory for cuBLAS (32 MiB on Hopper) for each thread and stream that has called it. Those of the calls before a
recording are used no more, and the recording's own would take up its memory for good: in a step whose halves run in two threads these are
four blocks, so they are given back around a capture (`Workspaces`).
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from sys import getrefcount
from typing import Any

import torch

from ...ir.snapshots import members
from ..torch_private import clear_workspaces
from .conditional import Interruptible, Nodes

Replay = Callable[[int], object]  # the stream on which it is played back
INVALID_CONTEXT = 201  # what the driver says in a thread in which the CUDA runtime was not called yet
_REFUSED = "the CUDA driver does not"
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile is allowed


def capture(work: Callable[[], list[Any]], index: int, memory: Any, side: Any) -> tuple[Replay, list[Any]]:
    """What plays the work back, and its results as they are in the recording's memory.

    Args:
        work: starts kernels on the current stream.
        index: number of the GPU, which is the current one.
        memory: torch's memory pool that everything allocated is taken from.
        side: the stream to capture on.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
    side.wait_stream(torch.cuda.current_stream(index))
    with WORKSPACES.given_back():
        try:
            return _by_driver(work, index, memory, side)
        except (AttributeError, OSError):  # another driver
            pass
        except RuntimeError as error:
            if not ("generator" in str(error) or str(error).startswith(_REFUSED)):
                raise
        if others := drawing_threads():
            raise RuntimeError(f"it draws random numbers, and other threads run that may, too: {', '.join(others)}")
        return _by_torch(work, memory, side)


def in_context(code: int, call: Callable[..., int], *args: object) -> int:
    """The error number of a call, which is made once more in a thread that was new to the driver."""
    if code != INVALID_CONTEXT:
        return code
    torch.cuda.synchronize()  # gives the thread the device's context
    return call(*args)


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


# Threads of these run nothing of the program's: they wait for processes, files or the clock, or copy to pinned memory.
QUIET = (
    *("intarsia", "tqdm", "execnet", "torch._inductor", "torch.utils.data._utils.pin_memory"),
    *("tensorboard", "tensorboardX", "wandb", "IPython", "ipykernel", "zmq"),
)


def drawing_threads() -> list[str]:
    """The names of threads that may draw random numbers while this one captures.

    Not among them are threads that Python did not start (autograd's, whose drawing is a part of this program, while the main one waits for it),
    and those whose function, or class, is of a package that is known to draw none.
    """
    mine = {threading.current_thread()}
    if any(map(_is_dummy, mine)):
        mine.add(threading.main_thread())
    return [t.name for t in threading.enumerate() if t not in mine and not _is_dummy(t) and not _is_quiet(t)]


def _is_dummy(thread: threading.Thread) -> bool:
    """Whether a thread was not started by Python."""
    return isinstance(thread, threading._DummyThread)


def _is_quiet(thread: threading.Thread) -> bool:
    if type(thread) is threading.Thread:
        target = getattr(thread, "_target", None)
        module = getattr(target, "__module__", None) or type(target).__module__
    else:
        module = type(thread).__module__
    return module.startswith(tuple(f"{package}." for package in QUIET)) or module in QUIET


class Graphs:
    """The CUDA graphs of this process that torch made.

    Args:
        kind: torch's class.
    """

    def __init__(self, kind: type | None = None) -> None:
        self.kind: type = torch.cuda.CUDAGraph if kind is None else kind
        self.ours: weakref.WeakSet[Any] = weakref.WeakSet()
        self._none_at = -1  # references to the class when there was no graph: each has one

    def are_others(self) -> bool:
        """Whether somebody else has one. To look at all objects takes 0.2 us each, so it is not done twice for the same."""
        count = getrefcount(self.kind)
        if count == self._none_at:
            return False
        ours = {id(graph) for graph in members(self.ours)}
        found = any(issubclass(type(x), self.kind) and id(x) not in ours for x in gc.get_objects())
        self._none_at = -1 if found or ours else count
        return found


class Workspaces:
    """Gives back what torch keeps for cuBLAS.

    Args:
        clear: does so; None: this torch cannot.
        others: whether somebody else has CUDA graphs, which may use a block.
        threads: names of threads that may be about to use one.
    """

    def __init__(
        self,
        clear: Callable[[], None] | None,
        others: Callable[[], bool],
        threads: Callable[[], list[str]],
    ) -> None:
        self.clear, self.others, self.threads = clear, others, threads
        self.stay = clear is None

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Inside of this context a recording takes blocks of its own; behind it they are memory of the recording like any other.

        Once a recording was made without it, blocks stay for ever: that one may use a block in the memory of another, where none has to be.
        """
        self.stay = self.stay or bool(self.threads()) or self.others()
        if self.stay or self.clear is None:
            yield
            return
        self.clear()
        try:
            yield
        finally:
            self.clear()


GRAPHS = Graphs()
WORKSPACES = Workspaces(clear_workspaces, GRAPHS.are_others, drawing_threads)


def _by_torch(work: Callable[[], list[Any]], memory: Any, side: Any) -> tuple[Replay, list[Any]]:
    graph = torch.cuda.CUDAGraph()
    GRAPHS.ours.add(graph)
    # It must not go before the graph, also where capturing fails half-way.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    with torch.cuda.stream(side):
        graph.capture_begin(pool=memory.id, capture_error_mode="thread_local")
        try:
            results = work()
        except BaseException:
            with suppress(RuntimeError):  # the capture is spoiled, which is said once
                graph.capture_end()
            raise
        graph.capture_end()
    return lambda stream: graph.replay(), results


def _by_driver(work: Callable[[], list[Any]], index: int, memory: Any, side: Any) -> tuple[Replay, list[Any]]:
    library, launch = _libraries()
    stream, graph, executable = ctypes.c_void_p(side.cuda_stream), ctypes.c_void_p(), ctypes.c_void_p()
    nodes = Nodes(index)
    with torch.cuda.stream(side), torch.cuda.use_mem_pool(memory, index):
        _check(library.cuStreamBeginCapture_v2(stream, THREAD_LOCAL), "begin a capture")
        try:
            with nodes.recording():
                results = work()
        except BaseException:
            library.cuStreamEndCapture(stream, ctypes.byref(graph))
            library.cuGraphDestroy(graph)
            raise
        _check(library.cuStreamEndCapture(stream, ctypes.byref(graph)), "end a capture")
    code = library.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    library.cuGraphDestroy(graph)
    _check(code, "instantiate a graph")
    made = executable.value
    assert made is not None

    def replay(stream: int) -> None:
        if code := launch(made, stream):
            _check(in_context(code, launch, made, stream), "launch a graph")

    weakref.finalize(replay, library.cuGraphExecDestroy, ctypes.c_void_p(made)).atexit = False
    return replay if nodes.stop is None else Interruptible(replay, nodes), results


@cache
def _libraries() -> tuple[ctypes.CDLL, Callable[[int, int], int]]:
    """The driver, and its launch of a graph, which keeps the lock of the interpreter: it takes two microseconds."""
    library = ctypes.CDLL("libcuda.so.1")
    launch = ctypes.PyDLL("libcuda.so.1").cuGraphLaunch
    launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return library, launch


def _check(code: int, what: str) -> None:
    if code:
        from ..triton.program import driver

        raise RuntimeError(f"{_REFUSED} {what}: {driver().words(code)} (error {code})")
