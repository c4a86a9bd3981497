#!/bin/bash
# The page that walks through fine-tuning has the commands of scripts/demo-finetune, and options that there are.
. "$(dirname "$0")/../support/script.sh"
cd "$source"
page=docs/fine-tuning-tutorial.md
one_line() { tr '\n' ' ' | tr -s ' '; }

for name in ask train; do
    command=$(awk "/^$name=\\(/ { inside = 1 } inside { print } inside && /\\)\$/ { exit }" scripts/demo-finetune | one_line)
    command=$(sed -E "s/^$name=\((.*)\) *\$/\1/; s/\"?\\\$result\/([a-z]+)\"?/\1/g" <<<"$command")
    [ -n "$command" ] || fail "scripts/demo-finetune has no $name"
    grep -qF "    sluice $command" $page || fail "$page does not have: sluice $command"
done
tail -n +8 scripts/demo-finetune | grep -qF 'role\": \"user' || fail "scripts/demo-finetune makes other lines"

# Each command of the page is one that `sluice help` has, with its options.
count=0
while read -r _ command words; do
    "$program" help "$command" >"$scratch/help" || fail "there is no sluice $command"
    while read -r option; do
        grep -qE -e "$option\b" "$scratch/help" || fail "sluice $command has no $option"
        count=$((count + 1))
    done < <(grep -oE -e '--[a-z-]+' <<<"$words" || true)
    rm "$scratch/help"
done < <(grep -E '^    (\$ )?sluice ' $page | sed 's/^ *\(\$ \)\?//')
[ $count -ge 30 ] || fail "only $count options were found on the page"
