"""The large presets as the tutorials run them: 3 epochs of 50 batches, validations and test.

    python3 bench/repeat.py --runs 1 --figures presets python3 bench/presets.py DIR [--precision f32] [-- OPTION...]

DIR is WikiText-2. Takes the whole machine, and its memory as `sluice model --preset NAME` says, for about
an hour on two cores. Prints a table: the median step, what the tutorial prints for that, the last
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


def train(args, preset, log):
    """The records of the run's log, and the peak of the process's memory so far in GiB."""
    subprocess.run([args.build / "bin/sluice", "train", "--data", args.data, "--preset", preset, "--precision",
                    args.precision, "--quiet", "--log-json", log, *args.options], stdout=subprocess.DEVNULL, check=True)
    with open(log, encoding="utf-8") as file:
        return list(map(json.loads, file)), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    print("runs: one run of three epochs of 50 batches\n")
    print("| preset | a step | the tutorial's, on its GPUs | last validation loss | test loss | in all | memory at most |\n"
          "|---|---|---|---|---|---|---|")
    for preset, theirs in PRESETS.items():  # the larger one last: RUSAGE_CHILDREN keeps the most of all
        with tempfile.TemporaryDirectory() as folder:
            records, memory = train(args, preset, f"{folder}/log.jsonl")
        steps = [record["ms"] for record in records if record["record"] == "step"]
        losses = {record["split"]: record["loss"] for record in records if record["record"] == "eval"}
        seconds = next(record["seconds"] for record in records if record["record"] == "end")
        print(f"| {preset}, {args.precision} | {statistics.median(steps):,.0f} ms | {theirs} | {losses['valid']:.2f} | "
              f"{losses['test']:.2f} | {seconds / 60:.1f} minutes | {memory:.2f} GiB |", flush=True)


main()
