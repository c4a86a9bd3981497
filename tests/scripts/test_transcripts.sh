#!/bin/bash
# What pages show behind a `$` is what the program prints, and tables that nothing was measured for are those that
# their commands print. A line `…` in a page stands for any lines, `…` within one for any text, and behind a line and
# three blanks a page may explain it. Without an argument, commands that do not train; with `train`, those that do, by
# SLUICE_DATA, on processors whose instructions are those of the pages (others give other last digits). What stands
# behind `commit NUMBER printed:` is not run.
set -euo pipefail
[ -x "${SLUICE_PROGRAM:-}" ] || {
    echo "skipped: SLUICE_PROGRAM does not name a program"
    exit 77
}
if [ "${1-}" = train ]; then
    [ -n "${SLUICE_DATA-}" ] || {
        echo "skipped: SLUICE_DATA does not name the directory of WikiText-2"
        exit 77
    }
    grep -q -m 1 avx512f /proc/cpuinfo || {
        echo "skipped: this processor has no AVX-512"
        exit 77
    }
fi
python3 - "${1-}" <<'PYTHON'
import glob, os, re, subprocess, sys

os.chdir(os.environ.get("SLUICE_SOURCE_DIR", "."))  # else that of the caller
program, data, trains = os.environ["SLUICE_PROGRAM"], os.environ.get("SLUICE_DATA"), sys.argv[1] == "train"
environment = dict(os.environ, PATH=os.path.dirname(os.path.abspath(program)) + ":" + os.environ["PATH"])
failed = count = 0


def run(command):
    result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    return result.stdout.splitlines() if result.returncode == 0 else [result.stderr.strip()]


def pattern(line):
    """Of a line of a page; blanks stand for any number of them."""
    text = re.escape(" ".join(line.split())).replace("…", ".*")
    return re.compile(text)


def matches(shown, printed):
    """Whether a line that was printed is the line that is shown."""
    explained = shown.startswith(printed + "   ") and printed.strip()
    return bool(explained or pattern(shown).fullmatch(" ".join(printed.split())))


def first_wrong(shown, printed):
    """The first line of a page that was not printed where it stands, or None."""
    at, skip = 0, False
    for line in shown:
        if line.strip() == "…":
            skip = True
            continue
        while skip and at < len(printed) and not matches(line, printed[at]):
            at += 1
        if at == len(printed) or not matches(line, printed[at]):
            return line
        at, skip = at + 1, False
    return None if skip or at == len(printed) else f"(the end; {printed[at]} follows)"


def check(where, command, shown, wrong):
    global failed, count
    count += 1
    if wrong:
        failed += 1
        print(f"{where}: {command}\nshows, but the program does not print there:\n{wrong}")


for page in ["README.md", *sorted(glob.glob("docs/*.md"))]:
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for found in re.finditer(r"(?m)(commit \w+ printed:\n+)?^    \$ ((?:.*\\\n)*.*)\n((?:(?:    .*)?\n)*?)(?=^    \$ |^\S|\Z)", text):
        command = found[2].replace("\\\n", "")
        if found[1] or (" train " in command) != trains:
            continue
        shown = [line[4:] for line in found[3].rstrip("\n").split("\n")]
        printed = run(command.replace("DIR", data) if data else command)
        if trains:
            shown = [line.replace("DIR", data) for line in shown]
        check(page, command, shown, first_wrong(shown, printed))
for path in [] if trains else sorted(glob.glob("docs/figures/*.md")):
    with open(path, encoding="utf-8") as file:
        head, table = file.read().split("\n\n", maxsplit=1)
    if "machine: any machine" in head:
        command = "\n".join(re.findall(r"(?m)^command: (.*)$", head))
        check(path, command, table, first_wrong(table.splitlines(), run(command)))
print(f"{count} transcripts and tables")
sys.exit(failed > 0 or count == 0)
PYTHON
