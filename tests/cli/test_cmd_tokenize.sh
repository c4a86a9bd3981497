#!/bin/bash
# The program `sluice tokenize`, run as a user does, with a rank file of the 256 bytes, " a" and "aa".
. "$(dirname "$0")/../support/script.sh"

for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
{ echo "$(printf ' a' | base64) 256"; echo "$(printf aa | base64) 257"; } >>ranks
tokenize=("$program" tokenize --tokenizer ranks --splitter gpt2)

gives() { # TEXT IDS: --print gives these, and --decode of them the text
    printf "$1" | "${tokenize[@]}" --print >out 2>err || fail "$1: status $?"
    [ ! -s err ] || fail "$1: words on standard error"
    printf "$2" | cmp - out || fail "$1: other ids"
    "${tokenize[@]}" --decode <out >text 2>err || fail "$1: status $? of --decode"
    printf "$1" | cmp - text || fail "$1: another text"
}

gives '' ''
gives 'b a\n' '98 256 10\n'
gives 'aaa a\0' '257 97 256 0\n'
gives '\xc3\xa9' '195 169\n'
gives "$(printf '%70000s' '' | tr ' ' b)" "98$(printf '%69999s' '' | sed 's/ / 98/g')\n"

printf 'a\xff' | "${tokenize[@]}" --print >out 2>err || fail "not UTF-8: status $?"
[ "$(cat out)" = "97 239 191 189" ] || fail "not UTF-8: other ids"
grep -qx "sluice: warning: standard input has 1 byte that is not UTF-8: is it in another encoding?" err ||
    fail "not UTF-8: no warning"
printf '\n 98\t257\r\n97 ' | "${tokenize[@]}" --decode >out 2>err || fail "blanks: status $?"
[ "$(cat out)" = baaa ] || fail "blanks: another text"

printf '97 258' >input
refused 1 "id 258, number 2 of standard input, is not in 0 .. 257, the tokenizer's vocabulary" "${tokenize[@]}" --decode <input
printf '97 99999999999999999999' >input
refused 1 "id 99999999999999999999, number 2 of standard input" "${tokenize[@]}" --decode <input
for word in x -1 +1 1x 1,2; do
    printf '97 98 %s 97' $word >input
    refused 1 "word 3 of standard input must be an id, got \"$word\"" "${tokenize[@]}" --decode <input
done
printf '97\0 98' >input
refused 1 "word 2 of standard input must be an id, got \"\"" "${tokenize[@]}" --decode <input
refused 2 "tokenize needs one of --output FILE, --print and --decode" "${tokenize[@]}"
refused 2 "tokenize needs one of --output FILE, --print and --decode" "${tokenize[@]}" --print --decode
refused 2 "tokenize needs --tokenizer DIR|FILE" "$program" tokenize --print
refused 2 "--splitter must be gpt2, smollm, cl100k, qwen2, qwen3.5 or o200k" "$program" tokenize --tokenizer ranks --splitter gpt5 --print
refused 2 "tokenize --output needs the files of a text" "${tokenize[@]}" -o x.bin
refused 2 "--print and --decode read standard input, not files" "${tokenize[@]}" --print input
: >empty
refused 1 "empty: expected text, but the file is empty" "${tokenize[@]}" empty -o x.bin
refused 1 "none: cannot be opened" "${tokenize[@]}" none -o x.bin
[ ! -e x.bin ] || fail "a file was left"
printf ' a\n' >one
printf 'aa' >two
"${tokenize[@]}" one two -o x.bin >out 2>err || fail "-o: status $?"
grep -q "3 tokens written to x.bin" out || fail "-o: other words"
[ ! -s err ] || fail "-o: progress without a terminal"
[ "$(od -An -tu2 -j1024 x.bin | tr -s ' ')" = " 256 10 257" ] || fail "-o: other tokens"
[ "$(od -An -tu4 -N12 x.bin | tr -s ' ')" = " 20240520 1 3" ] || fail "-o: another header"
"${tokenize[@]}" one two -o x.bin --resume >out 2>err || fail "--resume: status $?"
grep -q "3 tokens written to x.bin (those of 5 B of text by an earlier call)" out || fail "--resume: other words"
refused 1 "./one is an input and must not be overwritten" "${tokenize[@]}" two one -o ./one
[ "$(cat one)" = " a" ] || fail "an input was overwritten"

# A text in which nothing is a token leaves the older file.
cp x.bin older
cat >few.json <<'EOF'
{"added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
EOF
printf zzz >nothing
refused 1 "nothing: expected text, but nothing in it is a token" "$program" tokenize --tokenizer few.json two nothing -o x.bin
cmp x.bin older || fail "an older file was replaced by no tokens"
refused 2 "--resume needs --output" "${tokenize[@]}" --print --resume
if command -v script >/dev/null; then
    script -qec "$program tokenize --tokenizer ranks --splitter gpt2 one two -o x.bin" /dev/null >out </dev/null
    grep -q "tokenizing | 3 B of 5 B | 60%" out || fail "no progress on a terminal"
fi
refused 1 "ranks: a file of ranks does not say how text is split" "$program" tokenize --tokenizer ranks --print
refused 1 "none: cannot be opened" "$program" tokenize --tokenizer none --print
refused 1 "standard input cannot be read: Is a directory" "${tokenize[@]}" --print <.
status=0
echo a | "${tokenize[@]}" --print >/dev/full 2>err || status=$?
[ "$status" = 1 ] || fail "a full disk: status $status"
