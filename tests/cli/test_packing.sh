#!/bin/bash
# sluice train --pack: rows of several documents have the losses of the documents alone, and the same bits on any layout, in
# two processes and after a resume; nothing of a document is lost.
. "$(dirname "$0")/../support/script.sh"

fields_of() { grep '^{"record":"step"' "$1" | grep -oP "\"$2\":\\K[0-9.e+-]+"; } # LOG FIELD
sum_of() { fields_of "$1" "$2" | awk '{ sum += $1 } END { print sum }'; }
lines() { # ROWS LONGEST: of other lengths, and of some only the end has targets
    awk -v rows="$1" -v longest="$2" 'BEGIN { for (row = 0; row < rows; row++) {
        length_ = 2 + (row * 31 + row * row * 7) % (longest - 1); ids = labels = ""
        for (i = 0; i < length_; i++) {
            id = (row * 31 + i * i * 17) % 97
            ids = ids (i ? ", " : "") id
            labels = labels (i ? ", " : "") (row % 3 == 1 && i < length_ / 2 ? -100 : id)
        }
        printf "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids, labels } }'
}

# ---- A batch of packed rows is a batch of their documents ----

lines 14 20 >all.jsonl
recipe=(--dropout 0 --lr 3e-3 --lr-schedule constant --weight-decay 0.1 --clip 1 --no-shuffle --epochs 6 --chunks 1 --quiet)
for family in gpt2 llama3 qwen3; do
    runs "$program" train --init "$models/$family" --data all.jsonl --batch-size 14 "${recipe[@]}" --log-json alone.log
    runs "$program" train --init "$models/$family" --data all.jsonl --pack --seq-len 24 --batch-size 1 "${recipe[@]}" --no-quiet --log-json rows.log
    rows=$(grep -oP ': 14 documents in \K[0-9]+(?= rows$)' out) || fail "the screen does not say how many rows: $(cat out)"
    grep -q "\"documents\":14,\"rows\":$rows" rows.log || fail "the log does not say how many rows"
    [ "$rows" -lt 10 ] || fail "$rows rows of 14 documents"
    runs "$program" train --init "$models/$family" --data all.jsonl --pack --seq-len 24 --batch-size "$rows" "${recipe[@]}" --log-json packed.log
    [ "$(fields_of packed.log loss | wc -l)" = 6 ] || fail "not a batch of all rows"
    [ "$(fields_of packed.log targets)" = "$(fields_of alone.log targets)" ] || fail "other targets when packed"
    paste <(fields_of alone.log loss) <(fields_of packed.log loss) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $1) exit 1 }' ||
        fail "other losses of $family when packed: $(fields_of alone.log loss), $(fields_of packed.log loss)"
    awk -v alone="$(sum_of alone.log padding)" -v packed="$(sum_of packed.log padding)" 'BEGIN { exit !(packed < 0.5 * alone) }' ||
        fail "as much padding when packed"
done
# So are validation and test, in fewer batches.
mkdir sets
lines 14 20 >sets/train.jsonl
lines 17 16 >sets/valid.jsonl
lines 9 20 | tail -n 7 >sets/test.jsonl
losses_of() { grep -oP '"split":"[a-z]+".*?"loss":\K[0-9.e+-]+' "$1"; }
recipe_of_sets=(--batch-size 7 --eval-batch-size 3 --lr 0 --dropout 0 --epochs 1 --quiet)
for family in gpt2 llama3; do
    runs "$program" train --init "$models/$family" --data sets "${recipe_of_sets[@]}" --log-json single.log
    for layout in "--pp 1" "--pp 2" "--dp 2 --batch-size 1"; do
        # shellcheck disable=SC2086 # several words
        runs "$program" train --init "$models/$family" --data sets "${recipe_of_sets[@]}" --pack --seq-len 40 --batch-size 2 $layout --log-json several.log
        [ "$(losses_of several.log | wc -l)" = 2 ] || fail "no two evaluations: $(cat several.log)"
        [ "$(grep -c . <(losses_of single.log))" = 2 ] || fail "no two evaluations: $(cat single.log)"
        paste <(losses_of single.log) <(losses_of several.log) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-6 * $1) exit 1 }' ||
            fail "other losses of $family in packed evaluations: $(losses_of single.log), $(losses_of several.log)"
    done
done

# The targets of a document that is cut, 49 tokens into rows of 24, stay.
awk 'BEGIN { printf "{\"input_ids\": [1"; for (i = 0; i < 46; i++) printf ", %d", i; print "]}" }' >>all.jsonl
runs "$program" train --init "$models/llama3" --data all.jsonl --pack --seq-len 24 --batch-size 1 "${recipe[@]}" --epochs 1 --log-json cut.log
[ "$(sum_of cut.log targets)" = $(($(fields_of alone.log targets | head -n 1) + 46)) ] || fail "a long document lost targets"

# ---- The same bits on any layout ----

lines 60 22 >train.jsonl
lines 5 20 >valid.jsonl
same_on_layouts() { # FILE ARGUMENTS...
    local file=$1 expected
    shift
    rm -rf whole run cut other
    local job=(train --data . --pack --seq-len 32 --batch-size 3 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 --quiet "$@")
    runs "$program" "${job[@]}" --save whole --save-dir run --save-every 3
    expected=$(sha256sum <"whole/$file")
    for layout in "--pp 2" "--dp 2 --zero" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-h1" "--pp 2 --recompute always" \
        "--pp 2 --resume run/step-00000003"; do
        # shellcheck disable=SC2086 # several words
        runs "$program" "${job[@]}" $layout --save cut
        [ "$(sha256sum <"cut/$file")" = "$expected" ] || fail "other weights with $layout: $*"
    done
    # In two processes, where there is MPI.
    for layout in "--dp 2" "--dp 1 --pp 2"; do
        # shellcheck disable=SC2086 # several words
        if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${job[@]}" $layout --save cut >out 2>err; then
            [ "$(sha256sum <"cut/$file")" = "$expected" ] || fail "other weights in two processes, $layout: $*"
        else
            grep -q 'sluice_mpi.so was not found' err || fail "two processes: $(cat err)"
        fi
    done
    if runs "$program" "${job[@]}" --no-pack --save other && [ "$(sha256sum <"other/$file")" = "$expected" ]; then fail "--pack changes nothing"; fi
}
same_on_layouts model.safetensors --init "$models/gpt2" --dropout 0.1
same_on_layouts model.safetensors --init "$models/qwen3" --precision bf16 --group-by-length
same_on_layouts adapter_model.safetensors --init "$models/llama3" --lora --lora-dropout 0.1
same_on_layouts model.safetensors --emsize 16 --nhid 16 --nlayers 2 --nhead 2 --dropout 0.1 --mask none

# ---- Bad input ----

refused 1 "pack true, this run has pack not given" "$program" train --resume run --no-pack --quiet
printf 'a text of words\n%.0s' {1..99} >words.txt
refused 1 "pack is for rows of JSON lines, which have lengths of their own, but the data are a text" "$program" \
    train --data words.txt --emsize 8 --nhid 8 --nlayers 1 --nhead 2 --pack
head -c 800 /dev/zero >tokens.bin
refused 1 "tokens.bin: pack is for rows of JSON lines, and these are token files, whose rows are full" "$program" \
    train --init "$models/llama3" --data tokens.bin --token-type uint16 --seq-len 8 --pack --quiet
refused 1 "train.jsonl: its 22 rows do not fill a batch of 60" "$program" train --init "$models/llama3" --data train.jsonl --pack --seq-len 32 --batch-size 60
echo "packing: ok"
