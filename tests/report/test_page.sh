#!/bin/bash
# sluice report: the page of two runs is well-formed, has all pictures, and shows hostile names as text; its
# tables and the CSV have the logs' values. Chromium, where it is installed, shows the report, and the page of
# train --serve and watch, with the points and actions of the logs (pages.py).
. "$(dirname "$0")/../support/script.sh"

"$program" data --synthetic text --tokens 4000 >/dev/null
hostile='<script>alert("x")<img src=h:>.jsonl'
train() { # LOG OPTION...
    "$program" train --data text --emsize 8 --nhid 8 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4 \
        --eval-max-batches 2 --epochs 2 --max-batches 6 --devices cpu,cpu --chunks 4 --quiet \
        --log-json "$@" >/dev/null 2>&1
}
train a.jsonl
train "$hostile" --lr 0.25 --schedule 1f1b --nhid 16
printf '{"record":"st' >>a.jsonl # as of a run that was killed
"$program" report a.jsonl "$hostile" -o page.html
"$program" report --csv a.jsonl "$hostile" >table.csv

/usr/bin/python3 - "$hostile" <<'END' || fail "the page is not that of the logs"
import csv, json, os, sys, time
import xml.etree.ElementTree as tree

logs = ["a.jsonl", sys.argv[1]]
def read_records(path):
    return [json.loads(line) for line in open(path) if line.endswith("\n")]
records = [read_records(path) for path in logs]
steps = [[r for r in log if r["record"] == "step"] for log in records]
evals = [[r for r in log if r["record"] == "eval"] for log in records]

page = tree.parse("page.html").getroot()
names = {element.tag for element in page.iter()}
assert not names & {"script", "img", "link", "iframe", "object"}, names
for element in page.iter():
    for key, value in element.attrib.items():
        assert not key.startswith("on") and key not in ("src", "href"), (key, value)
text = "".join(page.itertext())
assert sys.argv[1] in text and "1f1b" in text and "gpipe" in text and "mfu, median, %" in text

assert page.find("head/title").text == "a.jsonl and others – sluice"
runs = [log[0] for log in records]
for path, run in zip(logs, runs):
    assert abs(run["time"] - os.path.getmtime(path)) < 600, run["time"]
    assert run["command"].startswith("sluice train --data text --emsize 8 ") and run["command"] in text, run["command"]
    assert time.strftime("began on %Y-%m-%d at %H:%M:%S UTC", time.gmtime(run["time"])) in text
assert runs[1]["command"].endswith("""--log-json '<script>alert("x")<img src=h:>.jsonl' --lr 0.25 --schedule 1f1b --nhid 16""")

figures = {f.find("figcaption").text.strip() for f in page.iter("figure")}
assert figures == {"Loss", "Perplexity", "Loss over time", "Gradient norm", "Learning rate", "Speed", "Unusual steps",
                   "Peak memory", "Pipeline"}, figures
assert "How far a step's loss is from the mean of the 128 steps before it" in text

def median(log, key):
    values = sorted(r[key] for r in log if r[key] is not None)
    return values[len(values) // 2]

def fraction(log, key):
    return sum(r[key] for r in log) / sum(r["ms"] for r in log)

def results(log, own, evals):
    """What the table of results has of a log."""
    pipeline = [r for r in log if r["record"] == "pipeline"][-1]
    valid, [test] = [r for r in evals if r["split"] == "valid"], [r for r in evals if r["split"] == "test"]
    last = [r["loss"] for r in own[-20:]]
    yield "steps", own[-1]["step"]
    yield "train loss, last 20 steps", sum(last) / len(last)
    yield "best validation loss", min(r["loss"] for r in valid)
    yield "last validation loss", valid[-1]["loss"]
    yield "test loss", test["loss"]
    yield "test perplexity", test["ppl"]
    yield "seconds, with evaluations", next(r["seconds"] for r in log if r["record"] == "end")
    tokens = [r["tokens_per_s"] * r["ms"] / 1000 for r in own]
    yield "tokens trained, with padding", sum(tokens)
    yield "targets trained", sum(r["targets"] for r in own)
    yield "padding, % of the tokens", 100 * sum(t * r["padding"] for t, r in zip(tokens, own)) / sum(tokens)
    yield "ms of a step, median", median(own, "ms")
    yield "tokens/s, median", median(own, "tokens_per_s")
    yield "GFLOP/s of the model, median", 1e-9 * median(own, "flops_per_s")
    yield "mfu, median, %", 100 * median(own, "mfu")
    yield "peak memory of a device", max(r["peak_total_bytes"] for r in log[-3:] if r["record"] == "memory")
    yield "bubble measured, %", 100 * pipeline["bubble_measured"]
    yield "bubble predicted, %", 100 * pipeline["bubble_predicted"]
    yield "time for data, %", 100 * fraction(own, "data_ms")
    yield "time for the optimizer, %", 100 * fraction(own, "optimizer_ms")
    yield "time waiting for replicas, %", 100 * fraction(own, "reduce_ms")
    yield "time waiting for other stages, %", 100 * fraction(own, "waiting_ms")
    yield "steps with a loss or norm that is not finite", 0

def number(cell):
    words = cell.split()
    return float(words[0]) * 1024 ** ["B", "KiB", "MiB", "GiB"].index((words + ["B"])[1])

def read_table(name):
    [table] = [t for t in page.iter("table") if t.get("class") == name]
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.find("tbody")}

table = read_table("numbers")
expected = [dict(results(*of)) for of in zip(records, steps, evals)]
assert list(table) == list(expected[0])
for name, cells in table.items():
    for cell, of in zip(cells, expected, strict=True):
        assert abs(number(cell) - of[name]) <= 5.1e-4 * abs(of[name]), (name, cell, of[name])

def options(log):
    run = next(r for r in log if r["record"] == "run")
    return {key: value for key, value in {**run, **run["model"]}.items()
            if key not in ("record", "model", "peak_flops_per_s", "process_bytes", "command", "time")}

one, other = map(options, records)
assert list(one) == list(other)
expected = {key: [one[key], other[key]] for key in one if one[key] != other[key]}
assert set(expected) == {"lr", "schedule", "nhid", "parameters"}, expected
shown = {key: [v if isinstance(v, str) else json.dumps(v) for v in pair] for key, pair in expected.items()}
assert read_table("options") == shown, shown

rows = list(csv.DictReader(open("table.csv")))
expected = [(name, r) for name, log in zip(logs, records) for r in log if r["record"] in ("step", "eval")]
assert set(steps[0][0]) - {"batch"} <= set(rows[0])
for row, (name, r) in zip(rows, expected, strict=True):
    assert row.pop("log") == name and row.pop("record") == r.get("split", "step")
    if r["record"] == "eval":
        r["ms"] = 1e3 * r["seconds"]
    for key, cell in row.items():
        assert (float(cell) if cell else None) == r.get(key), (key, cell, r)
END

# Logs of one name in several directories.
mkdir -p runs/one runs/two
cp a.jsonl runs/one/log.jsonl
cp "$hostile" runs/two/log.jsonl
"$program" report runs/one/log.jsonl runs/two/log.jsonl >named.html
for name in one/log.jsonl two/log.jsonl; do
    [ "$(grep -c "</i>[^<]*$name</th>" named.html)" = 2 ] || fail "no table names $name in each column"
    grep -q "Pipeline <small>$name," named.html || fail "the pipeline of $name has another name"
done

status=0
"$program" report absent.jsonl >/dev/null 2>err || status=$?
[ "$status" = 1 ] && grep -q 'absent.jsonl' err || fail "a log that is not there: $(cat err)"
echo '{}' >no.jsonl
status=0
"$program" report no.jsonl -o never.html 2>err || status=$?
[ "$status" = 1 ] && [ ! -e never.html ] || fail "a file that is no log gives a page"
status=0
"$program" report a.jsonl -o a.jsonl 2>err || status=$?
[ "$status" = 1 ] && [ -s a.jsonl ] || fail "a log was overwritten: $(cat err)"

command -v chromium >/dev/null || { echo "skipped: the pages in a browser: there is no chromium"; exit 0; }
/usr/bin/python3 -B "$source/tests/report/pages.py" "$program" "$scratch" a.jsonl "$hostile" ||
    fail "the pages in a browser are not those of the logs"
echo "pages and table are those of the logs"
