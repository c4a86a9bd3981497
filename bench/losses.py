"""Losses of runs with an option beside those of the same runs without it, seed by seed.

    sluice tokenizer train --vocab-size 1000 DIR/wiki.train.tokens -o TOKENIZER
    python3 bench/repeat.py --runs 1 --figures bf16-moments python3 bench/losses.py DIR --tokenizer TOKENIZER \\
        --with '--optimizer-precision bf16'

DIR is WikiText-2. A run is 300 steps of a small model by one thread; as many run at a time as there are cores, since
losses do not depend on it. Prints a table: the median and the range over the seeds of the validation's loss, of the
test's and of each pair's difference; and the bytes of the optimizer's state. OPTIONs go to both runs.
"""
import argparse
import json
import os
import queue
import shlex
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUN = ("--preset small --emsize 128 --nhid 512 --bptt 64 --batch-size 8 --chunks 1 --epochs 1 --max-batches 300 "
       "--eval-max-batches 20 --devices cpu --quiet").split()


def train(args, cores, seed, more):
    """What the table shows of a run."""
    core = cores.get()
    try:
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log.jsonl"
            subprocess.run(["taskset", "-c", str(core), args.build / "bin/sluice", "train", "--data", args.data, *RUN,
                            "--tokenizer", args.tokenizer, *args.options, "--seed", str(seed), *more, "--log-json", log],
                           stdout=subprocess.DEVNULL, check=True)
            with open(log, encoding="utf-8") as file:
                records = list(map(json.loads, file))
    finally:
        cores.put(core)
    losses = {record["split"]: record["loss"] for record in records if record["record"] == "eval"}
    states = {record["stage"]: record["peak_bytes"]["optimizer"] for record in records if record["record"] == "memory"}
    return {"validation loss": losses["valid"], "test loss": losses["test"], "state": sum(states.values()) / 2**20}


def summary(values, text):
    return f"{text.format(statistics.median(values))} ({text.format(min(values))} to {text.format(max(values))})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--with", dest="more", required=True, metavar="OPTIONS")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    cores = queue.Queue()
    for core in os.sched_getaffinity(0):
        cores.put(core)
    with ThreadPoolExecutor(cores.qsize()) as pool:
        runs = [pool.submit(train, args, cores, seed, more) for seed in range(1, args.seeds + 1)
                for more in ([], shlex.split(args.more))]
        results = [run.result() for run in runs]
    pairs = list(zip(results[::2], results[1::2]))
    print(f"runs: once with each seed from 1 to {args.seeds}, without the option and with it\n")
    print(f"| | without | with `{args.more}` | the pairs' difference |\n|---|---|---|---|")
    for name in ("validation loss", "test loss"):
        differences = [100 * (pair[1][name] / pair[0][name] - 1) for pair in pairs]
        both = (summary([pair[i][name] for pair in pairs], "{:.4f}") for i in (0, 1))
        print(f"| {name} | {' | '.join(both)} | {summary(differences, '{:.4f}%')} |")
    states = (f"{pairs[0][i]['state']:.2f} MiB" for i in (0, 1))
    print(f"| the optimizer's state | {' | '.join(states)} | |", flush=True)


main()
