#!/bin/bash
# `sluice train` under signals, kill -9 and failing disks: see interrupted_runs.py. SLUICE_KILLS says
# how many runs are killed, 20 where nothing does; 200 take three minutes.
set -euo pipefail
python=/usr/bin/python3
[ -x "$python" ] || { echo "$python is not there"; exit 77; }
[ -x "$SLUICE_PROGRAM" ] || { echo "$SLUICE_PROGRAM is not there"; exit 77; }
faults=$(dirname "$SLUICE_PROGRAM")/../tests/libio_faults.so
[ -f "$faults" ] || { echo "$faults was not built"; exit 1; }
exec "$python" "$(dirname "$0")/interrupted_runs.py" "$SLUICE_PROGRAM" "$faults" "${SLUICE_KILLS:-20}"
