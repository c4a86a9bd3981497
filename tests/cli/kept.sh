# shellcheck shell=bash disable=SC2154 # what script.sh and the test set
# What the tests of kept tokens and rows have in common. They set `train`, the command of a run without its text.
run() { # DATA TOKENIZER OPTION...
    "${train[@]}" --data "$1" --tokenizer "$2" "${@:3}" >out 2>&1 || fail "$*: status $?"
}
forget() { rm -rf run/step-* run/best run/progress; } # all but what is kept

# A run keeps the files, and a run that goes on reads them, also where the text has moved to ./moved.
check_kept() { # DATA TOKENIZER FILE...
    local before
    run "$1" "$2" --save alone
    [ ! -e run ] || fail "something is kept without --save-dir"
    run "$1" "$2" --save-dir run --save saved
    [ "$(sum_of saved)" = "$(sum_of alone)" ] || fail "other weights where files are kept"
    [ "$(find run/tokens -type f | sort | tr '\n' ' ')" = "$(printf 'run/tokens/%s ' "${@:3}")" ] ||
        fail "other files: $(find run/tokens)"
    before=$(stat -c %i run/tokens/*)
    forget
    cp -r "$1" moved
    run moved "$2" --save-dir run --save again
    [ "$(stat -c %i run/tokens/*)" = "$before" ] || fail "the same files were written again"
    [ "$(sum_of again)" = "$(sum_of alone)" ] || fail "other weights from kept files"
}
