#!/bin/bash
# A text that is read with the tokenizer of another model, and models that keep theirs.
. "$(dirname "$0")/../support/script.sh"


ranks() { # TOKEN...: a rank file of the 256 bytes and these
    local id=256 byte
    for ((byte = 0; byte < 256; byte++)); do
        # shellcheck disable=SC2059 # the byte is the format
        echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
    done
    for token; do
        echo "$(printf %s "$token" | base64) $((id++))"
    done
}
mkdir tok
ranks " a" " b" " ab" >tok/few
ranks " a" " b" " ab" "abb" "bb" "ba" >tok/more
for ((line = 0; line < 400; line++)); do
    echo "ab b a ab ba abb $line"
done >text.txt

sizes=(--emsize 16 --nhid 16 --nlayers 1 --nhead 2 --dropout 0 --bptt 16 --batch-size 4 --eval-batch-size 2)
train=(train --data text.txt "${sizes[@]}" --max-batches 4 --epochs 1 --pp 1)
runs "$program" "${train[@]}" --tokenizer tok/few --splitter gpt2 --save m
grep -q "vocabulary of 259 types" out || fail "another vocabulary"
loss=$(grep -o "test loss *[0-9.]*" out | grep -o "[0-9.]*$")

# The model has its tokenizer, and its ids are those that it was trained with.
[ "$(printf ' ab ba' | "$program" tokenize --tokenizer m --print)" = "258 257 97" ] || fail "other ids"
runs "$program" eval --init m --data text.txt --split test --eval-batch-size 2
grep -q "test loss $loss" out || fail "eval gives another loss than $loss"
runs "$program" generate --init m --prompt " ab ba" --tokens 3 --greedy
"$program" generate --init m --prompt "é日🙂" --tokens 1 --greedy >characters # each of its bytes is a token
[ "$(head -c 9 characters)" = "é日🙂" ] || fail "broken characters: $(cat characters)"
grep -q "^ ab ba" out || fail "blanks between tokens that have none"
runs "$program" train --init m --data text.txt --bptt 16 --batch-size 4 --eval-batch-size 2 --max-batches 2 --epochs 1 --save n
cmp m/tokenizer.json n/tokenizer.json || fail "another tokenizer after --init"

# What it was opened with beside tokenizer.json comes along, and does not hinder replacing the model.
cp m/tokenizer.json tok/
echo '{"model_max_length": 77}' >tok/tokenizer_config.json
for _ in 1 2; do
    runs "$program" "${train[@]}" --tokenizer tok --save n
    cmp tok/tokenizer_config.json n/tokenizer_config.json || fail "no tokenizer_config.json"
done

refused 1 "tok/more: it has 262 tokens, more than the model's 259" "$program" \
    eval --init m --tokenizer tok/more --splitter gpt2 --data text.txt
refused 1 "tok/few: a file of ranks does not say how text is split" "$program" "${train[@]}" --tokenizer tok/few
refused 1 "tok/none: cannot be opened" "$program" "${train[@]}" --tokenizer tok/none
rm m/tokenizer.json
refused 1 "a text needs a tokenizer (--tokenizer), or ids: m: it has no tokenizer.json" "$program" \
    generate --init m --prompt a
runs "$program" generate --init m --tokenizer tok/few --splitter gpt2 --prompt a --tokens 1
echo '{"model": {"type": "Unigram"}}' >m/tokenizer.json
refused 1 'its model must be of type BPE, or of sluice'"'"'s WordLevel, got "Unigram"' "$program" \
    generate --init m --prompt a
