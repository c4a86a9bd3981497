#!/bin/bash
# Several prompts of a file at once: the texts of each prompt alone, for any number at once, through stages of one process
# and of two.
. "$(dirname "$0")/../support/script.sh"

for ((line = 0; line < 300; line++)); do
    echo "the cat sat $((line % 7)) on a mat , the dog < $((line * 5 % 11)) > ran"
done >text.txt
runs "$program" train --data text.txt --emsize 16 --nhid 16 --nlayers 4 --nhead 2 --bptt 16 --batch-size 2 --max-batches 20 --epochs 1 \
    --eval-max-batches 1 --save model
long=$(printf 'the cat sat %s on a mat ' {1..6}) # longer than the context of 16
long=${long% }
printf '%s\n' "the cat" "$long" "a mat , the dog" "ran the cat sat 3 on a" "the" "dog < 5 >" >prompts
while read -r prompt; do
    # The texts are longer than the context of 16.
    runs "$program" generate --init model --prompt "$prompt" --tokens 20 --seed 3
    [ ! -s expected ] || echo >>expected
    cat out >>expected
done <prompts
for options in "" "--batch-size 1" "--batch-size 3" "--batch-size 5 --devices cpu:0,cpu:1"; do
    # shellcheck disable=SC2086 # several words
    runs "$program" generate --init model --prompts prompts --tokens 20 --seed 3 $options
    cmp out expected || fail "other texts with $options"
    grep -q 'warning: 1 of 6 prompts have more than 16 tokens, of which the model sees the last (--context)' err ||
        fail "no warning of a prompt that is longer than the context"
done
cp prompts read-by-the-first
cat >by_rank <<'EOF'
#!/bin/bash
# What only the first process of a job can read.
[ "${RANK:-0}" = 0 ] || exec "$@" --prompts prompts.of.no.one
exec "$@" --prompts read-by-the-first
EOF
chmod +x by_rank
if ASAN_OPTIONS=detect_leaks=0 timeout 120 "$program" launch --nproc 2 ./by_rank "$program" generate --init model --tokens 20 \
    --seed 3 --batch-size 3 >out 2>err; then
    cmp out expected || fail "other texts in two processes"
else
    grep -q 'sluice_mpi.so was not found' err || fail "two processes"
fi

# Another tokenizer of the second process is noticed, also one with other settings alone.
two_tokenizers() { # REASON TOKENIZER OF-THE-SECOND
    local status=0
    cat >by_rank <<EOF
#!/bin/bash
[ "\${RANK:-0}" = 0 ] || exec "\$@" --tokenizer $3
exec "\$@" --tokenizer $2
EOF
    ASAN_OPTIONS=detect_leaks=0 timeout 120 "$program" launch --nproc 2 ./by_rank "$program" generate --init model --prompts prompts \
        --tokens 20 >out 2>err || status=$?
    [ $status = 1 ] || fail "two tokenizers: status $status"
    grep -q "$1" err || grep -q 'sluice_mpi.so was not found' err || fail "two tokenizers: not \"$1\" but $(cat err)"
}
printf 'the dog ran\n%.0s' {1..99} >other.txt
runs "$program" data other.txt --vocab other.json
sum='[0-9a-f]\{32\}' all=': start all with the same --tokenizer'
two_tokenizers "this process's tokenizer other.json (checksum $sum) is not the first process's ($sum)$all" model other.json
mkdir one two
cp model/tokenizer.json one
cp model/tokenizer.json two
echo '{"chat_template": "of the first"}' >one/tokenizer_config.json
echo '{"chat_template": "of the second"}' >two/tokenizer_config.json
two_tokenizers "this process's tokenizer two (checksum of its tokenizer_config.json $sum) is not the first process's ($sum)$all" one two

# With --json a line is the prompt's with what was added: together they are the text.
runs "$program" generate --init model --prompts prompts --tokens 20 --seed 3 --json
grep -v '^$' expected >texts
"$python" - <<'EOF' || fail "other lines with --json"
import json
lines = [json.loads(line) for line in open("out")]
prompts = open("prompts").read().splitlines()
assert [line["prompt"] for line in lines] == prompts, lines
assert [line["prompt"] + line["text"] for line in lines] == open("texts").read().splitlines(), lines
EOF

# A full disk ends the work where the first text is printed, in one process and in two.
yes "the cat" | head -n 2000 >many || true
for form in "" --json; do
    status=0
    # shellcheck disable=SC2086 # none or one
    timeout 60 "$program" generate --init model --prompts many --tokens 2000 $form >/dev/full 2>err || status=$?
    [ $status = 1 ] || fail "a full disk: status $status"
    grep -q 'standard output cannot be written: No space left on device' err || fail "a full disk: no reason"
done
status=0
timeout 60 "$program" generate --init model --prompt "the cat" --tokens 1000000 >/dev/full 2>err || status=$?
[ $status = 1 ] || fail "a full disk with --prompt: status $status"

