"""Causal attention of long rows by sluice and by PyTorch's scaled_dot_product_attention, the programs in turn.

    python3 bench/compare_attention.py [--rounds 3] [--positions 2048,8192] [--build build]

SmolLM2-135M's shape: 9 heads of 64 columns, of which three share a head of keys and values; one row, with all cores.
PyTorch's figure is the better of two ways: it is told that heads share keys (enable_gqa), or the keys and values are
repeated before, which counts. Times are of the processor, of all threads. A round's figure is the median of 3 calls
behind one that is not counted, or that one where it takes more than 5 seconds; lines give the median and the range of
the rounds. Current PyTorch comes from PyPI into a virtual environment (--venv, default: pytorch in the build folder),
which is made where none works there.
"""
import argparse
import json
import os
import statistics
import time
from pathlib import Path

from compare_pytorch import make_environment, milliseconds, run

HERE = Path(__file__).resolve()
HEADS, KEY_HEADS, HEAD_WIDTH, CALLS, LONG_MS = 9, 3, 64, 3, 5000
TYPES = {"f32": "float32", "bf16": "bfloat16"}


def measure_theirs(positions, precision):
    """In the virtual environment: prints the milliseconds of forward and of backward."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(1)

    def draw(heads):
        values = torch.rand(1, positions, heads, HEAD_WIDTH, dtype=getattr(torch, TYPES[precision]))
        return (2 * values - 1).transpose(1, 2).requires_grad_()

    q, k, v, grad = draw(HEADS), draw(KEY_HEADS), draw(KEY_HEADS), draw(HEADS).detach()

    def shared():
        return attend(q, k, v, is_causal=True, enable_gqa=True)

    def repeated():
        times = HEADS // KEY_HEADS
        return attend(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), is_causal=True)

    def call(way):
        start = time.process_time()
        out = way()
        middle = time.process_time()
        torch.autograd.grad(out, (q, k, v), grad)
        return 1e3 * (middle - start), 1e3 * (time.process_time() - middle)

    def measure(way):
        first = call(way)
        if sum(first) > LONG_MS:
            return first
        return [statistics.median(times) for times in zip(*(call(way) for _ in range(CALLS)))]

    best = [min(times) for times in zip(measure(shared), measure(repeated))]
    print(json.dumps(dict(zip(("forward_ms", "backward_ms"), best))))


def compare(args, python, positions, precision):
    """Prints a row for each of forward and backward."""
    env = dict(os.environ, OMP_NUM_THREADS=str(len(os.sched_getaffinity(0))))
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run([str(args.build / "bench" / "bench_attention"), str(positions), precision]))
        theirs.append(run([python, str(HERE), "--measure", f"{positions},{precision}"], env))
    for name in ("forward", "backward"):
        a, b = ([one[name + "_ms"] for one in side] for side in (ours, theirs))
        ratios = [y / x for x, y in zip(a, b)]
        print(f"| 1 x {positions}, {precision} | {name} | {milliseconds(a)} | {milliseconds(b)} | "
              f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build", type=Path)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--positions", default="2048,8192")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        positions, precision = args.measure.split(",")
        measure_theirs(int(positions), precision)
        return
    python = make_environment(args.venv or args.build / "pytorch")
    print(f"runs: {args.rounds} runs of each program in turn\n")
    print("| row | | sluice | PyTorch | beside sluice |\n|---|---|---|---|---|")
    for positions in args.positions.split(","):
        for precision in TYPES:
            compare(args, python, int(positions), precision)


if __name__ == "__main__":
    main()
