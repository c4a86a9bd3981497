"""Steps of sluice's pipelines beside those of torch.distributed.pipelining, schedule by schedule.

    python3 bench/compare_pipelines.py [--build build] [--rounds 3] [--steps 5]

The same model, batch, chunks and schedule: two ranks with a core each, that is two threads of
bench_step, and two processes of PyTorch with one thread each that talk through gloo. A step is
forward, backward, clipping at 0.5 and SGD. The programs run in turn; a line gives medians and
ranges over the rounds. PyTorch comes from PyPI into a virtual environment (--venv, default
build/pytorch), which is made where it is not there.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare_pytorch import environment, run

HERE = Path(__file__).resolve().parent
RANKS, TIMEOUT_SECONDS = 2, 300
# sluice's name, PyTorch's, stages of a rank, the ranks of the stages
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1, [0, 1]),
    "1f1b": ("Schedule1F1B", 1, [0, 1]),
    "interleaved": ("ScheduleInterleaved1F1B", 2, [0, 1, 0, 1]),
    "zb-v": ("ScheduleZBVZeroBubble", 2, [0, 1, 1, 0]),
}


# ---- A rank of PyTorch's ----------------------------------------------------------------------


def build_stages(args, placement):
    """This rank's stages; layers are spread evenly, the ends join the first and last stage."""
    import torch
    from pytorch_lm import Decoder, Encoder, Layer
    from torch import nn
    from torch.distributed.pipelining import PipelineStage

    stages, each = [], args.nlayers // len(placement)
    for stage, rank in enumerate(placement):
        if rank != args.rank:
            continue
        modules = [Layer(args.emsize, args.nhead, args.emsize, 0.2) for _ in range(each)]
        if stage == 0:
            modules.insert(0, Encoder(args.ntokens, args.emsize, 0.2))
        if stage == len(placement) - 1:
            modules.append(Decoder(args.emsize, args.ntokens))
        stages.append(PipelineStage(nn.Sequential(*modules), stage, len(placement),
                                    torch.device("cpu")))
    return stages


def step_seconds(args, schedule, stages, placement, batch):
    """Seconds of one step, from when both ranks are ready until both are done."""
    import torch
    import torch.distributed as dist
    from torch import nn

    ids, targets = batch
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    seconds = []
    for _ in range(args.steps + 1):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        inputs = [ids] if placement[0] == args.rank else []
        wanted = {"target": targets} if placement[-1] == args.rank else {}
        schedule.step(*inputs, **wanted)
        square = nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, 0.5, square.sqrt())
        optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def product_rate(args):
    """FLOP/s of a layer's product for one micro-batch."""
    import torch

    rows = args.batch // args.chunks * args.bptt
    a, b = torch.randn(rows, args.emsize), torch.randn(args.emsize, args.emsize)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        a @ b.T
        best = min(best, time.perf_counter() - start)
    return 2 * rows * args.emsize**2 / best


def run_rank(args):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import pipelining

    torch.set_num_threads(1)
    torch.manual_seed(args.rank)
    dist.init_process_group("gloo", init_method="file://" + args.meeting, rank=args.rank,
                            world_size=RANKS)
    name, virtual, placement = SCHEDULES[args.schedule]
    stages = build_stages(args, placement)
    rate = product_rate(args)
    schedule = getattr(pipelining, name)(
        stages if virtual > 1 else stages[0], args.chunks,
        loss_fn=lambda out, target: nn.functional.cross_entropy(out.flatten(0, 1),
                                                                target.flatten()))
    torch.manual_seed(0)
    batch = torch.randint(args.ntokens, (2, args.batch, args.bptt)).unbind()
    seconds = step_seconds(args, schedule, stages, placement, batch)
    if args.rank == 0:
        print(json.dumps({"ms": 1e3 * seconds, "product_gflops": 1e-9 * rate,
                          "version": torch.__version__}), flush=True)
    dist.destroy_process_group()


# ---- Both programs in turn --------------------------------------------------------------------


def make_environment(folder):
    """The virtual environment's python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "torch", "numpy"],
                       check=True)
    return str(python)


def run_pytorch(python, flags):
    """Starts both ranks and waits for them; what is left of them at an error is killed."""
    env = dict(environment(1), GLOO_SOCKET_IFNAME="lo", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder, open(folder + "/out", "w+",
                                                       encoding="utf-8") as out:
        command = [python, __file__, *flags, "--meeting", folder + "/meeting", "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)], env=env, stdout=out)
                 for rank in range(RANKS)]
        try:
            codes = [rank.wait(TIMEOUT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        out.seek(0)
        lines = [line for line in out if line.startswith("{")]
    if any(codes) or not lines:
        sys.exit(f"PyTorch's ranks ended with {codes}")
    return json.loads(lines[-1])


def text(values):
    return f"{statistics.median(values):,.0f} ms ({min(values):,.0f} to {max(values):,.0f})"


def compare(args, python, schedule):
    virtual = SCHEDULES[schedule][1]
    names = ("emsize", "nlayers", "nhead", "ntokens", "chunks", "batch", "bptt", "steps")
    flags = [word for name in names for word in ("--" + name, str(getattr(args, name)))]
    flags += ["--schedule", schedule]
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run([str(args.build / "bench" / "bench_step"), *flags, "--devices",
                         "cpu:0,cpu:1", "--stages", str(RANKS * virtual), "--virtual",
                         str(virtual)], dict(os.environ))["ms"])
        theirs.append(run_pytorch(python, flags))
    other = [result["ms"] for result in theirs]
    ratio = statistics.median(other) / statistics.median(ours)
    print(f"{schedule}: sluice {text(ours)}, PyTorch {theirs[0]['version']} {text(other)}, ratio "
          f"{ratio:.2f}; a product in PyTorch {theirs[0]['product_gflops']:.0f} GFLOP/s")
    print(json.dumps({"bench": "compare_pipelines", "schedule": schedule, "sluice_ms": ours,
                      "pytorch_ms": other, "ratio": round(ratio, 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("emsize", 1024), ("nlayers", 4), ("nhead", 16), ("ntokens", 28782),
                          ("chunks", 4), ("batch", 20), ("bptt", 35), ("steps", 5), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--venv", type=Path, help="default: pytorch in the build folder")
    parser.add_argument("--schedule", choices=SCHEDULES, help="only this one")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        run_rank(args)
        return
    python = make_environment(args.venv or args.build / "pytorch")
    for schedule in [args.schedule] if args.schedule else SCHEDULES:
        compare(args, python, schedule)


if __name__ == "__main__":
    main()
