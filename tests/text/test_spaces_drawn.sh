#!/bin/bash
# The ids of drawn texts, by tokenizers of SentencePiece's kind, are those of the library tokenizers.
python=${SLUICE_PYTHON:-${SLUICE_SOURCE_DIR:?}/.venv/bin/python3}
[ -x "$python" ] || { echo "skipped: no $python: scripts/test makes one"; exit 77; }
exec "$python" -B "${SLUICE_SOURCE_DIR:?}/tests/text/spaces_drawn.py" "${SLUICE_PROGRAM:?}"
