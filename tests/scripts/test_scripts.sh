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

run 0 "the build: here too"
[ -z "$calls" ] || fail "nothing is missing, but: $calls"

run 0 "the build: here absent1" "nothing: here" "reading: gone
    absent2"
[ "$calls" = "apt-get update -qq
apt-get install -qq --no-install-recommends -y absent1 gone absent2" ] || fail "as root: $calls"
[ "$messages" = "Installing Debian packages:
  for the build: absent1
  for reading: gone absent2" ] || fail "what is installed is not said: $messages"

user=1000
run 1 "the build: here absent1" "reading: gone"
[ -z "$calls" ] || fail "without root, but: $calls"
line="apt-get update && apt-get install --no-install-recommends -y absent1 gone"
grep -qxF "$line" <<<"$messages" || fail "without root the line is not printed: $messages"
run 0 "the build: here"
[ -z "$messages" ] || fail "without root and nothing missing, but: $messages"

user=0
apt_status=100
run 1 "the build: absent1"
grep -qF "apt-get update failed" <<<"$messages" || fail "a failing update is not said: $messages"

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
add_test(NAME waits COMMAND sleep 1)
foreach(number RANGE 1 4)
  add_test(NAME more${number} COMMAND true)
endforeach()
add_test(NAME crash COMMAND bash -c "kill -SEGV $$")
add_test(NAME absent COMMAND /does/not/exist)
add_test(NAME skips COMMAND bash -c "echo 'skipped: no <network>'; exit 77")
add_test(NAME silent COMMAND bash -c "exit 77")
add_test(NAME partly COMMAND bash -c
  "echo 'skipped: no mount'; echo '[  SKIPPED ] 2 test(s), listed below:'")
add_test(NAME without COMMAND bash -c "echo 'skipped: no browser'; echo 'skipped: no browser'; echo 'skipped: no reader'")
set_tests_properties(good bad skips silent partly PROPERTIES SKIP_RETURN_CODE 77)
PROJECT
cmake -G Ninja -S "$scratch/report" -B "$scratch/report/build" >/dev/null
ctest --test-dir "$scratch/report/build" --output-junit "$scratch/report/report.xml" >/dev/null 2>&1 || true

cat >"$scratch/report/expected" <<'COUNTS'
8 3 6
skipped  partly: no mount
skipped  silent: no reason was printed
skipped  skips: no <network>
skipped  without: no browser
skipped  without: no reader
COUNTS
"$source_dir/scripts/test-report" "$scratch/report/report.xml" >"$scratch/report/printed"
{ head -n 1 "$scratch/report/printed" && grep '^skipped' "$scratch/report/printed" | sort; } |
    diff "$scratch/report/expected" -

# The slowest first, ten at most.
grep '^slow' "$scratch/report/printed" | head -n 1 | grep -q '^slow     waits (1\.[0-9] s)$' ||
    fail "the slowest test is not the first: $(grep '^slow' "$scratch/report/printed")"
[ "$(grep -c '^slow' "$scratch/report/printed")" = 10 ] || fail "not ten slowest tests"

if "$source_dir/scripts/test-report" "$scratch/report/absent.xml" 2>/dev/null; then
    fail "a report that is not there must be an error"
fi

# ---- scripts/test: static analysis without a file is no success --------------------------------

# shellcheck disable=SC2034 # the functions read it
short=yes
git init -q "$scratch/clone"
git -C "$scratch/clone" -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
git -C "$scratch/clone" tag first
mkdir "$scratch/clone/build"
touch "$scratch/clone/build/compile_commands.json"
status=0
(
    cd "$scratch/clone"
    sources() { git ls-files --cached --others --exclude-standard -- "$@"; }
    eval "$(sed -n -e '/^tidy_sources() {/,/^}/p' -e '/^check_tidy() {/,/^}/p' "$source_dir/scripts/test")"
    check_tidy
) >"$scratch/output" 2>&1 || status=$?
[ "$status" = 77 ] || fail "clang-tidy without files: status $status, $(cat "$scratch/output")"

# ---- scripts/test: pages name what is there -----------------------------------------------------

mkdir -p "$scratch/pages/docs" "$scratch/pages/bench" "$scratch/pages/tests/report"
cp -r "$source_dir/include" "$source_dir/src" "$scratch/pages"
cp "$source_dir/docs/options.md" "$scratch/pages/docs"
mkdir "$scratch/pages/scripts"
cp "$source_dir/scripts/figures" "$scratch/pages/scripts"
check_page() { # TEXT: README.md has it
    echo "$1" >"$scratch/pages/README.md"
    (
        cd "$scratch/pages"
        sources() { echo README.md; }
        eval "$(sed -n -e '/^check_names() {/,/^}/p' "$source_dir/scripts/test")"
        check_names
    ) >"$scratch/output" 2>&1
}
check_page 'Call `sl_train_run` with SL_BALANCE_AUTO, or `sluice train --emsize 8`.' || fail "names: $(cat "$scratch/output")"
for name in sl_train_nothing SL_BALANCE_NOTHING --emsiz; do
    ! check_page "Call \`$name\` here." || fail "a page may name $name"
    grep -qF "1:Call \`$name\` here." "$scratch/output" || fail "names: $(cat "$scratch/output")"
done

# ---- scripts/check-lines: no folder grows unseen --------------------------------------------------

lines=$scratch/lines
git init -q "$lines"
mkdir -p "$lines/scripts" "$lines/src/a/b" "$lines/tests" "$lines/docs"
cp "$source_dir/scripts/check-lines" "$lines/scripts"
seq 10 >"$lines/src/a/x.c" && seq 7 >"$lines/src/a/b/y.c" && seq 3 >"$lines/tests/t.c"
printf 'a\0\n\n' >"$lines/docs/binary.png"
check_lines() { "$lines/scripts/check-lines" "$@" >"$scratch/output" 2>&1; }
check_lines --update || fail "lines: $(cat "$scratch/output")"
[ "$(tail -n +2 "$lines/scripts/lines.txt")" = $'src/a 20\ntests 10' ] || fail "lines: $(cat "$lines/scripts/lines.txt")"
seq 10 >"$lines/src/a/b/y.c"
check_lines || fail "lines up to the table's: $(cat "$scratch/output")"
refuse_lines() { # REASON
    ! check_lines || fail "lines: not refused: $1"
    grep -qxF "$1" "$scratch/output" || fail "lines: $(cat "$scratch/output")"
}
seq 11 >"$lines/src/a/b/y.c"
refuse_lines "src/a: 21 lines, at most 20 in scripts/lines.txt"
check_lines --update && check_lines || fail "lines: the table was not raised: $(cat "$scratch/output")"
mkdir "$lines/src/new" && seq 1 >"$lines/src/new/z.c"
refuse_lines "src/new: 1 lines, at most 0 in scripts/lines.txt"
rm -r "$lines/src/new" "$lines/tests"
refuse_lines "tests: stands in scripts/lines.txt, and has no files"

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

# And bench/repeat.py writes them, with the median and the range of its runs.
mkdir "$scratch/figures/bench"
cp "$source_dir/bench/repeat.py" "$scratch/figures/bench"
git -C "$scratch/figures" -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
cat >"$scratch/bench" <<'BENCH'
n=$(cat "$0.count" || echo 1000)
echo $((n + 100)) >"$0.count"
printf '| emsize | a step |\n|---|---|\n| 200 | %s ms |\n' "$n"
BENCH
python3 "$scratch/figures/bench/repeat.py" --runs 3 --figures step "bash $scratch/bench" >/dev/null 2>&1
diff - <(sed '/^machine: [0-9]* cores of/d' "$scratch/figures/docs/figures/step.md") <<EXPECTED || fail "repeat.py --figures"
commit: $(git -C "$scratch/figures" rev-parse --short HEAD)
runs: 3 runs
command: bash $scratch/bench

| emsize | a step |
|---|---|
| 200 | 1,100 ms (1,000 to 1,200) |
EXPECTED

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

for command in "" train eval generate model schedule data checkpoint report launch; do
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
[ "$(complete_line sluice train --recompute "")" = "except_last never always" ] || fail "a choice"
[ "$(complete_line sluice train --preset = sm)" = small ] || fail "a choice behind ="
[ "$(complete_line sluice train --mask =)" = "causal none" ] || fail "choices behind ="
[ "$(complete_line sluice checkpoint ver)" = verify ] || fail "a verb"
[ "$(complete_line sluice launch --nh)" = "" ] || fail "what is no option"
