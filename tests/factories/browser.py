"""Drives a headless Chromium through its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = "SAILOR_CLOUD_TEST_CHROMIUM"
if CHROMIUM is None and os.environ.get(REQUIRED):
    raise RuntimeError(f"{REQUIRED} is set, but there is no chromium on PATH (Debian: apt-get install chromium)")
WHY_NOT = "no chromium on PATH (Debian: apt-get install chromium), so nobody has looked at the HTML report"


class Browser:
    """One page. Collects console messages, exceptions and every URL that the page asks for."""

    def __init__(self, *, timeout_s: float = 60.0) -> None:
        assert CHROMIUM is not None, WHY_NOT
        self._timeout_s = timeout_s
        self._profile = tempfile.TemporaryDirectory(prefix="sailor-chromium-", ignore_cleanup_errors=True)
        self._process, self._write, self._read = _start(CHROMIUM, self._profile.name)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requested: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def look(self, *, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Set the window's size, the colour scheme and the medium (`print` or screen)."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, path: Path | str) -> float:
        """Load a file or an address, wait until it is drawn, and return the processor seconds that Chromium took."""
        before = self._processor_s()
        self._ask("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        drawn = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(document.readyState), 0)))"
        while self.run(drawn) != "complete":
            time.sleep(0.01)
        return self._processor_s() - before

    def _processor_s(self) -> float:
        """Return the processor seconds of all processes of this Chromium, which runs in a session of its own."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Write a picture of the whole page, or of its first `height` pixels."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        answer = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print_pdf(self) -> bytes:
        return base64.b64decode(self._ask("Page.printToPDF", printBackground=True)["data"])

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(given["exceptionDetails"].get("text", "exception"))
            case "Runtime.consoleAPICalled":
                self.complaints.append(f"console.{given['type']}")
            case "Log.entryAdded":
                self.complaints.append(given["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(given["request"]["url"])

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            read = os.read(self._read, 1 << 20)
            assert read, "Chromium has ended"
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        parsed: dict[str, Any] = json.loads(message)
        return parsed


def _start(program: str, profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start Chromium; it reads commands from descriptor 3 and writes answers to descriptor 4."""
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    options = "--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --hide-scrollbars"
    script = f'exec "$0" {options} --user-data-dir="$1" 3<&{command_read} 4>&{answer_write}'
    process = subprocess.Popen(
        ["bash", "-c", script, program, profile],
        pass_fds=(command_read, answer_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(command_read)
    os.close(answer_write)
    return process, command_write, answer_read
