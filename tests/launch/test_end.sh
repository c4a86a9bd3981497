#!/bin/bash
# What `sluice launch` waits for at the end of a job: an mpirun that hangs though all ranks have ended,
# one that still holds what the ranks have written, a rank that saves long after another one failed, and
# a rank that nothing ends.
. "$(dirname "$0")/../support/script.sh"
mpirun=$(command -v mpirun) || skip "there is no mpirun"

# An mpirun that has done its work and stays.
mkdir "$scratch/bin"
cat >"$scratch/bin/mpirun" <<SCRIPT
#!/bin/sh
[ "\$1" != --version ] || exec "$mpirun" --version
"$mpirun" "\$@"
exec sleep 600
SCRIPT
chmod +x "$scratch/bin/mpirun"
hang() {
    local status=0
    PATH=$scratch/bin:$PATH timeout 120 "$program" launch -n 2 sh -c "echo here; exit $1" \
        >"$scratch/out$1" 2>"$scratch/err$1" || status=$?
    [ "$status" = "$1" ] || fail "a launcher that hangs: status $status, not $1: $(cat "$scratch/err$1")"
    [ "$(cat "$scratch/out$1")" = $'here\nhere' ] || fail "the output: $(cat "$scratch/out$1")"
}
hang 0 &
good=$!
hang 3 &
bad=$!

save() {
    local status=0
    "$program" launch -n 2 --grace 1 sh -c "
        if [ \$RANK = 1 ]; then until [ -e '$scratch/saves' ]; do sleep 0.1; done; exit 7; fi
        printf saving >&\$SLUICE_LAUNCH_FD; touch '$scratch/saves'; sleep 66; echo saved" \
        >"$scratch/saved" 2>"$scratch/errors" || status=$?
    [ "$status" = 7 ] || fail "a rank that fails beside a long save: status $status"
    [ "$(cat "$scratch/saved")" = saved ] || fail "a save was cut off: $(cat "$scratch/errors")"
}
save &
saving=$!

stuck() {
    local status=0
    "$program" launch -n 2 --grace 1 --max-restarts 3 sh -c "
        [ \$RANK = 1 ] || exec sleep 600
        read -r _ _ _ guard _ </proc/\$PPID/stat
        kill -KILL \$guard; sleep 0.5; kill -STOP \$PPID
        echo \$PPID >'$scratch/stopped'; exec sleep 600" >"$scratch/said" 2>&1 || status=$?
    kill -CONT "$(cat "$scratch/stopped")"
    [ "$status" = 137 ] || fail "a rank that is stopped: status $status, $(cat "$scratch/said")"
    [ "$(grep -c "warning: not all processes of the job can be ended" "$scratch/said")" = 1 ] ||
        fail "a rank that is stopped: $(cat "$scratch/said")"
    ! grep "starting again" "$scratch/said" || fail "a job starts again beside a rank of the last attempt"
    for ((i = 0; i < 100; i++)); do
        [ -d "/proc/$(cat "$scratch/stopped")" ] || return 0
        sleep 0.1
    done
    fail "a rank that was stopped does not end when it goes on"
}
stuck &
stopped=$!

# Longer than all the stages of an end take.
"$program" launch -n 1 head -c 1000000 /dev/zero | { sleep 70; wc -c; } >"$scratch/bytes"
[ "$(cat "$scratch/bytes")" = 1000000 ] || fail "only $(cat "$scratch/bytes") bytes were read"
wait "$good"
wait "$bad"
wait "$saving"
wait "$stopped"
[ "$(cat "$scratch/err0")" = "sluice: warning: all processes have ended, and mpirun has not: it is ended" ] ||
    fail "a success says $(cat "$scratch/err0")"
echo "launchers that stay are ended, but not before what they hold is read"
