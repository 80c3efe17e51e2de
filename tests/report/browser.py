"""A small driver for a headless Chromium, over its debugging pipe: nothing to install, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. `errors` collects everything the console and the page complain about."""

    def __init__(self, width=1440, height=900, dark=False):
        self.folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_child, self.out = os.pipe()
        self.input, from_child = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        wiring = f'exec 3<&{to_child} 4>&{from_child}; exec "$@"'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        command = [CHROMIUM, *options, f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", wiring, "bash", *command],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self.buffer, self.number, self.errors, self.requests = b"", 0, [], []
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        self.folder.cleanup()

    def send(self, method, **parameters):
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path):
        """Open a file and wait until it has loaded; returns the seconds that took."""
        began = time.perf_counter()
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        while self.value("document.readyState") != "complete" or not self.value("!!document.querySelector('#data')"):
            time.sleep(0.02)
        return time.perf_counter() - began

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width, height=900):
        """Give the page another size."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        time.sleep(0.1)

    def place(self, selector):
        """The middle of an element, scrolled into view."""
        return self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )

    def hover(self, selector):
        """Point at an element."""
        x, y = self.place(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector):
        """Press and release the mouse on an element."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        """Press and release a key such as ArrowLeft, Tab or Enter."""
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13, "Home": 36}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path):
        """Save a picture of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def _read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.input, 1 << 20)
            assert piece, "the browser went away"
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        answer = json.loads(text)
        method, found = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(found["exceptionDetails"])
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.errors.append(found["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.errors.append(found["args"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        return answer
