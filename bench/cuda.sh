#!/bin/bash
# Builds sluice on a machine with an NVIDIA GPU, tests the CUDA device and measures it beside PyTorch, in at
# most ten minutes.
#
# Usage: bench/cuda.sh [FOLDER [check | speed]]
#        bench/cuda.sh pack
#
# FOLDER (build-cuda/results) gets summary.md, results.json and logs.tar.gz; the summary is printed last.
# Exits with 1 if a check failed. With `check` or `speed`, half of it runs. Current PyTorch is python3's.
#
# `pack` is for a GPU's machine without the libraries' packages: on another one, of the same processor and a
# C library that is not newer, it writes build-cuda-packed (about 50 MB). Where that folder is there, nothing
# is built. CMAKE_ARGUMENTS is given to cmake.
set -uo pipefail
CDPATH='' cd "$(dirname "$0")/.." || exit 1

build="build-cuda"
packed="build-cuda-packed"
targets=(sluice_program sluice_cuda test_device bench_step)

# shellcheck disable=SC2206 # several arguments
configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON -DSLUICE_EXAMPLES=OFF
    -DSLUICE_HTTP=OFF -DSLUICE_MPI=OFF -DCMAKE_CUDA_ARCHITECTURES=90 ${CMAKE_ARGUMENTS-})

# The programs, and the libraries that they need but for the compiler's and CUDA's own.
pack() {
    local file library
    "${configure[@]}" || return 1
    cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" || return 1
    rm -rf "$packed"
    mkdir -p "$packed/bin" "$packed/tests" "$packed/bench" "$packed/lib"
    cp "$build/bin/sluice" "$packed/bin"
    cp "$build/tests/test_device" "$packed/tests"
    cp "$build/bench/bench_step" "$packed/bench"
    find "$build" -name sluice_cuda.so -not -path '*/tests/*' -exec cp {} "$packed/lib" \;
    for file in "$packed"/*/*; do
        strip "$file"
        ldd "$file" | awk '$3 ~ "^/" { print $3 }'
    done | sort -u | grep -vE '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cublasLt)\.so' | while read -r library; do
        cp -n "$library" "$packed/lib"
    done
    du -sh "$packed"
}

if [ "${1-}" = pack ]; then
    pack
    exit
fi

folder=${1:-$build/results}
part=${2:-all}
logs=$build/logs
rm -rf "$logs"
mkdir -p "$folder" "$logs"
summary=$logs/summary
figures=$logs/figures # a line of JSON for each
: >"$summary"
: >"$figures"
failed=0

# What is there at the end, also when time is over.
finish() {
    trap - EXIT TERM INT
    {
        echo "# CUDA, $(date -u +%F)"
        echo
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed 1q
        git log -1 --format='commit %h, %ci' 2>/dev/null
        printf '\n```\n%s\n```\n\n' "$(cat "$summary")"
        python3 bench/cuda_table.py "$figures" "$folder/results.json" || echo "no table of figures"
    } >"$folder/summary.md" 2>>"$logs/errors"
    tar -czf "$folder/logs.tar.gz" -C "$build" logs
    cat "$folder/summary.md"
    exit "$failed"
}
trap finish EXIT
trap "failed=1; exit" TERM INT

# Runs a command for at most so many seconds, of what is left of ten minutes; its output is NAME.log.
check() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 status=0 left=$((575 - SECONDS)) begun=$SECONDS
    shift 2
    if [ "$left" -lt 5 ]; then
        echo "skipped  $name: no time is left" >>"$summary"
        failed=1
        return 1
    fi
    timeout -k 5 $((limit < left ? limit : left)) "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
    if [ "$status" = 0 ]; then
        echo "ok       $name ($((SECONDS - begun)) s)" >>"$summary"
    else
        echo "FAILED   $name (status $status): $(tail -n 1 "$logs/$name.log")" >>"$summary"
        failed=1
    fi
    return "$status"
}

# ---- The build --------------------------------------------------------------------------------------

with=() # comes before each of sluice's programs
if [ -d "$packed" ]; then
    root=$packed
    # cuBLASLt is the toolkit's, or that of PyTorch's packages.
    cublas=$(find /usr/local/cuda*/ "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia" \
        -name 'libcublasLt.so.*' 2>/dev/null | sed 1q)
    with=(env "LD_LIBRARY_PATH=$PWD/$packed/lib:${cublas%/*}:${LD_LIBRARY_PATH-}")
else
    root=$build
    check configure 60 "${configure[@]}" || exit
    check build 270 cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" || exit
fi
program=("${with[@]}" "$root/bin/sluice")
step=("${with[@]}" "$root/bench/bench_step")

# ---- Correctness ------------------------------------------------------------------------------------

# The losses of a short run are in NAME.json.
losses() { # NAME OPTION...
    check "train-$1" 60 "${train[@]}" --emsize 64 --nhid 64 --nhead 2 --nlayers 2 --bptt 16 --batch-size 8 \
        --max-batches 5 --chunks 2 --log-json "$logs/$1.json" "${@:2}"
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$logs/$1.json" >"$logs/$1.losses"
}

# Whether the losses of two runs differ by at most BOUND of each; 0: the same bits.
near() { # NAME NAME BOUND
    check "$1-is-$2" 5 awk -F: -v bound="$3" '
        FILENAME == ARGV[1] { first[FNR] = $2; count = FNR; next }
        { d = $2 - first[FNR]; if (d < 0) d = -d; if (!(d <= bound * $2)) { print FNR, first[FNR], $2; bad = 1 } }
        END { if (FNR < 10 || FNR != count) { print "too few numbers"; bad = 1 } exit bad }' "$logs/$1.losses" "$logs/$2.losses"
}

check_all() {
    check operators 90 env SLUICE_TEST_DEVICES=cuda:0,cuda:0/1 "${with[@]}" "$root/tests/test_device" operators
    check attention 30 env SLUICE_TEST_DEVICES=cuda:0 "${with[@]}" "$root/tests/test_device" attention
    check text 20 "${program[@]}" data --synthetic "$logs/text" --tokens 40000
    train=("${program[@]}" train --data "$logs/text" --epochs 1 --eval-batch-size 8 --quiet)
    losses cpu --devices cpu:0
    for precision in f32 tf32 bf16; do
        losses "$precision" --devices cuda:0 --precision "$precision"
        losses "$precision-stages" --devices cuda:0/0,cuda:0/1 --precision "$precision"
        near "$precision" "$precision-stages" 0
    done
    losses again --devices cuda:0
    losses mixed --devices cpu:0,cuda:0
    losses replicas --dp 2 --devices cuda:0/0,cuda:0/1 --optimizer adamw --lr 0.001
    losses zero --dp 2 --zero --devices cuda:0/0,cuda:0/1 --optimizer adamw --lr 0.001
    near cpu f32 1e-3
    near cpu mixed 1e-3
    near f32 tf32 3e-2
    near f32 bf16 2e-2
    near f32 again 0
    near replicas zero 0
    local gpus
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c .)
    if [ "$gpus" -ge 2 ]; then # by NCCL
        losses nccl --dp 2 --nccl --devices cuda:0,cuda:1 --optimizer adamw --lr 0.001
        near replicas nccl 0
    else
        echo "skipped  nccl: it needs two GPUs, and this machine has $gpus" >>"$summary"
    fi
    if ! sanitizer=$(command -v compute-sanitizer); then
        echo "skipped  compute-sanitizer: it was not found" >>"$summary"
        return
    fi
    for tool in memcheck racecheck; do
        check "$tool" 75 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 1 "${train[@]}" \
            --emsize 32 --nhid 32 --nhead 2 --nlayers 1 --bptt 8 --batch-size 4 --max-batches 2 --eval-max-batches 1 \
            --devices cuda:0/0,cuda:0/1
    done
}

# ---- Speed ------------------------------------------------------------------------------------------

# Runs a program that prints a line of JSON, which goes to the figures with the case's name and size.
figure() { # NAME CASE SECONDS COMMAND...
    check "$1-$2" "$3" "${@:4}" || return
    printf '{"name":"%s","case":"%s","figures":%s}\n' "$1" "$2" "$(grep '^{' "$logs/$1-$2.log" | tail -n 1)" \
        >>"$figures"
}

speed_all() {
    check peak 60 python3 bench/cuda_table.py --peak && grep "^{" "$logs/peak.log" >>"$figures"
    for layers in 8 12; do # 1.06 and 1.44 billion parameters
        for size in "20 35" "32 512"; do
            local batch=${size% *} bptt=${size#* }
            local case="$layers-layers-$batch-x-$bptt"
            local flags=(--emsize 4096 --nlayers "$layers" --nhead 16 --batch "$batch" --bptt "$bptt")
            figure sluice-bf16 "$case" 40 "${step[@]}" "${flags[@]}" --devices cuda:0 \
                --precision bf16 --steps 10
            figure pytorch "$case" 110 python3 bench/pytorch_lm.py "${flags[@]}" --device cuda --stages 1 \
                --modes "eager bf16,compiled bf16" --steps 10
        done
    done
    local flags=(--emsize 4096 --nlayers 8 --nhead 16 --devices "cuda:0/0,cuda:0/1" --stages 2 --chunks 4)
    figure sluice-bf16-stages 8-layers-20-x-35 40 "${step[@]}" "${flags[@]}" --precision bf16
    for precision in f32 tf32; do
        figure "sluice-$precision" 8-layers-20-x-35 40 "${step[@]}" --emsize 4096 --nlayers 8 \
            --nhead 16 --devices cuda:0 --precision "$precision"
    done
    figure pytorch-f32 8-layers-20-x-35 60 python3 bench/pytorch_lm.py --emsize 4096 --nlayers 8 --nhead 16 \
        --batch 20 --device cuda --stages 1 --modes "eager f32,eager tf32"
}

[ "$part" = speed ] || check_all
[ "$part" = check ] || speed_all
exit
