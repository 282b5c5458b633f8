"""Monitor all processes of a job: memory, CPU time and sockets that no per-process limit bounds.

RLIMIT_DATA and RLIMIT_CPU hold per process, and a job may start many. Its supervisor therefore reads the process tree
many times a second, through a /proc that the job cannot see, and kills the job when the total is too high. Between two
looks a job can take as much as its cores can write: about a gigabyte per tenth of a second and core. Sources: proc(5);
the kernel's Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MEMORY, PROCESSOR, SOCKETS = "too much memory", "too much processor time", "too many sockets"
"""Why a job is killed."""
PRIVATE = ("RssAnon", "RssShmem", "VmSwap", "VmPTE")
"""Lines of /proc/PID/status that add up to a process's memory: private pages, shared memory, swap, page tables."""
SLACK_BYTES = 16 << 20
"""Allowance for stacks, which RLIMIT_DATA does not count."""
INHERITED_BYTES = 2 << 30
"""Memory inherited by fork that a job may unshare by writing to it."""
CORES = 8
"""CPU limit of a job as a multiple of one process's: as many ranks as a lab may start."""
MAX_SOCKETS = 1024
"""Each can buffer some 400 KiB in the kernel, charged to no process; TCP sockets can hold more, and are counted."""
QUIET_BYTES = 32 << 20
"""While TCP buffers of the whole machine hold less than this, the job's own are not counted."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BUDGET = struct.Struct("=QQQ")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Memory of one process in bytes, and its CPU seconds, alone and with children that it has waited for."""

    memory_bytes: int
    data_bytes: int
    own_s: float
    cpu_s: float


def send_budget(pipe: int, *, memory_bytes: int, cpu_s: int, inherited_bytes: int = INHERITED_BYTES) -> None:
    """Send the job's budget from the child to the supervisor, and close the pipe."""
    os.write(pipe, BUDGET.pack(memory_bytes, inherited_bytes, cpu_s))
    os.close(pipe)


class Monitor:
    """Monitor the processes under `pid`. `proc` is a descriptor of the supervisor's own /proc."""

    def __init__(self, proc: int, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._start: Usage | None = None
        self._max_bytes = self._max_inherited_bytes = self._max_cpu_s = 0.0
        self._last_s: dict[int, float] = {}  # by process: its CPU seconds at the last look
        self._gone_s = 0.0
        self._waited_s = 0.0

    def read_budget(self, pipe: int) -> None:
        """Read the child's budget, and the memory that it inherited from the launcher."""
        told = os.read(pipe, BUDGET.size)
        if len(told) == BUDGET.size and (start := self._read_usage(self._pid)) is not None:
            memory_bytes, inherited_bytes, cpu_s = BUDGET.unpack(told)
            self._start = start
            # RLIMIT_DATA counts mapped memory: pages mapped but untouched so far may be used in addition.
            untouched = max(0, start.data_bytes - start.memory_bytes)
            self._max_bytes = memory_bytes + untouched + SLACK_BYTES
            self._max_inherited_bytes = start.memory_bytes + inherited_bytes
            self._max_cpu_s = start.cpu_s + CORES * cpu_s

    def excess(self) -> str:
        """Name the resource that the job exceeds, or ""; always "" before `read_budget`."""
        if self._start is None:
            return ""
        inherited = self._start.memory_bytes
        found = self._read_usages()
        uses = list(found.values())
        sockets, machine_tcp_bytes = self._count_sockets()
        queued_bytes = self._sum_queues() if machine_tcp_bytes > QUIET_BYTES else 0
        own = queued_bytes + sum(max(0, use.memory_bytes - inherited) for use in uses)
        everything = sum(use.memory_bytes for use in uses)
        if own > self._max_bytes or everything > self._max_bytes + self._max_inherited_bytes:
            return MEMORY
        if self._sum_cpu_s(found) > self._max_cpu_s:
            return PROCESSOR
        return SOCKETS if sockets > MAX_SOCKETS else ""

    def time_used(self) -> tuple[float, float]:
        """CPU seconds of all processes, and seconds that other load kept the job from the CPUs.

        The latter is the longest wait of one thread, minus the time that the job's other threads ran, which it may have
        waited for: a job with many threads cannot fake it. 0 where the kernel does not count waits (CONFIG_SCHED_INFO).
        """
        found = self._read_usages()
        cpu_s = self._sum_cpu_s(found)
        threads = self._read_threads(found)
        ran_s = max(cpu_s, sum(ran_s for ran_s, _ in threads))
        self._waited_s = max([self._waited_s, *(waited_s - (ran_s - own_s) for own_s, waited_s in threads)])
        return cpu_s, self._waited_s

    def _read_threads(self, pids: Iterable[int]) -> list[tuple[float, float]]:
        """Per thread: seconds that it ran, and seconds that it was ready but did not run."""
        threads = [f"{pid}/task/{thread}" for pid in pids for thread in self._threads(pid)]
        told = [self._read(f"{thread}/schedstat").split() for thread in threads]
        return [(int(words[0]) / 1e9, int(words[1]) / 1e9) for words in told if words]

    def _read_usages(self) -> dict[int, Usage]:
        return {pid: use for pid in self._tree() if (use := self._read_usage(pid)) is not None}

    def _sum_cpu_s(self, uses: Mapping[int, Usage]) -> float:
        """CPU seconds of all processes, including those that have exited.

        The kernel credits an exited child to a parent that waits for it, but drops its time if the parent never will:
        then its usage at the last look counts.
        """
        for pid, last_s in self._last_s.items():
            if pid not in uses or uses[pid].own_s < last_s:  # the pid may have been reused
                self._gone_s += last_s
        self._last_s = {pid: use.own_s for pid, use in uses.items()}
        return max(sum(use.cpu_s for use in uses.values()), sum(self._last_s.values()) + self._gone_s)

    def _tree(self) -> Iterator[int]:
        """All descendants; orphans become children of the job's first process."""
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            for thread in self._threads(pid):
                waiting += map(int, self._read(f"{pid}/task/{thread}/children").split())

    def _threads(self, pid: int) -> list[str]:
        try:
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return []
        try:
            return os.listdir(folder)  # noqa: PTH208 - by descriptor
        except OSError:
            return []
        finally:
            os.close(folder)

    def _read_usage(self, pid: int) -> Usage | None:
        lines = dict(line.split(":", 1) for line in self._read(f"{pid}/status").splitlines())
        stat = self._read(f"{pid}/stat").rpartition(")")[2].split()
        if not stat:
            return None
        size = {name: int(lines.get(name, "0").split()[0]) << 10 for name in (*PRIVATE, "VmData")}
        own, with_children = sum(map(int, stat[11:13])) / TICKS, sum(map(int, stat[11:15])) / TICKS
        return Usage(sum(size[name] for name in PRIVATE), size["VmData"], own, with_children)

    def _count_sockets(self) -> tuple[int, int]:
        """Sockets in the job's network namespace, and bytes that TCP holds on the whole machine."""
        lines = dict(line.split(":", 1) for line in self._read(f"{self._pid}/net/sockstat").splitlines())
        used, tcp = (lines.get(name, "").split() for name in ("sockets", "TCP"))
        return (int(used[1]) if used else 0), int(tcp[-1]) * PAGE_BYTES if tcp else 0

    def _sum_queues(self) -> int:
        """Bytes queued in the job's TCP connections."""
        found = 0
        for kind in ("tcp", "tcp6"):
            for line in self._read(f"{self._pid}/net/{kind}", chunks=256).splitlines()[1:]:
                waiting = line.split()[4:5]  # tx_queue:rx_queue
                found += sum(int(queue, 16) for queue in "".join(waiting).split(":") if queue)
        return found

    def _read(self, path: str, *, chunks: int = 1) -> str:
        """Read a file of /proc in at most `chunks` reads; "" if the process is gone."""
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY, dir_fd=self._proc)
            try:
                return b"".join(os.read(file, 1 << 16) for _ in range(chunks)).decode(errors="replace")
            finally:
                os.close(file)
        return ""
