"""Judge mutants, each in a child forked from this process, which has all libraries and the lab's checks loaded.

A mutant is killed when a check fails it for each of several draws of secret inputs, as a submission's own seed would
be one of them: a mistake that most draws let pass is not caught, however often it shows. With three draws a mutant that
one draw in ten lets pass is called killed with a chance of 73 %, one that half let pass with 13 %. Other seeds, as in
the weekly run, find what these miss; a hundred draws for all would take days, for a sample they are a matter of hours.

Only checks that reach the changed function are asked, first those that name it, and no more after one has failed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mlsys_checks.sandboxed.spec import Check, Lab
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.engines import Task
from mlsys_grader.proving.in_process import SEED, InProcess
from mlsys_grader.proving.mutation.mutants import Mutant
from mlsys_lab.errors import CourseError, InputError

DRAWS = 3
"""Draws of secret inputs, for each of which a check has to fail a mutant, unless more are asked for."""
SLOWER, LEAST_S = 10, 3
"""A mutant may take so many times the processor time of the source that it was made of, and at least these seconds."""
MEMORY_BYTES = 8 * 2**30
BY_CLOCK = "the clock"
"""What kills a mutant that does not come to an end, or ends its process."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the check that killed it (or `BY_CLOCK`), "" where it passed all; the seed it passed.

    `error`: what one of the checks raised itself, which decides nothing.
    """

    mutant: Mutant
    killed_by: str = ""
    survived_seed: int | None = None
    error: str = ""


def sample_mutants(mutants: Sequence[Mutant], number: int | None, seed: int) -> list[Mutant]:
    """Some of the mutants, the same for a seed; all of them if `number` is None or larger."""
    if number is None or number >= len(mutants):
        return list(mutants)
    chosen = random.Random(seed).sample(range(len(mutants)), number)
    return [mutants[i] for i in sorted(chosen)]


def judge_mutants(
    lab: Lab, mutants: Iterable[Mutant], *, seed: int = SEED, draws: int = DRAWS, workers: int = 1
) -> Iterator[Outcome]:
    """Yield an outcome for each mutant as it is known, with `draws` draws of secret inputs from `seed` on.

    Raises `InputError` where a source itself does not pass a check: nothing can be said of its mutants then.
    """
    seeds = tuple(range(seed, seed + draws))
    cost = _Costs(lab.topic, seed)

    def examine(mutant: Mutant) -> Callable[[], dict[str, object]]:
        checks = _order(lab, mutant)
        limit_s = LEAST_S + int(SLOWER * draws * sum(cost.of(check, mutant.code.text) for check in checks))
        return lambda: _examine(mutant, checks, seeds, limit_s)

    for mutant, answer in _in_children(mutants, examine, workers):
        yield Outcome(mutant, **answer) if answer is not None else Outcome(mutant, BY_CLOCK)  # type: ignore[arg-type]


class _Costs:
    """Processor seconds of checks on the texts that mutants are made of; each is measured when it is first wanted.

    What a check imports at its first run is brought before that.
    """

    def __init__(self, topic: str, seed: int) -> None:
        self._topic, self._seed = topic, seed
        self._found: dict[tuple[str, str], float] = {}
        self._imported: set[str] = set()

    def of(self, check: Check, text: str) -> float:
        """Seconds of a check on a text that passes it. Raises `InputError` for a text that does not."""
        if check.name not in self._imported:
            self._imported.add(check.name)
            self._measure(check, text)
        if (check.name, text) not in self._found:
            self._found[check.name, text] = self._measure(check, text)
        return self._found[check.name, text]

    def _measure(self, check: Check, text: str) -> float:
        task = Task("source", Artifact.parse("source", text), {check.name: self._seed})
        (result,) = InProcess([check]).judge_all([task])
        (verdict,) = result.verdicts
        if not verdict.passed:
            what = f"what the mutants of lab {self._topic} are made of is not right itself"
            raise InputError(what, got=f"{check.name}: {verdict.what}", help=f"mlsys-grader prove {self._topic}")
        return verdict.call_s


def _order(lab: Lab, mutant: Mutant) -> list[Check]:
    """The checks that a mutant could fail: those that name its function, then those that use what uses it."""
    reached = [check for check in lab.checks if mutant.top in mutant.code.reached_from(check.uses)]
    return sorted(reached, key=lambda check: mutant.top not in check.uses)


def _examine(mutant: Mutant, checks: Sequence[Check], seeds: Sequence[int], limit_s: int) -> dict[str, object]:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    artifact, killer = Artifact.parse("mutant", mutant.text), ""
    for seed in seeds:
        first = sorted(checks, key=lambda check: check.name != killer)
        try:
            killer = next((check.name for check in first if not _passes(check, artifact, seed)), "")
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        if not killer:
            return {"survived_seed": seed}
    return {"killed_by": killer}


def _passes(check: Check, artifact: Artifact, seed: int) -> bool:
    try:
        (result,) = InProcess([check]).judge_all([Task("mutant", artifact, {check.name: seed})])
    except CourseError:  # it does not load
        return False
    return result.verdicts[0].passed


def _in_children(
    mutants: Iterable[Mutant], examine: Callable[[Mutant], Callable[[], dict[str, object]]], workers: int
) -> Iterator[tuple[Mutant, dict[str, object] | None]]:
    """Have every mutant examined in a child of its own, `workers` at a time; None for one that died."""
    waiting = iter(mutants)
    running: dict[int, tuple[int, Mutant]] = {}
    with selectors.DefaultSelector() as selector:
        while True:
            while len(running) < workers and (mutant := next(waiting, None)) is not None:
                pid, reading = _fork(examine(mutant))
                running[reading] = (pid, mutant)
                selector.register(reading, selectors.EVENT_READ)
            if not running:
                return
            for key, _ in selector.select():
                pid, mutant = running.pop(key.fd)
                selector.unregister(key.fd)
                with os.fdopen(key.fd, "rb") as pipe:
                    told = pipe.read()
                os.waitpid(pid, 0)
                yield mutant, json.loads(told) if told else None


def _fork(work: Callable[[], dict[str, object]]) -> tuple[int, int]:
    """A child that writes what `work` gives as JSON: its process and the end of the pipe to read from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    with suppress(BaseException):  # whatever a mutant raises past its check, the child ends here
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        told = json.dumps(work())
        os.write(writing, told.encode())
    os._exit(0)
