# pyright: basic
"""A headless Chromium, driven by the DevTools protocol over a pair of pipes: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",  # requests on descriptor 3, answers on descriptor 4, each ended by a zero byte
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    # Whatever would leave the machine fails.
    "--proxy-server=127.0.0.1:9",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a running Chromium."""

    def __init__(self, requests: int, answers: int):
        self._requests, self._answers = requests, answers
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, f"no answer from the browser within {PATIENCE:.0f} s"
            received = os.read(self._answers, 1 << 20)
            assert received, "the browser has ended"
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, fragment: str = "", *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page anew, in a window of a size and a theme."""
        self.send("Page.navigate", url="about:blank")
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri() + fragment)
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def hover(self, selector: str) -> None:
        """Bring an element into view and move the mouse onto it."""
        quoted = json.dumps(selector)
        self.value(f"document.querySelector({quoted}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(f"{_box(selector)}.toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Bring an element into view and click on it, as a mouse does."""
        self.hover(selector)
        place = self.value(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({_box(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def print(self) -> bytes:
        """The page as it is printed, a PDF on A4."""
        printed = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(printed["data"])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def requests(self) -> list[str]:
        """Addresses that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors of scripts, and what the browser logs: refused requests among them."""
        methods = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in methods]


def _box(selector: str) -> str:
    """The first box of an element, as an expression."""
    return f"document.querySelector({json.dumps(selector)}).getClientRects()[0]"


LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Gives the pipes the numbers that Chromium expects, and becomes Chromium."""
KEYS = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


@contextmanager
def running(chromium: str, profile: Path) -> Generator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    there, requests = os.pipe()
    answers, back = os.pipe()
    words = [sys.executable, "-c", LAUNCH, str(there), str(back), chromium, *FLAGS, f"--user-data-dir={profile}"]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(words, pass_fds=(there, back), stdout=log, stderr=log)
    os.close(there)
    os.close(back)
    try:
        yield Browser(requests, answers)
    finally:
        os.close(requests)  # Chromium ends when its pipe does
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)
