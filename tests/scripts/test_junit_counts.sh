#!/bin/bash
# scripts/junit-counts on what CTest really writes.
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
2 3 4
partly: no mount
silent: no reason was printed
skips: no <network>
COUNTS
"$source_dir/scripts/junit-counts" "$scratch/report.xml" >"$scratch/printed"
{ head -n 1 "$scratch/printed" && tail -n +2 "$scratch/printed" | sort; } |
    diff "$scratch/expected" -

if "$source_dir/scripts/junit-counts" "$scratch/absent.xml" 2>/dev/null; then
    echo "a report that is not there must be an error"
    exit 1
fi
