#!/bin/bash
# `sluice train --zero` as processes: each writes its shard of the optimizer's state; a disk that
# fails one of them fails the save alone; and processes that do not see one directory let the first
# write all.
set -euo pipefail

program=${SLUICE_PROGRAM:?}
faults=$(dirname "$program")/../tests/libio_faults.so
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "$1"; cat "$scratch/err" "$scratch/out"; exit 1; }
command -v mpirun >/dev/null || skip "there is no mpirun"
[ -f "$faults" ] || { echo "$faults was not built"; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8
    --batch-size 4 --eval-batch-size 8 --epochs 1 --max-batches 8 --eval-max-batches 2
    --optimizer adamw --lr 0.01 --quiet)

# Two processes, of which the second is started with the last words in front: "env A=B", or nothing.
# Their output is in out and err.
processes() { # LOG OPTION... -- WORD...
    local log=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    options=("${train[@]}" --zero --log-json "$log" "${options[@]}")
    timeout 60 mpirun -n 1 "${options[@]}" : -n 1 "$@" "${options[@]}" \
        >"$scratch/out" 2>"$scratch/err"
}
numbers() { # LOG: what decides a run
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$1"
}
same() { # LOG
    test "$(numbers "$1" | wc -l)" -ge 16 || fail "the log has too few numbers"
    diff <(numbers "$scratch/reference") <(numbers "$1") || fail "the numbers are others"
}

processes "$scratch/reference" -- || {
    grep -q 'sluice_mpi.so was not found' "$scratch/err" && skip "sluice was built without MPI"
    fail "two processes do not train"
}

# Each writes its own, and the run goes on from it: as processes, and as threads without --zero.
processes "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- || fail "no run that saves"
same "$scratch/log"
for step in 3 6 8; do
    for file in optimizer-0000{1,2}-of-00002.safetensors; do
        test -f "$scratch/saved/step-0000000$step/$file" || fail "step $step has no $file"
    done
done
"$program" checkpoint verify "$scratch"/saved/step-* >"$scratch/out" || fail "one is damaged"
rm -r "$scratch/saved/step-00000008"
processes "$scratch/rest" --resume "$scratch/saved" -- || fail "it does not go on"
diff <(numbers "$scratch/reference" | tail -n 6) <(numbers "$scratch/rest" | tail -n 6) ||
    fail "it goes on with other numbers"
"${train[@]}" --dp 2 --resume "$scratch/saved" --log-json "$scratch/threads" \
    >"$scratch/out" 2>"$scratch/err" || fail "threads do not go on"
diff <(numbers "$scratch/rest") <(numbers "$scratch/threads") || fail "threads have other numbers"

# Wherever the second one's disk fails, the first tells it, and everything else is as before.
rm -rf "$scratch/saved"
processes "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- \
    env LD_PRELOAD="$faults" SLUICE_IO_ONLY=/saved SLUICE_IO_COUNT="$scratch/calls" || fail "counting calls ends the run"
calls=$(cat "$scratch/calls")
failed=0
for back in 0 2 4 6 8; do
    rm -rf "$scratch/saved"
    processes "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- \
        env LD_PRELOAD="$faults" SLUICE_IO_ONLY=/saved SLUICE_IO_FAIL=$((calls - back)) ||
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

# A second process with a file system of its own there: the first one gathers.
rm -rf "$scratch/saved"
mkdir "$scratch/saved"
if unshare -m mount -t tmpfs none "$scratch/saved" 2>"$scratch/err"; then
    # shellcheck disable=SC2016 # the inner shell's
    processes "$scratch/log" --save-dir "$scratch/saved" --save-every 3 -- unshare -m sh -c \
        'mount -t tmpfs none "$0" && exec "$@"' "$scratch/saved" || fail "no run on two disks"
    same "$scratch/log"
    test -f "$scratch/saved/step-00000006/optimizer.safetensors" || fail "nothing was gathered"
    "$program" checkpoint verify "$scratch"/saved/step-* >"$scratch/out" || fail "one is damaged"
    rm -r "$scratch/saved/step-00000008"
    # shellcheck disable=SC2016 # the inner shell's
    processes "$scratch/other" --resume "$scratch/saved" -- unshare -m sh -c \
        'mount -t tmpfs none "$0" && exec "$@"' "$scratch/saved" || fail "it does not go on"
    diff <(numbers "$scratch/rest") <(numbers "$scratch/other") ||
        fail "it goes on with other numbers from another disk"
else
    echo "skipped: two file systems, which only root can have"
fi
echo "passed"
