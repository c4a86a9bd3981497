#!/bin/bash
# The tokens of a text by a BPE are kept in --save-dir: read there by a run that goes on, made again where the text or the
# tokenizer is another, and never in the place of a file that is not the run's.
. "$(dirname "$0")/kept.sh"
. "$(dirname "$0")/../support/script.sh"

for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
cp ranks more-ranks
echo "$(printf ' a' | base64) 256" >>more-ranks
mkdir text
for split in train valid test; do
    head -c 6000 "$source/docs/determinism.md" | shuf --random-source="$source/LICENSE" >text/$split.txt
done
train=("$program" train --splitter gpt2 --bptt 6 --batch-size 2 --max-batches 3 --epochs 1 --emsize 8 --nhid 8 --nlayers 1 --nhead 2)
check_kept text ranks {test,train,valid}.{bin,manifest.json}

# They are what is read: tokens that their manifest calls those of this text are trained on.
forget
checksums() { grep -o '"checksum": "[0-9a-f]*"' "$1/tokens/train.manifest.json"; } # of tokenizer, text and file
cp -r run right
cp -r text reordered
tac text/train.txt >reordered/train.txt
run reordered ranks --save-dir wrong --save reordered.model
cp wrong/tokens/train.bin run/tokens/train.bin
sed "s/$(checksums wrong | sed -n 2p)/$(checksums right | sed -n 2p)/" wrong/tokens/train.manifest.json >run/tokens/train.manifest.json
run text ranks --save-dir run --save other
[ "$(sum_of other)" != "$(sum_of alone)" ] || fail "the kept tokens were not read"
rm -rf run
cp -r right run

# Another tokenizer, another text, one file instead of three, and a damaged file: tokens are made again.
again() { # NAME DATA TOKENIZER
    forget
    run "$2" "$3" --save "plain$1"
    run "$2" "$3" --save-dir run --save "kept$1" --dp 2 --shards 2
    run "$2" "$3" --save "plain$1" --dp 2 --shards 2
    [ "$(sum_of "kept$1")" = "$(sum_of "plain$1")" ] || fail "$1: other weights"
}
again tokenizer text more-ranks
echo "a further line" >>text/train.txt
again text text more-ranks
again file text/train.txt more-ranks
head -c 1100 run/tokens/train.bin >short
mv short run/tokens/train.bin
again damage text/train.txt more-ranks
printf x | dd of=run/tokens/train.bin bs=1 seek=1030 conv=notrunc status=none
again token text/train.txt more-ranks

# A run that resumes reads them.
forget
run text ranks --save-dir run --save-every 1
before=$(stat -c %i run/tokens/*)
"$program" train --resume run/step-00000002 --save resumed >out 2>&1 || fail "resume: status $?"
[ "$(stat -c %i run/tokens/*)" = "$before" ] || fail "the run that resumed has written the same tokens again"

# What is not the run's stays, and what may be another's.
refuse() { # SENTENCE
    local status=0 before
    forget
    before=$(sha256sum run/tokens/*)
    "${train[@]}" --data text --tokenizer ranks --save-dir run >out 2>&1 || status=$?
    [ $status = 1 ] || fail "status $status where another file stands"
    grep -q "$1" out || fail "another sentence than $1"
    [ "$(sha256sum run/tokens/*)" = "$before" ] || fail "another file was replaced: $1"
}
cp run/tokens/train.manifest.json whole
head -c 100 whole >run/tokens/train.manifest.json
refuse "run/tokens/train.manifest.json: the run keeps its text's tokens there, but this file does not say whose train.bin is: move both away"
cp whole run/tokens/.train.bin.resume # a run was cut off where it names them
forget
run text ranks --save-dir run
cmp run/tokens/train.manifest.json whole || fail "the tokens of a run that was cut off were not made again"
[ ! -e run/tokens/.train.bin.resume ] || fail "the record stays"
forget
"$program" tokenize --tokenizer ranks --splitter gpt2 text/*.txt -o run/tokens/train.bin >out
refuse "run/tokens/train.bin: the run keeps its text's tokens there, but this file is not one that a run has kept"
