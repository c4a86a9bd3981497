"""Runs of `sluice train` that are killed, stopped and robbed of their disk, against one that is not.

SLUICE_KILLS runs, 20 where it is not set, are killed with signal 9: half of them before one of the
calls that change the file system (by tests/faults/io_faults.c), each another one, evenly over the run;
half at random times. Where there is an mpirun, half of all are jobs of two processes, of which one is killed,
or, at every other random time, both with their mpirun. Each resumes until it has come to its end, and
must have the losses of the undisturbed run. SLUICE_TEST_SEED repeats the random times."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from jobs import children, family, is_running, kill

PROGRAM, RUNS = os.environ["SLUICE_PROGRAM"], int(os.environ.get("SLUICE_KILLS", "20"))
FAULTS = os.path.join(os.path.dirname(PROGRAM), "..", "tests", "libio_faults.so")
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --eval-batch-size 8 --batch-size 4 "
         "--epochs 3 --max-batches 8 --eval-max-batches 5 --optimizer adamw --lr 0.01 --quiet")
LAYOUTS = ["--pp 1", "--pp 2", "--dp 2 --devices cpu,cpu",
           "--dp 2 --zero --devices cpu,cpu"]
PROCESSES = 2
PROCESSES_LAYOUT = "--zero"


class Folder:
    """One run's checkpoints and log."""

    def __init__(self, root, name, layout):
        self.root, self.processes = root, PROCESSES if layout == PROCESSES_LAYOUT else 1
        self.path = os.path.join(root, name)
        os.mkdir(self.path)
        self.log = os.path.join(self.path, "log")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        self.line = [PROGRAM, "train", "--data", os.path.join(root, "text"), *MODEL.split(),
                     *layout.split(), "--log-json", self.log]
        self.saving = ["--save-dir", self.checkpoints, "--save-every", "3", "--keep", "2"]

    def start(self, *more, rank=0, **variables):
        """Of several processes, the variables are rank `rank`'s."""
        line, environment = self.line + list(more), {**os.environ, **variables}
        if self.processes > 1:
            words = [f"{name}={value}" for name, value in variables.items()]
            ranks = [["-n", "1", "env", *(words if r == rank else []), *line, ":"]
                     for r in range(self.processes)]
            line = ["mpirun", *sum(ranks, [])[:-1]]
            environment = self.mpi_environment()
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment)

    def mpi_environment(self):
        """What a killed job leaves behind lies in the test's own folder."""
        temporary = os.path.join(self.root, "mpi")
        os.makedirs(temporary, exist_ok=True)
        return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1", "TMPDIR": temporary,
                "OMPI_MCA_orte_tmpdir_base": temporary,
                "OMPI_MCA_btl_vader_backing_directory": temporary}

    def resume(self, rank=0, **variables):
        return self.start(*self.saving, "--resume", "auto", rank=rank, **variables)

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


def wait_for_end(process):
    """Its outputs. Open MPI's mpirun may lock itself up in its own end (PMIx_server_finalize), most
    of all when a rank was killed: where it stays behind its ranks for 20 s it is killed as well."""
    process.locked_up = False
    seconds, alone = 0, 0
    while True:
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            seconds += 5
            alone = 0 if any(map(is_running, family(process.pid)[1:])) else alone + 5
            if process.args[0] == "mpirun" and alone == 20:
                print("an mpirun that had locked itself up was killed")
                process.locked_up = True
                process.kill()
            elif seconds >= 120:
                raise


def finish(process):
    """Its outputs; it must have succeeded. Of an mpirun that locked itself up only the log can tell."""
    out, err = wait_for_end(process)
    assert process.returncode == 0 or process.locked_up, (process.returncode, out, err)
    return out, err


def finish_unsaved(process):
    """The same, but a run whose last checkpoint could not be saved fails, after all of its results."""
    out, err = wait_for_end(process)
    unsaved = "the run has ended, but its last checkpoint is not saved: " in err
    assert process.locked_up or (process.returncode != 0) == unsaved, (process.returncode, out, err)
    return out, err


def was_killed(process, err):
    """Of a process that has ended. Fails where it had an error that does not come from a kill."""
    if process.returncode == 0:
        return False
    # Mpirun has the status of the rank that was killed, or of one that ended because of that.
    killed = process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert killed or re.search("rank [01] (died|cannot be reached)", err), (process.returncode, err)
    return True


def kill_every_call(folder, expected, rank, first, stride, calls):
    """Kills one run again and again, each time before a later call, until it comes to its end."""
    killed = 0
    for call in range(first, calls + 1, stride):
        process = folder.resume(rank, LD_PRELOAD=FAULTS, SLUICE_IO_KILL=str(call))
        _, err = wait_for_end(process)
        if not was_killed(process, err):
            break
        killed += 1
    finish(folder.resume())
    assert folder.numbers() == expected, folder.path
    return killed


def kill_job(process, chance, whole):
    """Kills a rank of a running job, or, `whole`, mpirun and all ranks, which is then waited for."""
    if process.poll() is not None:
        return
    os.kill(process.pid, signal.SIGSTOP)  # so that it starts no more
    ranks = children(process.pid)
    victims = ranks + [process.pid] if whole or not ranks else [chance.choice(ranks)]
    kill(victims)
    os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: not any(map(is_running, victims)), "the end of what was killed")


def kill_at_random_times(folder, expected, chance, seconds, count):
    killed = 0
    for number in range(count):
        process = folder.resume()
        time.sleep(chance.uniform(0, 1.2 * seconds))
        if folder.processes > 1:
            kill_job(process, chance, whole=number % 2 == 1)
        else:
            process.kill()
        _, err = wait_for_end(process)
        killed += was_killed(process, err)
    finish(folder.resume())
    assert folder.numbers() == expected, folder.path
    return killed


def test_kills(root, reference, chance, layouts, runs):
    """Half of the runs die before a call, half at a random time."""
    killed, turn = 0, 0
    while killed < runs:
        layout = layouts[3 * turn % len(layouts)]
        expected, seconds = reference[layout]
        counted = Folder(root, f"count{turn}", layout)
        rank = turn % counted.processes
        count = os.path.join(root, "calls")
        finish(counted.resume(rank, LD_PRELOAD=FAULTS, SLUICE_IO_COUNT=count))
        assert counted.numbers() == expected
        with open(count, encoding="utf8") as file:
            calls = int(file.read())
        # Another phase each turn, and so many of them that the runs are used up in few turns.
        stride = max(1, calls // max(1, runs // 4))
        killed += kill_every_call(Folder(root, f"call{turn}", layout), expected, rank,
                                  1 + chance.randrange(stride), stride, calls)
        killed += kill_at_random_times(Folder(root, f"time{turn}", layout), expected, chance, seconds,
                                       max(2, runs // 4))
        for name in os.listdir(root):
            if name.startswith(("count", "call", "time")) and os.path.isdir(os.path.join(root, name)):
                shutil.rmtree(os.path.join(root, name))
        turn += 1
    return killed, turn


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
        _, err = finish_unsaved(process)
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


def processes_run(root):
    """Whether there can be jobs of several processes; else says why not."""
    if not shutil.which("mpirun"):
        print("skipped: jobs of two processes, for there is no mpirun")
        return False
    process = Folder(root, "trial", PROCESSES_LAYOUT).start("--max-batches", "1", "--epochs", "1")
    _, err = wait_for_end(process)
    if "sluice_mpi.so was not found" in err:
        print("skipped: jobs of two processes, for sluice was built without MPI")
        return False
    assert process.returncode == 0 or process.locked_up, err
    return True


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
    assert line[:3] == ["sluice", "train", "--resume"] and len(line) == 4, out

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


def test_signal_in_validation(root):
    """A validation that would take half a minute is left at once; resuming begins with it."""
    text = os.path.join(root, "long")
    subprocess.run([PROGRAM, "data", "--synthetic", text, "--tokens", "200000"], check=True,
                   stdout=subprocess.DEVNULL)
    folder = Folder(root, "validation", LAYOUTS[3])
    folder.line += ["--data", text, "--emsize", "256", "--max-batches", "1", "--bptt", "2",
                    "--eval-batch-size", "1", "--eval-max-batches", "0"]
    for more in ([], ["--resume", "auto"]):
        process = folder.start(*folder.saving[:2], *more)
        wait_for(lambda: steps_logged(folder) == 1 and (not more or resumed(folder)), "the step")
        process.send_signal(signal.SIGTERM)
        out, _ = finish(process)
        assert "Stopped after step 1, its checkpoint is saved. To go on:" in out, out
        numbers, end = folder.numbers()
        assert list(numbers) == [("step", 1)] and end is None, (numbers, end)
        assert checkpoints(folder) == ["step-00000001"], checkpoints(folder)
    print("a signal leaves a validation, and resuming begins with it")


def resumed(folder):
    with open(folder.log, encoding="utf8") as file:
        return '"resumed_step":1' in file.read()


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    seed = int(os.environ.get("SLUICE_TEST_SEED", "1"))
    print(f"SLUICE_TEST_SEED={seed}")
    chance = random.Random(seed)
    root = tempfile.mkdtemp(prefix="sluice-interrupted-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", os.path.join(root, "text"), "--tokens",
                        "4000"], check=True, stdout=subprocess.DEVNULL)
        reference = {}
        jobs = [PROCESSES_LAYOUT] if processes_run(root) else []
        for i, layout in enumerate(LAYOUTS + jobs):
            folder = Folder(root, f"reference{i}", layout)
            start = time.monotonic()
            finish(folder.start())
            reference[layout] = folder.numbers(), time.monotonic() - start
            assert reference[layout][0][1], "the undisturbed run has no end"
        test_signals(root)
        test_signal_in_validation(root)
        test_failures(root, reference, chance)
        killed, turns = test_kills(root, reference, chance, LAYOUTS, RUNS // 2 if jobs else RUNS)
        print(f"{killed} runs were killed and resumed, over {turns} turns of layouts")
        if jobs:
            killed, turns = test_kills(root, reference, chance, jobs, RUNS - RUNS // 2)
            print(f"{killed} jobs of {PROCESSES} processes were killed and resumed, over {turns} turns")
    finally:
        kill(family(os.getpid())[1:])
        shutil.rmtree(root)


main()
