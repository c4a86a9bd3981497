"""What may befall a job of several ranks on one machine.

kill -9 of a random rank at a random moment, from the start of the programs, over the meeting of the
ranks, to the middle of the training, in layouts of 4 x 1, 2 x 2 and 1 x 4 replicas and pipeline ranks:
each time the launcher must say which rank was killed, in a pipeline that trains with its stage, and
soon nothing may be left. Suspending the whole job, as `scontrol suspend` and a frozen
control group do, for longer than ranks may be silent: the launcher, mpirun and the ranks wake in any
order, and the training goes on, as it does after Ctrl-Z. A tenth of SLUICE_KILLS are killed, and at least 3;
SLUICE_TEST_SEED draws other ranks, moments and orders.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from jobs import family, find_programs, is_running, kill

PROGRAM = os.environ["SLUICE_PROGRAM"]
LAYOUTS = ((2, 2), (4, 1), (1, 4))  # replicas, pipeline ranks
RANKS = 3  # of the job that is suspended
GRACE_SECONDS = 5
END_SECONDS = 60  # the grace, the launcher's own stages, and a busy machine
LONGEST_LIFE_SECONDS = 1.2
SILENT_SECONDS = 4  # SLI_SILENT_SECONDS in src/comm/mpi/hub.h
NOTICE_SECONDS = 5  # until all have ended, once they train: before, the grace may have to end them
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 4 --bptt 8 --batch-size 12 --eval-batch-size 8 "
         "--epochs 100000 --quiet").split()


class Job:
    """A training that has started; left, nothing of it runs."""

    def __init__(self, folder, ranks=RANKS, layout=()):
        self.ranks, self.log = ranks, f"{folder}/log"
        if os.path.exists(self.log):
            os.remove(self.log)
        self.process = subprocess.Popen(
            [PROGRAM, "launch", "-n", str(ranks), "--grace", str(GRACE_SECONDS), PROGRAM, "train",
             "--data", f"{folder}/text", "--log-json", self.log, *MODEL, *layout],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        self.wait_until(lambda: len(find_programs(self.process.pid)) == self.ranks, "all have started")
        self.family, self.programs = family(self.process.pid), find_programs(self.process.pid)
        return self

    def __exit__(self, *_):
        kill(family(self.process.pid))
        self.process.wait()

    def wait_until(self, condition, what):
        until = time.monotonic() + END_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                kill(family(self.process.pid))
                sys.exit(f"FAILED: waited until {what}: {self.process.communicate()[1]}")
            time.sleep(0.005)

    def steps(self):
        if not os.path.exists(self.log):
            return 0
        with open(self.log, encoding="utf-8") as file:
            return sum('"record":"step"' in line for line in file)

    def wait_for_step(self, number):
        self.wait_until(lambda: self.steps() >= number, f"step {number} is done")

    def send(self, number, draw, pause=0.0):
        """A signal to every process, in any order."""
        draw.shuffle(self.family)
        for process in self.family:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass
            time.sleep(pause)

    def end(self):
        """What it said."""
        err = self.process.communicate(timeout=END_SECONDS)[1]
        until = time.monotonic() + NOTICE_SECONDS
        while any(map(is_running, self.family)):
            if time.monotonic() > until:
                sys.exit(f"FAILED: the job has ended, but not all of its processes: {err}")
            time.sleep(0.005)
        return err


def kill_one(folder, draw, replicas, stages):
    """Kills a rank, of every second job when the training is under way."""
    ranks = replicas * stages
    victim, life = draw.randrange(ranks), draw.uniform(0, LONGEST_LIFE_SECONDS)
    trains = draw.random() < 0.5
    with Job(folder, ranks, ["--dp", str(replicas), "--pp", str(stages)]) as job:
        if trains:
            job.wait_for_step(2)
        time.sleep(life)
        kill([job.programs[victim]])
        killed = time.monotonic()
        err = job.end()
        seconds = time.monotonic() - killed
        print(f"{replicas} x {stages}: rank {victim} killed after {life:.2f} s; all ended {seconds:.2f} s later\n"
              f"    {err.strip()}", flush=True)
    last = err.splitlines()[-1]
    named = f"rank {victim} on {socket.gethostname()}"
    if trains and stages > 1:
        named += f", stage {victim % stages} "
    if job.process.returncode != 137 or named not in last:
        sys.exit(f"FAILED: status {job.process.returncode} after rank {victim} was killed: {err}")
    if trains and seconds > NOTICE_SECONDS:
        sys.exit(f"FAILED: all have ended only {seconds:.1f} s after the death: {err}")


def suspend(folder, draw):
    with Job(folder) as job:
        job.wait_for_step(10)
        job.send(signal.SIGSTOP, draw)
        time.sleep(SILENT_SECONDS + 2.5)
        job.send(signal.SIGCONT, draw, 0.2)  # each wakes a little after another one
        job.wait_for_step(job.steps() + 1)
        time.sleep(SILENT_SECONDS + 1)  # who has been given up shows by then
        job.wait_for_step(job.steps() + 1)
        job.process.send_signal(signal.SIGTSTP)  # Ctrl-Z
        time.sleep(SILENT_SECONDS + 2)
        steps = job.steps()
        time.sleep(0.5)
        if job.steps() != steps:
            sys.exit("FAILED: the programs of a launcher that is suspended train on")
        job.process.send_signal(signal.SIGCONT)
        job.wait_for_step(steps + 1)
        time.sleep(SILENT_SECONDS + 1)
        job.wait_for_step(job.steps() + 1)
        job.process.send_signal(signal.SIGTERM)
        err = job.end()
    for words in ("cannot be reached", "was lost", "died", "within"):
        if words in err:
            sys.exit(f"FAILED: {err}")
    print("a job that was suspended twice went on")


def main():
    kills = max(len(LAYOUTS), int(os.environ.get("SLUICE_KILLS", "0")) // 10)
    seed = int(os.environ.get("SLUICE_TEST_SEED", "1"))
    draw = random.Random(seed)
    print(f"seed {seed}")
    folder = tempfile.mkdtemp(prefix="sluice-jobs-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", f"{folder}/text", "--tokens", "20000"],
                       stdout=subprocess.DEVNULL, check=True)
        for i in range(kills):
            kill_one(folder, draw, *LAYOUTS[i % len(LAYOUTS)])
        suspend(folder, draw)
    finally:
        shutil.rmtree(folder)


if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
main()
