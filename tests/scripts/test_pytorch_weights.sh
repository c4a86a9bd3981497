#!/bin/bash
# Weights go to PyTorch and back: examples/pytorch_weights.py continues a text as `sluice generate`
# does, what it writes evaluates as the file that it read, and its logits are those that `sluice eval
# --logits` wrote. What it cannot read or write is one sentence.
set -euo pipefail
python=${SLUICE_PYTHON:-$SLUICE_SOURCE_DIR/.venv/bin/python3}
if ! "$python" -c 'import torch, safetensors.torch' 2>/dev/null; then
    echo "skipped: $python has no torch or no safetensors"
    exit 77
fi

example=$SLUICE_SOURCE_DIR/examples/pytorch_weights.py
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

same() { # WHAT EXPECTED GOT
    [ "$2" = "$3" ] || { printf 'FAILED  %s: expected "%s", got "%s"\n' "$@"; exit 1; }
    printf 'passed  %s\n' "$1"
}

"$SLUICE_PROGRAM" data --synthetic text --tokens 20000 >/dev/null
for layer in "" "--pre-norm --activation gelu --mask none"; do
    # shellcheck disable=SC2086 # the options are words
    "$SLUICE_PROGRAM" train --data text --emsize 32 --nhid 48 --epochs 1 --pp 2 --chunks 4 --quiet \
        --save model.safetensors $layer >/dev/null
    same "PyTorch continues the text as sluice does ($layer)" \
        "$("$SLUICE_PROGRAM" generate --init model.safetensors --prompt "the" --greedy --tokens 8)" \
        "$("$python" "$example" model.safetensors back.safetensors the)"
    same "sluice reads what PyTorch wrote ($layer)" \
        "$("$SLUICE_PROGRAM" eval --init model.safetensors --data text)" \
        "$("$SLUICE_PROGRAM" eval --init back.safetensors --data text)"
    said=$("$SLUICE_PROGRAM" eval --init model.safetensors --data text --split valid --bptt 9 \
        --eval-batch-size 6 --eval-max-batches 1 --logits logits.safetensors)
    found=$("$python" "$example" model.safetensors --logits logits.safetensors)
    same "PyTorch has the batch's loss ($layer)" "$(expr "$said" : '.* loss \([0-9.]*\)')" "${found##* }"
    difference=$(expr "$found" : 'largest difference \([0-9.e+-]*\) ')
    awk "BEGIN { exit !($difference < 1e-5) }" || { echo "FAILED  $found"; exit 1; }
    echo "passed  PyTorch has the batch's logits to 1e-5 ($layer)"
done

refused() { # SENTENCE ARGUMENT...: the example ends with status 1 and that sentence, a pattern
    local status=0 sentence=$1
    shift
    "$python" "$example" "$@" >out 2>err || status=$?
    if [ $status != 1 ] || [ -s out ] || [ "$(wc -l <err)" != 1 ] || ! grep -q "$sentence" err; then
        echo "FAILED  $* (status $status): expected \"$sentence\", got:"
        cat out err
        exit 1
    fi
    printf 'passed  %s\n' "$sentence"
}

cut() { # BYTES: model.safetensors so far, as cut.safetensors
    head -c "$1" model.safetensors >cut.safetensors
    cp model.vocab.txt cut.vocab.txt
}

refused 'takes MODEL BACK WORD' model.safetensors
refused '^none.safetensors: it cannot be read: .*No such file' none.safetensors back.safetensors the
refused '^text: it cannot be read: ' text back.safetensors the
refused '^text/train.txt: it cannot be read: ' text/train.txt back.safetensors the
cut 3000
refused '^cut.safetensors: it cannot be read: ' cut.safetensors back.safetensors the
refused "^logits.safetensors: its metadata do not say 'sluice.ntokens'" logits.safetensors back the
refused '^model.vocab.txt: it lacks Zebra$' model.safetensors back.safetensors the Zebra
refused '^none/back: it cannot be written: ' model.safetensors none/back the
refused '^back.safetensors: it was not written by sluice eval' model.safetensors --logits back.safetensors
cut "$(stat -c %s model.safetensors)"
LC_ALL=C sed -i 's/"sluice.nhid":"48"/"sluice.nhid":"47"/' cut.safetensors
refused '^cut.safetensors: metadata and tensors make no model: .*linear1' cut.safetensors back the
LC_ALL=C sed -i 's/"sluice.nhid":"47"/"sluice.nhid":"4x"/' cut.safetensors
refused '^cut.safetensors: metadata and tensors make no model: ' cut.safetensors back the
echo more >>model.vocab.txt
refused '^model.vocab.txt: it has [0-9]* tokens, the model [0-9]*$' model.safetensors back the
rm model.vocab.txt
refused '^model.vocab.txt: the vocabulary cannot be read: ' model.safetensors back the
mkdir without
echo 'raise ImportError("No module named torch")' >without/torch.py
export PYTHONPATH=$scratch/without
refused '^No module named torch: install torch and safetensors' model.safetensors back the
