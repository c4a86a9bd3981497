#!/bin/bash
# One allocation fails in one rank of a pipeline over processes: the job ends within 5 s of it, with
# the error of that rank, or trains to its end where the rank can do without. Jobs are drawn from a
# seed. SLUICE_TEST_SEED is the first job's seed ("new": another one each time), SLUICE_TEST_CASES
# the number of jobs.
. "$(dirname "$0")/../support/script.sh"

faults=$(dirname "$program")/../tests/libmemory_faults.so
command -v mpirun >/dev/null || skip "there is no mpirun"
[ -f "$faults" ] || fail "$faults was not built"

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 6 --bptt 8
    --batch-size 8 --eval-batch-size 8 --epochs 1 --max-batches 4 --quiet)
layouts=("--pp 2 --chunks 4 --schedule 1f1b" "--pp 3 --chunks 6 --schedule interleaved --virtual 2")
starters=("mpirun -n" "$program launch -n")

# Runs a layout as processes with the library loaded into each, and NAME=VALUE in their environment.
processes() { # LAYOUT STARTER NAME=VALUE...
    local ranks=$(($1 + 2)) starter layout
    read -ra starter <<<"${starters[$2]}"
    read -ra layout <<<"${layouts[$1]}"
    timeout -k 5 60 "${starter[@]}" "$ranks" env LD_PRELOAD="$faults" "${@:3}" \
        "${train[@]}" "${layout[@]}" >"$scratch/out" 2>"$scratch/err"
}

for layout in 0 1; do
    processes "$layout" 0 "SLUICE_MEMORY_COUNT=$scratch/count.$layout" || {
        grep -q 'sluice_mpi.so was not found' "$scratch/err" && skip "sluice was built without MPI"
        fail "the layout does not train: ${layouts[$layout]}"
    }
done

seed=${SLUICE_TEST_SEED:-1}
[ "$seed" != new ] || seed=$EPOCHSECONDS
for ((left = ${SLUICE_TEST_CASES:-6}; left > 0; seed++, left--)); do
    RANDOM=$seed
    layout=$((RANDOM % 2)) by=$((RANDOM % 2))
    rank=$((RANDOM % (layout + 2)))
    count=$(cat "$scratch/count.$layout.$rank")
    test "$count" -gt 1000 || fail "rank $rank allocates only $count times"
    # Half of the draws are of the first tenth, where the run is set up.
    call=$((1 + (RANDOM * 32768 + RANDOM) % (RANDOM % 2 ? count : count / 10)))
    rm -f "$scratch/log"
    status=0
    processes "$layout" "$by" "SLUICE_MEMORY_FAIL=$call" "SLUICE_MEMORY_RANK=$rank" \
        "SLUICE_MEMORY_LOG=$scratch/log" || status=$?
    ended=$(date +%s.%N)
    what="seed $seed: ${starters[by]##*/} $((layout + 2)), ${layouts[layout]}, allocation $call of rank $rank"
    [ -f "$scratch/log" ] || { # the number of allocations differs a little from run to run
        test "$status" = 0 || fail "$what: status $status without a failure"
        echo "$what: not reached"
        continue
    }
    read -r begun _ <"$scratch/log"
    seconds=$(echo "$ended $begun" | awk '{ printf "%.1f", $1 - $2 }')
    echo "$what: status $status after $seconds s"
    ((status == 0)) && continue
    awk "BEGIN { exit !($seconds < 5) }" || fail "$what: it took $seconds s to end"
    grep -q 'no memory\|does not start' "$scratch/err" "$scratch/out" ||
        fail "$what: no error says that there was no memory"
    ! grep -h 'rank [0-9]*: .*no memory' "$scratch/err" "$scratch/out" | grep -v "rank $rank: " ||
        fail "$what: the error is another rank's"
done
