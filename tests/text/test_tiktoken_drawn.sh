#!/bin/bash
# The ids of drawn texts, by three published vocabularies, are those of tiktoken.
python=${SLUICE_PYTHON:-${SLUICE_SOURCE_DIR:?}/.venv/bin/python3}
[ -x "$python" ] || { echo "skipped: no $python: scripts/test makes one"; exit 77; }
exec "$python" -B "${SLUICE_SOURCE_DIR:?}/tests/text/tiktoken_drawn.py" "${SLUICE_PROGRAM:?}"
