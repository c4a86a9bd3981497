#!/bin/bash
# Training a part of a published model: what is frozen stays as it is in the file, and the rest has
# the same bits on any layout and after a resume.
set -euo pipefail
fail() { echo "FAILED: $1"; exit 1; }
[ -x "$SLUICE_PROGRAM" ] || { echo "skipped: $SLUICE_PROGRAM is not there"; exit 77; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
models=$SLUICE_SOURCE_DIR/tests/models

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
layouts=("--pp 2" "--dp 2 --zero" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-h1")

# same_on_layouts FILE ARGUMENTS...: the file that is saved does not depend on the layout.
same_on_layouts() {
    local file=$1 expected
    shift
    local job=(train --data "$scratch/data" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 --quiet "$@")
    "$SLUICE_PROGRAM" "${job[@]}" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 3
    expected=$(sha256sum <"$scratch/whole/$file")
    for layout in "${layouts[@]}"; do
        # shellcheck disable=SC2086 # several words
        "$SLUICE_PROGRAM" "${job[@]}" $layout --save "$scratch/cut"
        [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights with $layout: $*"
    done
    "$SLUICE_PROGRAM" "${job[@]}" --pp 2 --resume "$scratch/run/step-00000003" --save "$scratch/cut"
    [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights after a resume: $*"
    # In two processes, where there is MPI, which leaks.
    if ASAN_OPTIONS=detect_leaks=0 "$SLUICE_PROGRAM" launch --nproc 2 "$SLUICE_PROGRAM" "${job[@]}" --pp 2 \
        --save "$scratch/cut" 2>"$scratch/err"; then
        [ "$(sha256sum <"$scratch/cut/$file")" = "$expected" ] || fail "other weights in two processes: $*"
    else
        grep -q 'sluice_mpi.so was not found' "$scratch/err" || fail "two processes: $(cat "$scratch/err")"
    fi
    rm -rf "$scratch/run"
}

refuse() {
    local sentence=$1
    shift
    if "$SLUICE_PROGRAM" "$@" >"$scratch/printed" 2>&1; then fail "not refused: $*"; fi
    grep -qF -- "$sentence" "$scratch/printed" || fail "expected \"$sentence\", got $(cat "$scratch/printed")"
    [ ! -e "$scratch/none" ] || fail "something was saved: $*"
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
"$SLUICE_PROGRAM" "${other[@]}" --freeze '*.mlp.*' --save-dir "$scratch/frozen"
refuse 'freeze "*.mlp.*", this run has freeze not given' "${other[@]}" --resume "$scratch/frozen"
refuse 'no parameter has a name of the form "h.0.*": give one such as "transformer.wte.weight"' \
    train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --freeze 'h.0.*' --save "$scratch/none" --quiet
refuse 'freeze: "*" leaves no parameter to train' \
    train --init "$models/gpt2" --data "$scratch/data" --batch-size 2 --freeze '*' --save "$scratch/none" --quiet
echo "fine-tuning: ok"
