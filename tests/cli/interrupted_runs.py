#!/usr/bin/python3
"""Runs of `sluice train` that are killed, stopped and robbed of their disk, against one that is not.

Usage: interrupted_runs.py PROGRAM FAULTS RUNS

FAULTS is the library of tests/faults/io_faults.c. RUNS runs are killed with signal 9: half of them
before one of the calls that change the file system, each another one, evenly over the run; half at
random times. Each resumes until it has come to its end, and must have the losses of the undisturbed
run. SLUICE_TEST_SEED repeats the random times."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, FAULTS, RUNS = sys.argv[1], sys.argv[2], int(sys.argv[3])
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --eval-batch-size 8 --batch-size 4 "
         "--epochs 3 --max-batches 8 --eval-max-batches 5 --optimizer adamw --lr 0.01 --quiet")
LAYOUTS = ["--pp 1", "--pp 2", "--dp 2 --devices cpu:0-0,cpu:0-0",
           "--dp 2 --zero --devices cpu:0-0,cpu:0-0"]


class Folder:
    """One run's checkpoints and log."""

    def __init__(self, root, name, layout):
        self.path = os.path.join(root, name)
        os.mkdir(self.path)
        self.log = os.path.join(self.path, "log")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        self.line = [PROGRAM, "train", "--data", os.path.join(root, "text"), *MODEL.split(),
                     *layout.split(), "--log-json", self.log]
        self.saving = ["--save-dir", self.checkpoints, "--save-every", "3", "--keep", "2"]

    def start(self, *more, **variables):
        return subprocess.Popen(self.line + list(more), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **variables})

    def resume(self, **variables):
        return self.start(*self.saving, "--resume", "auto", **variables)

    def numbers(self):
        """What decides a run, of each step and evaluation the last record."""
        found, end = {}, None
        with open(self.log, encoding="utf8") as file:
            for line in file:
                record = json.loads(line)
                if record["record"] == "step":
                    found["step", record["step"]] = [record[k] for k in ("loss", "grad_norm", "lr")]
                elif record["record"] == "eval":
                    found[record["split"], record["epoch"]] = [record["loss"], record["best"]]
                elif record["record"] == "end":
                    end = [record[k] for k in ("steps", "best_valid_loss", "test_loss")]
        return found, end


def finish(process, status=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, (process.returncode, out, err)
    return out, err


def kill_every_call(folder, expected, first, stride, calls):
    """Kills one run again and again, each time before a later call, until it comes to its end."""
    killed = 0
    for call in range(first, calls + 1, stride):
        process = folder.resume(LD_PRELOAD=FAULTS, SLUICE_IO_KILL=str(call))
        process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.returncode
        killed += 1
    finish(folder.resume())
    assert folder.numbers() == expected, folder.path
    return killed


def test_kills(root, reference, chance):
    """Half of the runs die before a call, half at a random time."""
    killed, turn = 0, 0
    while killed < RUNS:
        layout = LAYOUTS[3 * turn % len(LAYOUTS)]
        expected, seconds = reference[layout]
        counted = Folder(root, f"count{turn}", layout)
        count = os.path.join(root, "calls")
        finish(counted.resume(LD_PRELOAD=FAULTS, SLUICE_IO_COUNT=count))
        assert counted.numbers() == expected
        with open(count, encoding="utf8") as file:
            calls = int(file.read())
        # Another phase each turn, and so many of them that the runs are used up in few turns.
        stride = max(1, calls // max(1, RUNS // 4))
        killed += kill_every_call(Folder(root, f"call{turn}", layout), expected,
                                  1 + chance.randrange(stride), stride, calls)
        folder = Folder(root, f"time{turn}", layout)
        for _ in range(max(1, RUNS // 4)):
            process = folder.resume()
            time.sleep(chance.uniform(0, 1.2 * seconds))
            process.kill()
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
        finish(folder.resume())
        assert folder.numbers() == expected, folder.path
        for name in os.listdir(root):
            if name.startswith(("count", "call", "time")) and os.path.isdir(os.path.join(root, name)):
                shutil.rmtree(os.path.join(root, name))
        turn += 1
    print(f"{killed} runs were killed and resumed, over {turn} turns of layouts")


def test_failures(root, reference, chance):
    """Wherever a call fails for want of room, the run goes on, and what was saved stays whole."""
    failed = 0
    for turn in range(max(6, RUNS // 8)):
        layout = LAYOUTS[3 * (turn % 2)]
        expected, _ = reference[layout]
        folder = Folder(root, f"full{turn}", layout)
        # Not the first calls, which find out before training that nothing can be written.
        process = folder.start(*folder.saving, LD_PRELOAD=FAULTS,
                               SLUICE_IO_FAIL=str(chance.randint(12, 120)),
                               SLUICE_IO_FAILURES=str(chance.choice([1, 1, 5, 1000])))
        _, err = finish(process)
        failed += "is not saved, the run goes on: " in err
        assert folder.numbers() == expected, folder.path
        for name in os.listdir(folder.checkpoints):
            if name.startswith("step-"):
                path = os.path.join(folder.checkpoints, name)
                assert os.path.exists(os.path.join(path, "state.json")), path
        finish(folder.resume())
        assert folder.numbers() == expected, folder.path
        shutil.rmtree(folder.path)
    assert failed > 0
    print(f"{failed} runs went on without a checkpoint for want of room")


def wait_for(condition, what):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"waited 30 s for {what}")


def steps_logged(folder):
    try:
        with open(folder.log, encoding="utf8") as file:
            return sum('"record":"step"' in line for line in file)
    except FileNotFoundError:
        return 0


LONG = ["--epochs", "1000", "--max-batches", "100"]


def checkpoints(folder):
    return sorted(n for n in os.listdir(folder.checkpoints) if n.startswith("step-"))


def test_signals(root):
    folder = Folder(root, "signals", LAYOUTS[1])
    process = folder.start(*folder.saving[:2], *LONG)
    wait_for(lambda: steps_logged(folder) > 2, "steps")
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: checkpoints(folder), "a checkpoint")
    process.send_signal(signal.SIGTERM)
    out, err = finish(process)
    assert err == "", err
    said = [line for line in out.splitlines() if line.startswith("Stopped after step ")]
    assert len(said) == 1 and "test loss" not in out, out
    assert int(said[0].split()[3].rstrip(",")) == steps_logged(folder), out
    line = out.splitlines()[-1].split()
    assert line[:2] == ["sluice", "train"] and line[-2:] == ["--resume", "auto"], out

    # What it says does go on, and SIGINT stops it as well.
    before = steps_logged(folder)
    process = subprocess.Popen([PROGRAM, *line[1:]], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: steps_logged(folder) > before + 2, "more steps")
    process.send_signal(signal.SIGINT)
    finish(process)

    # The second signal does not wait: the program cannot save, and yet it ends.
    process = folder.start(*folder.saving[:2], *LONG, LD_PRELOAD=FAULTS, SLUICE_IO_FAIL="1",
                           SLUICE_IO_FAILURES="0")
    wait_for(lambda: steps_logged(folder) > 2, "steps")
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGINT), process.returncode
    print("signals stop, save and end a run")


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "1"))
    print(f"SLUICE_TEST_SEED={seed}")
    chance = random.Random(seed)
    root = tempfile.mkdtemp(prefix="sluice-interrupted-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", os.path.join(root, "text"), "--tokens",
                        "4000"], check=True, stdout=subprocess.DEVNULL)
        reference = {}
        for i, layout in enumerate(LAYOUTS):
            folder = Folder(root, f"reference{i}", layout)
            start = time.monotonic()
            finish(folder.start())
            reference[layout] = folder.numbers(), time.monotonic() - start
            assert reference[layout][0][1], "the undisturbed run has no end"
        test_signals(root)
        test_failures(root, reference, chance)
        test_kills(root, reference, chance)
    finally:
        shutil.rmtree(root)


main()
