# SPDX-License-Identifier: BSD-2-Clause
"""Chromium without a window, driven by its DevTools protocol over two pipes."""

import base64
import itertools
import json
import os
import select
import time

from labkit import LabError, tail, wait_until


class Browser:
    """In NAMESPACE of the lab, with one page. Complaints of its console are in `complaints`."""

    def __init__(self, lab, namespace):
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        self._buffer, self._ids, self.complaints = b"", itertools.count(1), []
        self._lab = lab
        # the protocol has descriptors 3 and 4; dash(1) cannot copy those over 9
        self._process = lab.start(
            namespace, "bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "bash", "chromium",
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            f"--user-data-dir={lab.path('chromium')}", "--remote-debugging-pipe", "about:blank",
            pass_fds=(from_us, to_us))
        os.close(from_us)
        os.close(to_us)
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Log", "Runtime", "Page":
            self._call(f"{domain}.enable")

    def close(self):
        self._lab.stop(self._process)
        os.close(self._to)
        os.close(self._from)

    def _receive(self, end):
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0, end - time.monotonic()))[0]:
                raise LabError("chromium does not answer in time")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise LabError(f"chromium has ended:\n{tail(self._process.log)}")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _call(self, method, **parameters):
        request = {"id": next(self._ids), "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            message = self._receive(end)
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(message["params"]))
            if message.get("id") == request["id"]:
                if "error" in message:
                    raise LabError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, url):
        self._call("Page.navigate", url=url)

    def evaluate(self, expression):
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise LabError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def rows(self, table):
        """The texts of a table's body."""
        return self.evaluate(f"[...document.querySelectorAll('#{table} tbody tr')].map("
                             "row => [...row.cells].map(cell => cell.textContent))")

    def wait(self, condition, what, seconds=20):
        return wait_until(condition, lambda: f"{what}; the page: "
                          f"{self.evaluate('document.body.innerText')} {self.complaints}", seconds)

    def screenshot(self, path, scheme, width=1280, height=760):
        """As on screens that are light, or dark."""
        self._call("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.captureScreenshot")["data"]))
