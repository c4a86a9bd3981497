#!/bin/bash
# What a model says while it is trained: the text that generate makes of the checkpoint of that step, on any layout; in
# the log, on the screen and on the page. The run's numbers are those of a run without samples.
. "$(dirname "$0")/../support/script.sh"
samples() { # LOG: step and text of each sample
    grep '^{"record":"sample"' "$1" | sed 's/.*"step":\([0-9]*\),"prompt":"the cat","text":"\(.*\)","time".*/\1 \2/'
}

for ((line = 0; line < 300; line++)); do
    echo "the cat sat $((line % 7)) on a mat , the dog < $((line * 5 % 11)) > ran"
done >text.txt
sizes=(--emsize 16 --nhid 16 --nlayers 4 --nhead 2 --dropout 0.1 --bptt 16 --batch-size 2 --eval-batch-size 2)
job=(train --data text.txt "${sizes[@]}" --max-batches 6 --eval-max-batches 1 --epochs 1 --lr 0.5 --seed 5 --shards 2 --chunks 1)
sampled=("${job[@]}" --sample-every 2 --sample-prompt "the cat" --sample-tokens 9)

runs "$program" "${job[@]}" --save plain
runs "$program" "${sampled[@]}" --save whole --save-dir run --save-every 2 --keep 0 --log-json log
cmp plain/model.safetensors whole/model.safetensors || fail "samples change the run"
cp out shown
samples log >expected
[ "$(cut -d' ' -f1 expected | tr '\n' ' ')" = "2 4 6 " ] || fail "samples at other steps: $(cat expected)"
while read -r step text; do
    runs "$program" generate --init "run/step-0000000$step" --prompt "the cat" --tokens 9 --seed 5
    [ "$(cat out)" = "$text" ] || fail "step $step: generate says $(cat out), the sample \"$text\""
    grep -qF "| sample after step $step | $text" shown || fail "the screen does not have the sample of step $step: $(cat shown)"
done <expected
[ "$(cut -d' ' -f2- expected | sort -u | wc -l)" = 3 ] || fail "the model says the same at each step: $(cat expected)"

for layout in "--pp 2" "--dp 2" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-v"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" "${sampled[@]}" $layout --log-json cut.log
    samples cut.log | cmp expected - || fail "other samples with $layout: $(samples cut.log)"
done
rm cut.log
runs "$program" train --resume run/step-00000002 --log-json cut.log --save cut
samples cut.log | cmp <(tail -n +2 expected) - || fail "other samples after a resume: $(samples cut.log)"
for layout in "--dp 1 --pp 2" "--dp 2"; do
    # In two processes, where there is MPI, which leaks.
    # shellcheck disable=SC2086 # several words
    if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${sampled[@]}" $layout --log-json cut.log >out 2>err; then
        samples cut.log | cmp expected - || fail "other samples in two processes, $layout: $(samples cut.log)"
    else
        grep -q 'sluice_mpi.so was not found' err || fail "two processes"
    fi
done
runs "$program" "${sampled[@]}" --quiet
if grep -q sample out; then fail "--quiet shows samples"; fi

# The page has them, the newest first, as text; a log that a run went on in has each once.
runs "$program" "${sampled[@]}" --save-dir again --save-every 3 --log-json log2
runs "$program" train --resume again/step-00000003 --log-json log2
samples log2 | cmp <(cat expected <(tail -n +2 expected)) - || fail "other samples in the log of both: $(samples log2)"
runs "$program" report log2 -o page.html
grep -o '<th>[0-9]*</th><td>the cat[^/]*</td>' page.html | sed 's/<th>\([0-9]*\).*<td>\(.*\)<\/td>/\1 \2/; s/&lt;/</g; s/&gt;/>/g' |
    cmp <(tac expected) - || fail "the page has other samples"

# With a tokenizer that is given, adapters and rows; words of a published family.
printf '{"input_ids": [1, 2, 3, 4, 5]}\n%.0s' {1..8} >rows.jsonl
lora=(train --init "$models/llama3" --data rows.jsonl --batch-size 2 --lora --lr 1e-2 --quiet)
runs "$program" "${lora[@]}" --tokenizer whole --sample-every 3 --sample-prompt "the cat" --sample-tokens 60 --save-dir adapted --save-every 3 \
    --keep 0 --log-json log3
runs "$program" generate --init adapted/step-00000003 --tokenizer whole --prompt "the cat" --tokens 60
[ "3 $(cat out)" = "$(samples log3)" ] || fail "generate says $(cat out) with the adapters, the sample $(samples log3)"

# ---- Bad input ----

refused 1 "sample-every needs sample-prompt" "$program" "${job[@]}" --sample-every 2
refused 2 "--sample-prompt needs --sample-every" "$program" "${job[@]}" --sample-prompt the
refused 1 "sample-prompt must have at least one token, got \" \"" "$program" "${job[@]}" --sample-every 2 --sample-prompt " "
refused 1 "sample-prompt needs a tokenizer (--tokenizer): $models/llama3: it has no tokenizer.json" "$program" "${lora[@]}" --sample-every 2 --sample-prompt the
refused 2 "--sample-tokens must be" "$program" "${sampled[@]}" --sample-tokens 0
echo "samples: ok"
