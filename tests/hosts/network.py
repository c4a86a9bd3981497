"""Hosts as network namespaces: each has a name, an address and a cable to one switch.

        host1 10.77.0.1      host2 10.77.0.2      host3 10.77.0.3
             eth0                 eth0                 eth0
              │ veth               │                    │
            port1 ────┐          port2          ┌───── port3
                      └───────── switch ────────┘            a namespace with a bridge

Cables can be slow. The delay is netem's; where the kernel has none, the bridge gives way to a
process that hands the frames on later: network.py MILLISECONDS INTERFACE...

Nothing is made outside of these namespaces. They bear the number of this process, and go with the
`with` statement, however it ends, after every process in them.
"""

import collections
import contextlib
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time

from jobs import is_running, kill, read

RATE = "tc qdisc replace dev {} root tbf rate {} burst 256kb latency 100ms"
DELAY = "tc qdisc replace dev {} root netem delay {}ms"


def missing():
    """Why there can be no such network here, or None."""
    for tool in ("ip", "tc", "unshare", "mpirun"):
        if not shutil.which(tool):
            return f"there is no {tool}"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    name = f"sluice{os.getpid()}-probe"
    for command in (f"ip netns add {name}",
                    f"ip netns exec {name} ip link add switch type bridge",
                    f"ip netns exec {name} ip link add port1 type veth peer name eth0",
                    f"ip netns exec {name} unshare --uts hostname host1",
                    f"ip netns exec {name} {RATE.format('port1', '1gbit')}"):
        made = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        if made.returncode != 0:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            return f"`{command}` fails: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Network:
    """`count` hosts, host1 to hostN, that can reach each other, and files for mpirun in `folder`:
    `hosts`, which names them with `slots` each, and `agent`, which starts a command on one."""

    def __init__(self, count, folder, slots=1):
        self.names = [f"host{i}" for i in range(1, count + 1)]
        self.hosts = os.path.join(folder, "hosts")
        self.agent = os.path.join(folder, "agent")
        self.slots = slots
        self.slow_switch = None

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.slow_switch:
            self.slow_switch.kill()
            self.slow_switch.wait()
        for name in self.names + ["switch"]:
            kill(self.processes(name))
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{self.agent}.lost.{name}")
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True,
                           check=False)

    @staticmethod
    def space(name):
        return f"sluice{os.getpid()}-{name}"

    def try_to(self, name, command):
        """Whether it succeeds."""
        return subprocess.run(["ip", "netns", "exec", self.space(name)] + shlex.split(command),
                              capture_output=True, check=False).returncode == 0

    def run(self, name, command):
        subprocess.run(["ip", "netns", "exec", self.space(name)] + shlex.split(command), check=True)

    def _make(self):
        subprocess.run(["ip", "netns", "add", self.space("switch")], check=True)
        self.run("switch", "ip link add switch type bridge")
        self.run("switch", "ip link set switch up")
        for i, name in enumerate(self.names, 1):
            subprocess.run(["ip", "netns", "add", self.space(name)], check=True)
            self.run("switch", f"ip link add port{i} type veth peer name eth0 "
                               f"netns {self.space(name)}")
            self.run("switch", f"ip link set port{i} master switch up")
            self.run(name, "ip link set lo up")
            self.run(name, f"ip address add {self.address(name)}/24 dev eth0")
            self.run(name, "ip link set eth0 up")
        with open(self.hosts, "w", encoding="ascii") as file:
            for name in self.names:
                file.write(f"{self.address(name)} slots={self.slots}\n")
        self._write_agent()

    def _write_agent(self):
        with open(self.agent, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n# As ssh: starts what follows the host's address, there.\n"
                       f"host=${{1##*.}}\nshift\n[ ! -e {self.agent}.lost.host$host ] || exit 1\n"
                       f"exec ip netns exec {self.space('host')}$host "
                       "unshare --uts sh -c \"hostname host$host; $*\"\n")
        os.chmod(self.agent, 0o700)

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def start(self, name, command, **options):
        """Starts a command on a host."""
        line = f"hostname {name}; exec {shlex.join(command)}"
        return subprocess.Popen(["ip", "netns", "exec", self.space(name), "unshare", "--uts",
                                 "sh", "-c", line], **options)

    def processes(self, name):
        """The numbers of the processes that run there; those that have ended do not count."""
        listed = subprocess.run(["ip", "netns", "pids", self.space(name)], capture_output=True,
                                text=True, check=False)
        return [int(number) for number in listed.stdout.split() if is_running(number)]

    def wait_until_idle(self, seconds):
        """Waits until no process runs on any host; returns the commands of those that still do."""
        until = time.monotonic() + seconds
        while True:
            left = [_command(number) for name in self.names for number in self.processes(name)]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.05)

    # What can be done to a cable. Both directions alike.

    def port(self, name):
        return f"port{self.names.index(name) + 1}"

    def limit(self, rate):
        """Gives every cable this rate, as tc writes it."""
        for name in self.names:
            self.run(name, RATE.format("eth0", rate))
            self.run("switch", RATE.format(self.port(name), rate))

    def delay(self, milliseconds):
        """Gives the way from one host to another this delay."""
        if all(self.try_to(name, DELAY.format("eth0", milliseconds)) for name in self.names):
            return
        for name in self.names:
            self.unplug(name)
        self.slow_switch = subprocess.Popen(
            ["ip", "netns", "exec", self.space("switch"), sys.executable, __file__,
             str(milliseconds)] + [self.port(name) for name in self.names])
        while self.round_trip(self.names[0], self.names[1]) is None:
            time.sleep(0.05)

    def round_trip(self, name, other):
        """Milliseconds until a port of `other` that nobody has opened has answered, or None."""
        script = ("import socket, sys, time\n"
                  "caller, started = socket.socket(), time.monotonic()\n"
                  "caller.settimeout(1)\n"
                  "code = caller.connect_ex((sys.argv[1], 9))\n"
                  "print(1000 * (time.monotonic() - started) if code == 111 else '')\n")
        told = subprocess.run(["ip", "netns", "exec", self.space(name), sys.executable, "-c",
                               script, self.address(other)], capture_output=True, text=True,
                              check=True)
        return float(told.stdout) if told.stdout.strip() else None

    def cut(self, name):
        """Pulls the host's cable out of the switch: both sides see that it is dead."""
        self.stop_agent(name)
        self.run("switch", f"ip link set {self.port(name)} down")

    def lose(self, name):
        """Whatever the host sends or is sent is lost, and nobody is told."""
        self.stop_agent(name)
        self.unplug(name)

    def unplug(self, name):
        self.run("switch", f"ip link set {self.port(name)} nomaster")

    def stop_agent(self, name):
        """From now on it starts nothing on the host: it does not need the cable."""
        with open(f"{self.agent}.lost.{name}", "w", encoding="ascii"):
            pass


def _command(number):
    return f"{number}: " + (read(f"/proc/{number}/cmdline").replace("\0", " ") or "(ended)")


# ---- The slow switch --------------------------------------------------------------------------

SOL_PACKET, PACKET_VNET_HDR, SO_RCVBUFFORCE = 263, 15, 33
LARGEST_BYTES, QUEUE_BYTES = 1 << 17, 1 << 24


def open_port(interface):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    try:
        port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE_BYTES)  # no loss while the cores are busy
    except PermissionError:  # root of a user namespace alone
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)
    port.bind((interface, 0))
    port.setblocking(False)
    return port


def serve(delay, ports):
    """Hands each frame on after a delay. Frames keep the header in which the kernel says what it has left
    to do for them (their checksum, and cutting them to size), for it is the kernel that takes them
    back.
    """
    waiting = collections.deque()  # (when, from where, frame)
    while True:
        patience = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, [], [], patience)[0]:
            frame, source = port.recvfrom(LARGEST_BYTES)
            if source[2] != socket.PACKET_OUTGOING:  # what was sent from here
                waiting.append((time.monotonic() + delay, port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, origin, frame = waiting.popleft()
            for port in ports:
                if port is not origin:
                    try:
                        port.send(frame)
                    except OSError:  # the cable is out: the frame is lost
                        pass


def run_before_others():
    """A cable does not wait for a core. Without the right to this, it shares the cores."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        pass


if __name__ == "__main__":
    run_before_others()
    serve(float(sys.argv[1]) / 1000, [open_port(name) for name in sys.argv[2:]])
