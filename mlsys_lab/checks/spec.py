"""What a check is: one specification that runs in a notebook and in the judge alike.

The learner's side calls `run`; whoever decides calls `inputs`, `expect` and `compare`. In a notebook both happen in one
process. In grading `run` happens in a sandbox, and only arrays cross between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError, did_you_mean

Arrays = dict[str, np.ndarray]
"""Named arrays. One whose name begins with an underscore stays with whoever decides, away from the learner's code."""


@dataclass(frozen=True)
class Case:
    """One situation to try a learner's code in: its kind in words, and the sizes that make it up."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False


@dataclass(frozen=True)
class Mismatch:
    """Why an answer is not accepted: what was wrong, got, expected. Holds no value of a hidden case's inputs."""

    what: str
    got: str = ""
    expected: str = ""


@dataclass(frozen=True)
class Check:
    """Four small functions and a few numbers.

    inputs(rng, case)     -> arrays to feed (dtype and shape are part of the specification)
    run(artifact, arrays) -> arrays, by calling the learner's code; `artifact` is the module of exported cells
    expect(arrays)        -> arrays, from an oracle that is independent of the course's own solution
    compare(got, expected) -> None when accepted, else the first `Mismatch`

    `uses` names what the artifact must define; `memory_bytes` caps what `run` may hold beyond what was there before it.
    """

    name: str
    title: str
    points: float
    cases: tuple[Case, ...]
    inputs: Callable[[np.random.Generator, Case], Arrays]
    run: Callable[[Any, Arrays], Arrays]
    expect: Callable[[Arrays], Arrays]
    compare: Callable[[Arrays, Arrays], Mismatch | None]
    hint: str
    uses: tuple[str, ...] = ()
    time_limit_s: float = 10.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not any(not case.hidden for case in self.cases):
            raise InputError(f"check {self.name!r} has no public case", help="give it one that learners can see")
        if len({case.name for case in self.cases}) != len(self.cases):
            raise InputError(f"check {self.name!r} names a case twice")
        if self.points <= 0 or self.time_limit_s <= 0:
            raise InputError(f"check {self.name!r} needs positive points and time limit")


@dataclass(frozen=True)
class Lab:
    """The checks of one lab, in the order of its tasks. `topic` is the name without the folder's number."""

    topic: str
    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        names = [check.name for check in self.checks]
        raise InputError(
            f"lab {self.topic!r} has no such check",
            got=repr(name),
            expected=f"one of {', '.join(names)}",
            help=did_you_mean(name, names),
        )

    @property
    def points(self) -> float:
        """Points of all checks together."""
        return sum(check.points for check in self.checks)
