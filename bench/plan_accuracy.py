"""Plans beside runs: how far a planned step and its memory are from what they take, and how good the choice is.

    python3 bench/plan_accuracy.py DIR [--cells 20] [--models 5] [--runs 5] [--steps 20] [--seed 28]

DIR is a text, such as WikiText-2. First draws cells: a model, a layout with at most two ranks, a schedule, chunks, a
precision. `sluice plan` keeps all of it, and the run with its options gives the median step and the process's
largest memory. Then, for some models, everything is left to the plan, and its choice is run beside all layouts with at
most two ranks, chunks of 1, 2, 4 and 8, gpipe, 1f1b and zb-h1, cut by `auto`. Every step is the median of several runs'
medians. Prints two tables. Other work on the machine makes both worthless.
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

    def run_once(self, words):
        """The median step in ms, without the first two, and the process's most memory in bytes."""
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log.jsonl"
            command = [self.program, "train", *words, "--max-batches", str(self.args.steps), "--eval-max-batches", "1",
                       "--quiet", "--log-json", log]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                raise SystemExit(f"failed: {' '.join(map(str, command))}")
            with open(log, encoding="utf-8") as file:
                steps = [record["ms"] for record in map(json.loads, file) if record["record"] == "step"]
        return statistics.median(steps[2:]), usage.ru_maxrss * 1024

    def run(self, words):
        results = [self.run_once(words) for _ in range(self.args.runs)]
        return statistics.median(ms for ms, _ in results), statistics.median(memory for _, memory in results)


def layout_words(replicas, ranks, schedule, chunks):
    return ["--dp", str(replicas), "--pp", str(ranks), "--schedule", schedule, "--chunks", str(chunks)]


def compare_cells(bench, draw):
    print(f"seed {bench.args.seed}; medians of {bench.args.runs} runs of {bench.args.steps} steps of {BPTT * ROWS} tokens\n\n"
          "| model | layout | precision | planned ms | measured ms | error | planned MiB | measured MiB | error |\n"
          "|---|---|---|---|---|---|---|---|---|")
    errors, memory_errors = [], []
    for _ in range(bench.args.cells):
        model, (replicas, ranks, schedule) = draw_model(draw), draw.choice(LAYOUTS)
        chunks, precision = draw.choice(CHUNKS), draw.choice(["f32", "f32", "bf16"])
        common = bench.common(model, precision)
        plan = bench.plan(common, *layout_words(replicas, ranks, schedule, chunks))
        ms, memory = bench.run([*common, *plan["options"]])
        errors.append(plan["step_ms"] / ms - 1)
        memory_errors.append(plan["memory_bytes"] / memory - 1)
        print(f"| {' '.join(model)} | {replicas} x {ranks} {schedule}, {chunks} | {precision} | {plan['step_ms']:.1f} | {ms:.1f} | "
              f"{100 * errors[-1]:+.1f}% | {plan['memory_bytes'] / 2**20:.0f} | {memory / 2**20:.0f} | "
              f"{100 * memory_errors[-1]:+.1f}% |", flush=True)
    for name, values in (("step", errors), ("memory", memory_errors)):
        sizes = [abs(value) for value in values]
        print(f"\nerror of the {name}: {100 * statistics.mean(sizes):.1f}% on average, {100 * max(sizes):.1f}% at most", end="")
    print()


def compare_choices(bench, draw):
    print("\n| model | chosen | its step, ms | the best of all, ms | which | chosen, of the best |\n|---|---|---|---|---|---|")
    for _ in range(bench.args.models):
        model = draw_model(draw)
        common = bench.common(model, "f32")
        chosen = bench.plan(common)
        all_steps = {}
        for replicas, ranks, schedule in LAYOUTS:
            for chunks in CHUNKS:
                words = [*layout_words(replicas, ranks, schedule, chunks), "--balance", "auto", "--recompute", "never", "--shards",
                         str(replicas), "--batch-size", str(ROWS // replicas)]
                all_steps[f"{replicas} x {ranks} {schedule}, {chunks}"] = bench.run([*common, *words])[0]
        ms, best = bench.run([*common, *chosen["options"]])[0], min(all_steps, key=all_steps.get)
        print(f"| {' '.join(model)} | {' '.join(chosen['options'])} | {ms:.1f} | {all_steps[best]:.1f} | {best} | "
              f"{ms / all_steps[best]:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    for name, value in (("cells", 20), ("models", 5), ("runs", 5), ("steps", 20), ("seed", 28)):
        parser.add_argument(f"--{name}", default=value, type=int)
    args = parser.parse_args()
    bench, draw = Bench(args), random.Random(args.seed)
    compare_cells(bench, draw)
    compare_choices(bench, draw)


main()
