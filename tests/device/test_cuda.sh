#!/bin/bash
# `sluice train` on CUDA devices without a GPU: tests/cuda/sluice_cuda.so runs the device's own code
# on a runtime that queues work (tests/device/cuda/fake_cuda.h). Its memory is closed to the host.
. "$(dirname "$0")/../support/script.sh"

fake=$(dirname "$program")/../tests/cuda
[ -f "$fake/sluice_cuda.so" ] || { echo "skipped: no CUDA toolkit, or no C++ compiler, was found"; exit 77; }

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
train=("$program" train --data "$scratch/text" --emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8
    --batch-size 8 --eval-batch-size 8 --eval-max-batches 1 --epochs 1 --max-batches 4 --lr 1 --quiet)

launcher=()    # of processes
without_mpi=   # the reason to leave out what needs it
[ -f "$(dirname "$program")/../lib/sluice/sluice_mpi.so" ] || without_mpi="sluice was built without MPI"
command -v mpirun >/dev/null || without_mpi="there is no mpirun"

# Runs the options; the numbers of the run are in NAME.
run() { # NAME OPTION...
    LD_LIBRARY_PATH=$fake FAKE_CUDA_CLOSED=1 timeout 120 "${launcher[@]}" "${train[@]}" "${@:2}" \
        --log-json "$scratch/log" >"$scratch/out" 2>&1 || fail "${*:2}: does not train"
    grep -oE '"(loss|grad_norm|test_loss)":[^,}]*' "$scratch/log" >"$scratch/$1"
    [ "$(wc -l <"$scratch/$1")" -ge 8 ] || fail "${*:2}: the log has too few numbers"
}

# As near as float32 sums in another order are after a few steps.
near() { # NAME NAME [BOUND]
    paste -d: "$scratch/$1" "$scratch/$2" |
        awk -F: -v bound="${3:-2e-5}" '{ d = $2 - $4; if (d < 0) d = -d; if (!(d <= bound * $2)) exit 1 }' ||
        fail "$1 and $2 differ: $(paste "$scratch/$1" "$scratch/$2")"
}

run cpu --devices cpu:0 --chunks 2
run cuda --devices cuda:0 --chunks 2
near cpu cuda
warning='CUDA devices have been tried on one H100 alone'
! grep -q "$warning" "$scratch/out" || fail "one GPU is warned of"

# The same bits, however the model is cut, and whatever order the queues run in.
export SLUICE_TEST_SEED=7
run virtual --devices cuda:0/0,cuda:0/1 --chunks 2
! grep -q "$warning" "$scratch/out" || fail "virtual devices of one GPU are warned of"
run gpus --devices cuda:0,cuda:1 --chunks 2 --schedule zb-h1
grep -q "$warning" "$scratch/out" || fail "two GPUs are not warned of"
diff "$scratch/cuda" "$scratch/virtual" || fail "two stages on virtual devices give other bits than one"
diff "$scratch/cuda" "$scratch/gpus" || fail "two stages on two GPUs give other bits than one"

# What to change in a run is said of GPUs as well, which keep their stages; virtual devices share theirs.
plan() { # by the log of the last run
    "$program" plan --from "$scratch/log" --json >"$scratch/plans" 2>"$scratch/err"
}
plan || fail "--from of two GPUs: $(cat "$scratch/err")"
python3 -c 'import json, sys
found = json.load(open(sys.argv[1]))
assert 0 < found["run"]["memory_bytes"] < 1 << 24, found["run"] # a GPU has no program in its memory
for plan in found["plans"] + found["changes"]:
    assert plan["options"][:4] == ["--dp", "1", "--pp", "2"] and "--devices" not in plan["options"], plan' "$scratch/plans" ||
    fail "--from of two GPUs: other plans"
run virtual --devices cuda:0/0,cuda:0/1 --chunks 2
! plan || fail "--from of virtual devices: status 0"
grep -q "its devices share GPUs" "$scratch/err" || fail "--from of virtual devices: $(cat "$scratch/err")"

# A profile of a GPU says what memory it has, and a plan can be made by it.
model=(--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --ntokens 50 --seq-len 8)
LD_LIBRARY_PATH=$fake FAKE_CUDA_CLOSED=1 timeout 120 "$program" profile "${model[@]}" --devices cuda:0 --profile-seconds 0.1 -o "$scratch/node.json" \
    >"$scratch/out" 2>&1 || fail "a profile of a GPU: $(cat "$scratch/out")"
python3 -c 'import json, sys
[node] = json.load(open(sys.argv[1]))["nodes"]
[memory] = {record["usable_bytes"] for record in map(json.loads, open(sys.argv[2])) if record["record"] == "memory"}
assert node["device"] == "cuda" and node["memory_bytes"] == memory > node["reserved_bytes"], (node, memory)' "$scratch/node.json" "$scratch/log" ||
    fail "a profile of a GPU: other memory"

run mixed --devices cuda:1,cpu:0 --chunks 2 --recompute always
near cpu mixed

run cpu_bf16 --devices cpu:0 --precision bf16 --chunks 2
run cuda_bf16 --devices cuda:0 --precision bf16 --chunks 2
run virtual_bf16 --devices cuda:0/0,cuda:0/1 --precision bf16 --chunks 2
near cpu_bf16 cuda_bf16 2e-3 # a value may be rounded up here and down there, and gradients before sums of them
diff "$scratch/cuda_bf16" "$scratch/virtual_bf16" || fail "in bf16, two stages give other bits than one"

# Products in TF32 are other numbers, and the same however the model is cut.
run cuda_tf32 --devices cuda:0 --precision tf32 --chunks 2
run virtual_tf32 --devices cuda:0/0,cuda:0/1 --precision tf32 --chunks 2
near cuda cuda_tf32 1e-2
! diff "$scratch/cuda" "$scratch/cuda_tf32" >"$scratch/out" || fail "tf32 has the bits of f32"
diff "$scratch/cuda_tf32" "$scratch/virtual_tf32" || fail "in tf32, two stages give other bits than one"

# Models of other families: either norm, learned and rotary positions, grouped heads, GELU and SwiGLU. Their heads are
# tied, so first and last stage have one device.
for family in gpt2 llama3 qwen3; do (
    train=("$program" train --init "$models/$family" --data "$models/$family/rows.jsonl" --batch-size 2 --epochs 4 --lr 1e-3
        --chunks 2 --quiet)
    stages=(--devices "cuda:0,cuda:1" --schedule zb-v --balance "1,1,1,2")
    run cpu --devices cpu:0
    run cuda --devices cuda:0
    run gpus "${stages[@]}"
    run cpu_bf16 --devices cpu:0 --precision bf16
    run cuda_bf16 --devices cuda:0 --precision bf16
    run gpus_bf16 "${stages[@]}" --precision bf16
    near cpu cuda
    near cpu_bf16 cuda_bf16 2e-3
    diff "$scratch/cuda" "$scratch/gpus" || fail "$family: two GPUs give other bits than one"
    diff "$scratch/cuda_bf16" "$scratch/gpus_bf16" || fail "$family: in bf16, two GPUs give other bits than one"
); done

# A shard before the last one is rounded in the device's memory.
shards=(--dp 1 --shards 2 --comm-precision bf16)
run cpu_shards --devices cpu:0 "${shards[@]}"
run cuda_shards --devices cuda:0 "${shards[@]}"
near cpu_shards cuda_shards 1e-3

# Replicas exchange gradients, values and the optimizer's shards by the host; and what is saved on
# one kind of device goes on on another.
replicas=(--dp 2 --chunks 2 --optimizer adamw --lr 0.001)
run replicas "${replicas[@]}" --devices cpu:0,cpu:1
run cuda_replicas "${replicas[@]}" --zero --devices cuda:0/0,cuda:1 --save-dir "$scratch/saved" --save-every 2
near replicas cuda_replicas
for devices in cpu:0,cpu:1 cuda:0/0,cuda:0/1; do
    LD_LIBRARY_PATH=$fake FAKE_CUDA_CLOSED=1 timeout 120 "${train[@]}" --optimizer adamw --lr 0.001 \
        --chunks 2 --resume "$scratch/saved/step-00000002" --dp 2 --devices $devices --log-json "$scratch/log" \
        >"$scratch/out" 2>&1 || fail "the run does not go on on $devices"
    grep -oE '"test_loss":[^,}]*' "$scratch/log" | tail -n 1 >"$scratch/resumed"
    grep test_loss "$scratch/cuda_replicas" >"$scratch/whole"
    near resumed whole
done

# By NCCL (fake_nccl.c), gradients and weights stay on the GPUs: the same bits.
run nccl "${replicas[@]}" --nccl --zero --devices cuda:0/0,cuda:1
diff "$scratch/cuda_replicas" "$scratch/nccl" || fail "NCCL gives other bits than the host"

# Processes exchange all that, and what stages send each other, over MPI, or by NCCL: the same bits.
if [ -z "$without_mpi" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    launcher=(mpirun -n 4)
    devices="cuda:0;cuda:1;cuda:0/1;cuda:1/1"
    run processes "${replicas[@]}" --pp 2 --zero --devices "$devices"
    run nccl_processes "${replicas[@]}" --pp 2 --zero --devices "$devices" --nccl
    launcher=(mpirun -n 2) # whose pools stay closed, or copies between their own GPUs would be refused
    FAKE_CUDA_ZEROING=1 run nccl_pairs "${replicas[@]}" --pp 2 --zero --devices "cuda:0,cuda:1;cuda:0/1,cuda:1/1" --nccl
    launcher=()
    diff "$scratch/cuda_replicas" "$scratch/processes" || fail "processes give other bits than threads"
    diff "$scratch/cuda_replicas" "$scratch/nccl_processes" || fail "NCCL gives processes other bits"
    diff "$scratch/cuda_replicas" "$scratch/nccl_pairs" || fail "NCCL gives processes of two stages other bits"
fi

shards=(--dp 2 --shards 3 --comm-precision bf16 --devices "cuda:0,cuda:1")
run host_shards "${shards[@]}"
run nccl_shards "${shards[@]}" --nccl
diff "$scratch/host_shards" "$scratch/nccl_shards" || fail "NCCL gives shards other bits than the host"

# Memory that is not there, an NCCL that cannot be opened, and machines without a driver or a GPU, are sentences.
refused() { # TEXT VARIABLE OPTION...
    ! LD_LIBRARY_PATH=$fake env "$2" "${train[@]}" "${@:3}" >"$scratch/out" 2>&1 || fail "${*:2}: trains"
    grep -qE "$1" "$scratch/out" || fail "${*:2}: another error"
}
categories='parameters [0-9]+, gradients [0-9]+, optimizer [0-9]+, activations [0-9]+, workspace [0-9]+'
refused "cuda:0: no memory for [0-9]+ bytes of [a-z]+; it holds these bytes: $categories; the process can have " \
    FAKE_CUDA_BYTES=100000 --devices cuda:0
refused "cuda:0: sluice_cuda.so is of another version of sluice than $("$program" --version | cut -d ' ' -f 2)" \
    FAKE_CUDA_VERSION=0.0.1 --devices cuda:0
refused 'CUDA finds no GPU: there is no driver' FAKE_CUDA_NO_DRIVER=1 --devices cuda:0
refused 'cuda:2: the machine has no GPU 2 \(it has 2\)' A=0 --devices cuda:2
refused 'cuda:0: attention: heads of at most 256 columns, got 320: use more heads or a CPU' A=0 \
    --devices cuda:0 --emsize 320 --nhead 1
refused 'cpu:0 has no products in tf32: use f32 or bf16, or GPUs for all stages' A=0 \
    --devices cuda:0,cpu:0 --precision tf32
refused 'is tied to 0.encoder.weight of stage 0 on cuda:0/0: both stages must be on one device' A=0 \
    --devices cuda:0/0,cuda:0/1 --tie
refused 'cpu:[01] is not a CUDA device, and NCCL works on no other' A=0 --dp 2 --devices cpu:0,cpu:1 --nccl
refused 'need libnccl.so.2 of NCCL 2.18 or later: this one is 2.10.3' FAKE_NCCL_VERSION=21003 \
    --dp 2 --devices cuda:0,cuda:1 --nccl
mkdir "$scratch/lib" # where NCCL is not a library
ln -s "$(realpath "$fake/sluice_cuda.so")" "$scratch/lib"
touch "$scratch/lib/libnccl.so.2"
fake=$scratch/lib
refused 'cuda:[01]: groups of the backend nccl need libnccl.so.2 of NCCL 2.18 or later: /.*: file too short' \
    A=0 --dp 2 --devices cuda:0,cuda:1 --nccl

[ -z "$without_mpi" ] || { echo "skipped: runs of several processes: $without_mpi"; exit 77; }
