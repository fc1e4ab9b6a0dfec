"""A headless Chromium, driven by its DevTools protocol over two pipes: no library, no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

#: Names of the browser on Debian and elsewhere.
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
DEADLINE_S = 60.0


def browser_path() -> str | None:
    """Return the browser in ``BLINK_BROWSER``, or the first on PATH."""
    named = os.environ.get("BLINK_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser has ended, returned an error, or does not respond."""


class Browser:
    """One page in one browser; ``events`` are all its messages, ``requests`` and ``problems`` are read by tests."""

    def __init__(self, path: str, folder: Path) -> None:
        here_read, there_write = os.pipe()
        there_read, here_write = os.pipe()
        command = [
            path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--force-color-profile=srgb", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # The protocol's descriptors are 3 (it reads) and 4 (it writes).
        shell = f'exec 3<&{there_read} 4>&{there_write}; exec "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "-", *command],
            pass_fds=(there_read, there_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(there_read)
        os.close(there_write)
        self._read, self._write = here_read, here_write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run one command and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + DEADLINE_S
        while True:
            reply = self._next(until)
            if reply.get("id") == number:
                if "error" in reply:
                    raise BrowserError(f"{method}: {reply['error']}")
                return dict(reply["result"])
            self.events.append(reply)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise BrowserError("the browser has ended" if ready else f"no answer in {DEADLINE_S:g} s")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def size(self, width: int, height: int) -> None:
        """Set the window's size in px."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        """Emulate the system's preferred colour scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file and wait until the page is complete."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + DEADLINE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(until))

    def run(self, script: str) -> Any:
        """Evaluate an expression on the page and return its value as JSON; BrowserError if it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of the first element that ``selector`` matches."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key, by its name in the DOM: ArrowRight, Enter, Escape, " "."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Enter": 13, "Escape": 27, " ": 32, "Tab": 9}
        common = {"key": name, "windowsVirtualKeyCode": codes[name], "code": "Space" if name == " " else name}
        text = {"text": "\r" if name == "Enter" else name} if name in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    @property
    def requests(self) -> list[str]:
        """Return the page's requests since it was opened, without the file itself and embedded data."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent[1:] if not url.startswith("data:")]

    @property
    def problems(self) -> list[str]:
        """Return the errors, warnings and exceptions in the page's console."""
        messages = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                messages.append(json.dumps(parameters)[:500])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                messages.append(json.dumps(parameters["args"])[:500])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                messages.append(parameters["entry"]["text"])
        return messages

    def traced(self, action: Callable[[], object], categories: Sequence[str]) -> list[dict[str, Any]]:
        """Run ``action`` and return the browser's trace of it, as events of Chrome's trace format."""
        session = self._session
        self._session = None  # All of its processes.
        config = {"includedCategories": list(categories)}
        self.call("Tracing.start", transferMode="ReportEvents", traceConfig=config)
        self._session = session
        self.events.clear()
        action()
        self._session = None
        self.call("Tracing.end")
        until = time.monotonic() + DEADLINE_S
        while not any(event.get("method") == "Tracing.tracingComplete" for event in self.events):
            self.events.append(self._next(until))
        self._session = session
        parts = [event["params"]["value"] for event in self.events if event.get("method") == "Tracing.dataCollected"]
        return [event for part in parts for event in part]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        except (BrowserError, OSError):
            self._process.kill()
        self._process.wait(timeout=DEADLINE_S)
        os.close(self._read)
        os.close(self._write)
