"""Peak private memory of a command and all that it starts, sampled from /proc."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.1


@dataclass
class Peak:
    """The most bytes that were private to one of the processes each, summed over the processes, at any sample."""

    size_bytes: int = 0
    processes: int = 0


@contextmanager
def peak_of(process: subprocess.Popen[bytes]) -> Iterator[Peak]:
    """Sample while the block runs. Pages shared with another process count for nobody: libraries, forked memory."""
    peak, stop = Peak(), threading.Event()

    def sample() -> None:
        while not stop.is_set():
            pids = tree(process.pid)
            size = sum(map(private_bytes, pids))
            if size > peak.size_bytes:
                peak.size_bytes, peak.processes = size, len(pids)
            time.sleep(INTERVAL_S)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def tree(root: int) -> list[int]:
    """The process and its descendants that are alive now."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def private_bytes(pid: int) -> int:
    """Bytes that this process alone has in memory; 0 where it has gone, or belongs to a user who does not tell."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
    return 0
