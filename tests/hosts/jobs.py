"""The processes of a job, as /proc shows them."""

import os
import signal


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def is_running(process):
    state = read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def kill(processes):
    """All of them; those that the end of the others has ended meanwhile are left out."""
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def children(process):
    return [int(number) for task in os.listdir(f"/proc/{process}/task")
            for number in read(f"/proc/{process}/task/{task}/children").split()]


def family(process):
    """The process and all that it has started."""
    try:
        return [process] + [one for child in children(process) for one in family(child)]
    except FileNotFoundError:
        return []


def find_programs(launcher):
    """The training processes by rank."""
    found = {}
    for process in family(launcher):
        command = read(f"/proc/{process}/cmdline").split("\0")
        names = dict(word.partition("=")[::2]
                     for word in read(f"/proc/{process}/environ").split("\0"))
        if command[1:2] == ["train"] and "RANK" in names:
            found[int(names["RANK"])] = process
    return found
