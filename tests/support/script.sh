# shellcheck shell=bash disable=SC2034 # what is set here is used by those that read it
# What the tests that are scripts have in common. A test begins with
#     . "$(dirname "$0")/../support/script.sh"
# and is then in a folder of its own, $scratch, which is empty and is removed at its end. What a command printed is
# in `out` and `err`.
set -euo pipefail

program=${SLUICE_PROGRAM:?} source=${SLUICE_SOURCE_DIR:?}
python=${SLUICE_PYTHON:-$source/.venv/bin/python3}
models=$source/tests/models
faults=$(dirname "$program")/../tests/libio_faults.so # calls on files fail, or end the process: LD_PRELOAD
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

fail() {
    printf 'FAILED: %s\n' "$*"
    [ ! -f out ] || cat out
    [ ! -f err ] || cat err
    exit 1
}

sum_of() { sha256sum <"$1/model.safetensors"; }

runs() { # COMMAND…: succeeds
    "$@" >out 2>err || fail "$*: status $?"
}

# The command ends with that status and one line of why, and says nothing else.
refused() { # STATUS SENTENCE COMMAND…
    local expected=$1 sentence=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    [ "$status" = "$expected" ] || fail "$*: status $status, expected $expected"
    [ "$(wc -l <err)" = 1 ] || fail "$*: more or less than one line"
    grep -qF -e "$sentence" err || fail "$*: no \"$sentence\""
    [ ! -s out ] || fail "$*: words on standard output"
}
