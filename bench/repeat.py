"""Runs a command several times; prints its lines once, with the median and range of each number.

    python3 bench/repeat.py [--runs 5] [--] COMMAND [ARG ...]

Two lines of two runs belong together where they differ in nothing but numbers and spaces. A number
that is the same in all runs stands as it is; of another, the median comes with the smallest and the
largest in parentheses. A line that some of the runs did not print says so. The runs' own lines go to
standard error as they come.
"""
import argparse
import re
import statistics
import subprocess
import sys

NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")


def lines_of(command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            yield line.rstrip("\n")
    if process.returncode != 0:
        sys.exit(f"repeat.py: {command[0]} ended with status {process.returncode}")


def collect(command, runs):
    """{(text between the numbers, how many such lines of the run came before): [each run's numbers]}"""
    found = {}
    for _ in range(runs):
        counts = {}
        for line in lines_of(command):
            text = tuple(re.sub(" +", " ", part) for part in NUMBER.split(line))
            counts[text] = counts.get(text, 0) + 1
            found.setdefault((text, counts[text]), []).append(NUMBER.findall(line))
    return found


def digits_after_point(number):
    return len(number.partition(".")[2])


def summarize(numbers):
    """The text for one number of a line, from what the runs printed in its place."""
    if len(set(numbers)) == 1:
        return numbers[0]
    digits = max(map(digits_after_point, numbers))
    values = [float(number.replace(",", "")) for number in numbers]
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.runs < 1 or not command:
        parser.error("a command, and at least one run of it, is needed")
    for (text, _), runs in collect(command, args.runs).items():
        numbers = [summarize(place) for place in zip(*runs)]
        line = "".join(a + b for a, b in zip(text, [*numbers, ""]))
        print(line if len(runs) == args.runs else f"{line}  [in {len(runs)} of {args.runs} runs]")


if __name__ == "__main__":
    main()
