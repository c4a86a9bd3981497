#!/bin/bash
# A run killed before any of the calls that change its kept tokens (tests/faults/io_faults.c), or whose disk is full there,
# starts again by itself: with the same weights, the tokens of its text, and nothing else beside them.
. "$(dirname "$0")/../support/script.sh"
[ -f "$faults" ] || fail "$faults was not built"

for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
for text in text other; do
    mkdir $text
    for split in train valid test; do
        head -c 1500 "$source/docs/determinism.md" | tr '[:lower:]' "$([ $text = text ] && echo a-z || echo b-za)" >$text/$split.txt
    done
done
train=("$program" train --tokenizer ranks --splitter gpt2 --bptt 6 --batch-size 2 --max-batches 1 --epochs 1
    --emsize 8 --nhid 8 --nlayers 1 --nhead 2 --save-dir run)
forget() { rm -rf run/step-* run/best run/progress; } # all but the tokens
faulty() { # NAME=VALUE... -- DATA: its status
    local status=0 settings=()
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    { env LD_PRELOAD="$faults" SLUICE_IO_ONLY=run/tokens "${settings[@]}" "${train[@]}" --data "$2" >said 2>&1; } 2>/dev/null ||
        status=$?
    echo $status
}

"${train[@]}" --data text --save whole >said 2>&1 || fail "an undisturbed run"
cp -r run/tokens expected
rm -rf run
[ "$(faulty SLUICE_IO_LOG="$PWD/log" -- other)" = 0 ] || fail "an undisturbed run of another text"
calls=$(wc -l <log)
mv run older
[ "$(grep -c "^rename.*tokens" log)" -ge 6 ] || fail "other calls than planned: $(cat log)"

check() { # WHAT
    forget
    "${train[@]}" --data text --save again >said 2>&1 || fail "$1: the next run has status $?"
    cmp again/model.safetensors whole/model.safetensors || fail "$1: other weights"
    rm -f run/tokens/.run.* # the lock of a run that was killed with all else done
    diff -r run/tokens expected || fail "$1: other tokens, or something is left"
}

# All calls of one split; the others do the same. Killed once, and twice at that place; with and without older tokens.
each=$((calls / 3 + 1))
for ((call = 1; call <= each; call++)); do
    rm -rf run
    [ $((call % 2)) = 0 ] || cp -r older run
    forget
    [ "$(faulty SLUICE_IO_KILL=$call -- text)" = 137 ] || fail "call $call of $calls: not killed"
    forget
    [ "$(faulty SLUICE_IO_KILL=$((1 + call % 5)) -- text)" = 137 ] || fail "call $call of $calls: not killed again"
    check "killed before call $call"
done

# A full disk, from the naming of the manifest on.
naming=$(grep -n "^rename.*manifest" log | head -1 | cut -d: -f1)
rm -rf run
status=$(faulty SLUICE_IO_FAIL="$naming" SLUICE_IO_FAILURES=1000000 -- text)
[ "$status" = 1 ] || fail "a full disk: status $status"
if [ ! -e run/tokens/train.bin ] || [ -e run/tokens/train.manifest.json ]; then fail "other files than planned: $(ls -A run/tokens)"; fi
check "a full disk"
