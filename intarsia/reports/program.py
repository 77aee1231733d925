"""`INTARSIA_TRACE=folder`: what one run of a program compiled, as one page with all its graphs, breaks and recompiles, and as a trace.

When the program ends, `folder/<time>-<process>/` gets `report.html`, and `trace.json` for https://ui.perfetto.dev or chrome://tracing.
Graphs are compiled anew, out of no cache, so that the passes can be seen.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

from ..explaining.explanation import break_info, fallback_info, graph_info, recompile_info
from ..explaining.history import Compiled
from ..graph_compiler import reports_of
from .chrome import write_trace
from .gather import FORMAT, break_facts, event_facts, fallback_facts, graph_facts, made, recompile_facts
from .page import write
from .places import Places
from .record import BREAK, GRAPH, RECOMPILE, Recording, own_work, record_process
from .texts import Texts

VARIABLE = "INTARSIA_TRACE"
log = logging.getLogger("intarsia")


class ProgramTrace:
    """Collects the facts of graphs as they are compiled; nothing of the program's is kept alive for it.

    A backward half, which is compiled when it first runs, is added at the end where its graph still lives then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, os.getpid()
        self.places = Places()
        self.texts = Texts(self.places)
        self.graphs: list[dict[str, Any]] = []
        self.records: list[tuple[Compiled, int]] = []  # and how many programs their facts have
        self.breaks: dict[str, dict[str, Any]] = {}
        self.fallbacks: list[dict[str, Any]] = []
        self.recompiles: list[dict[str, Any]] = []
        self.lock = threading.RLock()  # threads compile side by side
        self.recording: Recording = record_process(self.told)

    def told(self, kind: str, about: Any) -> None:
        """See `record.tell`. A mistake of ours is no reason to stop the program."""
        with self.lock, own_work():
            try:
                self._add(kind, about)
            except Exception:
                log.warning("%s: a %s is missing in the report", VARIABLE, kind, exc_info=True)

    def _add(self, kind: str, about: Any) -> None:
        if kind == GRAPH:
            facts = self._graph(len(self.graphs) + 1, about)
            if facts is not None:
                self.graphs.append(facts)
                self.records.append((about, len(facts["programs"])))
        elif kind == BREAK:
            capture = about.capture()
            broken = None if capture is None else break_info(capture)
            if broken is not None:
                self.breaks.setdefault(str(broken), break_facts(broken, self.places))
        elif kind == RECOMPILE:
            self.recompiles.append(recompile_facts(recompile_info(about), self.places))
        else:
            self.fallbacks.append(fallback_facts(fallback_info(about), self.places))

    def _graph(self, index: int, record: Compiled) -> dict[str, Any] | None:
        capture = record.capture()
        if capture is None or not capture.operations:
            return None
        info = graph_info(index, record, capture, break_info(capture))
        return graph_facts(info, self.places, self.texts)

    def facts(self) -> dict[str, Any]:
        """All of it, as the page takes it."""
        with self.lock:
            for k, (record, count) in enumerate(self.records):
                capture = record.capture()
                if capture is not None and len(reports_of(capture.graph_module)) != count:
                    self.graphs[k] = self._graph(k + 1, record) or self.graphs[k]
            fallbacks = [{"what": f"graph {g['index']}", "reason": g["eager"], "remedy": "", "text": "", "place": None} for g in self.graphs if g["eager"]]  # fmt: skip
            return {
                "format": FORMAT,
                "title": Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python",
                "made": made(),
                "seconds": sum(g["captureSeconds"] + g["compileSeconds"] for g in self.graphs),
                "graphs": self.graphs,
                "breaks": list(self.breaks.values()),
                "fallbacks": [*self.fallbacks, *fallbacks],
                "recompiles": self.recompiles,
                "events": event_facts(self.recording),
                **self.places.facts(),
                "texts": self.texts.facts,
            }

    def write(self) -> Path | None:
        """The page and the trace, in a folder of this run's own; None where nothing was compiled.

        Raises:
            OSError: it cannot be written.
        """
        if not self.recording.events:
            return None
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = self.folder.expanduser().absolute() / f"{now}-{self.process}"
        facts = self.facts()
        page = write(facts, folder / "report.html")
        write_trace(facts, folder / "trace.json")
        return page

    def finish(self) -> None:
        """At the end of the process that began it: write, and say where."""
        if os.getpid() != self.process:  # a copy of it, which another process made
            return
        try:
            page = self.write()
        except Exception as error:
            log.warning(
                "%s=%s: the report cannot be written: %s: %s", VARIABLE, self.folder, type(error).__name__, error
            )
            return
        if page is not None:
            print(f"intarsia: what was compiled stands in {page}", file=sys.stderr)


def trace_from_environment() -> ProgramTrace | None:
    """Read `INTARSIA_TRACE`, as the package does when it is imported."""
    folder = os.environ.get(VARIABLE, "").strip()
    if not folder:
        return None
    found = ProgramTrace(Path(folder))
    atexit.register(found.finish)
    return found
