"""Data of the figure of a scheduler at work: requests that come, a budget of tokens, and what each step makes of them.

The figure repeats `inference.engine.Scheduler` and its block manager in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.inference.engine import BlockManager, Scheduler, SchedulerConfig
from mlsys_lab.inference.engine import Sequence as EngineSequence
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table


class Kind(NamedTuple):
    """Tokens of a prompt, the first `shared` of which all of its kind begin with; tokens that are written; priority."""

    prompt: int
    writes: int
    priority: int = 0
    shared: int = 0


KINDS = {"question": Kind(3, 6), "document": Kind(14, 4, shared=8), "urgent": Kind(3, 3, priority=1)}
PAGES, PAGE, SEQUENCES = 9, 4, 4
MOST_REQUESTS, MOST_BUDGET = 10, 16
OPENING = ((0, "question"), (0, "document"), (1, "question"), (3, "document"), (4, "urgent"))
"""Requests of the figure as it opens: the step after which each comes, and its kind."""


def scheduler_data(arrivals: Iterable[tuple[int, str]] = OPENING, *, budget: int = 6, shown: int = 0) -> dict[str, Any]:
    """The data of the figure: requests as (step after which it comes, kind), tokens of a step, and the step shown.

    Raises `InputError` for another kind, too many requests, and a budget below one token for each sequence.
    """
    given = sorted(arrivals, key=lambda one: one[0])
    for at, kind in given:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise InputError("no such request in the figure", got=kind, expected=", ".join(KINDS), help=near)
        if at < 0:
            raise InputError("a request comes after a step", got=at, expected="0 or more")
    if len(given) > MOST_REQUESTS or budget not in range(SEQUENCES, MOST_BUDGET + 1):
        got, expected = (
            f"{len(given)} requests, {budget} tokens",
            f"up to {MOST_REQUESTS}, {SEQUENCES} to {MOST_BUDGET}",
        )
        raise InputError("the figure does not draw this", got=got, expected=expected)
    return {
        "kinds": {name: kind._asdict() for name, kind in KINDS.items()},
        "pages": PAGES,
        "page": PAGE,
        "sequences": SEQUENCES,
        "arrivals": [[at, kind] for at, kind in given],
        "budget": budget,
        "shown": shown,
    }


def play(arrivals: Sequence[tuple[int, str]], budget: int) -> list[dict[str, Any]]:
    """What the package's scheduler does with the requests: the state before the first step and after each.

    Requests have letters in the order in which they come. A state says which are `waiting` and `running`, in the order
    of their ranks, how many `new` tokens each had in the step, how many it found in the cache (`hits`), who was
    `preempted` and who is `done`, the tokens `cached` of each that runs, and by page who holds it.
    """
    scheduler = Scheduler(BlockManager(PAGES, PAGE), SchedulerConfig(SEQUENCES, budget))
    names: dict[EngineSequence, str] = {}
    coming = sorted(arrivals, key=lambda one: one[0])
    states: list[dict[str, Any]] = []
    while True:
        new: dict[str, int] = {}
        hits: dict[str, int] = {}
        preempted: list[str] = []
        done: list[str] = []
        if states:
            cached_before = {seq: seq.num_cached_tokens for seq in names}
            output = scheduler.schedule()
            new = {names[seq]: n for seq, n in output.num_scheduled_tokens.items()}
            newly_cached = {seq: seq.num_cached_tokens - before for seq, before in cached_before.items()}
            hits = {names[seq]: n for seq, n in newly_cached.items() if n}
            preempted = [names[seq] for seq in output.preempted]
            scheduler.update_from_output(output, [[0]] * len(output.sampled))
            for seq in output.sampled:
                if seq.num_output_tokens == seq.max_tokens:
                    scheduler.finish(seq)
                    done.append(names[seq])
        while coming and coming[0][0] <= len(states):
            _, kind = coming.pop(0)
            prompt = _prompt(KINDS[kind], len(names))
            seq = scheduler.add(prompt, KINDS[kind].writes, priority=KINDS[kind].priority)
            names[seq] = chr(ord("A") + len(names))
        running = {names[seq]: seq for seq in scheduler.running}
        states.append(
            {
                "waiting": [names[seq] for seq in scheduler.waiting],
                "running": list(running),
                "new": new,
                "hits": hits,
                "preempted": preempted,
                "done": done,
                "cached": {name: seq.num_computed_tokens for name, seq in running.items()},
                "holders": [
                    "".join(name for name, seq in running.items() if page in seq.block_table) for page in range(PAGES)
                ],
            }
        )
        if scheduler.is_idle and not coming:
            return states


def _prompt(kind: Kind, number: int) -> list[int]:
    """Tokens of a prompt: the shared ones of its kind, then its own."""
    return [-1 - place if place < kind.shared else 100 * (number + 1) + place for place in range(kind.prompt)]


def scheduler_table(data: Mapping[str, Any]) -> str:
    """New tokens of each request by step, who waits and who was preempted: a table for where no script runs."""
    rows = []
    for number, state in enumerate(play(data["arrivals"], data["budget"])[1:], start=1):
        fed = ", ".join(f"{name} {count}" for name, count in state["new"].items())
        held = sum(map(bool, state["holders"]))
        rows.append((number, fed, *(" ".join(state[part]) or "–" for part in ("preempted", "done", "waiting")), held))
    return table(("step", "new tokens", "preempted", "done", "waiting", "pages held"), rows)


class SchedulerSteps(anywidget.AnyWidget):
    """Notebook figure of a scheduler at work, which can be fed: `SchedulerSteps.of([(0, "document")], budget=8)`."""

    _esm = esm("scheduler")
    kinds: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    pages = traitlets.Int().tag(sync=True)
    page = traitlets.Int().tag(sync=True)
    sequences = traitlets.Int().tag(sync=True)
    arrivals: traitlets.List[Any] = traitlets.List().tag(sync=True)
    budget = traitlets.Int().tag(sync=True)
    shown = traitlets.Int().tag(sync=True)

    @classmethod
    def of(cls, arrivals: Iterable[tuple[int, str]] = OPENING, **options: Any) -> Self:
        """Figure opened on some requests; `options` are keyword arguments of `scheduler_data`."""
        return cls(**scheduler_data(arrivals, **options))
