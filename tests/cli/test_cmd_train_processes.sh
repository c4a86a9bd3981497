#!/bin/bash
# `sluice train` under mpirun: ranks are processes, and nothing else changes. With --zero each writes
# its shard of the optimizer's state; a disk that fails one of them fails the save alone; and processes
# that do not see one directory let the first write all.
. "$(dirname "$0")/../support/script.sh"

command -v mpirun >/dev/null || skip "there is no mpirun"
[ -f "$faults" ] || fail "$faults was not built"

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8
    --batch-size 8 --eval-batch-size 8 --epochs 1 --max-batches 4 --momentum 0.5)

# Runs the options as N processes; what they write is in out and err.
processes() { # N OPTION...
    timeout 60 mpirun -n "$1" "${train[@]}" "${@:2}" >"$scratch/out" 2>"$scratch/err"
}

processes 2 --quiet || {
    grep -q 'sluice_mpi.so was not found' "$scratch/err" && skip "sluice was built without MPI"
    fail "two processes do not train"
}

numbers() { # LOG: what does not depend on the clock
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$1"
}

# Processes, threads: the same bits (cli/layouts draws more of them), and what each shows.
for job in "2" "3 --pp 2 --chunks 2 --zero --comm-precision bf16"; do
    read -r ranks options <<<"$job"
    # shellcheck disable=SC2086 # words
    "${train[@]}" --dp "$ranks" $options --quiet --log-json "$scratch/threads" >"$scratch/out" 2>&1
    # shellcheck disable=SC2086 # words
    processes "$ranks" $options --log-json "$scratch/processes"
    diff <(numbers "$scratch/threads") <(numbers "$scratch/processes") ||
        fail "$ranks processes and threads differ: '$options'"
    grep -q '"record":"run".*"peak_flops_per_s":[1-9]' "$scratch/processes" ||
        fail "the log of $ranks processes has no measured peak"
    grep '"record":"step"' "$scratch/processes" | grep -v '"mfu":[0-9]' &&
        fail "a step of $ranks processes has no mfu"
    memories() { grep -o '"record":"memory","rank":[0-9]*,"stage":[0-9]*' "$1"; }
    diff <(memories "$scratch/threads") <(memories "$scratch/processes") ||
        fail "$ranks processes and threads log other devices: '$options'"
    test "$(memories "$scratch/processes" | sort -u | wc -l)" = $((ranks * (${#options} > 0 ? 2 : 1))) ||
        fail "the log of $ranks processes has not every device: '$options'"
    grep -Eq "^(\[RANK 0\]: )?$((ranks - 1)) +0 +cpu:" "$scratch/out" ||
        fail "the table of memory has no rank $((ranks - 1)): '$options'"
    test "$(numbers "$scratch/threads" | wc -l)" -ge 10 || fail "the log has too few numbers"
    for ((rank = 0; rank < ranks; rank++)); do
        grep -q "^\[RANK $rank\]: | epoch   1 |     4/    4 batches" "$scratch/out" ||
            fail "rank $rank does not show its steps"
    done
    grep "End of training | test loss" "$scratch/out" | cut -c 1-9 | diff - <(echo "[RANK 0]:") ||
        fail "the end is not shown once, by rank 0"
done
if grep -v '^\[RANK [0-2]\]: ' "$scratch/out"; then fail "a line has no rank in front"; fi

# The launcher's processes are the replicas, whatever a preset says; one alone has nothing to shard.
for ranks in 1 3; do
    processes "$ranks" --preset ddp-pipeline --pp 1 --zero --log-json "$scratch/log" ||
        fail "a preset of 2 replicas with $ranks processes is refused"
    grep -q "\"replicas\":$ranks,.*\"shards\":$ranks," "$scratch/log" ||
        fail "$ranks processes are not $ranks replicas"
done

# With --dp the processes of a replica have a stage each, and eval and generate divide theirs too.
"${train[@]}" --dp 2 --pp 2 --chunks 2 --quiet --save "$scratch/one" \
    --log-json "$scratch/threads" >"$scratch/out" 2>&1
processes 4 --dp 2 --pp 2 --chunks 2 --save "$scratch/several" --log-json "$scratch/processes" ||
    fail "four processes do not train two replicas"
diff <(numbers "$scratch/threads") <(numbers "$scratch/processes") || fail "four processes have other numbers"
diff -r "$scratch/one" "$scratch/several" || fail "four processes have other weights"
# Each replica's timeline has the actions of all its processes, as those of threads.
timelines() { # LOG: all but times and fractions
    grep '"record":"pipeline"' "$1" | grep -oE '"(replica|step|placement)":[^"]*|"[0-9]+[FBRIW][0-9]+"'
}
test "$(timelines "$scratch/processes" | grep -c replica)" = 2 || fail "two replicas do not log two timelines"
diff <(timelines "$scratch/threads") <(timelines "$scratch/processes") || fail "four processes log other timelines"
test "$(memories "$scratch/processes" | sort -u | wc -l)" = 4 || fail "the log of four processes lacks a device"
for ((rank = 0; rank < 4; rank++)); do
    grep -Eq "^\[RANK 0\]: $rank +[^ ]+ +cpu:$rank +[0-9]+ \([a-z0-9]+\) +$((rank % 2)) \(modules" "$scratch/out" ||
        fail "the layout lacks rank $rank"
done
if grep -q '^\[RANK [13]\]' "$scratch/out"; then fail "a rank that is not its replica's first prints"; fi
for ((rank = 0; rank < 4; rank++)); do
    sed '1,/Time of a step in ms, by what it went to:$/d' "$scratch/out" |
        grep -E "^\[RANK 0\]: $rank +$((rank % 2)) +[0-9.]*[1-9]" >/dev/null || fail "the table of times lacks rank $rank"
done
grep -Eq '^\[RANK 0\]: Slowest of all: rank [0-3] on ' "$scratch/out" || fail "no rank of four is the slowest"
score="eval --data $scratch/text --bptt 8 --eval-batch-size 8"
for command in "$score" "generate --tokens 12" "$score --precision bf16" "generate --tokens 12 --precision bf16"; do
    # shellcheck disable=SC2086 # words
    "$program" $command --init "$scratch/one" >"$scratch/alone" 2>"$scratch/err"
    # shellcheck disable=SC2086 # words
    timeout 60 mpirun -n 2 "$program" $command --init "$scratch/one" \
        >"$scratch/out" 2>"$scratch/err" || fail "two processes do not $command"
    diff "$scratch/alone" "$scratch/out" || fail "two processes: another $command"
done

# Which rank has which stage of two replicas, in the order of replicas.
for near in "" --near-replicas; do
    processes 4 --data "$scratch/text" --dp 2 --pp 2 --chunks 2 --quiet $near --log-json "$scratch/near$near" ||
        fail "$near: it does not train"
    found=$(grep -oE '"memory", ?"rank": ?[0-9], ?"stage": ?[0-9]' "$scratch/near$near" | head -n 4 | tr -dc '0-9')
    expected=00112031
    [ -n "$near" ] && expected=00211031
    [ "$found" = "$expected" ] || fail "$near: ranks and stages are $found"
    processes 4 --data "$scratch/text" --dp 2 --pp 2 --print-plan $near || fail "$near: no plan"
    found=$(sed -n '/^rank  process/,/^$/p' "$scratch/out" | awk 'NR > 1 && NF { printf "%d%d", $1, $5 }')
    [ "$found" = "$expected" ] || fail "$near: ranks and stages are planned as $found"
    processes 4 --data "$scratch/text" --dp 2 --pp 2 --balance auto --quiet --max-batches 1 $near ||
        fail "$near: it does not train with a cut by time"
done

# The live page shows what all processes of all replicas do in steps within an epoch. The process that writes the log
# alone starts its reader. An epoch takes longer than the second between such records.
"$program" data --synthetic "$scratch/long" --tokens 2000000 >"$scratch/out"
timeout 60 mpirun -n 4 "${train[@]}" --data "$scratch/long" --dp 2 --pp 2 --chunks 2 --quiet --max-batches 20000 \
    --eval-max-batches 1 --epochs 100000 --serve 0 >"$scratch/out" 2>"$scratch/err" &
run=$!
timeout 50 /usr/bin/python3 - "$scratch/err" <<'END' || { kill "$run"; fail "the live page lacks a process"; }
import re, sys, time, urllib.request
while not (address := re.search(r"shown at (http\S+/)", open(sys.argv[1]).read())):
    time.sleep(0.05)
for line in urllib.request.urlopen(address.group(1) + "events"):
    steps = re.findall(rb"replica \d, step (\d+) of epoch", line)
    if steps and int(steps[0]) % 20000 not in (0, 19999):
        assert len(steps) == 2 and steps[0] == steps[1], steps
        assert line.count(b"measured: stage 0, ") == line.count(b"measured: stage 1, ") == 2 * 5
        break
END
[ "$(grep -c 'shown at' "$scratch/err")" = 1 ] || fail "several processes serve a page"
kill "$run"
wait "$run" || true

# The second process's clock is hours ahead, but the timeline is on one clock: a step takes seconds. The
# second process computes nearly all, so waiting_ms, the mean of both, is less than rank 0 waits.
ahead=(unshare --time --monotonic 100000)
"${ahead[@]}" true 2>"$scratch/err" || { echo "skipped: another clock, which only root can set"; ahead=(); }
options=("${train[@]}" --dp 1 --pp 2 --balance "1,3" --chunks 2 --quiet --log-json "$scratch/log")
timeout 60 mpirun -n 1 "${options[@]}" : -n 1 "${ahead[@]}" "${options[@]}" >"$scratch/out" 2>"$scratch/err" ||
    fail "two processes with other clocks do not train"
/usr/bin/python3 - "$scratch/log" <<'END' || fail "times of two processes"
import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
[pipeline] = [r for r in records if r["record"] == "pipeline"]
[step] = [r for r in records if r["record"] == "step" and r["step"] == pipeline["step"]]
actions = pipeline["measured"]
assert min(a[1] for a in actions) >= 0 and max(a[2] for a in actions) < 60e6, actions
busy_ms = sum(end - start for _, start, end in actions) / 1e3 / 2
in_pipe_ms = step["ms"] - step["data_ms"] - step["optimizer_ms"] - step["reduce_ms"]
assert 0 < step["waiting_ms"] <= in_pipe_ms - busy_ms + 0.02, (step, actions) # starts and ends are rounded
END

# What cannot be ends every process, with one sentence and no hang.
if processes 2 --dp 3; then fail "--dp 3 with two processes is accepted"; fi
grep -q '^sluice: 2 processes cannot be 3 replicas of 1 pipeline rank: start 1 or 3$' \
    "$scratch/err" || fail "--dp 3 with two processes is not explained"
if processes 2 --lr 1e30 --clip 0; then fail "a loss that is no number is accepted"; fi
grep -qE '^sluice: rank [01]: the loss is nan in epoch 1, batch 2' "$scratch/err" ||
    fail "the failing rank is not named"
if processes 2 --save /nowhere/model; then fail "a directory that does not exist is accepted"; fi
grep -q '^sluice: rank 0: /nowhere/model' "$scratch/err" || fail "the first rank's error is not told"
# torchrun's names without a launcher.
if RANK=0 WORLD_SIZE=2 "${train[@]}" >"$scratch/out" 2>"$scratch/err"; then
    fail "an environment without a launcher is accepted"
fi
grep -q '^sluice: the environment is that of rank 0 of 2, but MPI knows of 1: start' "$scratch/err" ||
    fail "an environment without a launcher is not explained"

# ---- Shards of the optimizer's state --------------------------------------------------------------

saving=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8
    --batch-size 4 --eval-batch-size 8 --epochs 1 --max-batches 8 --eval-max-batches 2
    --optimizer adamw --lr 0.01 --quiet)

# Two processes, of which the second is started with the last words in front: "env A=B", or nothing.
# Their output is in out and err.
pair() { # LOG OPTION... -- WORD...
    local log=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    options=("${saving[@]}" --zero --log-json "$log" "${options[@]}")
    timeout 60 mpirun -n 1 "${options[@]}" : -n 1 "$@" "${options[@]}" \
        >"$scratch/out" 2>"$scratch/err"
}
same() { # LOG
    test "$(numbers "$1" | wc -l)" -ge 16 || fail "the log has too few numbers"
    diff <(numbers "$scratch/reference") <(numbers "$1") || fail "the numbers are others"
}

pair "$scratch/reference" -- || fail "two processes do not train"

# Each writes its own, and the run goes on from it: as processes, and as threads without --zero.
pair "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- || fail "no run that saves"
same "$scratch/log"
for step in 3 6 8; do
    for file in optimizer-0000{1,2}-of-00002.safetensors; do
        test -f "$scratch/saved/step-0000000$step/$file" || fail "step $step has no $file"
    done
done
"$program" checkpoint verify "$scratch"/saved/step-* >"$scratch/out" || fail "one is damaged"
rm -r "$scratch/saved/step-00000008"
pair "$scratch/rest" --resume "$scratch/saved" -- || fail "it does not go on"
diff <(numbers "$scratch/reference" | tail -n 6) <(numbers "$scratch/rest" | tail -n 6) ||
    fail "it goes on with other numbers"
"${saving[@]}" --dp 2 --resume "$scratch/saved" --log-json "$scratch/as-threads" \
    >"$scratch/out" 2>"$scratch/err" || fail "threads do not go on"
diff <(numbers "$scratch/rest") <(numbers "$scratch/as-threads") || fail "threads have other numbers"

# Wherever the second one's disk fails, the first tells it, and everything else is as before.
rm -rf "$scratch/saved"
pair "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- \
    env LD_PRELOAD="$faults" SLUICE_IO_ONLY=/saved SLUICE_IO_COUNT="$scratch/calls" || fail "counting calls ends the run"
calls=$(cat "$scratch/calls")
failed=0
for back in 0 2 4 6 8; do
    rm -rf "$scratch/saved"
    pair "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- \
        env LD_PRELOAD="$faults" SLUICE_IO_ONLY=/saved SLUICE_IO_FAIL=$((calls - back)) ||
        grep -q 'the run has ended, but its last checkpoint is not saved: ' "$scratch/err" ||
        fail "a failing disk ends the run"
    same "$scratch/log"
    if grep -qE 'is not saved, the run goes on: rank 1: .*No space' "$scratch/err"; then
        failed=$((failed + 1))
    fi
    "$program" checkpoint verify "$scratch"/saved/step-* >"$scratch/out" || fail "one is damaged"
    if compgen -G "$scratch/saved/.*.tmp" >"$scratch/out"; then fail "something is left"; fi
done
echo "$failed of 5 failures are rank 1's saves, of $calls calls"
test "$failed" -ge 3 || fail "rank 1's failures are not told"

# A second process with a file system of its own there: the first one writes all.
rm -rf "$scratch/saved"
mkdir "$scratch/saved"
if unshare -m mount -t tmpfs none "$scratch/saved" 2>"$scratch/err"; then
    # shellcheck disable=SC2016 # the inner shell's
    pair "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- unshare -m sh -c \
        'mount -t tmpfs none "$0" && exec "$@"' "$scratch/saved" || fail "no run on two disks"
    same "$scratch/log"
    test -f "$scratch/saved/step-00000006/optimizer.safetensors" || fail "rank 0 has not written all"
    "$program" checkpoint verify "$scratch"/saved/step-* >"$scratch/out" || fail "one is damaged"
    rm -r "$scratch/saved/step-00000008"
    # shellcheck disable=SC2016 # the inner shell's
    pair "$scratch/other" --resume "$scratch/saved" -- unshare -m sh -c \
        'mount -t tmpfs none "$0" && exec "$@"' "$scratch/saved" || fail "it does not go on"
    diff <(numbers "$scratch/rest") <(numbers "$scratch/other") ||
        fail "it goes on with other numbers from another disk"
    # Its options are read where the directory is.
    # shellcheck disable=SC2016 # the inner shell's
    timeout 60 mpirun -n 1 "$program" train --resume "$scratch/saved" --log-json "$scratch/alone" : \
        -n 1 unshare -m sh -c 'mount -t tmpfs none "$0" && exec "$@"' "$scratch/saved" \
        "$program" train --resume "$scratch/saved" --log-json "$scratch/alone" >"$scratch/out" 2>"$scratch/err" ||
        fail "two processes do not resume by the directory alone"
    diff <(numbers "$scratch/rest") <(numbers "$scratch/alone") || fail "the directory alone: other numbers"
else
    echo "skipped: two file systems, which only root can have"
fi
echo "passed"
