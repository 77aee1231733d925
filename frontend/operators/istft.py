"""`torch.istft` as the operators that it consists of: it looks at a value itself, which is a check of the graph here.

Eager raises where the squares of the windows that overlap at some sample add up to nothing, as it divides by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.fake import is_fake
from ..values.kinds import isinstance
from ..values.tensor import tensor_class

__all__ = ["ROWS"]

ROWS = Rows()

_LEAST = 1e-11  # eager raises below
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@ROWS.rule(torch.istft)
def _istft(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    try:
        given = _Call(*args, **kwargs)
    except TypeError:
        given = None
    if given is None or not given.is_plain(vm):
        raise GraphBreak("istft of these arguments looks at values, or warns")
    return given.wave(vm)


@dataclass
class _Call:
    """The arguments, by torch's names."""

    input: Any
    n_fft: Any
    hop_length: Any = None
    win_length: Any = None
    window: Any = None
    center: Any = True
    normalized: Any = False
    onesided: Any = None
    length: Any = None
    return_complex: Any = False

    def is_plain(self, vm: Interpreter) -> bool:
        """Whether this is a call that eager refuses for nothing but the windows, and warns of nothing."""
        spectrum, window = self.input, self.window
        if not is_fake(spectrum) or spectrum.dim() not in (2, 3) or spectrum.dtype not in _REAL:
            return False
        if tensor_class(vm, spectrum) is not Tensor or torch.is_autocast_enabled(spectrum.device.type):
            return False
        flags = self.center, self.normalized, self.return_complex
        numbers = [n for n in (self.n_fft, self.hop_length, self.win_length) if n is not None]
        if self.return_complex or any(type(f) is not bool for f in flags) or any(type(n) is not int for n in numbers):
            return False
        if self.n_fft < 2 or not 0 < self._win() <= self.n_fft or not 0 < self._hop() <= self._win():
            return False
        one = self._is_onesided()
        if type(one) is not bool or spectrum.shape[-2] != (self.n_fft // 2 + 1 if one else self.n_fft):
            return False
        if not (
            is_fake(window)  # without one, eager warns
            and tensor_class(vm, window) is Tensor
            and window.dtype == _REAL[spectrum.dtype]
            and (window.device, *window.shape) == (spectrum.device, self._win())
        ):
            return False
        if self.length is not None and not isinstance(self.length, (int, torch.SymInt)) or self.length is True:
            return False
        first, behind = self._samples()
        return bool(spectrum.shape[-1] > 0 and first < behind <= self._whole())

    def wave(self, vm: Interpreter) -> Tensor:
        """The result of the call."""
        call, method = vm.out.call_function, vm.out.call_method
        spectrum = method("transpose", (self.input, -1, -2), {})
        if spectrum.dim() == 2:
            spectrum = method("unsqueeze", (spectrum, 0), {})
        if not self._is_onesided():
            spectrum = method("narrow", (spectrum, -1, 0, self.n_fft // 2 + 1), {})
        frames = call(torch.fft.irfft, (spectrum, self.n_fft, -1, "ortho" if self.normalized else "backward"), {})
        window = self._window(vm)
        pieces = call(torch.mul, (frames, window), {})
        squares = method("expand", (call(torch.square, (window,), {}), 1, frames.shape[1], self.n_fft), {})
        wave, weights = self._added(vm, pieces), self._added(vm, squares)
        least = call(torch.amin, (method("abs", (method("detach", (weights,), {}),), {}),), {})
        vm.checks.expect(vm, call(torch.lt, (least, _LEAST), {}), False)
        wave = call(torch.div, (wave, weights), {})
        return method("squeeze", (wave, 0), {}) if self.input.dim() == 2 else wave  # type: ignore[no-any-return]

    def _window(self, vm: Interpreter) -> Tensor:
        """The window in the middle of zeros."""
        window, rest = self.window, self.n_fft - self._win()
        if rest:
            window = vm.out.call_function(torch.nn.functional.pad, (window, (rest // 2, rest - rest // 2)), {})
        return window  # type: ignore[no-any-return]

    def _added(self, vm: Interpreter, pieces: Tensor) -> Tensor:
        """Rows of pieces, each a hop behind the one before, added where they overlap; what is asked for of the sum."""
        sizes = [pieces.shape[0], self._whole()]
        made = vm.out.call_function(
            torch.ops.aten.unfold_backward.default, (pieces, sizes, 1, self.n_fft, self._hop()), {}
        )
        first, behind = self._samples()
        return vm.out.call_method("narrow", (made, 1, first, behind - first), {})  # type: ignore[no-any-return]

    def _win(self) -> int:
        return self.n_fft if self.win_length is None else self.win_length  # type: ignore[no-any-return]

    def _hop(self) -> int:
        return self.n_fft // 4 if self.hop_length is None else self.hop_length  # type: ignore[no-any-return]

    def _is_onesided(self) -> Any:
        return bool(self.input.shape[-2] != self.n_fft) if self.onesided is None else self.onesided

    def _whole(self) -> Any:
        """How many samples all pieces reach over."""
        return self.n_fft + self._hop() * (self.input.shape[-1] - 1)

    def _samples(self) -> tuple[Any, Any]:
        """The first sample of the result, and the first one behind it."""
        first = self.n_fft // 2 if self.center else 0
        if self.length is not None:
            return first, first + self.length
        return first, self._whole() - first
