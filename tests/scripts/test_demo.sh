#!/bin/bash
# The command line that scripts/demo trains with, tried on a small corpus for a few batches.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "failed: $*" >&2
    exit 1
}

[ -x "${SLUICE_PROGRAM:-}" ] || {
    echo "skipped: SLUICE_PROGRAM does not name a program"
    exit 77
}

# The script's own array `train`, with its results in our directory.
# shellcheck disable=SC2034 # the array names it
result=$scratch
train=()
eval "$(sed -n '/^train=(/,/)$/p' "$SLUICE_SOURCE_DIR/scripts/demo")"
[ "${#train[@]}" -gt 0 ] || fail "scripts/demo has no array train"

"$SLUICE_PROGRAM" data --synthetic "$scratch" --tokens 10000 >/dev/null
"$SLUICE_PROGRAM" train --data "$scratch" "${train[@]}" \
    --max-batches 2 --eval-max-batches 2 --emsize 16 --nhid 16 >"$scratch/output"
grep -q "| test ppl " "$scratch/output" || fail "the run did not say its test perplexity"
[ -s "$scratch/model.safetensors" ] || fail "the run saved no weights"
[ -s "$scratch/log.jsonl" ] || fail "the run wrote no log"

# A directory without data is refused at once.
if "$SLUICE_SOURCE_DIR/scripts/demo" "$scratch/absent" >"$scratch/output" 2>&1; then
    fail "a directory that is not there was accepted"
fi
grep -q "absent (named on the command line) must hold wiki.train.tokens" "$scratch/output" ||
    fail "a directory that is not there was not named"
! grep -q "Building" "$scratch/output" || fail "minutes went into a build before that"
