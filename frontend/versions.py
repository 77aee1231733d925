"""The minor releases of torch that the private interfaces were tried with, and what is said of others."""

from __future__ import annotations

import re
import warnings

# Without an import of torch's: this is asked, too, when what torch moved keeps the rest from being imported.
# All tests were run with 2.11, 2.13 and 2.15; with 2.12 and 2.14 the README's example, doctor and, with 2.12, the frameworks' loops.
TRIED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
OLDEST, NEWEST = TRIED[0], TRIED[-1]


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; () for a text that is none."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def tried() -> str:
    """All that were tried, as text."""
    return f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"


def is_untried(version: str) -> bool:
    """Whether a torch is newer than all that were tried."""
    return minor(version) > NEWEST


def warn_if_untried(version: str, error: Exception | None = None) -> None:
    """One warning for a torch that is newer than all that were tried; `error` is what did not fit, if that is known."""
    if is_untried(version):
        what = "compiled functions run in eager if it does not fit"
        if error is not None:
            what = f"it does not fit ({type(error).__name__}: {error}): compiled functions run in eager"
        text = f"intarsia: tried with torch {tried()}, not with {version}; {what}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
