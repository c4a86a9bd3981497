"""Training steps of sluice beside PyTorch's: the same model, batch and settings, the programs in turn.

    python3 bench/compare_pytorch.py step      [--rounds 5] [--steps 3] [--emsize N]
    python3 bench/compare_pytorch.py families  [--rounds 5] [--steps 3] [--model NAME] [--precisions f32] [--limit 5]
    python3 bench/compare_pytorch.py pipelines [--rounds 5] [--steps 3] [--schedule NAME]
    python3 bench/compare_pytorch.py pipe      [--rounds 5] [--steps 3] [--emsize N]

`step` is one stage with all cores: sluice in f32 and bf16; current PyTorch eager and compiled, in f32
and under torch.autocast(bfloat16). `families` is the same for published models of transformers, with
drawn weights and without dropout. `pipelines` is two ranks with a core each, schedule by schedule:
threads of bench_step, and processes of torch.distributed.pipelining over gloo with one thread each.
`pipe` is PyTorch 1.13's Pipe, of the system's python3, with OpenBLAS's AVX-512 kernels and the better
of one and two threads an operation; both programs have two stages that use both cores.

A step is forward, backward, clipping at 0.5, and SGD; at width 768 and for families it is AdamW. Lines give the median and
the range of the rounds' figures, each the median of the steps. With --limit N, PyTorch is ended where a step
takes longer than N of sluice's in the same round, compiling apart: the line says "more than". Current PyTorch
comes from PyPI into a virtual environment (--venv, default: pytorch in the build folder), which is made where none works there.
In f32 a last line has the time that the step's operations would take at the best rate of dnnl_sgemm in the same round: about the
least for a program with such products.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 300
STEPS = [
    {"emsize": 200, "nlayers": 2, "nhead": 2},
    {"emsize": 768, "nlayers": 12, "nhead": 12, "nhid": 3072, "batch": 4, "bptt": 64,
     "ntokens": 50257, "optimizer": "adamw"},
    {"emsize": 1024, "nlayers": 4, "nhead": 16},
]
FAMILIES = [
    {"model": "gpt2", "batch": 4, "bptt": 512},
    {"model": "smollm2-135m", "batch": 2, "bptt": 1024},
    {"model": "smollm2-135m", "batch": 1, "bptt": 2048},
    {"model": "qwen3-0.6b", "nlayers": 4, "batch": 1, "bptt": 1024},
]
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-v": 2}  # stages of a rank
PIPES = [
    {"emsize": 200, "nlayers": 2, "nhead": 2, "chunks": 4, "recompute": "never"},
    {"emsize": 200, "nlayers": 2, "nhead": 2, "chunks": 8, "recompute": "except_last"},
    {"emsize": 1024, "nlayers": 4, "nhead": 16, "chunks": 4, "recompute": "never"},
    {"emsize": 1024, "nlayers": 4, "nhead": 16, "chunks": 8, "recompute": "except_last"},
]

# ---- Running programs -------------------------------------------------------------------------


def environment(threads):
    values = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        if "avx512f" in info.read():
            values["OPENBLAS_CORETYPE"] = "SkylakeX"
    return values


def last_line(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def run(command, env=None):
    """The last line of JSON that the program prints."""
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    figures = last_line(result.stdout)
    if result.returncode != 0 or not figures:
        sys.exit(f"{command[0]} failed with {result.returncode}: {result.stderr[-2000:]}")
    return figures


def run_ranks(python, flags):
    """Starts both ranks and waits for them; what is left of them at an error is killed."""
    env = dict(environment(1), GLOO_SOCKET_IFNAME="lo", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder, open(folder + "/out", "w+",
                                                       encoding="utf-8") as out:
        command = [python, HERE / "pytorch_lm.py", *flags, "--meeting", folder + "/meeting"]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=env, stdout=out)
                 for rank in range(2)]
        try:
            codes = [rank.wait(TIMEOUT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        out.seek(0)
        figures = last_line(out.read())
    if any(codes) or not figures:
        sys.exit(f"PyTorch's ranks ended with {codes}")
    return figures


def make_environment(folder, packages=("torch", "numpy", "transformers")):
    """The python of the virtual environment with current packages, which is made where none works."""
    python = folder / "bin" / "python"
    works = [str(python), "-c", "import " + ", ".join(packages)]
    if not python.exists() or subprocess.run(works, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def flags_of(args, case):
    return [word for name, value in {**case, "steps": args.steps}.items()
            for word in ("--" + name, str(value))]


def run_sluice(args, case, *more):
    return run([str(args.build / "bench" / "bench_step"), *flags_of(args, case), *more])


def run_one_stage(python, flags, mode, limit, parameters):
    """The milliseconds of a step by PyTorch; None where one took longer than `limit` seconds."""
    theirs = run([python, str(HERE / "pytorch_lm.py"), *flags, "--stages", "1", "--modes", mode, "--limit", str(limit)],
                 environment(len(os.sched_getaffinity(0))))
    if "--model" in flags and theirs["parameters"] != parameters:
        sys.exit(f"sluice's model has {parameters:,} parameters, PyTorch's has {theirs['parameters']:,}")
    return theirs["ms"][mode]


# ---- Comparisons ------------------------------------------------------------------------------


def milliseconds(values):
    return f"{statistics.median(values):,.0f} ms ({min(values):,.0f} to {max(values):,.0f})"


def ratio(values, ours):
    return f"{statistics.median(values) / statistics.median(ours):.2f} times as long"


def report(case, times, ended):
    """times: [program's name][round] milliseconds, beside sluice's in the same precision; ended: the names of programs
    that were ended then."""
    name = case.get("model") or f"emsize {case['emsize']}"
    layers = f", {case['nlayers']} layers" if "nlayers" in case else ""
    rows = f", {case['batch']} × {case['bptt']} tokens" if "model" in case else ""
    print(f"\n| {name}{layers}{rows} | a step | beside sluice in the same precision |\n"
          "|---|---|---|")
    for name, values in times.items():
        ours = times["sluice, bf16" if name.endswith("bf16") else "sluice"]
        more = "more than " if name in ended else ""
        print(f"| {name} | {more}{milliseconds(values)} | {'' if values is ours else more + ratio(values, ours)} |",
              flush=True)


def compare_step(args, python, case):
    times, products, ended = {}, [], set()
    for _ in range(args.rounds):
        for precision in args.precisions:
            suffix = "" if precision == "f32" else ", " + precision
            ours = run([str(args.build / "bench" / "bench_step"), "--bound", *flags_of(args, case), "--devices", "cpu",
                        "--precision", precision])
            times.setdefault("sluice" + suffix, []).append(ours["ms"])
            for way in ("eager", "compiled"):
                name, limit = f"PyTorch, {way}{suffix}", args.limit * ours["ms"]
                step = run_one_stage(python, flags_of(args, case), f"{way} {precision}", limit / 1e3, ours["parameters"])
                times.setdefault(name, []).append(step or limit)
                ended |= set() if step else {name}
            if precision == "f32":
                products.append(ours["ms"] * ours["gflops"] / ours["sgemm_gflops"])
    if products:
        times["the products alone, as fast as `dnnl_sgemm` ever is"] = products
    report(case, times, ended)


def compare_pipelines(args, python, schedule):
    """Prints a row: sluice beside PyTorch."""
    case = {"emsize": 1024, "nlayers": 4, "nhead": 16, "chunks": 4, "schedule": schedule}
    virtual = SCHEDULES[schedule]
    times = {"sluice": [], "PyTorch": []}
    for _ in range(args.rounds):
        times["sluice"].append(run_sluice(args, case, "--devices", "cpu:0,cpu:1", "--stages",
                                          str(2 * virtual), "--virtual", str(virtual))["ms"])
        theirs = run_ranks(python, flags_of(args, case))
        times["PyTorch"].append(theirs["ms"])
    print(f"| {schedule} | {milliseconds(times['sluice'])} | {milliseconds(times['PyTorch'])} | "
          f"{ratio(times['PyTorch'], times['sluice'])} |", flush=True)


def compare_pipe(args, case):
    times = {"sluice": [], "1 thread": [], "2 threads": []}
    flags = [*flags_of(args, case), "--stages", "2"]
    for _ in range(args.rounds):
        times["sluice"].append(run_sluice(args, case, "--stages", "2", "--devices", "cpu,cpu")["ms"])
        for threads in (1, 2):
            theirs = run(["/usr/bin/python3", str(HERE / "pytorch_lm.py"), *flags],
                         environment(threads))
            times[f"{threads} thread{'s' if threads > 1 else ''}"].append(theirs["ms"]["eager"])
    best = min(times["1 thread"], times["2 threads"], key=statistics.median)
    print(f"| {case['emsize']} | {case['nlayers']} | {case['chunks']} | {case['recompute']} | "
          f"{milliseconds(times['sluice'])} | {milliseconds(best)} | {ratio(best, times['sluice'])} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "families", "pipelines", "pipe"))
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--steps", default=3, type=int)
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--emsize", type=int, help="only the cases of this width")
    parser.add_argument("--model", help="only the cases of this model")
    parser.add_argument("--precisions", default="f32,bf16", type=lambda names: names.split(","),
                        help="of a step; PyTorch's products of bf16 are very slow on processors that have none")
    parser.add_argument("--limit", default=0, type=float, help="of sluice's steps, after which one of PyTorch is ended; 0: none")
    parser.add_argument("--schedule", choices=SCHEDULES, help="only this one")
    args = parser.parse_args()
    print(f"runs: {args.rounds} runs of each program in turn\n")
    cases = [case for case in (PIPES if args.what == "pipe" else STEPS)
             if args.emsize in (None, case["emsize"])]
    if args.what == "pipe":
        print("| emsize | layers | chunks | recompute | sluice | PyTorch's `Pipe` | beside sluice |\n"
              "|---|---|---|---|---|---|---|")
        for case in cases:
            compare_pipe(args, case)
        return
    python = make_environment(args.venv or args.build / "pytorch")
    if args.what == "step":
        for case in cases:
            compare_step(args, python, case)
    elif args.what == "families":
        for case in FAMILIES:
            if args.model in (None, case["model"]):
                compare_step(args, python, {**case, "optimizer": "adamw"})
    else:
        print("| schedule | sluice | PyTorch | beside sluice |\n|---|---|---|---|")
        for schedule in [args.schedule] if args.schedule else SCHEDULES:
            compare_pipelines(args, python, schedule)


if __name__ == "__main__":
    main()
