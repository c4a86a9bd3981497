#!/bin/bash
# Tokenizers trained on drawn texts are those that the library tokenizers makes of them.
python=${SLUICE_PYTHON:-${SLUICE_SOURCE_DIR:?}/.venv/bin/python3}
[ -x "$python" ] || { echo "skipped: no $python: scripts/test makes one"; exit 77; }
exec "$python" -B "${SLUICE_SOURCE_DIR:?}/tests/text/bpe_train_drawn.py" "${SLUICE_PROGRAM:?}"
