#!/bin/bash
# What reading a checkpoint meets. Errors (EIO, EMFILE, ESTALE, EACCES) end a run that would resume
# from it, whatever call meets them: no older checkpoint is taken, no run begins anew, nothing is
# changed. Checkpoints of more files than may be open are read.
. "$(dirname "$0")/../support/script.sh"

[ -f "$faults" ] || fail "$faults was not built"

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 8 --nhid 8 --nhead 2 --bptt 8 --batch-size 4
    --eval-batch-size 8 --eval-max-batches 2 --epochs 1 --devices cpu --optimizer adamw --lr 0.01
    --quiet)
short=("${train[@]}" --nlayers 1 --max-batches 6)

# ---- Errors ---------------------------------------------------------------------------------------

content() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 md5sum); }

"${short[@]}" --save-dir "$scratch/saved" --save-every 2 >"$scratch/out"
rm -r "$scratch/saved/step-00000006"
content "$scratch/saved" >"$scratch/before"

refused() { # REASON OPTION...: ends with that error, before anything is changed
    local reason=$1 status=0
    shift
    "${short[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [ "$status" = 1 ] || fail "$SLUICE_IO_READ on $SLUICE_IO_ONLY, $*: status $status"
    grep -q "$reason" "$scratch/err" || fail "$SLUICE_IO_READ on $SLUICE_IO_ONLY, $*: no $reason"
    LD_PRELOAD='' content "$scratch/saved" | diff "$scratch/before" - ||
        fail "$SLUICE_IO_READ on $SLUICE_IO_ONLY, $*: the checkpoints are others"
}

declare -A errors=([5]='Input/output error' [24]='Too many open files' [116]='Stale file handle'
    [13]='Permission denied')
saved=$scratch/saved
for number in "${!errors[@]}"; do
    for call in open read stat; do
        for only in step-00000004/model.safetensors step-00000004/state.json saved/step-; do
            # state.json is not looked at by its name where the directory is searched
            [ "$call $only" != 'stat step-00000004/state.json' ] || continue
            export SLUICE_IO_READ=$call:$number SLUICE_IO_ONLY=$only
            export LD_PRELOAD=$faults
            refused "${errors[$number]}" --save-dir "$saved" --resume auto
            refused "${errors[$number]}" --save-dir "$saved" --resume "$saved/step-00000004"
            unset LD_PRELOAD SLUICE_IO_READ SLUICE_IO_ONLY
        done
    done
    # The directory itself, and a checkpoint whose state.json cannot be looked at.
    for fault in open:/saved stat:step-00000004/state.json; do
        export SLUICE_IO_READ=${fault%:*}:$number SLUICE_IO_ONLY=${fault#*:}
        resume=$([ "${fault%:*}" = open ] && echo auto || echo "$saved/step-00000004")
        LD_PRELOAD=$faults refused "${errors[$number]}" --save-dir "$saved" --resume "$resume"
        unset SLUICE_IO_READ SLUICE_IO_ONLY
    done
done

# Without the fault both go on, and a damaged or missing file is skipped.
"${short[@]}" --save-dir "$saved" --resume auto >"$scratch/out" 2>"$scratch/err" || fail 'it does not resume'
rm -r "$saved/step-00000006" "$saved/step-00000004/model.safetensors"
"${short[@]}" --resume "$saved" >"$scratch/out" 2>"$scratch/err" || fail 'it does not resume from 2'
grep -q 'warning: checkpoint .*/step-00000004 is skipped: .*model.safetensors' "$scratch/err" ||
    fail 'the one without a file is not named'

# Where none is whole, auto does not begin anew.
echo '{}' >"$saved/step-00000002/state.json"
if "${short[@]}" --save-dir "$saved" --resume auto >"$scratch/out" 2>"$scratch/err"; then
    fail 'a run begins anew among checkpoints'
fi
grep -q 'saved: has 2 checkpoints, but none is whole: restore one, or train into another' \
    "$scratch/err" || fail 'nobody says what to do'

# ---- More files than a process may have open ------------------------------------------------------

many=("${train[@]}" --nlayers 8 --max-batches 2 --save-every 1 --shard-size 1)
(
    ulimit -n 64
    "${many[@]}" --save-dir "$scratch/many" >"$scratch/out" 2>"$scratch/err" || fail 'no run of many files'
    files=$(find "$scratch/many/best" -name 'model-*.safetensors' | wc -l)
    [ "$files" -gt 64 ] || fail "there are only $files files"
    rm -r "$scratch/many/step-00000002"
    "${many[@]}" --save-dir "$scratch/many" --resume auto >"$scratch/out" 2>"$scratch/err" ||
        fail 'it does not resume'
    [ -d "$scratch/many/step-00000002" ] || fail 'it did not go on'
    "$program" checkpoint verify "$scratch"/many/step-* >"$scratch/out" 2>"$scratch/err" || fail 'verify'
    "$program" checkpoint convert "$scratch/many/best" "$scratch/one" 2>"$scratch/err" || fail 'convert'
    "$program" checkpoint average "$scratch"/many/step-* "$scratch/mean" 2>"$scratch/err" || fail 'average'
    for from in best best/model.safetensors.index.json; do
        "$program" eval --init "$scratch/many/$from" --data "$scratch/text" --bptt 8 --eval-batch-size 8 \
            --eval-max-batches 2 --devices cpu \
            >"$scratch/out" 2>"$scratch/err" || fail "eval of $from"
    done
)
