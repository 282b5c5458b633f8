"""Processes of this machine, as tests look at them through /proc."""

import time
from pathlib import Path


def soon():
    return time.monotonic() + 240


def descendants(pid):
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, more = {pid}, True
    while more:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
    return found


def gone(pids):
    """Whether none of these processes runs any more, or will soon."""
    until = soon()
    while time.monotonic() < until:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def named(name):
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                found.append(int(comm.parent.name))
        except OSError:
            continue
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
