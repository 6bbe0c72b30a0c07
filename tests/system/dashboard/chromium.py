# SPDX-License-Identifier: MIT
"""A real headless Chromium, controlled by the DevTools protocol over a pair of pipes.

With ``--remote-debugging-pipe`` commands go in on descriptor 3 and answers come out on 4, JSON
that ends with a zero byte: no port and no web socket.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

TIMEOUT_S = 60.0
# The shell puts the pipes where Chromium looks for them.
_EXEC = 'r=$0 w=$1; shift; exec "$@" 3<&"$r" 4>&"$w"'


class Chromium:
    """A browser with one page; ``wrong`` is errors and warnings of its console."""

    def __init__(self, profile: Path) -> None:
        binary = shutil.which("chromium")
        assert binary, "chromium is missing: setup/browser.sh installs it"
        read_here, self._in = os.pipe()
        self._out, write_here = os.pipe()
        command = [
            *("bash", "-c", _EXEC, str(read_here), str(write_here), binary),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"),
            *(f"--user-data-dir={profile}", "--force-color-profile=srgb", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(read_here, write_here),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_here)
        os.close(write_here)
        self._buffer, self._number, self._session = b"", 0, ""
        self.wrong: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._in)  # the end of its pipe is the end of the browser
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a command's result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Return the first true value of an expression."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            if value := self.run(script):
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {TIMEOUT_S:.0f} s without result for: {script}")

    def screen(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        """Set the size and colour scheme of the screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._out], [], [], max(left_s, 0))
            assert ready, "Chromium does not answer"
            data = os.read(self._out, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.wrong.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.wrong.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                entry = params["entry"]
                self.wrong.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
