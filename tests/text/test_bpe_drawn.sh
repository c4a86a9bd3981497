#!/bin/bash
# The ids of drawn texts, by GPT-2's, Llama 3's and Qwen2's vocabularies, are those of the library tokenizers.
python=${SLUICE_PYTHON:-${SLUICE_SOURCE_DIR:?}/.venv/bin/python3}
[ -x "$python" ] || { echo "skipped: no $python: scripts/test makes one"; exit 77; }
exec "$python" -B "${SLUICE_SOURCE_DIR:?}/tests/text/bpe_drawn.py" "${SLUICE_PROGRAM:?}"
