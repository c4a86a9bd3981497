#!/bin/bash
# Several prompts of a file at once: the texts of each prompt alone, for any number at once, through stages of one process
# and of two.
. "$(dirname "$0")/../support/script.sh"

for ((line = 0; line < 300; line++)); do
    echo "the cat sat $((line % 7)) on a mat , the dog < $((line * 5 % 11)) > ran"
done >text.txt
runs "$program" train --data text.txt --emsize 16 --nhid 16 --nlayers 4 --nhead 2 --bptt 16 --batch-size 2 --max-batches 20 --epochs 1 \
    --eval-max-batches 1 --save model
printf '%s\n' "the cat" "a mat , the dog" "ran the cat sat 3 on a" "the" "dog < 5 >" >prompts
while read -r prompt; do
    # Longer than the context of 16.
    runs "$program" generate --init model --prompt "$prompt" --tokens 20 --seed 3
    [ ! -s expected ] || echo >>expected
    cat out >>expected
done <prompts
for options in "" "--batch-size 1" "--batch-size 3" "--batch-size 5 --devices cpu:0,cpu:1"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" generate --init model --prompts prompts --tokens 20 --seed 3 $options
    cmp out expected || fail "other texts with $options"
done
if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" generate --init model --prompts prompts --tokens 20 \
    --seed 3 --batch-size 3 >out 2>err; then
    cmp out expected || fail "other texts in two processes"
else
    grep -q 'sluice_mpi.so was not found' err || fail "two processes"
fi
runs "$program" generate --init model --prompts prompts --tokens 20 --seed 3 --json
[ "$(wc -l <out)" = 5 ] || fail "not a line for each prompt"
sed -n 2p out | grep -q '^{"prompt": "a mat , the dog", "text": " ' || fail "another line"
