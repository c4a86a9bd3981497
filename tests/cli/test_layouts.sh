#!/bin/bash
# One run has the same bits in any layout: replicas as threads or as processes, pipes whose stages are in
# one process or several, schedules, recomputation, ZeRO. Layouts are drawn from a seed; every loss and
# norm and the weights are compared. Every other layout goes on from a checkpoint of the one before it.
# Every third run is in bf16, AdamW's averages too, from seed 2 on; every second one splits its vocabulary. Runs from
# seeds 1, 4, … are of the tutorials' model on a text, the others of a drawn model of another family on rows of ids.
# SLUICE_TEST_SEED is the first run's seed, SLUICE_TEST_CASES the number of runs.
. "$(dirname "$0")/../support/script.sh"

python=${SLUICE_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "skipped: models of families: there is no python3"
    python=
fi
"$program" data --synthetic "$scratch/text" --tokens 6000 >"$scratch/out"
schedules=("gpipe" "1f1b" "zb-h1" "zb-v" "interleaved --virtual 2" "looped-bfs --virtual 2")
modes=(except_last never always)
precisions=(f32 f32 bf16)
comm_precisions=(f32 f32 bf16)

starters=("")
if command -v mpirun >/dev/null && timeout 60 mpirun -n 1 "$program" train --help >/dev/null 2>&1; then
    starters=("" mpirun)
else
    echo "skipped: layouts of processes: there is no mpirun"
fi

train() { # NAME COMMAND...
    local name=$1
    shift
    rm -f "$scratch/$name.log" # a run that resumes would add to it
    "$@" --log-json "$scratch/$name.log" --save "$scratch/$name.model" --quiet \
        >"$scratch/out" 2>"$scratch/err" || fail "it does not train: $*"
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$scratch/$name.log" >"$scratch/$name.numbers"
}

for ((seed = ${SLUICE_TEST_SEED:-1}, left = ${SLUICE_TEST_CASES:-2}; left > 0; seed++, left--)); do
    RANDOM=$seed
    shards=$((2 + RANDOM % 4))
    model=(--data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 8 --bptt 8)
    if ((seed % 3 != 1)) && [ -n "$python" ]; then
        "$python" "$source/tests/models/drawn_model.py" "$seed" 8 "$scratch/base" "$scratch/rows"
        model=(--init "$scratch/base" --data "$scratch/rows")
    fi
    run=("$program" train "${model[@]}"
        --batch-size $((2 + RANDOM % 4)) --eval-batch-size 6 --epochs 2 --max-batches 4
        --eval-max-batches 3 --optimizer adamw --lr 0.01 --chunks $((1 + RANDOM % 4)) --shards "$shards"
        --precision "${precisions[seed % 3]}" --optimizer-precision "${precisions[seed % 3]}"
        --comm-precision "${comm_precisions[RANDOM % 3]}")
    if ((seed % 2 == 0)); then run+=(--split-vocabulary); fi
    echo "seed $seed: one replica: ${run[*]:4}"
    train one "${run[@]}" --dp 1
    test "$(wc -l <"$scratch/one.numbers")" -ge 18 || fail "the log has too few numbers"
    for ((layout = 0; layout < 4; layout++)); do
        dp=$((1 + RANDOM % shards)) pp=$((1 + RANDOM % 4)) each=$((1 + RANDOM % 4))
        while ((pp % each != 0)); do each=$((each - 1)); done # a replica's processes
        if ((dp * each > 6)); then dp=$((6 / each)); fi
        read -ra schedule <<<"${schedules[RANDOM % ${#schedules[@]}]}"
        options=(--dp "$dp" --pp "$pp" --schedule "${schedule[@]}" --recompute "${modes[RANDOM % 3]}")
        if ((RANDOM % 2 && dp > 1)); then options+=(--zero); fi
        if ((seed + layout & 1)); then options+=(--near-replicas); fi
        command=("${run[@]}") ranks=threads
        if [ -n "${starters[RANDOM % ${#starters[@]}]}" ] && ((dp * each > 1)); then
            command=(timeout 60 mpirun -n $((dp * each)) "${run[@]}") ranks="$((dp * each)) processes"
        fi
        if ((layout % 2)); then
            options+=(--resume "$scratch/saved/step-00000005")
        else
            rm -rf "$scratch/saved"
            options+=(--save-dir "$scratch/saved" --save-every 5)
        fi
        echo "    as $ranks: ${options[*]}"
        train other "${command[@]}" "${options[@]}"
        tail -n "$(wc -l <"$scratch/other.numbers")" "$scratch/one.numbers" |
            diff - "$scratch/other.numbers" || fail "the numbers are others"
        test "$(wc -l <"$scratch/other.numbers")" -ge 7 || fail "the log has too few numbers"
        diff -r "$scratch/one.model" "$scratch/other.model" || fail "the weights are others"
    done
done
