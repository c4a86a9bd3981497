"""Tokens per second of sluice against PyTorch's Pipe: the same model, data shape, chunks and
checkpoint mode, the two programs in turn, medians of a few rounds.

    python3 bench/compare_pytorch.py [--build build] [--rounds 3] [--steps 5]

PyTorch gets its best setting: OpenBLAS's AVX-512 kernels where the machine has them, and the better
of one and two threads an operation. Both programs run two stages on the same two cores: PyTorch's
stages both use both, and so do sluice's (devices cpu,cpu). Each line gives the ratio and the
settings.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = [
    {"emsize": 200, "nlayers": 2, "nhead": 2, "chunks": 4, "checkpoint": "never"},
    {"emsize": 200, "nlayers": 2, "nhead": 2, "chunks": 8, "checkpoint": "except_last"},
    {"emsize": 1024, "nlayers": 4, "nhead": 16, "chunks": 4, "checkpoint": "never"},
    {"emsize": 1024, "nlayers": 4, "nhead": 16, "chunks": 8, "checkpoint": "except_last"},
]


def environment(threads):
    values = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        if "avx512f" in info.read():
            values["OPENBLAS_CORETYPE"] = "SkylakeX"
    return values


def run(command, env):
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0 or not lines:
        sys.exit(f"{command[0]} failed with {result.returncode}: {result.stderr[-2000:]}")
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--steps", default=5, type=int)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--emsize", type=int, help="only the cases of this width")
    args = parser.parse_args()
    for case in CASES:
        if args.emsize and case["emsize"] != args.emsize:
            continue
        flags = [word for name, value in case.items() for word in ("--" + name, str(value))]
        flags += ["--steps", str(args.steps), "--stages", "2"]
        ours, theirs = [], {1: [], 2: []}
        for _ in range(args.rounds):
            ours.append(run([str(args.build / "bench" / "bench_step"), *flags,
                             "--devices", "cpu,cpu"], dict(os.environ))["tokens_per_s"])
            for threads, values in theirs.items():
                values.append(run([args.python, str(HERE / "pytorch_lm.py"), *flags],
                                  environment(threads))["tokens_per_s"])
        mine = statistics.median(ours)
        best = max(theirs, key=lambda threads: statistics.median(theirs[threads]))
        other = statistics.median(theirs[best])
        print(f"emsize {case['emsize']}, {case['nlayers']} layers, 2 stages, "
              f"chunks {case['chunks']}, {case['checkpoint']}: sluice {mine:.0f} tokens/s, "
              f"PyTorch's Pipe {other:.0f} ({best} threads): ratio {mine / other:.2f}")
        print(json.dumps({"bench": "compare_pytorch", **case, "sluice": mine, "pytorch": other,
                          "pytorch_threads": best, "ratio": round(mine / other, 3)}), flush=True)


if __name__ == "__main__":
    main()
