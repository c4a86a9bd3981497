#!/bin/bash
# Builds sluice on a machine with an NVIDIA GPU, tests the CUDA device and measures it, in at most ten
# minutes.
#
# Usage: bench/cuda.sh [FOLDER]
#
# Logs go to FOLDER (build-cuda/logs). The last lines are a summary; exits with 1 if a check failed.
# CMAKE_ARGUMENTS is given to cmake.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build="build-cuda"
logs=${1:-$build/logs}
mkdir -p "$logs"
program=$build/bin/sluice
summary=$logs/summary
: >"$summary"
failed=0

# Runs a command for at most so many seconds, of what is left of ten minutes; its output is NAME.log.
check() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 status=0 left=$((590 - SECONDS)) begun=$SECONDS
    shift 2
    if [ "$left" -lt 5 ]; then
        echo "skipped  $name: no time is left" >>"$summary"
        return 1
    fi
    timeout $((limit < left ? limit : left)) "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
    if [ "$status" = 0 ]; then
        echo "ok       $name ($((SECONDS - begun)) s)" >>"$summary"
    else
        echo "FAILED   $name (status $status): $(tail -n 1 "$logs/$name.log")" >>"$summary"
        failed=1
    fi
    return "$status"
}

finish() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1
    git log -1 --format='commit %h, %ci'
    cat "$summary"
    exit "$failed"
}

# shellcheck disable=SC2086 # several arguments
check configure 60 cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON \
    -DSLUICE_EXAMPLES=OFF -DSLUICE_BENCH=OFF ${CMAKE_ARGUMENTS-} || finish
check build 270 cmake --build "$build" -j "$(nproc)" --target sluice_program sluice_cuda test_device ||
    finish

# ---- Correctness ------------------------------------------------------------------------------------

check operators 60 env SLUICE_TEST_DEVICES=cuda:0,cuda:0/1 "$build/tests/test_device" operators
check values 30 env SLUICE_TEST_DEVICES=cuda:0 "$build/tests/test_device" values

check text 20 "$program" data --synthetic "$logs/text" --tokens 400000
train=("$program" train --data "$logs/text" --epochs 1 --eval-batch-size 8 --quiet)

# The losses of a short run are in NAME.json.
losses() { # NAME OPTION...
    rm -f "$logs/$1.json"
    check "train-$1" 60 "${train[@]}" --emsize 64 --nhid 64 --nhead 2 --nlayers 2 --bptt 16 --batch-size 8 \
        --max-batches 5 --chunks 2 --log-json "$logs/$1.json" "${@:2}"
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$logs/$1.json" >"$logs/$1.losses"
}

# Whether the losses of two runs differ by at most BOUND of each; 0: the same bits.
near() { # NAME NAME BOUND
    check "$1-is-$2" 5 awk -F: -v bound="$3" '
        NR == FNR { first[FNR] = $2; next }
        { d = $2 - first[FNR]; if (d < 0) d = -d; if (!(d <= bound * $2)) { print FNR, first[FNR], $2; exit 1 } }
        END { if (FNR < 10) { print "too few numbers"; exit 1 } }' "$logs/$1.losses" "$logs/$2.losses"
}

losses cpu --devices cpu:0
losses cuda --devices cuda:0
losses again --devices cuda:0
losses stages --devices cuda:0/0,cuda:0/1
losses mixed --devices cpu:0,cuda:0
near cpu cuda 1e-3
near cpu mixed 1e-3
near cuda again 0
near cuda stages 0

if sanitizer=$(command -v compute-sanitizer); then
    for tool in memcheck racecheck; do
        check "$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 1 "${train[@]}" --emsize 32 --nhid 32 \
            --nhead 2 --nlayers 1 --bptt 8 --batch-size 4 --max-batches 2 --devices cuda:0/0,cuda:0/1
    done
else
    echo "skipped  compute-sanitizer: it was not found" >>"$summary"
fi

# ---- Speed ------------------------------------------------------------------------------------------

# Tokens a second after the first batches, as the run's log has it.
speed() { # NAME OPTION...
    check "speed-$1" 60 "$program" train --data "$logs/text" --epochs 1 --log-interval 20 --max-batches 100 \
        --preset ddp-pipeline "${@:2}" && grep -E 'tok/s|tokens/s|ms/batch' "$logs/speed-$1.log" |
        tail -n 1 | sed "s/^/         /" >>"$summary"
}

for precision in f32 bf16; do
    speed "$precision" --devices cuda:0 --precision "$precision" --dp 1 --pp 1
    speed "$precision-stages" --devices cuda:0/0,cuda:0/1 --precision "$precision" --dp 1 --pp 2
done
speed bf16-long --devices cuda:0 --precision bf16 --dp 1 --pp 1 --batch-size 32 --bptt 512
finish
