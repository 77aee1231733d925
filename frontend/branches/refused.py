"""What capture went on with, and cannot keep."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(BaseException):  # what handles errors of capture lets it pass
    """The graph does more than it may: capture starts again without `what` (checks, branches, loops, texts), and breaks at the first of these."""

    def __init__(self, reason: str, what: str = "checks") -> None:
        super().__init__(reason)
        self.reason, self.what = reason, what
