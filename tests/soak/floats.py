"""How the thread computes with floats: a library may leave another rounding behind, and everything after it is a little off."""

from __future__ import annotations

import ctypes

import torch

_TWO, _THREE, _SMALL = float("2"), float("3"), float("1e-310")  # not constants, which Python would compute with


def is_usual() -> bool:
    """Whether quotients are rounded to the nearest number, and small ones are kept: after another library, and as Python began."""
    down, up = (_TWO / _THREE).hex(), (_TWO / 10.0).hex()  # the nearest number lies below the one, and above the other
    return (down, up) == ("0x1.5555555555555p-1", "0x1.999999999999ap-3") and _SMALL * 1.0 != 0.0


def make_usual() -> None:
    """Back to the nearest number, and small ones kept."""
    ctypes.CDLL(None).fesetround(0)  # FE_TONEAREST on every processor that torch is built for
    torch.set_flush_denormal(False)
