#!/bin/bash
# What is made of the options' rows: docs/options.md, the manual pages, the completion.
set -euo pipefail
[ -x "$SLUICE_PROGRAM" ] || { echo "skipped: $SLUICE_PROGRAM is not there"; exit 77; }
fail() { echo "FAILED: $1"; exit 1; }

"$SLUICE_PROGRAM" help --markdown | diff "$SLUICE_SOURCE_DIR/docs/options.md" - ||
    fail "docs/options.md is not what sluice help --markdown prints"

for command in "" train eval generate model schedule data checkpoint launch; do
    page=$("$SLUICE_PROGRAM" help --man $command)
    grep -q '^\.SH NAME$' <<<"$page" || fail "the page of sluice $command has no name"
    if command -v groff >/dev/null; then
        warnings=$(groff -man -Tascii -wall <<<"$page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || fail "the page of sluice $command: $warnings"
    fi
    [ -z "$command" ] ||
        diff <("$SLUICE_PROGRAM" help "$command") <("$SLUICE_PROGRAM" "$command" --help) ||
        fail "sluice help $command and sluice $command --help differ"
done

# shellcheck source=/dev/null
source <("$SLUICE_PROGRAM" help --completion)
complete_line() { # WORD…: what the last one may become
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _sluice
    echo "${COMPREPLY[*]}"
}
[ "$(complete_line sluice tr)" = train ] || fail "tr: $(complete_line sluice tr)"
[ "$(complete_line sluice train --sched)" = --schedule ] || fail "an option"
[ "$(complete_line sluice train --checkpoint "")" = "except_last never always" ] || fail "a choice"
[ "$(complete_line sluice launch --nh)" = "" ] || fail "what is no option"
echo "documentation is that of the options"
