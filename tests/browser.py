"""Chromium without a window, driven over two pipes by its own protocol, without a driver program or a library.

The protocol is https://chromedevtools.github.io/devtools-protocol: each message is a JSON object and a zero byte.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
CONTROL, SHIFT = 2, 8  # modifiers
SECONDS = 60.0  # timeout of each command and condition


class Page:
    """One tab.  requests: the addresses it asked for; said: messages that its scripts threw or logged."""

    def __init__(self, send: int, receive: int) -> None:
        self.requests: list[str] = []
        self.said: list[str] = []
        self._send, self._session, self._number = send, "", 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, args=(receive,), daemon=True).start()
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Sends one command of the protocol and returns the result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        answer = self._answers.get(timeout=SECONDS)
        assert answer["id"] == self._number and "error" not in answer, (method, answer)
        return answer["result"]

    def _listen(self, receive: int) -> None:
        with os.fdopen(receive, "rb") as pipe:
            rest = b""
            while some := pipe.read1(65536):
                *whole, rest = (rest + some).split(b"\0")
                for message in map(json.loads, whole):
                    self._answers.put(message) if "id" in message else self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        about = message["params"]
        match message["method"]:
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.said.append(about["exceptionDetails"].get("exception", {}).get("description", str(about)))
            case "Log.entryAdded":
                self.said.append(about["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.said.append(str([one.get("value") for one in about["args"]]))

    def open(self, address: str) -> None:
        """Loads this address and waits until it is complete."""
        self("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})")

    def js(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, or of the promise that it gives."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str) -> Any:
        """Evaluates an expression until it is true, and returns its value."""
        end = time.monotonic() + SECONDS
        while not (found := self.js(condition)):
            assert time.monotonic() < end, f"{condition} did not come true; the page said {self.said}"
            time.sleep(0.02)
        return found

    def type(self, text: str) -> None:
        """Types text into the focused element."""
        self("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses and releases one key."""
        text = {"Enter": "\r", " ": " "}.get(key)
        common = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": KEYS[key],
            "modifiers": modifiers,
        }
        self(
            "Input.dispatchKeyEvent",
            type="keyDown" if text and not modifiers else "rawKeyDown",
            **common,
            **({"text": text} if text and not modifiers else {}),
        )
        self("Input.dispatchKeyEvent", type="keyUp", **common)

    def screen(self, width: int, height: int) -> None:
        """Sets the size of the window."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefers(self, **features: str) -> None:
        """Sets media features for preferences of the user, such as color_scheme="dark"."""
        self(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()
            ],
        )


def chromium() -> str | None:
    """Returns the path of a browser, or None if none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """Opens a tab of a browser with an empty profile in `folder`, and closes the browser afterwards."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The browser reads descriptor 3 and writes descriptor 4.
    wire = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with subprocess.Popen(
        ["bash", "-c", wire, "bash", program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs_in)
        os.close(theirs_out)
        page = Page(ours_out, ours_in)
        try:
            yield page
        finally:
            page._session = ""
            page("Browser.close")
            os.close(ours_out)
            process.wait(SECONDS)
