#!/bin/bash
# sluice plan --cluster --what-if: each point is the plan of a cluster that a file describes so.
. "$(dirname "$0")/../support/script.sh"

cluster() { # NODES BYTES_PER_S MTBF
    echo "{\"nodes\": [{\"count\": $1, \"devices\": 1, \"memory_bytes\": 2e9, \"reserved_bytes\": 0, \"flops_f32\": 1e9}],
 \"links\": {\"spine\": {\"latency_s\": 1e-5, \"bytes_per_s\": $2}}, \"failures\": {\"mtbf_s\": $3, \"repair_s\": 1e4}}"
}
cluster 4 1e6 1e5 >cluster.json
plan=(--emsize 16 --nhid 16 --nlayers 3 --nhead 2 --bptt 8 --ntokens 50 --batch-tokens 64 --tokens 1e8)
"$program" plan "${plan[@]}" --cluster cluster.json --what-if nodes=1,2,4 --what-if links=1,8 --what-if failures=1,10 \
    --csv points.csv --svg chart.svg >table 2>err || fail "--what-if: status $?"
[ ! -s err ] || fail "--what-if: words on standard error"
[ "$(wc -l <table)" = 13 ] || fail "--what-if: other lines"

# Each point is what a file of such a cluster is planned as.
plans() {
    for nodes in 1 2 4; do
        for links in 1 8; do
            for failures in 1 10; do
                cluster $nodes ${links}e6 "$(python3 -c "print(1e5 / $failures)")" >other.json
                "$program" plan "${plan[@]}" --cluster other.json --json | python3 -c "import json, sys
plan = json.load(sys.stdin)['plans'][0]
print($links, $failures, $nodes, plan['step_ms'], plan['tokens_per_day'], plan['days_low'], sep=',')"
            done
        done
    done
}
plans >expected
python3 -c 'import csv
points = {(row["links"], row["failures"], row["nodes"]): row for row in csv.DictReader(open("points.csv"))}
expected = [line.strip().split(",") for line in open("expected")]
assert len(points) == len(expected) == 12, points
for links, failures, nodes, step, tokens, days in expected:
    point = points[links, failures, nodes]
    for mine, other in ((point["step_ms"], step), (point["tokens_per_day"], tokens), (point["days_low"], days)):
        assert abs(float(mine) / float(other) - 1) < 1e-6, (point, step, tokens, days)
    assert point["error"] == "", point
header, *lines = open("table").read().splitlines()
assert header.split()[-2:] == ["tokens/day", "days"], header
for line in lines:
    links, failures, nodes, *_, tokens, days = line.split()
    point = points[links, failures, nodes]
    for mine, other in ((tokens, point["tokens_per_day"]), (days, point["days"])):
        assert abs(float(mine) / float(other) - 1) < 1e-3, (line, point)' || fail "--what-if: other points"

# Faster links never train fewer tokens a day, also where the shortest step is of a layout with longer checkpoints and more failures.
cat >failing.json <<'END'
{"nodes": [{"count": 8, "devices": 1, "memory_bytes": 2e9, "reserved_bytes": 0, "flops_f32": 1e10}], "links": {"spine": {"latency_s": 1e-6, "bytes_per_s": 1e7}},
 "failures": {"mtbf_s": 1e4, "restart_s": 20, "repair_s": 1e3, "save_bytes_per_s": 1e5}}
END
failing=(--emsize 64 --nhid 64 --nlayers 3 --nhead 2 --bptt 8 --ntokens 500 --batch-tokens 64 --tokens 1e9 --cluster failing.json)
"$program" plan "${failing[@]}" --what-if links=1,2,4,8 --csv faster.csv >out 2>err || fail "failing nodes: status $?"
python3 -c 'import csv
days = [float(row["tokens_per_day"]) for row in csv.DictReader(open("faster.csv"))]
assert len(days) == 4 and days == sorted(days), days' || fail "failing nodes: faster links train less"

# A curve for each combination of the second list and the third, with a dot for each number of nodes, in colours for light and dark.
python3 -c 'import csv, xml.etree.ElementTree as tree
svg = tree.parse("chart.svg").getroot()
name = "{http://www.w3.org/2000/svg}"
titles = [title.text for title in svg.iter(name + "title")]
assert titles == ["links 1, failures 1", "links 8, failures 1", "links 1, failures 10", "links 8, failures 10"], titles
circles = [float(circle.get("cy")) for circle in svg.iter(name + "circle")]
points = {(row["links"], row["failures"], row["nodes"]): float(row["tokens_per_day"]) for row in csv.DictReader(open("points.csv"))}
drawn = [points[links, failures, nodes] for failures in ("1", "10") for links in ("1", "8") for nodes in ("1", "2", "4")]
assert len(circles) == 12
low, high = drawn.index(min(drawn)), drawn.index(max(drawn))
scale = (circles[high] - circles[low]) / (drawn[high] - drawn[low])
assert scale < 0, circles
for y, tokens in zip(circles, drawn):
    assert abs(circles[low] + scale * (tokens - drawn[low]) - y) < 0.2, (y, tokens)
assert "prefers-color-scheme:dark" in svg.find(name + "style").text' || fail "--what-if: another chart"

# A point without a plan says why, and the others are there.
"$program" plan "${plan[@]}" --cluster cluster.json --dp 2 --what-if nodes=1,2 --csv points.csv >out 2>err || fail "--dp 2: status $?"
python3 -c 'import csv
one, two = csv.DictReader(open("points.csv"))
assert one["nodes"] == "1" and one["error"] and not one["step_ms"] and two["step_ms"] and not two["error"], (one, two)' || fail "--dp 2: other points"

"$program" plan "${plan[@]}" --cluster cluster.json --dp 4 --what-if links=1,2 --what-if nodes=1 >out 2>err && fail "--dp 4 on one node: a plan"
grep -q -- "--what-if links=1 nodes=1: cluster.json: " err || fail "--dp 4 on one node: $(cat err)"
plan+=(--cluster cluster.json)
refused 1 "links must be numbers from 1e-06 to 1e+06, got \"0x2\"" "$program" plan "${plan[@]}" --what-if links=0x2
refused 1 "lists of links, nodes or failures, got \"memory\"" "$program" plan "${plan[@]}" --what-if memory=2
refused 1 "must be links=, nodes= or failures= and numbers with commas between, got \"2\"" "$program" plan "${plan[@]}" --what-if 2
refused 1 "links must be numbers from 1e-06 to 1e+06, got \"0\"" "$program" plan "${plan[@]}" --what-if links=0
refused 1 "links must be numbers from 1e-06 to 1e+06, got \"1e-300\"" "$program" plan "${plan[@]}" --what-if links=1e-300
refused 1 "links must be numbers from 1e-06 to 1e+06, got \"2x\"" "$program" plan "${plan[@]}" --what-if links=1,2x
refused 1 "links must be numbers from 1e-06 to 1e+06, got \"\"" "$program" plan "${plan[@]}" --what-if links=
refused 1 "nodes must be whole numbers from 1 to 1e+06, got \"1.5\"" "$program" plan "${plan[@]}" --what-if nodes=1.5
refused 1 "links must ascend, got 1 after 2" "$program" plan "${plan[@]}" --what-if links=2,1
refused 1 "a list of links twice" "$program" plan "${plan[@]}" --what-if links=2,links=3
refused 1 "at most 64 points, and 8 for each value of its first list, got 9 and 9" "$program" plan "${plan[@]}" --what-if nodes=1 --what-if links=1,2,3,4,5,6,7,8,9
echo '{"nodes": [{"devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}]}' >safe.json
refused 1 "other failures need a cluster with \"failures\"" "$program" plan "${plan[@]}" --cluster safe.json --what-if failures=2
refused 2 "--what-if cannot be combined with --json" "$program" plan "${plan[@]}" --what-if links=2 --json
refused 2 "--csv needs --what-if" "$program" plan "${plan[@]}" --csv points.csv
refused 1 "must be two files" "$program" plan "${plan[@]}" --what-if links=2 --csv same --svg same
refused 1 "cluster.json is an input" "$program" plan "${plan[@]}" --what-if links=2 --csv cluster.json
plan=(--emsize 16 --nhid 16 --nlayers 3 --nhead 2)
refused 2 "--what-if needs --cluster" "$program" plan "${plan[@]}" --what-if links=2
