"""A large preset as its tutorial runs it: 3 epochs of 50 batches, validations and the test.

    python3 bench/repeat.py --runs 1 --figures PRESET python3 bench/presets.py [--precision bf16] DIR PRESET [-- OPTION...]

DIR is WikiText-2. Takes the whole machine, and its memory as `sluice model --preset PRESET` says, for an
hour or two on two cores. Prints a table: the median step, what the tutorial prints for that, the last
validation, the test, the time and the process's memory. OPTIONs go to sluice train.
"""
import argparse
import json
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

PRESETS = {"pipeline-tutorial": "2,630 ms", "ddp-pipeline": "698 and 386 ms"}  # what the tutorials print


def train(args, log):
    """The records of the run's log, and the peak of the process's memory in GiB."""
    subprocess.run([args.build / "bin/sluice", "train", "--data", args.data, "--preset", args.preset, "--precision",
                    args.precision, "--quiet", "--log-json", log, *args.options], stdout=subprocess.DEVNULL, check=True)
    with open(log, encoding="utf-8") as file:
        return list(map(json.loads, file)), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records, memory = train(args, f"{folder}/log.jsonl")
    steps = [record["ms"] for record in records if record["record"] == "step"]
    losses = {record["split"]: record["loss"] for record in records if record["record"] == "eval"}
    seconds = next(record["seconds"] for record in records if record["record"] == "end")
    print("runs: one run of three epochs of 50 batches\n")
    print("| preset | a step | the tutorial's, on its GPUs | last validation loss | test loss | in all | memory at most |\n"
          "|---|---|---|---|---|---|---|")
    print(f"| {args.preset}, {args.precision} | {statistics.median(steps):,.0f} ms | {PRESETS[args.preset]} | "
          f"{losses['valid']:.2f} | {losses['test']:.2f} | {seconds / 60:.1f} minutes | {memory:.2f} GiB |")


main()
