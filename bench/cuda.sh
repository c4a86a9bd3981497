#!/bin/bash
# Builds sluice on a machine with an NVIDIA GPU, tests the CUDA device, measures it beside PyTorch, and trains
# the tutorials' large models on it, in at most ten minutes.
#
# Usage: bench/cuda.sh [FOLDER [PART...]]
#        bench/cuda.sh pack
#
# FOLDER (build-cuda/results) gets summary.md, results.json and logs.tar.gz; the summary is printed last. Exits with 1 if
# a check failed; what follows it runs all the same. The parts, by default all of them, in this order:
#   check   operators, short trainings on every kind of list beside the CPU, compute-sanitizer
#   speed   steps beside PyTorch, and the time of each kernel in one
#   train   50 steps of the tutorials' models of 1.06 and 1.44 billion parameters, on the text of SLUICE_DATA if it is set
# Current PyTorch is python3's; what needs it, ncu or compute-sanitizer is skipped without.
#
# `pack` is for a GPU's machine without the libraries' packages: on another one, with a C library that is not newer, it
# writes build-cuda/packed.tar.xz. Where that file is there, nothing is built. CMAKE_ARGUMENTS is given to cmake.
#
# CUDA_SCRIPT_TRY=1 tries this script where there is no GPU: on the tests' CUDA runtime, with small models.
set -uo pipefail
CDPATH='' cd "$(dirname "$0")/.." || exit 1

build="build-cuda"
packed="$build/packed"
targets=(sluice_program test_device bench_step)
try=${CUDA_SCRIPT_TRY-}
if [ "$try" ]; then
    targets+=(fake_cuda)
else
    targets+=(sluice_cuda)
fi

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
    tar -cJf "$packed.tar.xz" "$packed" && rm -rf "$packed" && du -h "$packed.tar.xz"
}

if [ "${1-}" = pack ]; then
    pack
    exit
fi

folder=${1:-$build/results}
parts=("${@:2}")
[ ${#parts[@]} -gt 0 ] || parts=(check speed train)
logs=$build/logs
rm -rf "$logs"
mkdir -p "$folder" "$logs"
summary=$logs/summary
figures=$logs/figures # a line of JSON for each
: >"$summary"
: >"$figures"

# What is there at the end, also when time is over.
finish() {
    local failed=0
    trap - EXIT TERM INT
    grep -q '^FAILED' "$summary" && failed=1
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
trap exit TERM INT

# Runs a command for at most so many seconds, of what is left of ten minutes; its output is NAME.log.
check() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 status=0 left=$((575 - SECONDS)) begun=$SECONDS
    shift 2
    if [ "$left" -lt 5 ]; then
        echo "FAILED   $name: no time is left" >>"$summary"
        return 1
    fi
    timeout -k 5 $((limit < left ? limit : left)) "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
    if [ "$status" = 0 ]; then
        echo "ok       $name ($((SECONDS - begun)) s)" >>"$summary"
    else
        echo "FAILED   $name (status $status): $(tail -n 1 "$logs/$name.log")" >>"$summary"
    fi
    return "$status"
}

skip() { echo "skipped  $1: $2" >>"$summary"; }

# ---- The build --------------------------------------------------------------------------------------

with=() # comes before each of sluice's programs
[ ! -f "$packed.tar.xz" ] || [ "$try" ] || tar -xJf "$packed.tar.xz" || exit
if [ -d "$packed" ] && [ ! "$try" ]; then
    root=$packed
    # cuBLASLt is the toolkit's, or that of PyTorch's packages.
    cublas=$(find /usr/local/cuda*/ "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia" \
        -name 'libcublasLt.so.*' 2>/dev/null | sed 1q)
    with=(env "LD_LIBRARY_PATH=$PWD/$packed/lib:${cublas%/*}:${LD_LIBRARY_PATH-}")
else
    root=$build
    check configure 60 "${configure[@]}" || exit
    check build 270 cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" || exit
    [ ! "$try" ] || with=(env "LD_LIBRARY_PATH=$PWD/$build/tests/cuda" FAKE_CUDA_CLOSED=1)
fi
program=("${with[@]}" "$root/bin/sluice")
step=("${with[@]}" "$root/bench/bench_step")

# The tutorials' large models, by their number of layers: 1.06 and 1.44 billion parameters.
width=4096
heads=16
layers_of_models=(8 12)
batches=("20 35" "32 512")
steps=50
if [ "$try" ]; then
    width=64
    layers_of_models=(2 3)
    batches=("2 8" "3 16")
    steps=2
fi

# ---- Correctness ------------------------------------------------------------------------------------

# The losses of a short run are in NAME.losses.
losses() { # NAME OPTION...
    check "train-$1" 60 "${program[@]}" "${training[@]}" --emsize 64 --nhid 64 --nhead 2 --nlayers 2 --bptt 16 --batch-size 8 \
        --max-batches 5 --eval-max-batches 5 --chunks 2 --log-json "$logs/$1.json" "${@:2}"
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$logs/$1.json" >"$logs/$1.losses"
}

# Whether the losses of two runs differ by at most BOUND of each; 0: the same bits.
near() { # NAME NAME BOUND
    check "$1-is-$2" 5 awk -F: -v bound="$3" '
        FILENAME == ARGV[1] { first[FNR] = $2; count = FNR; next }
        { d = $2 - first[FNR]; if (d < 0) d = -d; if (!(d <= bound * $2)) { print FNR, first[FNR], $2; bad = 1 } }
        END { if (FNR < 10 || FNR != count) { print "too few numbers"; bad = 1 } exit bad }' "$logs/$1.losses" "$logs/$2.losses"
}

train_on_lists() {
    check text 20 "${program[@]}" data --synthetic "$logs/text" --tokens 40000
    losses cpu --devices cpu:0
    for precision in f32 tf32 bf16; do
        losses "$precision" --devices cuda:0 --precision "$precision"
        losses "$precision-again" --devices cuda:0 --precision "$precision"
        losses "$precision-stages" --devices cuda:0/0,cuda:0/1 --precision "$precision"
        near "$precision" "$precision-again" 0
        near "$precision" "$precision-stages" 0
    done
    losses mixed --devices cpu:0,cuda:0
    losses cpu-bf16 --devices cpu:0 --precision bf16
    losses replicas --dp 2 --devices cuda:0/0,cuda:0/1 --optimizer adamw --lr 0.001
    losses zero --dp 2 --zero --devices cuda:0/0,cuda:0/1 --optimizer adamw --lr 0.001
    near cpu f32 2e-5
    near cpu mixed 2e-5
    near f32 tf32 1e-2
    near cpu-bf16 bf16 5e-3
    near replicas zero 0
    local gpus
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c .)
    if [ "$gpus" -ge 2 ]; then # by NCCL
        losses nccl --dp 2 --nccl --devices cuda:0,cuda:1 --optimizer adamw --lr 0.001
        near replicas nccl 0
    else
        skip nccl "it needs two GPUs, and this machine has $gpus"
    fi
}

# On the operators, and on a training over two virtual devices. Racecheck is too slow for all of them: it gets those
# that share most.
sanitize() {
    local sanitizer tool test
    if ! sanitizer=$(command -v compute-sanitizer); then
        skip compute-sanitizer "it was not found"
        return
    fi
    for tool in memcheck racecheck; do
        local command=("$sanitizer" --tool "$tool" --target-processes all --error-exitcode 1)
        for test in operators attention stored_bf16; do
            [ "$tool-$test" = racecheck-operators ] || check "$tool-$test" 60 env SLUICE_TEST_DEVICES=cuda:0 \
                "${with[@]}" "${command[@]}" "$root/tests/test_device" "$test" &
        done
        check "$tool-training" 75 "${with[@]}" "${command[@]}" "$root/bin/sluice" "${training[@]}" --emsize 32 \
            --nhid 32 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4 --max-batches 2 --eval-max-batches 1 \
            --devices cuda:0/0,cuda:0/1 &
    done
}

# What does not wait for each other runs at once.
check_part() {
    training=(train --data "$logs/text" --epochs 1 --eval-batch-size 8 --lr 1 --quiet)
    check operators 150 env SLUICE_TEST_DEVICES=cuda:0,cuda:0/1 "${with[@]}" "$root/tests/test_device" operators &
    for test in attention stored_bf16; do
        check "$test" 60 env SLUICE_TEST_DEVICES=cuda:0 "${with[@]}" "$root/tests/test_device" "$test" &
    done
    train_on_lists
    sanitize
    wait
}

# ---- Speed ------------------------------------------------------------------------------------------

# Runs a program that prints a line of JSON, which goes to the figures with the case's name and size.
figure() { # NAME CASE SECONDS COMMAND...
    check "$1-$2" "$3" "${@:4}" || return
    printf '{"name":"%s","case":"%s","figures":%s}\n' "$1" "$2" "$(grep '^{' "$logs/$1-$2.log" | tail -n 1)" \
        >>"$figures"
}

# The time of each kernel in a step of a model of two layers, which ncu runs one by one.
profile_kernels() { # CASE OPTION...
    local ncu
    if ! ncu=$(command -v ncu); then
        skip "kernels-$1" "ncu was not found"
        return
    fi
    check "ncu-$1" 60 "${with[@]}" "$ncu" --clock-control none --metrics gpu__time_duration.sum --csv --log-file \
        "$logs/kernels-$1.csv" "$root/bench/bench_step" "${@:2}" --steps 1 &&
        check "kernels-$1" 10 python3 bench/cuda_table.py --kernels "$logs/kernels-$1.csv"
}

speed_part() {
    local pytorch=1 layers size precision flags stages
    if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>"$logs/pytorch"; then
        skip pytorch "python3 has no PyTorch with a GPU: $(tail -n 1 "$logs/pytorch")"
        pytorch=
    fi
    [ ! "$pytorch" ] || { check peak 60 python3 bench/cuda_table.py --peak && grep "^{" "$logs/peak.log" >>"$figures"; }
    for layers in "${layers_of_models[@]}"; do
        for size in "${batches[@]}"; do
            local batch=${size% *} bptt=${size#* }
            local case="$layers-layers-$batch-x-$bptt"
            flags=(--emsize "$width" --nlayers "$layers" --nhead "$heads" --batch "$batch" --bptt "$bptt")
            figure sluice-bf16 "$case" 40 "${step[@]}" "${flags[@]}" --devices cuda:0 --precision bf16 --steps 10
            # PyTorch compiles for most of a minute: it gets the last model alone.
            [ ! "$pytorch" ] || [ "$layers" != "${layers_of_models[1]}" ] || figure pytorch "$case" 110 python3 \
                bench/pytorch_lm.py "${flags[@]}" --device cuda --stages 1 --modes "eager bf16,compiled bf16" --steps 10
        done
    done
    # From here on with the last of the models and batches.
    stages=(--devices "cuda:0/0,cuda:0/1" --stages 2 --chunks 4)
    figure sluice-bf16-chunks "$case" 40 "${step[@]}" "${flags[@]}" --devices cuda:0 --chunks 4 --precision bf16
    figure sluice-bf16-stages "$case" 40 "${step[@]}" "${flags[@]}" "${stages[@]}" --precision bf16
    for precision in f32 tf32; do
        figure "sluice-$precision" "$case" 40 "${step[@]}" "${flags[@]}" --devices cuda:0 --precision "$precision" \
            --steps 3
    done
    [ ! "$pytorch" ] || figure pytorch-f32 "$case" 90 python3 bench/pytorch_lm.py "${flags[@]}" --device cuda \
        --stages 1 --modes "eager f32,eager tf32" --steps 3
    profile_kernels "$case" "${flags[@]}" --nlayers 2 --devices cuda:0 --precision bf16
}

# ---- Training ---------------------------------------------------------------------------------------

# Losses are in the logs NAME.json; the first steps of the smaller model on the CPU as well.
train_part() {
    local layers data=${SLUICE_DATA-}
    if [ ! "$data" ]; then
        data=$logs/words
        check words 20 "${program[@]}" data --synthetic "$data" --tokens 400000
    fi
    local large=("${program[@]}" train --preset pipeline-tutorial --data "$data" --emsize "$width" --nhid "$width"
        --nhead "$heads" --epochs 1 --eval-max-batches 20 --quiet --pp 1)
    for layers in "${layers_of_models[@]}"; do
        check "large-$layers" 100 "${large[@]}" --nlayers "$layers" --devices cuda:0 --precision bf16 \
            --max-batches "$steps" --log-json "$logs/large-$layers.json"
        check "large-$layers-stages" 100 "${large[@]}" --nlayers "$layers" --devices cuda:0/0,cuda:0/1 --pp 2 \
            --precision bf16 --max-batches "$steps" --log-json "$logs/large-$layers-stages.json"
    done
    layers=${layers_of_models[0]}
    for device in cuda:0 cpu:0; do
        check "few-steps-$device" 120 "${large[@]}" --nlayers "$layers" --devices "$device" --max-batches 3 --dropout 0 \
            --eval-max-batches 1 --log-json "$logs/few-steps-$device.json"
    done
}

for part in "${parts[@]}"; do
    case $part in
    check) check_part ;;
    speed) speed_part ;;
    train) train_part ;;
    *) echo "FAILED   $part: the parts are check, speed and train" >>"$summary" ;;
    esac
done
