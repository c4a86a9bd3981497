"""Suspending a whole job, as Ctrl-Z, `scontrol suspend` and a frozen control group do, for longer than
ranks may be silent: the launcher, mpirun and the ranks wake in any order, and the training goes on.
SLUICE_TEST_SEED draws other orders than the usual ones.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from jobs import family, find_programs, kill

PROGRAM = os.environ["SLUICE_PROGRAM"]
RANKS = 3
SILENT_SECONDS = 4  # SLI_SILENT_SECONDS in src/comm/mpi/hub.h
END_SECONDS = 60


def steps(log):
    if not os.path.exists(log):
        return 0
    with open(log, encoding="utf-8") as file:
        return sum('"record":"step"' in line.replace(" ", "") for line in file)


def wait_for_step(job, log, number):
    until = time.monotonic() + END_SECONDS
    while steps(log) < number:
        if job.poll() is not None or time.monotonic() > until:
            job.kill()
            sys.exit(f"FAILED: {steps(log)} steps, not {number}: {job.communicate()[1]}")
        time.sleep(0.05)


def send(processes, number, pause):
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
        time.sleep(pause)


def suspend(job, draw):
    """For longer than anyone may be silent; then each wakes a little after another one."""
    processes = family(job.pid)
    draw.shuffle(processes)
    send(processes, signal.SIGSTOP, 0)
    time.sleep(SILENT_SECONDS + 2.5)
    draw.shuffle(processes)
    send(processes, signal.SIGCONT, 0.2)


def check(folder, draw):
    log = f"{folder}/log"
    command = [PROGRAM, "launch", "-n", str(RANKS), PROGRAM, "train", "--data", f"{folder}/text",
               "--log-json", log, "--epochs", "100000", "--quiet"]
    command += ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --batch-size 12 "
                "--eval-batch-size 8").split()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as job:
        try:
            wait_for_step(job, log, 10)
            if len(find_programs(job.pid)) != RANKS:
                sys.exit("FAILED: the ranks were not found")
            for _ in range(2):
                suspend(job, draw)
                wait_for_step(job, log, steps(log) + 1)
                time.sleep(SILENT_SECONDS + 1)  # who has been given up shows by then
                wait_for_step(job, log, steps(log) + 1)
            job.send_signal(signal.SIGTERM)
            _, err = job.communicate(timeout=END_SECONDS)
        finally:
            kill(family(job.pid))
    for words in ("cannot be reached", "was lost", "died", "within"):
        if words in err:
            sys.exit(f"FAILED: {err}")


def main():
    folder = tempfile.mkdtemp(prefix="sluice-suspended-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", f"{folder}/text", "--tokens", "20000"],
                       stdout=subprocess.DEVNULL, check=True)
        check(folder, random.Random(int(os.environ.get("SLUICE_TEST_SEED", "1"))))
    finally:
        shutil.rmtree(folder)
    print("a job that was suspended twice went on")


if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
main()
