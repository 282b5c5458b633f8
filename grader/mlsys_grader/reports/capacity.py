"""How many workers a class needs, from the times that its submissions were measured to take.

A submission is a customer, a worker a server: with submissions that come at random at `rate` a second and are judged
in S seconds, rate · E[S] workers are busy on average (Little 1961), and the time in line follows from the number of
workers and from the mean and the variance of S (M/G/c; Allen 1990, the approximation of Allen and Cunneen). One
process writes the gradebook, which is the part that more workers do not make faster (Amdahl 1967).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Load:
    """A class of `students`, each judged in a time of `mean_s` seconds and of `variance_s2` seconds squared.

    Entering one into the gradebook takes `entry_s` seconds.
    """

    students: int
    mean_s: float
    variance_s2: float
    entry_s: float

    @classmethod
    def from_times(cls, students: int, service_s: Sequence[float], entry_s: float) -> Load:
        """The load of so many students whose submissions take as long as those that were measured.

        Raises `InputError` where there is nobody, nothing was measured, or a time is not positive.
        """
        if students < 1 or not service_s or not (min(service_s) > 0 and entry_s > 0):
            raise InputError("no load to plan for", got=f"{students} students, {len(service_s)} times")
        return cls(students, fmean(service_s), pvariance(service_s), entry_s)

    @property
    def work_s(self) -> float:
        """Seconds that one worker would take to judge the whole class once."""
        return self.students * self.mean_s

    @property
    def most_workers(self) -> int:
        """The number of workers above which all wait for the process that writes the gradebook."""
        return max(1, math.floor(self.mean_s / self.entry_s))

    def batch_s(self, workers: int) -> float:
        """Seconds to grade everybody at once, start not counted: judging and entering go on side by side."""
        return max(self.work_s / workers, self.students * self.entry_s)

    def workers_within(self, time_s: float) -> int | None:
        """The fewest workers that grade everybody at once within `time_s`; None when the gradebook takes longer."""
        workers = math.ceil(self.work_s / time_s)
        return workers if self.batch_s(workers) <= time_s * (1 + 1e-9) else None

    def busy_workers(self, hours: float) -> float:
        """Workers busy on average while everybody hands in within `hours`, spread evenly at random."""
        return self.students / (3600 * hours) * self.mean_s

    def wait_s(self, workers: int, hours: float) -> float:
        """Mean seconds in line while everybody hands in within `hours`; `inf` when the line only grows."""
        busy = self.busy_workers(hours)
        if busy >= workers:
            return math.inf
        variation = self.variance_s2 / self.mean_s**2
        return _erlang_c(busy, workers) * self.mean_s / (workers - busy) * (1 + variation) / 2

    def last_wait_s(self, workers: int, hours: float) -> float:
        """Seconds that whoever hands in last waits when the line only grows; else the mean wait."""
        if self.busy_workers(hours) < workers:
            return self.wait_s(workers, hours)
        return self.work_s / workers - 3600 * hours


def _erlang_c(busy: float, workers: int) -> float:
    """Erlang's C: how probable it is that somebody who comes finds no worker idle."""
    free = 1.0  # Erlang's B by its recursion, which never overflows
    for count in range(1, workers + 1):
        free = busy * free / (count + busy * free)
    return free / (1 - busy / workers * (1 - free))
