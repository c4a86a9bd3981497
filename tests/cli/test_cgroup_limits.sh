#!/bin/bash
# sluice train in real control groups: one that gives it the time of a single core, and one that
# gives it less memory than the model needs.
. "$(dirname "$0")/../support/script.sh"

groups=()
clean_up() {
    for group in "${groups[@]}"; do rmdir "$group" || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT

# The folder where groups with the controller $1 are made, in version 1 or 2.
top_of() {
    awk -v wanted="$1" '{
        for (i = 7; $i != "-"; i++);
        if ($(i + 1) == "cgroup" && ("," $(i + 3) ",") ~ ("," wanted ",")) print $5
        if ($(i + 1) == "cgroup2") v2 = $5
    } END { if (v2) print v2 }' /proc/self/mountinfo | while read -r top; do
        if [ ! -e "$top/cgroup.controllers" ] || grep -qw "$1" "$top/cgroup.subtree_control"; then
            echo "$top"
            break
        fi
    done
}
# Makes a group with the controller $1, sets $group.
make_group() {
    local top
    top=$(top_of "$1")
    [ -n "$top" ] || skip "there is no hierarchy of control groups with $1"
    group=$top/sluice-test-$$-$1
    mkdir "$group" 2>"$scratch/why" || skip "no control group can be made: $(cat "$scratch/why")"
    groups+=("$group")
    bash -c 'echo $$ >"$0/cgroup.procs"' "$group" 2>"$scratch/why" ||
        skip "no process can enter a control group: $(cat "$scratch/why")"
}
# Runs sluice train in $group; its status is $status.
train() {
    status=0
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" timeout 120 "$program" train \
        --data "$scratch/text" --epochs 1 --max-batches 1 --eval-max-batches 1 "$@" \
        >"$scratch/out" 2>"$scratch/err" || status=$?
}

"$program" data --synthetic "$scratch/text" --tokens 20000 >/dev/null

make_group cpu
if [ -e "$group/cpu.max" ]; then
    echo '100000 100000' >"$group/cpu.max"
else
    echo 100000 >"$group/cpu.cfs_period_us"
    echo 100000 >"$group/cpu.cfs_quota_us"
fi
train --devices cpu
[ "$status" = 0 ] || fail "under a quota: status $status, $(cat "$scratch/err")"
grep -Eq '^0 .* cpu +1 \(' "$scratch/out" || fail "a quota of one core: $(cat "$scratch/out")"

make_group memory
limit=$((300 << 20))
if [ -e "$group/memory.max" ]; then
    echo "$limit" >"$group/memory.max"
    [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
else
    echo "$limit" >"$group/memory.limit_in_bytes"
    [ ! -e "$group/memory.memsw.limit_in_bytes" ] || echo "$limit" >"$group/memory.memsw.limit_in_bytes"
fi
train --devices cpu
[ "$status" = 0 ] || fail "a small model in $limit bytes: status $status, $(cat "$scratch/err")"
large=(--emsize 1024 --nhid 4096 --nlayers 8 --pp 2)
train "${large[@]}"
[ "$status" = 1 ] || fail "a plan that does not fit: status $status, $(cat "$scratch/err")"
grep -q "^sluice: the run needs .* of memory (parameters .*), but this host has 300.00 MiB\. .*force" "$scratch/err" ||
    fail "a plan that does not fit: $(cat "$scratch/err")"
train "${large[@]}" --force
[ "$status" = 1 ] || fail "too large a model: status $status, $(cat "$scratch/err")"
grep -q "no memory for .*; the process can have $limit\$" "$scratch/err" ||
    fail "too large a model: $(cat "$scratch/err")"
# The model fits, a copy of it for a checkpoint does not.
train --emsize 512 --nhid 2048 --nlayers 8 --batch-size 4 --devices cpu --force --save-dir "$scratch/saved"
grep -q 'step 1 is not saved, the run goes on: no memory for a copy of the run' "$scratch/err" ||
    fail "too large a copy: status $status, $(cat "$scratch/err")"
grep -q 'End of training' "$scratch/out" || fail "too large a copy: $(cat "$scratch/out")"
echo "quotas and limits of control groups are kept"
