"""Training jobs of which a rank is killed, or a host lost and found, and that the launcher starts again:
test_restarts.py.

The run log is a named pipe of little room, which holds the job up where it is no longer read: so a
rank dies in the middle of the run, however busy the machine. The job ends with the losses and the weights
of one that was left alone, with as many ranks as before, with fewer, with more, and in another layout.
"""

import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

from jobs import family, find_programs, is_running, kill, read

PROGRAM = os.environ["SLUICE_PROGRAM"]
RANKS = 3
SAVING = ("--zero", "--save-dir", "saved", "--save-every", "5")
FIRST_DEATH, SECOND_DEATH, THIRD_DEATH = 12, 70, 80  # steps
PATIENCE_SECONDS = 60
PAUSE_SECONDS = 0.25  # for a record
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 3 --bptt 8 --batch-size 4 --chunks 2 --eval-batch-size 8 "
         "--epochs 2 --max-batches 60 --eval-max-batches 5 --optimizer adamw --lr 0.003")
LAYOUT = ("--dp", "2", "--pp", "2", "--shards", str(RANKS), *SAVING)  # of four processes
F_SETPIPE_SZ = 1031


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
            found["end"] = [record[k] for k in ("steps", "best_valid_loss", "test_loss", "weights")]
    return found


def run(folder, name, options, deaths=(), ranks=RANKS, training=SAVING):
    """The job's records, with the checksum of its weights in the last one, and what it wrote to its
    outputs. `deaths`: steps and ranks, or functions that are called with the job's folder and lead to
    another attempt, in order."""
    deaths, pause = list(deaths), 0
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    log = Log(os.path.join(path, "log"))
    command = [PROGRAM, "launch", "-n", str(ranks), "--grace", "20", *options, PROGRAM, "train",
               "--data", f"{folder}/text", *MODEL.split(), "--log-json", "log",
               "--save", "weights", *training]
    with open(os.path.join(path, "out"), "w", encoding="utf-8") as out, \
            open(os.path.join(path, "err"), "w", encoding="utf-8") as err, \
            subprocess.Popen(command, cwd=path, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as job:
        try:
            records = []
            for record in log.records(job):
                records.append(record)
                if deaths and not pause and record["record"] == "step" and record["step"] >= deaths[0][0]:
                    what = deaths.pop(0)[1]
                    if callable(what):
                        what(path)
                        pause = PAUSE_SECONDS  # the job's end is later than the steps that it has left
                    else:
                        kill([find_programs(job.pid)[what]])
                elif record["record"] == "run":
                    pause = 0
                time.sleep(pause)
        finally:
            kill(family(job.pid))
    os.close(log.pipe)
    out, err = read(os.path.join(path, "out")), read(os.path.join(path, "err"))
    if job.returncode != 0:
        sys.exit(f"FAILED: status {job.returncode}: {err}")
    with open(os.path.join(path, "weights", "model.safetensors"), "rb") as weights:
        records[-1]["weights"] = hashlib.sha256(weights.read()).hexdigest()
    return records, out, err


def check_same(expected, got):
    if expected.keys() != got.keys():
        sys.exit(f"FAILED: {sorted(map(str, expected.keys() ^ got.keys()))} only in one of the runs")
    for key, values in expected.items():
        if values != got[key]:
            sys.exit(f"FAILED: {key} is {got[key]}, not {values}")


def fail_unless(true, what, shown):
    if not true:
        sys.exit(f"FAILED: {what}: {shown}")


def attempts(records):
    """The records of each attempt."""
    begins = [i for i, record in enumerate(records) if record["record"] == "run"]
    return [records[begin:end] for begin, end in zip(begins, begins[1:] + [len(records)])]


def check_restart(number, before, after, out):
    """What attempt `number`, from 1, says and logs of the one before it."""
    begin, done = after[0], max(r["step"] for r in before if r["record"] == "step")
    lost = done - begin["resumed_step"]
    fail_unless(begin["lost_steps"] in (lost, lost + 1),  # a step may be done and not be logged
                f"after step {done} too much or too little was lost", begin)
    said = [f"Restart {number}: resuming after step {begin['resumed_step']} from "]
    if begin["lost_steps"]:
        said.append(f"Repeating {begin['lost_steps']} step")
    for text in said:
        fail_unless(text in out, f"\"{text}\" is not said", out)


def check_job(folder, name, expected, deaths, sizes):
    """A job with these deaths, whose attempts have these numbers of ranks."""
    elastic = len(set(sizes)) > 1
    options = ["--max-restarts", str(len(deaths))] + elastic * ["--elastic", f"1:{RANKS}"]
    records, out, err = run(folder, name, options, deaths)
    of_attempts = attempts(records)
    fail_unless([a[0]["replicas"] for a in of_attempts] == sizes, "the attempts have other sizes", err)
    fail_unless(all(a[0]["shards"] == RANKS for a in of_attempts), "the text is cut anew", records)
    for i, (_, victim) in enumerate(deaths):
        check_restart(i + 1, of_attempts[i], of_attempts[i + 1], out)
        plural = "" if sizes[i + 1] == 1 else "es"
        again = f"; starting again with {sizes[i + 1]} process{plural}" if elastic else "; starting again"
        said = [line for line in err.splitlines() if f" attempt {i + 1} of {len(sizes)}: " in line]
        fail_unless(len(said) == 1 and f": rank {victim} on " in said[0] and
                    said[0].endswith(f" was killed by signal 9 (Killed){again}"),
                    "the launcher does not say what happened", err)
    found = re.search(rf"{len(deaths)} failures? in [0-9.]+ s: .* repeating (\d+) steps?\), [0-9.]+% of", err)
    fail_unless(found, "what was lost is not said", err)
    lost = sum(a[0]["lost_steps"] for a in of_attempts[1:])
    fail_unless(lost - len(deaths) <= int(found[1]) <= lost, "too many or too few steps were lost", err)
    check_same(expected, numbers(records))
    print(f"killed {deaths} (step, rank): attempts with {sizes} ranks ended "
          "with the same bits", flush=True)


def check_nothing_saved(folder, expected):
    """A rank that dies before there is a checkpoint: the run starts from the beginning, its text cut as before."""
    records, out, _ = run(folder, "unsaved", ["--max-restarts", "1", "--elastic", f"1:{RANKS}"],
                          [(FIRST_DEATH, 1)], training=("--save-dir", "saved", "--save-every", "1000"))
    fail_unless("Restart 1: there is no checkpoint yet, the run starts from the beginning" in out, "not said", out)
    check_same(expected, numbers(attempts(records)[1]))
    print("a job without a checkpoint began anew", flush=True)


def check_layouts(folder, expected):
    """Two replicas of two ranks, of which three and then two processes are left."""
    deaths = [(FIRST_DEATH, 3), (SECOND_DEATH, 1)]
    records, out, err = run(folder, "layouts", ["--max-restarts", "2", "--elastic", "1:4"], deaths, 4, LAYOUT)
    of_attempts = attempts(records)
    found = [(a[0]["replicas"], len(a[0]["partition"])) for a in of_attempts]
    fail_unless(found == [(2, 2), (1, 3), (1, 2)], f"the layouts are {found}", err)
    for i in range(2):
        check_restart(i + 1, of_attempts[i], of_attempts[i + 1], out)
    check_same(expected, numbers(records))
    print("four processes, then three, then two, each in another layout, ended with the same bits", flush=True)


def lose_node2(path):
    """Kills mpirun's daemon there, and all that it has started; what the agent starts then fails."""
    write(f"{path}/lost.node2", "")
    name = f"OMPI_COMM_WORLD_RANK={RANKS - 1}"
    ranks = [number for number in map(int, filter(str.isdigit, os.listdir("/proc")))
             if is_running(number) and name in read(f"/proc/{number}/environ").split("\0")
             and os.path.realpath(f"/proc/{number}/cwd") == os.path.realpath(path)]
    parents = {int(read(f"/proc/{number}/stat").rpartition(")")[2].split()[1]) for number in ranks}
    fail_unless(len(parents - set(ranks)) == 1, "the daemon on node2 is not found", (ranks, parents))
    kill([*(parents - set(ranks)), *ranks])


def write(path, text, mode=0o600):
    with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text)


def check_hosts(folder, expected):
    """A job that begins without one of its hosts grows when it answers, loses it, and gets it back. The
    host is one that the agent alone knows."""
    path = f"{folder}/hosts"
    os.mkdir(path)
    write(f"{path}/list", f"localhost slots={RANKS - 1}\nnode2 slots=1\n")
    write(f"{path}/agent", f'#!/bin/sh\n[ ! -e {path}/lost.$1 ] || exit 1\nshift\nexec sh -c "$*"\n', 0o700)
    write(f"{path}/lost.node2", "")

    def find_node2(path):
        os.remove(f"{path}/lost.node2")

    options = ["--max-restarts", "1", "--elastic", f"1:{RANKS}", "--hosts", f"{path}/list", "--launch-agent",
               f"{path}/agent", "-x", "OMPI_MCA_btl=tcp,self", "-x", "OMPI_MCA_btl_tcp_if_include=lo"]
    happens = [(FIRST_DEATH, find_node2), (SECOND_DEATH, lose_node2), (THIRD_DEATH, find_node2)]
    records, out, err = run(folder, "hosts", options, happens, training=(*SAVING, "--shards", str(RANKS)))
    of_attempts = attempts(records)
    sizes = [a[0]["replicas"] for a in of_attempts]
    fail_unless(sizes == [RANKS - 1, RANKS, RANKS - 1, RANKS], f"the attempts have {sizes} ranks", err)
    for i in range(3):
        check_restart(i + 1, of_attempts[i], of_attempts[i + 1], out)
    fail_unless(all(of_attempts[i][0]["lost_steps"] == 0 for i in (1, 3)), "growing has lost steps", records)
    said = f"sluice: host node2 answers again; starting again with {RANKS} processes"
    fail_unless(err.count(said) == 2, "it is not said that the job grows", err)
    check_same(expected, numbers(records))
    print("a job grew, lost a host and grew again, and ended with the same bits", flush=True)


def main():
    folder = tempfile.mkdtemp(prefix="sluice-restarts-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", f"{folder}/text", "--tokens", "20000"],
                       stdout=subprocess.DEVNULL, check=True)
        expected = numbers(run(folder, "alone", [])[0])
        fail_unless(expected["end"][1] == expected["valid", 2][0],
                    "the best weights, whose checksum is compared, are not the last ones", expected)
        for victim in (0, 1):
            deaths = [(FIRST_DEATH, victim)]
            check_job(folder, f"same{victim}", expected, deaths, [3, 3])
            check_job(folder, f"fewer{victim}", expected, deaths, [3, 2])
        deaths = [(FIRST_DEATH, 2), (SECOND_DEATH, 1)]
        check_job(folder, "one", expected, deaths, [3, 2, 1])
        check_nothing_saved(folder, expected)
        check_layouts(folder, expected)
        check_hosts(folder, expected)
    finally:
        shutil.rmtree(folder)


if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
main()
