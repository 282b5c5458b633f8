"""Data of the figure of a scheduler at work: requests that come, a budget of tokens, and what each step makes of them.

The figure repeats `inference.engine.Scheduler` and its page tables in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.inference.engine.scheduler import Limits, Scheduler
from mlsys_lab.inference.engine.sequence import Sequence as Running
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
    tables = PageTables(PAGES, PAGE)
    scheduler = Scheduler(tables, Limits(SEQUENCES, budget))
    names: dict[Running, str] = {}
    coming = sorted(arrivals, key=lambda one: one[0])
    states: list[dict[str, Any]] = []
    while True:
        new: dict[str, int] = {}
        hits: dict[str, int] = {}
        preempted: list[str] = []
        done: list[str] = []
        if states:
            found = {one: one.hits for one in names}
            batch = scheduler.schedule()
            numbers = {one.number: name for one, name in names.items() if one.number is not None}
            new = {numbers[number]: len(tokens) for number, tokens in batch.new.items()}
            hits = {names[one]: one.hits - before for one, before in found.items() if one.hits > before}
            preempted = [names[one] for one in batch.preempted]
            tables.commit(batch.new)
            for one in batch.writers:
                scheduler.write(one, [0])
                if len(one.tokens) == one.most:
                    scheduler.finish(one)
                    done.append(names[one])
        while coming and coming[0][0] <= len(states):
            _, kind = coming.pop(0)
            prompt = _prompt(KINDS[kind], len(names))
            one = scheduler.add(prompt, KINDS[kind].writes, priority=KINDS[kind].priority)
            names[one] = chr(ord("A") + len(names))
        running = {names[one]: one.number for one in scheduler.running if one.number is not None}
        states.append(
            {
                "waiting": [names[one] for one in scheduler.waiting],
                "running": list(running),
                "new": new,
                "hits": hits,
                "preempted": preempted,
                "done": done,
                "cached": {name: tables.length(number) for name, number in running.items()},
                "holders": [
                    "".join(name for name, number in running.items() if page in tables.table(number))
                    for page in range(PAGES)
                ],
            }
        )
        if scheduler.idle and not coming:
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
