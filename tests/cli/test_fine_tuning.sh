#!/bin/bash
# Training a part of a published model: what is frozen stays as it is in the file, and the rest has
# the same bits on any layout and after a resume.
. "$(dirname "$0")/../support/script.sh"

# The checksum of tensor $2 in the file $1.
tensor_sum() {
    local header range
    header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    range=$(head -c $((8 + header)) "$1" | tail -c "$header" | grep -oP "\"$2\":\{[^}]*\"data_offsets\":\[\K[0-9,]+")
    tail -c +$((9 + header + ${range%,*})) "$1" | head -c $((${range#*,} - ${range%,*})) | sha256sum
}
same_tensor() { [ "$(tensor_sum "$1" "$3")" = "$(tensor_sum "$2" "$3")" ]; }

mkdir "$scratch/data"
awk 'BEGIN { for (row = 0; row < 11; row++) {
    printf "{\"input_ids\": [%d", row
    for (i = 0; i < 3 + row * 7 % 13; i++) printf ", %d", (row * 31 + i * i * 17) % 97
    print "]}" } }' >"$scratch/data/train.jsonl"
head -n 5 "$scratch/data/train.jsonl" >"$scratch/data/valid.jsonl"
layouts=("--pp 2 --balance 2,3" "--dp 2 --zero" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-h1")

# same_on_layouts FILE ARGUMENTS...: the file that is saved does not depend on the layout.
same_on_layouts() {
    local file=$1 expected
    shift
    rm -rf "$scratch/whole" "$scratch/cut"
    local job=(train --data "$scratch/data" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 --quiet "$@")
    "$program" "${job[@]}" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 3
    expected=$(sha256sum <"$scratch/whole/$file")
    for layout in "${layouts[@]}"; do
        # shellcheck disable=SC2086 # several words
        "$program" "${job[@]}" $layout --save "$scratch/cut"
        [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights with $layout: $*"
    done
    "$program" "${job[@]}" --pp 2 --resume "$scratch/run/step-00000003" --save "$scratch/cut"
    [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights after a resume: $*"
    # In two processes, where there is MPI, which leaks.
    if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${job[@]}" --pp 2 \
        --save "$scratch/cut" 2>"$scratch/err"; then
        [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights in two processes: $*"
    else
        grep -q 'sluice_mpi.so was not found' "$scratch/err" || fail "two processes: $(cat "$scratch/err")"
    fi
    rm -rf "$scratch/run"
}


# ---- Frozen parameters: those of a stage that trains nothing, and some of every stage ----

job=(--init "$models/llama3" --freeze 'model.embed_tokens.*,model.layers.0.*')
same_on_layouts model.safetensors "${job[@]}"
for name in model.embed_tokens.weight model.layers.0.mlp.up_proj.weight model.layers.0.input_layernorm.weight; do
    same_tensor "$models/llama3/model.safetensors" "$scratch/whole/model.safetensors" "$name" || fail "$name is not frozen"
done
for name in model.layers.1.mlp.up_proj.weight model.norm.weight; do
    if same_tensor "$models/llama3/model.safetensors" "$scratch/whole/model.safetensors" "$name"; then fail "$name is not trained"; fi
done
same_on_layouts model.safetensors --init "$models/gpt2" --freeze '*.mlp.*,*.ln_?.*'
same_tensor "$models/gpt2/model.safetensors" "$scratch/whole/model.safetensors" transformer.h.1.ln_2.bias || fail "GPT-2's norm is not frozen"
other=(train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --epochs 1 --quiet)
"$program" "${other[@]}" --freeze '*.mlp.*' --save-dir "$scratch/frozen"
refused 1 'freeze "*.mlp.*", this run has freeze not given' "$program" "${other[@]}" --resume "$scratch/frozen"
refused 1 'no parameter has a name of the form "h.0.*": give one such as "transformer.wte.weight"' "$program" \
    train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --freeze 'h.0.*' --save "$scratch/none" --quiet
refused 1 'freeze: "*" leaves no parameter to train' "$program" \
    train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --freeze '*' --save "$scratch/none" --quiet

# ---- Saved in bf16: the numbers of f32, rounded, whoever writes them ----

same_on_layouts model.safetensors --init "$models/qwen3" --save-dtype bf16
mv "$scratch/whole" "$scratch/narrow"
"$program" train --data "$scratch/data" --init "$models/qwen3" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 \
    --quiet --save "$scratch/whole"
"$program" export --init "$scratch/whole" --save-dtype bf16 -o "$scratch/exported"
diff -r "$scratch/narrow" "$scratch/exported" || fail "export rounds otherwise than --save"
"$program" eval --init "$scratch/narrow" --data "$scratch/data/valid.jsonl" >"$scratch/printed"
grep -q '"eos_token_id": 2,' "$scratch/narrow/config.json" || fail "the id of the last token was not kept"
rm -rf "$scratch/narrow" "$scratch/exported" "$scratch/whole"

# ---- generation_config.json: as it came, also where a model is replaced, and after a resume ----

cp -r "$models/qwen3" "$scratch/base"
printf '{"eos_token_id": [2, 5],\n "temperature": 0.6}\n' >"$scratch/base/generation_config.json"
is_kept() { cmp "$scratch/base/generation_config.json" "$1/generation_config.json" || fail "generation_config.json of $1"; }
job=(train --data "$scratch/data" --init "$scratch/base" --batch-size 2 --epochs 2 --quiet)
for _ in 1 2; do
    "$program" "${job[@]}" --save "$scratch/whole"
    is_kept "$scratch/whole"
done
"$program" "${job[@]}" --pp 2 --dp 2 --shards 2 --save "$scratch/cut" --save-dir "$scratch/run" --save-every 3
is_kept "$scratch/cut"
is_kept "$scratch/run/best"
is_kept "$scratch/run/step-00000003"
cp -r "$scratch/run/step-00000003" "$scratch/step"
"$program" train --resume "$scratch/step" --save "$scratch/cut" --quiet
is_kept "$scratch/cut"
"$program" export --init "$scratch/whole" -o "$scratch/exported"
is_kept "$scratch/exported"
"$program" checkpoint convert "$scratch/whole" "$scratch/converted" --shard-size 8K >"$scratch/printed"
is_kept "$scratch/converted"
"$program" "${job[@]}" --lora --save "$scratch/adapter"
[ ! -e "$scratch/adapter/generation_config.json" ] || fail "an adapter alone has a generation_config.json"
rm -rf "$scratch/run" "$scratch/step" "$scratch/whole" "$scratch/cut" "$scratch/exported" "$scratch/converted" "$scratch/adapter"

# ---- Adapters: PEFT's losses (models/*/lora, parity/test_peft.py), and the same bits on any layout ----

recipe=(--dropout 0 --lr 3e-3 --lr-schedule constant --weight-decay 0.1 --weight-decay-for all --clip 0 --no-shuffle)
while read -r family loss rest; do
    rows=$models/$family/rows.jsonl
    adapted=(--init "$models/$family" --adapter "$models/$family/lora")
    loss_of() { "$program" eval "$@" --data "$rows" --json | grep -oP '"loss": \K[0-9.]*'; }
    near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a - b < 1e-5 && b - a < 1e-5) }' || fail "$3: $1, not $2"; }
    near "$(loss_of "${adapted[@]}")" "$loss" "the adapter of $family"
    "$program" export "${adapted[@]}" --merge -o "$scratch/merged"
    near "$(loss_of --init "$scratch/merged")" "$loss" "the merged model of $family"
    "$program" train "${adapted[@]}" --data "$rows" --batch-size 2 --epochs 10 "${recipe[@]}" --log-json "$scratch/log" --quiet
    losses=$(sed -n 's/^{"record":"step".*"loss":\([0-9.e+-]*\).*/\1/p' "$scratch/log")
    [ "$(wc -w <<<"$losses")" = 10 ] || fail "the adapter of $family took other steps: $losses"
    paste <(tr ' ' '\n' <<<"$loss $rest") <(echo "$losses") | while read -r one other; do near "$one" "$other" "a step of the adapter of $family"; done
    prompt=(--prompt-ids "5,17,3" --tokens 12 --greedy)
    [ "$("$program" generate "${adapted[@]}" "${prompt[@]}")" = \
        "$("$program" generate --init "$scratch/merged" "${prompt[@]}")" ] || fail "the merged model of $family says something else"
    same_on_layouts adapter_model.safetensors --init "$models/$family" --lora --lora-targets all-linear --lora-rank 4 --lora-dropout 0.1
    [ "$(ls "$scratch/whole")" = "adapter_config.json
adapter_model.safetensors" ] || fail "more than the adapter of $family was saved: $(ls "$scratch/whole")"
done <<'GOLDEN'
gpt2 5.152376651763916 5.022397041320801 4.897359848022461 4.784701347351074 4.685606956481934 4.597812175750732 4.520626544952393 4.451845645904541 4.387718200683594 4.326142311096191
llama3 4.994382858276367 4.851271152496338 4.7231364250183105 4.6072306632995605 4.499922752380371 4.398591041564941 4.3038811683654785 4.218337535858154 4.142779350280762 4.076268672943115
GOLDEN

# It goes on from an adapter; what is saved is that of a run with the adapter's options.
same_on_layouts adapter_model.safetensors --init "$models/llama3" --adapter "$models/llama3/lora"
diff <(grep -v base_model "$scratch/whole/adapter_config.json" | grep -A4 target_modules) - <<'TARGETS' || fail "the targets of the adapter changed"
  "target_modules": [
    "q_proj",
    "down_proj",
    "v_proj"
  ],
TARGETS
if same_tensor "$models/llama3/lora/adapter_model.safetensors" "$scratch/whole/adapter_model.safetensors" \
    base_model.model.model.layers.0.mlp.down_proj.lora_B.weight; then fail "the adapter was not trained"; fi

# In bf16, and with A as it was drawn.
same_on_layouts adapter_model.safetensors --init "$models/gpt2" --lora --lora-targets all-linear --precision bf16 --freeze '*.lora_A.*'
a=base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight
cp "$scratch/whole/adapter_model.safetensors" "$scratch/first"
"$program" train --data "$scratch/data" --init "$models/gpt2" --batch-size 2 --max-batches 1 --epochs 1 --lora \
    --lora-targets all-linear --freeze '*.lora_A.*' --save "$scratch/whole" >"$scratch/printed"
same_tensor "$scratch/first" "$scratch/whole/adapter_model.safetensors" "$a" || fail "A was trained, or drawn otherwise"
grep -q '^Trained parameters: 4,608$' "$scratch/printed" || fail "other parameters are trained: $(cat "$scratch/printed")"

# Saved in bf16, by all layouts: half the bytes but for the names, and nearly the same loss.
same_on_layouts adapter_model.safetensors --init "$models/llama3" --lora --lora-targets all-linear --save-dtype bf16
mv "$scratch/whole" "$scratch/narrow"
"$program" train --data "$scratch/data" --init "$models/llama3" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 --lora \
    --lora-targets all-linear --quiet --save "$scratch/whole"
rows=$scratch/data/valid.jsonl
awk -v a="$(loss_of --init "$models/llama3" --adapter "$scratch/whole")" \
    -v b="$(loss_of --init "$models/llama3" --adapter "$scratch/narrow")" \
    'BEGIN { exit !(a != b && a - b < 1e-3 && b - a < 1e-3) }' || fail "an adapter of bf16 computes something else"
diff "$scratch/whole/adapter_config.json" "$scratch/narrow/adapter_config.json" || fail "the config of an adapter of bf16"
rm -rf "$scratch/narrow" "$scratch/whole"

# A base of bf16 is in memory once: its adapter has the bits, and its base the checksum, of one whose file has the same numbers in f32.
for family in gpt2 qwen3; do
    "$program" export --init "$models/$family" --save-dtype bf16 -o "$scratch/narrow"
    "$program" export --init "$scratch/narrow" -o "$scratch/wide"
    same_on_layouts adapter_model.safetensors --init "$scratch/narrow" --lora --lora-targets all-linear --precision bf16
    mv "$scratch/whole" "$scratch/once"
    "$program" train --data "$scratch/data" --init "$scratch/wide" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 \
        --lora --lora-targets all-linear --precision bf16 --quiet --save "$scratch/whole"
    cmp "$scratch/once/adapter_model.safetensors" "$scratch/whole/adapter_model.safetensors" || fail "another adapter of bf16 $family"
    "$program" eval --init "$scratch/narrow" --adapter "$scratch/once" --precision bf16 --data "$scratch/data/valid.jsonl" >"$scratch/printed"
    "$program" eval --init "$scratch/wide" --adapter "$scratch/once" --precision bf16 --data "$scratch/data/valid.jsonl" |
        cmp - "$scratch/printed" || fail "another loss of bf16 $family"
    rm -rf "$scratch/narrow" "$scratch/wide" "$scratch/once" "$scratch/whole"
done

# The last layer alone, with adapters and without.
same_on_layouts adapter_model.safetensors --init "$models/llama3" --lora --train-layers 1
if grep -q 'layers\.0\.' "$scratch/whole/adapter_model.safetensors"; then fail "layer 0 has an adapter"; fi
"$program" eval --init "$models/llama3" --adapter "$scratch/whole" --data "$scratch/data/valid.jsonl" >"$scratch/printed"
mv "$scratch/whole" "$scratch/last"
job=(train --data "$scratch/data" --init "$models/llama3" --adapter "$scratch/last" --batch-size 2 --epochs 2 --quiet)
"$program" "${job[@]}" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 3
cp -r "$scratch/run/step-00000006" "$scratch/step"
"$program" train --resume "$scratch/step" --save "$scratch/cut" --quiet
cmp "$scratch/whole/adapter_model.safetensors" "$scratch/cut/adapter_model.safetensors" || fail "other weights after a resume of an adapter's run"
rm -rf "$scratch/run" "$scratch/step" "$scratch/whole" "$scratch/cut"
same_on_layouts model.safetensors --init "$models/gpt2" --train-layers 1
same_tensor "$models/gpt2/model.safetensors" "$scratch/whole/model.safetensors" transformer.wte.weight || fail "the embedding was trained"
if same_tensor "$models/gpt2/model.safetensors" "$scratch/whole/model.safetensors" transformer.h.1.ln_2.bias; then fail "layer 1 is frozen"; fi

# A checkpoint has the adapter alone, and its base's path and checksum: it is small, is resumed and opened by its directory
# where the base is still there, and with --init where it has moved; another base is refused.
rm -rf "$scratch/base" "$scratch/merged"
cp -r "$models/llama3" "$scratch/base"
job=(train --data "$scratch/data" --init "$scratch/base" --batch-size 2 --epochs 2 --lora --use-rslora --lr 1e-3 --quiet)
rm -rf "$scratch/whole" "$scratch/cut"
"$program" "${job[@]}" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 3
adapter=$scratch/whole/adapter_model.safetensors
loss=$(loss_of --init "$models/llama3" --adapter "$scratch/whole")
near "$(loss_of --init "$scratch/run/best")" "$loss" "the checkpoint's best model"
near "$(loss_of --init "$models/llama3" --adapter "$scratch/run/best")" "$loss" "the checkpoint's best adapter"
mv "$scratch/run/step-00000006" "$scratch/step"
[ "$(cd "$scratch/step" && echo *)" = \
    "adapter_config.json adapter_model.safetensors best.safetensors optimizer.safetensors state.json" ] || fail "other files: $(ls "$scratch/step")"
bytes_of() { cat "$@" | wc -c; }
[ "$(bytes_of "$scratch"/step/*.safetensors)" -lt $((4 * $(bytes_of "$adapter") + 1000)) ] || fail "a checkpoint is larger than an adapter and its state"
[ "$(bytes_of "$scratch"/step/*)" -lt $(($(bytes_of "$models/llama3/model.safetensors") / 2)) ] || fail "a checkpoint has the base"
"$program" checkpoint verify "$scratch/step" >"$scratch/printed"
resumed() { # ARGUMENTS...: from the checkpoint; to the same bits
    rm -rf "$scratch/cut"
    "$program" train --resume "$scratch/step" --save "$scratch/cut" --quiet "$@"
    cmp "$adapter" "$scratch/cut/adapter_model.safetensors" || fail "other weights after a resume $*"
}
resumed
refused 1 'lora-rank 8, this run has lora-rank 4' "$program" "${job[@]}" --lora-rank 4 --resume "$scratch/step" --save "$scratch/none"
"$program" export --init "$scratch/run/best" --merge -o "$scratch/merged"
near "$(loss_of --init "$scratch/merged")" "$loss" "the merged checkpoint"
refused 2 'export needs --merge for a model with an adapter' "$program" export --init "$scratch/run/best" -o "$scratch/none"
refused 1 "base/config.json is an input and must not be overwritten" "$program" \
    train --data "$scratch/data" --init "$scratch/run/best" --batch-size 2 --save "$scratch/none" --log-json "$scratch/base/config.json"
"$program" train --data "$scratch/data" --init "$scratch/run/best" --batch-size 2 --save-dir "$scratch/next" --quiet
grep -q "\"path\": \"$(realpath "$scratch/base")\"" "$scratch/next/best/state.json" || fail "a run from a checkpoint names another base"
mv "$scratch/base" "$scratch/moved"
resumed --init "$scratch/moved" --pp 2
refused 1 'a checkpoint of adapters needs the model that they were made for (--init): ' "$program" train --resume "$scratch/step" --save "$scratch/none"
refused 1 "best: it has adapters alone, and their model cannot be opened (it can be given with --init, and the adapters with --adapter): $(realpath "$scratch")/base: " "$program" \
    eval --init "$scratch/run/best" --data "$scratch/data/valid.jsonl"
refused 1 "step: the adapter was made for weights with the checksum" "$program" train --resume "$scratch/step" --init "$scratch/merged" --save "$scratch/none"
mv "$scratch/merged" "$scratch/base"
refused 1 "best: the adapter was made for weights with the checksum" "$program" \
    eval --init "$scratch/base" --adapter "$scratch/run/best" --data "$scratch/data/valid.jsonl"
refused 1 "best: the adapter was made for weights with the checksum" "$program" eval --init "$scratch/run/best" --data "$scratch/data/valid.jsonl"
rm -rf "$scratch/run" "$scratch/next"

# Two processes, where there is MPI, write a file each.
if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${job[@]}" --init "$scratch/moved" --dp 1 --pp 2 \
    --chunks 1 --save-dir "$scratch/run" --save-every 3 2>"$scratch/err"; then
    [ -e "$scratch/run/best/adapter_model-00002-of-00002.safetensors" ] || fail "no file of each process: $(ls "$scratch/run/best")"
    near "$(loss_of --init "$scratch/moved" --adapter "$scratch/run/best")" "$loss" "the adapter of two processes"
    near "$(loss_of --init "$scratch/run/best")" "$loss" "the checkpoint of two processes"
    rm -rf "$scratch/step"
    mv "$scratch/run/step-00000006" "$scratch/step"
    resumed
    # On a text, the ranks between the first and the last stage have none.
    printf 'a b c d e f g\n%.0s' {1..400} >"$scratch/text.txt"
    "$program" train --data "$scratch/text.txt" --emsize 8 --nhid 8 --nlayers 1 --nhead 2 --bptt 8 --batch-size 2 --epochs 1 \
        --max-batches 1 --quiet --save "$scratch/words" >"$scratch/printed"
    ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 3 "$program" train --data "$scratch/text.txt" --tokenizer "$scratch/words" \
        --init "$models/llama3" --lora --bptt 8 --batch-size 2 --max-batches 2 --eval-max-batches 1 --epochs 1 --quiet --dp 1 --pp 3 \
        --balance 2,2,1 --save "$scratch/three" --save-dir "$scratch/next" >"$scratch/printed" 2>&1 || fail "three processes: $(cat "$scratch/printed")"
    [ "$(cd "$scratch/three" && echo *)" = "adapter_config.json adapter_model.safetensors" ] || fail "other files of three processes"
else
    grep -q 'sluice_mpi.so was not found' "$scratch/err" || fail "two processes: $(cat "$scratch/err")"
fi
rm -rf "$scratch/run" "$scratch/next" "$scratch/three"

# ---- Bad input ----

refused 1 "--balance must add up to the model's 5 modules (embedding, 2 layers, norm, head), got 4" "$program" \
    train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --pp 2 --balance 2,2 --save "$scratch/none"
job=(train --data "$scratch/data" --init "$models/llama3" --batch-size 2 --save "$scratch/none" --quiet)
refused 1 'lora: no layer of the model is called "qkv": there are q_proj,k_proj' "$program" "${job[@]}" --lora --lora-targets q_proj,qkv
refused 1 'lora: the rank must not be above the widths of model.layers.0.self_attn.v_proj, 32 in and 16 out, got 17' "$program" "${job[@]}" --lora --lora-rank 17
refused 2 '--lora-targets must be names of layers with commas between them' "$program" "${job[@]}" --lora --lora-targets q_proj,,v_proj
refused 2 '--lora-rank needs --lora' "$program" "${job[@]}" --lora-rank 4
refused 2 '--lora needs --init' "$program" train --data "$scratch/data" --lora --save "$scratch/none"
refused 2 '--adapter has adapters with options of their own, so it cannot be combined with --lora' "$program" \
    "${job[@]}" --adapter "$models/llama3/lora" --lora
refused 1 'lora: no layer of the model is called "c_attn"' "$program" "${job[@]}" --adapter "$models/gpt2/lora"
refused 1 "$scratch/no/adapter_config.json" "$program" "${job[@]}" --adapter "$scratch/no"
cp -r "$models/llama3/lora" "$scratch/dora"
sed -i 's/"use_dora": false/"use_dora": true/' "$scratch/dora/adapter_config.json"
refused 1 'dora/adapter_config.json: it has use_dora true, which sluice does not serve' "$program" "${job[@]}" --adapter "$scratch/dora"
sed -i 's/"use_dora": true/"use_dora": false/; s/"r": 4/"r": 3/' "$scratch/dora/adapter_config.json"
refused 1 'should be F32 [3, 56], but is F32 [4, 56]' "$program" "${job[@]}" --adapter "$scratch/dora"
"$program" export --init "$models/llama3" --adapter "$models/llama3/lora" --merge -o "$scratch/merged"
"$program" train --init "$scratch/merged" --data "$scratch/data" --batch-size 2 --lora --save "$scratch/other" --quiet
"$program" eval --init "$scratch/merged" --adapter "$scratch/other" --data "$scratch/data/valid.jsonl" >"$scratch/printed"
refused 1 'other/adapter_model.safetensors: the adapter was made for weights with the checksum' "$program" "${job[@]}" --adapter "$scratch/other"
before=$(sha256sum <"$scratch/merged/model.safetensors")
refused 1 'merged: it has a model, and an adapter alone is saved: save elsewhere' "$program" \
    train --data "$scratch/data" --init "$scratch/merged" --batch-size 2 --lora --save "$scratch/merged" --quiet
[ "$(sha256sum <"$scratch/merged/model.safetensors")" = "$before" ] || fail "the base was overwritten"
refused 2 '--merge needs --adapter, or a checkpoint of adapters as --init' "$program" export --init "$models/llama3" --merge -o "$scratch/none"
refused 2 'export needs --init DIR and --output DIR' "$program" export --init "$models/llama3" --adapter "$models/llama3/lora" --merge
refused 2 'export needs --merge for a model with an adapter' "$program" export --init "$models/llama3" --adapter "$models/llama3/lora" -o "$scratch/none"
refused 2 'is an input and must not be overwritten' "$program" export --init "$models/llama3" --adapter "$scratch/dora" --merge -o "$scratch/dora"
[ ! -e "$scratch/none" ] || fail "something was saved"
echo "fine-tuning: ok"
