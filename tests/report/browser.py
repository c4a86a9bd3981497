"""A page in headless chromium, for tests."""
import base64, json, os, shutil, subprocess, sys, tempfile, time


class Browser:
    """chromium with one page, by its DevTools protocol: JSON texts with a zero at the end, over two pipes."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        to, self.writer = os.pipe()
        self.reader, back = os.pipe()

        def use_pipes():
            os.dup2(to, 98)  # not onto one that is still to be copied
            os.dup2(back, 99)
            os.dup2(98, 3)
            os.dup2(99, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={self.profile}",
             "about:blank"],
            preexec_fn=use_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.buffer, self.number, self.session = b"", 0, None
        self.said, self.asked = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                self.buffer += os.read(self.reader, 1 << 20) or sys.exit("chromium has ended")
            text, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.note(answer)

    def note(self, event):
        if event["method"] == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(event["params"])

    def open(self, address, width, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Page.navigate", url=address)

    def value(self, expression):
        """Of an expression; of what a promise comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def await_true(self, expression):
        end = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.said, self.value("document.body.innerText"))
            time.sleep(0.1)

    def picture(self, path, most=10000, element="document.documentElement"):
        """Of the first `most` lines of an element."""
        box = self.value(f"(() => {{ const r = {element}.getBoundingClientRect(); return "
                         "[r.x + scrollX, r.y + scrollY, r.width, r.height]; })()")
        x, y, width, height = map(round, box)
        clip = {"x": x, "y": y, "width": width, "height": min(height, most), "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
