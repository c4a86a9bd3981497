#!/usr/bin/python3
"""What open pages cost a run: bench/live_page.py PROGRAM [PAGES [ROUNDS]]

Trains the same model without and with `--serve` and PAGES (50) readers of its events, in turn, ROUNDS (5)
times. The readers are one process of the lowest priority, which throws away what comes: browsers are on other
machines. Prints each run's mean time of a step, the processor time of the page's thread (the only one of the
lowest priority) in percent of a core, and of the pairs the ratio of the rates."""
import glob, json, os, re, selectors, socket, statistics, subprocess, sys, tempfile, threading, time

STEPS, WARMUP = 150, 20


def read_events(port, pages):
    """In a process of its own, until the server ends."""
    os.nice(19)
    readers = selectors.DefaultSelector()
    received = 0
    for _ in range(pages):
        page = socket.create_connection(("127.0.0.1", port))
        page.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        readers.register(page, selectors.EVENT_READ)
    while readers.get_map():
        for key, _ in readers.select():
            data = key.fileobj.recv(1 << 20)
            received += len(data)
            if not data:
                readers.unregister(key.fileobj)
    print(f"    {pages} pages read {received / 1e6:.0f} MB", flush=True)
    os._exit(0)


def watch_thread(process, result):
    """Into `result`: the seconds that the page's thread has run, and those that have passed."""
    start = time.monotonic()
    while process.poll() is None:
        for path in glob.glob(f"/proc/{process.pid}/task/*/stat"):
            try:
                fields = open(path).read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[16] == "19":
                ticks = int(fields[11]) + int(fields[12])
                result[:] = [ticks / os.sysconf("SC_CLK_TCK"), time.monotonic() - start]
        time.sleep(0.2)


def train(program, directory, pages):
    log = os.path.join(directory, "log.jsonl")
    words = [program, "train", "--data", os.path.join(directory, "text"), "--pp", "2", "--nlayers", "4",
             "--emsize", "256", "--nhid", "512", "--nhead", "4", "--batch-size", "16", "--chunks", "4", "--epochs", "1",
             "--max-batches", str(STEPS), "--eval-max-batches", "1", "--checkpoint", "never", "--quiet",
             "--log-json", log] + (["--serve", "0"] if pages else [])
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    used = []
    threading.Thread(target=watch_thread, args=(run, used)).start()
    reader = 0
    for line in run.stderr:
        found = re.search(r"shown at http://127\.0\.0\.1:(\d+)/", line)
        if found and pages and not reader:
            reader = os.fork()
            if not reader:
                read_events(int(found.group(1)), pages)
    assert run.wait() == 0
    if reader:
        os.waitpid(reader, 0)
    if used:
        print(f"    the page's thread ran {used[0]:.2f} of {used[1]:.1f} s: {100 * used[0] / used[1]:.2f}% of a core")
    steps = [r["ms"] for r in map(json.loads, open(log)) if r["record"] == "step"]
    return statistics.mean(steps[WARMUP:])


def main():
    program = sys.argv[1]
    pages, rounds = (int(word) for word in (sys.argv[2:] + ["50", "5"][len(sys.argv) - 2:]))
    ratios = []
    with tempfile.TemporaryDirectory() as directory:
        text = os.path.join(directory, "text")
        subprocess.run([program, "data", "--synthetic", text, "--tokens", "200000"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(rounds):
            alone, served = train(program, directory, 0), train(program, directory, pages)
            ratios.append(alone / served)
            print(f"alone {alone:.2f} ms a step, with {pages} pages {served:.2f} ms: rate {ratios[-1]:.4f}", flush=True)
    print(f"median rate with {pages} pages: {statistics.median(ratios):.4f} of that alone")


main()
