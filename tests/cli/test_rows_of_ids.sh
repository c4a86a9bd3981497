#!/bin/bash
# sluice train and eval on rows of ids: the losses of transformers (models/*/golden.safetensors), the
# same weights on any layout and after a resume, and bad rows refused before anything is written.
. "$(dirname "$0")/../support/script.sh"

recipe=(--dropout 0 --optimizer adamw --lr 3e-3 --lr-schedule constant --betas "0.9,0.95" --weight-decay 0.1 --clip 0
        --weight-decay-for all --no-shuffle --quiet)

# Each number of $2 within 1e-5 of that of $1.
check_close() {
    awk -v expected="$1" -v got="$2" 'BEGIN {
        count = split(expected, e, " ")
        if (split(got, g, " ") != count) exit 1
        for (i = 1; i <= count; i++) { d = e[i] - g[i]; if (d < 0) d = -d; if (d > 1e-5 * e[i]) exit 1 }
    }' || fail "$3: expected $1, got $2"
}
losses_of() { sed -n 's/^{"record":"step".*"loss":\([0-9.e+-]*\).*/\1/p' "$1" | tr '\n' ' '; }

while read -r family loss rest; do
    rows=$models/$family/rows.jsonl
    printed=$("$program" eval --init "$models/$family" --data "$rows" --json)
    check_close "$loss" "$(grep -oP '"loss": \K[0-9.]*' <<<"$printed")" "eval of $family"
    grep -q '"targets": 35}' <<<"$printed" || fail "eval of $family scores other targets: $printed"
    "$program" train --init "$models/$family" --data "$rows" --batch-size 2 --epochs 10 "${recipe[@]}" \
        --log-json "$scratch/$family.log" --save "$scratch/$family"
    check_close "$loss $rest" "$(losses_of "$scratch/$family.log")" "training of $family"
    [ ! -e "$scratch/$family/tokenizer.json" ] || fail "a tokenizer was saved where there is none"
    ! grep -q '"record":"eval"' "$scratch/$family.log" || fail "a single file has a validation"
    "$program" eval --init "$scratch/$family" --data "$rows" >"$scratch/printed"
done <<'GOLDEN'
gpt2 4.911003589630127 4.108849048614502 3.5871188640594482 3.1433911323547363 2.775508165359497 2.4520766735076904 2.1746504306793213 1.949763298034668 1.759734869003296 1.5931485891342163
llama3 4.804371356964111 4.055424213409424 3.5856211185455322 3.220750570297241 2.902416229248047 2.6134049892425537 2.372804880142212 2.1740856170654297 1.9819412231445312 1.811712622642517
qwen2 5.023949146270752 4.28419303894043 3.7359488010406494 3.3696916103363037 3.074800968170166 2.8133535385131836 2.5702719688415527 2.3538668155670166 2.1595161961151123 1.987184762954712
qwen3 4.991799354553223 4.182555198669434 3.687504768371582 3.283831834793091 2.9290549755096436 2.647770404815674 2.4214248657226562 2.212942600250244 2.028987407684326 1.8674756288528442
GOLDEN

# What a family decides where nothing is given, as a file of options that is read again.
for source in "--init $models/llama3 2e-05 48" "--init $models/llama3 --lora 0.0001 48" "--model smollm2-135m 0.0006 1024"; do
    read -ra words <<<"$source"
    "$program" train --data "$models/llama3/rows.jsonl" "${words[@]:0:${#words[@]}-2}" --batch-size 2 --print-config >"$scratch/config"
    for member in '"optimizer": "adamw"' '"betas": "0.9,0.95"' '"weight-decay-for": "matrices"' '"lr-schedule": "cosine"' \
        '"warmup-ratio": 0.03' '"clip": 1' '"shuffle": true' '"epochs": 1' '"dropout": 0' '"balance": "auto"' \
        "\"lr\": ${words[-2]}" "\"bptt\": ${words[-1]}"; do
        grep -qE "^ *$member,?$" "$scratch/config" || fail "$source: not $member"
    done
    "$program" train --config "$scratch/config" --print-config | cmp - "$scratch/config" || fail "$source: other options from a file"
done

# Where nothing else is asked for: of 80 steps, 3% are the warm-up, unless the rate stays as it is. A resume has the same.
default=(train --init "$models/llama3" --data "$models/llama3/rows.jsonl" --batch-size 1 --epochs 40 --quiet)
rates_of() { sed -n 's/^{"record":"step".*"lr":\([0-9.e+-]*\).*/\1/p' "$1" | head -n 3 | tr '\n' ' '; }
"$program" "${default[@]}" --log-json "$scratch/log" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 1 --keep 0
check_close "1e-5 2e-5 2e-5" "$(rates_of "$scratch/log")" "the warm-up"
"$program" train --resume "$scratch/run/step-00000001" --save "$scratch/cut" --quiet
[ "$(sum_of "$scratch/whole")" = "$(sum_of "$scratch/cut")" ] || fail "other weights after a resume within the warm-up"
"$program" "${default[@]}" --lr-schedule constant --log-json "$scratch/log"
check_close "2e-5 2e-5 2e-5" "$(rates_of "$scratch/log")" "a constant rate"
rm -rf "$scratch/run" "$scratch/whole" "$scratch/cut"

# Rows of other lengths, so that micro-batches and shards differ; a directory with every split.
mkdir "$scratch/data"
awk 'BEGIN { for (row = 0; row < 11; row++) {
    printf "{\"input_ids\": [%d", row
    for (i = 0; i < 3 + row * 7 % 13; i++) printf ", %d", (row * 31 + i * i * 17) % 97
    print "]}" } }' >"$scratch/data/train.jsonl"
head -n 5 "$scratch/data/train.jsonl" >"$scratch/data/valid.jsonl"
tail -n 3 "$scratch/data/train.jsonl" >"$scratch/data/test.jsonl"
job=(train --init "$models/qwen3" --data "$scratch/data" --batch-size 2 --shards 2 --chunks 2 --epochs 2 --lr 1e-3
     --quiet)
"$program" "${job[@]}" --save "$scratch/whole" --save-dir "$scratch/run" --save-every 3
# In two processes, where there is MPI, which leaks.
if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${job[@]}" --pp 2 \
    --save "$scratch/processes" 2>"$scratch/err"; then
    [ "$(sum_of "$scratch/processes")" = "$(sum_of "$scratch/whole")" ] || fail "other weights in two processes"
else
    grep -q 'sluice_mpi.so was not found' "$scratch/err" || fail "two processes: $(cat "$scratch/err")"
fi
for layout in "--pp 2" "--dp 2" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-h1"; do
    rm -rf "$scratch/cut"
    # shellcheck disable=SC2086 # several words
    "$program" "${job[@]}" $layout --save "$scratch/cut"
    [ "$(sum_of "$scratch/cut")" = "$(sum_of "$scratch/whole")" ] || fail "other weights with $layout"
done
"$program" "${job[@]}" --resume "$scratch/run/step-00000003" --save "$scratch/resumed"
[ "$(sum_of "$scratch/resumed")" = "$(sum_of "$scratch/whole")" ] || fail "other weights after a resume"

# Rows of similar lengths: less padding, the same rows, and the same bits on any layout and after a resume.
field_of() { grep '^{"record":"step"' "$1" | grep -oP "\"$2\":\K[0-9.]+" | awk '{ sum += $1 } END { print sum }'; }
rm -rf "$scratch/run"
"$program" "${job[@]}" --log-json "$scratch/cut.log"
[ "$(field_of "$scratch/cut.log" padding)" = 0 ] || fail "padding in micro-batches of a row"
job+=(--chunks 1)
grouped=("${job[@]}" --group-by-length)
"$program" "${job[@]}" --log-json "$scratch/plain.log"
"$program" "${grouped[@]}" --save "$scratch/grouped" --save-dir "$scratch/run" --save-every 3 --log-json "$scratch/grouped.log"
awk -v plain="$(field_of "$scratch/plain.log" padding)" -v grouped="$(field_of "$scratch/grouped.log" padding)" \
    'BEGIN { exit !(grouped > 0 && grouped < 0.8 * plain) }' || fail "as much padding with --group-by-length"
[ "$(sum_of "$scratch/grouped")" != "$(sum_of "$scratch/whole")" ] || fail "--group-by-length changes nothing"
for layout in "--pp 2" "--dp 2" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --resume $scratch/run/step-00000003"; do
    rm -rf "$scratch/cut"
    # shellcheck disable=SC2086 # several words
    "$program" "${grouped[@]}" $layout --save "$scratch/cut" --log-json "$scratch/cut.log"
    [ "$(sum_of "$scratch/cut")" = "$(sum_of "$scratch/grouped")" ] || fail "other weights of groups with $layout"
done
"$program" "${grouped[@]}" --dp 2 --log-json "$scratch/cut.log"
[ "$(field_of "$scratch/cut.log" padding)" = "$(field_of "$scratch/grouped.log" padding)" ] || fail "other padding with replicas"
"$program" "${grouped[@]}" --no-quiet >"$scratch/printed"
"$program" report "$scratch/plain.log" >"$scratch/page"
grep -q "padding, % of the tokens</th><td>[1-9]" "$scratch/page" || fail "the report does not say what is padding"
grep -q 'tokens/s | padding [0-9]*%$' "$scratch/printed" || fail "the screen does not say what is padding: $(cat "$scratch/printed")"

# The loss is the mean over all targets of the step, however these lie in shards and micro-batches: one backward over
# 12 rows, whose targets are few, many, or none in a third of them, and the step after it. The third step has no target.
awk 'BEGIN { for (row = 0; row < 36; row++) {
    printf "{\"input_ids\": [%d", row
    for (i = 1; i < 8; i++) printf ", %d", (row * 31 + i * i * 17) % 97
    printf "], \"labels\": [-100"
    for (i = 1; i < 8; i++) printf ", %d", row < 24 && i <= (row % 12 < 4 ? 0 : row % 12 - 4) ? (row * 31 + i * i * 17) % 97 : -100
    print "]}" } }' >"$scratch/uneven.jsonl"
uneven() { # OPTION...: the losses of three steps
    rm -rf "$scratch/uneven"
    "$program" train --init "$models/llama3" --data "$scratch/uneven.jsonl" --no-shuffle --optimizer sgd --lr 0.5 \
        --lr-schedule constant --clip 0 --dropout 0 --log-json "$scratch/uneven.log" --save "$scratch/uneven" "$@" \
        >"$scratch/printed" 2>&1 || fail "$*: $(cat "$scratch/printed")"
    grep -q "no row of step 3 has a target: it changed nothing" "$scratch/printed" || fail "$*: step 3 says nothing"
    grep -q '"step":3,"targets":0,"loss":null' "$scratch/uneven.log" || fail "$*: step 3 has a loss"
    losses_of "$scratch/uneven.log"
}
whole=$(uneven --batch-size 12 --chunks 1)
for cut in "--batch-size 12 --chunks 2" "--batch-size 12 --chunks 4" "--batch-size 12 --chunks 1 --accumulate 3" \
    "--batch-size 6 --shards 2" "--batch-size 3 --shards 4 --dp 2" "--batch-size 3 --shards 4 --dp 4 --pp 1" \
    "--batch-size 3 --shards 4 --pp 2 --dp 2 --zero" "--batch-size 4 --shards 3 --pp 2 --schedule zb-h1"; do
    # shellcheck disable=SC2086 # several words
    check_close "$whole" "$(uneven $cut)" "uneven targets with $cut"
done
uneven --batch-size 3 --shards 4 --chunks 2 >/dev/null
sum=$(sum_of "$scratch/uneven")
for layout in "--dp 2" "--dp 4" "--pp 2" "--dp 2 --pp 2 --zero"; do
    # shellcheck disable=SC2086 # several words
    uneven --batch-size 3 --shards 4 --chunks 2 $layout >/dev/null
    [ "$(sum_of "$scratch/uneven")" = "$sum" ] || fail "other weights of uneven targets with $layout"
done

refused 1 "with group-by-length true, this run has group-by-length not given" "$program" "${job[@]}" --resume "$scratch/run/step-00000003"
printf 'a text of words\n%.0s' {1..99} >"$scratch/words.txt"
refused 1 "group-by-length is for rows of JSON lines, which have lengths of their own, but the data are a text" "$program" \
    train --data "$scratch/words.txt" --emsize 8 --nhid 8 --nlayers 1 --nhead 2 --group-by-length --save "$scratch/none"
refused 1 "data/train.jsonl: slices need rows of one length, and JSON lines have lengths of their own: set slices to 1" "$program" "${job[@]}" --slices 2
echo '{"input_ids": [1, 97]}' >"$scratch/bad.jsonl"
refused 1 "bad.jsonl: line 1: number 2 of \"input_ids\" must be an id from 0 to 96, got 97" "$program" \
    train --init "$models/gpt2" --data "$scratch/bad.jsonl" --save "$scratch/none"
echo '{"input_ids": [1, 2]}' >"$scratch/few.jsonl"
refused 1 "few.jsonl: its 1 rows do not fill a batch of 2" "$program" train --init "$models/gpt2" --data "$scratch/few.jsonl" --batch-size 2 --save "$scratch/none"
awk 'BEGIN { printf "{\"input_ids\": [0"; for (i = 0; i < 48; i++) printf ",1"; print "]}" }' >"$scratch/long.jsonl"
refused 1 "its 49 tokens are more than the model's 48 positions" "$program" train --init "$models/gpt2" --data "$scratch/long.jsonl" --save "$scratch/none"
[ ! -e "$scratch/none" ] || fail "something was saved"

rm "$scratch/data/valid.jsonl"
refused 1 "data: it has rows, but no valid.jsonl" "$program" eval --init "$models/gpt2" --data "$scratch/data" --split valid
echo "a text" >"$scratch/text.txt"
refused 1 "gpt2: it has no tokenizer.json" "$program" eval --init "$models/gpt2" --data "$scratch/text.txt"
refused 1 "bad.jsonl: line 1: number 2" "$program" eval --init "$models/gpt2" --data "$scratch/bad.jsonl"

"$program" model --init "$models/llama3" --seq-len 4 >"$scratch/printed"
grep -q "DecoderLayer  *\[20, 4, 32\]" "$scratch/printed" || fail "--seq-len is not the length of a row: $(cat "$scratch/printed")"

"$program" model --model gpt2 >"$scratch/printed"
grep -q "Total parameters in model: 124,439,808" "$scratch/printed" || fail "gpt2 has other parameters"
refused 2 "--init has a model, so it cannot be combined with --model" "$program" train --model gpt2 --init "$models/gpt2" --data "$scratch/few.jsonl"
refused 1 "--model: the model has emsize 768, but emsize is set to 64: remove it" "$program" \
    train --model gpt2 --emsize 64 --data "$scratch/few.jsonl"

# A config.json that contradicts the tensors: one is named with both shapes, and the others are counted.
cp -r "$models/llama3" "$scratch/wide"
sed -i 's/"intermediate_size": 56/"intermediate_size": 64/' "$scratch/wide/config.json"
refused 1 'tensor "model.layers.0.mlp.down_proj.weight" should be F32 [32, 64], but is F32 [32, 56]; 5 more of the tensors do not fit' \
    "$program" train --init "$scratch/wide" --data "$models/llama3/rows.jsonl" --batch-size 2 --save "$scratch/none"
[ ! -e "$scratch/none" ] || fail "something was saved"

# A new model of the tutorials' has as many tokens as the rows need.
"$program" train --data "$scratch/data" --emsize 8 --nhid 8 --nlayers 1 --nhead 2 --batch-size 2 --epochs 1 --lr 0.1 \
    --quiet --save "$scratch/new"
largest=$(grep -oE '[0-9]+' "$scratch/data/train.jsonl" | sort -n | tail -n 1)
grep -q "\"ntokens\": $((largest + 1))," "$scratch/new/config.json" || fail "the new model has another number of tokens"
echo "rows of ids: ok"
