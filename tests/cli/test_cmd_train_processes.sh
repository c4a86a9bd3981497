#!/bin/bash
# `sluice train` under mpirun: ranks are processes, and nothing else changes.
set -euo pipefail

program=${SLUICE_PROGRAM:?}
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "$1"; exit 1; }
command -v mpirun >/dev/null || skip "there is no mpirun"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8
    --batch-size 8 --eval-batch-size 8 --epochs 1 --max-batches 4 --momentum 0.5)

# Runs the options as N processes; what they write is in out and err.
processes() { # N OPTION...
    timeout 60 mpirun -n "$1" "${train[@]}" "${@:2}" >"$scratch/out" 2>"$scratch/err"
}

processes 2 --quiet || {
    grep -q 'sluice_mpi.so was not found' "$scratch/err" && skip "sluice was built without MPI"
    cat "$scratch/err"
    fail "two processes do not train"
}

numbers() { # LOG: what does not depend on the clock
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$1"
}

# Processes, threads: the same bits, whatever the pipe and the optimizer's state.
for ranks in 2 3; do
    for options in "" "--pp 2 --chunks 2 --zero"; do
        # shellcheck disable=SC2086 # words
        "${train[@]}" --dp "$ranks" $options --quiet --log-json "$scratch/threads" >"$scratch/out" 2>&1
        # shellcheck disable=SC2086 # words
        processes "$ranks" $options --log-json "$scratch/processes"
        diff <(numbers "$scratch/threads") <(numbers "$scratch/processes") ||
            fail "$ranks processes and threads differ: '$options'"
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
done
if grep -v '^\[RANK [0-2]\]: ' "$scratch/out"; then fail "a line has no rank in front"; fi

# The launcher's processes are the replicas, whatever a preset says; one alone has nothing to shard.
for ranks in 1 3; do
    processes "$ranks" --preset ddp-pipeline --pp 1 --zero --log-json "$scratch/log" ||
        fail "a preset of 2 replicas with $ranks processes is refused"
    grep -q "\"replicas\":$ranks,.*\"shares\":$ranks," "$scratch/log" ||
        fail "$ranks processes are not $ranks replicas"
done

# What cannot be ends every process, with one sentence and no hang.
if processes 2 --dp 3; then fail "--dp 3 with two processes is accepted"; fi
grep -q '^sluice: --dp must be the number of processes that were started, 2, got "3"$' \
    "$scratch/err" || fail "--dp 3 with two processes is not explained"
if processes 2 --lr 1e30 --clip 0; then fail "a loss that is no number is accepted"; fi
grep -qE '^sluice: rank [01]: the loss is nan in epoch 1, batch 2' "$scratch/err" ||
    fail "the failing rank is not named"
if processes 2 --save /nowhere/model; then fail "a place that is not there is accepted"; fi
grep -q '^sluice: rank 0: /nowhere/model' "$scratch/err" || fail "the first rank's error is not told"
# torchrun's names without a launcher.
if RANK=0 WORLD_SIZE=2 "${train[@]}" >"$scratch/out" 2>"$scratch/err"; then
    fail "an environment that nobody was started with is accepted"
fi
grep -q '^sluice: the environment is that of rank 0 of 2, but MPI knows of 1: start' "$scratch/err" ||
    fail "an environment that nobody was started with is not explained"
echo "passed"
