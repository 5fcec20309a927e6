"""A headless Chromium, driven over two pipes by its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

from . import cases

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions")
LIMIT = 20


class Chromium:
    """One browser, of which one tab is driven. `problems` has what the page reports as an error."""

    def __init__(self):
        program = next((found for name in NAMES if (found := shutil.which(name))), None)
        if program is None:
            raise cases.Missing("chromium")
        self.home = tempfile.mkdtemp(prefix="chromium")
        (theirs_in, self.out), (self.into, theirs_out) = os.pipe(), os.pipe()
        def arrange():
            # To numbers that cannot be 3 or 4 first.
            one, other = os.dup2(theirs_in, 103), os.dup2(theirs_out, 104)
            os.dup2(one, 3)
            os.dup2(other, 4)
        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.home}", "about:blank"], preexec_fn=arrange, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": self.home})
        os.close(theirs_in)
        os.close(theirs_out)
        self.numbers, self.rest, self.problems, self.session = itertools.count(1), b"", [], None

    def __enter__(self):
        self.another()
        return self

    def another(self) -> None:
        """Opens a tab, which is the one that is driven from now on."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __exit__(self, *exc):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.home, ignore_errors=True)

    def message(self, deadline: float) -> dict:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.into], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError("the browser does not answer")
            part = os.read(self.into, 1 << 16)
            if not part:
                raise AssertionError("the browser has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method: str, **params):
        number = next(self.numbers)
        asked = {"id": number, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.out, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while (said := self.message(deadline)).get("id") != number:
            self.note(said)
        if "error" in said:
            raise AssertionError(f"{method}: {said['error']}")
        return said["result"]

    def note(self, said: dict) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        if said.get("method") == "Page.javascriptDialogOpening":
            self.problems.append("a script opened a dialog")
            self.session and os.write(self.out, json.dumps({
                "id": next(self.numbers), "method": "Page.handleJavaScriptDialog", "params": {"accept": False},
                "sessionId": self.session}).encode() + b"\0")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def anew(self, does) -> None:
        """Does something that loads the page again, and waits until the present one is gone."""
        self.value("window.isOld = true")
        does()
        deadline = time.monotonic() + LIMIT
        while True:
            # An expression ends with the page in which it is evaluated.
            with contextlib.suppress(AssertionError):
                if self.value("window.isOld !== true && document.readyState === 'complete'"):
                    return
            if time.monotonic() > deadline:
                raise AssertionError("the page is not loaded again")

    def value(self, script: str):
        """Returns the value of an expression, or of the promise that it is."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise AssertionError(said["exceptionDetails"].get("exception", {}).get("description"))
        return said["result"].get("value")

    def until(self, script: str, limit: float = LIMIT):
        """Waits until an expression is true, and returns its value."""
        waiting = f"""new Promise((resolve, reject) => {{
            const begun = performance.now();
            const look = () => {{
                let value; try {{ value = ({script}); }} catch {{}}
                if (value) resolve(value);
                else if (performance.now() - begun > {limit * 1000 * .9}) reject(new Error({json.dumps("never: " + script)}));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        return self.value(waiting)

    def press(self, key: str) -> None:
        named = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, "")}
        code, text = named.get(key) or (ord(key.upper()), key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def show(self, scheme: str, width: int, height: int = 800) -> None:
        """Sets the colours that the reader prefers, and the size of the window."""
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, out) -> None:
        """Writes what is shown as a PNG file."""
        with open(out, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
