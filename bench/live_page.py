#!/usr/bin/python3
"""What open pages cost a run: bench/live_page.py PROGRAM [PAGES [PAIRS]]

Trains with `--serve`, and opens PAGES (50) connections for the page's events and closes them again: 2 s without them,
2 s with them, and so on. The rate is that of the steps' `ms` in the log. Each time with pages is compared with the mean
of the times before and after it; the result is the median of PAIRS (34) such ratios, with the range in which the median
of very many would be with 95% certainty.

What is counted: whatever the server does for the pages. What is not: the browsers. One process of the lowest priority
stands for all of them; four times a second it has the kernel throw away what came, without a copy (MSG_TRUNC). Prints
as well the processor time of that process and of the one that serves the page, in percent of a core."""
import json, math, os, re, signal, socket, statistics, subprocess, sys, tempfile, time

SECONDS, CHANGE, WARMUP = 2, 0.2, 5


def read_events(port, pages):
    """In a process of its own, until it is ended."""
    os.nice(19)
    buffer, readers = bytearray(1 << 24), []
    for _ in range(pages):
        page = socket.create_connection(("127.0.0.1", port))
        page.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        readers.append(page)
    while True:
        time.sleep(0.25)
        for page in readers:
            try:
                if page.recv_into(buffer, len(buffer), socket.MSG_TRUNC | socket.MSG_DONTWAIT) == 0:
                    os._exit(1)
            except BlockingIOError:
                pass


def server_seconds(process):
    """The processor time of the process that serves the page, the run's only child."""
    [server] = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    return 1e-9 * int(open(f"/proc/{server}/schedstat").read().split()[0])


def read_steps(log):
    """The milliseconds of each step that was logged since the last call."""
    position = log.tell()
    whole, end, _ = log.read().rpartition(b"\n")
    log.seek(position + len(whole + end))
    return [record["ms"] for record in map(json.loads, whole.splitlines()) if record["record"] == "step"]


def mean_step(log):
    """Of the steps that begin and end in the next SECONDS, in milliseconds."""
    read_steps(log)
    time.sleep(SECONDS)
    steps = read_steps(log)[1:]
    assert len(steps) >= 3, "the steps are too long"
    return statistics.mean(steps)


def mean_step_with(log, port, pages):
    """And the processor time that the readers took."""
    reader = os.fork()
    if not reader:
        read_events(port, pages)
    try:
        time.sleep(CHANGE)
        mean = mean_step(log)
    finally:
        os.kill(reader, signal.SIGKILL)
        _, status, used = os.wait4(reader, 0)
        assert status == signal.SIGKILL, "a page was closed"
    time.sleep(CHANGE)
    return mean, used.ru_utime + used.ru_stime


def median_range(values):
    """The 95% confidence range of the median: by how many of the values may lie below it."""
    count, low, below = len(values), 0, 0.5 ** len(values)
    while low < (count - 1) // 2 and below + math.comb(count, low + 1) * 0.5 ** count <= 0.025:
        low += 1
        below += math.comb(count, low) * 0.5 ** count
    ordered = sorted(values)
    return ordered[low], ordered[count - 1 - low]


def measure(process, port, log, pages, pairs):
    time.sleep(WARMUP)
    ratios, readers, used_alone, used_with = [], 0, 0, 0
    alone = mean_step(log)
    for _ in range(pairs):
        start = server_seconds(process)
        served, reader_seconds = mean_step_with(log, port, pages)
        middle = server_seconds(process)
        after = mean_step(log)
        readers += reader_seconds
        used_with += middle - start
        used_alone += server_seconds(process) - middle
        ratios.append((alone + after) / 2 / served)
        alone = after
    low, high = median_range(ratios)
    with_seconds = pairs * (SECONDS + 2 * CHANGE)
    print(f"{pages} pages, {pairs} pairs of blocks of {SECONDS} s, about {alone:.0f} ms a step: the rate is "
          f"{statistics.median(ratios):.4f} of that alone (95%: {low:.4f} to {high:.4f}; single pairs "
          f"{min(ratios):.2f} to {max(ratios):.2f})")
    print(f"percent of a core: the page's process {100 * used_with / with_seconds:.2f} with pages, "
          f"{100 * used_alone / pairs / SECONDS:.2f} without; the readers {100 * readers / with_seconds:.2f}")


def main():
    program = sys.argv[1]
    pages, pairs = (int(word) for word in (sys.argv[2:] + ["50", "34"][len(sys.argv) - 2:]))
    with tempfile.TemporaryDirectory() as directory:
        text, path = os.path.join(directory, "text"), os.path.join(directory, "log.jsonl")
        subprocess.run([program, "data", "--synthetic", text, "--tokens", "400000"], check=True,
                       stdout=subprocess.DEVNULL)
        run = subprocess.Popen(
            [program, "train", "--data", text, "--pp", "2", "--nlayers", "4", "--emsize", "256", "--nhid", "512",
             "--nhead", "4", "--batch-size", "16", "--chunks", "4", "--epochs", "1000", "--eval-max-batches", "1",
             "--recompute", "never", "--quiet", "--log-json", path, "--serve", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            port = next(found.group(1) for line in run.stderr
                        if (found := re.search(r"shown at http://127\.0\.0\.1:(\d+)/", line)))
            with open(path, "rb") as log:
                measure(run, int(port), log, pages, pairs)
        finally:
            run.kill()
            run.wait()


main()
