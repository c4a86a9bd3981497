"""The pictures of a page, and what they must have of the logs of runs."""
import json, math, re

CHARTS = """[...document.querySelectorAll('.charts figure:has(path)')].map(figure => {
  const number = (e, key) => Number(e.getAttribute(key)), all = selector => [...figure.querySelectorAll(selector)];
  return {
    title: figure.querySelector('figcaption').firstChild.data.trim(),
    x_ticks: all('text[text-anchor=middle]').map(t => [Number(t.textContent), number(t, 'x')]),
    y_ticks: all('line.grid').map(l => [Number(l.nextElementSibling.textContent), number(l, 'y1')]),
    paths: all('path').map(p => [p.getAttribute('class'), p.getAttribute('d')]),
    dots: all('circle').map(c => [c.getAttribute('class'), number(c, 'cx'), number(c, 'cy')])};
})"""
BARS = """[...document.querySelectorAll('.charts figure:not(:has(path))')].map(figure => ({
  caption: figure.querySelector('figcaption').innerText,
  bars: [...figure.querySelectorAll('rect')].map(r =>
    [r.querySelector('title').textContent.split(':')[0], ...['y', 'x', 'width'].map(key => Number(r.getAttribute(key)))]),
  devices: [...figure.querySelectorAll('text:has(title)')].map(t => t.firstChild.data)}))"""
BOXES = """[...document.querySelectorAll('figure.pipeline')].map(figure => ['predicted', 'measured'].map(kind => {
  const svg = figure.querySelector('svg.' + kind), numbers = ['x', 'y', 'width'];
  const boxes = selector => [...svg.querySelectorAll(selector)].map(r =>
    [r.querySelector('title').textContent, ...numbers.map(key => Number(r.getAttribute(key)))]);
  return {bubble: Number(svg.querySelector('text').textContent.match(/bubble ([\\d.]+)%/)[1]),
          top: svg.getBoundingClientRect().top, left: svg.getBoundingClientRect().left,
          rows: boxes('rect.bubble'), boxes: boxes('rect:not(.bubble)')};
}))"""
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

    def seconds(self, records):
        """When records were written, since the first step's was."""
        return [r["time"] - self.steps[0]["time"] for r in records]


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


def time_unit(logs):
    """In seconds, of the chart over time; None: the logs do not say when records were written."""
    if not all("time" in r for log in logs for r in log.steps):
        return None
    longest = max(log.seconds(log.steps)[-1] for log in logs)
    return next(unit for unit in (86400, 3600, 60, 1) if longest >= 3 * unit or unit == 1)


def over_time(points, seconds, unit):
    return [(x / unit, y) for x, (_, y) in zip(seconds, points, strict=True)]


def list_curves(log, unit):
    """Of each chart: the kind of each path, and the points that it is made of."""
    valid = [(r["step"], r["loss"]) for r in log.valid]
    loss, norms, rates = log.values("loss"), log.values("grad_norm"), log.values("tokens_per_s")
    return {
        "Loss": [(" faint", loss), ("", smooth(loss)), (" dotted", valid)],
        "Perplexity": [(" faint", exponentials(loss)), ("", exponentials(smooth(loss))),
                       (" dotted", [(r["step"], r["ppl"]) for r in log.valid])],
        **({} if unit is None else {"Loss over time": [
            (" faint", over_time(loss, log.seconds(log.steps), unit)),
            ("", over_time(smooth(loss), log.seconds(log.steps), unit)),
            (" dotted", over_time(valid, log.seconds(log.valid), unit))]}),
        "Gradient norm": [(" faint", norms), ("", smooth(norms))],
        "Learning rate": [("", log.values("lr"))],
        "Speed": [(" faint", rates), ("", smooth(rates))],
        "Unusual steps": [("", log.values("loss_z"))]}


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
    """A function from a value to its position, by the first and the last tick; the other ticks must agree."""
    scale = math.log if is_log else float
    assert len(ticks) >= 2, ticks
    (first, begin), (last, end) = ticks[0], ticks[-1]

    def locate(value):
        return begin + (end - begin) * (scale(value) - scale(first)) / (scale(last) - scale(first))

    assert all(abs(locate(value) - at) < 0.2 for value, at in ticks), ticks
    return locate


def check_points(found, points, chart):
    """The positions on a chart are those of the points, to about half a pixel."""
    assert len(found) == len(points), (chart["title"], len(found), len(points))
    for position, (x, y) in zip(found, points):
        expected = chart["locate_x"](x), chart["locate_y"](y)
        assert math.dist(position, expected) < 0.6, (chart["title"], x, y, position, expected)


def check_path(path, points, chart):
    """Its points, and a move instead of a line after each gap."""
    moves = re.findall(r"([ML])([\d.]+) ([\d.]+)", path)
    assert "".join(map("".join, ((m[0], m[1], " ", m[2]) for m in moves))) == path
    check_points([(float(x), float(y)) for _, x, y in moves], [p for p in points if p], chart)
    begins = [before is None for before, point in zip([None, *points], points) if point]
    assert [verb == "M" for verb, _, _ in moves] == begins, chart["title"]


def check_charts(charts, logs):
    """All curves of all logs, with every point."""
    unit = time_unit(logs)
    curves = [list_curves(log, unit) for log in logs]
    assert [chart["title"] for chart in charts] == list(curves[0])
    for chart in charts:
        title = chart["title"]
        is_log = title in ("Loss", "Perplexity", "Loss over time", "Gradient norm")
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


SEEN = """[...document.querySelectorAll('.seen')].filter(g => getComputedStyle(g).visibility === 'visible')
  .map(g => [...g.querySelector('text').childNodes].map(n => n.textContent))"""
PLOT = """(() => {
  const svg = document.querySelectorAll('.charts svg')[%d], hits = svg.querySelectorAll('.hit');
  svg.scrollIntoView({block: 'center'});
  const box = e => e.getBoundingClientRect(), {top, height} = box(hits[0]);
  return [box(hits[0]).left + box(hits[0]).width / 2, box(hits[hits.length - 1]).left + 1, top + height / 3];
})()"""


def read_numbers(text):
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e[+-]\d+)?", text)]


def is_among(number, values):
    return any(math.isclose(number, value, rel_tol=1e-3, abs_tol=1e-9) for value in values)


def check_values(browser, touch, log):
    """A pointer, or a tap, anywhere on any chart of one run shows the values of the step there, and no others. Times on
    the x axis are rounded, so that a neighbour's may be among the values."""
    for number, (title, of_chart) in enumerate(list_curves(log, time_unit([log])).items()):
        rounding = 1e-3 if title == "Loss over time" else 0
        for part in 0.02, 0.4, 0.9:
            left, right, y = browser.value(PLOT % number)
            (browser.tap if touch else browser.move)(left + part * (right - left), y)
            browser.await_true(f"({SEEN}).length === 1")
            [lines] = browser.value(SEEN)
            low, *_, high = 2 * read_numbers(lines[0])
            values = [sorted(y for x, y in points if low * (1 - rounding) <= x <= high * (1 + rounding) and math.isfinite(y))
                      for _, points in of_chart]
            expected = [own for own in values if own]
            assert 1 < len(lines) <= 1 + len(expected) and (rounding or len(lines) == 1 + len(expected)), (title, lines)
            for line, own in zip(lines[1:], expected):
                found, (lowest, highest) = read_numbers(line), (own, own) if rounding else (own[:1], own[-1:])
                assert is_among(found[0], lowest) and is_among(found[-1], highest), (title, line, own)


# ---- Memory -------------------------------------------------------------------------------------


def check_memory(figure, log):
    """Each device's row has a bar for each category, as long as its bytes and one after the other."""
    records, bars = list(log.memory.values())[:64], figure["bars"]
    names = [f"{r['rank']}.{r['stage']} {r['device']}" for r in records]
    assert [re.sub(r" host-\d", "", text) for text in figure["devices"]] == names
    expected = [(row, category, size)
                for row, r in enumerate(records) for category, size in r["peak_bytes"].items() if size]
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
    """Each rank's whole time is marked as bubble below its boxes, which leave as much of it as the text says. `rounding`
    is how far the times of all boxes together may be off, as a fraction of all ranks' time."""
    assert len(timeline["rows"]) == ranks
    rounding += (0.06 + 0.005 * len(timeline["boxes"])) / timeline["rows"][0][3]  # of the widths
    total = sum(width for _, _, _, width in timeline["rows"])
    busy = sum(width for _, _, _, width in timeline["boxes"])
    assert abs(1 - busy / total - timeline["bubble"] / 100) < 0.001 + rounding, timeline


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
