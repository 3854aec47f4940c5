"""A headless Chromium, driven through its debugging pipe by JSON messages.

The protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120.0
_LAST = 4  # Chromium reads descriptor 3 and writes 4
_START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """The program named by $CHROMIUM, or the first of NAMES that exists."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser; a context manager that collects console errors in `errors`."""

    def __init__(self, program: str, folder: Path) -> None:
        self.errors: list[str] = []
        self._ids = 0
        self._session: str | None = None
        self._rest = b""
        reading, self._out = os.pipe()
        self._in, writing = os.pipe()
        # The descriptors to pass on must differ from their target numbers.
        reading, writing = _above(reading), _above(writing)
        arguments = [
            *("--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
            *("--no-sandbox", "--disable-extensions", "--hide-scrollbars"),
            *("--disable-background-networking", f"--user-data-dir={folder}"),
            *("--remote-debugging-pipe", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(reading), str(writing), program, *arguments],
            pass_fds=(reading, writing),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reading)
        os.close(writing)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a protocol method and returns its result."""
        self._ids += 1
        message: dict[str, Any] = {"id": self._ids, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._ids:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens a file and waits until the page says that it is ready."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not self.run("document.documentElement?.dataset.ready === 'yes'"):
            assert time.monotonic() < deadline, f"the page is not ready: {self.errors}"
            time.sleep(0.05)

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Presses and releases a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Types text into the focused element."""
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Sends a mouse event, such as "mousePressed"."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Writes a screenshot of the window or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"Chromium does not answer ({self._process.poll()})")
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, message: dict[str, Any]) -> None:
        """Records errors of the page, and every attempt to load something else."""
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.errors.append(f"console: {json.dumps(parameters['args'])}")
        elif message.get("method") == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"loads {url}")


def _above(descriptor: int) -> int:
    """Duplicates a descriptor to a number above those that Chromium uses."""
    others = []
    while descriptor <= _LAST:
        others.append(descriptor)
        descriptor = os.dup(descriptor)
    for each in others:
        os.close(each)
    return descriptor
