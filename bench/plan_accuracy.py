"""Plans beside runs: how far a planned step and its memory are from what they take, and how good the choice is.

    python3 bench/plan_accuracy.py DIR [--cells 20] [--models 5] [--runs 5] [--steps 20] [--seconds 5] [--seed 28]

DIR is a text, such as WikiText-2. First draws cells: a model, a layout with at most two ranks, a schedule, chunks, a
precision. `sluice plan` keeps all of it, and the run with its options gives the median step and the process's
largest memory; a plan goes before each run, since a shared machine's speed changes. Then, for some models, everything is left to the plan, and its choice is run beside all layouts with at
most two ranks, chunks of 1, 2, 4 and 8, gpipe, 1f1b and zb-h1, cut by `auto`: one run of each in turn, then the other
runs in turn of the choice and of those whose first was at most 10% longer than the shortest. Every step is the median
of several runs' medians; a run has as many steps as fit into --seconds, 8 at least, --steps at most, and its first two
do not count. --cells 0 or --models 0 leaves that half out; the other half draws the same. Other work on the machine
makes both worthless. Writes tables for bench/repeat.py --runs 1 --figures.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

LAYOUTS = [(1, 1, "gpipe"), (2, 1, "gpipe"), (1, 2, "gpipe"), (1, 2, "1f1b"), (1, 2, "zb-h1")]
CHUNKS = [1, 2, 4, 8]
BPTT, ROWS = 64, 16  # of a step
WARM_UP, FEWEST = 2, 8  # steps of a run that do not count, and that it has at least
NEAR = 1.1  # a first run this much longer than the shortest rules a layout out


def draw_model(draw):
    heads = draw.choice([2, 4])
    model = {"emsize": 64 * heads * draw.choice([1, 2]), "nhid": draw.choice([256, 512, 1024]), "nlayers": draw.randint(2, 6),
             "nhead": heads, "activation": draw.choice(["relu", "gelu"])}
    return [word for name, value in model.items() for word in (f"--{name}", str(value))] + draw.choice([[], ["--pre-norm"]])


class Bench:
    def __init__(self, args):
        self.args, self.program = args, args.build / "bin/sluice"

    def common(self, model, precision):
        return ["--data", self.args.data, *model, "--bptt", str(BPTT), "--optimizer", "adamw", "--epochs", "1",
                "--eval-batch-size", "2", "--precision", precision]

    def plan(self, common, *kept):
        """The best plan."""
        output = subprocess.run([self.program, "plan", *common, *kept, "--batch-tokens", str(BPTT * ROWS), "--json"],
                                stdout=subprocess.PIPE, check=True).stdout
        return json.loads(output)["plans"][0]

    def steps(self, step_ms):
        """How many steps a run has whose steps take so long."""
        return max(FEWEST, min(self.args.steps, int(1000 * self.args.seconds / step_ms)))

    def run_once(self, words, steps):
        """The median step in ms, without the first ones, and the process's most memory in bytes."""
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log.jsonl"
            command = [self.program, "train", *words, "--max-batches", str(steps), "--eval-max-batches", "1", "--quiet",
                       "--log-json", log]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                raise SystemExit(f"failed: {' '.join(map(str, command))}")
            with open(log, encoding="utf-8") as file:
                times = [record["ms"] for record in map(json.loads, file) if record["record"] == "step"]
        return statistics.median(times[WARM_UP:]), usage.ru_maxrss * 1024


def layout_words(replicas, ranks, schedule, chunks):
    return ["--dp", str(replicas), "--pp", str(ranks), "--schedule", schedule, "--chunks", str(chunks)]


def compare_cells(bench, draw):
    print("| model | layout | precision | planned ms | measured ms | error | planned MiB | measured MiB | error |\n"
          "|---|---|---|---|---|---|---|---|---|")
    errors = {"step": [], "memory": []}
    for _ in range(bench.args.cells):
        model, (replicas, ranks, schedule) = draw_model(draw), draw.choice(LAYOUTS)
        chunks, precision = draw.choice(CHUNKS), draw.choice(["f32", "f32", "bf16"])
        common = bench.common(model, precision)
        pairs = []
        for _ in range(bench.args.runs):
            plan = bench.plan(common, *layout_words(replicas, ranks, schedule, chunks))
            pairs.append((plan["step_ms"], plan["memory_bytes"],
                          *bench.run_once([*common, *plan["options"]], bench.steps(plan["step_ms"]))))
        planned_ms, planned_memory, ms, memory = (statistics.median(values) for values in zip(*pairs))
        errors["step"].append(planned_ms / ms - 1)
        errors["memory"].append(planned_memory / memory - 1)
        print(f"| {' '.join(model)} | {replicas} x {ranks} {schedule}, {chunks} | {precision} | {planned_ms:.1f} | {ms:.1f} | "
              f"{100 * errors['step'][-1]:+.1f}% | {planned_memory / 2**20:.0f} | {memory / 2**20:.0f} | "
              f"{100 * errors['memory'][-1]:+.1f}% |", flush=True)
    print("\n| error of the | on average | at most |\n|---|---|---|")
    for name, values in errors.items():
        sizes = [100 * abs(value) for value in values]
        print(f"| {name} | {statistics.mean(sizes):.1f}% | {max(sizes):.1f}% |")


def all_layouts():
    """{name: options} of the layouts that a choice is compared with."""
    return {f"{replicas} x {ranks} {schedule}, {chunks}":
            [*layout_words(replicas, ranks, schedule, chunks), "--balance", "auto", "--recompute", "never", "--shards",
             str(replicas), "--batch-size", str(ROWS // replicas)]
            for replicas, ranks, schedule in LAYOUTS for chunks in CHUNKS}


def run_near_best(bench, common, chosen):
    """{name: median step in ms} of the choice and of the layouts that may be the best, all runs in turn."""
    words = {"chosen": chosen["options"], **all_layouts()}
    steps = bench.steps(chosen["step_ms"])
    found = {}
    for turn in range(bench.args.runs):
        for name in list(found or words):
            found.setdefault(name, []).append(bench.run_once([*common, *words[name]], steps)[0])
        if turn == 0:
            limit = NEAR * min(times[0] for times in found.values())
            shortest = min((name for name in found if name != "chosen"), key=found.get)
            found = {name: times for name, times in found.items() if times[0] <= limit or name in ("chosen", shortest)}
    return {name: statistics.median(times) for name, times in found.items()}


def compare_choices(bench, draw):
    print("\n| model | chosen | its step, ms | the best of all, ms | which | chosen, of the best |\n|---|---|---|---|---|---|")
    for _ in range(bench.args.models):
        model = draw_model(draw)
        common = bench.common(model, "f32")
        chosen = bench.plan(common)
        steps = run_near_best(bench, common, chosen)
        ms = steps.pop("chosen")
        best = min(steps, key=steps.get)
        print(f"| {' '.join(model)} | {' '.join(chosen['options'])} | {ms:.1f} | {steps[best]:.1f} | {best} | "
              f"{ms / steps[best]:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    for name, value in (("cells", 20), ("models", 5), ("runs", 5), ("steps", 20), ("seconds", 5), ("seed", 28)):
        parser.add_argument(f"--{name}", default=value, type=int)
    args = parser.parse_args()
    bench = Bench(args)
    print(f"runs: {args.runs} runs of {FEWEST} to {args.steps} steps of {BPTT * ROWS} tokens, drawn with seed {args.seed}\n")
    if args.cells:
        compare_cells(bench, random.Random(f"cells {args.seed}"))
    if args.models:
        compare_choices(bench, random.Random(f"models {args.seed}"))


main()
