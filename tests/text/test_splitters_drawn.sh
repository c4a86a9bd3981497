#!/bin/bash
# Drawn texts are split as by the library tokenizers.
python=${SLUICE_PYTHON:-${SLUICE_SOURCE_DIR:?}/.venv/bin/python3}
[ -x "$python" ] || { echo "skipped: no $python: scripts/test makes one"; exit 77; }
exec "$python" -B "${SLUICE_SOURCE_DIR:?}/tests/text/splitters_drawn.py" "${SLUICE_PROGRAM:?}"
