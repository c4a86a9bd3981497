#!/bin/bash
# Checkpoints as sluice 0.1.0 wrote them, one with the whole state of the optimizer, one with a shard
# of it from each of two replicas. Both are read, have the same tensors, and a run goes on from each of
# them with the losses that it had then, to rounding, and from both with the same. old_checkpoints.tar.xz has both, the text, and the log.
set -euo pipefail

program=${SLUICE_PROGRAM:?}
archive=$(dirname "$(realpath "$0")")/old_checkpoints.tar.xz
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "$1"; cat out err; exit 1; }
tar -xJf "$archive"

train=("$program" train --data text --emsize 2 --nhid 2 --nhead 1 --nlayers 1 --bptt 8 --batch-size 4
    --eval-batch-size 4 --epochs 1 --max-batches 6 --eval-max-batches 2 --optimizer adamw --lr 0.01
    --dp 2 --devices "cpu:0-0,cpu:0-0" --quiet)
losses() { # LOG: of the last three steps, the validation and the test
    grep -oE '"(loss|test_loss)":[^,}]*' "$1" | tail -n 6
}

for form in whole sharded; do
    "$program" checkpoint verify "$form" >out 2>err || fail "$form: it is not whole"
    "$program" checkpoint convert "$form" "$form.converted" >out 2>err || fail "$form: no convert"
    "$program" checkpoint show "$form.converted" 2>err | grep ' part ' >"$form.shown"
    for zero in '' --zero; do
        # shellcheck disable=SC2086 # an option, or none
        "${train[@]}" $zero --resume "$form" --log-json "$form$zero.jsonl" >out 2>err || fail "$form: no resume"
        paste <(losses log.jsonl) <(losses "$form$zero.jsonl") | tr ':' '\t' >pairs
        ! grep -q 'gradients of micro-batches' err || fail "$form $zero: one chunk has no order"
        awk '{ off = $2 / $4 - 1; if ($1 != $3 || off > 1e-5 || off < -1e-5) bad = 1 }
             END { exit bad || NR != 6 }' pairs || { cat pairs; fail "$form $zero: other losses"; }
    done
done
# Version 0.1.0 added the gradients of several micro-batches in the other order.
"${train[@]}" --chunks 2 --resume whole >out 2>err || fail "no resume with other chunks"
warning='^sluice: warning: checkpoint whole: it was made when gradients of micro-batches were added from'
[ "$(grep -c "$warning the last to the first; " err)" = 1 ] || fail 'no warning of the other order'

diff whole.shown sharded.shown || fail 'the tensors are others'
for log in whole--zero sharded sharded--zero; do
    diff <(losses whole.jsonl) <(losses "$log.jsonl") || fail "$log: another state was read"
done
