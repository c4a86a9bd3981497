#!/bin/bash
# llm.c's model files of a GPT-2: read with --init, and written by `sluice export --llmc`.
. "$(dirname "$0")/../support/script.sh"
small=$source/tests/models/gpt2

refused 2 "export needs --init DIR and --output DIR, --gguf FILE or --llmc FILE" "$program" export --init "$small"
refused 2 "--llmc FILE is what is written, so it cannot be combined with --output" "$program" \
    export --init "$small" --llmc "$scratch/x.bin" -o "$scratch/x"
refused 2 "--gguf and --llmc cannot be combined" "$program" export --init "$small" --llmc "$scratch/x.bin" --gguf "$scratch/x.gguf"
refused 1 "llm.c's file is of a GPT-2, and the model is of the family llama" "$program" \
    export --init "$source/tests/models/llama3" --llmc "$scratch/x.bin"
mkdir "$scratch/other"
cp "$small/model.safetensors" "$scratch/other"
sed 's/gelu_new/relu/' "$small/config.json" >"$scratch/other/config.json"
refused 1 "llm.c's file is of a GPT-2 with the activation gelu_new, and the model has another" "$program" \
    export --init "$scratch/other" --llmc "$scratch/x.bin"
rm -r "$scratch/other"
[ "$(ls -A)" = $'err\nout' ] || fail "files are left: $(ls -A)"

check=0
"$python" -B "$source/tests/models/llmc_file.py" write "$small" "$scratch/f32.bin" || check=$?
[ "$check" = 0 ] || exit "$check"
"$python" -B "$source/tests/models/llmc_file.py" write "$small" "$scratch/bf16.bin" bf16

# What is exported is what llm.c's definition says, and what is read from it gives the same bits as the directory.
"$program" export --init "$small" --llmc "$scratch/written.bin"
"$python" -B "$source/tests/models/llmc_file.py" equal "$small" "$scratch/written.bin" || fail "another f32 file"
"$program" export --init "$small" --llmc "$scratch/written.bin" --save-dtype bf16
cmp "$scratch/written.bin" "$scratch/bf16.bin" || fail "another bf16 file"

evaluate() { "$program" eval --init "$1" --data "$small/rows.jsonl" 2>&1; }
evaluate "$small" >"$scratch/expected"
grep -q 'loss' "$scratch/expected" || fail "no loss: $(cat "$scratch/expected")"
evaluate "$scratch/f32.bin" >"$scratch/found"
diff "$scratch/expected" "$scratch/found" || fail "another loss from llm.c's file"
for type in f32 bf16; do
    "$program" export --init "$scratch/$type.bin" -o "$scratch/model" >/dev/null
    "$program" export --init "$scratch/model" --llmc "$scratch/again.bin" --save-dtype "$type"
    cmp "$scratch/again.bin" "$scratch/$type.bin" || fail "$type: another file after the way there and back"
done

# Trained with it, in a pipeline and alone: the same weights; and with adapters, whose checkpoints find it again.
mkdir "$scratch/data"
for split in train valid test; do cp "$small/rows.jsonl" "$scratch/data/$split.jsonl"; done
train() { "$program" train --data "$scratch/data" --batch-size 2 --seq-len 48 --epochs 1 "$@" >"$scratch/out" 2>&1 ||
    fail "train $*: $(cat "$scratch/out")"; }
train --init "$scratch/f32.bin" --pp 2 --chunks 2 --save "$scratch/piped"
train --init "$small" --pp 1 --chunks 2 --dropout 0 --save "$scratch/alone"
cmp "$scratch/piped/model.safetensors" "$scratch/alone/model.safetensors" || fail "other weights after training"
train --init "$scratch/f32.bin" --lora --save-dir "$scratch/kept" --keep 1
"$program" eval --init "$scratch/kept/best" --data "$small/rows.jsonl" ||
    fail "a checkpoint of adapters does not open llm.c's file"

# Hostile files: each ends in one sentence.
mkfifo "$scratch/pipe"
status=0
timeout 20 "$program" eval --init "$scratch/pipe" --data "$small/rows.jsonl" >"$scratch/out" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a pipe as a model: status $status"
head -c 100 "$scratch/f32.bin" >"$scratch/bad.bin"
refused 1 "a model of llm.c begins with 1024 bytes, but the file has 100" "$program" eval --init "$scratch/bad.bin" --data "$small/rows.jsonl"
head -c 5000 "$scratch/f32.bin" >"$scratch/bad.bin"
refused 1 "it was cut short, or its header is wrong" "$program" eval --init "$scratch/bad.bin" --data "$small/rows.jsonl"
refused 2 "f32.bin is an input and must not be overwritten" "$program" export --init "$scratch/f32.bin" --llmc "$scratch/f32.bin"
