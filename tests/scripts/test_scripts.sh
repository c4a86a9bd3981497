#!/bin/bash
# What the scripts are made of: install_packages, the counts of scripts/test, the demo's training; and
# what the program prints of the options' rows: docs/options.md, the manual pages, the completion.
set -euo pipefail
source_dir=${SLUICE_SOURCE_DIR:-$(CDPATH='' cd "$(dirname "$0")/../.." && pwd)}
[ -x "${SLUICE_PROGRAM:-}" ] || {
    echo "skipped: SLUICE_PROGRAM does not name a program"
    exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. "$source_dir/scripts/lib.sh"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# ---- install_packages, with stand-ins for dpkg-query, apt-get and id --------------------------

user=0
apt_status=0
calls=
id() { echo "$user"; }
dpkg-query() { # -W -f FORMAT NAME: `gone` was removed, `absent*` were never installed
    case $4 in
    gone) echo "deinstall ok config-files" ;;
    absent*) return 1 ;;
    *) echo "install ok installed" ;;
    esac
}
apt-get() {
    echo "apt-get $*" >&3
    return "$apt_status"
}

run() { # EXPECTED-STATUS LINE…
    local expected=$1
    shift
    status=0
    messages=$( (install_packages "$@") 2>&1 3>"$calls_file" ) || status=$?
    calls=$(cat "$calls_file")
    [ "$status" = "$expected" ] || fail "status $status, expected $expected: $messages"
}
calls_file=$scratch/calls

run 0 "the build: here absent1" "nothing: here" "reading: gone
    absent2"
[ "$calls" = "apt-get update -qq
apt-get install -qq --no-install-recommends -y absent1 gone absent2" ] || fail "as root: $calls"

user=1000
run 1 "the build: here absent1" "reading: gone"
[ -z "$calls" ] || fail "without root, but: $calls"
line="apt-get update && apt-get install --no-install-recommends -y absent1 gone"
grep -qxF "$line" <<<"$messages" || fail "without root the line is not printed: $messages"

# scripts/test says what it needs each package for, and its short run needs no browser and no other compiler.
missing_for() { # ARGUMENT…: where nothing is installed, without root
    ! (dpkg-query() { return 1; } && export user && export -f id dpkg-query apt-get &&
        "$source_dir/scripts/test" "$@") >"$scratch/output" 2>&1 3>/dev/null || fail "scripts/test $* needs no packages"
}
missing_for all
for line in "for the pages in a browser: chromium" "for compiling for arm64: gcc-aarch64-linux-gnu libc6-dev-arm64-cross"; do
    grep -qF "$line" "$scratch/output" || fail "scripts/test all does not say \"$line\": $(cat "$scratch/output")"
done
missing_for
grep -qF "for the build: cmake " "$scratch/output" || fail "scripts/test: $(cat "$scratch/output")"
! grep "chromium\|aarch64" "$scratch/output" || fail "the short run of scripts/test needs what it does not use"

# ---- The checkout is found, also where cd looks elsewhere first ---------------------------------

mkdir -p "$scratch/elsewhere/scripts"
found=$(cd "$source_dir" && CDPATH=$scratch/elsewhere bash -c '. scripts/lib.sh && printf %s "$root"')
[ "$found" = "$(cd "$source_dir" && pwd)" ] || fail "with a CDPATH the checkout is at $found"

# ---- scripts/test-report, on what CTest really writes -----------------------------------------

mkdir "$scratch/report"
cat >"$scratch/report/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.21)
project(counts NONE)
enable_testing()
add_test(NAME good COMMAND true)
add_test(NAME bad COMMAND false)
add_test(NAME crash COMMAND bash -c "kill -SEGV $$")
add_test(NAME skips COMMAND bash -c "echo 'skipped: no <network>'; exit 77")
add_test(NAME partly COMMAND bash -c
  "echo 'skipped: no mount'; echo '[  SKIPPED ] 2 test(s), listed below:'")
set_tests_properties(good bad skips partly PROPERTIES SKIP_RETURN_CODE 77)
PROJECT
cmake -G Ninja -S "$scratch/report" -B "$scratch/report/build" >/dev/null
ctest --test-dir "$scratch/report/build" --output-junit "$scratch/report/report.xml" >/dev/null 2>&1 || true
"$source_dir/scripts/test-report" "$scratch/report/report.xml" | sed '/^slow/d' | sort |
    diff <(printf '%s\n' "2 2 3" "skipped  partly: no mount" "skipped  skips: no <network>") - ||
    fail "the counts of scripts/test-report"

# ---- scripts/check-lines: no folder grows unseen --------------------------------------------------

lines=$scratch/lines
git init -q "$lines"
mkdir -p "$lines/scripts" "$lines/src/a/b" "$lines/tests" "$lines/docs"
cp "$source_dir/scripts/check-lines" "$lines/scripts"
seq 10 >"$lines/src/a/x.c" && seq 7 >"$lines/src/a/b/y.c" && seq 3 >"$lines/tests/t.c"
printf 'a\0\n\n' >"$lines/docs/binary.png"
check_lines() { "$lines/scripts/check-lines" "$@" >"$scratch/output" 2>&1; }
check_lines --update && check_lines || fail "lines up to the table's: $(cat "$scratch/output")"
seq 11 >"$lines/src/a/b/y.c"
! check_lines || fail "lines: a folder may grow"
grep -qxF "src/a: 21 lines, at most 20 in scripts/lines.txt" "$scratch/output" || fail "lines: $(cat "$scratch/output")"

# ---- scripts/figures: pages have the figures that were measured ---------------------------------

git init -q "$scratch/figures"
mkdir -p "$scratch/figures/docs/figures" "$scratch/figures/scripts"
cp "$source_dir/scripts/figures" "$scratch/figures/scripts"
printf 'commit: abc\nmachine: a machine\nruns: 5 runs\ncommand: bench\n\n| a | b |\n|---|---|\n| 1 | 15.2 ms (14 to 16) |\n' \
    >"$scratch/figures/docs/figures/step.md"
echo 'README.md: 5 s' >"$scratch/figures/docs/figures/constants"
check_figures() { # TEXT: it stands in a page behind the table
    printf '<!-- figures step -->\n<!-- end of figures -->\n\nIt ends within 5 s. %s\n' "$1" >"$scratch/figures/README.md"
    "$scratch/figures/scripts/figures" && "$scratch/figures/scripts/figures" --check >"$scratch/output"
}
check_figures "It takes 15.2 ms, about 15 ms, at most 16 ms." || fail "figures: $(cat "$scratch/output")"
grep -qF "Commit abc, 5 runs, on a machine." "$scratch/figures/README.md" || fail "figures were not put into the page"
for figure in "14.9 ms" "15 s" "15%" "1.3 to 1.5 times as long" "three to five minutes"; do
    ! check_figures "It takes $figure." || fail "a page may name $figure"
    grep -qF "\"${figure% as long}\" stands in no file" "$scratch/output" || fail "figures: $(cat "$scratch/output")"
done
check_figures "" && sed -i 's/15.2 ms/15.1 ms/' "$scratch/figures/README.md"
! "$scratch/figures/scripts/figures" --check >"$scratch/output" || fail "a table may differ from docs/figures"

# ---- Pages name what is there, and show what is printed -------------------------------------------

pages=$scratch/pages
git init -q "$pages"
mkdir -p "$pages"/{include,src,bench,scripts,docs,tests/report}
echo 'int sl_here(void); enum { SL_HERE };' >"$pages/include/here.h"
echo '`--here`' >"$pages/docs/options.md"
touch "$pages"/{CONTRIBUTING.md,scripts/figures,docs/page.md}
eval "$(sed -n '/^sources() /p; /^check_names() {/,/^}/p; /^check_links() {/,/^}/p' "$source_dir/scripts/test")"
check_page() { # TEXT: README.md's
    echo "$1" >"$pages/README.md"
    (cd "$pages" && check_names && check_links) >"$scratch/output"
}
check_page '`sl_here`, `SL_HERE`, `--here`, [a page](docs/page.md), `include/here.h`' || fail "pages: $(cat "$scratch/output")"
for gone in '`sl_gone`' '`SL_GONE`' '`--gone`' '[a page](docs/gone.md)' '`examples/gone.c`'; do
    ! check_page "$gone" || fail "a page may name $gone"
    grep -qi "README.md.*gone" "$scratch/output" || fail "pages: $(cat "$scratch/output")"
done
check_transcript() { # LINE: what README.md says that its command prints
    printf 'Text\n\n    $ sluice --version\n    %s\n' "$1" >"$pages/README.md"
    SLUICE_SOURCE_DIR=$pages bash "$source_dir/tests/scripts/test_transcripts.sh" >"$scratch/output"
}
check_transcript "$("$SLUICE_PROGRAM" --version)" || fail "transcripts: $(cat "$scratch/output")"
! check_transcript "sluice 9" || fail "a page may show what is not printed"

# ---- scripts/demo: its command line, on a small corpus for a few batches ----------------------

# The script's own array `train`, with its results in our directory.
# shellcheck disable=SC2034 # the array names it
result=$scratch
train=()
eval "$(sed -n '/^train=(/,/)$/p' "$source_dir/scripts/demo")"
[ "${#train[@]}" -gt 0 ] || fail "scripts/demo has no array train"

"$SLUICE_PROGRAM" data --synthetic "$scratch" --tokens 10000 >/dev/null
"$SLUICE_PROGRAM" train --data "$scratch" "${train[@]}" \
    --max-batches 2 --eval-max-batches 2 --emsize 16 --nhid 16 >"$scratch/output"
grep -q "| test ppl " "$scratch/output" || fail "the run did not say its test perplexity"
[ -s "$scratch/model/model.safetensors" ] || fail "the run saved no weights"
[ -s "$scratch/log.jsonl" ] || fail "the run wrote no log"

# What it tells to type next works, here for a text and a model of few words.
cp "$scratch/train.txt" "$scratch/FILE.txt"
eval "$(sed -n '/^cat <<END/,/^END/p' "$source_dir/scripts/demo")" | sed -n 's|^  build/bin/sluice \([^#]*\).*|\1|p' >"$scratch/next"
[ "$(cut -d ' ' -f 1 "$scratch/next" | xargs)" = "generate report train" ] || fail "scripts/demo ends with no next step"
while read -r next; do
    [ "${next%% *}" != train ] || next+=" --emsize 16 --nhead 2 --nlayers 1 --bptt 8 --eval-batch-size 4 --max-batches 2 --epochs 1"
    (cd "$scratch" && eval "\"\$SLUICE_PROGRAM\" $next" >output 2>&1) || fail "sluice $next: $(cat "$scratch/output")"
done <"$scratch/next"
[ -s "$scratch/report.html" ] && [ -s "$scratch/MODEL/model.safetensors" ] || fail "what scripts/demo tells to type does nothing"

# A directory without data is refused at once.
if "$source_dir/scripts/demo" "$scratch/absent" >"$scratch/output" 2>&1; then
    fail "a directory that is not there was accepted"
fi
grep -q "absent (named on the command line) must hold wiki.train.tokens" "$scratch/output" ||
    fail "a directory that is not there was not named"
! grep -q "Building" "$scratch/output" || fail "minutes went into a build before that"

# ---- docs/options.md, the manual pages, the completion ----------------------------------------

"$SLUICE_PROGRAM" help --markdown | diff "$source_dir/docs/options.md" - ||
    fail "docs/options.md is not what sluice help --markdown prints"

# A row has as many cells as the heading above it; \| is no cell's end.
wrong=$("$SLUICE_PROGRAM" help --markdown | awk '{ line = $0; gsub(/\\\|/, ""); cells = gsub(/\|/, "") }
    !cells { heading = 0 } cells && !heading { heading = cells } cells != heading { print line }')
[ -z "$wrong" ] || fail "docs/options.md has rows with other cells than their headings: $wrong"

for command in "" $("$SLUICE_PROGRAM" help | sed -n '/^Environment/q; s/^  \([a-z]*\) .*/\1/p'); do
    page=$("$SLUICE_PROGRAM" help --man $command)
    for section in NAME SYNOPSIS DESCRIPTION OPTIONS EXAMPLES FILES; do
        grep -q "^\.SH $section$" <<<"$page" || fail "the page of sluice $command has no $section"
    done
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
[ "$(complete_line sluice checkpoint ver)" = verify ] || fail "a verb"
# Bash cuts --preset=pip into three words.
[ "$(complete_line sluice train --preset = pip)" = pipeline-tutorial ] || fail "a value: ${COMPREPLY[*]}"
[ "$(complete_line sluice train --preset =)" = "$(complete_line sluice train --preset "")" ] || fail "values after ="
[ "$(complete_line sluice launch --nh)" = "" ] || fail "what is no option"
