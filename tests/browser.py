"""A headless Chromium to test pages with: real clicks and keys, over the DevTools protocol on two pipes.

Source: https://chromedevtools.github.io/devtools-protocol/ (a message is JSON that ends with a NUL byte).
"""

import base64
import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.machine import find_chromium

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
LONGEST_WAIT_S = 60.0
LEFT = ("Inspected target navigated or closed", "Execution context was destroyed.")  # answers of a page that is left


class NavigatedError(RuntimeError):
    """The browser went to another page before the one that was asked could answer."""


class Page:
    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        self.number = 0
        self.session: str | None = None
        self.rest = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                kind = NavigatedError if answer["error"]["message"] in LEFT else RuntimeError
                raise kind(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], LONGEST_WAIT_S)
            more = os.read(self.read, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError("Chromium has gone" if ready else "Chromium does not answer")
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline:
            with suppress(NavigatedError):
                if found := self.value(expression):
                    return found
            time.sleep(0.02)
        raise RuntimeError(f"never true: {expression}")

    def navigate(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def point(self, element: str) -> tuple[float, float]:
        """The middle of what a JavaScript expression names, scrolled into view."""
        box = self.value(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'nearest'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def click(self, element: str) -> None:
        self.click_at(*self.point(element))

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            buttons = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    def press(self, key: str, text: str = "") -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def requests(self) -> list[str]:
        self.value("1")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def problems(self) -> list[str]:
        self.value("1")
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") == "Runtime.exceptionThrown"
            or (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error")
            or (event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
        ]


AnyPage = TypeVar("AnyPage", bound=Page)


@contextmanager
def open_browser(profile: Path, kind: type[AnyPage]) -> Iterator[AnyPage]:
    chromium = find_chromium()
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    silent = os.open(os.devnull, os.O_WRONLY)
    inherited = {3: to_browser, 4: from_browser, 1: silent, 2: silent}
    # Free numbers above all targets first, so that no target is overwritten before it is copied.
    high = {number: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 10) for number, source in inherited.items()}
    actions = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in high.items()]
    command = [chromium, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    temporary = tempfile.mkdtemp()  # short: the path of a socket in it has 107 bytes at most
    environ = {**os.environ, "HOME": str(profile.parent), "TMPDIR": temporary}
    pid = os.posix_spawn(chromium, command, environ, file_actions=actions)
    for descriptor in {to_browser, from_browser, silent, *high.values()}:
        os.close(descriptor)
    page = kind(to_us, from_us)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page.session = session
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.size(1400, 900)
        yield page
        page.session = None
        page.call("Browser.close")
    finally:
        os.close(from_us)
        os.close(to_us)
        os.waitpid(pid, 0)
        shutil.rmtree(temporary, ignore_errors=True)
