#!/bin/bash
# File systems that cannot exchange two names, as NFS, Lustre and most of FUSE: renameat2 refuses its
# flags (tests/faults/io_faults.c). Directories are replaced all the same, and a kill at any call
# leaves the old or the new one where readers and the next run find it.
. "$(dirname "$0")/../support/script.sh"

[ -f "$faults" ] || fail "$faults was not built"
fail() { echo "$1"; cat err out; ls -lA saved work 2>&1 || true; exit 1; }

export SLUICE_IO_NO_EXCHANGE=1
"$program" data --synthetic text --tokens 4000 >out 2>err
small=(--bptt 8 --eval-max-batches 2 --devices cpu)
# Its validations are better and better, so that `best` is replaced.
train=("$program" train --data text --emsize 8 --nhid 8 --nhead 2 --nlayers 1 --batch-size 4
    --eval-batch-size 8 --max-batches 4 --lr 0.5 --quiet "${small[@]}")
preloaded() { LD_PRELOAD=$faults "$@" >out 2>err; }
score() { "$program" eval --init "$1" --data text "${small[@]}" 2>err | tail -1; }
no_leftovers() {
    [ -z "$(find "$2" -regex '.*\.[0-9a-f]*\.\(tmp\|old\)')" ] || { find "$2" >out; fail "$1: leftovers"; }
}

# `best` is the last validation's, not the first one's.
preloaded "${train[@]}" --epochs 1 --save-dir saved --log-json first.jsonl || fail 'the run failed'
first=$(score saved/best)
preloaded "${train[@]}" --epochs 3 --save-dir saved --resume auto --log-json log.jsonl || fail 'resuming failed'
! grep -q 'not saved' err out || fail 'a save failed'
grep -q '"best":true' log.jsonl || fail 'no validation was better'
[ "$(score saved/best)" != "$first" ] || fail 'best is still the first one'
[ "$(score saved/best)" = "$(score saved/step-00000012)" ] || fail 'best is not the last one'
no_leftovers 'a run' saved

# A step is saved again.
preloaded "${train[@]}" --epochs 3 --save-dir saved --resume saved/step-00000008 || fail 'not saved again'
! grep -q 'not saved' err out || fail 'a step is not saved again'
no_leftovers 'saved again' saved

# Readers of a checkpoint that is replaced meanwhile, and what appears where a new one is written.
preloaded "$(dirname "$faults")/test_io" checkpoint || fail 'tests/io/test_checkpoint.c failed'

# A model whose name leaves a second name no room is saved again as well.
for length in 233 234 254 255; do
    long=$(printf "%0${length}d" 0)
    for epochs in 1 2; do preloaded "${train[@]}" --epochs $epochs --save "$long" || fail "$length bytes"; done
    [ "$(score "$long")" != "$first" ] || fail "$length bytes: the first model is still there"
    no_leftovers "$length bytes" .
done
once_more() { # VARIABLE=VALUE
    (LD_PRELOAD=$faults env SLUICE_IO_ONLY="${long:0:200}" "$1" "${train[@]}" --epochs 1 --save "$long"; exit $?) >out 2>err
}
once_more SLUICE_IO_LOG="$scratch/long-calls" || fail "$length bytes: no log"
once_more SLUICE_IO_KILL="$(grep -n ^rename long-calls | tail -1 | cut -d: -f1)" && fail "$length bytes: not killed"
[ ! -d "$long" ] || fail "$length bytes: it was not killed between the two renames"
score "$long" >out || fail "$length bytes: the old one cannot be read"
rm -r ".${long:0:200}"*

# A run that replaces `best` and a step, killed before and after each of its renames.
rm -r saved/step-00000012
alone=$(score saved/best)
asides=0
again() { # VARIABLE=VALUE: the run over a copy of what is saved
    rm -rf work
    cp -r saved work
    (LD_PRELOAD=$faults env SLUICE_IO_ONLY=work/ "$1" "${train[@]}" --epochs 3 --save-dir work \
        --resume work/step-00000008; exit $?) >out 2>err
}
again SLUICE_IO_LOG="$scratch/calls" || fail 'the run failed'
mapfile -t renames < <(grep -n ^rename calls | cut -d: -f1)
[ "${#renames[@]}" -gt 6 ] || fail "there are only ${#renames[@]} renames"
for rename in "${renames[@]}"; do
    for call in "$rename" $((rename + 1)); do
        status=0
        again SLUICE_IO_KILL="$call" || status=$?
        [ "$status" = 137 ] || [ "$call" -gt "$(wc -l <calls)" ] || fail "call $call: status $status"
        [ "$(score work/best)" = "$alone" ] || fail "call $call: best cannot be read, or is another"
        [ -d work/best ] || asides=$((asides + 1))
        preloaded "${train[@]}" --epochs 3 --save-dir work --resume auto || fail "call $call: cannot be resumed"
        [ "$(score work/best)" = "$alone" ] || fail "call $call: best is another after the next run"
        no_leftovers "call $call" work
    done
done
[ "$asides" -gt 0 ] || fail 'no kill was between the two renames'
