"""How long capture follows code of plain Python that computes on no tensor: a long loop is CPython's from its beginning on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import GraphBreak
from ..state import Interpreter
from .breaks import Restart, restart_point, suspendable

__all__ = ["Budget"]

_ADVICE = "leave it: the rest of the function that loops runs in Python; or compute this before the compiled function, or by tensors"


@dataclass
class Budget:
    """What was seen at the first look of a row of windows without an operator: the graph's size, the step, and where the frames stood.

    Frames are known by their ids alone, as a look must keep nothing alive; any step is a place at which a capture can begin again.
    """

    WINDOW: ClassVar[int] = 10_000  # instructions between two looks
    WINDOWS: ClassVar[int] = 200  # so many in a row without an operator of the graph are too many
    SECONDS: ClassVar[float] = (
        10.0  # and so much time of the processor's: calls take longer than instructions that move values
    )

    size: int = -1
    step: int = 0
    windows: int = 0
    began: float = 0.0
    places: list[tuple[int, int]] = field(default_factory=list)

    def next_stop(self, step: int, last: int | None) -> int:
        """The next step at which to look, or at which the capture ends."""
        return step + self.WINDOW if last is None or last <= step else min(last, step + self.WINDOW)

    def look(self, vm: Interpreter) -> None:
        """Count one window; a GraphBreak where it is the last one of too many."""
        if vm.out.size == self.size:
            self.windows += 1
        else:
            self.size, self.step, self.windows, self.began = vm.out.size, vm.step, 0, time.thread_time()
            self.places = [(id(frame), frame.begun) for frame in vm.frames]
        late = self.windows and time.thread_time() - self.began > self.SECONDS
        if late or self.windows >= self.WINDOWS:
            raise self._spent(vm, bool(late))

    def _spent(self, vm: Interpreter, late: bool) -> GraphBreak:
        """The frame that loops is the outermost one that has got on: CPython has it from where it stood at the first look.

        Where that frame cannot be suspended, the call around it is made by CPython.
        """
        spent = f"{self.SECONDS:g} seconds of capture" if late else f"{self.WINDOW * self.WINDOWS} instructions"
        error = GraphBreak(f"plain Python runs for more than {spent} without an operator of the graph", _ADVICE)
        looping = next((at for at, frame in enumerate(vm.frames) if frame.begun > self.step), len(vm.frames))
        if looping >= suspendable(vm.frames):
            error.split = restart_point(vm)
            return error
        frame = vm.frames[looping]
        known, begun = self.places[looping] if looping < len(self.places) else (0, 0)
        error.split = Restart(begun if known == id(frame) else frame.begun, native=True)
        return error
