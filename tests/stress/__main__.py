"""`python -m tests.stress SECONDS [THREADS]`: threads that compile, call, change weights, differentiate, reset and drop compiled functions.

Every result is compared with eager's under the same weights. A thread that stands still for too long is a deadlock: its stack is shown.
"""

from __future__ import annotations

import sys

from .threads import stress

if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    found = stress(seconds, threads, seed=int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print(found)
    sys.exit(bool(found.errors))
