"""Plans beside runs: how far a planned step and its memory are from what they take, and how good the choice is.

    python3 bench/plan_accuracy.py DIR [--cells 20] [--models 5] [--runs 5] [--steps 20] [--seconds 3]
                                       [--changes 3] [--profile-seconds 4] [--seed 28] [--record FILE]

DIR is a text, such as WikiText-2. First draws cells, each by its number alone: a model, a layout with at most two ranks,
a schedule, chunks, a precision. Models are the tutorials' on that text, or small ones of families on rows of ids. `sluice plan` keeps all of it, and the run with its options gives the median step and
the process's largest memory. Plans and runs take turns, --runs of each, every plan with a profile of its own before the
run with its options, since a shared machine's speed changes: compared are the median of the planned steps and the median
of the runs' medians, so that what the machine loses between one plan and one run is not counted as the plan's error, and
what a profile always gets wrong is. The range of the planned steps stands beside them. Every fourth cell is of two
hosts, network namespaces of this machine with a link of 1 Gbit/s and a core each: planned by a cluster file of
`sluice profile`, of one core while both work, and `sluice profile --links`. A pipeline of one micro-batch keeps one host
busy at a time, which then has the machine's memory to itself: it is planned by a profile of one core alone. What a
process takes there before its model, with MPI and its text, which a profile is without, is what a run of a small model
takes beyond its plan. Without root, mpirun or namespaces these cells are left out. Errors are given of both places.

Then, for some models, everything is left to the plan, and its choice is run beside all layouts with at most two ranks,
chunks of 1, 2, 4 and 8, gpipe, 1f1b and zb-h1, cut by `auto`: one short run of each first, then --runs runs in turn of
the choice and of those whose first was at most 15% longer than the shortest. A choice that is one of these layouts, of
one stage, is that one. A run has as many steps as fit into --seconds, 8 at least, --steps at most, and its first two do
not count.

Last, some models are run in a pipeline whose first stage has too little to do. Each change that `sluice plan --from` the
run's log names is run as well: its step stands beside the expected one.

--cells 5-9 measures cells 5 to 9 alone, --cells 10 the first ten, --cells 0 none; so do --models and --changes. With --record each
result is appended to FILE as a line of JSON, and what FILE has already is not measured again: the tables at the end are
of all that it has, so that a bench can be run in parts. A FILE of another commit, or of other --runs, --steps,
--seconds, --profile-seconds or --seed, is refused. Other work on the machine makes both halves worthless. Writes
tables for bench/repeat.py --runs 1 --figures.
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
import repeat  # noqa: E402
from plan_models import draw_model, smallest_like  # noqa: E402

LAYOUTS = [(1, 1, "gpipe"), (2, 1, "gpipe"), (1, 2, "gpipe"), (1, 2, "1f1b"), (1, 2, "zb-h1")]
CHUNKS = [1, 2, 4, 8]
BPTT, ROWS = 64, 16  # of a step
WARM_UP, FEWEST = 2, 8  # steps of a run that do not count, and that it has at least
VALIDATION = ["--epochs", "1", "--eval-batch-size", "2"]  # one at the end: no copy of the best parameters
HOSTS_EVERY = 4  # cells
NEAR = 1.15  # a first run this much longer than the shortest rules a layout out


def median_step(log):
    with open(log, encoding="utf-8") as file:
        times = [record["ms"] for record in map(json.loads, file) if record["record"] == "step"]
    return statistics.median(times[WARM_UP:])


class Bench:
    def __init__(self, args, models):
        """`models`: a folder for them."""
        self.args, self.models, self.program = args, models, args.build / "bin/sluice"

    def common(self, model, precision):
        return [*model.words(self.args.data, self.models), "--bptt", str(BPTT), "--optimizer", "adamw", *VALIDATION, "--precision",
                precision]

    def profile_words(self):
        return ["--profile-seconds", str(self.args.profile_seconds)]

    def plan(self, common, *kept):
        """The best plan."""
        output = subprocess.run([self.program, "plan", *common, *kept, "--batch-tokens", str(BPTT * ROWS),
                                 *self.profile_words(), "--json"], stdout=subprocess.PIPE, check=True).stdout
        return json.loads(output)["plans"][0]

    def steps(self, step_ms):
        """How many steps a run has whose steps take so long."""
        return max(FEWEST, min(self.args.steps, int(1000 * self.args.seconds / step_ms)))

    def plan_cell(self, model, precision, layout):
        return self.plan(self.common(model, precision), *layout_words(*layout))

    def train_words(self, words, steps, log):
        return [self.program, "train", *words, "--max-batches", str(steps), "--eval-max-batches", "1", "--quiet", "--log-json",
                log]

    def run_once(self, words, steps, log=None):
        """The median step in ms, without the first ones, and the process's most memory in bytes."""
        with tempfile.TemporaryDirectory() as folder:
            log = log or f"{folder}/log.jsonl"
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

    def __init__(self, args, models, net, folder):
        super().__init__(args, models)
        self.net, self.folder = net, folder
        self.reserved = {}
        self.ntokens = self.count_types()
        self.links = json.loads(self.launch([self.program, "profile", "--links"]))["links"]

    def measure_process(self, model):
        """The bytes of a process with MPI and such data, without a model: by a run of a small one. Once for each kind."""
        kind, small = type(model), smallest_like(model, BPTT)
        if kind not in self.reserved:
            plan = self.plan_on_hosts(small, "f32", LAYOUTS[2] + (1,))
            most = self.run_once([*self.common(small, "f32"), *plan["options"]], FEWEST)[1]
            self.reserved[kind] = most - plan["memory_bytes"]
        return self.reserved[kind]

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

    def describe(self, model, precision, takes_turns):
        """The cluster file of the two hosts, and the words of the model. `takes_turns`: never both hosts compute at the
        same time, so that one core has the machine's memory to itself."""
        words = [*model.planned_words(self.models, self.ntokens), "--bptt", str(BPTT), "--optimizer", "adamw", "--precision", precision]
        one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        output = subprocess.run([*(one_core if takes_turns else []), self.program, "profile", *words, "--devices",
                                 "cpu:0" if takes_turns else "cpu:0,cpu:1", *self.profile_words()],
                                stdout=subprocess.PIPE, check=True).stdout
        node, = json.loads(output)["nodes"]
        path = f"{self.folder}/cluster.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"nodes": [dict(node, count=2, devices=1)], "links": self.links}, file)
        return path, words

    def plan_on_hosts(self, model, precision, layout):
        _, ranks, _, chunks = layout
        path, words = self.describe(model, precision, ranks == 2 and chunks == 1)
        output = subprocess.run([self.program, "plan", *words, *VALIDATION, "--cluster", path, *layout_words(*layout),
                                 "--batch-tokens", str(BPTT * ROWS), "--json"], stdout=subprocess.PIPE, check=True).stdout
        return json.loads(output)["plans"][0]

    def plan_cell(self, model, precision, layout):
        plan = self.plan_on_hosts(model, precision, layout)
        return dict(plan, memory_bytes=plan["memory_bytes"] + self.measure_process(model))

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
    model, layout = draw_model(draw, BPTT), draw.choice(layouts)
    return model, [*layout, draw.choice(CHUNKS)], draw.choice(["f32", "f32", "bf16"])


class Record:
    """What is measured, by its name: a list that is kept in a file, if there is one, of one commit and settings."""

    def __init__(self, path, settings):
        self.path, self.entries = path, {}
        if path and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                name, entry = json.loads(line)
                self.entries[name] = entry
        if self.entries and self.entries.get("settings") != settings:
            raise SystemExit(f"{path} is of {self.entries.get('settings')}, not of {settings}: use another --record")
        if path:
            self.add("settings", lambda: settings)

    def add(self, name, measure):
        """Measures what is not there yet."""
        if name in self.entries:
            return
        self.entries[name] = measure()
        print(name, json.dumps(self.entries[name]), file=sys.stderr, flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, self.entries[name]]) + "\n")

    def starting_with(self, kind):
        numbered = [(int(name.split()[1]), entry) for name, entry in self.entries.items() if name.startswith(kind)]
        return [entry for _, entry in sorted(numbered, key=lambda item: item[0])]


# ---- Cells ----------------------------------------------------------------------------------------


def measure_cell(place, where, model, layout, precision):
    pairs = []
    for _ in range(place.args.runs):
        plan = place.plan_cell(model, precision, layout)
        pairs.append((plan["step_ms"], plan["memory_bytes"],
                      *place.run_once([*place.common(model, precision), *plan["options"]], place.steps(plan["step_ms"]))))
    planned, planned_bytes, measured, measured_bytes = zip(*pairs)
    return {"where": where, "model": model.text, "layout": layout, "precision": precision, "planned_ms": planned,
            "planned_bytes": planned_bytes, "measured_ms": measured, "measured_bytes": measured_bytes}


def measure_cells(bench, hosts, numbers, record):
    """`hosts`: TwoHosts, or None."""
    for number in numbers:
        is_of_hosts = number % HOSTS_EVERY == HOSTS_EVERY - 1
        place, where, layouts = (hosts, "two hosts", LAYOUTS[1:]) if is_of_hosts else (bench, "this machine", LAYOUTS)
        if place:
            model, layout, precision = draw_cell(bench.args.seed, number, layouts)
            record.add(f"cell {number} of {bench.args.seed}", lambda: measure_cell(place, where, model, layout, precision))


def print_errors(errors):
    """`errors`: {place: [(of the step, of the memory)]}."""
    print("\n| where | cells | step, on average | at most | memory, on average | at most |\n|---|---|---|---|---|---|")
    for where, values in errors.items():
        sizes = [[100 * abs(value) for value in column] for column in zip(*values)]
        print(f"| {where} | {len(values)} | " + " | ".join(f"{statistics.mean(size):.1f}% | {max(size):.1f}%" for size in sizes) + " |")


def print_cells(cells):
    print("| where | model | layout | precision | planned ms | from | to | measured ms | error | planned MiB | measured MiB | error |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|")
    errors = {}
    for cell in cells:
        planned, measured = cell["planned_ms"], cell["measured_ms"]
        planned_bytes, measured_bytes = (statistics.median(cell[name]) for name in ("planned_bytes", "measured_bytes"))
        of_step = statistics.median(planned) / statistics.median(measured) - 1
        of_memory = planned_bytes / measured_bytes - 1
        for where in (cell["where"], "all"):
            errors.setdefault(where, []).append((of_step, of_memory))
        replicas, ranks, schedule, chunks = cell["layout"]
        print(f"| {cell['where']} | {cell['model']} | {replicas} x {ranks} {schedule}, {chunks} | {cell['precision']} | "
              f"{statistics.median(planned):.1f} | {min(planned):.1f} | {max(planned):.1f} | {statistics.median(measured):.1f} | "
              f"{100 * of_step:+.1f}% | {planned_bytes / 2**20:.0f} | {measured_bytes / 2**20:.0f} | {100 * of_memory:+.1f}% |")
    print_errors(errors)


# ---- Choices --------------------------------------------------------------------------------------


def all_layouts():
    """{name: options} of the layouts that a choice is compared with."""
    return {f"{replicas} x {ranks} {schedule}, {chunks}":
            [*layout_words(replicas, ranks, schedule, chunks), "--balance", "auto", "--recompute", "never", "--shards",
             str(replicas), "--batch-size", str(ROWS // replicas)]
            for replicas, ranks, schedule in LAYOUTS for chunks in CHUNKS}


def pairs_of(words):
    return {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}


def find_same(chosen, words):
    """The layout of one stage that the choice is, or a name of its own."""
    for name, options in words.items():
        one, other = pairs_of(chosen), pairs_of(options)
        same = ("--dp", "--pp", "--chunks", "--recompute", "--shards", "--batch-size")
        if one["--pp"] == "1" and "--zero" not in chosen and all(one.get(key) == other.get(key) for key in same):
            return name
    return "chosen"


def measure_choice(bench, model):
    common = bench.common(model, "f32")
    plan = bench.plan(common)
    words = all_layouts()
    chosen = find_same(plan["options"], words)
    words.setdefault(chosen, plan["options"])
    first = {name: bench.run_once([*common, *options], FEWEST)[0] for name, options in words.items()}
    shortest = min((name for name in first if name != "chosen"), key=first.get)
    near = [name for name, ms in first.items() if ms <= NEAR * min(first.values()) or name in (chosen, shortest)]
    found = {name: [] for name in near}
    for _ in range(bench.args.runs):
        for name in near:
            found[name].append(bench.run_once([*common, *words[name]], bench.steps(plan["step_ms"]))[0])
    steps = {name: statistics.median(times) for name, times in found.items()}
    best = min((name for name in steps if name != "chosen"), key=steps.get)
    return {"model": model.text, "options": " ".join(plan["options"]), "planned_ms": plan["step_ms"], "ms": steps[chosen],
            "best_ms": steps[best], "best": best, "steps": steps}


def print_choices(choices):
    print("\n| model | chosen | planned ms | its step, ms | the best of the 20 layouts, ms | which | chosen, of that |\n"
          "|---|---|---|---|---|---|---|")
    for choice in choices:
        print(f"| {choice['model']} | {choice['options']} | {choice['planned_ms']:.1f} | {choice['ms']:.1f} | {choice['best_ms']:.1f} | "
              f"{choice['best']} | {choice['ms'] / choice['best_ms']:.3f} |")


# ---- Changes of a run -----------------------------------------------------------------------------


def measure_changes(bench, model):
    """Of a pipeline whose first stage has one module: what `sluice plan --from` its log expects of each change, and a run's step."""
    common = bench.common(model, "f32")
    layout = [*layout_words(1, 2, "1f1b", 4), "--devices", "cpu:0,cpu:1", "--recompute", "never", "--shards", "1", "--batch-size", str(ROWS)]
    even = bench.plan(common, *layout[:8])["options"]
    modules = sum(int(count) for count in even[even.index("--balance") + 1].split(","))
    run = [*common, *layout, "--balance", f"1,{modules - 1}"]
    own, changes = [], {}
    for _ in range(bench.args.runs):
        with tempfile.TemporaryDirectory() as folder:
            own.append(bench.run_once(run, bench.args.steps, f"{folder}/log.jsonl")[0])
            output = subprocess.run([bench.program, "plan", "--from", f"{folder}/log.jsonl", "--json"], stdout=subprocess.PIPE,
                                    check=True).stdout
        for change in json.loads(output)["changes"]:
            kind = change["change"].split()[0]
            entry = changes.setdefault(kind, {"options": change["options"], "change": change["change"], "expected_ms": [], "ms": []})
            entry["expected_ms"].append(change["step_ms"])
            entry["ms"].append(bench.run_once([*common, *change["options"]], bench.args.steps)[0])
    return {"model": model.text, "balance": run[-1], "ms": own, "changes": list(changes.values())}


def print_all_changes(runs):
    print("\n| model | run | its step, ms | change | expected ms | measured ms | error |\n|---|---|---|---|---|---|---|")
    for run in runs:
        for change in run["changes"]:
            expected, measured = statistics.median(change["expected_ms"]), statistics.median(change["ms"])
            print(f"| {run['model']} | --balance {run['balance']} | {statistics.median(run['ms']):.1f} | {change['change']} | "
                  f"{expected:.1f} | {measured:.1f} | {100 * (expected / measured - 1):+.1f}% |")


# ---- All ------------------------------------------------------------------------------------------


def numbers_of(text):
    """'5-9': 5 ... 9; '10': 0 ... 9."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def settings_of(args):
    """What entries of one record have in common."""
    return {"commit": repeat.commit(), **{name: getattr(args, name) for name in ("runs", "steps", "seconds", "profile_seconds", "seed")}}


def measure_on_hosts(bench, numbers, record):
    reason = network.missing()
    if reason:
        print(f"cells of two hosts are left out: {reason}\n")
        measure_cells(bench, None, numbers, record)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-plans-") as folder, network.Network(2, folder) as net:
        net.limit("1gbit")
        measure_cells(bench, TwoHosts(bench.args, bench.models, net, folder), numbers, record)


def measure_all(bench, record):
    args = bench.args
    print(f"runs: {args.runs} runs of {FEWEST} to {args.steps} steps of {BPTT * ROWS} tokens, drawn with seed {args.seed}\n")
    if args.cells:
        measure_on_hosts(bench, args.cells, record)
    draw = random.Random(f"models {args.seed}")
    for number, model in enumerate([draw_model(draw, BPTT) for _ in range(max(args.models.stop, args.changes.stop))]):
        if number in args.models:
            record.add(f"model {number} of {args.seed}", lambda: measure_choice(bench, model))
        if number in args.changes:
            record.add(f"change {number} of {args.seed}", lambda: measure_changes(bench, model))
    for kind, show in (("cell ", print_cells), ("model ", print_choices), ("change ", print_all_changes)):
        if found := record.starting_with(kind):
            show(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    for name, value in (("cells", "20"), ("models", "5"), ("changes", "3")):
        parser.add_argument(f"--{name}", default=value, type=numbers_of)
    for name, value in (("runs", 5), ("steps", 20), ("seconds", 3.0), ("profile-seconds", 4.0), ("seed", 28)):
        parser.add_argument(f"--{name}", default=value, type=type(value))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-models-") as models:
        measure_all(Bench(args, models), Record(args.record, settings_of(args) if args.record else None))


main()
