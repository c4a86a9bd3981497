"""The pages in a browser: usage: pages.py PROGRAM DIRECTORY LOG..., in a directory with `text`, the logs, and their
report `page.html`.

The report and the live page, of a run that goes on and of its log when it is over, have the points of the logs and the
boxes of the trace, fit on a screen and on a phone, in light and in dark, request nothing from elsewhere, and
say nothing on chromium's console. With --pictures PROGRAM DIRECTORY, the pictures of docs/ are made in the directory,
of the run that docs/usage.md has."""
import json, math, os, re, signal, statistics, subprocess, sys, tempfile, time

from browser import Browser
from pictures import BARS, BOXES, CHARTS, Log, check_charts, check_memory, check_order, check_pictures, check_rows
from pictures import check_trace, check_values, describe_boxes

STEP = "Number(document.querySelector('main p')?.innerText.match(/step (\\d+)/)?.[1] ?? 0)"
POINTS = "(document.querySelector('path.c0.faint')?.getAttribute('d').match(/[ML]/g) ?? []).length"
FIGURES = """Object.fromEntries([...document.querySelectorAll('.state > div')].map(d =>
  [d.querySelector('span').innerText, d.querySelector('b').innerText]))"""
# Whether both replicas' timelines are of one step, and not of an epoch's last.
BOTH_LIVE = """(() => {
  const steps = [...document.querySelectorAll('.pipeline small')].map(s => Number(s.innerText.match(/step (\\d+)/)[1]));
  return steps.length === 2 && steps[0] === steps[1] && steps[0] % 100 !== 0;
})()"""


# ---- The report ---------------------------------------------------------------------------------


def write_large_log(path):
    """A run with more steps, validations, devices and replicas than are drawn, with gaps, and over decades."""
    records = [{"record": "run", "batches_per_epoch": 5000, "epochs": 1, "model": {}}]
    for step in range(1, 5001):
        loss = None if step % 977 < 40 else 0.1 + 9 * math.exp(-step / 700) + 0.05 * math.sin(step)
        norm = 0 if step % 31 == 0 else 10 ** (3 * math.sin(step / 300))
        records.append({"record": "step", "epoch": 1, "batch": step, "step": step, "loss": loss, "grad_norm": norm,
                        "lr": step / 1000, "ms": 1, "tokens_per_s": 1.2e6 + step % 100 * 1e3, "loss_z": math.cos(step)})
        if step % 2 == 0:
            valid = 1 + math.sin(step / 9) / 2
            records.append({"record": "eval", "split": "valid", "epoch": 1, "step": step, "loss": valid,
                            "ppl": math.exp(valid)})
    for rank in range(100):
        records.append({"record": "memory", "rank": rank, "stage": 0, "host": f"host-{rank // 50}", "device": "cpu",
                        "peak_bytes": {"parameters": rank + 1}, "peak_total_bytes": rank + 1})
    for replica in range(70):
        records.append({"record": "pipeline", "replica": replica, "epoch": 1, "step": 5000, "bubble_predicted": 0.5,
                        "bubble_measured": 0.5, "placement": [0, 1], "measured": [["0F0", 0, 50], ["1F0", 50, 100]],
                        "predicted": [["0F0", 0, 50], ["1F0", 50, 100]]})
    del records[-70]["placement"]  # as with too many actions
    with open(path, "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def check_large_report(browser, program):
    write_large_log("large.jsonl")
    subprocess.run([program, "report", "large.jsonl", "-o", "large.html"], check=True)
    address = f"file://{os.getcwd()}/large.html"
    browser.open(address, 390)
    browser.await_true("!!document.querySelector('footer')")
    [memory] = browser.value(BARS)
    assert memory["caption"].endswith("64 of 100 devices are shown") and len(memory["bars"]) == 64, memory
    check_charts(browser.value(CHARTS), [Log("large.jsonl")])
    check_memory(memory, Log("large.jsonl"))
    assert browser.value("document.querySelectorAll('figure.pipeline').length") == 64
    assert browser.value("document.querySelectorAll('figure.pipeline svg').length") == 2 * 63
    text = browser.value("document.body.innerText")
    assert "large.jsonl: the pipelines of 64 of 70 replicas are shown." in text
    assert text.count("The log has no timeline of this step.") == 1
    browser.check_page(address)


def check_report(browser, address, logs, width):
    """No script is needed to read it."""
    browser.open(address, width)
    browser.await_true("!!document.querySelector('footer')")
    assert browser.value("document.scripts.length") == 0
    check_pictures(browser, logs)
    if len(logs) == 1:
        check_values(browser, width < 500, logs[0])
    browser.check_page(address)


# ---- The live page ------------------------------------------------------------------------------


def point_at_box(browser, point):
    """At the last one in time. Again, where the page has exchanged the timeline before the pointer was there."""
    end = time.monotonic() + 60
    while True:
        box = browser.value("""(() => {
          const boxes = [...document.querySelectorAll('svg.measured')[0].querySelectorAll('rect:not(.bubble)')];
          const end = box => box.getBoundingClientRect().right;
          const last = boxes.reduce((a, b) => end(a) > end(b) ? a : b);
          last.scrollIntoView({block: 'center', inline: 'end'});
          const {left, right, y, height} = last.getBoundingClientRect();
          return [(Math.max(left, 0) + Math.min(right, innerWidth)) / 2, y + height / 2];
        })()""")
        point(*box)
        text = browser.value("tip.hidden ? '' : tip.innerText")
        if re.match(r"measured: stage [01], .* ms", text):
            return
        assert time.monotonic() < end, text
        point(1, 1)
        time.sleep(0.1)


def check_pointer(browser, touch):
    """A box that is pointed at or tapped shows its text and stays, while other parts of the page go on."""
    point = browser.tap if touch else browser.move
    point_at_box(browser, point)
    step = browser.value(STEP)
    browser.await_true(f"{STEP} > {step}")
    assert browser.value("!tip.hidden && shown.isConnected")
    left, top, right, bottom = browser.value("(() => { const r = tip.getBoundingClientRect(); "
                                             "return [r.left, r.top, r.right, r.bottom]; })()")
    assert 0 <= left < right <= browser.width and 0 <= top < bottom <= 900, (left, top, right, bottom)
    point(1, 1)
    browser.await_true("tip.hidden")


def read_seconds(text):
    """Of "1:02:03" or "2:03"."""
    return sum(int(number) * 60 ** power for power, number in enumerate(reversed(text.split(":"))))


def check_figures(figures, log):
    """The last step's, and by the mean of the last 50 steps the time left."""
    last = log.steps[-1]
    shown = {"loss": last["loss"], "perplexity": math.exp(last["loss"]), "gradient norm": last["grad_norm"],
             "learning rate": last["lr"], "tokens/s": last["tokens_per_s"], "mfu, %": 100 * last["mfu"]}
    for name, value in shown.items():
        assert math.isclose(float(figures[name]), value, rel_tol=1e-3), (name, figures, value)
    steps_left = log.run["batches_per_epoch"] * log.run["epochs"] - last["step"]
    seconds = statistics.mean(r["ms"] for r in log.steps[-50:]) / 1e3 * steps_left
    assert abs(read_seconds(figures["left to train"]) - seconds) <= 1, (figures, seconds)


def check_run(browser, address):
    """The page of a run that goes on. All is read at once, as the page goes on."""
    browser.open(address, 390)
    browser.await_true(f"{POINTS} >= 8 && {BOTH_LIVE}")
    step, charts, boxes, figures = browser.value(f"[{STEP}, {CHARTS}, {BOXES}, {FIGURES}]")
    browser.await_true(f"{STEP} > {step}")
    log = Log("live.jsonl")
    log.cut(step, len(charts[0]["dots"]))
    check_charts(charts, [log])
    check_figures(figures, log)
    check_order(boxes)
    for timelines, record in zip(boxes, log.pipelines.values(), strict=True):
        for timeline, kind in zip(timelines, ("predicted", "measured")):
            found = [box[0].rpartition(": ")[0] for box in timeline["boxes"]]
            assert found == describe_boxes(record[kind], kind)
            check_rows(timeline, 2)
    assert browser.value("document.querySelector('.charts').lastElementChild.innerText").count("cpu") == 4
    check_pointer(browser, touch=True)
    browser.check_page(address, address + "events")
    browser.open(address, 1280)
    browser.await_true("document.querySelectorAll('figure.pipeline').length == 2")
    check_pointer(browser, touch=False)
    browser.check_page(address, address + "events")


def check_end(browser, run):
    """The page says when the run has ended, here after its first epoch, which the trace has."""
    browser.await_true(f"{STEP} > 100")
    run.send_signal(signal.SIGTERM)
    browser.await_true("!document.getElementById('link').hidden")
    run.communicate(timeout=60)


def check_watch(browser, address):
    log = Log("live.jsonl")
    browser.open(address, 1280)
    browser.await_true(f"{STEP} == {len(log.steps)}")
    check_pictures(browser, [log])
    check_trace(browser, "live.json")
    assert browser.value("document.title") == "live.jsonl – sluice"
    check_values(browser, False, log)
    browser.check_colours()
    browser.check_page(address, address + "events")
    browser.open(address, 390)
    browser.await_true(f"{STEP} == {len(log.steps)}")
    check_values(browser, True, log)


def serve(program, *words):
    """Starts a server, and gives its process and the page's address."""
    process = subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if found := re.search(r"shown at (http://127\.0\.0\.1:\d+/)", line):
            return process, found.group(1)
    raise AssertionError("no address was printed")


# ---- All ----------------------------------------------------------------------------------------


def check_all(program, browser, started, logs):
    for width in 1280, 390:
        check_report(browser, f"file://{os.getcwd()}/page.html", [Log(log) for log in logs], width)
    browser.check_colours()
    check_large_report(browser, program)
    run, address = serve(
        program, "train", "--data", "text", "--emsize", "64", "--nhid", "64", "--nhead", "2", "--nlayers", "4",
        "--bptt", "16", "--batch-size", "16", "--eval-max-batches", "2", "--epochs", "10000", "--max-batches", "100",
        "--devices", ",".join(4 * ["cpu"]), "--dp", "2", "--chunks", "4", "--quiet", "--save", "w",
        "--log-json", "live.jsonl", "--trace", "live.json", "--serve", "0")
    started.append(run)
    check_run(browser, address)
    check_end(browser, run)
    watch, address = serve(program, "watch", "live.jsonl")
    started.append(watch)
    check_watch(browser, address)
    watch.send_signal(signal.SIGINT)
    assert watch.wait(timeout=60) == 0
    subprocess.run([program, "report", "live.jsonl", "-o", "live.html"], check=True)
    for width in 1280, 390:
        check_report(browser, f"file://{os.getcwd()}/live.html", [Log("live.jsonl")], width)
    check_trace(browser, "live.json")


def make_pictures(program, browser, started, directory):
    subprocess.run([program, "data", "--synthetic", "text", "--tokens", "40000"], check=True, stdout=subprocess.DEVNULL)
    run, address = serve(
        program, "train", "--data", "text", "--pp", "2", "--nlayers", "4", "--emsize", "256", "--nhid", "512",
        "--nhead", "4", "--batch-size", "16", "--chunks", "4", "--epochs", "2", "--max-batches", "60",
        "--eval-max-batches", "20", "--eval-every", "20", "--balance", "auto", "--recompute", "never", "--optimizer",
        "adamw", "--schedule", "gpipe", "--log-json", "gpipe.jsonl", "--serve", "0")
    started.append(run)
    browser.open(address, 1280)
    browser.await_true(f"{STEP} > 60")
    browser.picture(f"{directory}/live.png", 1300)
    browser.open(address, 390, dark=True)
    browser.await_true(f"{STEP} > 60")
    browser.picture(f"{directory}/live-phone.png", 2450)
    run.communicate(timeout=60)
    subprocess.run([program, "report", "gpipe.jsonl", "-o", "report.html"], check=True)
    for name, width, most in ("report", 1280, 1840), ("report-phone", 390, 1000):
        browser.open(f"file://{os.getcwd()}/report.html", width)
        browser.await_true("!!document.querySelector('footer')")
        browser.picture(f"{directory}/{name}.png", most)
    browser.open(f"file://{os.getcwd()}/report.html", 1000)
    browser.await_true("!!document.querySelector('footer')")
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
            program, directory, *logs = sys.argv[1:]
            os.chdir(directory)
            check_all(program, browser, started, logs)
    finally:
        browser.close()
        for process in started:
            process.kill()


main()
