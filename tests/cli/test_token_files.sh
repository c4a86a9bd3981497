#!/bin/bash
# Training on token files: the same weights on any layout and after a resume in the middle of an epoch, and what is wrong
# refused.
. "$(dirname "$0")/../support/script.sh"
goldens=$source/tests/text/token_files
model=$source/tests/models/llama3

# 60 tokens in each of three forms, of which 97 are the model's.
mkdir data
cp "$goldens/llmc_gpt2.bin" data/train.bin
cp "$goldens/megatron_uint16.bin" data/val.bin
cp "$goldens/megatron_uint16.idx" data/val.idx
cp "$goldens/llmc_llama3.bin" data/test.bin
job=(train --init "$model" --data data --seq-len 6 --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3)
"$program" "${job[@]}" --save whole --save-dir run --save-every 1 >out 2>&1 || fail "status $?"
grep -q "data/val.bin" out || fail "no validation"
grep -q "|     2/    2 batches" out || fail "9 rows are not 2 batches of 4"
for layout in "--pp 2" "--dp 2" "--dp 2 --pp 2 --schedule 1f1b"; do
    # shellcheck disable=SC2086 # several words
    "$program" "${job[@]}" $layout --save cut >out 2>&1 || fail "$layout: status $?"
    [ "$(sum_of cut)" = "$(sum_of whole)" ] || fail "other weights with $layout"
done
"$program" "${job[@]}" --resume run/step-00000003 --save resumed >out 2>&1 || fail "resume: status $?"
[ "$(sum_of resumed)" = "$(sum_of whole)" ] || fail "other weights after a resume in the middle of an epoch"
"$program" "${job[@]}" --no-shuffle --save ordered >out 2>&1 || fail "--no-shuffle: status $?"
[ "$(sum_of ordered)" != "$(sum_of whole)" ] || fail "--no-shuffle does not change the order"
"$program" eval --init whole --data data --seq-len 6 --split valid --json >out 2>&1 || fail "eval: status $?"
grep -q '"targets": 54}' out || fail "eval scores other targets"

# The same tokens in any form.
"$program" eval --init whole --data "$goldens/nanogpt.bin" --token-type uint16 --seq-len 6 --json >nano
"$program" eval --init whole --data "$goldens/megatron_int32.bin" --seq-len 6 --json >megatron
cmp nano megatron || fail "other losses of the same tokens"

refused 1 "nanogpt.bin: it has neither llm.c's header nor an .idx beside it" "$program" eval --init "$model" --data "$goldens/nanogpt.bin"
head -c 80 "$goldens/nanogpt.bin" >short.bin
refused 1 "its 40 tokens are no row of 40 and the target behind it" "$program" eval --init "$model" --data short.bin --token-type uint16 --seq-len 40
refused 2 "--bptt must be at most 48, the model's positions, got 60" "$program" eval --init "$model" --data "$goldens/llmc_gpt2.bin" --seq-len 60
refused 1 "token files do not say how large the vocabulary is" "$program" train --data data --quiet

# Tokens that sluice has written need their own tokenizer.
for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
head -c 400 "$source/README.md" >text
"$program" tokenize --tokenizer ranks --splitter gpt2 text -o mine/train.bin >out 2>&1 && fail "a directory was made"
mkdir mine
"$program" tokenize --tokenizer ranks --splitter gpt2 text -o mine/train.bin >out 2>&1 || fail "tokenize: status $?"
small=(train --data mine --seq-len 6 --batch-size 2 --max-batches 1 --epochs 1 --emsize 8 --nhid 8 --nlayers 1 --nhead 2)
"$program" "${small[@]}" --tokenizer ranks --splitter gpt2 >out 2>&1 || fail "its own tokenizer: status $?"
refused 1 "mine/train.bin: these are the tokens of another tokenizer: train.manifest.json says one of 256 tokens" "$program" \
    "${small[@]}" --tokenizer ranks --splitter qwen2
