"""The time line of a report as a trace: the JSON that https://ui.perfetto.dev and chrome://tracing read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def trace_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Complete events in microseconds, one line a thread; breaks, recompiles and what runs in eager are instants."""
    process = os.getpid()
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": f"intarsia: {facts['title']}"}}
    ]
    threads = sorted({e["thread"] for e in facts["events"]})
    events += [
        {"ph": "M", "pid": process, "tid": t, "name": "thread_name", "args": {"name": f"thread {t}"}} for t in threads
    ]
    for e in facts["events"]:
        kind = "report" if e["own"] else "pass" if e["about"] == "pass" else "phase"
        row = {"name": e["name"], "cat": kind, "pid": process, "tid": e["thread"], "ts": e["start"] * 1e6}
        if e["about"] and kind == "phase":
            row["args"] = {"about": e["about"]}
        events.append(row | ({"ph": "X", "dur": e["seconds"] * 1e6} if e["seconds"] else {"ph": "i", "s": "t"}))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts["made"]}


def write_trace(facts: dict[str, Any], path: Path) -> None:
    """Write the trace.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text(json.dumps(trace_of(facts)), encoding="utf-8")
