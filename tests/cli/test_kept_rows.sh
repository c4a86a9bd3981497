#!/bin/bash
# What JSON lines of text become is kept in --save-dir: read there by a run that goes on, made again where the lines, the
# tokenizer or how rows are made is another, and whole after a kill at any call.
. "$(dirname "$0")/kept.sh"
. "$(dirname "$0")/../support/script.sh"

mkdir data
for split in train valid; do
    for ((line = 0; line < 12; line++)); do
        echo "{\"prompt\": \"the dog sat $((line * 7 % 5))\", \"completion\": \" on mat $line, $split\"}"
        echo "{\"text\": \"a cat of $((line * line)) mats\"}"
    done >data/$split.jsonl
done
"$program" tokenizer train --vocab-size 260 "$source/LICENSE" -o tokenizer >out
train=("$program" train --batch-size 2 --max-batches 3 --epochs 1 --seq-len 64 --emsize 8 --nhid 8 --nlayers 1 --nhead 2)
check_kept data tokenizer train.rows valid.rows

# They are what is read.
forget
rm -rf wrong
sed 's/dog/cow/' data/train.jsonl >moved/train.jsonl
run moved tokenizer --save-dir wrong --save cows
of() { head -c 2048 "$1" | grep -o '"lines": {[^}]*}'; }
change_header() { # FILE OLD NEW: keeps the file whole
    "$python" - "$@" <<'EOF'
import ctypes, json, sys

class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

path, old, new = sys.argv[1:]
data = open(path, "rb").read()
text = data[:2048].decode().rstrip()
assert old in text, f"{old} is not in {text}"
header = json.loads(text.replace(old, new))
del header["checksum"]
summed = data[2048:] + json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
library = ctypes.CDLL("libxxhash.so.0")
library.XXH3_128bits.restype = Hash
library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
found = library.XXH3_128bits(summed, len(summed))
header["checksum"] = f"{found.high:016x}{found.low:016x}"
with open(path, "wb") as file:
    file.write(json.dumps(header).encode().ljust(2047) + b"\n" + data[2048:])
EOF
}
right=$(of run/tokens/train.rows)
change_header wrong/tokens/train.rows "$(of wrong/tokens/train.rows)" "$right"
mv wrong/tokens/train.rows run/tokens/train.rows
run data tokenizer --save-dir run --save other
[ "$(sum_of other)" = "$(sum_of cows)" ] || fail "the kept rows were not read"
rm -rf run
run data tokenizer --save-dir run

# Other lines, another tokenizer or template, other options, another damage: rows are made again.
again() { # NAME DATA TOKENIZER OPTION...
    forget
    before=$(stat -c %i run/tokens/train.rows)
    run "$2" "$3" "${@:4}" --save "plain$1"
    run "$2" "$3" "${@:4}" --save-dir run --save "kept$1"
    [ "$(sum_of "kept$1")" = "$(sum_of "plain$1")" ] || fail "$1: other weights"
    [ "$(stat -c %i run/tokens/train.rows)" != "$before" ] || fail "$1: the rows were not made again"
}
again lines moved tokenizer
"$program" tokenizer train --vocab-size 270 "$source/LICENSE" -o other-tokenizer >out
again tokenizer moved other-tokenizer
sed -i 's/{/{"chat_template": "x", /' other-tokenizer/tokenizer_config.json
again template moved other-tokenizer
again mask moved other-tokenizer --no-mask-prompt
again pack moved other-tokenizer --pack
head -c 4000 run/tokens/train.rows >short
mv short run/tokens/train.rows
again short moved other-tokenizer --pack
printf x | dd of=run/tokens/train.rows bs=1 seek=3000 conv=notrunc status=none
again damage moved other-tokenizer --pack
sed -i '1s/"longest": ./"longest": 1/' run/tokens/train.rows
again header moved other-tokenizer --pack
version=$(head -c 2048 run/tokens/train.rows | grep -o '^{"sluice_rows": [0-9]*,')
change_header run/tokens/train.rows "$version" '{"sluice_rows": 1,'
again version moved other-tokenizer --pack
head -c 2048 run/tokens/train.rows | grep -q '"documents": 24' || fail "not the documents of training"
head -c 2048 run/tokens/valid.rows | grep -q '"documents": 0' || fail "documents of validation"
forget
before=$(stat -c %i run/tokens/*)
run moved other-tokenizer --pack --save-dir run --save packed
[ "$(stat -c %i run/tokens/*)" = "$before" ] || fail "packed rows were written again"
[ "$(sum_of packed)" = "$(sum_of plainpack)" ] || fail "other weights from packed rows that were kept"

# A mixture has files of each source, and a run that resumes reads them.
forget
"${train[@]}" --data a=1:data --data b=2:moved --tokenizer tokenizer --save-dir mixed --save-every 1 >out 2>&1 || fail "a mixture"
if [ ! -f mixed/tokens/a.train.rows ] || [ ! -f mixed/tokens/b.train.rows ]; then fail "other files: $(find mixed/tokens)"; fi
before=$(stat -c %i mixed/tokens/*)
"$program" train --resume mixed/step-00000002 --save resumed >out 2>&1 || fail "resume: status $?"
[ "$(stat -c %i mixed/tokens/*)" = "$before" ] || fail "the run that resumed has written the same rows again"

# Those of data that a run does not have go, and another's stay.
rm -rf mixed/step-* mixed/best mixed/progress
echo "a text" >mixed/tokens/notes.rows
run data tokenizer --save-dir mixed
[ "$(find mixed/tokens -type f | sort | tr '\n' ' ')" = "mixed/tokens/notes.rows mixed/tokens/train.rows mixed/tokens/valid.rows " ] ||
    fail "files of a mixture stay, or another's went: $(find mixed/tokens)"
rm -rf mixed/step-* mixed/best mixed/progress
run "$source/CHANGELOG.md" tokenizer --save-dir mixed
[ "$(find mixed/tokens -name '*.rows')" = mixed/tokens/notes.rows ] || fail "rows stay beside a text: $(find mixed/tokens)"

# Another's file stays, and is found before any line is read.
forget
echo "a text" >run/tokens/train.rows
mkdir broken
echo '{' | tee broken/train.jsonl >broken/valid.jsonl
status=0
"${train[@]}" --data broken --tokenizer tokenizer --save-dir run >out 2>&1 || status=$?
[ $status = 1 ] || fail "another's file: status $status"
grep -q "run/tokens/train.rows: the run keeps its rows there, but this file is not one that a run has kept" out ||
    fail "another's file is not named"
[ "$(cat run/tokens/train.rows)" = "a text" ] || fail "another's file was changed"

# Killed before any of the calls that change what is kept, in place of older rows.
[ -f "$faults" ] || fail "$faults was not built"
rm -rf run
run data tokenizer --save-dir run
mv run/tokens expected
rm -rf run
run moved tokenizer --save-dir run
forget
mv run older
faulty() { # NAME=VALUE...: the status
    local status=0
    { env LD_PRELOAD="$faults" SLUICE_IO_ONLY=run/tokens "$@" "${train[@]}" --data data --tokenizer tokenizer --save-dir run >out 2>&1; } \
        2>/dev/null || status=$?
    echo $status
}
cp -r older run
[ "$(faulty SLUICE_IO_LOG="$PWD/log")" = 0 ] || fail "an undisturbed run"
calls=$(wc -l <log)
[ "$(grep -c '^rename.*rows' log)" = 1 ] || fail "other calls than planned: $(cat log)"
for ((call = 1; call <= calls; call++)); do
    rm -rf run
    cp -r older run
    [ "$(faulty SLUICE_IO_KILL=$call)" = 137 ] || fail "call $call of $calls: not killed"
    forget
    run data tokenizer --save-dir run --save again
    [ "$(sum_of again)" = "$(sum_of alone)" ] || fail "call $call: other weights"
    diff -r run/tokens expected || fail "call $call: other rows, or something is left"
done
