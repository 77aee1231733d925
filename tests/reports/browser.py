"""Headless Chromium for tests of pages, through chromedriver's HTTP protocol; `skipped` where either is missing."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

skipped = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="no chromium with chromedriver"
)
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
]
_KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Up": "\ue013", "Right": "\ue014", "Tab": "\ue004"}


class Browser:
    """One window."""

    def __init__(self, port: int, profile: Path) -> None:
        self.root = f"http://127.0.0.1:{port}/session"
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": [*_FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._ask("", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/{session['sessionId']}"
        self._ask("/timeouts", {"script": 20000})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, page: Path, tab: str = "", theme: str = "light") -> int:
        """Show a page, and wait until it is drawn; how many milliseconds after its beginning that was."""
        self._ask("/url", {"url": "about:blank"})
        self._ask("/url", {"url": f"{page.absolute().as_uri()}?theme={theme}{'#' + tab if tab else ''}"})
        ready = self.wait("document.documentElement.dataset.ready || document.documentElement.dataset.failed")
        assert ready.isdecimal(), ready
        self.settle()
        return int(ready)

    def run(self, script: str, *args: Any) -> Any:
        """The value of an expression in the page."""
        return self._ask("/execute/sync", {"script": f"return ({script})", "args": list(args)})

    def wait(self, expression: str) -> Any:
        """The value of an expression, as soon as it is one that holds."""
        script = (
            "const [done] = arguments; const until = performance.now() + 15000;"
            f"const look = () => {{ const found = ({expression}); if (found || performance.now() > until) done(found); else setTimeout(look, 10); }}; look();"
        )
        return self._ask("/execute/async", {"script": script, "args": []})

    def settle(self) -> None:
        """Two frames: what was asked for is drawn."""
        script = (
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20)))"
        )
        self._ask("/execute/async", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        """Keys, one after the other: names or characters."""
        steps = []
        for key in keys:
            steps += [{"type": way, "value": _KEYS.get(key, key)} for way in ("keyDown", "keyUp")]
        self._ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})
        self.settle()

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse to the first such element, and press there."""
        x, y = self.run(
            "(() => { const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            " return [Math.round(b.x + Math.min(b.width / 2, 60)), Math.round(b.y + b.height / 2)]; })()",
            selector,
        )
        steps = [{"type": "pointerMove", "duration": 0, "x": x, "y": y}]
        steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}] if click else []
        self._ask("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})
        self.settle()

    def size(self, width: int, height: int) -> None:
        """The window's inside."""
        self._ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}})  # fmt: skip
        self.settle()

    def picture(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("/screenshot")))

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements."""
        return self.run("[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def errors(self) -> list[str]:
        """What the console has said since the last time."""
        return [row["message"] for row in self._ask("/se/log", {"type": "browser"})]

    def close(self) -> None:
        request = urllib.request.Request(self.root, method="DELETE")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20).close()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in this folder."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            found = None
            while found is None:
                line = driver.stdout.readline()
                assert line, "chromedriver did not start"
                found = re.search(r"successfully on port (\d+)", line)
            window = Browser(int(found[1]), folder / "profile")
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
