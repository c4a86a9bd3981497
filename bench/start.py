"""How long a model's directory takes to be ready: from the program's start to generate's first token, and to the first step of a training.

    python3 bench/start.py [--build DIR] [--runs 5] MODEL

MODEL is a directory as scripts/smollm2.py makes it; it is read once before, so that it is in the page cache. Each run does all
in turn. Prints a table with the time by the clock and that of all processors, as medians with the smallest and the largest.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

PROMPT = "504,1463,282,25554"


def run(words, until_first):
    """The time of the begin, the seconds from it to the first token (None: not asked for), and the processors' seconds."""
    begin = time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text, first = b"", None
    while block := os.read(process.stdout.fileno(), 4096):
        text += block
        if until_first and first is None and len(text.split()) > len(PROMPT.split(",")):
            first = time.time() - begin
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{words[1]} ended with status {process.returncode}")
    return begin, first, usage.ru_utime + usage.ru_stime


def generate(args, precision):
    words = [args.build / "bin/sluice", "generate", "--init", args.model, "--prompt-ids", PROMPT, "--tokens", "1", "--greedy",
             "--precision", precision]
    _, first, processors = run(words, True)
    return first, processors


def train(args, folder):
    """To the beginning of the first step; the processors' time is that of this step too."""
    log = folder / "log"
    words = [args.build / "bin/sluice", "train", "--init", args.model, "--data", folder, "--batch-size", "1", "--seq-len", "16",
             "--max-batches", "1", "--epochs", "1", "--eval-max-batches", "1", "--log-json", log, "--quiet"]
    begin, _, processors = run(words, False)
    with open(log, encoding="utf-8") as file:
        step = next(record for record in map(json.loads, file) if record["record"] == "step")
    return step["time"] - step["ms"] / 1e3 - begin, processors


def summary(values):
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    parser.add_argument("--runs", default=5, type=int)
    args = parser.parse_args()
    for file in args.model.iterdir():
        file.read_bytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", "valid", "test"):
            (folder / f"{split}.txt").write_text("A text of some words that are read again and again.\n" * 40, encoding="utf-8")
        measured = {"the first token of `sluice generate`": lambda: generate(args, "f32"),
                    "the same with `--precision bf16`": lambda: generate(args, "bf16"),
                    "the first step of `sluice train`": lambda: train(args, folder)}
        results = {what: [] for what in measured}
        for _ in range(args.runs):
            for what, measure in measured.items():
                results[what].append(measure())
    print(f"runs: {args.runs} of each in turn\n\n| from the start to | by the clock | of all processors |\n|---|---|---|")
    for what, pairs in results.items():
        print(f"| {what} | {summary([one[0] for one in pairs])} | {summary([one[1] for one in pairs])} |")


if __name__ == "__main__":
    main()
