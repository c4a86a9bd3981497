#!/bin/bash
# sluice report: the page of two runs is well-formed, has all pictures, and shows hostile names as text; the
# table has the logs' numbers. Chromium, where it is installed, shows the report, and the page of train --serve
# and watch, with the points and actions of the logs (pages.py).
set -euo pipefail
program=${SLUICE_PROGRAM:?}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAILED: $1"; exit 1; }

"$program" data --synthetic text --tokens 4000 >/dev/null
hostile='<script>alert("x")<img src=h:>.jsonl'
train() { # LOG OPTION...
    "$program" train --data text --emsize 8 --nhid 8 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4 \
        --eval-max-batches 2 --epochs 2 --max-batches 6 --devices cpu:0-0,cpu:0-0 --chunks 4 --quiet \
        --log-json "$@" >/dev/null 2>&1
}
train a.jsonl
train "$hostile" --lr 0.25 --schedule 1f1b
printf '{"record":"st' >>a.jsonl # as of a run that was killed
"$program" report a.jsonl "$hostile" -o page.html
"$program" report --csv a.jsonl "$hostile" >table.csv

/usr/bin/python3 - "$hostile" <<'END' || fail "the page is not that of the logs"
import csv, json, sys
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

figures = {f.find("figcaption").text.strip() for f in page.iter("figure")}
assert figures == {"Loss", "Perplexity", "Gradient norm", "Learning rate", "Speed", "Loss, unusual steps",
                   "Peak memory", "Pipeline"}, figures

rows = list(csv.DictReader(open("table.csv")))
assert len(rows) == sum(map(len, steps)) + sum(map(len, evals))
for name, log in zip(logs, steps):
    own = [r for r in rows if r["log"] == name and r["record"] == "step"]
    assert [float(r["loss"]) for r in own] == [r["loss"] for r in log]
    assert [int(r["step"]) for r in own] == [r["step"] for r in log]
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
/usr/bin/python3 -B "$SLUICE_SOURCE_DIR/tests/report/pages.py" "$program" "$scratch" a.jsonl "$hostile" ||
    fail "the pages in a browser are not those of the logs"
echo "pages and table are those of the logs"
