"""One headless Chromium for many pages: starting it takes as long as drawing one."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync
--disable-extensions --remote-debugging-pipe""".split()
# It reads commands from 3 and writes to 4.
_WIRED = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh"]
_SPOKEN = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
_MILLISECONDS = 20_000  # of virtual time, in which timers need not be waited for
_PROBE = """(async () => {
  const all = (what) => [...document.querySelectorAll(what)];
  const over = (part) => part.scrollWidth - part.clientWidth;
  %s
})()"""
_DOCUMENT = """const copy = document.documentElement.cloneNode(true);
  copy.querySelectorAll("script").forEach((script) => script.remove());
  return copy.outerHTML;"""


class Browser:
    """A tab that shows one page after another."""

    def __init__(self, process: subprocess.Popen[bytes], shown: Path) -> None:
        self._process = process
        self._shown = shown
        self._received = b""
        self._events: list[dict[str, Any]] = []
        self._count = 0
        self._tab: dict[str, str] = {}
        target = {"targetId": self._page()["targetId"], "flatten": True}
        session = self._ask("Target.attachToTarget", **target)["sessionId"]
        self._tab = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)

    def _page(self) -> dict[str, Any]:
        """The tab, which may be there only a moment after the browser."""
        for _ in range(600):
            for target in self._ask("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return target
            time.sleep(0.1)
        raise AssertionError("the browser has no tab.")

    def open(
        self, page: Path, *, width: int = 1280, height: int = 844, dark: bool = False
    ) -> None:
        """Shows a page until it has nothing more to do.

        Args:
            page: a file.
            width: of the window, in pixels of CSS.
            height: of the window, in pixels of CSS.
            dark: whether the reader prefers it dark.
        """
        window = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._ask("Emulation.setDeviceMetricsOverride", **window, mobile=False)
        self.prefer(dark=dark)
        self._events.clear()
        self._ask("Emulation.setVirtualTimePolicy", policy="advance")
        # A script at the same place of the same address is not compiled anew: plotly
        # takes longer to compile than to draw.
        shutil.copyfile(page, self._shown)
        begun = self._ask("Page.navigate", url=self._shown.as_uri())
        assert "errorText" not in begun, begun
        self._wait("Page.lifecycleEvent", name="load", loaderId=begun["loaderId"])
        limit = {"policy": "pauseIfNetworkFetchesPending", "budget": _MILLISECONDS}
        self._ask("Emulation.setVirtualTimePolicy", **limit)
        self._wait("Emulation.virtualTimeBudgetExpired")

    def prefer(self, *, dark: bool) -> None:
        """Tells the page that is shown whether the reader prefers it dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def probe(self, code: str) -> Any:
        """What JavaScript finds in the page that is shown.

        Args:
            code: returns what JSON can hold, with `all(selector)` and `over(element)`:
                what of it can only be seen by scrolling sideways, in pixels.
        """
        options = {"awaitPromise": True, "returnByValue": True}
        self._ask("Emulation.setVirtualTimePolicy", policy="advance")
        found = self._ask("Runtime.evaluate", expression=_PROBE % code, **options)
        self._ask("Emulation.setVirtualTimePolicy", policy="pause")
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def seen(
        self, page: Path, code: str, *, width: int = 1280, dark: bool = False
    ) -> Any:
        """What JavaScript finds in a page, which says nothing to the console."""
        self.open(page, width=width, dark=dark)
        found = self.probe(code)
        assert not self.spoken()
        return found

    def document(self) -> str:
        """The page that is shown, as scripts made it, without them or any error."""
        document = self.probe(_DOCUMENT)
        assert 'class="notice script-error"' not in document and not self.spoken()
        return document

    def spoken(self) -> list[dict[str, Any]]:
        """Errors and messages of the page that is shown: what a console would print."""
        return [event for event in self._events if event["method"] in _SPOKEN]

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot")["data"])

    def close(self) -> None:
        """Ends the process."""
        self._ask("Browser.close")
        self._process.wait(timeout=60)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        command = {"id": self._count, "method": method, "params": params, **self._tab}
        self._process.stdin.write(json.dumps(command).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._read()).get("id") != self._count:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, method: str, **params: str) -> None:
        while not any(
            event["method"] == method and params.items() <= event["params"].items()
            for event in self._events
        ):
            self._events.append(self._read())

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + 120
        while b"\0" not in self._received:
            left = max(0, until - time.monotonic())
            assert select.select([self._process.stdout], [], [], left)[0], "no answer"
            some = os.read(self._process.stdout.fileno(), 1 << 20)
            assert some, "Chromium ended"
            self._received += some
        text, _, self._received = self._received.partition(b"\0")
        return json.loads(text)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser that keeps what it needs in a folder; skips where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    shown = folder / "page.html"  # of a file too, so that no process is begun for it
    shown.write_text("<!DOCTYPE html><title></title>", encoding="utf-8")
    command = [program, *_FLAGS, f"--user-data-dir={folder}", shown.as_uri()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*_WIRED, *command], **pipes) as process:
        try:
            browser = Browser(process, shown)
            yield browser
            browser.close()
        finally:
            process.kill()
