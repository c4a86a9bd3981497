#!/bin/bash
# train --serve and watch without a browser, at an address that asks for a token: bad requests are answered, and
# nothing of them reaches an output or the log; watch follows a log that grows, and whose last line is cut off.
. "$(dirname "$0")/../support/script.sh"

"$program" data --synthetic text --tokens 4000 >/dev/null
# The addresses are those of a network of the test's own, whose loopback begins unconnected.
for network in "unshare -n" "unshare -rn" ""; do
    $network true 2>/dev/null && break
done
[ -n "$network" ] || { echo "skipped: there is no network namespace"; exit 77; }
$network /usr/bin/python3 - "$program" <<'END'
import errno, fcntl, json, os, re, signal, socket, struct, subprocess, sys, time

program = sys.argv[1]
started = []
with socket.socket() as any_socket:  # SIOCSIFFLAGS: the loopback is up
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))

class Server:
    """A program that serves a page at all addresses; its outputs are in a file."""

    def __init__(self, name, *words, ignored=()):
        self.output = name + ".out"
        with open(self.output, "wb") as to:
            self.process = subprocess.Popen(
                [program, *words, "--serve", "0.0.0.0:0"], stdout=to, stderr=to,
                preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored])
        started.append(self.process)
        await_true(lambda: b"shown at http" in self.said())
        url = re.search(r"http://\S+:(\d+)/\?token=([0-9a-f]{32})\s", self.said().decode())
        self.port, self.token = int(url[1]), url[2].encode()

    def said(self):
        return open(self.output, "rb").read()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, *lines):
        """The codes of the answers to "GET /…" and the like, all on one connection."""
        ends = [b"\r\n\r\n"] * (len(lines) - 1) + [b"\r\nConnection: close\r\n\r\n"]
        codes = []
        with self.connect() as to:
            to.sendall(b"".join(line + b" HTTP/1.1\r\nHost: a.b" + end for line, end in zip(lines, ends)))
            answers = to.makefile("rb")
            for line in lines:
                head = b"".join(iter(answers.readline, b"\r\n"))
                codes.append(int(head.split()[1]))
                length = int(re.search(rb"(?i)\r\nContent-Length: (\d+)", head)[1])
                answers.read(0 if line.startswith(b"HEAD") else length)
        return codes

    def events(self):
        to = self.connect()
        to.sendall(b"GET /events?token=" + self.token + b" HTTP/1.1\r\nHost: a.b\r\n\r\n")
        return to

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

def await_true(is_true):
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)

def check_text(name):
    """Of an output or a log: it has nothing of the requests, and no control characters but ends of lines."""
    text = open(name, "rb").read()
    found = re.search(rb".{0,20}(requested|GET|[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]).{0,20}", text)
    assert not found, found

def check_requests(server):
    token = b"token=" + server.token
    control = b"requested\x1b[31m\x1b]0;requested\x07\x08\x7f\xc2\x9b"
    asked = {
        403: [b"GET /", b"GET /events", b"GET /?token=", b"GET /?token", b"GET /?token=" + control,
              b"GET /?" + token[:-1], b"GET /?" + token + b"0", b"GET /?token=" + server.token[::-1] + control,
              b"GET /" + control, b"GET /../../etc/passwd"],
        404: [b"GET /" + control + b"?" + token, b"GET /%1b%5b31m%00%0a%0drequested?" + token,
              b"GET /../../etc/passwd?" + token, b"GET /%2e%2e/%2e%2e/etc/passwd?" + token,
              b"GET /..\\..\\requested?" + token, b"GET //events?" + token, b"GET http://requested/x?" + token],
        405: [b"POST /?" + token, b"DELETE /events?" + token, b"requested /?" + token],
        200: [b"GET /?requested=" + control + b"&" + token, b"HEAD /?" + token,
              b"GET /?" + token + b" HTTP/1.1\r\nX-requested: \x1b[31m\x07\r\nX:"]}
    for code, lines in asked.items():
        assert server.ask(*lines) == [code] * len(lines), (code, server.ask(*lines))
    check_broken(server, b"/?" + token)

def check_broken(server, page):
    """What is no request, or too long for one, is answered with a code for that, or by closing the connection."""
    long = b"requested\x1b" * 20000
    for request in (b"GET /" + long, b"GET / HTTP/1.1\r\nHost: " + long, b"GET " + page + b" HTTP/1.1\r\nX: " + long,
                    b"\x16\x03\x01\x02\x00\x01\x00\xff\xferequested\r\n\r\n", b"requested\r\n\r\n", b"\x1b\n\n\n",
                    b"GET " + page + b" requested\x1b\r\n\r\n", b"G\0T / HTTP/1.1\r\nrequested\0\r\n\r\n"):
        answer = b""
        with server.connect() as to:
            try:
                to.sendall(request)
                to.shutdown(socket.SHUT_WR)
                answer = to.recv(100)
            except OSError as error:  # the server has closed it
                assert error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN), error
        assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), (request[:50], answer)
    assert server.ask(b"GET " + page) == [200]

def check_run():
    run = Server(
        "run", "train", "--data", "text", "--emsize", "8", "--nhid", "8", "--nhead", "2", "--nlayers", "2", "--bptt",
        "8", "--batch-size", "4", "--eval-max-batches", "2", "--epochs", "100000", "--max-batches", "20", "--quiet",
        "--log-json", "run.jsonl")
    steps = lambda: open("run.jsonl").read().count('"record":"step"')
    await_true(lambda: os.path.exists("run.jsonl") and steps() > 0)
    before = steps()
    check_requests(run)
    await_true(lambda: steps() > before + 20)
    assert run.end(signal.SIGTERM) == -signal.SIGTERM
    said = run.said().decode().splitlines()
    assert len(said) == 2 and "shown at http" in said[0] and "stopped by signal 15" in said[1], said
    check_text("run.out")
    check_text("run.jsonl")

def check_watch():
    def step(number):
        return json.dumps({"record": "step", "epoch": 1, "batch": number, "step": number, "loss": 3.5}) + "\n"

    def append(text):
        with open("watched.jsonl", "a") as to:
            to.write(text)

    append(json.dumps({"record": "run", "batches_per_epoch": 4, "epochs": 2, "model": {}}) + "\n")
    append(step(1) + step(2)[:20])  # the last line is under way
    os.symlink("watched.jsonl", "watched\x1b[31m.jsonl")
    watch = Server("watch", "watch", "watched\x1b[31m.jsonl")
    with watch.events() as connection:
        events = connection.makefile("rb")
        def await_event(text):
            end = time.monotonic() + 60
            while text not in events.readline():  # the server sends a line at least every 10 s
                assert time.monotonic() < end, text
        await_event(b"step 1 of 8. The log has no end")
        append(step(2)[20:] + step(3))
        await_event(b"step 3 of 8. The run goes on.")
        append('{"record":"step","epo\n' + step(4))  # as after a run that was killed, and has resumed
        await_event(b"1 lines were cut off")
        page = b"GET /?token=" + watch.token
        assert watch.ask(page, page[:-1], b"GET /", page) == [200, 403, 403, 200]
        append(json.dumps({"record": "end", "seconds": 9}) + "\n")
        await_event(b"The run has ended.")
    assert watch.end(signal.SIGINT) == 0
    check_text("watch.out")

def check_ignored_signals():
    watch = Server("nohup", "watch", "watched.jsonl", ignored=(signal.SIGHUP, signal.SIGINT))
    page = b"GET /?token=" + watch.token
    assert watch.ask(page) == [200]
    for number in (signal.SIGHUP, signal.SIGINT):
        watch.process.send_signal(number)
    time.sleep(0.5)
    assert watch.process.poll() is None, "a signal that was ignored at the start ended it"
    assert watch.ask(page) == [200]
    assert watch.end(signal.SIGTERM) == 0

try:
    check_run()
    check_watch()
    check_ignored_signals()
finally:
    for process in started:
        process.kill()
        process.wait()
END
echo "requests are answered, and pages follow their logs"
