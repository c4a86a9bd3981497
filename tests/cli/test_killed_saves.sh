#!/bin/bash
# A model's weights and its vocabulary, and the files of a synthetic text, are several files that belong together.
# A save is killed before each call that changes one of them (tests/faults/io_faults.c): what lies there then is
# the older or the newer model, and a corpus that can be written again. A save that comes after a killed one is
# killed at each of its calls as well.
. "$(dirname "$0")/../support/script.sh"
[ -f "$faults" ] || fail "$faults was not built"

fail() {
    printf 'FAILED  %s\n' "$*"
    exit 1
}

killed() { # N FOLDER COMMAND...: whether the command, killed before its N-th change in FOLDER, died
    local status=0 call=$1 folder=$2
    shift 2
    { LD_PRELOAD=$faults SLUICE_IO_ONLY=$folder SLUICE_IO_KILL=$call "$program" "$@" >said 2>&1; } \
        2>/dev/null || status=$?
    [ $status = 0 ] || [ $status = 137 ] || fail "status $status of $*: $(cat said)"
    [ $status = 137 ]
}

# ---- A model's directory ---------------------------------------------------------------------------

small=(--bptt 4 --eval-max-batches 1 --devices cpu)

train() { # TEXT, then what follows the program's name
    echo train --data "$1" --emsize 2 --nhid 2 --nlayers 1 --nhead 1 --max-batches 1 --epochs 1 --quiet \
        "${small[@]}"
}

declare -A known # losses, by what there is of a model, without the random parts of names
score() { # FOLDER/m: sets `scored` to the model's loss on text 1, which is computed once for the same files
    local files
    files=$(cd "${1%/m}" && {
        find . -mindepth 1 -maxdepth 1
        find m -type f -exec sha256sum {} + 2>/dev/null || find . -type f -exec sha256sum {} +
    } | sed 's/[0-9a-f]\{16\}[.]/./' | sort)
    [ -n "${known[$files]-}" ] || known[$files]=$("$program" eval --init "$1" --data text1 "${small[@]}" 2>said) || return
    scored=${known[$files]}
}

for i in 1 2 3; do
    "$program" data --synthetic text$i --seed $i --tokens 30000 >/dev/null
    mkdir pair$i
    # shellcheck disable=SC2046 # the command's words
    "$program" $(train text$i) --save pair$i/m >/dev/null
    score pair$i/m
    scores[i]=$scored
    # Of its tokenizer with the weights of another: neither model has this score.
    cp -r pair$i mixed
    cp pair1/m/tokenizer.json mixed/m
    score mixed/m
    [ $i = 1 ] || [ "$scored" != "${scores[i]}" ] || fail "the score does not depend on the vocabulary"
    rm -r mixed
done
[ "$(printf '%s\n' "${scores[@]}" | sort -u | wc -l)" = 3 ] || fail "the scores are alike: ${scores[*]}"

# FROM TEXT OLD: saves the model of TEXT over a copy of the folder FROM, which has the model OLD, killed at
# each call in turn; leaves each folder that came of it in after/. Without SLUICE_IO_NO_EXCHANGE the model is
# there under its name at every moment.
kill_each() {
    local from=$1 text=$2 old=$3 call=0 key seen=""
    rm -rf after
    mkdir after
    while
        call=$((call + 1))
        rm -rf work
        cp -r "$from" work
        # shellcheck disable=SC2046
        killed $call work $(train "text$text") --save work/m
    do
        [ -d work/m ] || [ -n "${SLUICE_IO_NO_EXCHANGE-}" ] || fail "killed at call $call, there is no model"
        score work/m || fail "killed at call $call, nothing can be used: $(cat said)"
        if [ "$scored" = "${scores[$text]}" ]; then
            seen+=n
        elif [ "$scored" = "${scores[$old]}" ]; then
            seen+=o
        else
            fail "killed at call $call, neither model: $scored"
        fi
        key=$(find work -mindepth 1 -maxdepth 1 | sed 's/[0-9a-f]\{16\}//' | sort | tr -d '/\n')
        key=after/$key.${seen: -1}
        [ -e "$key" ] || cp -r work "$key"
    done
    score work/m
    [ "$scored" = "${scores[$text]}" ] || fail "the whole save is not the new model"
    [ "$(ls -A work)" = m ] || fail "the whole save left a file: $(ls -A work)"
    [[ $seen =~ ^o+n+$ ]] || fail "old and new models came in this order: $seen"
    printf 'passed  a save of model %s over model %s (%s), killed at each of its %s calls\n' \
        "$text" "$old" "$from" $((call - 1))
}

# With and without the exchange of two names. A save after a killed one that left something is killed as well.
for without in '' 1; do
    export SLUICE_IO_NO_EXCHANGE=$without
    [ -n "$without" ] || unset SLUICE_IO_NO_EXCHANGE
    kill_each pair1 2 1
    rm -rf first
    mv after first
    left=0
    for folder in first/*; do
        [ "$(ls -A "$folder")" != m ] || continue # otherwise as above
        [ -z "$without" ] || [ -n "$(find "$folder" -name '*.old')" ] || continue # as with the exchange
        left=$((left + 1))
        case $folder in
        *.o) kill_each "$folder" 3 1 ;;
        *.n) kill_each "$folder" 3 2 ;;
        esac
    done
    [ $left -ge 1 ] || fail "no killed save has left anything beside the model"
done
unset SLUICE_IO_NO_EXCHANGE

# A disk that is full from any call on leaves one of the two as well.
call=0
while
    call=$((call + 1))
    rm -rf work
    cp -r pair1 work
    # shellcheck disable=SC2046
    ! LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_FAIL=$call SLUICE_IO_FAILURES=1000000 \
        "$program" $(train text2) --save work/m >said 2>&1
do
    grep -q "^sluice: work/m.*: No space left on device$" said || fail "full at call $call: $(cat said)"
    score work/m || fail "full from call $call on, nothing can be used: $(cat said)"
    [ "$scored" = "${scores[1]}" ] || [ "$scored" = "${scores[2]}" ] || fail "full from call $call on: $scored"
done
printf 'passed  a disk that is full from any of %s calls on\n' $((call - 1))

# ---- A synthetic text ----------------------------------------------------------------------------

"$program" data --synthetic expected --seed 9 --tokens 2000 >/dev/null
"$program" data --synthetic older --seed 8 --tokens 2000 >/dev/null
call=0
while
    call=$((call + 1))
    rm -rf corpus
    cp -r older corpus
    killed $call corpus data --synthetic corpus --seed 9 --tokens 2000
do
    "$program" data --synthetic corpus --seed 9 --tokens 2000 >said 2>&1 ||
        fail "killed at call $call, the corpus cannot be written again: $(cat said)"
    find corpus -name '.*.tmp' -delete # of the killed save
    diff -r expected corpus || fail "killed at call $call"
done
printf 'passed  a synthetic text, killed at each of its %s calls\n' $((call - 1))
