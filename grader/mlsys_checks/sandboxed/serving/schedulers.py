"""Tasks 2, 3, 5 and 6: schedulers driven through requests, a log of each step, and what two functions give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.serving.blocks import counts_of, make_tables, ragged, rows, table_of, told_of
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import describe_value, number, whole
from mlsys_lab.errors import InputError

SCHEDULERS = ("Scheduler", "ChunkedScheduler", "PreemptiveScheduler", "PromisedScheduler")
"""Classes that cross as their places here."""
WRITTEN = 5
"""Tokens that the stand-in for a model can write: 0 to WRITTEN - 1."""
SLOW = "tokens, of steps that take twice as long"
ASKED = {
    "tokens": (1, 0, 0, 1.0),
    SLOW: (2, 0, 0, 1.0),
    "tokens, beside two writers more": (1, 2, 0, 1.0),
    "tokens, with a thousand more kept of each writer": (1, 0, 1000, 1.0),
    "tokens, in half the time": (1, 0, 0, 0.5),
}
"""Calls of `token_budget`, of which each later one changes one argument.

A factor of the clock's seconds, writers and tokens kept that are added, and a factor of the promised time.
"""


def following(tokens: list[int]) -> int:
    """The token that the stand-in for a model writes after a text."""
    return (7 * sum(tokens[-3:]) + len(tokens)) % WRITTEN


def make_scheduler(artifact: Any, arrays: Arrays) -> Any:
    """The case's scheduler, with nothing to do yet."""
    limits = artifact.Limits(*arrays["limits"].tolist())
    name, kept = SCHEDULERS[int(arrays["scheduler"])], make_tables(artifact, arrays)
    if name == SCHEDULERS[-1]:
        promise = artifact.Objective(*arrays["objective"].tolist())
        return artifact.PromisedScheduler(kept, limits, artifact.Clock(*arrays["clock"].tolist()), promise)
    return getattr(artifact, name)(kept, limits)


class Log:
    """What a scheduler decided, step by step, with requests named by their places in the case."""

    def __init__(self) -> None:
        self.fed: list[tuple[int, ...]] = []
        self.tokens: list[int] = []
        self.held: list[tuple[int, ...]] = []
        self.counts: list[tuple[np.ndarray, list[int]]] = []
        self.noted: dict[str, list[tuple[int, int]]] = {"writers": [], "preempted": []}
        self.steps = 0

    def add(self, scheduler: Any, here: Mapping[int, Any], batch: Any) -> None:
        """Note a step that has been put together and not been run."""
        kept, requests = scheduler.tables, {id(one): i for i, one in here.items()}
        numbers = {one.number: i for i, one in here.items() if one.number is not None}
        for number_of, part in batch.new.items():
            if number_of not in numbers:
                raise InputError(f"step {self.steps} feeds a text that does not run", got=f"number {number_of}")
            self.fed.append((self.steps, numbers[number_of], int(kept.length(number_of)), len(part)))
            self.tokens += [int(whole("a token", token)) for token in part]
        for name, noted in self.noted.items():
            for one in getattr(batch, name):
                if id(one) not in requests:
                    raise InputError(f"batch.{name} holds something else than a text", got=describe_value(one))
                noted.append((self.steps, requests[id(one)]))
        self.held += [(self.steps, i, block) for one, i in numbers.items() for block in table_of(kept, one)]
        self.counts.append(counts_of(kept.blocks))
        self.steps += 1

    def arrays(self, scheduler: Any) -> Arrays:
        """The log, with counts once more at the end."""
        log = {"fed": rows(self.fed, 4), "tokens": np.array(self.tokens, dtype=np.int64), "held": rows(self.held, 3)}
        noted = {name: rows(found, 2) for name, found in self.noted.items()}
        return told_of([*self.counts, counts_of(scheduler.tables.blocks)]) | log | noted


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Drive a scheduler through the requests of a case, by a clock along a line: a log of its steps."""
    scheduler, log = make_scheduler(artifact, arrays), Log()
    prompts, writes = ragged(arrays["prompts"], arrays["lengths"]), arrays["writes"].tolist()
    comes_s, leaves_s = arrays["comes_s"].tolist(), arrays["leaves_s"].tolist()
    step_s, token_s, cached_s = arrays["clock"].tolist()
    coming = sorted(range(len(prompts)), key=lambda i: comes_s[i])
    here: dict[int, Any] = {}
    came: dict[int, tuple[Any, ...]] = {}
    now_s = 0.0
    while coming or here:
        if not here:
            now_s = max(now_s, comes_s[coming[0]])
        scheduler.now_s = now_s
        while coming and comes_s[coming[0]] <= now_s:
            i = coming.pop(0)
            here[i] = _add(scheduler, prompts[i], writes[i])
            came[i] = _fixed(here[i])
        for i in [i for i in here if leaves_s[i] <= now_s]:
            _finish(scheduler, here.pop(i))
        _require_idle(scheduler, idle=not here)
        if not here:
            continue
        for i in arrays["admits"].tolist() if not log.steps else ():
            _admit(scheduler, here[i], i)
        batch = _batch_of(scheduler, len(here), log.steps)
        log.add(scheduler, here, batch)
        fed = [list(part) for part in batch.new.values()]
        if log.steps > int(arrays["most_steps"]):
            raise InputError(f"requests have not ended after {log.steps} steps", got=f"{len(here)} that wait or run")
        parts = [(len(part), int(scheduler.tables.length(one))) for one, part in batch.new.items()]
        now_s += step_s + token_s * sum(new for new, _ in parts) + cached_s * sum(past for _, past in parts)
        scheduler.tables.commit(batch.new)
        for i in [i for i, one in here.items() if any(one is writer for writer in batch.writers)]:
            scheduler.write(here[i], [following(here[i].tokens)])
            if len(here[i].tokens) == len(prompts[i]) + writes[i]:
                _require_fixed(here[i], came[i])
                _finish(scheduler, here.pop(i))
        if [list(part) for part in batch.new.values()] != fed:
            what = f"the batch of step {log.steps - 1} changes when its texts are written on"
            raise InputError(what, expected="lists of its own")
        _require_idle(scheduler, idle=not here)
    return log.arrays(scheduler)


def _add(scheduler: Any, prompt: list[int], writes: int) -> Any:
    """Let a text wait, and check whether it says how long its prompt was, which the server's page shows."""
    text = scheduler.add(prompt, writes)
    if (found := int(whole("prompt", text.prompt))) != len(prompt):
        raise InputError("a text does not know how long its prompt was", got=str(found), expected=f"{len(prompt)}")
    return text


FIXED = ("prompt", "most", "arrived_s")
"""What a text is told when it comes, and stays."""


def _fixed(text: Any) -> tuple[Any, ...]:
    return tuple(getattr(text, name, None) for name in FIXED)


def _require_fixed(text: Any, came: tuple[Any, ...]) -> None:
    """Look whether a text still knows how long its prompt was, how long it will be, and when it came."""
    for name, before, now in zip(FIXED, came, _fixed(text), strict=True):
        if now != before:
            what = f"`{name}` of a text changes on the way"
            raise InputError(what, got=str(now)[:60], expected=f"{before}, as when it came")


def _admit(scheduler: Any, text: Any, i: int) -> None:
    """Let a text run for which there is room, whoever waits before it."""
    if not scheduler.admit(text):
        raise InputError(f"admit of request {i}, which waits and has room, lets nobody run", expected="True")


def _finish(scheduler: Any, text: Any) -> None:
    """Have a text forgotten, which then has no number, and has its tokens still."""
    before = list(text.tokens)
    scheduler.finish(text)
    if (left := list(text.tokens)) != before:
        what = "`finish` changes the tokens of a text"
        raise InputError(what, got=f"{len(left)} tokens", expected=f"its {len(before)}, for whoever asked for them")
    if text.number is not None:
        raise InputError("a text has a number after `finish`", got=describe_value(text.number), expected="None")


def _require_idle(scheduler: Any, *, idle: bool) -> None:
    if bool(found := scheduler.idle) != idle:
        what = "all requests have ended" if idle else "somebody waits or runs"
        raise InputError(f"{what}, and scheduler.idle is wrong", got=describe_value(found), expected=str(idle))


def _batch_of(scheduler: Any, here: int, step: int) -> Any:
    batch = scheduler.schedule()
    if not all(hasattr(batch, name) for name in ("new", "writers", "preempted")):
        raise InputError("schedule() gives no Batch", got=describe_value(batch), expected="a Batch")
    if not batch.new:
        raise InputError(f"step {step} feeds nobody", got=f"{here} texts that wait or run", expected="one at least")
    if empty := [one for one, part in batch.new.items() if not len(part)]:
        raise InputError(f"step {step} feeds a text no token", got=f"number {empty[0]}", expected="one or more each")
    return batch


def steps_to_first(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `steps_to_first` for rows of prompt, writers and tokens."""
    found = [whole("steps_to_first", artifact.steps_to_first(*row)) for row in arrays["asked"].tolist()]
    return {"steps": np.stack(found)}


def token_budget(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `token_budget` with a clock: the slower of two lines, and some time for each token that another looks at.

    Then with one argument changed at a time, as ASKED says.
    """
    compute_s, memory_s = (artifact.Clock(*line) for line in arrays["clocks"].tolist())
    pair_s = float(arrays["pair_s"])

    def clock(parts: Any) -> float:
        parts = list(parts)
        pairs = sum(int(new) * int(past) + int(new) * (int(new) + 1) // 2 for new, past in parts)
        return max(float(compute_s(parts)), float(memory_s(parts))) + pair_s * pairs

    clocks = {1: clock, 2: lambda parts: 2 * clock(parts)}
    writers, past = arrays["asked"].tolist()
    tpot_s = float(number("tpot_s", arrays["tpot_s"]))
    found = {}
    for name, (factor, wider, longer, part) in ASKED.items():
        found[name] = whole(name, artifact.token_budget(clocks[factor], writers + wider, past + longer, part * tpot_s))
    return found
