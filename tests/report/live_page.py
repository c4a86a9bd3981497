"""train --serve and watch in a browser: usage: live_page.py PROGRAM DIRECTORY, a directory with `text`.

The page of a run that goes on, and of its log when it is over, has the points of the log and the boxes of the
trace; it follows the run, shows a box's text under the pointer, asks for nothing from elsewhere, and says
nothing on chromium's console. With --pictures PROGRAM DIRECTORY, the pictures of docs/ are made in the directory,
of the run that docs/usage.md has."""
import json, os, re, signal, subprocess, sys, tempfile

from browser import Browser

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


def make_pictures(program, browser, started, directory):
    subprocess.run([program, "data", "--synthetic", "text", "--tokens", "40000"], check=True, stdout=subprocess.DEVNULL)
    run, address = serve(
        program, "train", "--data", "text", "--pp", "2", "--nlayers", "4", "--emsize", "256", "--nhid", "512",
        "--nhead", "4", "--batch-size", "16", "--chunks", "4", "--epochs", "2", "--max-batches", "60",
        "--eval-max-batches", "20", "--eval-every", "20", "--balance", "auto", "--checkpoint", "never", "--optimizer",
        "adamw", "--schedule", "gpipe", "--log-json", "gpipe.jsonl", "--serve", "0")
    started.append(run)
    browser.open(address, 1280)
    browser.await_true(f"{STEP} > 60")
    browser.picture(f"{directory}/live.png", 1125)
    browser.open(address, 390, dark=True)
    browser.await_true(f"{STEP} > 60")
    browser.picture(f"{directory}/live-phone.png", 2150)
    run.communicate(timeout=60)
    subprocess.run([program, "report", "gpipe.jsonl", "-o", "report.html"], check=True)
    for name, width, most in ("report", 1280, 1640), ("report-phone", 390, 1000):
        browser.open(f"file://{os.getcwd()}/report.html", width)
        browser.await_true(f"{POINTS} == 120")
        browser.picture(f"{directory}/{name}.png", most)
    browser.open(f"file://{os.getcwd()}/report.html", 1000)
    browser.await_true(f"{POINTS} == 120")
    browser.picture(f"{directory}/timeline.png", element="document.querySelector('figure.pipeline')")


def main():
    started, browser = [], Browser()
    try:
        if sys.argv[1] == "--pictures":
            program, directory = map(os.path.abspath, sys.argv[2:])
            with tempfile.TemporaryDirectory() as scratch:
                os.chdir(scratch)
                make_pictures(program, browser, started, directory)
        else:
            program, directory = sys.argv[1:]
            os.chdir(directory)
            check_all(program, browser, started)
    finally:
        browser.close()
        for process in started:
            process.kill()


main()
