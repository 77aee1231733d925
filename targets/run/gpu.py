"""How a host program runs on a GPU: which device is the current one, what becomes of arguments that are not aligned, when it is recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from ...passes.analysis.alignment import ALIGNMENT
from .capture import INVALID_CONTEXT
from .graphs import Recorded, Run
from .pieces import Pieces
from .tail import Divided, Halves

Recordable = tuple[Sequence[str], Sequence[str], int]  # kinds, sizes and steps of `Recorded`
MISALIGNED, TOO_LARGE, UNALIGNED_WRITE = -1, -2, -3  # what a launch gives instead of the driver's error number


class UnplannedResult(RuntimeError):
    """A library call gave another dtype or size than its fake twin promised; the graph has to run in eager."""


class Misaligned(RuntimeError):
    """An argument's address is not a multiple of 16 bytes, which kernels on a GPU are compiled for."""


class NoContext(RuntimeError):
    """The thread has no context of the driver yet: all that it asked torch for came out of the allocator's cache."""


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


def on_gpu(
    make: Callable[[], Run],
    text: str,
    names: dict[str, Any],
    gpu: int,
    arguments: Recordable | None,
    recorded: list[Recorded] | None = None,
    entry: str = "make",
    mutated: Sequence[int] = (),
    halves: Halves | None = None,
) -> Callable[[], Run]:
    """A maker of runs with the program's GPU as the current one; arguments that are not aligned are copied first.

    Args:
        make: makes runs of the program's text.
        text, names: the text, and what its names mean.
        arguments: what a recording has to know of them, of a program that is to be recorded; else None.
        recorded: receives each run that is recorded.
        entry: the name of the maker in the text.
        mutated: arguments that the program writes to: a playback, of which torch sees nothing, counts as a write.
        halves: the program as a recording and its tail.
    """
    several = torch.cuda.device_count() > 1

    def made(text: str, entry: str, copied: bool) -> Any:
        if copied:
            text = re.sub(rf"^.*not_launched\({MISALIGNED}, ''\)\n", "", text, flags=re.MULTILINE)
            text = re.sub(r"\b([atv]\d+)\.data_ptr\(\)", r"aligned(\1, copies)", text)
            text = re.sub(r"( +)def (?:run|recorded|tail|part\d+)\(.*\):", r"\g<0>\n\1    copies = []", text)
        other = dict(names)
        exec(compile(text, f"<intarsia host program{', arguments copied' * copied}>", "exec"), other)
        makers = {
            name: other.pop(name, None) for name in ("make", "make_constants")
        }  # held by their own globals: a cycle
        return makers[entry]()

    def make_gpu() -> Run:
        def with_care(run: Run, careful: Callable[[], Run]) -> Run:
            again: list[Run] = []

            def call(*args: Any) -> Sequence[Any]:
                try:
                    return run(*args)
                except NoContext:
                    torch.cuda.synchronize()  # gives the thread the device's context
                    return call(*args)
                except Misaligned:
                    if not again:
                        again.append(careful())
                try:
                    return again[0](*args)
                except Misaligned as kernel:
                    raise UnplannedResult(
                        f"the address of what the kernel {kernel} reads is not a multiple of 16 bytes"
                    ) from None

            return call

        def careful() -> Run:
            return made(text, entry, copied=True)  # type: ignore[no-any-return]

        def divided(text: str) -> list[Run]:
            runs: list[Run] = made(text, "make", copied=False)
            return [with_care(run, partial(half, text, k)) for k, run in enumerate(runs)]

        def half(text: str, number: int) -> Run:
            return made(text, "make", copied=True)[number]  # type: ignore[no-any-return]

        there = with_care(make(), careful)
        if arguments is not None:
            kinds, sizes, steps = arguments
            there = Recorded(there, kinds, sizes, gpu, steps)
            if "@piece" in text:
                there.pieces = Pieces(lambda part: with_care(make(part), careful), there.gpu)  # type: ignore[call-arg]
            if halves is not None:
                there.divided = Divided(partial(divided, halves[0]), *halves[1:])
            if recorded is not None:
                recorded.append(there)
            if mutated:
                there = _counted(there, mutated)

        def call_there(*args: Any) -> Sequence[Any]:
            if torch.cuda.current_device() == gpu:
                return there(*args)
            with torch.cuda.device(gpu):
                return there(*args)

        return call_there if several else there

    return make_gpu


def _counted(run: Run, mutated: Sequence[int]) -> Run:
    def call(*args: Any) -> Sequence[Any]:
        results = run(*args)
        increment_version([args[k] for k in mutated])
        return results

    return call


def aligned(tensor: torch.Tensor, copies: list[torch.Tensor]) -> int:
    """The address of the tensor, or of a copy whose address is a multiple of 16 bytes."""
    if tensor.data_ptr() % ALIGNMENT and tensor.numel():
        tensor = moved(tensor)
        copies.append(tensor)
    return tensor.data_ptr()


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, with its strides, that begins at a multiple of 16 bytes; `tensor` does not."""
    shape, strides = tensor.shape, tensor.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if tensor.numel() else 0
    return tensor.as_strided((extent,), (1,)).clone().as_strided(shape, strides)


def finished(run: Run, gpu: int) -> Run:
    """`run`, whose results calls on all streams may read: it waits for them, but for a capture of the user's."""

    def call(*args: Any) -> Sequence[Any]:
        results = run(*args)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(gpu).synchronize()
        return results

    return call
