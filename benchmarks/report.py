"""The table of a benchmark run, growing row by row, and its chart."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

NAMES = {"eager": "eager", "inductor": "torch.compile", "freezing": "freezing", "intarsia": "intarsia"}
COLORS = {"inductor": "#c44e52", "freezing": "#dd8452", "intarsia": "#4c72b0"}


class Table:
    """Rows as they come: a drawn table in a terminal, aligned text elsewhere."""

    def __init__(self, systems: list[str], width: int) -> None:
        self.systems = systems
        self.columns = _columns(systems)
        self.width = width
        self.live: Live | None = None
        self.problems: list[str] = []
        if sys.stdout.isatty():
            self.table = RichTable()
            self.table.add_column("case", no_wrap=True)
            for title, _ in self.columns:
                self.table.add_column(title, justify="right")
            self.live = Live(self.table, console=Console(), refresh_per_second=4)

    def __enter__(self) -> Table:
        if self.live:
            self.live.start()
        else:
            print(
                f"{'case':{self.width}}",
                *(f"{title:>{_wide(title)}}" for title, _ in self.columns),
                sep="  ",
                flush=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()
        for problem in self.problems:
            print(problem)

    def working(self, name: str) -> None:
        """Say what runs now."""
        if self.live:
            self.table.caption = f"running {name} ..."

    def add(self, row: dict[str, Any]) -> None:
        """Print one case."""
        cells = [show(row) for _, show in self.columns]
        if self.live:
            self.table.add_row(row["case"], *cells)
        else:
            padded = (f"{cell:>{_wide(title)}}" for cell, (title, _) in zip(cells, self.columns, strict=True))
            print(f"{row['case']:{self.width}}", *padded, sep="  ", flush=True)
        derived = row["derived"]
        texts = [*derived["errors"], *([derived["verdict"]] if derived["verdict"] != "ok" else [])]
        texts += row["first"].get("intarsia", {}).get("warnings", [])
        self.problems += [f"{row['case']}: {text}" for text in texts]

    def finish(self, summary: dict[str, Any]) -> None:
        """The last lines."""
        means = summary["geomean"]
        parts = [
            ("intarsia over eager", means["over_eager"]),
            ("intarsia over torch.compile", means["over_inductor"]),
            ("over torch.compile with freezing", means["over_freezing"]),
            ("torch.compile over eager", means["inductor_over_eager"]),
            ("first call: torch.compile's seconds over intarsia's", means["first_call"]),
        ]
        lines = [f"{what} {value:.2f}x" for what, value in parts if value]
        text = f"{summary['ok']} of {summary['cases']} cases right" + "".join(f"; {line}" for line in lines)
        if lines:
            text += " (geometric means)"
        if self.live:
            self.table.caption = text
        else:
            print(text, flush=True)


def _wide(title: str) -> int:
    return max(len(title), 9)


def _columns(systems: list[str]) -> list[tuple[str, Any]]:
    """Titles, and what each shows of a row."""
    columns: list[tuple[str, Any]] = [("eager", lambda row: _time(row, "eager"))]
    columns += [(NAMES[system], lambda row, system=system: _time(row, system)) for system in systems]
    if "intarsia" in systems:
        columns.append(("/eager", lambda row: _times(row["derived"]["over_eager"])))
    for system, title in (("inductor", "/t.compile"), ("freezing", "/freezing")):
        if system in systems and "intarsia" in systems:
            columns.append((title, lambda row, system=system: _times(row["derived"][f"over_{system}"])))
    if "intarsia" in systems:
        columns.append(("of copy", lambda row: _share(row["derived"]["of_copy"])))
    for system in systems:
        if system == "freezing":
            continue
        title = "first call" if systems == ["intarsia"] else f"first {'t.comp' if system == 'inductor' else 'ours'}"
        columns.append((title, lambda row, system=system: _seconds(row["first"].get(system, {}))))
    if "intarsia" in systems:
        columns.append(("2nd proc", lambda row: _again(row["measured"].get("intarsia", {}))))
    columns.append(("peak MiB", lambda row: "/".join(_peak(row, system) for system in ("eager", *systems))))
    columns.append(("verdict", _verdict))
    if "intarsia" in systems:
        columns.append(("graphs", lambda row: _graphs(row["first"].get("intarsia", {}))))
    return columns


def _time(row: dict[str, Any], system: str) -> str:
    seconds = row["measured"].get(system, {}).get("min")
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-4 else f"{seconds * 1e3:.{3 if seconds < 0.01 else 1}f} ms"


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}x" if ratio else "-"


def _share(ratio: float | None) -> str:
    return f"{ratio:.0%}" if ratio else "-"


def _seconds(found: dict[str, Any]) -> str:
    return f"{found['seconds']:.1f} s" if "seconds" in found else "-"


def _again(found: dict[str, Any]) -> str:
    """The first call in a second process, and how often that called a C++ compiler."""
    if "seconds" not in found:
        return "-"
    calls = found.get("compiler_calls", 0)
    return f"{found['seconds']:.1f} s" + (f" ({calls} g++)" if calls else "")


def _peak(row: dict[str, Any], system: str) -> str:
    peak = row["measured"].get(system, {}).get("peak_mib")
    return "-" if peak is None else f"{peak:.0f}"


def _verdict(row: dict[str, Any]) -> str:
    derived = row["derived"]
    if derived["errors"]:
        return "ERROR"
    return "ok" if derived["verdict"] == "ok" else "WRONG"


def _graphs(found: dict[str, Any]) -> str:
    return (
        "-" if "graphs" not in found else f"{found['graphs']}" if found["one_graph"] else f"{found['graphs']} (eager)"
    )


def chart(rows: list[dict[str, Any]], file: str) -> None:
    """A bar for each case and system: how many times as fast as eager."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [row["case"] for row in rows]
    series = {"inductor": "inductor_over_eager", "freezing": "freezing_over_eager", "intarsia": "over_eager"}
    used = {system: [row["derived"][key] or 0 for row in rows] for system, key in series.items()}
    used = {system: values for system, values in used.items() if any(values)}
    figure, axes = pyplot.subplots(figsize=(max(6, 0.7 * len(names) + 2), 4))
    width = 0.8 / max(len(used), 1)
    for i, (system, values) in enumerate(used.items()):
        places = [x + (i - (len(used) - 1) / 2) * width for x in range(len(names))]
        axes.bar(places, values, width, label=NAMES[system], color=COLORS[system])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axes.set_ylabel("times as fast as eager")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
