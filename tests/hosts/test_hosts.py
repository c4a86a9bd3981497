"""Training on two and three hosts: the same numbers as on one, over slow links as well, and an end
in bounded time when a link is cut or all of a host is killed.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import network
from jobs import kill

PROGRAM = os.environ["SLUICE_PROGRAM"]
MODEL = ("--emsize 16 --nhid 16 --nhead 2 --nlayers 2 --bptt 8 --batch-size 12 "
         "--eval-batch-size 8 --quiet").split()

# Ranks notice a silent host within 5 s, the launcher within 10, and each of its stages is bounded
# (src/launch/job.c): the sum, and as much again for a machine that is busy.
END_SECONDS = 60


def losses(path):
    """What does not depend on the clock, of a run's log."""
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    kept = ("step", "loss", "grad_norm", "test_loss")
    return [{name: record[name] for name in kept if name in record}
            for record in records if record["record"] in ("step", "eval", "end")]


class Hosts(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="sluice-hosts-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([PROGRAM, "data", "--synthetic", cls.file("text"), "--tokens", "4000"],
                       stdout=subprocess.DEVNULL, check=True)

    @classmethod
    def file(cls, name):
        return os.path.join(cls.folder, name)

    def train(self, log, *options):
        return [PROGRAM, "train", "--data", self.file("text"), "--log-json", self.file(log),
                *MODEL, *options]

    def launch(self, net, count, command):
        """Starts it on the first host for all hosts."""
        return net.start("host1", [PROGRAM, "launch", "-n", str(count), "--hosts", net.hosts,
                                   "--launch-agent", net.agent, "--grace", "6"] + command,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, start_new_session=True)

    def succeed(self, net, count, command):
        with self.launch(net, count, command) as job:
            out, err = job.communicate(timeout=120)
        # Open MPI and its launch agent race for who does the first; either will do. The second is
        # said where the processor lacks AVX-512 BF16.
        may_be = "plm:rsh: Warning: setpgid", "--precision bf16 is slower than f32"
        err = [line for line in err.splitlines() if not any(text in line for text in may_be)]
        self.assertEqual((job.returncode, err), (0, []))
        self.assertEqual(net.wait_until_idle(END_SECONDS), [])
        return out

    # ---- The same numbers ---------------------------------------------------------------------

    def check_bits(self, count, slow):
        """A run of 5 shards in one replica, and on hosts, whose cables are then made slow, in drawn
        layouts."""
        seed = int(os.environ.get("SLUICE_TEST_SEED", random.randrange(1 << 30)))
        draw = random.Random(seed)
        options = ("--epochs", "1", "--max-batches", "6", "--momentum", "0.5", "--nlayers", "6",
                   "--batch-size", "6", "--shards", "5", "--chunks", "2", "--save", self.file("weights"),
                   "--precision", draw.choice(("f32", "f32", "bf16")))
        subprocess.run(self.train("one", *options), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        expected = losses(self.file("one")), self.weights()
        self.assertGreater(len(expected[0]), 6)
        with network.Network(count, self.folder) as net:
            for make_slow in (lambda _: None, *slow):
                make_slow(net)
                layout = ["--schedule", draw.choice(("gpipe", "1f1b", "zb-v")),
                          "--checkpoint", draw.choice(("always", "never"))]
                layout += draw.choice((["--pp", draw.choice("12"), "--zero"],
                                       ["--dp", "1", "--pp", str(count)]))
                print(f"seed {seed}, {count} hosts:", *options[-2:], *layout, flush=True)
                self.succeed(net, count, self.train("several", *options, *layout))
                self.assertEqual((losses(self.file("several")), self.weights()), expected)

    def weights(self):
        """The checksum of the file that a run has saved, which goes."""
        with open(self.file("weights"), "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        os.remove(self.file("weights"))
        return checksum

    def test_ranks_are_on_their_own_hosts(self):
        with network.Network(3, self.folder) as net:
            told = self.succeed(net, 3, ["sh", "-c", "echo $(hostname) $RANK $LOCAL_RANK "
                                         "$WORLD_SIZE $LOCAL_WORLD_SIZE"])
        self.assertEqual(sorted(told.splitlines()),
                         ["host1 0 0 3 1", "host2 1 0 3 1", "host3 2 0 3 1"])

    def delay(self, net):
        net.delay(10)
        self.assertGreaterEqual(net.round_trip("host1", "host2"), 20)

    def test_two_hosts_give_the_bits_of_one(self):
        self.check_bits(2, [lambda net: net.limit("1gbit"), self.delay])

    def test_three_hosts_give_the_bits_of_one(self):
        self.check_bits(3, [self.delay])

    # ---- What goes wrong ----------------------------------------------------------------------

    @staticmethod
    def is_under_way(log):
        if not os.path.exists(log):
            return False
        with open(log, encoding="utf-8") as file:
            return '"step":10,' in file.read()

    def check_end(self, count, harm, expected):
        """A run that is harmed once it is under way ends everywhere, with an error."""
        log = self.file("long")
        if os.path.exists(log):
            os.remove(log)
        with network.Network(count, self.folder) as net:
            with self.launch(net, count, self.train("long", "--epochs", "100000",
                                                    "--eval-max-batches", "1")) as job:
                until = time.monotonic() + END_SECONDS
                while not self.is_under_way(log):
                    self.assertLess(time.monotonic(), until)
                    self.assertIsNone(job.poll())
                    time.sleep(0.02)
                harm(net)
                started = time.monotonic()
                _, err = job.communicate(timeout=END_SECONDS)
                left = net.wait_until_idle(END_SECONDS - (time.monotonic() - started))
                print(f"# ended after {time.monotonic() - started:.1f} s: {err}", file=sys.stderr)
                self.assertEqual(left, [])
                self.assertNotEqual(job.returncode, 0)
                self.assertRegex(err, expected)

    def test_cut_link_of_one_host_of_three_ends_every_rank(self):
        self.check_end(3, lambda net: net.cut("host3"), "rank 2 cannot be reached[^$]*rank 2 on host3 was lost")

    def test_link_that_loses_everything_ends_every_rank(self):
        self.check_end(2, lambda net: net.lose("host2"), "rank 1 cannot be reached[^$]*rank 1 on host2 was lost")

    def test_host_whose_processes_are_killed_ends_every_rank(self):
        # One after the other: the rank may have seen its daemon's end and have been heard of, and
        # mpirun, which sees the daemon's, may end the others before they have said anything.
        self.check_end(2, lambda net: kill(net.processes("host2")),
                       "rank 1 on host2 was (lost|killed by signal)")


if __name__ == "__main__":
    reason = network.missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
