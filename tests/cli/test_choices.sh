#!/bin/bash
# sluice eval --task: the ending that a model finds most probable, by the losses that eval gives its rows.
. "$(dirname "$0")/../support/script.sh"
model=$source/tests/models/llama3

seed=${SLUICE_TEST_SEED:-$RANDOM}
echo "SLUICE_TEST_SEED $seed"
RANDOM=$seed
draw() { # COUNT: ids
    local ids=$((RANDOM % 61))
    for ((i = 1; i < $1; i++)); do ids+=", $((RANDOM % 61))"; done
    echo "$ids"
}
write_u16() { # NUMBERS
    for number in "$@"; do printf '%b' "\\x$(printf %02x $((number & 255)))\\x$(printf %02x $((number >> 8)))"; done
}
u32() { write_u16 $(($1 & 65535)) $(($1 >> 16)); }

# Of each ending alone: its loss, and how many tokens it has.
right=0 by_mean=0 questions=6
for ((q = 0; q < questions; q++)); do
    context=$(draw $((2 + RANDOM % 6))) endings="" best="" mean="" label=$((RANDOM % 3))
    contexts=$(tr -cd , <<<"$context" | wc -c)
    read -ra ids_of_context <<<"${context//,/}"
    binary=(65535 0 "$q" "$label" 3 $((contexts + 1)) "${ids_of_context[@]}")
    for ending in 0 1 2; do
        ids=$(draw $((1 + RANDOM % 5)))
        count=$(($(tr -cd , <<<"$ids" | wc -c) + 1))
        masked=$(printf -- '-100, %.0s' $(seq $((contexts + 1))))
        echo "{\"input_ids\": [$context, $ids], \"labels\": [$masked$ids]}" >row.jsonl
        loss=$("$program" eval --init "$model" --data row.jsonl --json | grep -oP '"loss": \K[0-9.e-]*')
        sum=$(awk -v l="$loss" -v n="$count" 'BEGIN { printf "%.9f", l * n }')
        if [ -z "$best" ] || awk -v a="$sum" -v b="$least" 'BEGIN { exit !(a < b) }'; then best=$ending least=$sum; fi
        if [ -z "$mean" ] || awk -v a="$loss" -v b="$lowest" 'BEGIN { exit !(a < b) }'; then mean=$ending lowest=$loss; fi
        endings+="${endings:+, }[$ids]"
        read -ra ids_of_ending <<<"${ids//,/}"
        binary+=("$count" "${ids_of_ending[@]}")
    done
    echo "{\"context\": [$context], \"endings\": [$endings], \"label\": $label}" >>task.jsonl
    write_u16 "${binary[@]}" >>questions
    right=$((right + (best == label))) by_mean=$((by_mean + (mean == label)))
done
{ u32 20240522 && u32 1 && u32 $questions && head -c 1012 /dev/zero && cat questions; } >task.bin
expected=$(awk -v r=$right -v m=$by_mean -v n=$questions 'BEGIN { printf "acc %.4f | acc_norm %.4f | %d questions", r / n, m / n, n }')
for task in task.jsonl task.bin; do
    [ "$("$program" eval --init "$model" --task $task)" = "$expected" ] ||
        fail "$task: expected $expected, got $("$program" eval --init "$model" --task $task)"
done
"$program" eval --init "$model" --task task.jsonl --json >out
grep -q "^{\"acc\": .*, \"acc_norm\": .*, \"questions\": $questions}$" out || fail "--json: $(cat out)"

wrong() { # SENTENCE LINE
    echo "$2" >wrong.jsonl
    refused 1 "wrong.jsonl: line 1: $1" "$program" eval --init "$model" --task wrong.jsonl
}
refused 2 "eval needs --init DIR, and --data DIR|FILE or --task FILE" "$program" eval --init "$model"
refused 2 "--task is what is evaluated, so it cannot be combined with --data" "$program" eval --init "$model" --task x --data y
for option in "--split valid" "--bptt 8" "--eval-batch-size 2" "--eval-max-batches 1" "--mask-prompt" "--logits x"; do
    # shellcheck disable=SC2086
    refused 2 "cannot be combined with ${option%% *}" "$program" eval --init "$model" --task task.jsonl $option
done
wrong "it must be a JSON object" "[1]"
wrong 'it must have "context", a list "endings", and "label"' '{"context": [1], "endings": [[1], [2]]}'
wrong "its label must be from 0 to 1, got 2" '{"context": [1], "endings": [[1], [2]], "label": 2}'
wrong "it must have at least 2 endings, got 1" '{"context": [1], "endings": [[1]], "label": 0}'
wrong "its context must have at least one token" '{"context": [], "endings": [[1], [2]], "label": 0}'
wrong "ending 1 must have at least one token" '{"context": [1], "endings": [[1], []], "label": 0}'
wrong "id 99999 is not in 0 .." '{"context": [99999], "endings": [[1], [2]], "label": 0}'
wrong "ids must be whole numbers from 0" '{"context": [-1], "endings": [[1], [2]], "label": 0}'
wrong "it has text, and there is no tokenizer that is read: $model: it has no tokenizer.json" '{"context": "a", "endings": ["b", "c"], "label": 0}'
: >empty.jsonl
refused 1 "empty.jsonl: it has no question" "$program" eval --init "$model" --task empty.jsonl
head -c 1100 task.bin >short.bin
refused 1 "short.bin: question" "$program" eval --init "$model" --task short.bin
head -c 100 task.bin >none.bin
refused 1 "none.bin: it must begin as an evaluation of llm.c, version 1" "$program" eval --init "$model" --task none.bin
