"""A pipeline over two hosts with a link of 1 Gbit/s and 1 ms, beside the simulator and PyTorch.

    python3 bench/two_hosts.py [--steps 9] [--rounds 3] [--schedules 1f1b] [--emsize 1024] [--no-pytorch]

The hosts are network namespaces of this machine, whose links tc and netem make slow, or a process
that hands frames on later where the kernel has no netem (tests/hosts/network.py). Each rank has a
core of its own. bench_processes gives the step over both hosts, that of two threads on one host, and
measured/simulated: the simulation has the time that a probe between the hosts has measured for the
tensors' size. PyTorch is torch.distributed.pipelining over gloo between the same two hosts, with the
same model, micro-batches and schedule (pytorch_lm.py). The programs run in turn. Needs root.
"""
import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "hosts"))
import network  # noqa: E402
from compare_pytorch import SCHEDULES, TIMEOUT_SECONDS, environment, last_line, make_environment, milliseconds, ratio  # noqa: E402

HOSTS = ("host1", "host2")


def model_of(args):
    heads, layers = (2, 2) if args.emsize < 512 else (16, 4)
    return {"emsize": args.emsize, "nlayers": layers, "nhead": heads, "chunks": 4, "steps": args.steps}


def flags_of(values):
    return [word for name, value in values.items() for word in ("--" + name, str(value))]


def finish(processes):
    """Their standard outputs, when all have ended well."""
    until = time.monotonic() + TIMEOUT_SECONDS
    texts = [process.communicate(timeout=until - time.monotonic())[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"ended with {[process.returncode for process in processes]}")
    return texts


def run_sluice(net, args, schedule):
    command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "2", "--hostfile", net.hosts,
               "--mca", "plm_rsh_agent", net.agent, str(args.build.resolve() / "bench/bench_processes"),
               *flags_of(model_of(args)), "--schedule", schedule]
    text, = finish([net.start("host1", command, stdout=subprocess.PIPE, text=True)])
    return last_line(text)


def run_pytorch(net, args, python, schedule):
    env = dict(environment(1), GLOO_SOCKET_IFNAME="eth0", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(HERE / "pytorch_lm.py"), *flags_of(model_of(args)), "--schedule", schedule,
                   "--meeting", folder + "/meeting"]
        ranks = [net.start(host, ["taskset", "-c", str(rank), *command, "--rank", str(rank)], env=env,
                           stdout=subprocess.PIPE, text=True) for rank, host in enumerate(HOSTS)]
        return last_line(finish(ranks)[0])


def compare(net, args, python, schedule):
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run_sluice(net, args, schedule))
        if python:
            theirs.append(run_pytorch(net, args, python, schedule))
    steps, excess = [one["ms"] for one in ours], [one["excess"] for one in ours]
    pytorch = [one["ms"] for one in theirs]
    beside = f"{milliseconds(pytorch)} | {ratio(pytorch, steps)}" if pytorch else " | "
    print(f"| {args.emsize} | {schedule} | {milliseconds(steps)} | {milliseconds([one['threads_ms'] for one in ours])} | "
          f"{statistics.median(excess):.3f} ({min(excess):.3f} to {max(excess):.3f}) | {beside} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--no-pytorch", action="store_true")
    parser.add_argument("--schedules", default="1f1b")
    parser.add_argument("--emsize", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay", type=float, default=1, help="milliseconds, one way")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces go
    reason = network.missing()
    if reason:
        sys.exit(f"two_hosts.py: {reason}")
    python = None if args.no_pytorch else make_environment(args.venv or args.build / "pytorch")
    with tempfile.TemporaryDirectory(prefix="sluice-two-hosts-") as folder, \
            network.Network(len(HOSTS), folder) as net:
        net.limit(args.rate)
        net.delay(args.delay)
        if net.slow_switch:  # a switch does not wait for a core of the hosts
            os.setpriority(os.PRIO_PROCESS, net.slow_switch.pid, -20)
        trips = [net.round_trip(*HOSTS) for _ in range(9)]
        print(f"{args.rate}, {args.delay:g} ms each way: a connection is refused after "
              f"{statistics.median(trips):.1f} ms", flush=True)
        print(f"runs: {args.rounds} runs of each program in turn\n\n| emsize | schedule | sluice, two hosts | two threads "
              "of one host | measured / simulated | PyTorch, two hosts | beside sluice |\n|---|---|---|---|---|---|---|")
        for schedule in args.schedules.split(","):
            compare(net, args, python, schedule)


if __name__ == "__main__":
    main()
