"""Training steps of sluice beside llm.c's trainer in C: GPT-2 124M, 4 x 64 tokens, f32, AdamW, all cores.

    python3 bench/compare_llmc.py --llmc DIR [--rounds 5] [--steps 6]

DIR is a checkout of llm.c (https://github.com/karpathy/llm.c) in which `make train_gpt2` has built its trainer, whose sizes, rate and
files are in its source. Both begin with the same drawn weights, which sluice writes as llm.c's file, and train on the same batch of a
token file in each step, since llm.c shuffles batches in an order of its own; the losses of all steps must agree. llm.c is ended behind
its steps, so that it neither evaluates again nor writes text. A figure is the median of the steps behind the first of a run; lines give
the median and the range of the rounds' figures.
"""
import argparse
import json
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS, TOKENS, VOCABULARY = 4, 64, 50257  # llm.c's
TOKENS_OF_STEP = ROWS * TOKENS
MOST_STEPS = 10  # before it evaluates again
LOSS_TOLERANCE = 1e-3
# What llm.c's main() has for its steps.
SETTINGS = ["--optimizer", "adamw", "--lr", "1e-4", "--lr-schedule", "constant", "--betas", "0.9,0.999", "--eps", "1e-8",
            "--weight-decay", "0", "--clip", "0"]
STEP = re.compile(r"step \d+: train loss (\S+) \(took (\S+) ms\)")


def write_tokens(path):
    """One batch and the target behind it, in llm.c's form."""
    draw = random.Random(124)
    ids = [draw.randrange(VOCABULARY) for _ in range(TOKENS_OF_STEP + 1)]
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}H", *ids))


def run(*words):
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {ended.returncode}: {ended.stderr[-2000:]}")


def make_files(sluice, folder):
    """The files of llm.c's trainer where it looks for them: returns the tokens and the weights."""
    data = folder / "dev/data/tinyshakespeare"
    tokens, weights = data / "tiny_shakespeare_train.bin", folder / "gpt2_124M.bin"
    write_tokens(tokens)
    (data / "tiny_shakespeare_val.bin").symlink_to(tokens)
    run(sluice, "train", "--model", "gpt2", "--data", tokens, "--batch-size", 1, "--seq-len", TOKENS, "--max-batches", 1, "--optimizer",
        "sgd", "--save", folder / "model", "--quiet")
    run(sluice, "export", "--init", folder / "model", "--llmc", weights)
    return tokens, weights


def run_sluice(args, tokens, weights, log):
    """(losses, milliseconds) of the steps."""
    run(args.build / "bin/sluice", "train", "--init", weights, "--data", tokens, "--batch-size", ROWS, "--seq-len", TOKENS, "--chunks", 1,
        "--no-shuffle", "--epochs", args.steps, *SETTINGS, "--quiet", "--log-json", log)
    with open(log, encoding="utf-8") as file:
        steps = [record for record in map(json.loads, file) if record["record"] == "step"]
    return [step["loss"] for step in steps], [step["ms"] for step in steps]


def run_llmc(args, folder):
    """The same. What it prints comes line by line, for it to be ended behind the last step."""
    program = args.llmc.resolve() / "train_gpt2"
    threads = str(len(os.sched_getaffinity(0)))
    steps = []
    with subprocess.Popen(["stdbuf", "-oL", program], cwd=folder, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=threads)) as process:
        for line in process.stdout:
            found = STEP.match(line)
            steps += [(float(found[1]), float(found[2]))] if found else []
            if len(steps) == args.steps:
                process.send_signal(signal.SIGKILL)
                break
    if len(steps) < args.steps:
        sys.exit(f"{program} ended with {process.returncode} after {len(steps)} steps")
    losses, times = zip(*steps)
    return losses, times


def check_losses(ours, theirs):
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if abs(one - other) > LOSS_TOLERANCE:
            sys.exit(f"step {step}: the loss is {one} by sluice, {other} by llm.c: they do not compute the same")
    return max(abs(one - other) for one, other in zip(ours, theirs))


def figure(values):
    return f"{statistics.median(values):,.0f} ms ({min(values):,.0f} to {max(values):,.0f})"


def compare(args, folder):
    tokens, weights = make_files(args.build / "bin/sluice", folder)
    steps, theirs, apart = [], [], 0
    for _ in range(args.rounds):
        our_losses, our_times = run_sluice(args, tokens, weights, folder / "log")
        their_losses, their_times = run_llmc(args, folder)
        apart = max(apart, check_losses(our_losses, their_losses))
        steps.append(statistics.median(our_times[1:]))
        theirs.append(statistics.median(their_times[1:]))
    ratios = [other / one for one, other in zip(steps, theirs)]
    print(f"| | a step | beside sluice | the losses of {args.steps} steps differ by at most |\n|---|---|---|---|")
    print(f"| sluice | {figure(steps)} | | |")
    print(f"| llm.c's `train_gpt2` | {figure(theirs)} | {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}) "
          f"as long | {apart:.6f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--llmc", required=True, type=Path, metavar="DIR", help="a checkout whose train_gpt2 is built")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--steps", default=6, type=int)
    args = parser.parse_args()
    if not 2 <= args.steps <= MOST_STEPS:
        parser.error(f"--steps must be 2 to {MOST_STEPS}")
    if not (args.llmc / "train_gpt2").exists():
        parser.error(f"{args.llmc} has no train_gpt2: build it there with `make train_gpt2`")
    print(f"runs: {args.rounds} runs of each program in turn\n")
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


if __name__ == "__main__":
    main()
