"""What deaths cost: a training of four processes, of which one is killed every 20 steps.

    python3 bench/kill_ranks.py [--build build] [--layouts 4x1,2x2] [--kill-every 20] [-- OPTION...]

For each layout, replicas x pipeline ranks: a run that is left alone, and one whose ranks are killed
in turn with signal 9. A table has the seconds from a death to the end of the next step that is new, in
the median, and how much of the undisturbed run's throughput the other one keeps; a second one what the
launcher says of its own. The weights of both runs must be the same, bit for bit.
The default model has 25 million parameters, 100 MB. OPTIONs go to sluice train.
"""
import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "hosts"))
from jobs import family, find_programs, kill  # noqa: E402

PROCESSES = 4
MODEL = ("--emsize 512 --nhid 2048 --nhead 8 --nlayers 6 --bptt 35 --batch-size 4 --eval-max-batches 2 "
         "--eval-batch-size 4 --epochs 1 --optimizer adamw --lr 0.0003 --quiet").split()

LOST = re.compile(r"job is where it was before: \S+ s were lost \((\S+) s noticing, (\S+) s restarting, "
                  r"(\S+) s repeating (\d+|no) steps?\)")


def new_steps(log, job):
    """The numbers of steps that had not been done before, each as soon as it is logged."""
    highest, rest, file = 0, "", None
    while job.poll() is None:
        if file is None and os.path.exists(log):
            file = open(log, encoding="utf-8")
        text = file.read() if file else ""
        *lines, rest = (rest + text).split("\n")
        for record in map(json.loads, lines):
            if record["record"] == "step" and record["step"] > highest:
                highest = record["step"]
                yield highest
        if not text:
            time.sleep(0.005)


def train(args, folder, name, layout, deaths):
    """Seconds of the run, seconds after each death, the weights' checksum, and what the launcher says."""
    sluice, path = f"{args.build}/bin/sluice", os.path.join(folder, name)
    replicas, ranks = layout.split("x")
    os.mkdir(path)
    command = [sluice, "launch", "-n", str(PROCESSES), "--max-restarts", str(deaths), sluice, "train",
               "--data", f"{folder}/text", *MODEL, "--dp", replicas, "--pp", ranks,
               "--max-batches", str(args.steps), "--save-dir", f"{path}/saved", "--keep", "1",
               "--save-every", str(args.save_every), "--log-json", f"{path}/log",
               "--save", f"{path}/weights", *args.options]
    lost, killed = [], None
    with open(f"{path}/err", "w", encoding="utf-8") as err, \
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err) as job:
        try:
            for step in new_steps(f"{path}/log", job):
                now = time.monotonic()
                if step == 1:
                    started = now
                if killed:
                    lost.append(now - killed)
                    killed = None
                if deaths and step % args.kill_every == 0 and step < args.steps:
                    kill([find_programs(job.pid)[len(lost) % PROCESSES]])
                    killed = time.monotonic()
                if step == args.steps:
                    seconds = now - started
        finally:
            if job.poll() is None and sys.exc_info()[0]:
                kill(family(job.pid))
    said = Path(f"{path}/err").read_text(encoding="utf-8")
    if job.returncode != 0:
        sys.exit(f"status {job.returncode}: {said}")
    checksum = hashlib.sha256(Path(f"{path}/weights/model.safetensors").read_bytes()).hexdigest()
    return seconds, lost, checksum, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--layouts", default="4x1")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-every", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    deaths = (args.steps - 1) // args.kill_every
    causes = ["| layout | rank killed | noticing | restarting | repeating | steps repeated |", "|---|---|---|---|---|---|"]
    print("| layout | undisturbed | kills | with them | throughput kept | time to the next new step |\n"
          "|---|---|---|---|---|---|")
    for layout in args.layouts.split(","):
        with tempfile.TemporaryDirectory(prefix="sluice-kills-") as folder:
            subprocess.run([f"{args.build}/bin/sluice", "data", "--synthetic", f"{folder}/text", "--tokens", "2000000"],
                           stdout=subprocess.DEVNULL, check=True)
            alone, _, expected, _ = train(args, folder, "alone", layout, 0)
            seconds, lost, checksum, said = train(args, folder, "killed", layout, deaths)
            print(f"| {layout} | {alone:.1f} s | {len(lost)} | {seconds:.1f} s | {100 * alone / seconds:.1f}% | "
                  f"{statistics.median(lost):.2f} s |")
            causes += [f"| {layout} | {rank} | {noticing} s | {restarting} s | {repeating} s | {steps} |"
                       for rank, (noticing, restarting, repeating, steps) in enumerate(LOST.findall(said)[:len(lost)])]
            if checksum != expected:
                sys.exit(f"{layout}: the weights differ from the undisturbed run's")
    print("\n" + "\n".join(causes))


main()
