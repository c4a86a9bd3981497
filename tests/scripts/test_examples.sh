#!/bin/bash
# Each example is run, and prints what the pages and its own comment say: the sizes of the article on DataParallel
# for 2, 3 and 8 devices, those of the toy model of the article on DDP, equal weights on every rank, equal losses
# for every cut. (examples/pytorch_weights.py is run by tests/parity/test_checkpoints.py.)
set -euo pipefail

examples=$(dirname "$(dirname "${SLUICE_PROGRAM:-absent/bin/sluice}")")/examples
[ -x "$examples/data_parallel" ] || {
    echo "skipped: SLUICE_PROGRAM does not name a program with examples beside it"
    exit 77
}
for source in "${SLUICE_SOURCE_DIR:-$(dirname "$0")/../..}"/examples/*.c; do
    name=$(basename "$source" .c)
    grep -qE "([$]examples/|check_ranks |falling_alike )$name\\b" "$0" || {
        echo "failed: examples/$name.c is not run here" >&2
        exit 1
    }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
    echo "failed: $*" >&2
    exit 1
}

# What must be the same but for the order of lines, in which threads print.
compare() {
    diff <(sort "$1") <(sort "$2") || fail "$3 printed the lines marked <, expected those marked >"
}

# ---- data_parallel -------------------------------------------------------------------------

# One batch's lines as the article has them: `batch ROWS OF_REPLICA_0 OF_REPLICA_1 …`.
batch() {
    local rows=$1 device=0 share
    shift
    for share; do
        printf '\tIn Model (cpu:%d): input size [%d, 5] output size [%d, 2]\n' \
            $((device++)) "$share" "$share"
    done
    echo "Outside: input size [$rows, 5] output size [$rows, 2]"
}

# `check DEVICES "SHARES OF 30 ROWS" "SHARES OF 10 ROWS"`: three batches of 30 and one of 10, each
# one's replicas before the line outside.
check() {
    local shards=() number=0
    "$examples/data_parallel" "$1" >printed
    [ "$(head -n 1 printed)" = "Let's use $1 devices!" ] || fail "the first line: $(head -n 1 printed)"
    tail -n +2 printed | awk '{ print > "batch" n + 0 } /^Outside/ { n++ }'
    for rows in 30 30 30 10; do
        read -ra shards <<<"$([ "$rows" = 30 ] && echo "$2" || echo "$3")"
        batch "$rows" "${shards[@]}" >expected
        compare "batch$number" expected "data_parallel $1, batch $number,"
        [ "$(tail -n 1 "batch$number")" = "$(tail -n 1 expected)" ] || fail "Outside is not last"
        number=$((number + 1))
    done
    [ ! -e batch4 ] || fail "data_parallel $1 printed more than 4 batches"
}

check 1 "30" "10"
check 2 "15 15" "5 5"
check 3 "10 10 10" "4 4 2"
check 8 "4 4 4 4 4 4 4 2" "2 2 2 2 2"

# ---- The toy model under DDP ---------------------------------------------------------------

# `check_ranks EXAMPLE RANKS`: each rank's rows go through the model once, [20, 10] to [20, 5].
check_ranks() {
    "$examples/$1" >printed
    grep "input size" printed >sizes || true
    for ((rank = 0; rank < $2; rank++)); do
        echo "[RANK $rank]: input size [20, 10] output size [20, 5]"
    done >expected
    compare sizes expected "$1"
}

# `one_value WORDS COUNT`: COUNT lines have WORDS and then a number, the same in all.
one_value() {
    sed -n "s/.*$1 \([-0-9.e]*\)\$/\1/p" printed >values
    [ "$(wc -l <values)" = "$2" ] || fail "expected $2 lines with \"$1\": $(cat printed)"
    [ "$(sort -u values | wc -l)" = 1 ] || fail "\"$1\" differs between ranks: $(cat values)"
}

check_ranks ddp_basic 4
one_value "first weight afterwards" 4
[ "$(grep -c "loss 0\.[0-9]*," printed)" = 4 ] || fail "ddp_basic: not a loss for each rank"

check_ranks ddp_model_parallel 2
one_value "stage 0 on cpu:[02], first weight" 2
one_value "stage 1 on cpu:[13], first weight" 2
for rank in 0 1; do
    sed -n "s/^\[RANK $rank\]: step [0-9], loss //p" printed >losses
    [ "$(wc -l <losses)" = 5 ] || fail "ddp_model_parallel: rank $rank did not print 5 steps"
    sort -rn losses | cmp -s losses - || fail "rank $rank's losses do not fall: $(cat losses)"
done

# Rank 1 has fewer batches; weights and bytes are equal all the same.
"$examples/ddp_uneven" >printed
[ "$(grep -c '^\[RANK 0\]: batch ' printed)" = 5 ] && [ "$(grep -c '^\[RANK 1\]: batch ' printed)" = 3 ] || fail "ddp_uneven: $(cat printed)"
one_value "exchanged [1-9][0-9]* bytes, first weight" 2

# ---- collectives ---------------------------------------------------------------------------

"$examples/collectives" >printed
{
    printf '[RANK %d]: has 1\n' 0 1
    echo "[RANK 0]: squares 0 1 4 9, sum 14"
    printf '[RANK %d]: sums 60 64 68 72\n' 0 1 2 3
} >expected
compare printed expected collectives

# ---- own_model -----------------------------------------------------------------------------

# It checks the text that it goes on with by itself.
"$examples/own_model" >printed
[ "$(tail -n 1 printed | wc -w)" = 10 ] || fail "own_model: $(cat printed)"

# ---- own_schedule --------------------------------------------------------------------------

# Its own table is drawn, timed and trained with; another one is refused where it deadlocks.
"$examples/own_schedule" | sed 's/^the loss is 0\.[0-9]*;/the loss is LOSS;/' >printed
cat >expected <<'TEXT'
0F0 0F1 ... 0B0 ... 0B1 ...
... 1F0 1I0 1F1 1I1 1W0 1W1
takes 10, of which 25.0% is idle; activations held at once: 2 and 2
the loss is LOSS; under gpipe it is the same

schedule: deadlock: rank 0 waits at 0B0 for the backward of micro-batch 0 at stage 1, which never comes:
0F0 ...
... 1F0
TEXT
diff expected printed || fail "own_schedule printed the lines marked >, expected those marked <"

# ---- ddp_checkpoint ------------------------------------------------------------------------

# The step after loading has the bits of the step after saving, on both ranks.
"$examples/ddp_checkpoint" saved >printed
grep -c "first weight saved .*, a step later \(.*\), from the checkpoint \1\$" printed >equal || true
[ "$(cat equal)" = 2 ] || fail "a step after loading differs from one after saving: $(cat printed)"
one_value "from the checkpoint" 2
for rank in 0 1; do # the device map
    [ "$(grep -c "^\[RANK $rank\]: loaded [02]\.[a-z]* to cpu:$rank\$" printed)" = 4 ] || fail "rank $rank loaded: $(cat printed)"
done
! grep -q "saved $(head -n 1 values)," printed || fail "the step after loading changed nothing"
"$SLUICE_PROGRAM" checkpoint verify saved >/dev/null || fail "ddp_checkpoint left no checkpoint"

# ---- pipeline_processes --------------------------------------------------------------------

# Two processes of a stage each print the losses of one process, to the last digit.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
"$examples/pipeline_processes" >printed
[ "$(grep -c "^process 0 has stage" printed)" = 2 ] || fail "pipeline_processes: $(cat printed)"
if ! command -v mpirun >found; then
    echo "skipped: pipeline_processes in two processes: there is no mpirun"
else
    mpirun -n 2 "$examples/pipeline_processes" >both || fail "pipeline_processes in two processes: $(cat both)"
    if ! grep -q "^process 1 has stage 1" both; then
        echo "skipped: pipeline_processes in two processes: sluice was built without MPI"
    else
        grep "^step" printed >expected
        diff <(grep "^step" both) expected || fail "two processes have other losses than one"
    fi
fi

# ---- own_layer, u_net, own_loop, fine_tuning, pipeline_tutorial, ddp_pipeline -------------------------------

# Losses fall to a small part, and are the same bits however the model is cut.
falling_alike() { # EXAMPLE LINES: the last ones have two losses each, of the first and of the last step
    "$examples/$1" | grep " in the last$" | tail -n "$2" | sed -n 's/^.*loss \([0-9.]*\) in the first step, \([0-9.]*\) in the last$/\1 \2/p' >losses
    [ "$(wc -l <losses)" = "$2" ] && [ "$(sort -u losses | wc -l)" = 1 ] || fail "$1: $(cat losses)"
    awk '{ exit !($2 < $1 / 2) }' losses || fail "$1: the losses do not fall: $(cat losses)"
}
falling_alike own_layer 2
falling_alike u_net 3
falling_alike own_loop 2
falling_alike fine_tuning 2
[ ! -e fine_tuning_model ] || fail "fine_tuning left its model"

# The table of eight micro-batches in two stages, then the losses of three epochs.
"$examples/pipeline_tutorial" >printed
grep -qx '0F6 0F5 0F4 0F3 0F2 0F1 0F0 [.]*.*0B6' printed || fail "pipeline_tutorial drew $(cat printed)"
sed -n 's/^| epoch [1-3] | loss \([0-9.]*\) | ppl .*/\1/p' printed >losses
[ "$(wc -l <losses)" = 3 ] && sort -rn losses | cmp -s losses - || fail "pipeline_tutorial: $(cat printed)"

# Each step's norm is that of the average, the same on both ranks.
"$examples/ddp_pipeline" >printed 2>&1
for rank in 0 1; do
    sed -n "s/^\[RANK $rank\]: step *\([0-9]*\), loss [0-9.]*, norm \(.*\)/\1 \2/p" printed >norms$rank
done
[ "$(wc -l <norms0)" -ge 4 ] && cmp -s norms0 norms1 || fail "ddp_pipeline: $(cat printed)"

# ---- classifier ----------------------------------------------------------------------------

# A run that is killed before one of its changes to the directory (tests/faults/io_faults.c), and
# started again, ends with the bits of one that is not.
"$examples/classifier" whole >printed
grep -q "^after step 200: test loss 0\.[0-9]*\$" printed || fail "classifier: $(cat printed)"
for call in 150 200 250; do
    status=0
    { LD_PRELOAD=$examples/../tests/libio_faults.so SLUICE_IO_ONLY=parts$call SLUICE_IO_KILL=$call \
        "$examples/classifier" parts$call >killed; } 2>/dev/null || status=$?
    [ $status = 137 ] && [ ! -s killed ] || fail "classifier was not killed: status $status, $(cat killed)"
    "$examples/classifier" parts$call >resumed
    grep -q "^resumed after step [1-9][0-9]*\$" resumed || fail "classifier did not resume: $(cat resumed)"
    [ "$(tail -n 1 resumed)" = "$(cat printed)" ] ||
        fail "classifier: resumed it printed $(cat resumed), expected $(cat printed)"
done
