#!/bin/bash
# Weights go to PyTorch and back: examples/pytorch_weights.py continues a text as `sluice generate`
# does, and what it writes evaluates as the file that it read.
set -euo pipefail
python=${SLUICE_PYTHON:-$SLUICE_SOURCE_DIR/.venv/bin/python3}
if ! "$python" -c 'import torch, safetensors.torch' 2>/dev/null; then
    echo "skipped: $python has no torch or no safetensors"
    exit 77
fi

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
        "$("$python" "$SLUICE_SOURCE_DIR/examples/pytorch_weights.py" model.safetensors \
            back.safetensors the)"
    same "sluice reads what PyTorch wrote ($layer)" \
        "$("$SLUICE_PROGRAM" eval --init model.safetensors --data text)" \
        "$("$SLUICE_PROGRAM" eval --init back.safetensors --data text)"
done
