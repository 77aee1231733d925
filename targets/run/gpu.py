"""How a host program runs on a GPU: what becomes of arguments that are not aligned, when it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ir.symbols import span
from ...passes.analysis.alignment import ALIGNMENT
from ..errors import MISALIGNED, TOO_LARGE, UNALIGNED_WRITE, Misaligned, NoContext, UnplannedResult
from ..host.ir import HostProgram
from ..host.render import taking
from ..host.source import HostSource
from ..recordings.capture import INVALID_CONTEXT
from ..recordings.graphs import Recorded, Run
from ..recordings.pieces import Divided, Pieces
from ..recordings.recording import Taking

Make = Callable[..., Any]  # makes the functions of a program; of one with parts, from what becomes of these


def not_launched(code: int, kernel: str, late: bool = False) -> None:
    """Raised when a launch on a GPU does not give 0.

    Args:
        late: arguments may have been written to, so that nothing can begin again.

    Raises:
        NoContext: the thread is new to the driver.
        Misaligned: an address; the caller copies what is not aligned and calls again.
        RuntimeError: an address, late; what the driver says.
        UnplannedResult: sizes beyond 32 bits, of a kernel that was compiled for less; an address of what a kernel writes to.
    """
    if code == MISALIGNED and late:
        raise RuntimeError(
            f"what the kernel {kernel} reads is not at a multiple of 16 bytes; an argument may have been written to"
        )
    if code == MISALIGNED:
        raise Misaligned(kernel)
    if code == INVALID_CONTEXT:
        raise NoContext(kernel)
    if code == TOO_LARGE:
        raise UnplannedResult(f"the kernel {kernel} is given more elements than 32 bits can count")
    if code == UNALIGNED_WRITE:
        raise UnplannedResult("the address of an argument that is written to is not a multiple of 16 bytes")
    from ..triton.program import driver

    words = driver().words(code)
    raise RuntimeError(f"the CUDA driver does not launch the kernel {kernel}: {words} (error {code})")


class GpuFunction:
    """A function of a host program: what a kernel refuses because it is not aligned is copied.

    Args:
        run: the function.
        copying: makes the function that copies; called once, if ever.
    """

    def __init__(self, run: Run, copying: Callable[[], Run]) -> None:
        self.run, self.copying = run, copying
        self.second: Run | None = None

    def __call__(self, *args: Any) -> Sequence[Any]:
        try:
            return self.run(*args)
        except NoContext:
            torch.cuda.synchronize()  # gives the thread the device's context
            return self(*args)
        except Misaligned:
            if self.second is None:
                self.second = self.copying()
        try:
            return self.second(*args)
        except Misaligned as kernel:
            raise UnplannedResult(
                f"the address of what the kernel {kernel} reads is not a multiple of 16 bytes"
            ) from None


def on_gpu(
    source: HostSource,
    program: HostProgram,
    make: Callable[[HostProgram, bool], Make],
    refused: str = "",
    recorded: list[Recorded] | None = None,
) -> Callable[[], Run]:
    """A maker of calls of a program on a GPU.

    Args:
        program: that of `source`, or that of its constants.
        make: gives what makes a program's functions, as they are, or with copies of what is not aligned.
        refused: why it is not recorded; "": it is.
        recorded: receives each call that is recorded.
    """
    assert source.gpu is not None
    gpu, plain = source.gpu, make(program, False)

    def copying() -> Run:
        return make(program, True)()  # type: ignore[no-any-return]

    def divided(halves: HostProgram) -> list[Run]:
        runs: Sequence[Run] = make(halves, False)()
        return [GpuFunction(run, lambda k=k: make(halves, True)()[k]) for k, run in enumerate(runs)]  # type: ignore[misc]

    def taken() -> Taking | None:
        form = taking(program)
        return None if form is None else make(form, False)()  # type: ignore[no-any-return]

    def on_this_gpu() -> Run:
        run = GpuFunction(plain(), copying)
        if refused and torch.cuda.device_count() < 2:  # there is nothing else to do
            return run
        there = Recorded(
            run,
            source.arguments,
            source.sizes,
            gpu,
            source.work,
            mutated=() if refused else source.mutated,
            refused=refused,
        )
        if refused:
            return there
        there.make_taking = taken
        if program.has_parts:
            there.pieces = Pieces(lambda part: GpuFunction(plain(part), copying), there.gpu)
        if halves := source.halves:
            there.divided = Divided(lambda: divided(halves.program), halves.steps, halves.results)
        if recorded is not None:
            recorded.append(there)
        return there

    return on_this_gpu


def aligned(tensor: torch.Tensor, copies: list[torch.Tensor]) -> int:
    """The address of the tensor, or of a copy whose address is a multiple of 16 bytes."""
    if tensor.data_ptr() % ALIGNMENT and tensor.numel():
        tensor = moved(tensor)
        copies.append(tensor)
    return tensor.data_ptr()


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, with its strides, that begins at a multiple of 16 bytes."""
    shape, strides = tensor.shape, tensor.stride()
    return tensor.as_strided((span(shape, strides),), (1,)).clone().as_strided(shape, strides)


def finished(run: Run, gpu: int) -> Run:
    """`run`, whose results calls on all streams may read: it waits for them, but for a capture of the user's."""

    def call(*args: Any) -> Sequence[Any]:
        results = run(*args)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(gpu).synchronize()
        return results

    return call
