"""kill -9 of a random rank of a training job at a random moment: test_kills.py [TIMES].

Moments go from the start of the programs, over the meeting of the ranks, to the middle of the
training. Each time the launcher must say which rank was killed, and soon nothing may be left.
SLUICE_TEST_SEED draws others than the usual ranks and moments.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from jobs import family, find_programs, is_running, kill

PROGRAM = os.environ["SLUICE_PROGRAM"]
RANKS = 3
GRACE_SECONDS = 5
END_SECONDS = 30  # the grace, the launcher's own stages, and a busy machine
LONGEST_LIFE_SECONDS = 1.2


def wait_until(condition, seconds, what):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"FAILED: after {seconds} s still waiting until {what}")
        time.sleep(0.005)


def kill_once(text, draw):
    victim, life = draw.randrange(RANKS), draw.uniform(0, LONGEST_LIFE_SECONDS)
    command = [PROGRAM, "launch", "-n", str(RANKS), "--grace", str(GRACE_SECONDS), PROGRAM, "train",
               "--data", text, "--epochs", "100000", "--quiet"]
    command += ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --batch-size 12 "
                "--eval-batch-size 8").split()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as job:
        try:
            wait_until(lambda: len(find_programs(job.pid)) == RANKS, END_SECONDS, "all have started")
            processes, programs = family(job.pid), find_programs(job.pid)
            time.sleep(life)
            kill([programs[victim]])
            killed = time.monotonic()
            _, err = job.communicate(timeout=END_SECONDS)
            took = time.monotonic() - killed
            wait_until(lambda: not any(map(is_running, processes)), 1, "nothing is left")
        finally:
            kill(family(job.pid))
    if job.returncode != 137 or f"rank {victim} on " not in err.splitlines()[-1]:
        sys.exit(f"FAILED: status {job.returncode} after rank {victim} was killed: {err}")
    return victim, life, took, err


def main():
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seed = int(os.environ.get("SLUICE_TEST_SEED", "1"))
    draw, slowest = random.Random(seed), 0
    print(f"seed {seed}")
    folder = tempfile.mkdtemp(prefix="sluice-kills-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", f"{folder}/text", "--tokens", "4000"],
                       stdout=subprocess.DEVNULL, check=True)
        for number in range(1, times + 1):
            victim, life, took, err = kill_once(f"{folder}/text", draw)
            slowest = max(slowest, took)
            print(f"{number}: rank {victim} killed after {life:.2f} s; all ended {took:.2f} s later")
            print("    " + err.strip().replace("\n", "\n    "), flush=True)
    finally:
        shutil.rmtree(folder)
    print(f"{times} kills, every job named the rank and left nothing; the slowest end took "
          f"{slowest:.1f} s")


if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
main()
