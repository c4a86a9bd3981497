#!/bin/bash
# scripts/test-report on what CTest really writes.
set -eu
source_dir=${SLUICE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cat >"$scratch/CMakeLists.txt" <<'PROJECT'
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
set_tests_properties(good bad skips silent partly PROPERTIES SKIP_RETURN_CODE 77)
PROJECT
cmake -G Ninja -S "$scratch" -B "$scratch/build" >/dev/null
ctest --test-dir "$scratch/build" --output-junit "$scratch/report.xml" >/dev/null 2>&1 || true

cat >"$scratch/expected" <<'COUNTS'
7 3 4
skipped  partly: no mount
skipped  silent: no reason was printed
skipped  skips: no <network>
COUNTS
"$source_dir/scripts/test-report" "$scratch/report.xml" >"$scratch/printed"
{ head -n 1 "$scratch/printed" && grep '^skipped' "$scratch/printed" | sort; } |
    diff "$scratch/expected" -

# The slowest first, ten at most.
grep '^slow' "$scratch/printed" | head -n 1 | grep -q '^slow     waits (1\.[0-9] s)$' || {
    echo "the slowest test is not the first: $(grep '^slow' "$scratch/printed")"
    exit 1
}
[ "$(grep -c '^slow' "$scratch/printed")" = 10 ] || { echo "not ten slowest tests"; exit 1; }

if "$source_dir/scripts/test-report" "$scratch/absent.xml" 2>/dev/null; then
    echo "a report that is not there must be an error"
    exit 1
fi
