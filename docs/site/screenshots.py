"""Makes the pictures of docs/report.md anew: `python -m docs.site.screenshots report.html`, with a report of GPT-2 that was timed.

It needs chromium with chromedriver, as the tests of the page do.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.reports.browser import browser

PICTURES = Path(__file__).parents[1] / "pictures"
DESKTOP, PHONE = (1400, 900), (390, 844)
# name: (size, theme, part of the page, what is clicked there: the list's label and a text in the row)
SHOTS = {
    "report-code": (DESKTOP, "light", "code", ("Steps of the program", "mul_add_tanh")),
    "report-fusion": (DESKTOP, "light", "fusion", None),
    "report-ir": (DESKTOP, "light", "ir", ("", "fuse")),
    "report-memory": (DESKTOP, "dark", "memory", None),
    "report-speed": (DESKTOP, "light", "speed", None),
    "report-phone": (PHONE, "light", "code", None),
    "report-phone-dark": (PHONE, "dark", "memory", None),
}


def main(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as window:
        for name, (size, theme, part, row) in SHOTS.items():
            window.size(*size)
            ready = window.open(page, part, theme)
            if row is not None:
                place = window.run(
                    "[...document.querySelectorAll('.list')].filter((l) => !arguments[0] || l.ariaLabel === arguments[0])"
                    ".map((l) => [...l.querySelectorAll('.row')].find((r) => r.textContent.includes(arguments[1])))"
                    ".find(Boolean).id",
                    *row,
                )
                window.point(f"#{place}", click=True)
            window.picture(PICTURES / f"{name}.png")
            wide = window.run("document.documentElement.scrollWidth")
            print(
                f"{name}: ready after {ready} ms, {wide} of {size[0]} pixels wide, console: {window.errors() or 'empty'}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
