#!/bin/bash
# sluice tokenize -o, killed before drawn ones of the calls that change files (tests/faults/io_faults.c), and resumed: what
# lies there is the older tokens or the new ones, with their manifest, and the bytes are those of an uninterrupted run.
. "$(dirname "$0")/../support/script.sh"
[ -f "$faults" ] || fail "$faults was not built"

for ((byte = 0; byte < 256; byte++)); do
    # shellcheck disable=SC2059 # the byte is the format
    echo "$(printf "\\x$(printf %x "$byte")" | base64) $byte"
done >ranks
tokenize=("$program" tokenize --tokenizer ranks --splitter gpt2)

# Of so many bytes what is written is recorded several times (record_bytes in src/text/token_writer.c).
head -c 40000000 < <(yes "all work and no play") >long
echo short >short
"${tokenize[@]}" short short -o whole.bin >said
mkdir older expected
cp whole.bin older/t.bin
cp whole.manifest.json older/t.manifest.json
sed -i 's/whole.bin/t.bin/' older/t.manifest.json
"${tokenize[@]}" long short -o expected/t.bin >said || fail "status $? of an uninterrupted run"

killed() { # N OPTION...: whether tokenizing to work/t.bin, killed before its N-th change there, died
    local status=0 call=$1
    shift
    { LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_KILL=$call "${tokenize[@]}" long short -o work/t.bin "$@" >said 2>&1; } \
        2>/dev/null || status=$?
    [ $status = 0 ] || [ $status = 137 ] || fail "status $status: $(cat said)"
    [ $status = 137 ]
}

rm -rf work
cp -r older work
LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_COUNT=$PWD/calls "${tokenize[@]}" long short -o work/t.bin >said
calls=$(cat calls)
[ "$calls" -gt 20 ] || fail "an uninterrupted run has $calls calls only"
diff -r work expected || fail "an uninterrupted run over older tokens"
seed=${SLUICE_TEST_SEED:-1}
RANDOM=$seed
resumed=0
for round in 1 2 3 4; do
    # The last three calls but one are those that give names.
    call=$([ $round -le 2 ] && echo $((calls - 2 * round)) || echo $((1 + RANDOM % calls)))
    rm -rf work
    cp -r older work
    killed "$call" || fail "call $call of $calls: not killed"
    cmp -s work/t.bin older/t.bin || cmp work/t.bin expected/t.bin || fail "call $call (seed $seed): neither file"
    again=$((1 + RANDOM % 9))
    killed $again --resume || true
    "${tokenize[@]}" long short -o work/t.bin --resume >said 2>&1 || fail "call $call, $again (seed $seed): $(cat said)"
    resumed=$((resumed + $(grep -c "by an earlier call" said || true)))
    diff -r work expected || fail "call $call, $again (seed $seed): other tokens, or something is left"
done
[ $resumed -ge 2 ] || fail "only $resumed of 4 runs went on where they were cut off"

# A disk that is full in the middle leaves what is written as well.
rm -rf work
mkdir work
! LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_FAIL=$((calls / 2)) SLUICE_IO_FAILURES=1000000 \
    "${tokenize[@]}" long short -o work/t.bin >said 2>&1 || fail "a full disk was not noticed"
grep -q "^sluice: work/.*: No space left on device$" said || fail "a full disk: $(cat said)"
"${tokenize[@]}" long short -o work/t.bin --resume >said || fail "after a full disk: status $?"
grep -q "by an earlier call" said || fail "after a full disk nothing was resumed"
diff -r work expected || fail "after a full disk: other tokens"

# A disk that is full when the file has its name and the manifest has not: the record says the rest.
rm -rf work
mkdir work
last=0
LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_LOG=$PWD/log "${tokenize[@]}" short -o work/t.bin >said
while read -r call path; do
    last=$((last + 1))
    [[ $call == rename && $path == *manifest* ]] && break
done <log
rm -rf work
mkdir work
! LD_PRELOAD=$faults SLUICE_IO_ONLY=work SLUICE_IO_FAIL=$last SLUICE_IO_FAILURES=1000000 \
    "${tokenize[@]}" short -o work/t.bin >said 2>&1 || fail "a manifest that cannot be named was not noticed"
if [ ! -e work/t.bin ] || [ -e work/t.manifest.json ]; then fail "other files than planned: $(ls -A work)"; fi
"${tokenize[@]}" short -o work/t.bin --resume >said || fail "without a manifest: status $?"
grep -q "by an earlier call" said || fail "without a manifest nothing was resumed"
[ "$(find work -type f | wc -l)" = 2 ] || fail "something is left: $(ls -A work)"
