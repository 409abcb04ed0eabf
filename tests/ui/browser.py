# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium by its DevTools protocol over a pipe: no driver, no package, no port."""

import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-default-apps", "--no-proxy-server", "--hide-scrollbars",
)  # fmt: skip
# Windows' numbers of keys, which DevTools wants beside their names.
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
PATIENCE_S = 120.0


class Browser:
    """One process of Chromium. Belongs to one thread."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="kvcove-ui-")
        asked, asks = os.pipe()
        answers, answered = os.pipe()
        # Far from 3 and 4, which are those of the protocol.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (asked, answered)]
        for fd in (asked, answered):
            os.close(fd)

        def place():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={self.directory}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=True,
            pass_fds=(3, 4), preexec_fn=place, start_new_session=True,
        )  # fmt: skip
        for fd in high:
            os.close(fd)
        self.asks, self.answers = asks, answers
        self.buffer = b""
        self.number = 0
        self.events = []

    def close(self):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):
            self.process.kill()
        self.process.wait()
        os.close(self.asks)
        os.close(self.answers)
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.asks, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for answer in self.read(end - time.monotonic()):
                if answer.get("id") == self.number:
                    if "error" in answer:
                        raise RuntimeError(f"{method}: {answer['error']['message']}")
                    return answer["result"]
        raise RuntimeError(f"{method}: no answer")

    def read(self, seconds):
        """Return the answers that are there, and keep the events."""
        found = []
        while select.select([self.answers], [], [], seconds)[0]:
            got = os.read(self.answers, 1 << 20)
            if not got:
                raise RuntimeError("the browser has ended")
            *whole, self.buffer = (self.buffer + got).split(b"\0")
            for text in whole:
                message = json.loads(text)
                (found if "id" in message else self.events).append(message)
            if found or whole:
                return found
        return found


class Tab:
    """A tab of the browser, which also reports the errors of its page and the addresses that the page has asked."""

    def __init__(self, browser, width=1280, height=900):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def becomes(self, script, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.evaluate(script):
                    return True
            except RuntimeError:
                pass  # the page is being loaded
            time.sleep(0.02)
        return False

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def press(self, key, shift=False):
        event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            event["text"] = "\r"
        if key == " ":
            event["text"] = " "
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """Click on the middle of an element, as a mouse does: something that covers it is hit in its place."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def picture(self, path, whole=True):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        parameters = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        data = self.call("Page.captureScreenshot", format="png", **parameters)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def happened(self, method):
        """Return the parameters of this page's events of a kind, so far."""
        self.browser.read(0)
        return [
            event["params"]
            for event in self.browser.events
            if event["method"] == method and event.get("sessionId") == self.session
        ]

    def errors(self):
        """Return what a person would see in red in the console."""
        thrown = [one["exceptionDetails"]["text"] for one in self.happened("Runtime.exceptionThrown")]
        said = [
            str(one["args"]) for one in self.happened("Runtime.consoleAPICalled") if one["type"] in ("error", "warning")
        ]
        logged = [
            f"{one['entry']['text']} {one['entry'].get('url', '')}"
            for one in self.happened("Log.entryAdded")
            if one["entry"]["level"] in ("error", "warning")
        ]
        return thrown + said + logged

    def asked(self):
        """Return the addresses that were asked."""
        return [one["request"]["url"] for one in self.happened("Network.requestWillBeSent")]
