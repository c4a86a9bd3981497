#!/bin/bash
# What else lies in the directories that the program writes to: another run's checkpoints, foreign
# files, directories, links, links to nothing, leftovers of programs that died. Only what is sluice's
# own is replaced or removed, and never what a link leads to.
. "$(dirname "$0")/../support/script.sh"

[ -f "$faults" ] || fail "$faults was not built"

"$program" data --synthetic text --tokens 4000 >out
train=("$program" train --data text --emsize 8 --nhid 8 --nhead 2 --nlayers 1 --bptt 8 --batch-size 4
    --eval-batch-size 8 --eval-max-batches 2 --epochs 1 --max-batches 6 --devices cpu --lr 0.1
    --quiet)
run() { # NAME WORD...: succeeds
    local name=$1
    shift
    "$@" >out 2>err || fail "$name: status $?"
}
refused() { # NAME REASON WORD...: ends with that error; a run among another's checkpoints with a status of its own
    local name=$1 reason=$2 status=0 expected=1
    shift 2
    "$@" >out 2>err || status=$?
    grep -q "another run's\|of another run\|another run that" err && expected=78
    [ "$status" = $expected ] || fail "$name: status $status"
    grep -q "$reason" err || fail "$name: no \"$reason\""
}
# Names, kinds, targets of links and contents of all that is in a directory.
content() { (cd "$1" && find . -printf '%p %y %l\n' | sort && find . -type f -exec md5sum {} + | sort); }
same() { content "$2" | diff "$1.before" - >&2 || fail "$1: $2 is another"; }
no_leftovers() { # NAME DIRECTORY
    [ -z "$(find "$2" -regex '.*\.[0-9a-f]*\.tmp')" ] || { find "$2"; fail "$1: leftovers"; }
}

# ---- Another run's checkpoints --------------------------------------------------------------------

run 'first run' "${train[@]}" --save-dir a --save-every 2 --keep 0
run 'second run' "${train[@]}" --seed 2 --save-dir b --save-every 2 --keep 0
content b >foreign.before
for resume in a a/ a/step-00000002; do
    refused foreign 'b: has checkpoints of another run: resume from one of them' \
        "${train[@]}" --save-dir b --resume "$resume" --save-every 1 --keep 1
    same foreign b
done
refused foreign 'b: has checkpoints of another run' "${train[@]}" --save-dir b
same foreign b
# What lies in it is its own, under whatever names; and an unused one takes any.
ln -s a link
for resume in auto a a/ ./a/step-00000004 link link/step-00000002 "$scratch/a/step-00000002/"; do
    run "resuming $resume" "${train[@]}" --save-dir a --resume "$resume" --keep 0
done
RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=job run 'to an unused one' "${train[@]}" --save-dir unused --save-every 2 \
    --resume a/step-00000002
# A job that is started again goes on from its own newest one, and where it has none from where its first attempt began.
for step in 4 2; do
    find unused -name 'step-*' ! -name step-00000004 -exec rm -r {} +
    RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=1 run 'started again' "${train[@]}" \
        --save-dir unused --resume a/step-00000002 --save-every 2 --log-json again.jsonl
    grep -q "\"resumed_step\":$step" again.jsonl || fail "it did not go on from step $step"
    rm -r unused/step-00000004 again.jsonl
done
# Another job's restart does not, though it finds checkpoints there; nor does a run from the beginning
# replace a best model that is left alone.
content unused >unused.before
refused 'restart of another job' 'unused: has checkpoints of another run' env RANK=0 WORLD_SIZE=1 \
    TORCHELASTIC_RUN_ID=other TORCHELASTIC_RESTART_COUNT=1 "${train[@]}" --save-dir unused --keep 1
same unused unused
rm -r unused/step-*
content unused >unused.before
refused 'best of another run' "unused/best: is another run's" "${train[@]}" --save-dir unused
same unused unused
rm -r unused

# A refusal is final: a launcher starts no other attempt.
if command -v mpirun >out; then
    content b >foreign.before
    refused launched 'b: has checkpoints of another run' "$program" launch -n 1 --max-restarts 3 -- \
        "${train[@]}" --save-dir b --save-every 1 --keep 1
    [ "$(grep -c 'has checkpoints of another run' err)" = 1 ] || fail 'it was started again'
    same foreign b
else
    echo "skipped: a launcher's refusal: there is no mpirun"
fi

# Only the run's own checkpoints are pruned, not what has the name of one.
cp -r a mixed
rm -r mixed/step-00000006
cp -r b/step-00000002 mixed/step-00000001
mkdir mixed/step-00000003
echo mine >mixed/step-00000003/notes
content mixed/step-00000001 >one.before
content mixed/step-00000003 >three.before
run 'beside others' "${train[@]}" --save-dir mixed --resume auto --save-every 1 --keep 1
same one mixed/step-00000001
same three mixed/step-00000003
[ ! -e mixed/step-00000002 ] && [ ! -e mixed/step-00000005 ] || fail 'its own are not pruned'

# ---- In --save-dir: links, files, directories -----------------------------------------------------

# An archive that a checkpoint's name leads to, and what carries the name of one.
cp -r a saved
mv saved/step-00000002 archive
ln -s ../archive saved/step-00000002
ln -s ../nothing saved/step-00000001
echo mine >saved/step-00000003
mkdir saved/step-00000004/mine saved/mine saved/step-5 saved/step-000000005
echo mine | tee saved/step-00000004/mine/text saved/mine/text saved/notes saved/.notes.tmp \
    saved/state.json saved/step-5/text >out
chmod 000 saved/mine/text
ln -s ../nothing saved/dangling
ln -s ../archive saved/.step-00000001.0123456789abcdef.tmp
mkdir -p saved/.best.0123456789abcdef.tmp saved/..step-00000003.0123456789abcdef.tmp.1123456789abcdef.tmp
touch saved/.best.0123456789abcdef.tmp/model.safetensors
content archive >archive.before
rm -r saved/step-00000006
run 'surrounded run' "${train[@]}" --save-dir saved --resume auto --save-every 1 --keep 1
grep -q 'step-00000003 is skipped: it is no directory, and stays' err || fail 'the file is not named'
same archive archive
no_leftovers surrounded saved
ls -A saved >out
diff - out <<END || fail 'another set of entries'
.notes.tmp
best
dangling
mine
notes
progress
state.json
step-000000005
step-00000001
step-00000003
step-00000004
step-00000006
step-5
END
[ "$(cat saved/step-00000003 saved/notes saved/step-00000004/mine/text | sort -u)" = mine ] ||
    fail 'a file is another'

# A file with a checkpoint's name is no checkpoint: the run begins.
mkdir begin
echo mine >begin/step-00000002
for resume in '' '--resume auto'; do
    # shellcheck disable=SC2086 # words
    run 'beside a file' "${train[@]}" --save-dir begin $resume --save-every 2 --keep 1
    grep -q 'step-00000002 is skipped: it is no directory' err || fail 'the file is not named'
    [ "$(cat begin/step-00000002)" = mine ] || fail 'the file is another'
    [ -d begin/step-00000006 ] || fail 'there is no checkpoint'
    rm -r begin/step-00000006
done

# A link in the place of a checkpoint is replaced, and what it leads to stays.
mkdir linked
mv begin/best linked-best
content linked-best >linked-best.before
ln -s ../linked-best linked/best
run 'linked best' "${train[@]}" --save-dir linked
same linked-best linked-best
[ ! -L linked/best ] || fail 'the best model went through the link'

# What cannot be the best model is found before training.
mkdir -p foreign/best
echo mine >foreign/best/text
content foreign >best.before
refused 'foreign best' 'written: it exists and is not a checkpoint: move it away' "${train[@]}" --save-dir foreign
same best foreign
ln -s nothing to-nothing
refused 'link to nothing' 'to-nothing: ' "${train[@]}" --save-dir to-nothing
[ -L to-nothing ] && [ ! -e nothing ] || fail 'the link is another'
run 'through a link' "${train[@]}" --save-dir link/ --resume auto

# ---- --save and --log-json ------------------------------------------------------------------------

mkdir target
for name in model log; do ln -s "target/$name" "$name"; done
refused 'refused run' 'to-nothing: ' "${train[@]}" --save model --log-json log --save-dir to-nothing
for name in model log; do
    [ -L "$name" ] && [ ! -e "$name" ] || fail "a refused run has changed $name"
done
[ -z "$(ls -A target)" ] || fail 'a refused run has left something'
refused 'the same name' 'would lie in target/model, which the run replaces' "${train[@]}" \
    --save target/model --log-json model
run 'links to nothing' "${train[@]}" --save model --log-json log
for name in model log; do
    [ -L "$name" ] && [ -s "target/$name" ] || fail "$name was not written through its link"
done
no_leftovers links .
ln -s round circle
ln -s circle round
refused 'a circle' 'circle: its links lead in a circle' "${train[@]}" --save circle
refused 'nowhere' 'nowhere/x: its directory does not exist' "${train[@]}" --save nowhere/x
mkdir beside
touch beside/.w.0123456789abcdef.tmp beside/.w.tmp beside/.other.0123456789abcdef.tmp
run 'beside leftovers' "${train[@]}" --save beside/w
[ "$(find beside -name '.*' -type f | sort | tr '\n' ' ')" = \
    'beside/.other.0123456789abcdef.tmp beside/.w.tmp ' ] || fail 'other leftovers than its own are gone'
rm -r beside

# Of two runs with one --save the second is refused, also through a link.
"${train[@]}" --epochs 100000 --save shared >first.out 2>&1 &
first=$!
trap 'kill -9 "$first" 2>/dev/null || true; rm -rf "$scratch"' EXIT
for ((i = 0; i < 600; i++)); do
    [ -z "$(find . -maxdepth 1 -name '.run.shared*')" ] || break
    kill -0 "$first" || fail 'the first run has ended'
    sleep 0.1
done
ln -s shared also
for name in shared also; do
    refused "$name" "$name: another run that has not ended writes it" "${train[@]}" --save "$name"
done
kill -9 "$first"
wait "$first" || true
trap 'rm -rf "$scratch"' EXIT
run 'after a killed run' "${train[@]}" --save shared
no_leftovers 'a killed run' .
rm also

# Nothing is written into a checkpoint, or beside those of the run.
cp -r a whole
content whole >inside.before
for output in "--save whole/best/model.safetensors" "--log-json whole/step-00000002/state.json" \
    "--trace whole/best/tokenizer.json" "--log-json whole/best/log" "--save whole/step-00000004/new"; do
    # shellcheck disable=SC2086 # words
    refused "$output" 'would lie in the checkpoint whole/' "${train[@]}" --init whole/best $output
    same inside whole
done
log=$PWD/whole.jsonl
run 'a run with a log' "${train[@]}" --log-json "$log"
inside() { # WORD...: refused, and nothing in the checkpoints is another
    refused "$*" 'would lie in the checkpoint whole/' "$@"
    same inside whole
}
inside "$program" report "$log" -o whole/best/state.json
inside "$program" report "$log" --csv -o whole/best/steps.csv
inside "$program" data --synthetic whole/best --tokens 100
inside "$program" data --synthetic whole/best/text --tokens 100
inside "$program" checkpoint convert whole/step-00000002 whole/step-00000004/other
inside "$program" checkpoint average whole/step-00000002 whole/step-00000004/mean/
inside "${train[@]}" --tensorboard whole/best
inside "${train[@]}" --tensorboard whole/best/events
inside "${train[@]}" --save-dir whole/best
inside "${train[@]}" --save-dir whole/best/runs/
mkdir among
for output in "--save among/m" "--log-json among/log" "--trace among/../among/trace" \
    "--tensorboard among" "--tensorboard among/events"; do
    # shellcheck disable=SC2086 # words
    refused "$output" "would lie among the run's checkpoints, in among" "${train[@]}" --save-dir among $output
done
[ -z "$(ls -A among)" ] || fail 'a refused run has left something'
# The longest names that a file system takes, replaced as well; a longer one is refused.
for bytes in 254 254 255 255; do
    run "$bytes bytes" "${train[@]}" --save "$(printf "%0${bytes}d" 0)" --log-json "$(printf "%0${bytes}d" 1)" \
        --trace "$(printf "%0${bytes}d" 2)"
done
refused '256 bytes' ': cannot be examined: File name too long' "${train[@]}" --save "$(printf %0256d 0)"
rm -r 0*

# A model is saved whatever its name, over a model that sluice has saved alone.
for ((i = 0; i < 2; i++)); do run 'any name' "${train[@]}" --save m.safetensors/; done
[ -f m.safetensors/model.safetensors ] || fail 'm.safetensors is no directory'
echo mine >m.safetensors/notes
content m.safetensors >own.before
refused 'notes' 'it exists and is not a model that sluice saved, with nothing else beside it' \
    "${train[@]}" --save m.safetensors
same own m.safetensors
echo mine >file.safetensors
refused 'a file' 'a model is a directory, and a file has this name' "${train[@]}" --save file.safetensors
[ "$(cat file.safetensors)" = mine ] || fail 'a file was replaced'
refused 'around checkpoints' "around/run would lie in around, which the run replaces" \
    "${train[@]}" --save around --save-dir around/run

# ---- data and checkpoint convert ------------------------------------------------------------------

# Killed before each call that changes the file system: the next run leaves no trace of it.
killed_at() { # CALL PATH WORD...: the shell says in its subshell that it was killed
    (LD_PRELOAD=$faults SLUICE_IO_ONLY=$2 SLUICE_IO_KILL=$1 "${@:3}"; exit $?) >out 2>err
}
killed_at_each_call() { # NAME DIRECTORY TARGET WORD...: TARGET is removed before each run
    local name=$1 directory=$2 target=$3 call=0 status
    shift 3
    while :; do
        call=$((call + 1))
        rm -rf "$target"
        status=0
        killed_at "$call" "$directory/" "$@" || status=$?
        [ "$status" != 0 ] || break
        [ "$status" = 137 ] || fail "$name: killed at call $call: status $status"
        rm -rf "$target"
        run "$name" "$@"
        no_leftovers "$name, killed at call $call" "$directory"
    done
    [ "$call" -gt 3 ] || fail "$name: there are only $call calls"
}
mkdir converted vocab synthetic
killed_at_each_call convert converted converted/to "$program" checkpoint convert a/step-00000002 converted/to
killed_at_each_call vocabulary vocab vocab/v "$program" data text --vocab vocab/v
killed_at_each_call synthetic synthetic none "$program" data --synthetic synthetic --tokens 100
# A run that prunes, killed at each call: what the next one does not need is gone.
for ((call = 1; ; call++)); do
    rm -rf pruned
    cp -r a pruned
    status=0
    killed_at "$call" pruned/ "${train[@]}" --save-dir pruned --resume pruned/step-00000004 --keep 1 ||
        status=$?
    [ "$status" != 0 ] || break
    run 'pruning again' "${train[@]}" --save-dir pruned --resume auto --keep 1
    no_leftovers "pruning, killed at call $call" pruned
done
[ "$call" -gt 20 ] || fail "there are only $call calls"

# A checkpoint that cannot be pruned stays whole and is said; the save that it followed counts, and the run is well.
cp -r a kept
rm -r kept/step-00000006
content kept/step-00000002 >kept.before
LD_PRELOAD=$faults SLUICE_IO_ONLY=kept/step-00000002 SLUICE_IO_FAIL=1 SLUICE_IO_FAILURES=1000 run 'failing pruning' \
    "${train[@]}" --save-dir kept --resume kept/step-00000004 --keep 1 --log-json kept.jsonl
grep -q 'older checkpoints stay: .*step-00000002.*No space left' err || fail 'a failed pruning is not said'
grep -q '"record":"unpruned","step":6' kept.jsonl || { cat kept.jsonl >err; fail 'a failed pruning is not logged'; }
! grep -q 'not saved' err || fail 'a failed pruning fails the save'
[ -d kept/step-00000006 ] || fail 'there is no checkpoint beside a failed pruning'
same kept kept/step-00000002

# A run none of whose checkpoints could be saved, or not the last one, ends with an error after its results.
for steps in .step- .step-00000006; do
    rm -rf full
    LD_PRELOAD=$faults SLUICE_IO_ONLY=full/$steps SLUICE_IO_FAIL=1 SLUICE_IO_FAILURES=100000 refused "full/$steps" \
        'the run has ended, but its last checkpoint is not saved: ' "${train[@]}" --save-dir full --save-every 2
    grep -q 'End of training' out || fail "full/$steps: there are no results"
done
[ -d full/step-00000004 ] || fail 'no older checkpoint is saved'

for to in slash/ slashes///; do
    run "convert to $to" "$program" checkpoint convert a/step-00000002 "$to"
    run "verify $to" "$program" checkpoint verify "$to"
    refused "again to $to" 'there is something of that name already' \
        "$program" checkpoint convert a/step-00000002 "$to"
done
run 'average to a slash' "$program" checkpoint average a/step-00000002 a/step-00000004 mean/
refused 'link to nothing' 'there is something of that name already' \
    "$program" checkpoint convert a/step-00000002 to-nothing/
[ -L to-nothing ] || fail 'the link is gone'
no_leftovers convert .

# ---- A new --save-dir, and its limits -------------------------------------------------------------

mkdir parent
LD_PRELOAD=$faults SLUICE_IO_LOG=calls run 'new directory' "${train[@]}" --save-dir parent/new/
sed -n '/^mkdir .*parent\/new$/{n;p}' calls | grep -q "^fsync .*/parent$" || { cat calls; fail 'the parent is not synced'; }
grep -q '//' out err && fail 'a path has two slashes'
mkdir parent2
LD_PRELOAD=$faults SLUICE_IO_ONLY=parent2 SLUICE_IO_FAIL=2 refused 'failing parent' \
    'parent2/new: .*No space left' "${train[@]}" --save-dir parent2/new

# A limit on the size of files (ulimit -f) is an error of every command that writes them.
limited() { # NAME WORD...
    local name=$1 status=0
    shift
    (ulimit -f 1; exec "$@") >out 2>err || status=$?
    [ "$status" = 1 ] || fail "$name: status $status"
    grep -qi 'file too large' err || fail "$name: it does not say why"
}
limited data "$program" data --synthetic large --tokens 4000
seq 1000 >words.txt
limited vocabulary "$program" data words.txt --vocab large.json
limited convert "$program" checkpoint convert a/step-00000002 large-checkpoint
limited average "$program" checkpoint average a/step-00000002 a/step-00000004 large-checkpoint
limited train "${train[@]}" --save large-model
no_leftovers limited .
# A started program has the signal as the launcher had it.
"$program" launch -n 1 -- bash -c 'trap -p XFSZ; grep SigIgn /proc/self/status' >out 2>err || fail launch
ignored=$(sed -n 's/.*SigIgn:[[:space:]]*//p' out)
[ $((0x$ignored & (1 << 24))) = 0 ] || fail 'started programs ignore SIGXFSZ'
