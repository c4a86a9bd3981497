#!/bin/bash
# Texts and JSON lines whose tokens need more memory than the process may have: they lie in files, in the first run and in
# those that go on with what is kept.
. "$(dirname "$0")/../support/script.sh"

most_kib=200000 # private memory
for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
train=("$program" train --tokenizer ranks --splitter gpt2 --seq-len 16 --batch-size 2 --max-batches 2 --epochs 1 --emsize 8 --nhid 8
    --nlayers 1 --nhead 2 --pp 1)
limited() { # COMMAND...: on one processor, since each thread has a stack
    (
        ulimit -d $most_kib
        exec taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" "$@"
    ) >out 2>&1
}
mkdir small text lines
for split in train valid test; do
    head -c 3000 "$source/LICENSE" >small/$split.txt
    cp small/$split.txt text/
done
limited "${train[@]}" --data small || skip "a run on a few lines needs more than $most_kib KiB: $(tail -n 1 out)"

# A token is a byte, and has 4 in memory.
for ((i = 0; i < 10; i++)); do cat "$source"/docs/*.md "$source/CHANGELOG.md"; done >some
while [ "$(stat -c %s text/train.txt)" -lt 64000000 ]; do cat some >>text/train.txt; done
limited "${train[@]}" --data text --save-dir run || fail "a text of $(stat -c %s text/train.txt) bytes"
[ "$(stat -c %s run/tokens/train.bin)" = $((1024 + 2 * $(stat -c %s text/train.txt))) ] || fail "other tokens"
forget() { rm -rf run/step-* run/best run/progress; } # all but the tokens
forget
before=$(stat -c %i run/tokens/train.bin)
limited "${train[@]}" --data text --save-dir run || fail "kept tokens"
[ "$(stat -c %i run/tokens/train.bin)" = "$before" ] || fail "the tokens were made again"
limited "${train[@]}" --data text || fail "a text without --save-dir"
rm -r text run

# A token of a line has an id and a target, and a number in its document if rows are packed.
"$python" - some lines/train.jsonl <<'EOF'
import json, sys

text = open(sys.argv[1], encoding="utf-8").read()
with open(sys.argv[2], "w", encoding="utf-8") as file:
    for begin in range(0, 32000000, 400):
        at = begin % (len(text) - 400)
        file.write(json.dumps({"text": text[at:at + 400]}) + "\n")
EOF
for options in "" --pack; do
    rm -rf run
    # shellcheck disable=SC2086 # none, or a word
    limited "${train[@]}" --data lines --seq-len 512 $options --save-dir run || fail "lines $options"
    forget
    # shellcheck disable=SC2086
    limited "${train[@]}" --data lines --seq-len 512 $options --save-dir run || fail "kept lines $options"
done
[ -z "$(find /var/tmp "${TMPDIR:-/tmp}" -maxdepth 1 -name 'sluice-??????' -type f)" ] || fail "files are left"
