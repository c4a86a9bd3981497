"""The pages in a browser: usage: pages.py PROGRAM DIRECTORY LOG..., in a directory with `text`, and with the logs' report
`page.html`.

The report and the live page, of a run that goes on and of its log when it is over, have the points of the logs and the
boxes of the trace, fit on a screen and on a phone, in light and in dark, request nothing from elsewhere, and
say nothing on chromium's console. With --pictures PROGRAM DIRECTORY, the pictures of docs/ are made in the directory,
of the run that docs/usage.md has."""
import json, math, os, re, signal, statistics, subprocess, sys, tempfile

from browser import Browser

STEP = "Number(document.querySelector('main p')?.innerText.match(/step (\\d+)/)?.[1] ?? 0)"
POINTS = "(document.querySelector('path.c0.faint')?.getAttribute('d').match(/[ML]/g) ?? []).length"
CHARTS = """[...document.querySelectorAll('.charts figure:has(path)')].map(figure => {
  const number = (e, key) => Number(e.getAttribute(key)), all = selector => [...figure.querySelectorAll(selector)];
  return {
    title: figure.querySelector('figcaption').firstChild.data.trim(),
    x_ticks: all('text[text-anchor=middle]').map(t => [Number(t.textContent), number(t, 'x')]),
    y_ticks: all('line.grid').map(l => [Number(l.nextElementSibling.textContent), number(l, 'y1')]),
    paths: all('path').map(p => [p.getAttribute('class'), p.getAttribute('d')]),
    dots: all('circle').map(c => [c.getAttribute('class'), number(c, 'cx'), number(c, 'cy')])};
})"""
BOXES = """[...document.querySelectorAll('figure.pipeline')].map(figure => ['predicted', 'measured'].map(kind => {
  const svg = figure.querySelector('svg.' + kind), numbers = ['x', 'y', 'width'];
  const boxes = selector => [...svg.querySelectorAll(selector)].map(r =>
    [r.querySelector('title').textContent, ...numbers.map(key => Number(r.getAttribute(key)))]);
  return {bubble: Number(svg.querySelector('text').textContent.match(/bubble ([\\d.]+)%/)[1]),
          top: svg.getBoundingClientRect().top, left: svg.getBoundingClientRect().left,
          rows: boxes('rect.bubble'), boxes: boxes('rect:not(.bubble)')};
}))"""
BARS = """[...document.querySelectorAll('.charts figure:not(:has(path))')].map(figure => ({
  caption: figure.querySelector('figcaption').innerText,
  bars: [...figure.querySelectorAll('rect')].map(r =>
    [r.querySelector('title').textContent.split(':')[0], ...['y', 'x', 'width'].map(key => Number(r.getAttribute(key)))]),
  devices: [...figure.querySelectorAll('text:has(title)')].map(t => t.firstChild.data)}))"""
# Whether both replicas' timelines are of one step, and not of an epoch's last, as those in the log are.
BOTH_LIVE = """(() => {
  const steps = [...document.querySelectorAll('.pipeline small')].map(s => Number(s.innerText.match(/step (\\d+)/)[1]));
  return steps.length === 2 && steps[0] === steps[1] && steps[0] % 4 !== 0;
})()"""
FIGURES = """Object.fromEntries([...document.querySelectorAll('.state > div')].map(d =>
  [d.querySelector('span').innerText, d.querySelector('b').innerText]))"""
KINDS = {"F": "forward", "R": "recompute", "B": "backward", "I": "backward for the input",
         "W": "backward for the weights"}


# ---- Logs ---------------------------------------------------------------------------------------


class Log:
    """The records of a log, without a last line that is cut off."""

    def __init__(self, path):
        records = [json.loads(line) for line in open(path) if line.endswith("\n")]
        self.run = records[0]
        self.steps = [r for r in records if r["record"] == "step"]
        self.valid = [r for r in records if r["record"] == "eval" and r["split"] == "valid"]
        memory, pipelines = ([r for r in records if r["record"] == kind] for kind in ("memory", "pipeline"))
        self.memory = {(r["rank"], r["stage"]): r for r in memory}
        self.pipelines = {r["replica"]: r for r in pipelines}  # the last one of each

    def cut(self, step, valid):
        """As it was after that step, with so many validations."""
        self.steps = [r for r in self.steps if r["step"] <= step]
        assert len(self.steps) == step
        assert sum(r["step"] < step for r in self.valid) <= valid <= len(self.valid)
        self.valid = self.valid[:valid]

    def values(self, key):
        return [(r["step"], math.nan if r.get(key) is None else r[key]) for r in self.steps]


def exponentials(points):
    return [(x, math.exp(y)) for x, y in points]


def smooth(points):
    """Their mean, in which a point weighs less with each one that follows."""
    weight, total, weights, smoothed = min(1, 20 / (len(points) + 1)), 0, 0, []
    for x, y in points:
        if math.isfinite(y):
            total, weights = ((1 - weight) * old + weight * new for old, new in ((total, y), (weights, 1)))
        smoothed.append((x, total / weights if math.isfinite(y) else math.nan))
    return smoothed


def list_curves(log):
    """Of each chart: the kind of each path, and the points that it is made of."""
    loss, norms, rates = log.values("loss"), log.values("grad_norm"), log.values("tokens_per_s")
    return {
        "Loss": [(" faint", loss), ("", smooth(loss)), (" dotted", [(r["step"], r["loss"]) for r in log.valid])],
        "Perplexity": [(" faint", exponentials(loss)), ("", exponentials(smooth(loss))),
                       (" dotted", [(r["step"], r["ppl"]) for r in log.valid])],
        "Gradient norm": [(" faint", norms), ("", smooth(norms))],
        "Learning rate": [("", log.values("lr"))],
        "Speed": [(" faint", rates), ("", smooth(rates))],
        "Loss, unusual steps": [("", log.values("loss_z"))]}


# ---- Curves -------------------------------------------------------------------------------------


def thin(points, is_log):
    """What is drawn of points, with a None at each gap: of many, the lowest and the highest of each bucket."""
    each, drawn = 1 if len(points) <= 2000 else math.ceil(len(points) / 338), []
    for first in range(0, len(points), each):
        bucket = [p for p in points[first:first + each] if math.isfinite(p[1]) and (p[1] > 0 or not is_log)]
        ends = {end(bucket, key=lambda p: p[1]) for end in (min, max)} if bucket else [None]
        drawn += sorted(ends)
    return drawn


def read_axis(ticks, is_log):
    """Where a value stands, by the first and the last tick, between which the others must stand as well."""
    scale = math.log if is_log else float
    assert len(ticks) >= 2, ticks
    (first, begin), (last, end) = ticks[0], ticks[-1]

    def locate(value):
        return begin + (end - begin) * (scale(value) - scale(first)) / (scale(last) - scale(first))

    assert all(abs(locate(value) - at) < 0.2 for value, at in ticks), ticks
    return locate


def check_points(found, points, chart):
    """The places on a chart are those of the points, to about a pixel's half."""
    assert len(found) == len(points), (chart["title"], len(found), len(points))
    for place, (x, y) in zip(found, points):
        expected = chart["locate_x"](x), chart["locate_y"](y)
        assert math.dist(place, expected) < 0.6, (chart["title"], x, y, place, expected)


def check_path(path, points, chart):
    """Its points, and a move instead of a line after each gap."""
    moves = re.findall(r"([ML])([\d.]+) ([\d.]+)", path)
    assert "".join(map("".join, ((m[0], m[1], " ", m[2]) for m in moves))) == path
    check_points([(float(x), float(y)) for _, x, y in moves], [p for p in points if p], chart)
    begins = [before is None for before, point in zip([None, *points], points) if point]
    assert [verb == "M" for verb, _, _ in moves] == begins, chart["title"]


def check_charts(charts, logs):
    """All curves of all logs, with every point."""
    curves = [list_curves(log) for log in logs]
    assert [chart["title"] for chart in charts] == list(curves[0])
    for chart in charts:
        title = chart["title"]
        is_log = title in ("Loss", "Perplexity", "Gradient norm")
        chart["locate_x"] = read_axis(chart["x_ticks"], False)
        chart["locate_y"] = read_axis(chart["y_ticks"], is_log)
        expected = [(f"c{number % 8}", kind, thin(points, is_log))
                    for number, own in enumerate(curves) for kind, points in own[title]]
        assert [kind for kind, _ in chart["paths"]] == [colour + kind for colour, kind, _ in expected]
        for (_, path), (_, _, points) in zip(chart["paths"], expected):
            check_path(path, points, chart)
        dots = [(colour, point) for colour, kind, points in expected if kind == " dotted" for point in points if point]
        assert [dot[0] for dot in chart["dots"]] == [colour for colour, _ in dots]
        check_points([dot[1:] for dot in chart["dots"]], [point for _, point in dots], chart)


# ---- Memory -------------------------------------------------------------------------------------


def check_memory(figure, log):
    """Each device's row has a bar for each category, as long as its bytes and one after the other."""
    records, bars = list(log.memory.values())[:64], figure["bars"]
    names = [f"{r['rank']}.{r['stage']} {r['device']}" for r in records]
    assert [re.sub(r" host-\d", "", text) for text in figure["devices"]] == names
    expected = [(row, category, size) for row, r in enumerate(records) for category, size in r["peak_bytes"].items() if size]
    assert [category for category, *_ in bars] == [category for _, category, _ in expected]
    scale = max(width for *_, width in bars) / max(size for *_, size in expected)
    ends = {}
    for (_, y, x, width), (row, _, size) in zip(bars, expected):
        assert abs(width - size * scale) < 0.2 and abs(x - ends.get(row, x)) < 0.2 and y == bars[0][1] + 22 * row
        ends[row] = x + width


# ---- Timelines ----------------------------------------------------------------------------------


def describe_boxes(entries, kind):
    """The text of each box, up to its times."""
    names = (re.fullmatch(r"(\d+)([FRBIW])(\d+)", name).groups() for name, _, _ in entries)
    return [f"{kind}: stage {stage}, {KINDS[letter]} of micro-batch {micro}" for stage, letter, micro in names]


def check_rows(timeline, ranks, rounding=0):
    """Each rank's whole time is marked as bubble below its boxes, which leave as much of it as the text says. `rounding`:
    how far the times of all boxes together may be off, in ranks' times."""
    assert len(timeline["rows"]) == ranks
    total = sum(width for _, _, _, width in timeline["rows"])
    busy = sum(width for _, _, _, width in timeline["boxes"])
    assert abs(1 - busy / total - timeline["bubble"] / 100) < 0.002 + rounding, timeline


def check_timeline(timeline, record, kind):
    """Its boxes are the record's actions, in time and on their ranks' rows."""
    entries, rows = record[kind], timeline["rows"]
    end = max(entry[2] for entry in entries)
    assert [box[0].rpartition(": ")[0] for box in timeline["boxes"]] == describe_boxes(entries, kind)
    for (text, x, y, width), (name, start, stop) in zip(timeline["boxes"], entries):
        _, left, top, span = rows[record["placement"][int(re.match(r"\d+", name)[0])]]
        assert y == top and abs(x - left - span * start / end) < 0.1 and abs(width - span * (stop - start) / end) < 0.1
        times = [float(number) for number in re.findall(r"[\d.]+(?:e[+-]\d+)?", text.rpartition(": ")[2])]
        assert all(math.isclose(found, us / 1e3, rel_tol=1e-3)
                   for found, us in zip(times, (stop - start, start, stop), strict=True)), (text, start, stop)
    ranks = max(record["placement"]) + 1
    check_rows(timeline, ranks, len(entries) / (ranks * end))  # a microsecond each
    assert abs(timeline["bubble"] - 100 * record["bubble_" + kind]) < 0.06


def check_order(figures):
    """The prediction stands above the measurement."""
    assert figures
    for predicted, measured in figures:
        assert predicted["top"] < measured["top"] and predicted["left"] == measured["left"]


def check_marks(browser):
    """A bubble can be told from the paper, and the key says what it is."""
    for dark in True, False:
        browser.set_dark(dark)
        assert browser.value("getComputedStyle(document.querySelector('rect.bubble')).fill != "
                             "getComputedStyle(document.body).backgroundColor")
    keys = browser.value("[...document.querySelectorAll('.pipeline .key')].map(key => key.innerText)")
    assert all("bubble: the rank is idle" in key for key in keys) and keys


def check_pictures(browser, logs):
    """The page's pictures are those of the logs."""
    check_charts(browser.value(CHARTS), logs)
    for figure, log in zip(browser.value(BARS), logs, strict=True):
        check_memory(figure, log)
    figures, records = browser.value(BOXES), [r for log in logs for r in log.pipelines.values()]
    check_order(figures)
    for timelines, record in zip(figures, records, strict=True):
        for timeline, kind in zip(timelines, ("predicted", "measured")):
            check_timeline(timeline, record, kind)
    check_marks(browser)


def check_trace(browser, path):
    """The first replica's timelines have a box for each of the trace's actions in the last epoch."""
    events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X"]
    last = events[-1]["args"]["epoch"]
    for process, timeline in zip((1, 2), browser.value(BOXES)[0]):
        actions = sum(e["pid"] == process and e["args"]["epoch"] == last for e in events)
        assert len(timeline["boxes"]) == actions > 16, (process, actions)


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
    browser.check_page(address)


# ---- The live page ------------------------------------------------------------------------------


def point_at_box(browser, point):
    """At the last one in time. Again, where the page has exchanged the timeline before the pointer was there."""
    for _ in range(20):
        box = browser.value("""(() => {
          const boxes = [...document.querySelectorAll('svg.measured')[0].querySelectorAll('rect:not(.bubble)')];
          const last = boxes.reduce((a, b) => a.getBoundingClientRect().right > b.getBoundingClientRect().right ? a : b);
          last.scrollIntoView({block: 'center', inline: 'end'});
          const {left, right, y, height} = last.getBoundingClientRect();
          return [(Math.max(left, 0) + Math.min(right, innerWidth)) / 2, y + height / 2];
        })()""")
        point(*box)
        text = browser.value("tip.hidden ? '' : tip.innerText")
        if re.match(r"measured: stage [01], .* ms", text):
            return
        point(1, 1)
    raise AssertionError(text)


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
    assert browser.value("document.querySelector('.charts').lastElementChild.innerText").count("cpu:0-0") == 4
    check_pointer(browser, touch=True)
    browser.check_page(address, address + "events")
    browser.open(address, 1280)
    browser.await_true("document.querySelectorAll('figure.pipeline').length == 2")
    check_pointer(browser, touch=False)
    browser.check_page(address, address + "events")


def check_end(browser, run):
    """The page says when the run has ended."""
    run.send_signal(signal.SIGTERM)
    browser.await_true("!document.getElementById('link').hidden")
    run.communicate(timeout=60)


def check_watch(browser, address):
    log = Log("live.jsonl")
    browser.open(address, 1280)
    browser.await_true(f"{STEP} == {len(log.steps)}")
    check_pictures(browser, [log])
    check_trace(browser, "live.json")
    browser.check_colours()
    browser.check_page(address, address + "events")


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
        "--bptt", "16", "--batch-size", "16", "--eval-max-batches", "2", "--epochs", "10000", "--max-batches", "4",
        "--devices", ",".join(4 * ["cpu:0-0"]), "--dp", "2", "--chunks", "4", "--quiet", "--save", "w.safetensors",
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
    check_report(browser, f"file://{os.getcwd()}/live.html", [Log("live.jsonl")], 1280)
    check_trace(browser, "live.json")


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
            program, directory, *logs = sys.argv[1:]
            os.chdir(directory)
            check_all(program, browser, started, logs)
    finally:
        browser.close()
        for process in started:
            process.kill()


main()
