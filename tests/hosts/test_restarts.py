"""Training jobs of which a rank is killed, and that the launcher starts again: test_restarts.py.

The run log is a named pipe of little room, which holds the job up where it is no longer read: so the
rank dies in the middle of the run, however busy the machine. With as many ranks as before the job
ends with the bits of one that was left alone, with fewer ranks with its losses to rounding.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["SLUICE_PROGRAM"]
RANKS = 3
SAVE_EVERY = 5
DEATH_STEP = 12
PATIENCE_SECONDS = 60
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4 --eval-batch-size 8 "
         "--epochs 2 --max-batches 60 --eval-max-batches 5 --optimizer adamw --lr 0.003 --zero")
F_SETPIPE_SZ = 1031


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def family(process):
    """The process and all that it has started."""
    try:
        children = [int(number) for task in os.listdir(f"/proc/{process}/task")
                    for number in read(f"/proc/{process}/task/{task}/children").split()]
    except FileNotFoundError:
        return []
    return [process] + [one for child in children for one in family(child)]


def find_rank(launcher, rank):
    for process in family(launcher):
        command = read(f"/proc/{process}/cmdline").split("\0")
        if command[1:2] == ["train"] and f"RANK={rank}" in read(f"/proc/{process}/environ").split("\0"):
            return process
    sys.exit(f"FAILED: there is no rank {rank}")


class Log:
    """Lines from a named pipe, as a run log is written to it."""

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # a reader that never sees an end
        fcntl.fcntl(self.pipe, F_SETPIPE_SZ, 4096)
        self.rest = b""

    def records(self, job):
        """Until the job has ended, and nothing is left."""
        last = time.monotonic()
        while True:
            ended = job.poll() is not None
            ready, _, _ = select.select([self.pipe], [], [], 0 if ended else 0.05)
            if ready:
                last = time.monotonic()
                *lines, self.rest = (self.rest + os.read(self.pipe, 4096)).split(b"\n")
                yield from map(json.loads, lines)
            elif ended:
                return
            elif time.monotonic() - last > PATIENCE_SECONDS:
                sys.exit(f"FAILED: nothing was logged for {PATIENCE_SECONDS} s")


def numbers(records):
    """What decides a run, of each step and evaluation the last record."""
    found = {}
    for record in records:
        if record["record"] == "step":
            found["step", record["step"]] = [record[k] for k in ("loss", "grad_norm", "lr")]
        elif record["record"] == "eval":
            found[record["split"], record["epoch"]] = [record["loss"]]
        elif record["record"] == "end":
            found["end"] = [record[k] for k in ("steps", "best_valid_loss", "test_loss")]
    return found


def run(folder, name, options, victim=None):
    """The job's records, and what it wrote to its outputs."""
    path = os.path.join(folder, name)
    os.mkdir(path)
    log = Log(os.path.join(path, "log"))
    command = [PROGRAM, "launch", "-n", str(RANKS), "--grace", "20", *options, PROGRAM, "train",
               "--data", f"{folder}/text", *MODEL.split(), "--log-json", os.path.join(path, "log"),
               "--save-dir", os.path.join(path, "saved"), "--save-every", str(SAVE_EVERY)]
    with open(os.path.join(path, "out"), "w", encoding="utf-8") as out, \
            open(os.path.join(path, "err"), "w", encoding="utf-8") as err, \
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as job:
        try:
            records = []
            for record in log.records(job):
                records.append(record)
                if victim is not None and record.get("step") == DEATH_STEP:
                    os.kill(find_rank(job.pid, victim), 9)
                    victim = None
        finally:
            for process in family(job.pid):
                os.kill(process, 9)
    os.close(log.pipe)
    out, err = read(os.path.join(path, "out")), read(os.path.join(path, "err"))
    if job.returncode != 0:
        sys.exit(f"FAILED: status {job.returncode}: {err}")
    return records, out, err


def check_same(expected, got, tolerance):
    if expected.keys() != got.keys():
        sys.exit(f"FAILED: {sorted(map(str, expected.keys() ^ got.keys()))} only in one of the runs")
    for key, values in expected.items():
        for one, other in zip(values, got[key]):
            if abs(one - other) > tolerance * abs(one):
                sys.exit(f"FAILED: {key} is {got[key]}, not {values}")


def check_restart(records, out, err, victim, ranks, words):
    """What the second attempt says and logs of the first."""
    begins = [i for i, record in enumerate(records) if record["record"] == "run"]
    if len(begins) != 2:
        sys.exit(f"FAILED: {len(begins)} attempts: {err}")
    again = records[begins[1]]
    done = max(record["step"] for record in records[:begins[1]] if record["record"] == "step")
    # A step may be done and not be logged.
    if again["replicas"] != ranks or again["shares"] != RANKS or again["resumed_step"] < SAVE_EVERY \
            or again["lost_steps"] - (done - again["resumed_step"]) not in (0, 1):
        sys.exit(f"FAILED: after step {done} the second attempt is {again}")
    cause = f"attempt 1 of 3: rank {victim} on "
    if cause not in err or f" was killed by signal 9 (Killed); starting again{words}\n" not in err:
        sys.exit(f"FAILED: the launcher does not say what happened: {err}")
    said = [f"Restart 1: resuming after step {again['resumed_step']} from "]
    if again["lost_steps"]:
        said.append(f"Lost since the checkpoint, and done again: {again['lost_steps']} step")
    for text in said:
        if text not in out:
            sys.exit(f"FAILED: \"{text}\" is not in: {out}")


def main():
    folder = tempfile.mkdtemp(prefix="sluice-restarts-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", f"{folder}/text", "--tokens", "20000"],
                       stdout=subprocess.DEVNULL, check=True)
        expected = numbers(run(folder, "alone", [])[0])
        for victim in (0, 1):
            records, out, err = run(folder, f"same{victim}", ["--max-restarts", "2"], victim)
            check_restart(records, out, err, victim, RANKS, "")
            check_same(expected, numbers(records), 0)
            print(f"rank {victim} was killed: {RANKS} ranks ended with the same bits")
            records, out, err = run(folder, f"fewer{victim}",
                                    ["--max-restarts", "2", "--elastic", f"1:{RANKS}"], victim)
            check_restart(records, out, err, victim, RANKS - 1,
                          f" with {RANKS - 1} processes")
            check_same(expected, numbers(records), 1e-3)
            print(f"rank {victim} was killed: {RANKS - 1} ranks ended with the same losses")
    finally:
        shutil.rmtree(folder)


if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
main()
