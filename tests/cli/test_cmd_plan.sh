#!/bin/bash
# The program `sluice plan`, run as a user does: its plans are options of sluice train.
. "$(dirname "$0")/../support/script.sh"

mkdir data
for split in train valid test; do
    for ((i = 0; i < 200; i++)); do echo "a b c d e f g h i $((i % 7)) $split"; done >data/$split.txt
done
model=(--emsize 16 --nhid 16 --nlayers 3 --nhead 2 --bptt 8)
run=(--data data "${model[@]}" --eval-batch-size 2)
query() { # EXPRESSION: of the plans
    python3 -c 'import json, sys
plans = json.load(open("out"))["plans"]
print(eval(sys.argv[1]))' "$1"
}
# What is printed is what --json has: the row of the first plan, and the actions of its pipeline, in time.
agrees() { # FILE: the output of -o, beside `out`
    python3 - "$1" <<'END' || fail "$1: other numbers than those printed"
import json, sys
found, text = json.load(open(sys.argv[1])), open("out").read()
plan, parts, table = found["plans"][0], found["time_ms"][0], found["pipeline"]
printed = text.splitlines()[1].split()[-8:]
expected = ["%.1f" % plan["step_ms"], "%.0f" % plan["tokens_per_s"], "%.1f%%" % (100 * plan["mfu"]), "%.2f" % (plan["memory_bytes"] / {"KiB": 2**10, "MiB": 2**20}[printed[4]]), printed[4]]
expected += ["%.1f%%" % (100 * share) for share in (plan["bubble"], parts["exchange"] / plan["step_ms"], parts["update"] / plan["step_ms"])]
assert printed == expected, (printed, expected)
drawing = text.split("Its pipeline, a row for each rank:\n")[1].splitlines()[:table["ranks"]]
actions = [action for action, start, end in table["actions"]]
assert [word for row in drawing for word in row.split() if word != "..."] == actions, (drawing, table)
assert all(0 <= start <= end <= table["makespan"] * (1 + 1e-6) for action, start, end in table["actions"]), table
assert abs(table["makespan"] / (plan["step_ms"] - parts["exchange"] - parts["update"]) - 1) < 1e-6, (table, plan, parts)
END
}

"$program" plan "${run[@]}" --batch-tokens 128 --profile-seconds 0.01 --json >out 2>err || fail "--json: status $?"
[ ! -s err ] || fail "--json: words on standard error"
[ "$(query 'all(set(p) == {"step_ms", "tokens_per_s", "memory_bytes", "bubble", "mfu", "spread", "device", "options"} and 0 < p["mfu"] < 2 and p["spread"] >= 0 for p in plans)')" = True ] ||
    fail "--json: other members"
[ "$(query 'plans == sorted(plans, key=lambda p: p["step_ms"]) and 0 < len(plans) <= 5')" = True ] || fail "--json: another order"
[ "$(query 'all(abs(p["step_ms"] * p["tokens_per_s"] / 128e3 - 1) < 1e-6 for p in plans)')" = True ] ||
    fail "--json: other tokens a step"
[ "$(query 'all(0 <= p["bubble"] < 1 and p["memory_bytes"] > 0 for p in plans)')" = True ] || fail "--json: impossible numbers"
count=$(query 'len(plans)')
cp out plans.json
python3 -c 'import json
found = json.load(open("plans.json"))
assert len(found["time_ms"]) == len(found["plans"]), found
for plan, times in zip(found["plans"], found["time_ms"]):
    assert abs(sum(times.values()) / plan["step_ms"] - 1) < 1e-6 and min(times.values()) > -1e-9, (plan, times)
gains = {help["what"]: help["gain"] for help in found["helps"]}
assert list(gains.values()) == sorted(gains.values(), reverse=True) and min(gains.values()) > 0, gains
assert {"twice the links", "twice the memory"} <= set(gains), gains
assert all(not help["at_least"] for help in found["helps"]), found' || fail "--json: times that are not those of the steps"
for ((i = 0; i < count; i++)); do
    mapfile -t words < <(python3 -c 'import json, sys
print("\n".join(json.load(open("plans.json"))["plans"][int(sys.argv[1])]["options"]))' "$i")
    "$program" train "${run[@]}" "${words[@]}" --epochs 1 --max-batches 2 --eval-max-batches 1 --log-json log >out 2>err ||
        fail "plan $i, ${words[*]}: status $?"
    python3 -c 'import json
run = json.loads(next(open("log")))
assert run["shards"] * run["batch_size"] * run["bptt"] == 128, run' || fail "plan $i: other tokens a step"
done
python3 - "$program" train "${run[@]}" <<'END' || fail "--json: memory that is not the run's"
import json, os, subprocess, sys
plan = json.load(open("plans.json"))["plans"][0]
run = subprocess.Popen([*sys.argv[1:], *plan["options"], "--epochs", "1", "--max-batches", "2", "--quiet"], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(run.pid, 0)
assert status == 0 and 0.8 < plan["memory_bytes"] / (1024 * usage.ru_maxrss) < 1.1, (status, plan, usage.ru_maxrss)
END

# What is given is kept, also where the data are not there; a preset's layout is not.
"$program" plan "${model[@]}" --ntokens 50 --dp 1 --pp 1 --recompute always --batch-size 6 --json --profile-seconds 0 >out 2>err || fail "kept: status $?"
[ "$(query 'len(plans) == 1 and "spread" not in plans[0]')" = True ] || fail "kept: other plans, or several rounds"
[ "$(query '" ".join(plans[0]["options"]).split("--chunks")[0]')" = "--dp 1 --pp 1 --schedule gpipe " ] || fail "kept: another layout"
[ "$(query '" ".join(plans[0]["options"]).split("--recompute ")[1]')" = "always --balance 5 --shards 1 --batch-size 6" ] ||
    fail "kept: other options"
"$program" plan --preset ddp-pipeline "${model[@]}" --ntokens 50 --json --profile-seconds 0 >out 2>err || fail "preset: status $?"
[ "$(query '["--dp", "1", "--pp", "1"] in [p["options"][:4] for p in plans]')" = True ] || fail "preset: its layout is kept"

"$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --pp 2 --schedule gpipe --chunks 2 --recompute never --no-split-vocabulary --svg plan.svg --profile-seconds 0 >out 2>err ||
    fail "--svg: status $?"
grep -q "^  0F1 0F0 ... 0B0 0B1$" out || grep -q "^  0F1 0F0 ... ... 0B0 0B1$" out || fail "--svg: no drawing of the pipeline"
grep -qE "^  \\[#+[r.=+-]*\\]$" out || fail "--svg: no bar of a step"
grep -q "^What would help most: " out || fail "--svg: no word of what would help"
python3 -c 'import xml.etree.ElementTree as tree
titles = [title.text for title in tree.parse("plan.svg").iter("{http://www.w3.org/2000/svg}title")]
assert any(title.startswith("compute: ") for title in titles), titles
assert sum(title.startswith("stage 1, forward of micro-batch") for title in titles) == 2, titles' || fail "--svg: another picture"
"$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --profile-seconds 0.01 >out 2>err || fail "the table: status $?"
grep -q "^replicas x pipeline ranks *step ms *tokens/s *MFU *memory *bubble *exchange *update$" out || fail "the table: other columns"
grep -q "^  --dp [0-9]* --pp [0-9]* .*--batch-size [0-9]*$" out || fail "the table: no options"
grep -qE "^The times of the first one's modules, added up, vary by [0-9.]+% between rounds\.$" out || fail "the table: no word of how times vary"
runs "$program" plan "${model[@]}" --nlayers 6 --ntokens 50 --batch-tokens 64 --dp 1 --pp 2 --schedule interleaved --virtual 3 --profile-seconds 0
grep -q "^1 x 2 interleaved of 3 stages" out || fail "--virtual 3: not in the table"

# Rows of JSON lines that are packed: the tokens are those of whole rows.
for ((i = 0; i < 40; i++)); do echo "{\"input_ids\": [1, 2, 3, $((i % 7))]}"; done >rows.jsonl
"$program" plan --data rows.jsonl --pack "${model[@]}" --seq-len 16 --batch-size 4 --dp 1 --pp 1 --json --profile-seconds 0 >out 2>err ||
    fail "--pack: status $?"
[ "$(query 'abs(plans[0]["step_ms"] * plans[0]["tokens_per_s"] / 64e3 - 1) < 1e-6')" = True ] || fail "--pack: other tokens a step"

# Of a head that takes nearly all of the time each rank gets its words, unless that is refused; the plan's options run as they stand.
echo '{"input_ids": [1, 2, 3, 4, 5, 19999]}' >words.jsonl
for ((i = 0; i < 40; i++)); do cat words.jsonl; done >many.jsonl
words_run=(--data many.jsonl "${model[@]}" --seq-len 8 --dp 1 --pp 2 --devices "cpu:0,cpu:1")
runs "$program" plan "${words_run[@]}" --batch-size 8 -o split.json --profile-seconds 0
grep -q "^1 x 2 .*, split  " out || fail "a large vocabulary: not split"
runs "$program" train --data many.jsonl "${model[@]}" --seq-len 8 --plan split.json --epochs 1 --max-batches 2 --log-json log
grep -q '"split_vocabulary":true' log || fail "a large vocabulary: split in the plan, and not in its run"
runs "$program" plan "${words_run[@]}" --batch-size 8 --no-split-vocabulary --json --profile-seconds 0
[ "$(query 'any("--split-vocabulary" in p["options"] for p in plans)')" = False ] || fail "--no-split-vocabulary: split"

# A long path stays whole.
"$program" schedule --schedule gpipe --pp 2 --chunks 2 --recompute never --csv >table.csv
path=$(printf './%.0s' {1..400})table.csv
"$program" plan "${model[@]}" --ntokens 50 --batch-size 4 --schedule "$path" --json --profile-seconds 0 >out 2>err || fail "a table: status $?"
[ "$(query 'plans[0]["options"][plans[0]["options"].index("--schedule") + 1]')" = "$path" ] || fail "a table: another path"

# A plan's file lays out a run, which shows what was planned beside what it took.
"$program" plan "${run[@]}" --batch-tokens 128 --dp 1 --pp 2 --schedule 1f1b --chunks 4 -o saved.json --profile-seconds 0 >out 2>err || fail "-o: status $?"
grep -q "^1 x 2 1f1b" out || fail "-o: no table"
agrees saved.json
"$program" train "${run[@]}" --plan saved.json --epochs 1 --max-batches 3 --log-json log --save-dir saved >out 2>err || fail "--plan: status $?"
python3 -c 'import json
run, plan = json.loads(next(open("log"))), json.load(open("saved.json"))["plans"][0]
words = plan["options"]
assert run["schedule"] == "1f1b" and run["chunks"] == 4 and len(run["partition"]) == 2, run
assert abs(run["planned_step_ms"] / plan["step_ms"] - 1) < 1e-6, run
steps = [record["ms"] for record in map(json.loads, open("log")) if record["record"] == "step"]
mean, planned = sum(steps[1:]) / len(steps[1:]), plan["step_ms"]
line = f"A step took {mean:.1f} ms, the mean of all but the first; planned were {planned:.1f} ms ({100 * (planned / mean - 1):+.1f}%)"
assert line in open("out").read().splitlines() and len(steps) == 3, (line, steps)
assert ",".join(map(str, run["partition"])) == words[words.index("--balance") + 1], run' || fail "--plan: another run"
"$program" report log -o page.html
planned=$(sed -n 's|.*ms of a step, planned</th><td>\([0-9.]*\)</td>.*|\1|p' page.html)
python3 -c 'import json, sys
assert abs(float(sys.argv[1]) / json.load(open("saved.json"))["plans"][0]["step_ms"] - 1) < 0.01' "$planned" || fail "--plan: $planned ms in the report"
"$program" train --resume saved --epochs 2 --print-plan >out 2>err || fail "--plan, resumed: status $?"
grep -q "^pp *2 pipeline ranks" out || fail "--plan, resumed: another layout"
"$program" train "${run[@]}" --preset small "${model[@]}" --plan saved.json --print-plan >out 2>err || fail "--preset --plan: status $?"
grep -q "^schedule *1f1b" out || fail "--preset --plan: another layout"

# At its end a run says what would make it clearly faster, by its own times, and a good one says nothing.
told="By what this run measured, a step of [0-9.]* ms would take "
"$program" train "${run[@]}" --nlayers 4 --batch-size 16 --chunks 4 --devices cpu:0,cpu:1 --balance 5,1 --recompute never \
    --epochs 1 --max-batches 8 --log-json unbalanced.jsonl >out 2>err || fail "--balance 5,1: status $?"
grep -qE "^$told.*[0-9.]+ ms with --balance [0-9],[0-9] instead of 5,1 \([0-9.]+ times as fast\)" out || fail "--balance 5,1: no word of a cut"
grep -qE "^$told.*[0-9.]+ ms with --pp 1 --devices cpu --chunks 4 --balance 6 instead of --pp 2 \([0-9.]+ times as fast\)" out ||
    fail "--balance 5,1: no word of one stage"
! grep -q "with --balance 5,1" out || fail "--balance 5,1: its own cut"
"$program" train "${run[@]}" --nlayers 4 --batch-size 16 --pp 1 --epochs 1 --max-batches 8 --log-json good.jsonl >out 2>err || fail "--pp 1: status $?"
! grep -q "^$told" out || fail "--pp 1: words of other layouts"

# What a line with another table says as well: its stages' number and their ranks; devices of each replica.
"$program" train "${run[@]}" --nlayers 6 --batch-size 16 --chunks 4 --devices cpu:0,cpu:1 --schedule looped-bfs --virtual 2 \
    --placement v --balance 5,1,1,1 --recompute never --epochs 1 --max-batches 8 --log-json placed.jsonl >out 2>err || fail "--placement v: status $?"
grep -qF "with --pp 1 --devices cpu --schedule gpipe --virtual 1 --placement loop --chunks 4 --balance 8 instead of --pp 2 (" out ||
    fail "--placement v: no word of one stage"
"$program" plan --from placed.jsonl --json >out 2>err || fail "--from, --placement v: status $?"
python3 -c 'import json
found = json.load(open("out"))
def value(plan, name):
    words = plan["options"]
    return words[words.index(name) + 1] if name in words else None
assert value(found["run"], "--placement") == "v", found["run"]
for change in found["changes"]:
    assert value(change, "--placement") == ("loop" if value(change, "--pp") == "1" else "v"), change
assert any(value(change, "--pp") == "1" for change in found["changes"]), found' || fail "--from, --placement v: other options"
"$program" train "${run[@]}" --nlayers 4 --batch-size 16 --chunks 4 --dp 2 --devices cpu,cpu,cpu,cpu --balance 5,1 --recompute never \
    --epochs 1 --max-batches 8 --log-json shared.jsonl >out 2>err || fail "--dp 2 on shared cores: status $?"
! grep -q "^$told" out || fail "--dp 2 on shared cores: words of other layouts"

# One pipeline rank is no layout of two processes.
"$program" launch -n 2 "$program" train "${run[@]}" --nlayers 4 --batch-size 16 --chunks 4 --dp 1 --pp 2 --balance 5,1 --recompute never \
    --epochs 1 --max-batches 8 --log-json processes.jsonl >out 2>err || fail "launch: status $?"
grep -qE "^$told.* with --balance [0-9],[0-9] instead of 5,1 " out || fail "launch: no word of a cut"
! grep -q "with --pp 1" out || fail "launch: one stage for two processes"
"$program" plan --from processes.jsonl --json >out 2>err || fail "--from, launch: status $?"
python3 -c 'import json
run, found = json.loads(next(open("processes.jsonl"))), json.load(open("out"))
assert run["processes"] == 2 and run["process_bytes"] > 1e6, run
assert found["changes"] and "mfu" not in found["run"], found
assert found["run"]["memory_bytes"] > 2 * run["process_bytes"], (found["run"], run)
for plan in found["plans"] + found["changes"]:
    assert plan["options"][:4] == ["--dp", "1", "--pp", "2"] and "--devices" not in plan["options"], plan' ||
    fail "--from, launch: plans for one process"
python3 -c 'import json
[link] = [record["link_ms"] for record in map(json.loads, open("processes.jsonl")) if record["record"] == "pipeline"]
assert len(link) == 1 and link[0] > 0, link' || fail "launch: no link of its processes"
# Of two hosts, each has one process.
python3 -c 'import json
for line in open("processes.jsonl"):
    record = json.loads(line)
    if record["record"] == "memory":
        record["host"] = "host%d" % record["rank"]
    print(json.dumps(record))' >hosts.jsonl
"$program" plan --from hosts.jsonl --json >out 2>err || fail "--from, two hosts: status $?"
python3 -c 'import json
run, found = json.loads(next(open("hosts.jsonl"))), json.load(open("out"))
assert run["process_bytes"] < found["run"]["memory_bytes"] < 2 * run["process_bytes"], (found["run"], run)' ||
    fail "--from, two hosts: the memory of both together"
grep -v '"memory"' processes.jsonl >begun.jsonl
refused 1 "begun.jsonl: which of its 2 processes are on one host is not known" "$program" plan --from begun.jsonl

# The same of a run that is over, by its log, which needs neither its text nor a profile.
"$program" plan --from unbalanced.jsonl -o better.json >out 2>err || fail "--from: status $?"
grep -qE "^  --balance [0-9],[0-9] instead of 5,1: [0-9.]+ times as fast, predicted [0-9.]+ ms$" out || fail "--from: no word of a cut"
grep -qE "^  --pp 1 --devices cpu --chunks 4 --balance 6 instead of --pp 2: [0-9.]+ times as fast" out || fail "--from: no word of one stage"
python3 -c 'import json
log = [json.loads(line) for line in open("unbalanced.jsonl")]
found = json.load(open("better.json"))
steps = sorted(record["ms"] - record["data_ms"] for record in log if record["record"] == "step")
assert abs(found["run"]["step_ms"] / steps[len(steps) // 2] - 1) < 0.1, (found["run"], steps)
assert abs(found["run"]["step_ms"] / found["changes"][0]["step_ms"] / found["changes"][0]["gain"] - 1) < 1e-6, found["changes"]
assert found["changes"] == sorted(found["changes"], key=lambda change: change["step_ms"]), found["changes"]
assert found["plans"][0]["step_ms"] <= found["changes"][0]["step_ms"] * 1.000001, found' || fail "--from: impossible numbers"
"$program" train "${run[@]}" --nlayers 4 --plan better.json --epochs 1 --max-batches 2 >out 2>err || fail "--from, --plan: status $?"
"$program" plan --from good.jsonl >out 2>err || fail "--from, a good run: status $?"
grep -q "^No change of one thing would make it faster.$" out || fail "--from: something to change in a good run"
"$program" plan --from unbalanced.jsonl --json >out 2>err || fail "--from --json: status $?"
[ "$(query 'plans[0]["options"][:2]')" = "['--dp', '1']" ] || fail "--from --json: other options"

refused 1 "fits the memory: the smallest has 1 replica of" "$program" plan --emsize 65536 --nhid 65536 --nlayers 500 --nhead 2 --json
missing='import re
units = {"B": 1, "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30, "TiB": 2 ** 40}
sizes = re.search(r"needs ([0-9.]+ \w+) of a .* that has ([0-9.]+ \w+): ([0-9.]+ \w+) are missing", open("err").read()).groups()
needed, has, lacking = (float(number) * units[unit] for number, unit in map(str.split, sizes))
assert lacking > 0 and abs(needed - has - lacking) < 0.02 * needed, sizes'
python3 -c "$missing" || fail "a model that fits nowhere: not what is missing"
refused 1 "--batch-tokens must be a multiple of the 8 tokens of a row, got 100" "$program" plan "${model[@]}" --batch-tokens 100
refused 1 "the 15 rows of a step cannot be divided" "$program" plan "${model[@]}" --batch-tokens 120 --shards 2
refused 1 "the 10 rows of a step cannot be divided" "$program" plan "${model[@]}" --batch-tokens 80 --batch-size 4
refused 2 "--data has a vocabulary's size, so it cannot be combined with --ntokens" "$program" plan "${run[@]}" --ntokens 50
refused 2 "--init has a vocabulary's size" "$program" plan --init none --ntokens 50
refused 2 "--model has a vocabulary's size" "$program" plan --model gpt2 --ntokens 50
refused 1 "none: " "$program" plan --data none
refused 2 "plan takes options only" "$program" plan data
refused 1 "none/plan.json: its directory does not exist" "$program" plan "${model[@]}" --dp 1 --pp 1 --chunks 1 -o none/plan.json
refused 1 "--svg and --output must be two files" "$program" plan --from good.jsonl --svg a.svg -o a.svg
refused 1 "good.jsonl is an input and must not be overwritten" "$program" plan --from good.jsonl --svg good.jsonl
refused 2 "--emsize is the run's that --from names: leave it out" "$program" plan --from good.jsonl --emsize 32
refused 2 "--batch-tokens is the run's that --from names" "$program" plan --from good.jsonl --batch-tokens 64
refused 2 "--profile-seconds cannot be combined with --from" "$program" plan --from good.jsonl --profile-seconds 1
refused 2 "--profile-seconds must be" "$program" plan "${model[@]}" --profile-seconds=-1
refused 1 "none.jsonl: " "$program" plan --from none.jsonl
refused 1 "good.jsonl is an input and must not be overwritten" "$program" plan --from good.jsonl -o good.jsonl
refused 1 "plans.json: is no run log" "$program" plan --from plans.json
head -n 1 good.jsonl >begun.jsonl
refused 1 "begun.jsonl: it has no step since the run last began" "$program" plan --from begun.jsonl
grep -v '"pipeline"' unbalanced.jsonl >short.jsonl
refused 1 "short.jsonl: it has no timeline of a step" "$program" plan --from short.jsonl
sed 's/"cpu:1"/"cuda:0"/' unbalanced.jsonl >mixed.jsonl
refused 1 "mixed.jsonl: its devices are CPUs and GPUs" "$program" plan --from mixed.jsonl
sed 's/"cpu:\([01]\)"/"cuda:\1"/g' unbalanced.jsonl >gpu.jsonl
runs "$program" plan --from gpu.jsonl --json
[ "$(query '{p["device"] for p in plans}')" = "{'cuda'}" ] || fail "--from, GPUs: plans for other devices"
sed -i '/"memory"/d' gpu.jsonl
refused 1 "gpu.jsonl: how much memory cuda:1 has is not known" "$program" plan --from gpu.jsonl
refused 1 "2 replicas whose pipeline ranks share cores cannot be planned" "$program" plan --from shared.jsonl
refused 2 "--pp is the plan's (saved.json): leave it out" "$program" train "${run[@]}" --plan saved.json --pp 2
# A plan for more devices than are here, and what no device here computes, is refused before anything runs.
cores=$(env -u OMP_NUM_THREADS nproc)
"$program" plan "${model[@]}" --ntokens 50 --batch-tokens $((8 * 8 * (cores + 1))) --dp $((cores + 1)) --pp 1 -o large.json >out 2>err ||
    fail "--dp $((cores + 1)): status $?"
refused 1 "the plan is for $((cores + 1)) devices of this host, each with cores of its own, and the host has" \
    "$program" train "${run[@]}" --plan large.json --print-plan
runs "$program" train "${run[@]}" --plan large.json --print-plan --force
refused 1 "cpu:0 has no products in tf32" "$program" train "${run[@]}" --devices cpu:0 --precision tf32 --print-plan
runs "$program" plan "${model[@]}" --ntokens 50 --batch-size 4 --dp 1 --pp 1 --chunks 1 --batch-invariant --comm-precision bf16
refused 2 "--plan must name a file" "$program" train "${run[@]}" --plan none
echo '{"plans": []}' >bad.json
refused 2 "bad.json: must be a JSON object with plans" "$program" train "${run[@]}" --plan bad.json
echo '{"plans": [{"step_ms": 1, "options": ["--pp", 2]}]}' >bad.json
refused 2 "bad.json: must be a JSON object with plans" "$program" train "${run[@]}" --plan bad.json
echo '{"plans": [{"step_ms": 1, "options": ["--devices"]}]}' >bad.json
refused 2 "--devices needs a value" "$program" train "${run[@]}" --plan bad.json
echo '{' >bad.json
refused 2 "bad.json: no JSON object of plans in line" "$program" train "${run[@]}" --plan bad.json
refused 1 "--balance must add up to the model's 4 modules" "$program" train "${run[@]}" --nlayers 2 --plan saved.json

# A cluster that is not here: the plans are for its devices, say where their numbers come from, and can be run where they fit.
cat >cluster.json <<'END'
{"nodes": [{"devices": 2, "memory_bytes": 2e9, "flops_f32": 1e11}],
 "failures": {"mtbf_s": 1e6}, "jitter": {"spread": 0.01}}
END
"$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster cluster.json --tokens 1e11 --json -o planned.json >out 2>err ||
    fail "--cluster: status $?"
cmp -s out planned.json || fail "--cluster: -o differs"
[ "$(query 'plans == sorted(plans, key=lambda p: -p["tokens_per_day"]) and 0 < len(plans) <= 5')" = True ] || fail "--cluster: another order"
[ "$(query 'all(abs(p["step_ms"] * p["tokens_per_s"] / 64e3 - 1) < 1e-6 for p in plans)')" = True ] || fail "--cluster: other tokens a step"
[ "$(query 'all(0 < p["mfu"] < 1 and 0 < p["kept_fraction"] < 1 and p["nodes_used"] == 1 and p["days"] > 0 for p in plans)')" = True ] ||
    fail "--cluster: impossible numbers"
[ "$(query 'all(p["draws"] == 32 for p in plans)')" = True ] || fail "--cluster: no draws of jitter"
[ "$(query 'all(0 < p["days_low"] <= p["days"] <= p["days_high"] and p["runs"] == 1000 for p in plans)')" = True ] ||
    fail "--cluster: impossible days"
[ "$(query 'all(abs(p["kept_fraction"] / p["daly_kept_fraction"] - 1) < 0.01 for p in plans)')" = True ] || fail "--cluster: other losses than Daly's"
[ "$(query '{i["name"]: i["from"] for i in json.load(open("out"))["inputs"]}["nodes[0].devices"]')" = cluster.json:1 ] ||
    fail "--cluster: a number from elsewhere"
[ "$(query '{i["name"]: i["from"] for i in json.load(open("out"))["inputs"]}["nodes[0].efficiency"]')" = default ] ||
    fail "--cluster: a default from elsewhere"
python3 -c 'import json
found = json.load(open("planned.json"))
for plan, times in zip(found["plans"], found["time_ms"]):
    assert abs(sum(times.values()) / plan["step_ms"] - 1) < 1e-6, (plan, times)
gains = {help["what"]: help["gain"] for help in found["helps"]}
assert list(gains.values()) == sorted(gains.values(), reverse=True) and min(gains.values()) > 0, gains
assert {"twice the links", "twice the memory"} <= set(gains), gains
assert all(not help["at_least"] for help in found["helps"]), found' || fail "--cluster: times that are not those of the steps"
"$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster cluster.json --dp 1 --pp 2 --schedule gpipe --chunks 2 --svg plan.svg >out 2>err ||
    fail "--cluster --svg: status $?"
grep -q "^  0F1 0F0 ... " out || grep -q "^  0F0 0F1 ... " out || fail "--cluster --svg: no drawing of the pipeline"
grep -qE "^  \\[#+[r.=+-]*\\]$" out || fail "--cluster --svg: no bar of a step"
grep -q "^What would help most: " out || fail "--cluster --svg: no word of what would help"
grep -qE "^What would (not help|help most): .*twice the links \([0-9.]+ times as fast\)" out || fail "--cluster --svg: no gain of links"
grep -q "The pipeline of plan 1 (the slowest replica of the first drawn step, seed 1), in milliseconds:" plan.svg ||
    fail "--cluster --svg: no word of whose times are drawn"
python3 -c 'import xml.etree.ElementTree as tree
titles = [title.text for title in tree.parse("plan.svg").iter("{http://www.w3.org/2000/svg}title")]
assert any(title.startswith("compute: ") for title in titles), titles
assert sum(title.startswith("stage 1, forward of micro-batch") for title in titles) == 2, titles' || fail "--cluster --svg: another picture"
"$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster cluster.json --tokens 1e9 --dp 2 --pp 1 >out 2>err ||
    fail "--cluster, the table: status $?"
grep -q "^2 x 1, [0-9]* chunks* .*%" out || fail "--cluster: an option is not kept"
grep -q "tokens a day, [0-9.]* [a-z]* for 1e+09 tokens ([0-9.]* [a-z]* to [0-9.]* [a-z]* in 90% of the runs)$" out || fail "--cluster: no days"
grep -q "^The first: a step is the mean of 32 drawn ones, with jitter, seed 1$" out || fail "--cluster: no word of jitter"
grep -q "^  nodes\[0\].efficiency = 0.5$" out || fail "--cluster: a default is not said"
"$program" train "${run[@]}" --plan planned.json --epochs 1 --max-batches 2 --eval-max-batches 1 >out 2>err || fail "--cluster, a run: status $?"

# Where its devices lie is kept, and a plan says it to train.
echo '{"nodes": [{"count": 2, "devices": 2, "memory_bytes": 2e9, "flops_f32": 1e9}]}' >four.json
for near in "" --near-replicas; do
    "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster four.json --dp 2 --pp 2 $near --json >out 2>err ||
        fail "--cluster $near: status $?"
    [ -z "$near" ] || [ "$(query 'all("--near-replicas" in p["options"] for p in plans)')" = True ] || fail "$near is not kept"
    [ "$(query 'all((p["neighbours"] == "replicas") == ("--near-replicas" in p["options"]) for p in plans)')" = True ] ||
        fail "--cluster $near: a plan does not say where its devices lie"
done

# A plan is for devices of a kind.
for device in cpu cuda; do
    echo "{\"nodes\": [{\"device\": \"$device\", \"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}]}" >"$device.json"
    runs "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster "$device.json" --dp 1 --pp 1 -o "for_$device.json"
done
refused 1 "the plan is for cuda devices, but the run's are cpu: name such devices, plan for these, or give --force" \
    "$program" train "${run[@]}" --plan for_cuda.json --print-plan
refused 1 "the plan is for cpu devices, but the run's are cuda: name" "$program" train "${run[@]}" --plan for_cpu.json --devices cuda:0 --print-plan
runs "$program" train "${run[@]}" --plan for_cpu.json --print-plan
runs "$program" train "${run[@]}" --plan for_cuda.json --print-plan --force
sed 's/"cuda"/"gpu"/' for_cuda.json >bad.json
refused 2 "bad.json: must be a JSON object with plans" "$program" train "${run[@]}" --plan bad.json
echo '{"nodes": [{"device": "cuda", "devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}, {"devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}]}' >both.json
runs "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster both.json --dp 2 --pp 1 --json
[ "$(query '"device" in plans[0]')" = False ] || fail "--cluster: a kind of devices of two kinds"
runs "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster both.json --dp 1 --pp 2 -o both_planned.json
agrees both_planned.json

refused 2 "--near-replicas is for runs of several processes: give --cluster" "$program" plan "${model[@]}" --ntokens 50 --near-replicas
refused 2 "--near-replicas is for runs of several processes, and this plans one" "$program" model --near-replicas

# MFU is of all devices' peaks: of one, or of two whose rates differ, the same FLOP are done.
echo '{"nodes": [{"devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}]}' >one.json
echo '{"nodes": [{"devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}, {"devices": 1, "memory_bytes": 2e9, "flops_f32": 5e9}]}' >mixed.json
for case in "one 1 1e9" "mixed 2 6e9"; do
    read -r file replicas peak <<<"$case"
    "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster "$file.json" --dp "$replicas" --pp 1 --json >out 2>err ||
        fail "--cluster $file.json: status $?"
    query "\"%.6g\" % (plans[0][\"mfu\"] * plans[0][\"step_ms\"] * $peak)"
done >flop
[ "$(uniq flop | wc -l)" = 1 ] || fail "--cluster: MFU of other devices than those in use: $(cat flop)"

# What each of the others takes longer for, the most first, is the difference of the two plans' times.
sed 's/"devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9/"count": 4, "devices": 1, "memory_bytes": 2e9, "flops_f32": 1e8/' one.json >four.json
four=(plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster four.json)
"$program" "${four[@]}" --json >out 2>err && "$program" "${four[@]}" >table 2>err || fail "four.json: status $?"
python3 -c 'import json, re
found = json.load(open("out"))
times, lines = found["time_ms"], open("table").read().split("What the others take longer for:\n")[1].split("\n\n")[0].split("\n")
assert len(lines) == len(times) - 1 > 2, lines
for line, plan, own in zip(lines, found["plans"][1:], times[1:]):
    loss, parts = re.fullmatch(r"  \d x \d.*: ([0-9.]+) ms: (.*)", line).groups()
    assert abs(float(loss) - plan["step_ms"] + found["plans"][0]["step_ms"]) < 0.051, (line, plan)
    parts = [(name, float(ms)) for name, ms in re.findall(r"(\w+) ([0-9.]+) ms", parts)]
    assert parts and parts == sorted(parts, key=lambda part: -part[1]), line
    for name, ms in parts:
        assert abs(ms - own[name] + times[0][name]) < 0.051, (line, own, times[0])' || fail "four.json: other reasons than the times: $(cat table)"

# Frozen weights take less time, and their FLOP are not counted.
for freeze in "" "--freeze *.linear*"; do
    # shellcheck disable=SC2086 # none or two words
    "$program" plan "${model[@]}" --ntokens 50 --batch-tokens 64 --cluster one.json --dp 1 --pp 1 --json $freeze >out 2>err ||
        fail "--cluster $freeze: status $?"
    query 'plans[0]["mfu"] * plans[0]["step_ms"], plans[0]["step_ms"]'
done >flop
python3 -c 'whole, frozen = map(eval, open("flop"))
assert 0.5 < frozen[0] / whole[0] < 0.95 and frozen[1] < whole[1], (whole, frozen)' || fail "--cluster --freeze: as much work as without"
# A run counts the same FLOP.
"$program" train "${run[@]}" --batch-size 8 --dp 1 --pp 1 --freeze '*.linear*' --max-batches 2 --epochs 1 --log-json frozen.jsonl >out 2>err ||
    fail "--freeze: status $?"
vocabulary=$(python3 -c 'import json; print(json.loads(next(open("frozen.jsonl")))["model"]["ntokens"])')
"$program" plan "${model[@]}" --ntokens "$vocabulary" --batch-tokens 64 --cluster one.json --dp 1 --pp 1 --json --freeze '*.linear*' >out 2>err ||
    fail "--cluster --freeze: status $?"
python3 -c 'import json
plan = json.load(open("out"))["plans"][0]
planned = plan["mfu"] * plan["step_ms"] * 1e6
steps = [record for record in map(json.loads, open("frozen.jsonl")) if record["record"] == "step"]
assert steps and all(abs(step["flops_per_s"] * step["ms"] / 1e3 / planned - 1) < 1e-6 for step in steps), (steps, planned)' ||
    fail "--freeze: other FLOP than planned"

# Until a node is back the others go on, and lose more than Daly's model says; the seed decides which fail.
cluster=("${model[@]}" --ntokens 50 --batch-tokens 64)
echo '{"nodes": [{"count": 2, "devices": 1, "memory_bytes": 2e9, "flops_f32": 1e9}], "failures": {"mtbf_s": 1e6, "repair_s": 1e5}}' >pair.json
"$program" plan "${cluster[@]}" --cluster pair.json --tokens 1e10 --dp 2 --pp 1 --seed 3 >out 2>err || fail "repair_s: status $?"
grep -qE "^The first: with one node less it goes on at [0-9]+\.[0-9]% of its speed$" out || fail "repair_s: no word of fewer nodes"
grep -qE "^The first: [0-9.]+% of the time lost in 1000 simulated runs, seed 3 \([0-9.]+% by Daly's model\)$" out || fail "repair_s: no word of the loss"
"$program" plan "${cluster[@]}" --cluster pair.json --tokens 1e10 --dp 2 --pp 1 --seed 4 --json >other 2>err || fail "--seed 4: status $?"
"$program" plan "${cluster[@]}" --cluster pair.json --tokens 1e10 --dp 2 --pp 1 --seed 3 --json >out 2>err || fail "--seed 3: status $?"
python3 -c 'import json
[one], [other] = json.load(open("out"))["plans"], json.load(open("other"))["plans"]
assert one["kept_fraction"] < one["daly_kept_fraction"] - 0.005 and one["fewer_speed"] < 1, one
assert one["days"] != other["days"] and abs(one["days"] / other["days"] - 1) < 0.02, (one, other)' || fail "repair_s: other losses"
"$program" plan "${cluster[@]}" --cluster pair.json --dp 2 --pp 1 --seed 18446744073709551615 --json >out 2>err || fail "--seed 2^64 - 1: status $?"
[ "$(query 'json.load(open("out"))["seed"]')" = 18446744073709551615 ] || fail "--seed 2^64 - 1: another seed"
# Where a save takes long, Daly's interval is another than Young's; both are printed.
sed 's/1e6,/1e3, "save_bytes_per_s": 1e4,/' pair.json >slow.json
runs "$program" plan "${cluster[@]}" --cluster slow.json --dp 2 --pp 1 --json
cp out slow
runs "$program" plan "${cluster[@]}" --cluster slow.json --dp 2 --pp 1
python3 -c 'import json, re
[plan] = json.load(open("slow"))["plans"]
young, daly, mtbf = plan["young_interval_s"], plan["daly_interval_s"], plan["mtbf_s"]
save = young ** 2 / 2 / mtbf
ratio = save / 2 / mtbf
assert abs((young * (1 + ratio ** 0.5 / 3 + ratio / 9) - save) / daly - 1) < 1e-6 and daly < 0.98 * young, plan
printed = re.search(r"a checkpoint every ([0-9.]+) (\w+) \(Daly; ([0-9.]+) (\w+) by Young, [0-9.]+ \w+ by simulation\)", open("out").read()).groups()
units = {"ms": 1e-3, "s": 1, "minutes": 60}
assert abs(float(printed[0]) * units[printed[1]] / daly - 1) < 1e-3, (printed, plan)
assert abs(float(printed[2]) * units[printed[3]] / young - 1) < 1e-3, (printed, plan)' || fail "slow.json: other intervals: $(cat out)"
# The plans are those that train most tokens with failures, of all layouts: some have longer steps than many others.
echo '{"nodes": [{"count": 8, "devices": 1, "memory_bytes": 2e9, "flops_f32": 1e8, "memory_bytes_per_s": 1e12}], "links":
 {"spine": {"latency_s": 0, "bytes_per_s": 1e12, "message_s": 0}}, "failures": {"mtbf_s": 1e4, "repair_s": 1e4, "restart_s": 600,
 "save_bytes_per_s": 1e12}}' >often.json
often=(plan --emsize 16 --nhid 16 --nlayers 4 --nhead 2 --ntokens 50 --seq-len 8 --batch-tokens 1344 --cluster often.json --tokens 1e8 --json)
for dp in 1 2 3 4 6 7 8; do
    for pp in 1 2 3 4 5 6; do
        [ $((dp * pp)) -gt 8 ] || "$program" "${often[@]}" --dp "$dp" --pp "$pp" >"shape.$dp.$pp" 2>err || fail "often.json, $dp x $pp: status $?"
    done
done
runs "$program" "${often[@]}"
python3 -c 'import glob, json
every = [plan for name in glob.glob("shape.*") for plan in json.load(open(name))["plans"]]
found = json.load(open("out"))
plans, best = found["plans"], sorted(every, key=lambda plan: -plan["tokens_per_day"])
assert not found["cut_off"]
assert [plan["tokens_per_day"] for plan in plans] == [plan["tokens_per_day"] for plan in best[:len(plans)]], (plans, best[:5])
assert max(sum(plan["step_ms"] < found["step_ms"] for plan in every) for found in plans) > 5, plans' || fail "often.json: other plans than those of all shapes"
# A node that always fails before a checkpoint trains nothing.
sed "s/1e6,/1, \"save_bytes_per_s\": 1e3,/" pair.json >failing.json
"$program" plan "${cluster[@]}" --cluster failing.json --tokens 1e10 --dp 2 --pp 1 >out 2>err || fail "failing nodes: status $?"
grep -qE "^The first: a failure every 500 ms on 2 nodes" out || fail "failing nodes: another time between them"
grep -qE "^The first: 0 tokens a day, 1e\\+10 tokens never$" out || fail "failing nodes: a run that ends"
sed "s/2e9/2e10/" pair.json >large.json
"$program" plan --model smollm2-135m --seq-len 64 --batch-tokens 4096 --cluster large.json >out 2>err || fail "--model: status $?"

refused 2 "--tokens needs --cluster" "$program" plan "${cluster[@]}" --tokens 5
refused 1 "plans for a cluster cannot be made with devices" "$program" plan "${cluster[@]}" --cluster cluster.json --devices cpu
refused 1 "plans for a cluster cannot be made with batch-invariant" "$program" plan "${cluster[@]}" --cluster cluster.json --batch-invariant
runs "$program" plan "${cluster[@]}" --cluster cluster.json --dp 1 --pp 2 --split-vocabulary -o split.json
grep -q "^1 x 2 .*, split  " out || fail "--cluster --split-vocabulary: not in the table"
grep -qE "^  0F0 .*0S0" out || fail "--cluster --split-vocabulary: another pipeline"
runs "$program" train "${run[@]}" --plan split.json --epochs 1 --max-batches 2 --log-json log
grep -q '"split_vocabulary":true' log || fail "--cluster --split-vocabulary: not in its run"
refused 1 "the head cannot be split: its weight must be trained" "$program" plan "${cluster[@]}" --cluster cluster.json --split-vocabulary --freeze '*.decoder.weight'
refused 1 "cannot be divided into batches of the given size" "$program" plan "${cluster[@]}" --cluster cluster.json --batch-size 64
refused 1 "cluster.json is an input" "$program" plan "${cluster[@]}" --cluster cluster.json -o ./cluster.json
refused 1 "none.json: " "$program" plan "${cluster[@]}" --cluster none.json
echo '{"nodes": [{"devices": 2, "memory_bytes": 2e9, "flops_f32": -1}]}' >bad.json
refused 1 "bad.json:1: nodes[0].flops_f32 must be a number from 1e+06 to 1e+18, got -1" "$program" plan "${cluster[@]}" --cluster bad.json
echo '{"nodes": [{"devices": 2, "memory_bytes": 1e6, "reserved_bytes": 999999, "flops_f32": 1e9}]}' >small.json
refused 1 "of a device of nodes[0] that has 1 B: " "$program" plan "${cluster[@]}" --cluster small.json
python3 -c "$missing" || fail "small.json: not what is missing"
refused 1 "3 replicas of 1 pipeline rank need 3 devices, but the cluster has 2" "$program" plan "${cluster[@]}" --cluster cluster.json --dp 3
refused 1 "rows of a step cannot be divided among these replicas and micro-batches" "$program" plan "${cluster[@]}" --cluster cluster.json --dp 1 --chunks 3
refused 1 "no layout of at most 2 devices has these options: the model's" "$program" plan "${cluster[@]}" --cluster cluster.json --dp 1 --pp 1 --virtual 2 --schedule interleaved

# A plan needs no weights: config.json is enough, by its path or its directory's, and gives the plans of the model that has
# them. On this machine a directory of token files says how many rows there are.
mkdir config tokens
cp "$models/llama3/config.json" config
cp "$source/tests/text/token_files/llmc_gpt2.bin" tokens/train.bin
for init in "$models/llama3" config config/config.json; do
    runs "$program" plan --init "$init" --seq-len 6 --batch-tokens 48 --cluster cluster.json --json
    cp out "of.$(basename "$init")"
    runs "$program" plan --init "$init" --data tokens --seq-len 6 --batch-tokens 48 --profile-seconds 0 --json
    [ "$(query 'all(abs(p["step_ms"] * p["tokens_per_s"] / 48e3 - 1) < 1e-6 for p in plans)')" = True ] || fail "--init $init: other tokens a step"
    runs "$program" model --init "$init"
    grep -qx "Total parameters in model: 20,160" out || fail "--init $init: another model"
done
echo '{"weight_map": {"a": "absent.safetensors"}}' >config/model.safetensors.index.json
runs "$program" plan --init config --seq-len 6 --batch-tokens 48 --cluster cluster.json --json
cmp out of.config || fail "--init config with an index alone: other plans"
rm config/model.safetensors.index.json
mkdir empty
refused 1 "nor config.json" "$program" plan --init empty --seq-len 6 --batch-tokens 48 --cluster cluster.json
cmp of.llama3 of.config || fail "--init config: other plans"
cmp of.llama3 of.config.json || fail "--init config/config.json: other plans"
refused 1 "config/config.json is an input and must not be overwritten" "$program" plan --init config --seq-len 6 --batch-tokens 48 -o config/config.json
for init in config config/config.json; do
    for command in "train --data tokens --batch-size 1" "eval --data tokens/train.bin" "generate --prompt-ids 1"; do
        # shellcheck disable=SC2086 # several words
        refused 1 "$init: " "$program" $command --init "$init"
        grep -qE "it has no weights|has neither model.safetensors nor " err || fail "$command: no word of weights"
    done
done
refused 1 "none/config.json: " "$program" plan --init none/config.json
