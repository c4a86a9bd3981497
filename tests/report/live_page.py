"""train --serve and watch in a browser: usage: live_page.py PROGRAM DIRECTORY, a directory with `text`.

The page of a run that goes on, and of its log when it is over, has the points of the log and the boxes of the
trace; it follows the run, shows a box's text under the pointer, asks for nothing from elsewhere, and says
nothing on chromium's console. With --pictures FILE-, no run is made, but ADDRESS is shown in four pictures."""
import base64, json, os, re, shutil, signal, subprocess, sys, tempfile, time


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
             f"--user-data-dir={self.profile}", "about:blank"],
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
        self.call("Page.navigate", url=address)

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def await_true(self, expression):
        end = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.said, self.value("document.body.innerText"))
            time.sleep(0.1)

    def picture(self, path):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


POINTS = "(document.querySelector('path.c0.faint')?.getAttribute('d').match(/[ML]/g) ?? []).length"
STEP = "Number(document.querySelector('main p')?.innerText.match(/step (\\d+)/)?.[1] ?? 0)"
BOXES = "document.querySelectorAll('svg.%s rect:not(.bubble)').length"


def check_quiet(browser, address):
    assert not browser.said, browser.said
    others = [url for url in browser.asked if not url.startswith(address) and url != "about:blank"]
    assert browser.asked and not others, others
    browser.asked.clear()


def check_width(browser):
    wide = browser.value("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the page is {wide} pixels wider than the screen"


def check_pointer(browser):
    """A box under the pointer shows its text, while other parts of the page go on."""
    browser.value("document.querySelector('svg.measured').scrollIntoView()")
    box = browser.value("(() => { const r = document.querySelector('svg.measured rect:not(.bubble)')"
                        ".getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    browser.await_true("/^measured: stage 0, .* ms/.test(document.getElementById('tip').innerText)")
    before = browser.value(STEP)
    browser.await_true(f"{STEP} > {before}")
    assert not browser.value("document.getElementById('tip').hidden")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    browser.await_true("document.getElementById('tip').hidden")


def check_run(browser, address):
    browser.open(address, 390)
    browser.await_true(f"{POINTS} >= 8 && {BOXES % 'measured'} > 0")
    check_width(browser)
    seen = browser.value(STEP)
    browser.await_true(f"{STEP} > {seen}")
    assert browser.value(f"{STEP} >= 2000 || {POINTS} == {STEP}")
    check_pointer(browser)
    check_quiet(browser, address)


def check_log(browser, address):
    steps = [r for r in map(json.loads, open("live.jsonl")) if r["record"] == "step"]
    events = [e for e in json.load(open("live.json"))["traceEvents"] if e["ph"] == "X"]
    last = events[-1]["args"]["epoch"]
    browser.open(address, 1280)
    browser.await_true(f"{STEP} == {len(steps)}")
    assert len(steps) >= 2000 or browser.value(POINTS) == len(steps)
    for process, kind in (1, "predicted"), (2, "measured"):
        actions = sum(e["pid"] == process and e["args"]["epoch"] == last for e in events)
        assert browser.value(BOXES % kind) == actions > 16, (kind, actions)
    check_width(browser)
    check_quiet(browser, address)


def serve(program, *words):
    """Starts a server, and gives its process and the page's address."""
    process = subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if found := re.search(r"shown at (http://127\.0\.0\.1:\d+/)", line):
            return process, found.group(1)
    raise AssertionError("no address was printed")


def check_all(program, browser, started):
    run, address = serve(
        program, "train", "--data", "text", "--emsize", "64", "--nhid", "64", "--nhead", "2", "--nlayers", "4",
        "--bptt", "16", "--batch-size", "16", "--eval-max-batches", "2", "--epochs", "10000", "--max-batches", "4",
        "--devices", "cpu:0-0,cpu:0-0", "--chunks", "4", "--quiet", "--save", "w.safetensors",
        "--log-json", "live.jsonl", "--trace", "live.json", "--serve", "0")
    started.append(run)
    check_run(browser, address)
    run.send_signal(signal.SIGTERM)
    browser.await_true("!document.getElementById('link').hidden")  # there is no connection
    browser.said.clear()
    run.communicate(timeout=60)
    watch, address = serve(program, "watch", "live.jsonl")
    started.append(watch)
    check_log(browser, address)
    watch.send_signal(signal.SIGINT)
    assert watch.wait(timeout=60) == 0


def main():
    started, browser = [], Browser()
    try:
        if sys.argv[1] == "--pictures":
            prefix, address = sys.argv[2:]
            for name, width, dark in ("light", 1280, 0), ("dark", 1280, 1), ("phone", 390, 0), ("phone-dark", 390, 1):
                browser.open(address, width, dark)
                browser.await_true(f"{POINTS} > 0")
                browser.picture(f"{prefix}{name}.png")
        else:
            program, directory = sys.argv[1:]
            os.chdir(directory)
            check_all(program, browser, started)
    finally:
        browser.close()
        for process in started:
            process.kill()


main()
