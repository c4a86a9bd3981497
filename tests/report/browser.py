"""A page in headless chromium, for tests."""
import base64, json, os, shutil, subprocess, sys, tempfile, time

# The labels of pictures that are not wholly inside.
CUT = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBBox(), all = text.ownerSVGElement.viewBox.baseVal;
  return box.x < 0 || box.x + box.width > all.width || box.y < 0 || box.y + box.height > all.height;
}).map(text => text.textContent)"""

# What the colours of a page are like: the luminance of its paper, and the least contrast with it (as WCAG defines both)
# of its text, its curves and the boxes of its charts, and of the text in boxes with these.
COLOURS = """(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const over = (top, bottom, alpha) => top.slice(0, 3).map((v, i) => v * alpha + bottom[i] * (1 - alpha));
  const light = rgb => rgb.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const paper = numbers(getComputedStyle(document.body).backgroundColor);
  const least = (selector, key, below) => Math.min(...[...document.querySelectorAll(selector)].map(e =>
    contrast(numbers(getComputedStyle(e)[key]), below ? below(e) : paper)));
  const bar = text => {
    const box = text.previousElementSibling, style = getComputedStyle(box);
    return over(numbers(style.fill), paper, style.fillOpacity);
  };
  return {paper: light(paper), text: least('h1, p, th, td, b, span, small, summary, figcaption, footer', 'color'),
          labels: least('svg text:not(.bar)', 'fill'), curves: least('path:not(.faint)', 'stroke'),
          boxes: least('.charts rect', 'fill'), bars: least('text.bar', 'fill', bar)};
})()"""


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
        self.said, self.requested, self.width = [], set(), 0
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
            self.record(answer)

    def record(self, event):
        if event["method"] == "Network.requestWillBeSent":
            self.requested |= {event["params"]["request"]["url"]} - {"about:blank"}
        elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(event["params"])

    def open(self, address, width, dark=False):
        """A page of less than 500 pixels is a phone's, with touch. What was requested and said before is forgotten."""
        self.width, phone = width, width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.set_dark(dark)
        self.call("Page.navigate", url="about:blank")  # the page before asks for nothing more
        self.said, self.requested = [], set()
        self.call("Page.navigate", url=address)

    def set_dark(self, dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression):
        """Of an expression; of what a promise comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_true(self, expression):
        end = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.said, self.value("document.body.innerText"))
            time.sleep(0.1)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x, y):
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def check_page(self, *addresses):
        """The page has requested these addresses alone, said nothing on the console, is as wide as the screen, and cuts
        off no label of a picture."""
        assert not self.said, self.said
        assert self.requested == set(addresses), (self.requested, addresses)
        wide = self.value("[document.documentElement.scrollWidth, innerWidth]")
        assert wide == [self.width, self.width], f"the page is {wide} pixels wide on {self.width}"
        cut = self.value(CUT)
        assert not cut, cut

    def check_colours(self):
        """Everything on the page can be told from its paper, in light and in dark."""
        for dark in True, False:
            self.set_dark(dark)
            found = self.value(COLOURS)
            assert found["paper"] < 0.05 if dark else found["paper"] > 0.9, (dark, found)
            assert found["text"] >= 4.5 and found["labels"] >= 4.5, (dark, found)
            assert found["curves"] >= 3 and found["boxes"] >= 3 and found["bars"] >= 3, (dark, found)

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
