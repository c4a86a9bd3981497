"""What signals and lost readers do to a training, alone and under `sluice launch`: test_signals.py.

A training that has somewhere to save to stops with what it has saved, which must be whole: another
run goes on from it. Disks are made slow by tests/faults/io_faults.c, so that a save takes far longer
than the launcher's grace.
"""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from jobs import family, find_programs, is_running, kill

PROGRAM = os.environ["SLUICE_PROGRAM"]
FAULTS = os.path.join(os.path.dirname(PROGRAM), "..", "tests", "libio_faults.so")
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --batch-size 4 --eval-batch-size 8 "
         "--optimizer adamw --lr 0.003 --eval-max-batches 5").split()
PATIENCE_SECONDS = 100
GRACE_SECONDS = 1
SLOW_SAVE_SECONDS = 4  # of one checkpoint, at least


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        check(time.monotonic() < until, f"waited {PATIENCE_SECONDS} s for {what}")
        time.sleep(0.01)


class Run:
    """A training in a folder of its own. Whatever it has started is killed when it is left."""

    def __init__(self, root, name, *options, launch=(), ignored=(), epochs=100000, steps=50, out=None,
                 err=subprocess.PIPE, **variables):
        self.folder = os.path.join(root, name)
        os.makedirs(self.folder, exist_ok=True)
        self.log, self.saved = self.path("log"), self.path("saved")
        self.weights = self.path("m")
        names = {"SAVED": self.saved, "WEIGHTS": self.weights}
        log = [] if "--log-json" in options else ["--log-json", self.log]
        command = [PROGRAM, "train", "--data", os.path.join(root, "text"), *MODEL, "--epochs",
                   str(epochs), "--max-batches", str(steps), *log,
                   *(names.get(word, word) for word in options)]
        if launch:
            command = [PROGRAM, "launch", *launch, *command]
        self.out = open(self.path("out"), "a+", encoding="utf-8") if out is None else out
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=err, text=True,
            env={**os.environ, **variables},
            preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
                                for number in (signal.SIGINT, signal.SIGHUP)])

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            kill(family(self.process.pid))
            self.process.wait()

    def records(self, kind):
        try:
            with open(self.log, encoding="utf-8") as file:
                return [json.loads(line) for line in file
                        if line.endswith("\n") and f'"record":"{kind}"' in line]
        except FileNotFoundError:
            return []

    def wait_for_steps(self, count):
        wait_for(lambda: len(self.records("step")) >= count, f"step {count}")

    def wait_for_save(self):
        """Until a checkpoint has its temporary name."""
        wait_for(lambda: os.path.isdir(self.saved) and
                 any("step-" in name for name in os.listdir(self.saved)), "a save to begin")

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        """The exit status, and what it said on both outputs."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            sys.exit(f"FAILED: still running after {PATIENCE_SECONDS} s")
        if hasattr(self.out, "seek"):
            self.out.seek(0)
            out = self.out.read()
        return self.process.returncode, out, err


def check_goes_on(root, name, run, *options, launch=()):
    """From the run's last step, which its checkpoint must be of."""
    last = run.records("step")[-1]["step"] if run.records("step") else None
    with Run(root, name, "--save-dir", "SAVED", "--resume", "auto", *options, "--log-json",
             run.path("resumed"), launch=launch, steps=50, epochs=last // 50 + 1 if last else 1) as more:
        status, out, err = more.end()
        check(status == 0 and "test loss" in out, f"{name} goes on: {status} {out} {err}")
        if last is not None:
            check(f"Resuming after step {last} from" in out, f"{name} goes on after {last}: {out}")


def check_stopped(root, name, status, said, run, *options, launch=()):
    check(status == 0, f"{name}: status {status}, {said}")
    check(said.count("Stopped after step ") == 1, f"{name} said: {said}")
    check_goes_on(root, name, run, *options, launch=launch)


def test_lost_readers(root):
    saving = ("--save-dir", "SAVED", "--log-interval", "1")
    with Run(root, "head", *saving, out=subprocess.PIPE) as run:
        run.process.stdout.readline()
        run.process.stdout.close()
        run.process.stdout = None
        status, _, err = run.end()
        check_stopped(root, "head", status, err, run)
    with Run(root, "both", *saving, out=subprocess.PIPE, err=subprocess.STDOUT) as run:
        run.process.stdout.readline()
        run.process.stdout.close()
        run.process.stdout = None
        status, _, _ = run.end()
        check(status == 0, f"both outputs lost: status {status}")
        check_goes_on(root, "both", run)
    os.makedirs(os.path.join(root, "fifo"))
    fifo = os.path.join(root, "fifo", "pipe")
    os.mkfifo(fifo)
    with Run(root, "fifo", *saving, "--log-json", fifo) as run:
        with open(fifo, encoding="utf-8") as reader:
            reader.readline()
        status, out, err = run.end()
        check_stopped(root, "fifo", status, out, run)
        check("goes on" not in err and "the run log cannot be written: Broken pipe" in err, err)
    with Run(root, "none", "--log-interval", "1", out=subprocess.PIPE) as run:
        run.process.stdout.readline()
        run.process.stdout.close()
        run.process.stdout = None
        status, _, err = run.end()
        check(status == -signal.SIGPIPE and "nothing was saved: --save DIR" in err, f"{status} {err}")
    print("who loses its reader stops with a checkpoint")


def test_lost_terminal(root):
    with Run(root, "hup", "--save-dir", "SAVED", LD_PRELOAD=FAULTS, SLUICE_IO_DELAY="1",
             SLUICE_IO_ONLY=os.path.join(root, "hup", "saved")) as run:
        run.wait_for_steps(2)
        run.send(signal.SIGHUP)  # the kernel's
        run.wait_for_save()
        run.send(signal.SIGHUP)  # the shell's, in the middle of the save
        status, out, _ = run.end()
        check_stopped(root, "hup", status, out, run)
    for launch in ((), ("-n", "2")):
        name = "ignored" + "-launch" * bool(launch)
        if launch and not shutil.which("mpirun"):
            print("skipped: a launched job that ignores a signal, for there is no mpirun")
            break
        with Run(root, name, "--save-dir", "SAVED", launch=launch, ignored=(signal.SIGHUP,)) as run:
            run.wait_for_steps(2)
            for _ in range(3):
                run.send(signal.SIGHUP)
            run.wait_for_steps(len(run.records("step")) + 100)
            run.send(signal.SIGTERM)
            status, out, _ = run.end()
            check_stopped(root, name, status, out, run, launch=launch)
    print("a lost terminal stops it, but not where SIGHUP was ignored at the start")


def test_weights(root):
    """Without checkpoints, --save has what there is."""
    with Run(root, "first", "--save", "WEIGHTS", steps=100000) as run:
        run.wait_for_steps(2)
        run.send(signal.SIGINT)
        status, out, _ = run.end()
        last = run.records("step")[-1]["step"]
        check(status == 0 and f"Stopped after step {last}: {run.weights} has the weights of that step, "
              "which were not validated. A run with --save-dir DIR can go on" in out, f"{status} {out}")
        check_loads(root, run)
    with Run(root, "later", "--save", "WEIGHTS", steps=4) as run:
        wait_for(lambda: run.records("eval"), "a validation")
        run.send(signal.SIGINT)
        status, out, _ = run.end()
        best = [e["epoch"] for e in run.records("eval") if e["best"]][-1] * 4
        check(status == 0 and f": {run.weights} has the best weights so far, those of step {best}." in out,
              f"{status} {out}")
        check_loads(root, run)
    with Run(root, "nothing") as run:
        run.wait_for_steps(2)
        run.send(signal.SIGINT)
        status, _, err = run.end()
        check(status == -signal.SIGINT, f"status {status}")
        check(err == "sluice: stopped by signal 2 (Interrupt), and nothing was saved: --save DIR saves "
              "the model, --save-dir DIR checkpoints to go on from\n", err)
    terminal, side = pty.openpty()
    with Run(root, "terminal", "--save", "WEIGHTS", err=side, steps=100000) as run:
        os.close(side)
        run.wait_for_steps(2)
        run.send(signal.SIGINT)
        status, _, _ = run.end()
        shown = b""
        try:
            while part := os.read(terminal, 4096):
                shown += part
        except OSError:  # nobody has the other side any more
            os.close(terminal)
        check(status == 0 and b"sluice: stopping after this step, to save; Ctrl-C again ends" in shown,
              f"{status} {shown}")
    print("a run without checkpoints leaves its weights, or says that it leaves nothing")


def test_failed_run(root):
    """One that has failed shows its error alone, also when a signal comes before it is shown: mpirun
    sends SIGTERM to all others when a process ends."""
    own = subprocess.Popen(["sleep", "100"])
    try:
        with open(f"/proc/{own.pid}/syscall", encoding="utf-8") as file:
            file.read()
    except OSError as error:
        print(f"skipped: what a run that has failed shows, for its system calls cannot be read: {error}")
        return
    finally:
        own.kill()
        own.wait()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    filled = 0
    try:
        while True:
            filled += os.write(writer, b"-" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    with Run(root, "failed", "--lr", "1e38", err=writer) as run:
        def shows_error():
            with open(f"/proc/{run.process.pid}/syscall", encoding="utf-8") as file:
                return file.read().split()[1:2] == ["0x2"]  # waits for the reader of standard error
        wait_for(shows_error, "an error that no one reads")
        run.send(signal.SIGTERM)
        os.close(writer)
        with open(reader, encoding="utf-8") as file:
            err = file.read()[filled:]
        status, _, _ = run.end()
        check(status == 1 and err.startswith("sluice: the ") and "--allow-nan" in err and
              err.count("sluice: ") == 1, f"{status} {err}")
    print("a run that has failed shows its error alone")


def check_loads(root, run):
    done = subprocess.run([PROGRAM, "eval", "--data", os.path.join(root, "text"), "--init",
                           run.weights, "--eval-max-batches", "2"], capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)


def test_slow_saves(root):
    """Of all ranks, longer than the grace; a failure elsewhere does not cut them off either."""
    grace = ("-n", "2", "--grace", str(GRACE_SECONDS))
    for name, options in (("slow", ()), ("slow-zero", ("--zero",))):
        slow = {"LD_PRELOAD": FAULTS, "SLUICE_IO_DELAY": "1",
                "SLUICE_IO_ONLY": os.path.join(root, name, "saved")}
        with Run(root, name, "--save-dir", "SAVED", *options, launch=grace, **slow) as run:
            run.wait_for_steps(2)
            start = time.monotonic()
            run.send(signal.SIGTERM)
            status, out, err = run.end()
            took = time.monotonic() - start
            check(took > SLOW_SAVE_SECONDS, f"the save took only {took} s, it tests nothing")
            check(err == "", err)
            check_stopped(root, name, status, out, run, *options, launch=grace)
    with Run(root, "lost-reader", "--save-dir", "SAVED", "--log-interval", "1", launch=grace,
             out=subprocess.PIPE) as run:
        run.wait_for_steps(2)
        run.process.stdout.close()
        run.process.stdout = None
        status, _, err = run.end()
        check(status == 0, f"status {status}: {err}")
        check_goes_on(root, "lost-reader", run, launch=grace)
    slow["SLUICE_IO_ONLY"] = os.path.join(root, "failure", "saved")
    with Run(root, "failure", "--save-dir", "SAVED", "--save-every", "20", launch=grace, **slow) as run:
        run.wait_for_save()
        kill([find_programs(run.process.pid)[1]])
        status, _, err = run.end()
        check(status == 137 and "rank 1 on " in err.splitlines()[-1], f"{status}: {err}")
        left = set(os.listdir(run.saved)) - {"progress", "step-00000040"}  # which may follow at once
        check(left == {"step-00000020"}, f"there are {os.listdir(run.saved)}")
    print("saves far longer than the grace are whole, whoever ends the job")


def test_endless_save(root):
    """A disk that does not answer ends a job as well, and the launcher says what it did."""
    with Run(root, "endless", "--save-dir", "SAVED", LD_PRELOAD=FAULTS, SLUICE_IO_DELAY="1000",
             SLUICE_IO_ONLY=os.path.join(root, "endless", "saved"),
             launch=("-n", "2", "--grace", "1", "--grace-save", "2")) as run:
        run.wait_for_steps(2)
        processes = family(run.process.pid)
        run.send(signal.SIGTERM)
        status, _, err = run.end()
        check(status == 128 + signal.SIGTERM, f"status {status}: {err}")
        said = err.splitlines()[-1]
        check(said.startswith("sluice: stopped by signal 15 (Terminated); rank ") and
              "did not end within 1 s and 2 s of saving, and w" in said, err)
        check("killed" not in said, err)
        wait_for(lambda: not any(map(is_running, processes)), "nothing to be left")
    print("a save without end is ended, and is not said to have failed by itself")


def main():
    root = tempfile.mkdtemp(prefix="sluice-signals-")
    try:
        subprocess.run([PROGRAM, "data", "--synthetic", os.path.join(root, "text"), "--tokens", "8000"],
                       stdout=subprocess.DEVNULL, check=True)
        test_lost_readers(root)
        test_lost_terminal(root)
        test_weights(root)
        test_failed_run(root)
        if not shutil.which("mpirun"):
            print("skipped: jobs of two ranks, for there is no mpirun")
            return
        test_slow_saves(root)
        test_endless_save(root)
    finally:
        shutil.rmtree(root)


main()
