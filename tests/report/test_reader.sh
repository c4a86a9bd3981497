#!/bin/bash
# The reader of a run's log is a process of its own (sluice watch, which train starts): killed or stopped, it changes
# nothing of the run but one sentence on standard error, and it ends with its run, however that ends. A run that is
# refused leaves nothing. By hand, watch makes the same trace of the same log.
. "$(dirname "$0")/../support/script.sh"

"$program" data --synthetic text --tokens 4000 >/dev/null
/usr/bin/python3 - "$program" <<'END'
import glob, json, os, re, signal, subprocess, sys, time

program, STEPS = sys.argv[1], 3000
CORE = "cpu:{0}-{0}".format(min(os.sched_getaffinity(0)))
SIZES = ["--emsize", "8", "--nhid", "8", "--nhead", "2", "--nlayers", "2", "--bptt", "8", "--batch-size", "4",
         "--eval-max-batches", "2", "--devices", f"{CORE},{CORE}", "--chunks", "4", "--quiet"]
SHOWN = ["--serve", "0", "--trace", "trace.json", "--tensorboard", "events"]
started = []

def start(*words):
    run = subprocess.Popen([program, "train", "--data", "text", *SIZES, *words], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    started.append(run)
    return run

def train(log, *words):
    if os.path.exists(log):
        os.remove(log)
    return start("--epochs", str(STEPS // 20), "--max-batches", "20", "--log-json", log, *words)

def await_true(is_true):
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)

def read_losses(log):
    records = [json.loads(line) for line in open(log) if line.endswith("\n")]
    return [r["loss"] for r in records if r["record"] in ("step", "eval")]

def find_reader(run):
    """The only process that the run has started, once it has taken a few steps."""
    log = run.args[run.args.index("--log-json") + 1]
    await_true(lambda: os.path.exists(log) and len(read_losses(log)) > 50)
    [reader] = open(f"/proc/{run.pid}/task/{run.pid}/children").read().split()
    assert open(f"/proc/{reader}/cmdline").read().split("\0")[:2] == ["sluice", "watch"]
    assert len(read_losses(log)) < STEPS, "the run is too short"
    return int(reader)

def read_state(process):
    """T: it is stopped; Z: it has ended."""
    try:
        return open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"

def signal_reader(reader, number):
    os.kill(reader, number)
    await_true(lambda: read_state(reader) == ("T" if number == signal.SIGSTOP else "Z"))

def check_run(number, sentence, expected):
    """The reader gets the signal during a run, which ends as it would have."""
    run = train("run.jsonl", *SHOWN)
    reader = find_reader(run)
    signal_reader(reader, number)
    said = run.communicate(timeout=120)[1]
    assert run.returncode == 0, said
    ended = next(r["time"] for r in map(json.loads, open("run.jsonl")) if r["record"] == "end")
    assert time.time() - ended < 20, "the run waited for its reader"
    assert read_losses("run.jsonl") == expected
    assert [re.sub(r"[^:]*: warning: ", "", line) for line in said.splitlines() if "watch" in line] == [sentence], said
    assert read_state(reader) == "Z"

def check_killed_run(stops):
    """The reader notices that its run is gone, also where it has been stopped."""
    run = train("killed.jsonl", *SHOWN)
    reader = find_reader(run)
    if stops:
        signal_reader(reader, signal.SIGSTOP)
    run.kill()
    await_true(lambda: read_state(reader) == "Z")
    run.communicate()
    json.load(open("trace.json"))  # is whole

def check_restart():
    """A run that is started again at once gets the port that its last reader still has."""
    run = train("killed.jsonl", "--serve", "0")
    find_reader(run)
    run.kill()
    port = re.search(r"shown at http://127\.0\.0\.1:(\d+)/", run.stderr.readline())[1]
    again = start("--epochs", "1", "--max-batches", "1", "--serve", port)
    said = again.communicate(timeout=60)[1]
    assert again.returncode == 0 and f":{port}/" in said, said

def check_refused():
    """There is no batch: the run ends before it begins, after its reader has started."""
    open("kept.json", "w").write("kept")
    run = start("--batch-size", "5000", "--serve", "0", "--trace", "kept.json", "--tensorboard", "none/")
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 1 and "watch" not in said, said
    assert open("kept.json").read() == "kept" and not os.path.exists("none")
    run = start("--batch-size", "5000", "--trace", "none.json")
    assert run.communicate(timeout=60) and run.returncode == 1 and not os.path.exists("none.json")

def check_by_hand(log, trace):
    words = [program, "watch", log, "--trace", "hand.json", "--tensorboard", "hand"]
    subprocess.run(words, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert open("hand.json").read() == open(trace).read()
    [events] = glob.glob("hand/*")
    assert os.path.getsize(events) > 10000
    over = subprocess.run([program, "watch", log, "--trace", log], capture_output=True, text=True)
    assert over.returncode == 1 and over.stderr.startswith(f"sluice: --trace: {log} is the run log"), over

try:
    alone = train("alone.jsonl", "--trace", "whole.json")
    assert alone.communicate(timeout=120)[1].count("watch") == 0 and alone.returncode == 0
    losses = read_losses("alone.jsonl")
    assert len(losses) == STEPS + STEPS // 20 + 1
    check_by_hand("alone.jsonl", "whole.json")
    check_run(signal.SIGKILL, "sluice watch, which shows the run, has ended: Killed; the run goes on without it", losses)
    check_run(signal.SIGSTOP, "sluice watch, which shows the run, has not ended with it and was killed: what it writes "
              "may lack the run's end", losses)
    check_killed_run(stops=False)
    check_killed_run(stops=True)
    check_restart()
    check_refused()
finally:
    for process in started:
        process.kill()
        process.wait()
END
echo "a run does not depend on its reader"
