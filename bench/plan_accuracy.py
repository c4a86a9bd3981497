"""Plans beside runs: how far a planned step and its memory are from what they take, and how good the choice is.

    python3 bench/plan_accuracy.py DIR [--cells 20] [--models 5] [--runs 5] [--steps 20] [--seconds 5] [--seed 28]

DIR is a text, such as WikiText-2. First draws cells, each by its number alone: a model, a layout with at most two ranks,
a schedule, chunks, a precision. `sluice plan` keeps all of it, and the run with its options gives the median step and
the process's largest memory. A plan goes before each run, since a shared machine's speed changes: what is planned and
what is measured are the medians of such pairs. Every fourth cell is of two hosts, network namespaces of this machine
with a link of 1 Gbit/s and a core each: planned by a cluster file of `sluice profile`, of one core while both work, and
`sluice profile --links`. Without root, mpirun or namespaces these cells are left out. Errors are given of both places.

Then, for some models, everything is left to the plan, and its choice is run beside all layouts with at most two ranks,
chunks of 1, 2, 4 and 8, gpipe, 1f1b and zb-h1, cut by `auto`: one run of each in turn, then the other runs in turn of
the choice and of those whose first was at most 10% longer than the shortest. Every step is the median of several runs'
medians; a run has as many steps as fit into --seconds, 8 at least, --steps at most, and its first two do not count.
--cells 0 or --models 0 leaves that half out; the other half draws the same. Other work on the machine
makes both worthless. Writes tables for bench/repeat.py --runs 1 --figures.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "hosts"))
import network  # noqa: E402

LAYOUTS = [(1, 1, "gpipe"), (2, 1, "gpipe"), (1, 2, "gpipe"), (1, 2, "1f1b"), (1, 2, "zb-h1")]
CHUNKS = [1, 2, 4, 8]
BPTT, ROWS = 64, 16  # of a step
WARM_UP, FEWEST = 2, 8  # steps of a run that do not count, and that it has at least
VALIDATION = ["--epochs", "1", "--eval-batch-size", "2"]  # one at the end: no copy of the best parameters
HOSTS_EVERY = 4  # cells
NEAR = 1.1  # a first run this much longer than the shortest rules a layout out


def draw_model(draw):
    heads = draw.choice([2, 4])
    model = {"emsize": 64 * heads * draw.choice([1, 2]), "nhid": draw.choice([256, 512, 1024]), "nlayers": draw.randint(2, 6),
             "nhead": heads, "activation": draw.choice(["relu", "gelu"])}
    return [word for name, value in model.items() for word in (f"--{name}", str(value))] + draw.choice([[], ["--pre-norm"]])


def median_step(log):
    with open(log, encoding="utf-8") as file:
        times = [record["ms"] for record in map(json.loads, file) if record["record"] == "step"]
    return statistics.median(times[WARM_UP:])


class Bench:
    def __init__(self, args):
        self.args, self.program = args, args.build / "bin/sluice"

    def common(self, model, precision):
        return ["--data", self.args.data, *model, "--bptt", str(BPTT), "--optimizer", "adamw", *VALIDATION, "--precision",
                precision]

    def plan(self, common, *kept):
        """The best plan."""
        output = subprocess.run([self.program, "plan", *common, *kept, "--batch-tokens", str(BPTT * ROWS), "--json"],
                                stdout=subprocess.PIPE, check=True).stdout
        return json.loads(output)["plans"][0]

    def steps(self, step_ms):
        """How many steps a run has whose steps take so long."""
        return max(FEWEST, min(self.args.steps, int(1000 * self.args.seconds / step_ms)))

    def plan_cell(self, model, precision, layout):
        return self.plan(self.common(model, precision), *layout)

    def train_words(self, words, steps, log):
        return [self.program, "train", *words, "--max-batches", str(steps), "--eval-max-batches", "1", "--quiet", "--log-json",
                log]

    def run_once(self, words, steps):
        """The median step in ms, without the first ones, and the process's most memory in bytes."""
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log.jsonl"
            command = self.train_words(words, steps, log)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                raise SystemExit(f"failed: {' '.join(map(str, command))}")
            return median_step(log), usage.ru_maxrss * 1024


# Runs a command on a core of its rank's own, and writes its most memory to a file of its rank.
WATCH = """import os, sys
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
process = os.spawnvp(os.P_NOWAIT, sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(process, 0)
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    file.write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))"""


class TwoHosts(Bench):
    """Plans and runs of a process on each of two hosts."""

    def __init__(self, args, net, folder):
        super().__init__(args)
        self.net, self.folder = net, folder
        self.reserved = 0
        self.ntokens = self.count_types()
        self.links = json.loads(self.launch([self.program, "profile", "--links"]))["links"]

    def count_types(self):
        log = f"{self.folder}/types.jsonl"
        subprocess.run([self.program, "train", "--data", self.args.data, "--emsize", "16", "--nhead", "2", "--nlayers", "1",
                        "--max-batches", "1", "--eval-max-batches", "1", "--epochs", "1", "--quiet", "--log-json", log],
                       stdout=subprocess.DEVNULL, check=True)
        with open(log, encoding="utf-8") as file:
            return json.loads(next(file))["model"]["ntokens"]

    def launch(self, command):
        process = self.net.start("host1", [str(word) for word in [
            self.program, "launch", "-n", 2, "--hosts", self.net.hosts, "--launch-agent", self.net.agent, *command]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        output = process.communicate()[0]
        if process.returncode != 0:
            raise SystemExit(f"failed on two hosts: {' '.join(map(str, command))}")
        return output

    def describe(self, model, precision):
        """The cluster file of the two hosts, and the words of the model."""
        words = [*model, "--ntokens", str(self.ntokens), "--bptt", str(BPTT), "--optimizer", "adamw", "--precision", precision]
        output = subprocess.run([self.program, "profile", *words, "--devices", "cpu:0,cpu:1"], stdout=subprocess.PIPE,
                                check=True).stdout
        node, = json.loads(output)["nodes"]
        self.reserved = node["reserved_bytes"]
        path = f"{self.folder}/cluster.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"nodes": [dict(node, count=2, devices=1)], "links": self.links}, file)
        return path, words

    def plan_cell(self, model, precision, layout):
        path, words = self.describe(model, precision)
        output = subprocess.run([self.program, "plan", *words, *VALIDATION, "--cluster", path, *layout,
                                 "--batch-tokens", str(BPTT * ROWS), "--json"], stdout=subprocess.PIPE, check=True).stdout
        plan = json.loads(output)["plans"][0]
        return dict(plan, memory_bytes=plan["memory_bytes"] + self.reserved)

    def run_once(self, words, steps):
        log, memory = f"{self.folder}/log.jsonl", f"{self.folder}/memory"
        self.launch([sys.executable, "-c", WATCH, memory,
                     *self.train_words(words, steps, log)])
        most = max(int(Path(f"{memory}{rank}").read_text(encoding="ascii")) for rank in range(2))
        return median_step(log), most * 1024


def layout_words(replicas, ranks, schedule, chunks):
    return ["--dp", str(replicas), "--pp", str(ranks), "--schedule", schedule, "--chunks", str(chunks)]


def draw_cell(seed, number, layouts):
    draw = random.Random(f"cell {number} of {seed}")
    model, layout = draw_model(draw), draw.choice(layouts)
    return model, [*layout, draw.choice(CHUNKS)], draw.choice(["f32", "f32", "bf16"])


def measure_cell(place, model, layout, precision):
    """(planned, measured) step in ms and memory in bytes, medians of pairs of a plan and a run with its options."""
    pairs = []
    for _ in range(place.args.runs):
        plan = place.plan_cell(model, precision, layout_words(*layout))
        pairs.append((plan["step_ms"], plan["memory_bytes"],
                      *place.run_once([*place.common(model, precision), *plan["options"]], place.steps(plan["step_ms"]))))
    planned_ms, planned_bytes, ms, measured_bytes = (statistics.median(values) for values in zip(*pairs))
    return (planned_ms, ms), (planned_bytes, measured_bytes)


def print_errors(errors):
    """`errors`: {place: [(of the step, of the memory)]}."""
    print("\n| where | cells | step, on average | at most | memory, on average | at most |\n|---|---|---|---|---|---|")
    for where, values in errors.items():
        sizes = [[100 * abs(value) for value in column] for column in zip(*values)]
        print(f"| {where} | {len(values)} | " + " | ".join(f"{statistics.mean(size):.1f}% | {max(size):.1f}%" for size in sizes) + " |")


def compare_cells(bench, hosts):
    """`hosts`: TwoHosts, or None."""
    print("| where | model | layout | precision | planned ms | measured ms | error | planned MiB | measured MiB | error |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    errors = {}
    for cell in range(bench.args.cells):
        is_of_hosts = cell % HOSTS_EVERY == HOSTS_EVERY - 1
        place, where, layouts = (hosts, "two hosts", LAYOUTS[1:]) if is_of_hosts else (bench, "this machine", LAYOUTS)
        if not place:
            continue
        model, layout, precision = draw_cell(bench.args.seed, cell, layouts)
        (planned_ms, ms), (planned_bytes, measured_bytes) = measure_cell(place, model, layout, precision)
        of_step, of_memory = planned_ms / ms - 1, planned_bytes / measured_bytes - 1
        errors.setdefault(where, []).append((of_step, of_memory))
        replicas, ranks, schedule, chunks = layout
        print(f"| {where} | {' '.join(model)} | {replicas} x {ranks} {schedule}, {chunks} | {precision} | {planned_ms:.1f} | {ms:.1f} | "
              f"{100 * of_step:+.1f}% | {planned_bytes / 2**20:.0f} | {measured_bytes / 2**20:.0f} | {100 * of_memory:+.1f}% |",
              flush=True)
    print_errors(errors)


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
        reason = network.missing()
        if reason:
            print(f"cells of two hosts are left out: {reason}\n")
            compare_cells(bench, None)
        else:
            with tempfile.TemporaryDirectory(prefix="sluice-plans-") as folder, network.Network(2, folder) as net:
                net.limit("1gbit")
                compare_cells(bench, TwoHosts(args, net, folder))
    if args.models:
        compare_choices(bench, random.Random(f"models {args.seed}"))


main()
