#!/bin/bash
# The program `sluice tokenizer train`, run as a user does.
. "$(dirname "$0")/../support/script.sh"


printf 'ab ab ab\n' >a.txt
printf 'cd cd <s>\n' >b.txt
"$program" tokenizer train --vocab-size 259 a.txt b.txt -o tok >out 2>err || fail "status $?"
grep -qx "8 different words became a vocabulary of 259 tokens" out || fail "another number of tokens"
grep -qx "tokenizer written to tok" out || fail "no word of the directory"
[ ! -s err ] || fail "words on standard error"
[ "$(ls tok)" = "$(printf 'tokenizer.json\ntokenizer_config.json')" ] || fail "other files"
grep -q '"eos_token": "<|endoftext|>"' tok/tokenizer_config.json || fail "no end of a text"
[ "$(printf 'ab<|endoftext|>' | "$program" tokenize --tokenizer tok --print --special)" = "257 0" ] || fail "other ids"
printf ' ab cd' >text
"$program" tokenize --tokenizer tok --print <text >ids
"$program" tokenize --tokenizer tok --decode <ids | cmp - text || fail "another text"
if "$python" -c 'import transformers' 2>err; then
    "$python" - tok "$(tr '\n' ' ' <ids)" >out 2>err <<'EOF' || fail "transformers"
import sys
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
assert tokenizer(" ab cd").input_ids == [int(word) for word in sys.argv[2].split()], tokenizer(" ab cd").input_ids
assert tokenizer("ab<|endoftext|>").input_ids == [257, 0] and tokenizer.eos_token_id == 0
EOF
fi

# The same again, with other tokens; a file that is not UTF-8 is warned of.
printf 'ab\377ab ab\n' >c.txt
"$program" tokenizer train --vocab-size 1000 --special '<s>' --special '</s>' c.txt -o tok >out 2>err || fail "status $?"
grep -qx "4 different words became a vocabulary of 262 tokens, since no more pairs are left" out ||
    fail "no word of too few tokens"
grep -q "warning: c.txt has 1 byte that is not UTF-8" err || fail "no warning"
[ "$(printf '</s><s>' | "$program" tokenize --tokenizer tok --print --special)" = "1 0" ] || fail "other special tokens"

: >empty
head -c 1000 "$program" >binary
refused 1 "empty: expected text, but the file is empty" "$program" tokenizer train --vocab-size 300 a.txt empty -o new
refused 1 "binary: expected text in UTF-8, but of its 1000 bytes" "$program" tokenizer train --vocab-size 300 binary -o new
refused 1 "none: cannot be opened: No such file or directory" "$program" tokenizer train --vocab-size 300 none -o new
refused 1 "a vocabulary must have at least 257 tokens" "$program" tokenizer train --vocab-size 256 a.txt -o new
refused 1 "special tokens must differ" "$program" tokenizer train --vocab-size 300 --special '<s>' --special '<s>' a.txt -o new
refused 1 "a.txt: it exists and is not a tokenizer that sluice trained" "$program" tokenizer train --vocab-size 300 a.txt -o a.txt
refused 1 "none/new: " "$program" tokenizer train --vocab-size 300 a.txt -o none/new
refused 2 "tokenizer: expected train" "$program" tokenizer --vocab-size 300
refused 2 "tokenizer: expected train, got \"trains\"" "$program" tokenizer trains
refused 2 "tokenizer train: expected the files of a text" "$program" tokenizer train --vocab-size 300 -o new
refused 2 "tokenizer train needs --vocab-size N" "$program" tokenizer train a.txt -o new
refused 2 "tokenizer train needs --output DIR" "$program" tokenizer train --vocab-size 300 a.txt
[ ! -e new ] || fail "something was written"
mkdir new
touch new/mine
status=0
"$program" tokenizer train --vocab-size 300 a.txt -o new >out 2>err || status=$?
[ "$status" = 1 ] || fail "another's directory: status $status"
[ "$(ls new)" = mine ] || fail "another's directory was changed"
