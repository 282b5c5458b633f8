"""Estimate the number of workers for a class from measured grading times.

A submission is a customer, a worker a server. With arrivals at random at `rate` per second and a service time of S
seconds, rate · E[S] workers are busy on average (Little 1961), and the queueing time follows from the number of workers
and the mean and variance of S (M/G/c; Allen 1990, the approximation of Allen and Cunneen). One process writes the
gradebook: the serial part that more workers do not speed up (Amdahl 1967).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Load:
    """A class of `students`, with the mean and variance of the time to judge one.

    `entry_s` is the time to enter one into the gradebook.
    """

    students: int
    mean_s: float
    variance_s2: float
    entry_s: float

    @classmethod
    def from_times(cls, students: int, service_s: Sequence[float], entry_s: float) -> Load:
        """The load of a class whose submissions take as long as the measured ones.

        Raises `InputError` for no students, no measurement, or a time that is not positive.
        """
        if students < 1 or not service_s or not (min(service_s) > 0 and entry_s > 0):
            raise InputError("no load to plan for", got=f"{students} students, {len(service_s)} times")
        return cls(students, fmean(service_s), pvariance(service_s), entry_s)

    @property
    def work_s(self) -> float:
        """Seconds for one worker to judge the class."""
        return self.students * self.mean_s

    @property
    def max_useful_workers(self) -> int:
        """Number of workers beyond which all wait for the gradebook's process."""
        return max(1, math.floor(self.mean_s / self.entry_s))

    def batch_s(self, workers: int) -> float:
        """Seconds to grade the class in one batch, start excluded; judging and entering overlap."""
        return max(self.work_s / workers, self.students * self.entry_s)

    def busy_workers(self, hours: float) -> float:
        """Workers busy on average if the class submits within `hours`, uniformly at random."""
        return self.students / (3600 * hours) * self.mean_s

    def wait_s(self, workers: int, hours: float) -> float:
        """Mean queueing time in seconds if the class submits within `hours`; `inf` if the queue only grows."""
        busy = self.busy_workers(hours)
        if busy >= workers:
            return math.inf
        variation = self.variance_s2 / self.mean_s**2
        return _erlang_c(busy, workers) * self.mean_s / (workers - busy) * (1 + variation) / 2

    def last_wait_s(self, workers: int, hours: float) -> float:
        """Queueing time of the last submission if the queue only grows; else the mean."""
        if self.busy_workers(hours) < workers:
            return self.wait_s(workers, hours)
        return self.work_s / workers - 3600 * hours


def _erlang_c(busy: float, workers: int) -> float:
    """Erlang's C: the probability that an arrival finds no idle worker."""
    free = 1.0  # Erlang's B by its recursion, which cannot overflow
    for count in range(1, workers + 1):
        free = busy * free / (count + busy * free)
    return free / (1 - busy / workers * (1 - free))
