"""A server without a model: the engine's own scheduler on its pages, and a clock that says how long each step takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.inference.engine.scheduler import Batch, Limits, Scheduler
from mlsys_lab.inference.engine.sequence import Sequence as Running
from mlsys_lab.inference.simulator.clock import Clock
from mlsys_lab.inference.simulator.load import Arrival
from mlsys_lab.inference.simulator.metrics import Served


@dataclass(frozen=True)
class Simulation:
    """What came of a load: each request in the order of arrival, steps taken, means over them, and preemptions."""

    served: tuple[Served, ...]
    steps: int
    busy_s: float
    mean_sequences: float
    mean_tokens: float
    preemptions: int


def simulate(
    arrivals: Sequence[Arrival], clock: Clock, *, pages: int, page: int = 16, limits: Limits | None = None
) -> Simulation:
    """Serve a load on `pages` pages of `page` tokens: requests are seen between steps, as the engine sees them.

    A text always ends with the last token that it may write. InputError for a request that outgrows all pages.
    """
    tables = PageTables(pages, page)
    scheduler = Scheduler(tables, limits or Limits())
    coming, now = deque(sorted(arrivals, key=lambda one: one.time_s)), 0.0
    served: dict[Running, Served] = {}
    busy_s, sequences, tokens, preemptions = 0.0, 0, 0, 0
    while coming or not scheduler.idle:
        if scheduler.idle:
            now = max(now, coming[0].time_s)
        while coming and coming[0].time_s <= now:
            one = coming.popleft()
            served[scheduler.add(one.prompt, one.writes)] = Served(one.time_s)
        batch = scheduler.schedule()
        parts = [(len(new), tables.length(number)) for number, new in batch.new.items()]
        took_s = clock(parts, _moved(batch))
        now, busy_s = now + took_s, busy_s + took_s
        sequences, tokens = sequences + len(parts), tokens + batch.tokens
        preemptions += len(batch.preempted)
        tables.commit(batch.new)
        for sequence in batch.writers:
            served[sequence].tokens_s.append(now)
            scheduler.write(sequence, [0])
            if len(sequence.tokens) == sequence.most:
                scheduler.finish(sequence)
    steps = max(1, scheduler.steps)
    return Simulation(tuple(served.values()), scheduler.steps, busy_s, sequences / steps, tokens / steps, preemptions)


def _moved(batch: Batch) -> int:
    """Tokens whose keys and values go to host memory or come back."""
    return sum(saved.length for saved in batch.saves) + sum(end - first for _, first, end, _ in batch.restores)
