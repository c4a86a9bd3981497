#!/bin/bash
# sluice plan --from by logs that are damaged, or made by somebody else: each is refused by one sentence, and says
# nothing of which files are written.
. "$(dirname "$0")/../support/script.sh"

mkdir data
for split in train valid test; do
    for ((i = 0; i < 200; i++)); do echo "a b c d e f g h i $((i % 7)) $split"; done >data/$split.txt
done
run=(--data data --emsize 16 --nhid 16 --nlayers 4 --nhead 2 --bptt 8 --eval-batch-size 2 --batch-size 16 --recompute never
    --epochs 1 --max-batches 6)
"$program" train "${run[@]}" --chunks 4 --devices cpu:0,cpu:1 --balance 5,1 --save model --log-json good.jsonl >out 2>err ||
    fail "a log: status $?"

damage() { # STATEMENTS: of each record of good.jsonl, into damaged.jsonl
    python3 - "$1" <<'END'
import json, sys
with open("damaged.jsonl", "w") as out:
    for line in open("good.jsonl"):
        record = json.loads(line)
        kind = record["record"]
        exec(sys.argv[1])
        print(json.dumps(record), file=out)
END
}


# A layout that no run has.
stages() { # STAGES PLACEMENT: both as Python; a step's actions of one micro-batch
    damage "
if kind == 'run':
    record.update(partition=[1] * $1, devices=['cpu:%d' % s for s in range($1)], virtual=1)
if kind == 'pipeline':
    placement = $2
    order = sorted(range($1), key=lambda s: placement[s])
    actions = [['%d%s0' % (s, letter), 0, 5] for rank in range(max(placement) + 1)
               for letter in 'FB' for s in order[::1 if letter == 'F' else -1] if placement[s] == rank]
    record.update(placement=placement, measured=actions, predicted=actions, link_ms=[0] * ($1 - 1))"
}
stages 400 "list(range(400))"
refused 1 "damaged.jsonl: the record \"run\" has a partition of 400 stages, there can be at most 64" "$program" plan --from damaged.jsonl
stages 60 "[min(s, 30) for s in range(60)]"
refused 1 "damaged.jsonl: its timeline has 31 pipeline ranks, the run has 60" "$program" plan --from damaged.jsonl
# Both stages of a rank have its GPU, which is not shared for that; of its memory the log says nothing.
stages 4 "[0, 1, 1, 0]"
python3 -c 'import json
for line in open("damaged.jsonl"):
    record = json.loads(line)
    if record["record"] == "run":
        record.update(virtual=2, devices=["cuda:0", "cuda:1", "cuda:1", "cuda:0"])
    if record["record"] != "memory":
        print(json.dumps(record))' >virtual.jsonl
refused 1 "virtual.jsonl: how much memory cuda:1 has is not known" "$program" plan --from virtual.jsonl
damage "if kind == 'run': record['processes'] = 0"
refused 1 "damaged.jsonl: the record \"run\" has no number of processes" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['partition'] = [2, 2, 2]"
refused 1 "damaged.jsonl: it has no timeline of a step" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['partition'] = []"
refused 1 "damaged.jsonl: the record \"run\" has no partition" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['partition'] = [6, 0]"
refused 1 "damaged.jsonl: the record \"run\" has a partition with 0 modules in stage 1" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['virtual'] = 3"
refused 1 "damaged.jsonl: the record \"run\" has 2 stages, which cannot be 3 of each pipeline rank" "$program" plan --from damaged.jsonl
damage "if kind == 'pipeline': record['measured'] = [[name, 0, 0] for name, *_ in record['measured']]
record.pop('optimizer_ms', None)"
refused 1 "damaged.jsonl: the stages' times are all 0" "$program" plan --from damaged.jsonl --json
damage "if kind == 'run': record['bptt'] = 0"
refused 2 "damaged.jsonl: --bptt must be a whole number" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['nlayers'] = record['model']['nlayers'] = 7"
refused 1 "damaged.jsonl: balance must add up" "$program" plan --from damaged.jsonl
damage "if kind == 'run': record['schedule'] = 'none.csv'"
refused 2 "damaged.jsonl: --schedule must name a file" "$program" plan --from damaged.jsonl

# Of a run that has resumed with another layout, what was before says nothing.
damage "if kind == 'step': record.update(ms=1000)"
cat good.jsonl >>damaged.jsonl
sed -i 's/"step":\([0-9]\)/"step":1\1/' damaged.jsonl
"$program" plan --from good.jsonl --json >good.json 2>err || fail "good.jsonl: status $?"
"$program" plan --from damaged.jsonl --json >out 2>err || fail "a resumed run: status $?"
python3 -c 'import json
good, resumed = (json.load(open(name))["run"]["step_ms"] for name in ("good.json", "out"))
assert abs(resumed / good - 1) < 1e-6, (good, resumed)' || fail "a resumed run: steps of the run before it"

# What is read and written is the line's.
damage "if kind == 'run': record.update(output='victim', svg='victim.svg', json=True, model_name='gpt2', batch_tokens=64)"
echo mine >victim
"$program" plan --from damaged.jsonl >out 2>err || fail "a log with an output: status $?"
[ "$(cat victim)" = mine ] || fail "a log with an output: its file is overwritten"
[ ! -e victim.svg ] || fail "a log with a picture: it is written"
grep -q "^replicas x pipeline ranks" out || fail "a log with json: no table"

# Files that the run reads stay as they are, also where the log alone names them.
"$program" train --data data --init model --seq-len 8 --eval-batch-size 2 --batch-size 16 --chunks 4 --devices cpu:0,cpu:1 --balance 5,1 --recompute never \
    --epochs 1 --max-batches 6 --log-json tuned.jsonl >out 2>err || fail "--init: status $?"
before=$(cat model/*.json | cksum)
file=$(find model -name "*.json" | head -n 1)
for option in --output --svg; do
    status=0
    "$program" plan --from tuned.jsonl $option "$file" >out 2>err || status=$?
    [ "$(cat model/*.json | cksum)" = "$before" ] || fail "$option $file: the model's file is overwritten"
    [ "$status" = 1 ] || fail "$option $file: status $status"
    grep -qF -e "$option: $file" err || fail "$option $file: another sentence"
done
