#!/bin/bash
# Weights and their vocabulary, and the files of a synthetic text, are several files that belong
# together. A save is killed before each call that changes one of them (tests/faults/io_faults.c):
# what lies there then is the older or the newer weights with their own vocabulary, and a corpus that
# can be written again. A save that comes after a killed one is killed at each of its calls as well.
set -euo pipefail
[ -x "$SLUICE_PROGRAM" ] || { echo "$SLUICE_PROGRAM is not there"; exit 77; }
faults=$(dirname "$SLUICE_PROGRAM")/../tests/libio_faults.so
[ -f "$faults" ] || { echo "$faults was not built"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
    printf 'FAILED  %s\n' "$*"
    exit 1
}

killed() { # N FOLDER COMMAND...: whether the command, killed before its N-th change in FOLDER, died
    local status=0 call=$1 folder=$2
    shift 2
    { LD_PRELOAD=$faults SLUICE_IO_ONLY=$folder SLUICE_IO_KILL=$call "$SLUICE_PROGRAM" "$@" >said 2>&1; } \
        2>/dev/null || status=$?
    [ $status = 0 ] || [ $status = 137 ] || fail "status $status of $*: $(cat said)"
    [ $status = 137 ]
}

# ---- Weights and vocabulary ------------------------------------------------------------------------

small=(--bptt 4 --eval-max-batches 1 --devices cpu)

train() { # TEXT, then what follows the program's name
    echo train --data "$1" --emsize 2 --nhid 2 --nlayers 1 --nhead 1 --max-batches 1 --epochs 1 --quiet \
        "${small[@]}"
}

score() { # FILE: the loss of its weights on text 1, read by the vocabulary that is found
    "$SLUICE_PROGRAM" eval --init "$1" --data text1 "${small[@]}" 2>&1
}

for i in 1 2 3; do
    "$SLUICE_PROGRAM" data --synthetic text$i --seed $i --tokens 30000 --vocab vocab$i >/dev/null
    mkdir pair$i
    # shellcheck disable=SC2046 # the command's words
    "$SLUICE_PROGRAM" $(train text$i) --save pair$i/m.safetensors >/dev/null
    scores[i]=$(score pair$i/m.safetensors)
done
[ "$(wc -l <vocab1)" = "$(wc -l <vocab2)" ] || fail "the vocabularies are of different sizes"
[ "$(printf '%s\n' "${scores[@]}" | sort -u | wc -l)" = 3 ] || fail "the scores are alike: ${scores[*]}"
cp -r pair1 mixed
cp pair2/m.vocab.txt mixed
score mixed/m.safetensors >said && fail "weights with another's vocabulary: $(cat said)"
grep -q '^sluice: mixed/m.vocab.txt: this vocabulary (checksum .*) is not the one that mixed/m.safetensors was' said ||
    fail "$(cat said)"

# FROM TEXT OLD: saves the model of TEXT over a copy of the folder FROM, whose pair is number OLD,
# killed at each call in turn; leaves each folder that came of it in after/. Says how many there are.
kill_each() {
    local from=$1 text=$2 old=$3 call=0 now key seen=""
    rm -rf after
    mkdir after
    while
        call=$((call + 1))
        rm -rf work
        cp -r "$from" work
        # shellcheck disable=SC2046
        killed $call work $(train "text$text") --save work/m.safetensors
    do
        now=$(score work/m.safetensors) || fail "killed at call $call, nothing can be used: $now"
        if [ "$now" = "${scores[$text]}" ]; then
            seen+=n
        elif [ "$now" = "${scores[$old]}" ]; then
            seen+=o
        else
            fail "killed at call $call, neither pair: $now"
        fi
        key=$(cat work/* | md5sum | cut -c1-8)
        [ -e "after/$key.${seen: -1}" ] || cp -r work "after/$key.${seen: -1}"
    done
    [ "$(score work/m.safetensors)" = "${scores[$text]}" ] || fail "the whole save is not the new pair"
    [ "$(find work -name '*.new' | wc -l)" = 0 ] || fail "the whole save left a file: $(ls -A work)"
    [[ $seen =~ ^o+n+$ ]] || fail "old and new pairs came in this order: $seen"
    printf 'passed  a save of pair %s over pair %s (%s), killed at each of its %s calls\n' \
        "$text" "$old" "$from" $((call - 1))
}

kill_each pair1 2 1
mv after first
waiting=0
for folder in first/*; do
    [ -e "$folder/m.vocab.txt.new" ] || continue # otherwise as above
    waiting=$((waiting + 1))
    case $folder in
    *.o) kill_each "$folder" 3 1 ;;
    *.n) kill_each "$folder" 3 2 ;;
    esac
done
[ $waiting -ge 2 ] || fail "of the killed saves $waiting have left a new vocabulary"

# Weights that say nothing of a vocabulary keep the one beside them until they are replaced.
cp -r pair2 silent
LC_ALL=C sed -i s/sluice.vocab_xxh128/sluice.vocab_XXH128/ silent/m.safetensors
kill_each silent 1 2

# A disk that is full from any call on leaves one of the two as well.
call=0
while
    call=$((call + 1))
    rm -rf work
    cp -r pair1 work
    # shellcheck disable=SC2046
    ! LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_FAIL=$call SLUICE_IO_FAILURES=1000000 \
        "$SLUICE_PROGRAM" $(train text2) --save work/m.safetensors >said 2>&1
do
    grep -q "^sluice: work/m\..*: No space left on device$" said || fail "full at call $call: $(cat said)"
    now=$(score work/m.safetensors) || fail "full from call $call on, nothing can be used: $now"
    [ "$now" = "${scores[1]}" ] || [ "$now" = "${scores[2]}" ] || fail "full from call $call on: $now"
done
printf 'passed  a disk that is full from any of %s calls on\n' $((call - 1))

# ---- A synthetic text ----------------------------------------------------------------------------

"$SLUICE_PROGRAM" data --synthetic expected --seed 9 --tokens 2000 >/dev/null
"$SLUICE_PROGRAM" data --synthetic older --seed 8 --tokens 2000 >/dev/null
call=0
while
    call=$((call + 1))
    rm -rf corpus
    cp -r older corpus
    killed $call corpus data --synthetic text --seed 9 --tokens 2000
do
    "$SLUICE_PROGRAM" data --synthetic text --seed 9 --tokens 2000 >said 2>&1 ||
        fail "killed at call $call, the corpus cannot be written again: $(cat said)"
    find corpus -name '.*.tmp' -delete # of the killed save
    diff -r expected corpus || fail "killed at call $call"
done
printf 'passed  a synthetic text, killed at each of its %s calls\n' $((call - 1))
