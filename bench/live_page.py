#!/usr/bin/python3
"""What open pages cost a run: bench/live_page.py PROGRAM [PAGES [PAIRS]]

Trains with `--serve`, and has PAGES (50) readers of the page's events come and go: 3 s without them, 3 s with them,
and so on. Each time with them is compared with the mean of the times before and after it; the result is the median
of PAIRS (12) such ratios. The time of a step is that between the log's lines. The readers are one process of the
lowest priority, which throws away what comes: browsers are on other machines. Prints as well the processor time of
the page's thread (the only one of the lowest priority) in percent of a core."""
import glob, os, re, selectors, signal, socket, statistics, subprocess, sys, tempfile, threading, time

SECONDS, WARMUP = 3, 5


def read_events(port, pages):
    """In a process of its own, until it is ended."""
    os.nice(19)
    readers = selectors.DefaultSelector()
    for _ in range(pages):
        page = socket.create_connection(("127.0.0.1", port))
        page.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        readers.register(page, selectors.EVENT_READ)
    while True:
        for key, _ in readers.select():
            if not key.fileobj.recv(1 << 20):
                os._exit(1)


def thread_seconds(process):
    """The processor time of the page's thread."""
    for path in glob.glob(f"/proc/{process.pid}/task/*/stat"):
        fields = open(path).read().rsplit(")", 1)[1].split()
        if fields[16] == "19":
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise AssertionError("the page has no thread")


def follow_log(path, times):
    """Into `times`: when each step's record came."""
    with open(path) as log:
        while True:
            line = log.readline()
            if line.startswith('{"record":"step"'):
                times.append(time.monotonic())
            elif not line:
                time.sleep(0.005)


def mean_step(times):
    """Of the next SECONDS, in seconds."""
    first = len(times)
    time.sleep(SECONDS)
    assert len(times) - first >= 3, "the steps are too long"
    return (times[-1] - times[first]) / (len(times) - 1 - first)


def mean_step_with(times, port, pages):
    reader = os.fork()
    if not reader:
        read_events(port, pages)
    try:
        time.sleep(0.2)  # they come
        return mean_step(times)
    finally:
        os.kill(reader, signal.SIGKILL)
        assert os.waitpid(reader, 0)[1] == signal.SIGKILL, "a page was closed"
        time.sleep(0.2)  # they go


def measure(process, port, log, pages, pairs):
    times = []
    threading.Thread(target=follow_log, args=(log, times), daemon=True).start()
    time.sleep(WARMUP)
    started, used = time.monotonic(), thread_seconds(process)
    alone, ratios = mean_step(times), []
    for _ in range(pairs):
        served, after = mean_step_with(times, port, pages), mean_step(times)
        ratios.append((alone + after) / 2 / served)
        print(f"alone {1e3 * (alone + after) / 2:.2f} ms a step, with {pages} pages {1e3 * served:.2f} ms: "
              f"rate {ratios[-1]:.4f}", flush=True)
        alone = after
    load = (thread_seconds(process) - used) / (time.monotonic() - started)
    print(f"median rate with {pages} pages: {statistics.median(ratios):.4f} of that alone ({min(ratios):.4f} to "
          f"{max(ratios):.4f}); the page's thread ran {100 * load:.2f}% of a core")


def main():
    program = sys.argv[1]
    pages, pairs = (int(word) for word in (sys.argv[2:] + ["50", "12"][len(sys.argv) - 2:]))
    with tempfile.TemporaryDirectory() as directory:
        text, log = os.path.join(directory, "text"), os.path.join(directory, "log.jsonl")
        subprocess.run([program, "data", "--synthetic", text, "--tokens", "400000"], check=True, stdout=subprocess.DEVNULL)
        run = subprocess.Popen(
            [program, "train", "--data", text, "--pp", "2", "--nlayers", "4", "--emsize", "256", "--nhid", "512",
             "--nhead", "4", "--batch-size", "16", "--chunks", "4", "--epochs", "1000", "--eval-max-batches", "1",
             "--checkpoint", "never", "--quiet", "--log-json", log, "--serve", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            port = next(found.group(1) for line in run.stderr
                        if (found := re.search(r"shown at http://127\.0\.0\.1:(\d+)/", line)))
            measure(run, int(port), log, pages, pairs)
        finally:
            run.kill()
            run.wait()


main()
