#!/bin/bash
# sluice train --data a=0.7:DIR --data b=0.3:DIR: each source has its share, its epochs and its loss in the log; the bits are the
# same on any layout and after a resume; one source is that source alone.
. "$(dirname "$0")/../support/script.sh"

goldens=$source/tests/text/token_files
lines() { # ROWS LONGEST SEED: of other lengths, and of some only the end has targets
    awk -v rows="$1" -v longest="$2" -v seed="$3" 'BEGIN { for (row = 0; row < rows; row++) {
        length_ = 2 + (row * 31 + row * row * 7 + seed) % (longest - 1); ids = labels = ""
        for (i = 0; i < length_; i++) {
            id = (row * 31 + i * i * 17 + seed * (i + 1)) % 97
            ids = ids (i ? ", " : "") id
            labels = labels (i ? ", " : "") (row % 3 == 1 && i < length_ / 2 ? -100 : id)
        }
        printf "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids, labels } }'
}
records() { grep "^{\"record\":\"$1\"" "$2"; }                                     # KIND LOG
lists_of() { records "$1" "$2" | grep -oP "\"$3\":\\[\\K[^]]*" | tr ',' ' '; }      # KIND LOG FIELD
fields_of() { records "$1" "$2" | grep -oP "\"$3\":\\K[0-9.e+-]+"; }                # KIND LOG FIELD
mkdir a b c
lines 40 20 3 >a/train.jsonl
lines 7 20 4 >a/valid.jsonl
lines 11 12 9 >b/train.jsonl
lines 4 12 1 >b/valid.jsonl
lines 5 14 5 >c/train.jsonl
mixture=(--data a=0.7:a --data b=0.3:b)
job=(train --init "$models/llama3" --batch-size 5 --shards 2 --chunks 2 --epochs 2 --lr 1e-3 --quiet)

# ---- Shares, epochs and losses ----

runs "$program" "${job[@]}" "${mixture[@]}" --log-json whole.log --save whole --save-dir run --save-every 3 --keep 9 --no-quiet
grep -q "70.00% of the rows from a: 466 tokens in 40 rows  a/train.jsonl" out || fail "the screen does not say the sources: $(cat out)"
grep -qE '^\|   a: valid loss +[0-9.]+ \| valid ppl +[0-9.]+$' out || fail "the screen does not say the sources' losses: $(cat out)"
[ "$(grep -cE '^\|   [ab]: loss +[0-9.]+ \| ppl +[0-9.]+ \| passed [0-9.]+ times$' out)" = 4 ] ||
    fail "the screen does not have each source's loss in each epoch: $(cat out)"
if ! grep -q '^|   a: .* passed 1.75 times$' out || ! grep -q '^|   b: .* passed 2.73 times$' out; then
    fail "the screen has other epochs of the sources: $(cat out)"
fi
runs "$program" "${job[@]}" "${mixture[@]}" --epochs 1 --max-batches 1 --log-json one.log --no-quiet
[ "$(lists_of step one.log source_loss | awk '{ printf "%.2f %.2f", $1, $2 }')" = \
    "$(grep -oP '^\|   [ab]: loss +\K[0-9.]+' out | paste -sd' ')" ] || fail "other losses of the sources on the screen: $(cat out)"
grep -q '"sources":\["a","b"\],"source_share":\[0.[67]' whole.log || fail "the log does not say the sources"
[ "$(records step whole.log | wc -l)" = 10 ] || fail "two epochs of 51 rows are not 10 batches of 10"
lists_of step whole.log source_share | awk '{ if ($1 < 0.699 || $1 > 0.701 || $2 < 0.299 || $2 > 0.301) exit 1 }' ||
    fail "other shares: $(lists_of step whole.log source_share)"
lists_of step whole.log source_epochs | tail -n 1 | awk '{ d = $1 - 70 / 40; e = $2 - 30 / 11; if (d * d > 1e-9 || e * e > 1e-9) exit 1 }' ||
    fail "other epochs: $(lists_of step whole.log source_epochs)"
valid=$(lists_of eval whole.log source_loss | tail -n 1)
paste <(fields_of eval whole.log loss | tail -n 1) <(echo "$valid") | awk '{ d = $1 - 0.7 * $2 - 0.3 * $3; if (d * d > 1e-12) exit 1 }' ||
    fail "the validation is not the sources' weighted mean: $valid"
for part in a b; do
    runs "$program" eval --init whole --data $part --split valid --json
    grep -oP '"loss": \K[0-9.]+' out >>alone
done
paste -s -d ' ' alone | paste - <(echo "$valid") | awk '{ d = $1 - $3; e = $2 - $4; if (d * d > 1e-12 || e * e > 1e-12) exit 1 }' ||
    fail "eval says $(paste -s alone), the run $valid"
refused 2 "--data: eval takes one source, DIR or FILE, got a=1:a" "$program" eval --init whole --data a=1:a
runs "$program" report whole.log -o report.html
grep -q "<tr><th>b</th><td>30</td><td>2.727</td>" report.html || fail "the report does not say the sources: $(grep -A3 'sources of' report.html)"

# ---- TensorBoard ----

if "$python" -c 'import tensorboard' 2>/dev/null; then
    runs "$program" watch whole.log --tensorboard events
    "$python" - <<'END' || fail "TensorBoard has other losses of the sources"
import json, struct
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator("events")
reader.Reload()
records = [json.loads(line) for line in open("whole.log")]
for tag, kind, split in (("train", "step", None), ("valid", "eval", "valid")):
    chosen = [r for r in records if r["record"] == kind and r.get("split") == split]
    for number, name in enumerate("ab"):
        pairs = [(r["step"], r["source_loss"][number]) for r in chosen if r["source_loss"][number] is not None]
        got = [(event.step, event.value) for event in reader.Scalars(f"{tag}/loss/{name}")]
        assert got == [(step, struct.unpack("f", struct.pack("f", loss))[0]) for step, loss in pairs] != [], (tag, name, got)
END
else
    echo "skipped: the sources' losses in event files: there is no TensorBoard; scripts/test makes a Python that has it"
fi

# All rows of token files have equally many targets, so that the loss is the sources' mean by their shares.
runs "$program" train --init "$models/llama3" --data "a=2:$goldens/llmc_gpt2.bin" --data "b=1:$goldens/llmc_llama3.bin" --seq-len 6 --batch-size 3 \
    --epochs 4 --quiet --log-json tokens.log
paste <(fields_of step tokens.log loss) <(lists_of step tokens.log source_loss) <(lists_of step tokens.log source_share) |
    awk '{ d = $1 - $2 * $4 - $3 * $5; if (d * d > 1e-10) exit 1; lines++ } END { exit lines != 24 }' || fail "the loss is not that of the sources"

# ---- The same bits on any layout, and after a resume ----

same_as_whole() { # WHAT
    [ "$(sha256sum <cut/model.safetensors)" = "$(sha256sum <whole/model.safetensors)" ] || fail "other weights with $1"
}
for layout in "--dp 2" "--dp 2 --zero" "--pp 2" "--dp 2 --pp 2 --schedule 1f1b" "--pp 2 --schedule zb-h1"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" "${mixture[@]}" $layout --save cut --log-json cut.log
    same_as_whole "$layout"
    for record in step eval; do
        [ "$(lists_of $record cut.log source_loss)" = "$(lists_of $record whole.log source_loss)" ] || fail "other losses of sources with $layout"
    done
done
runs "$program" "${job[@]}" "${mixture[@]}" --shards 4 --batch-size 3 --chunks 1 --save-dir wide --save whole4
for layout in "--dp 4" "--dp 2"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" "${mixture[@]}" --shards 4 --batch-size 3 --chunks 1 $layout --save cut
    [ "$(sha256sum <cut/model.safetensors)" = "$(sha256sum <whole4/model.safetensors)" ] || fail "other weights of four shards with $layout"
done
runs "$program" "${job[@]}" "${mixture[@]}" --dp 2 --resume run/step-00000003 --save cut --log-json resumed.log
same_as_whole "--resume in the middle of an epoch"
[ "$(lists_of step resumed.log source_epochs)" = "$(lists_of step whole.log source_epochs | tail -n 7)" ] || fail "other epochs after a resume"
mkdir elsewhere
rm -r cut
(cd elsewhere && runs "$program" train --resume ../run/step-00000003 --save ../cut --log-json log --quiet)
same_as_whole "--resume without --data, elsewhere"
# In two processes, where there is MPI.
for layout in "--dp 2" "--dp 1 --pp 2"; do
    # shellcheck disable=SC2086 # several words
    if ASAN_OPTIONS=detect_leaks=0 "$program" launch --nproc 2 "$program" "${job[@]}" "${mixture[@]}" $layout --save cut --log-json cut.log >out 2>err; then
        same_as_whole "$layout in two processes"
        [ "$(lists_of step cut.log source_loss)" = "$(lists_of step whole.log source_loss)" ] || fail "other losses of sources in two processes, $layout"
    else
        grep -q 'sluice_mpi.so was not found' err || fail "two processes: $(cat err)"
    fi
done
for more in "--pack --seq-len 24" --group-by-length --no-shuffle "--max-batches 3"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" "${mixture[@]}" $more --save whole2
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" "${mixture[@]}" $more --dp 2 --pp 2 --save cut
    [ "$(sha256sum <cut/model.safetensors)" = "$(sha256sum <whole2/model.safetensors)" ] || fail "other weights with $more on another layout"
    [ "$(sha256sum <cut/model.safetensors)" != "$(sha256sum <whole/model.safetensors)" ] || fail "$more changes nothing"
done

# ---- One source is that source alone ----

for more in "" --no-shuffle --group-by-length; do
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" --data a $more --save alone.model --log-json alone.log
    # shellcheck disable=SC2086 # several words
    runs "$program" "${job[@]}" --data a=1:a $more --save one.model --log-json one.log
    [ "$(sha256sum <alone.model/model.safetensors)" = "$(sha256sum <one.model/model.safetensors)" ] || fail "one source is not itself: $more"
    [ "$(fields_of step alone.log loss)" = "$(fields_of step one.log loss)" ] || fail "other losses of one source: $more"
done

# A source without validation counts for none in it.
runs "$program" "${job[@]}" --data a=1:a --data c=3:c --log-json few.log --max-batches 2
lists_of eval few.log source_loss | awk '$2 != "null" { exit 1 }' || fail "a validation of nothing"
[ "$(fields_of eval few.log loss)" = "$(lists_of eval few.log source_loss | cut -d ' ' -f 1)" ] || fail "a validation of one source is not its own"

# ---- Bad input ----

refused 1 '--data: the weight of source a must be a number above 0, got "much"' "$program" "${job[@]}" --data a=much:a
refused 1 '--data: the weight of source b must be a number above 0, got "0"' "$program" "${job[@]}" --data a=1:a --data b=0:b
refused 1 '--data: the weight of source b must be a number above 0, got "-0.3"' "$program" "${job[@]}" --data a=1:a --data b=-0.3:b
refused 1 '--data: two sources are called a' "$program" "${job[@]}" --data a=1:a --data a=2:b
refused 1 'got "b" among sources' "$program" "${job[@]}" --data a=1:a --data b
mkdir text
printf 'a text of words\n%.0s' {1..99} >text/train.txt
refused 1 'text: source t must be rows of JSON lines or a token file (sluice tokenize), or a directory with train.jsonl or train.bin' "$program" \
    "${job[@]}" --data a=1:a --data t=1:text
refused 1 'a/valid.jsonl/x: source t must be rows' "$program" "${job[@]}" --data a=1:a --data t=1:a/valid.jsonl/x
refused 1 'the mixture: its 16 rows do not fill a batch of 40' "$program" "${job[@]}" --data c=1:c --data b=1:b --batch-size 20
refused 1 'train data "checksum' "$program" train --resume run --data a=0.6:a --data b=0.4:b --quiet
echo "mixtures: ok"
