#!/bin/bash
# sluice train --model: a model of a published size is drawn, trained on the words of a text, saved and evaluated. Its
# vocabulary keeps its size, and has no room for more words.
. "$(dirname "$0")/../support/script.sh"

mkdir data
for split in train valid test; do seq 60 >data/$split.txt; done
job=("$program" train --model smollm2-135m --data data --seq-len 8 --batch-size 1 --eval-batch-size 1 --max-batches 2
    --eval-max-batches 2)
runs "${job[@]}" --log-json log --save new
grep -q '"vocab_size": 49152,' new/config.json || fail "the vocabulary has another size: $(cat new/config.json)"
first=$(grep -m 1 '"record":"step"' log | grep -oP '"loss":\K[0-9.]+')
awk -v loss="$first" 'BEGIN { e = log(49152); exit !(loss > 0.9 * e && loss < 1.1 * e) }' || fail "the first loss is $first"
loss=$(grep -oP 'test loss *\K[0-9.]+' out) || fail "no test loss: $(cat out)"
runs "$program" eval --init new --data data --seq-len 8 --eval-batch-size 1 --eval-max-batches 2
[ "$(printf %.2f "$(grep -oP 'test loss *\K[0-9.]+' out)")" = "$loss" ] || fail "eval gives another loss than $loss"

seq 49152 >data/train.txt # and <unk>
refused 1 "the text's vocabulary has 49153 types, more than the model's 49152 tokens" "${job[@]}" --save none
[ ! -e none ] || fail "something was saved"
