"""Headless Chromium for tests, driven by the DevTools protocol over two pipes: no driver and no package is needed.

Protocol: one JSON message, then a zero byte; commands go in through file descriptor 3, answers and events come out of 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
)
PATIENCE = 60
"""Seconds to wait for an answer; the machines that run tests can be slow."""
READ, WRITE = 3, 4


class Browser:
    """One tab. `problems` collects what a person would see in red in the console, `requests` the addresses asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number, self._buffer, self._loaded = 0, b"", False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session: str | None = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come in between are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._number > 2:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return dict(answer["result"])

    def open(self, page: Path, fragment: str = "") -> None:
        """Go to a file and wait until it is loaded."""
        self.open_address(page.resolve().as_uri() + fragment)

    def open_address(self, url: str) -> None:
        """Go to an address and wait until its page is loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._note(self._message())

    def load_anew(self, script: str) -> None:
        """Run a script after which the page loads itself anew, and wait until it has; asked in between, it would be gone."""
        self._loaded = False
        self.run(script)
        while not self._loaded:
            self._note(self._message())

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size in pixels and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key.

        Args:
            key: The name of the key, such as Enter.
            code: Its Windows virtual key code.
            text: The text that it types; Enter and the space bar press buttons by theirs.
            modifiers: The sum of 1 for Alt, 2 for Ctrl, 4 for Meta and 8 for Shift.
        """
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **typed,
            )

    def type(self, text: str) -> None:
        """Type a text into the field that has the focus."""
        self.call("Input.insertText", text=text)

    def wait_until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"not true within {PATIENCE} s: {condition}"
            time.sleep(0.02)

    def choose_files(self, selector: str, files: Sequence[Path]) -> None:
        """Choose files in a file field, as a person does in the browser's dialog."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        field = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=field, files=[str(file) for file in files])

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, or of what the window shows of it."""
        file.write_bytes(
            base64.b64decode(
                self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
            )
        )

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        if method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning")
        ):
            self.problems.append(json.dumps(parameters))
        if method == "Log.entryAdded":
            self.problems.append(parameters["entry"]["text"])
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        waiting = select.poll()  # select() would refuse file descriptors above 1,023
        waiting.register(self.answers, select.POLLIN)
        while b"\0" not in self._buffer:
            ready = waiting.poll(max(end - time.monotonic(), 0) * 1000)
            assert ready, f"Chromium has not answered for {PATIENCE} s"
            piece = os.read(self.answers, 1 << 20)
            assert piece, "Chromium has ended"
            self._buffer += piece
        whole, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(whole))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start Chromium with a fresh profile folder and end it afterwards."""
    # Numbers well above 3 and 4, so that placing one end there cannot close another.
    inside, outside = (
        tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in os.pipe()) for _ in range(2)
    )

    def place() -> None:
        os.dup2(inside[0], READ)
        os.dup2(outside[1], WRITE)

    process = subprocess.Popen(
        [program, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=place,
        pass_fds=(READ, WRITE),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(inside[0])
    os.close(outside[1])
    try:
        yield Browser(inside[1], outside[0])
    finally:
        process.terminate()
        process.wait()
        os.close(inside[1])
        os.close(outside[0])
