"""Runs a command several times; prints its lines once, with the median and range of each number.

    python3 bench/repeat.py [--runs 5] [--figures NAME] [--] COMMAND [ARG ...]

Two lines of two runs belong together where they differ in nothing but numbers and spaces. A number
that is the same in all runs stands as it is; of another, the median comes with the smallest and the
largest in parentheses, behind its unit. A line that some of the runs did not print says so. The runs'
own lines go to standard error as they come. A COMMAND of one word with blanks is the shell's.

With --figures, the tables among the lines become docs/figures/NAME.md, with the commit, the machine,
the number of runs and the command; scripts/figures puts them into the pages. A table whose heading
came before goes on. Where a command repeats by itself, it runs once (--runs 1), and a line
`runs: TEXT` of it says how often it did.
"""
import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

NUMBER = re.compile(r"(?<![\w.])([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?!\w)(?!\.\d)(%|(?: [a-zA-Z/]+)+(?= \|))?")
ROOT = Path(__file__).resolve().parent.parent


def lines_of(command):
    words = ["bash", "-c", command[0]] if len(command) == 1 and " " in command[0] else command
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            yield line.rstrip("\n")
    if process.returncode != 0:
        sys.exit(f"repeat.py: {command[0]} ended with status {process.returncode}")


def collect(command, runs):
    """{(text between the numbers, how many such lines of the run came before): [each run's numbers, units]}"""
    found = {}
    for _ in range(runs):
        counts = {}
        for line in lines_of(command):
            numbers = [(one[1], one[2] or "") for one in NUMBER.finditer(line)]
            text = tuple(re.sub(" +", " ", part) for part in NUMBER.sub("\0", line).split("\0"))
            counts[text] = counts.get(text, 0) + 1
            found.setdefault((text, counts[text]), []).append(numbers)
    return found


def digits_after_point(number):
    return len(number.partition(".")[2])


def summarize(found):
    """The text for one number of a line, from the numbers and units that the runs printed in its place."""
    numbers, unit = [number for number, _ in found], found[0][1]
    if len(set(numbers)) == 1:
        return numbers[0] + unit
    digits = max(map(digits_after_point, numbers))
    values = [float(number.replace(",", "")) for number in numbers]
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle}{unit} ({low} to {high})" if unit != "%" else f"{middle}% ({low}% to {high}%)"


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        models = re.findall(r"(?m)^model name\s*: (.*)$", info.read())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else os.uname().machine}, {memory:.0f} GiB"


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()
    if git("status", "--porcelain", "-uno", "--", "src", "include", "bench", "CMakeLists.txt"):
        sys.exit("repeat.py: commit what is to be measured first: a file of figures names its commit")
    return git("rev-parse", "--short", "HEAD")


def tables_of(lines):
    """The lines of tables, and an empty one between two; a table whose heading came before goes on."""
    tables, headings = [], set()
    for line, following in zip(lines, [*lines[1:], ""]):
        if following.startswith("|--"):
            if line not in headings:
                tables += [""] * bool(tables) + [line, following]
            headings.add(line)
        elif line.startswith("|") and not line.startswith("|--"):
            tables.append(line)
    return tables


def write_figures(path, head, command, lines):
    tables = tables_of(lines)
    if not tables:
        sys.exit("repeat.py: the command printed no table")
    head = [*head, *(f"command: {line}" for line in command.splitlines()), "", *tables]
    path.write_text("\n".join(head) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--figures", metavar="NAME")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.runs < 1 or not command:
        parser.error("a command, and at least one run of it, is needed")
    head = [f"commit: {commit()}", f"machine: {machine()}"] if args.figures else []
    lines = []
    for (text, _), runs in collect(command, args.runs).items():
        numbers = [summarize(place) for place in zip(*runs)]
        line = "".join(a + b for a, b in zip(text, [*numbers, ""]))
        lines.append(line if len(runs) == args.runs else f"{line}  [in {len(runs)} of {args.runs} runs]")
    print("\n".join(lines))
    if args.figures:
        said = [line for line in lines if line.startswith("runs: ")] or [f"runs: {args.runs} runs"]
        write_figures(ROOT / "docs/figures" / f"{args.figures}.md", head + said[:1],
                      command[0] if len(command) == 1 else shlex.join(command), lines)


if __name__ == "__main__":
    main()
